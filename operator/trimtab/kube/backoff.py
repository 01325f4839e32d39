"""How long to wait before trying again: exponential with jitter, capped, and never sooner than the server asks."""

from __future__ import annotations

import random


class Backoff:
    """Waits that grow from `initial` by `factor` to `cap` seconds.

    Each wait is drawn from the upper half of its step ("equal jitter"), so that many clients of a recovering server do
    not come back in the same instant.
    """

    def __init__(self, initial: float = 0.2, cap: float = 5.0, factor: float = 2.0) -> None:
        self._initial = initial
        self._cap = cap
        self._factor = factor
        self._step = initial

    def next(self, retry_after: float | None = None) -> float:
        """Seconds to wait now. `retry_after` is what the server asked for, if it did."""
        step, self._step = self._step, min(self._step * self._factor, self._cap)
        return max(step * random.uniform(0.5, 1.0), retry_after or 0.0)  # noqa: S311 - spreads retries

    def reset(self) -> None:
        """Something worked: start over."""
        self._step = self._initial
