"""Readings jump from second to second; decisions want what holds: exponentially weighted means.

A mean forgets with its time constant, whatever the distance between readings: after so many seconds a step of the input
has been taken over to 63 %, after three times as many to 95 %. A single missing reading leaves the mean as it is; when
nothing was read for `HOLD_SECONDS`, it is `NA`.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from msgspec.structs import replace

from trimtab.agent.backend import NA, Gpu, known

SECONDS: Final[dict[str, float]] = {
    "sm_utilization": 10.0,
    "memory_utilization": 10.0,
    "tensor_active": 10.0,
    "dram_active": 10.0,
    "temperature": 5.0,
    "power": 10.0,
    "sm_clock": 10.0,
    "memory_clock": 10.0,
    "nvlink_tx": 10.0,
    "nvlink_rx": 10.0,
    "pcie_tx": 10.0,
    "pcie_rx": 10.0,
}
"""Time constants of what is smoothed. All other readings are passed on as they are."""

HOLD_SECONDS: Final = 10.0


class Mean:
    """An exponentially weighted mean of readings at any distance."""

    __slots__ = ("_at", "_seconds", "_value")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._value = NA
        self._at = -math.inf

    def take(self, value: float, now: float) -> float:
        """The mean after this reading; `NA` is a reading that is missing."""
        elapsed = now - self._at
        if not known(value):
            if elapsed > HOLD_SECONDS:
                self._value = NA
            return self._value
        if known(self._value) and elapsed > 0:
            self._value += (value - self._value) * -math.expm1(-elapsed / self._seconds)
        elif not known(self._value):
            self._value = value
        self._at = now
        return self._value


class Share:
    """Part of the last `seconds` in which something was so."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: deque[tuple[float, bool]] = deque()
        self._true = 0

    def take(self, so: bool | None, now: float) -> float:
        """The share after this reading (None: not known); `NA` when nothing was known for the whole time."""
        if so is not None:
            self._seen.append((now, so))
            self._true += so
        while self._seen and self._seen[0][0] <= now - self._seconds:
            self._true -= self._seen.popleft()[1]
        return self._true / len(self._seen) if self._seen else NA


class GpuSmoother:
    """The means of one GPU. `window` is the time over which throttling is counted, in seconds."""

    def __init__(self, window: float) -> None:
        self._means = {field: Mean(seconds) for field, seconds in SECONDS.items()}
        self._throttled = Share(window)

    def take(self, gpu: Gpu, now: float) -> tuple[Gpu, float]:
        """The smoothed reading, and the share of the window in which the GPU was throttled."""
        means = {field: mean.take(getattr(gpu, field), now) for field, mean in self._means.items()}
        reasons = gpu.throttle_reasons
        return replace(gpu, **means), self._throttled.take(None if reasons is None else bool(reasons), now)
