"""A policy with the arbiter behind it, as the engine of the controller asks them, for the simulator and for tests.

The wrapped policy places who waits; then room is made for those that are left, and from time to time elastic jobs are
resized. What the controller reads from the status of its jobs (since when they run, how often they gave way lately)
this remembers itself, so that an instance belongs to one run.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.policy import Policy
from trimtab_policy.scheduling.accounts import after
from trimtab_policy.scheduling.fair_share import in_line
from trimtab_policy.scheduling.preemption import RoomRules, make_room
from trimtab_policy.scheduling.resize import ResizeRules, resizes
from trimtab_policy.types import Decision, Job, Snapshot

HOUR = 3600.0


class Arrangement(Struct, frozen=True):
    """What is done besides placing, with the defaults of the controller's settings."""

    room: RoomRules | None = RoomRules()
    """None: nobody gives way."""
    resize: ResizeRules | None = ResizeRules()
    """None: nobody is resized."""
    interval_seconds: float = 60.0
    """Resizes are considered so often."""
    min_runtime_seconds: float = 600.0
    """A plan is kept for so long."""
    per_job_per_hour: int = 2
    """A job gives way at most so often in an hour."""


class Memory:
    """What the controller would read in the status of running jobs: since when they run, how often they gave way."""

    def __init__(self, min_runtime_seconds: float, per_job_per_hour: int, elastic: Callable[[Job], bool]) -> None:
        """`elastic` tells which jobs may be resized; the others may only be stopped, or moved as they are."""
        self._min_runtime, self._per_hour, self._elastic = min_runtime_seconds, per_job_per_hour, elastic
        self._gave_way: dict[str, list[float]] = {}
        """Job UID -> when it was stopped, moved or resized."""

    def seen(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot as the controller would show it to policies."""
        return replace(snapshot, jobs=tuple(self._mobility(job, snapshot.time) for job in snapshot.jobs))

    def remember(self, snapshot: Snapshot, decided: Decision) -> None:
        """Note who gives way."""
        running = {job.uid for job in snapshot.jobs if job.placement}
        touched = [each.job for each in decided.placements] + [stop.job for stop in decided.stops]
        for uid in touched:
            if uid in running:
                self._gave_way.setdefault(uid, []).append(snapshot.time)

    def _mobility(self, job: Job, now: float) -> Job:
        """What the controller would tell about a running job."""
        if job.placement is None or job.started is None:
            return job
        movable = job.started + self._min_runtime if job.resuming <= 0 else math.inf
        recent = [moment for moment in self._gave_way.get(job.uid, ()) if moment > now - HOUR]
        if len(recent) >= self._per_hour:
            movable = max(movable, recent[0] + HOUR if recent else math.inf)
        return replace(job, movable_from=movable, preemptible=self._elastic(job) and movable <= now)


class Arranged:
    """Another policy, and the arbiter."""

    def __init__(
        self, policy: Policy, arrangement: Arrangement | None = None, elastic: Callable[[Job], bool] = lambda _: True
    ) -> None:
        """`elastic` tells which jobs may be resized; the others may only be stopped, or moved as they are."""
        self.name = f"{policy.name}+arbiter"
        self._policy, self._how = policy, arrangement or Arrangement()
        self._memory = Memory(self._how.min_runtime_seconds, self._how.per_job_per_hour, elastic)
        self._resized = -math.inf

    def decide(self, snapshot: Snapshot) -> Decision:
        """Placements of the policy first, then what the arbiter adds to them."""
        now = in_line(self._memory.seen(snapshot))
        decided = self._policy.decide(now)
        if self._how.room:
            placed = after(now, decided)
            decided = _both(decided, make_room(placed, placed.waiting(), self._how.room))
        if self._how.resize and snapshot.time >= self._resized + self._how.interval_seconds:
            self._resized = snapshot.time
            changes = resizes(after(now, decided), self._how.resize)
            decided = _both(decided, Decision(self.name, changes))
        self._memory.remember(snapshot, decided)
        return replace(decided, policy=self.name)


def _both(first: Decision, then: Decision) -> Decision:
    """The first decision, and what another one adds to it."""
    placed = {each.job for each in then.placements}
    return Decision(
        first.policy,
        first.placements + then.placements,
        tuple(each for each in first.pending if each.job not in placed),
        first.stops + then.stops,
    )
