"""How long a job would wait if nobody gave way: until running jobs have finished and left enough.

Looked at are a few points in time, each further away than the one before: that is as exact as predicted ends are, and
for hundreds of jobs it costs no more than for one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import takewhile

from trimtab_policy.placement.candidates import Candidate, has_room, nodes_for
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.runtime import due
from trimtab_policy.types import Job, NodeShare, Snapshot

MINUTE, HOUR = 60.0, 3600.0
HORIZONS = (MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, 24 * HOUR)
"""Seconds from now at which the cluster is looked at."""


class Outlook:
    """What will be free, at each of the horizons, if nobody starts and nobody is stopped.

    `capacity` is what is free now, `gone` the jobs (UIDs) that have given way already, `promised` those that wait for
    GPUs that are free soon, with what they will take.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        capacity: Capacity,
        gone: Collection[str] = (),
        promised: Sequence[tuple[Job, Candidate]] = (),
    ) -> None:
        self._last, self._promised = capacity.copy(), promised
        self._last.expect(snapshot.ending)
        self._ahead = sorted(
            (
                (end - snapshot.time, job)
                for job in snapshot.jobs
                if job.placement and job.uid not in gone and (end := due(job, snapshot.time)) is not None
            ),
            key=lambda each: (-each[0], each[1].uid),
        )
        self._seen: list[tuple[float, Capacity]] = []
        """Seconds until the last of those ended that are taken for gone, and what is free then."""

    def wait(self, job: Job, known: Sequence[Candidate], kept: Sequence[NodeShare] = ()) -> float:
        """Seconds until one of the candidates has room, rounded up to the next look; infinite if not in sight.

        `kept` is for others who come first, as soon as it is free.
        """
        for number in range(len(HORIZONS)):
            seconds, free = self._at(number)
            if kept:
                free = free.copy()
                free.hide(kept)
            if any(has_room(free, job, wish) for wish in known):
                return seconds
        return math.inf

    def _at(self, number: int) -> tuple[float, Capacity]:
        while len(self._seen) <= number:
            self._seen.append(self._next(HORIZONS[len(self._seen)]))
        return self._seen[number]

    def _next(self, horizon: float) -> tuple[float, Capacity]:
        free = self._last = self._last.copy()
        ended = list(takewhile(lambda each: each[0] <= horizon, reversed(self._ahead)))
        del self._ahead[len(self._ahead) - len(ended) :]
        for _, job in ended:
            if held := job.placement:
                free.give(job, held.gpu_type, held.shares)
        for job, wish in self._promised:
            if shares := nodes_for(free, job, wish):
                free.take(job, wish.gpu.name, shares)
        return (ended[-1][0] if ended else horizon), free
