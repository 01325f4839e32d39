"""When a report is written: at once for what went wrong, soon for what moved, and every period in any case.

    fault, its end, a GPU gone or back,      at once, as long as there are tokens
    an error that no GPU can be read
    a reading moved beyond its threshold     `least` seconds after the last report
    nothing happened                         a period after the last report

Every write takes a token; one comes back every `least` seconds, at most `BURST` are kept. So no more than
BURST + t / least writes happen in any t seconds, whatever the GPUs do. What could not be written is part of the next
report, since a report is the whole state.

What counts as moved (between the last report and now):

    utilisations                 10 points               temperature       5 °C
    memory in use                5 % of all memory       power             10 % of the limit
    clocks                       10 % of the highest     time throttled    25 points
    NVLink traffic               50 %, from 1 GB/s       throttle reasons  any change, pods and processes, too
    corrected ECC errors         100                     any other count   any change
"""

from __future__ import annotations

import math
from typing import Final, Literal

from trimtab.agent.backend import Gpu, known
from trimtab.agent.digest import GpuState, NodeState

BURST: Final = 3

Cause = Literal["", "first", "fault", "moved", "heartbeat"]

POINTS: Final[dict[str, float]] = {
    "sm_utilization": 0.10,
    "memory_utilization": 0.10,
    "tensor_active": 0.10,
    "dram_active": 0.10,
    "temperature": 5.0,
    "ecc_corrected": 100.0,
}
"""Thresholds in the reading's own unit."""
PARTS: Final[dict[str, tuple[str, float]]] = {
    "memory_used": ("memory_total", 0.05),
    "power": ("power_limit", 0.10),
    "sm_clock": ("sm_clock_max", 0.10),
    "memory_clock": ("memory_clock", 0.10),
}
"""Thresholds as a part of another reading."""
TRAFFIC: Final = ("nvlink_tx", "nvlink_rx")
TRAFFIC_PART: Final = 0.5
TRAFFIC_LEAST: Final = 1e9
THROTTLED: Final = 0.25
EXACT: Final = (
    "product",
    "power_limit",
    "throttle_reasons",
    "nvlinks_active",
    "pcie_width",
    "ecc_uncorrected",
    "rows_remapped_corrected",
    "rows_remapped_uncorrected",
    "row_remap_pending",
    "row_remap_failed",
    "mig_enabled",
    "mig",
    "pods",
)
"""Any change is a movement."""


class Bucket:
    """Tokens for writes: `burst` at first, one more every `seconds`."""

    def __init__(self, seconds: float, burst: int = BURST) -> None:
        self._seconds = seconds
        self._burst = burst
        self._tokens = float(burst)
        self._at = -math.inf

    def level(self, now: float) -> float:
        """Tokens that are there at `now` (monotonic seconds)."""
        gained = 0.0 if self._at == -math.inf else max(0.0, now - self._at) / self._seconds
        return min(float(self._burst), self._tokens + gained)

    def take(self, now: float) -> bool:
        """Take a token, if there is one."""
        level = self.level(now)
        self._at = max(now, self._at)
        self._tokens = level
        # a billionth less than one is one: the sum of many small gains
        if level < 1 - 1e-9:
            return False
        self._tokens = max(0.0, level - 1)
        return True


class Schedule:
    """Decides when to write; the caller says what came of it. It is asked every `tick` seconds."""

    def __init__(self, period: float, least: float, tick: float = 0.0) -> None:
        self._period = period
        self._least = least
        self._tick = tick
        self._bucket = Bucket(least)
        self._written: NodeState | None = None
        self._wrote_at = -math.inf
        self._not_before = -math.inf

    @property
    def heartbeat_at(self) -> float:
        """When the next report is due in any case."""
        return self._wrote_at + self._period

    def due(self, state: NodeState, now: float) -> Cause:
        """Why this state is to be written now; empty when it is not. A token is taken when it is."""
        cause = self._cause(state, now)
        if not cause or now < self._not_before or not self._bucket.take(now):
            return ""
        return cause

    def wrote(self, state: NodeState, now: float) -> None:
        """The API server has this state, sent at `now`."""
        self._written = state
        self._wrote_at = now

    def failed(self, until: float) -> None:
        """It could not be written; do not try again before `until`."""
        self._not_before = until

    def _cause(self, state: NodeState, now: float) -> Cause:
        if self._written is None:
            return "first"
        if urgent(self._written, state):
            return "fault"
        if now + self._tick > self.heartbeat_at or now >= self.heartbeat_at:
            return "heartbeat"
        return "moved" if now - self._wrote_at >= self._least and moved(self._written, state) else ""


def urgent(old: NodeState, new: NodeState) -> bool:
    """Whether something went wrong since, or ended."""
    if old.error != new.error or len(old.gpus) != len(new.gpus):
        return True
    return any(
        before.gpu.uuid != after.gpu.uuid or before.counts != after.counts
        for before, after in zip(old.gpus, new.gpus, strict=True)
    )


def moved(old: NodeState, new: NodeState) -> str:
    """Name of a reading that moved beyond its threshold; empty when none did. Both have the same GPUs."""
    for before, after in zip(old.gpus, new.gpus, strict=True):
        if what := _moved(before, after):
            return what
    return "" if old.reading.links == new.reading.links else "links"


def _moved(old: GpuState, new: GpuState) -> str:
    before, after = old.gpu, new.gpu
    for field, points in POINTS.items():
        if _beyond(getattr(before, field), getattr(after, field), points):
            return field
    for field, (whole, part) in PARTS.items():
        if _beyond(getattr(before, field), getattr(after, field), part * getattr(before, whole)):
            return field
    for field in TRAFFIC:
        was = getattr(before, field)
        if _beyond(was, getattr(after, field), max(TRAFFIC_LEAST, TRAFFIC_PART * was)):
            return field
    if _beyond(old.throttled, new.throttled, THROTTLED):
        return "throttled"
    return _changed(before, after)


def _changed(before: Gpu, after: Gpu) -> str:
    for field in EXACT:
        was, now = getattr(before, field), getattr(after, field)
        if was != now and not (_unread(was) and _unread(now)):
            return field
    pids = {each.pid for each in before.processes}
    return "processes" if pids != {each.pid for each in after.processes} else ""


def _beyond(before: float, after: float, threshold: float) -> bool:
    """Whether a number moved by the threshold, or became known or unknown. Without a threshold (NaN) it did not."""
    if known(before) and known(after):
        return abs(after - before) >= threshold
    return known(before) != known(after)


def _unread(value: object) -> bool:
    return isinstance(value, float) and not known(value)
