"""Jobs that run, as columns: what thousands of them say of their ends, and of who may touch them, is asked in half a
dozen places of every decision, and from one decision to the next only a few of them are others.

Of the end of one job `runtime` and `releases` say the same, and a property of the tests holds both together.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from operator import is_

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.placement.last_asked import LastAlike, LastAsked
from trimtab_policy.placement.node_columns import GangColumns, IntArray
from trimtab_policy.placement.runtime import LONGEST, OVERDUE
from trimtab_policy.types import Job, Placement, Snapshot

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
KEPT = 4


class RunningColumns:
    """Jobs with a placement in the order of their snapshot; everything is (jobs,). Nothing of it is to be changed."""

    def __init__(self, jobs: Sequence[Job], before: RunningColumns | None = None) -> None:
        """What is known of the very same jobs `before` is taken from there."""
        self.jobs = jobs
        self.kinds: dict[str, int] = dict(before.kinds) if before else {}
        """GPU type -> its number in `kind`."""
        known = before.places if before else {}
        rows = np.array([known.get(id(job), -1) for job in jobs], dtype=np.int64)
        new = np.flatnonzero(rows < 0).tolist()
        times, counts = np.empty((len(jobs), 8)), np.empty((len(jobs), 4), dtype=np.int64)
        if before and len(kept := np.flatnonzero(rows >= 0)):
            times[kept], counts[kept] = before._times[rows[kept]], before._counts[rows[kept]]
        if new:
            times[new] = [_times(jobs[place]) for place in new]
            counts[new] = [self._counts_of(jobs[place]) for place in new]
        self._times: FloatArray = times
        self._counts: IntArray = counts
        self.finish, self.started, self.movable_from, self.stoppable_from = times[:, :4].T
        self.restart_seconds, self.resuming, self.computing, self.uncertainty = times[:, 4:].T
        self.kind, self.gpus, self.priority = counts[:, :3].T
        self.told = (counts[:, 3] & _TOLD) > 0
        """Whether somebody has said when it ends."""
        self.begun = (counts[:, 3] & _BEGUN) > 0
        self.unproven = np.where(self.begun & ((counts[:, 3] & _PROGRESSED) == 0), self.started, math.nan)
        """POSIX times at which those began that are not known to have done anything; NaN for all others."""
        self.modelled = bool((counts[:, 3] & _MODELLED).any())
        """Whether what any of them makes of its GPUs is the performance model's to say."""
        self._lock = threading.Lock()
        self._held: tuple[Mapping[str, int], GangColumns] | None = None
        self._before = (rows, before._held) if before else None
        self._worth: tuple[Snapshot | None, BoolArray] = None, self.told
        """What was asked last, and the answer."""

    @property
    def touchable_from(self) -> FloatArray:
        """POSIX times from when on they may have to give way."""
        found: FloatArray = np.where(np.isinf(self.stoppable_from), self.movable_from, self.stoppable_from)
        return found

    def _counts_of(self, job: Job) -> tuple[int, int, int, int]:
        held = _held(job)
        flags = _TOLD * (job.expected_finish is not None) + _BEGUN * (job.started is not None)
        flags += _PROGRESSED * bool(job.steps_done) + _MODELLED * (job.speeds is None)
        return self.kinds.setdefault(held.gpu_type, len(self.kinds)), held.gpus, job.priority, flags

    @cached_property
    def places(self) -> dict[int, int]:
        """Identity of a job, which is its own as long as it is one of `jobs`, -> its place."""
        return {id(job): place for place, job in enumerate(self.jobs)}

    @cached_property
    def rank(self) -> IntArray:
        """Of UIDs in order: who comes first of those that end at the same time."""
        found = np.empty(len(self.jobs), dtype=np.int64)
        found[sorted(range(len(self.jobs)), key=[job.uid for job in self.jobs].__getitem__)] = np.arange(len(self.jobs))
        return found

    def of_types(self, names: Collection[str]) -> BoolArray:
        """Whether each of the jobs has GPUs of one of these types."""
        found: BoolArray = np.array([name in names for name in self.kinds], dtype=bool)[self.kind]
        return found

    def held(self, index: Mapping[str, int]) -> GangColumns:
        """What these jobs hold of nodes whose places are told by name."""
        with self._lock:
            if self._held is None or self._held[0] is not index:
                self._held, self._before = (index, self._gangs(index)), None
            return self._held[1]

    def _gangs(self, index: Mapping[str, int]) -> GangColumns:
        rows, before = self._before or (None, None)
        if rows is None or before is None or before[0] is not index:
            return _gangs(self.jobs, index)
        new = np.flatnonzero(rows < 0)
        if not len(new):
            return before[1].in_order(rows)
        places = rows.copy()
        places[new] = len(before[1].line) + np.arange(len(new))
        return before[1].joined(_gangs([self.jobs[place] for place in new.tolist()], index)).in_order(places)

    def due(self, now: float) -> FloatArray:
        """When their ends are due, as POSIX times; NaN where nobody has said so (`runtime.due`)."""
        began = np.where(self.begun, self.started, now)
        end = np.where(self.finish > now, self.finish, now + OVERDUE * (now - began))
        return np.where(self.told, all_within_reach(end, now), math.nan)

    def expected_end(self, snapshot: Snapshot) -> FloatArray:
        """When they are to be expected to give their GPUs back, as POSIX times; infinite where that is not in sight
        (`releases.expected_end`)."""
        now = snapshot.time
        planned = all_within_reach(now + (self.resuming + self.computing) / snapshot.speedup, now)
        return np.where(self.told, self.due(now), np.where(np.isinf(self.movable_from), math.inf, planned))

    def may_be_touched(self, snapshot: Snapshot) -> BoolArray:
        """Whether they may be stopped, moved or resized at all, whoever gains by it: not one that ends by itself sooner
        than it would have restarted."""
        found: BoolArray = self.begun & ~(self.resuming > 0) & ~(self.movable_from > snapshot.time)
        return found & self._worth_it(snapshot)

    def may_be_stopped(self, snapshot: Snapshot) -> BoolArray:
        """Whether they may be stopped for those who are entitled to their GPUs: also one that should run and does
        not."""
        overdue: BoolArray = self.stoppable_from <= snapshot.time
        return self.may_be_touched(snapshot) | (overdue & self._worth_it(snapshot))

    def _worth_it(self, snapshot: Snapshot) -> BoolArray:
        about, found = self._worth
        if about is not snapshot:
            now, end = snapshot.time, self.due(snapshot.time)
            lasts: BoolArray = np.isnan(end) | (end > now + self.restart_seconds / snapshot.speedup)
            found = lasts & self.of_types(snapshot.gpu_types)
            self._worth = snapshot, found
        return found


