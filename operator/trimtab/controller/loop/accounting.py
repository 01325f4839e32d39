"""GPU-seconds: who has held how many GPUs for how long, and whether they were used. Counted by the leader, from round
to round: what gangs held at the last look they have held until this one.

Every change of a plan makes a round, so nothing is missed in between; where there was no look for longer than rounds
can be apart (the process stood still), nobody knows who held what, and nothing is counted. A new leader, or a new
process, begins at its first look: Prometheus adds up the processes, and none counts what another has.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping

from msgspec import Struct

from trimtab.observe import gpu_use
from trimtab.observe.gpu_use import GpuUse
from trimtab.observe.snapshot import Observation
from trimtab.observe.telemetry import NodeTelemetry
from trimtab.telemetry import metrics
from trimtab_policy.types import Job, Placement

SWEEPS = 3.0
"""Rounds are so many sweeps apart at most."""

Labels = tuple[str, str, str]
"""Queue, namespace, GPU type."""


class _Read(Struct, frozen=True):
    """What a gang did with its GPUs, and what that was made of: it is made anew only where something has changed."""

    placement: Placement
    told: tuple[NodeTelemetry | None, ...]
    """By its nodes' agents."""
    use: GpuUse


class Accounting:
    """Counts GPU-seconds while this controller leads. `least` is from which part of the time on a GPU is used,
    `sweep_seconds` how far rounds are apart, and `job_of_pod` of which job (`namespace/name`) a pod (the same) is;
    `clock` never jumps."""

    def __init__(
        self,
        least: float,
        sweep_seconds: float,
        job_of_pod: Callable[[str], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job_of_pod = job_of_pod
        self._least = least
        self._longest = SWEEPS * sweep_seconds
        self._clock = clock
        self._at: float | None = None
        """Of the last look."""
        self._read: dict[str, _Read] = {}
        self._held: Mapping[Labels, GpuUse] = {}
        self.uses: Mapping[str, GpuUse] = {}
        """UID -> what the gangs did with their GPUs when they were looked at last."""

    def see(self, seen: Observation) -> None:
        """Count the time since the last look, and note who holds what now."""
        now = self._clock()
        if self._at is not None:
            count(self._held, now - self._at, self._longest)
        self._at = now
        found = list(gpu_use.gangs(seen))
        self._read = {job.uid: self._one(job, placement, seen.reports.telemetry) for job, placement in found}
        self.uses = {uid: read.use for uid, read in self._read.items()}
        self._held = holdings(found, self.uses, seen.queues)
        count(self._held, 0.0, self._longest)  # from 0 on: Prometheus does not see a counter be born at 1

    def _one(self, job: Job, placement: Placement, telemetry: Mapping[str, NodeTelemetry]) -> _Read:
        known, told = self._read.get(job.uid), tuple(telemetry.get(share.node) for share in placement.shares)
        if known and known.told == told and known.placement.shares == placement.shares:
            return known
        return _Read(placement, told, gpu_use.use_of(job, placement, telemetry, self._least, self._job_of_pod))


def holdings(
    gangs: Iterable[tuple[Job, Placement]], uses: Mapping[str, GpuUse], queues: Container[str]
) -> dict[Labels, GpuUse]:
    """Labels -> what all gangs with these hold. A queue that is not there any more, or never was, has no name."""
    held: dict[Labels, GpuUse] = {}
    for job, placement in gangs:
        labels = job.queue if job.queue in queues else "", job.namespace, placement.gpu_type
        held[labels] = held.get(labels, GpuUse()).plus(uses[job.uid])
    return held


def count(held: Mapping[Labels, GpuUse], seconds: float, longest: float) -> None:
    """Add so many seconds of this to the metric; nothing where they are more than `longest`."""
    if not 0 <= seconds <= longest:
        return
    spent: Counter[tuple[str, ...]] = Counter()
    for (queue, tenant, gpu_type), use in held.items():
        shown = metrics.QUEUE_VALUES.of(queue), metrics.TENANT_VALUES.of(tenant), gpu_type
        for what, gpus in (("used", use.used), ("idle", use.idle), ("unknown", use.unknown)):
            if gpus:
                spent[(*shown, what)] += gpus
    for labels, gpus in spent.items():
        metrics.GPU_SECONDS.labels(*labels).inc(gpus * seconds)
