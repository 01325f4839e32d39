"""Foreign load: GPUs that are busy with what no pod has asked for, started by hand or by another system.

They count as taken, in number: which card a pod gets is the device plugin's choice. A level that follows slowly keeps
out a pod that has just ended or just begun, and an agent that lags behind the kubelet. Stale readings are
evidence of nothing: what they told of ends as slowly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from trimtab.observe.telemetry import GpuFacts
from trimtab.settings import TelemetrySettings

PROOF: Final = 2
"""Reports that must have told of a load before it can count: the first may have been read before the last pod left."""


class HysteresisLevel(Struct, frozen=True):
    """A number that follows another one only when that has been higher, or lower, for long enough."""

    value: int = 0
    above: tuple[float, int] | None = None
    """Since when it should have been higher, and the least that it should have been."""
    below: tuple[float, int] | None = None
    """Since when lower, and the most."""

    @property
    def settled(self) -> bool:
        """Whether nothing is on its way."""
        return self.above is None and self.below is None

    def follow(self, raw: int, now: float, seconds: float) -> HysteresisLevel:
        """One more look at the number to follow."""
        above = (self.above[0], min(self.above[1], raw)) if self.above else (now, raw)
        below = (self.below[0], max(self.below[1], raw)) if self.below else (now, raw)
        if raw > self.value:
            return HysteresisLevel(above[1]) if now - above[0] >= seconds else HysteresisLevel(self.value, above=above)
        if raw < self.value:
            return HysteresisLevel(below[1]) if now - below[0] >= seconds else HysteresisLevel(self.value, below=below)
        return self if self.settled else HysteresisLevel(self.value)


class ForeignLoad(Struct, frozen=True):
    """GPUs of a node that are busy, and whether a pod is known to have them."""

    claimed: int = 0
    """GPUs that some pod has, busy or not."""
    unclaimed: tuple[int, ...] = ()
    """Indices of busy GPUs that no pod has, or where it is not known who has them."""

    def foreign(self, requested: int) -> int:
        """Busy GPUs that no pod can account for. `requested` are the GPUs of all pods on the node, or on their way.

        What is requested and not claimed by a pod yet may be any of the busy ones: the agent lags behind the kubelet.
        """
        return max(0, len(self.unclaimed) - max(0, requested - self.claimed))


NO_LEVEL, NO_LOAD = HysteresisLevel(), ForeignLoad()


def load(gpus: Iterable[GpuFacts], before: ForeignLoad, utilization: float, memory: float) -> ForeignLoad:
    """Which GPUs are busy. One that was stays so until it is at half of both thresholds: no flapping at the edge.

    Parts of GPUs (MIG) are asked for by other names than whole ones, and are no concern of ours.
    """
    claimed = 0
    unclaimed: list[int] = []
    for gpu in gpus:
        if gpu.partitioned:
            continue
        if gpu.pods:
            claimed += 1
            continue
        part = 0.5 if gpu.index in before.unclaimed else 1.0
        if gpu.utilization > part * utilization or gpu.memory_used > part * memory * gpu.memory_total:
            unclaimed.append(gpu.index)
    return ForeignLoad(claimed, tuple(unclaimed))


class Foreign:
    """Follows the foreign load of all nodes; `take` as reports arrive, `look` once a round."""

    def __init__(self, settings: TelemetrySettings) -> None:
        self._settings = settings
        self._loads: dict[str, ForeignLoad] = {}
        """Of nodes with busy GPUs that no pod is known to have."""
        self._reports: dict[str, int] = {}
        """How many reports in a row have said so since the last pod has left the node."""
        self._requested: dict[str, int] = {}
        """GPUs that were requested of these nodes at the last look."""
        self._levels: dict[str, HysteresisLevel] = {}
        """Of nodes where something is foreign, or is about to be."""
        self._looked = False
        self.beyond: dict[str, int] = {}
        """Nodes whose foreign load does not count because that of too many others does already."""

    def take(self, name: str, gpus: Iterable[GpuFacts]) -> None:
        """A report has arrived."""
        settings = self._settings
        now = load(gpus, self.load(name), settings.foreign_utilization, settings.foreign_memory)
        if now.unclaimed:
            self._loads[name] = now
            self._reports[name] = self._reports.get(name, 0) + 1
        else:
            self._drop(name)

    def load(self, name: str) -> ForeignLoad:
        """What the node's last report says."""
        return self._loads.get(name, NO_LOAD)

    def proven(self, name: str) -> bool:
        """Whether reports enough have shown the load: the last one of a dead agent may tell of a pod that has ended."""
        return self._reports.get(name, 0) >= PROOF

    def forget(self, name: str) -> None:
        """The node's reports are gone."""
        self._drop(name)
        self._levels.pop(name, None)

    def look(
        self, fresh: Callable[[str], bool], requested: Callable[[str], int], allowance: int, now: float
    ) -> Mapping[str, int]:
        """Node -> GPUs that count as taken. Nodes without `fresh` readings have no foreign load, after a while.

        `requested` are the GPUs of all pods on a node, or on their way; at most `allowance` nodes more than before may
        count. After a start, what is busy at the first look counts at once: nobody knows for how long it has been.
        """
        first, self._looked = not self._looked, True
        seconds = 0.0 if first else self._settings.foreign_seconds
        self.beyond = {}
        raw = {name: busy for name in self._loads if (busy := self._busy(name, fresh(name), requested(name)))}
        for name in sorted(raw.keys() | self._levels.keys()):
            before, busy = self._levels.get(name, NO_LEVEL), raw.get(name, 0)
            rises = busy > before.value
            after = before.follow(busy, now, seconds if first or not rises or self.proven(name) else math.inf)
            if after.value and not before.value:
                if allowance <= 0:
                    self.beyond[name] = after.value
                    after = before
                allowance -= 1
            if after.value or not after.settled:
                self._levels[name] = after
            else:
                self._levels.pop(name, None)
        return self.taken()

    def taken(self) -> dict[str, int]:
        """Node -> GPUs that count as taken."""
        return {name: level.value for name, level in self._levels.items() if level.value}

    def due(self) -> Iterable[float]:
        """When levels that are about to change will."""
        seconds = self._settings.foreign_seconds
        levels = self._levels.values()
        return (since[0] + seconds for level in levels for since in (level.above, level.below) if since)

    def _busy(self, name: str, fresh: bool, requested: int) -> int:
        """Busy GPUs that no pod accounts for now. What was busy before a pod has left says nothing about the rest."""
        if not fresh or requested < self._requested.get(name, 0):
            self._reports[name] = 0
        self._requested[name] = requested
        return self._loads[name].foreign(requested) if fresh else 0

    def _drop(self, name: str) -> None:
        for table in (self._loads, self._reports, self._requested):
            table.pop(name, None)