_TOLD, _BEGUN, _PROGRESSED, _MODELLED = 1, 2, 4, 8


def all_within_reach(moments: FloatArray, now: float) -> FloatArray:
    """`runtime.within_reach` of points in time."""
    return np.where(np.isnan(moments), now + LONGEST, np.clip(moments, now - LONGEST, now + LONGEST))


def _times(job: Job) -> tuple[float, ...]:
    held = _held(job).prediction
    return (
        math.nan if job.expected_finish is None else job.expected_finish,
        math.nan if job.started is None else job.started,
        job.movable_from,
        math.inf if job.stoppable_from is None else job.stoppable_from,
        job.restart_seconds,
        job.resuming,
        max(0, job.training.steps - job.steps_done) * held.step_seconds,
        held.uncertainty,
    )


def _held(job: Job) -> Placement:
    if job.placement is None:
        raise ValueError(f"{job.namespace}/{job.name} holds no GPUs")
    return job.placement


def _gangs(jobs: Sequence[Job], index: Mapping[str, int]) -> GangColumns:
    return GangColumns.of(((job, (held := _held(job)).gpu_type, held.shares) for job in jobs), index)


def _same(some: Sequence[Job], others: Sequence[Job]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


_of_jobs: LastAlike[Sequence[Job], RunningColumns] = LastAlike(_same, RunningColumns, KEPT)
_known: LastAsked[Snapshot, RunningColumns] = LastAsked(
    lambda snapshot: _of_jobs.of([job for job in snapshot.jobs if job.placement is not None]), KEPT
)


def running_columns(snapshot: Snapshot) -> RunningColumns:
    """The columns of the jobs that run in a snapshot."""
    return _known.of(snapshot)
