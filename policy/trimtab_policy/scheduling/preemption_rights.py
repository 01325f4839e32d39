"""Which running jobs may be preempted or moved for which waiting job, and for what reason: all rules in one place.

A running job may be stopped or moved from its `Job.movable_from` on, once by one decision, and not shortly before its
end (`runtime`). One that should run by now and does not may be stopped, too: nothing is lost (`Job.stoppable_from`).
For a job that waits

- those of strictly lower priority may be stopped, if its PriorityClass lets it: PREEMPTED;
- if its queue holds less than it is guaranteed (`Job.entitled`), those of other queues that hold what these have
  borrowed (`shares.borrowed`), of the same priority or lower: RECLAIMED. A gang that is borrowed in part stops as a
  whole: otherwise the smallest guarantee would protect the largest gang. What a queue runs within its guarantee is its
  own choice. The gang's queue must be within its guarantee afterwards, or the next one could take it back;
- those of the same priority or lower may be moved, elastic ones shrunk. One of the same priority that is not elastic
  moves only where little work is lost, even if it saves nothing when it is asked: nobody has agreed to more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from trimtab_policy.placement.candidates import Candidate, weight
from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.placement.releases import expected_end
from trimtab_policy.placement.running_columns import running_columns
from trimtab_policy.scheduling.consolidation import mobile
from trimtab_policy.scheduling.fair_share import borrowed, line_of, shares
from trimtab_policy.scheduling.victims import Victim, price
from trimtab_policy.types import Job, Snapshot, Stop, StopCause

UNSAVED = 3600.0
"""Seconds of work without a checkpoint up to which a job that is not elastic may be moved for its equals."""


class PreemptionRights:
    """Who may be preempted in one snapshot, less those that this decision has stopped, moved or promised already."""

    def __init__(self, snapshot: Snapshot, preempt: bool, reclaim: bool, move: bool) -> None:
        self._snapshot, self._preempt, self._reclaim, self._move = snapshot, preempt, reclaim, move
        running = running_columns(snapshot)
        jobs, stoppable = running.jobs, running.may_be_stopped(snapshot)
        self._here = [jobs[row] for row in np.flatnonzero(stoppable).tolist()]
        self._movable = {jobs[row].uid for row in np.flatnonzero(running.may_be_touched(snapshot)).tolist()}
        self._worth = {name: weight(spec) for name, spec in snapshot.gpu_types.items()}
        self._held = _held(snapshot) if snapshot.quotas else {}
        self.touched: set[str] = set()
        """UIDs of jobs that this decision stops, moves or shrinks."""

    @cached_property
    def _borrowed(self) -> dict[str, int]:
        return borrowed(self._snapshot)

    @cached_property
    def _shares(self) -> dict[str, float]:
        return shares(self._snapshot)

    @cached_property
    def _largest(self) -> float:
        return max(self._shares.values(), default=0.0)

    def any_for(self, job: Job) -> bool:
        """Whether there is any job to preempt or move at all: for most of a long line there is none."""
        return any(self._may_stop(job, other) or self._may_move(job, other) for other in self._here)

    def all_for(self, job: Job) -> list[Victim]:
        """Everybody who may be moved or stopped."""
        return [
            self._victim(each, 0.0) for each in self._here if self._may_stop(job, each) or self._may_move(job, each)
        ]

    def movable(self, other: Job) -> bool:
        """Whether a job runs, and may be moved at all."""
        return other.uid in self._movable

    def may_move(self, job: Job) -> list[Victim]:
        """Who may be moved for the job, or shrunk."""
        return [mobile(self._victim(each, 0.0)) for each in self._here if self._may_move(job, each)]

    def may_stop(self, job: Job, wish: Candidate, idle: float) -> list[Victim]:
        """Who may be stopped, so that the job gets this; each would be without GPUs for `idle` seconds."""
        within = self._within_guarantee(job, wish)
        return [
            self._victim(each, idle)
            for each in self._here
            if self._may_preempt(job, each) or (within and self._may_reclaim(job, each))
        ]

    def stop(self, victim: Victim, job: Job) -> Stop:
        """The stop of a victim, with its cause in words."""
        whom = f"{job.namespace}/{job.name}"
        if self._may_preempt(job, victim.job):
            why = f"{whom} has priority {job.priority}, this job {victim.job.priority}"
            return Stop(victim.job.uid, why, StopCause.PREEMPTED, job.uid)
        held, lent = victim.job.placement, self._borrowed.get(victim.job.uid, 0)
        what = f"{lent} of its {held.gpus} GPUs" if held and lent < held.gpus else "its GPUs"
        why = f"queue {victim.job.queue} has borrowed {what}, and {whom} gets what queue {job.queue} is guaranteed"
        return Stop(victim.job.uid, why, StopCause.RECLAIMED, job.uid)

    def gone(self, jobs: Iterable[Job]) -> None:
        """These are stopped, moved or shrunk, and may not be chosen again."""
        self.touched.update(job.uid for job in jobs)
        self._here = [job for job in self._here if job.uid not in self.touched]

    def awaits(self, seconds: float) -> None:
        """Somebody waits for those that end by themselves within so many seconds: nobody else gets their GPUs."""
        soon = self._snapshot.time + seconds
        self._here = [each for each in self._here if self._ends(each) > soon]

    def starts(self, job: Job, wish: Candidate) -> None:
        """The job has GPUs now, which count for its queue."""
        for name in (wish.gpu.name, ALL_TYPES):
            self._held[job.queue, name] = self._held.get((job.queue, name), 0) + wish.option.gpus

    def _may_stop(self, job: Job, other: Job) -> bool:
        return self._may_preempt(job, other) or self._may_reclaim(job, other)

    def _may_preempt(self, job: Job, other: Job) -> bool:
        return self._preempt and job.preempts and other.priority < job.priority

    def _may_reclaim(self, job: Job, other: Job) -> bool:
        if not (self._reclaim and job.entitled and other.priority <= job.priority):
            return False
        if line_of(other) == line_of(job):
            return False
        return self._borrowed.get(other.uid, 0) > 0

    def _may_move(self, job: Job, other: Job) -> bool:
        if not self._move or not self.movable(other) or other.priority > job.priority:
            return False
        return other.priority < job.priority or other.preemptible or other.lost_seconds <= UNSAVED

    def _ends(self, job: Job) -> float:
        return expected_end(self._snapshot, job, job.placement) if job.placement else math.inf

    def _within_guarantee(self, job: Job, wish: Candidate) -> bool:
        """Whether a guarantee of its queue covers all that the queue would hold: nothing of that is borrowed then."""
        return any(
            self._held.get((job.queue, quota.gpu_type), 0) + wish.option.gpus <= quota.guaranteed
            for quota in self._snapshot.quotas
            if quota.queue == job.queue and quota.gpu_type in (wish.gpu.name, ALL_TYPES)
        )

    def _victim(self, job: Job, idle: float) -> Victim:
        worth = self._worth[job.placement.gpu_type] if job.placement else 0.0
        own = job.placement is not None and self._borrowed.get(job.uid, 0) < job.placement.gpus
        share = self._shares.get(line_of(job), 0.0) / self._largest if self._largest else 1.0
        faster = job.lost_seconds * (self._snapshot.speedup - 1)  # what is lost is told in time, not in time predicted
        return Victim(job, price(job, worth, idle + faster, share), (job.priority, own))


def _held(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    """GPUs that each queue holds, by type and in all."""
    held: dict[tuple[str, str], int] = {}
    for job in snapshot.jobs:
        if job.placement:
            for name in (job.placement.gpu_type, ALL_TYPES):
                held[job.queue, name] = held.get((job.queue, name), 0) + job.placement.gpus
    return held
