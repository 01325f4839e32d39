"""Who starts when, if all goes as expected: list scheduling of the waiting jobs over the GPUs that running ones return.

Time goes from one slot to the next; in each, gangs that have ended give their GPUs back, and then the jobs in line are
looked at in their order: whoever fits starts. It gets the fastest gang within an equal share of what is free, or else
the smallest (as `best_fit` decides); where the policy is more generous, the fastest that fits. The first in line has a
reservation (`easy_backfill`): others pass it only where that does not delay it. Jobs whose policy lets nobody overtake
(`BEHIND_OTHERS`) wait until all before them have started.

Nodes count only by their GPUs: what a pod needs beside them, and how fast they are, is left to the real decision. A job
that waits does not start in this very moment, for it has just been refused. Slots grow with their distance, so that a
forecast costs the same whether it looks a day or a month ahead: 500 jobs on 1,000 nodes in some 30 ms.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from copy import copy

import numpy as np
from msgspec import Struct

from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.placement.releases import Release
from trimtab_policy.scheduling.vacancies import Ending, GangShape, Vacancies, needs, smallest
from trimtab_policy.types import Job, Snapshot

SLOT_SECONDS = 15.0
GROWTH = 1.05
"""A slot is this much longer than the one before it: a forecast is not worth more digits."""
_NOBODY = 1 << 40
MOST_JOBS = 1000
"""Jobs in line that are looked at; of those behind them nothing is said."""


class Start(Struct, frozen=True):
    """When, and on what, a job is expected to start."""

    time: float
    shape: GangShape
    nodes: tuple[str, ...]


class Line:
    """What forecasts are about: the jobs in line, and the shapes of each. Nothing in it changes."""

    def __init__(
        self,
        snapshot: Snapshot,
        jobs: Sequence[Job],
        shapes: Sequence[tuple[GangShape, ...]],
        blocked: Collection[str],
        *,
        reserve: bool = True,
        generous: bool = False,
    ) -> None:
        """`blocked` are UIDs of those that may not overtake. `reserve`: nobody may delay the first in line.
        `generous`: who starts gets the fastest gang that fits, whoever waits behind it."""
        self.nodes = Vacancies(snapshot, jobs)
        known = [(job, found) for job, found in zip(jobs, shapes, strict=True) if self.nodes.knows(job)]
        self.snapshot, self.blocked = snapshot, blocked
        self.reserve, self.generous = reserve, generous
        self.jobs = [job for job, _ in known]
        self.shapes = [found for _, found in known]
        self.rows = _SmallestGangs(self)

    def ending(self, release: Release) -> Ending:
        """What a running job returns, by the rows of its nodes. Those that take no pods are gone."""
        index = self.nodes.index
        here = [(index[share.node], share.gpus) for share in release.shares if share.node in index]
        rows, parts = [row for row, _ in here], [gpus for _, gpus in here]
        return Ending(release.gpu_type, release.job.queue, rows, parts, release.gpus)

    def forecast(self, endings: Iterable[tuple[float, Ending]], slower: float = 1.0) -> dict[str, Start]:
        """UID -> its start, for those whose start is in sight.

        `endings` tell when running gangs end. Jobs of the line run `slower` times as long as predicted.
        """
        return _Forecast(self, slower).run(endings)


class _Forecast:
    """One forecast in the making."""

    def __init__(self, line: Line, slower: float) -> None:
        self._line, self._slower = line, slower
        self._now = line.snapshot.time
        self._nodes = line.nodes.copy()
        self._rows = line.rows.copy()
        self._left = dict(enumerate(line.jobs))
        """Place in the line -> who has not started, in order."""
        self._due: defaultdict[int, list[tuple[float, Ending]]] = defaultdict(list)
        """Slot -> gangs that end in it, and when."""
        self._guard: _Guard | None = None
        self._starts: dict[str, Start] = {}

    def run(self, endings: Iterable[tuple[float, Ending]]) -> dict[str, Start]:
        """Slot after slot, until all have started or nothing ends any more."""
        known = list(endings)
        for slot, due in zip(self._slots([time for time, _ in known]), known, strict=True):
            self._due[slot].append(due)
        while self._due and self._left:
            slot = min(self._due)
            ended = self._due.pop(slot)
            self._nodes.give([ending for _, ending in ended])
            for _, ending in ended:
                self._rows.charge(ending.queue, ending.gpu_type, -ending.gpus)
            self._serve(max(time for time, _ in ended), slot)
        return self._starts

    def _slot(self, time: float) -> int:
        """1 and up: nobody starts at once."""
        steps = max(0.0, time - self._now) / SLOT_SECONDS * (GROWTH - 1)
        return 1 + int(math.log1p(steps) / math.log(GROWTH))

    def _slots(self, times: Sequence[float]) -> list[int]:
        """`_slot` of thousands at once."""
        steps = np.maximum(0.0, np.array(times, dtype=float) - self._now) / SLOT_SECONDS * (GROWTH - 1)
        found: list[int] = (1 + (np.log1p(steps) / math.log(GROWTH)).astype(np.int64)).tolist()
        return found

    def _serve(self, now: float, slot: int) -> None:
        """Start whoever fits, in the order of the line."""
        beyond = -1
        while (
            position := self._rows.first(self._nodes, beyond, self._reservation(now), now, self._slower)
        ) is not None:
            beyond, job = position, self._line.jobs[position]
            if job.uid in self._line.blocked and next(iter(self._left)) != position:
                return
            if shape := self._choose(position, job, now):
                self._start(position, job, shape, now, slot)

    def _choose(self, position: int, job: Job, now: float) -> GangShape | None:
        """The fastest that fits within an equal share of what is free; else the smallest that fits."""
        pool = self._nodes.pool_of(job)
        share = math.inf if self._line.generous else self._nodes.free_gpus(pool) / len(self._left)
        guard = None if self._guard is None or self._guard.position == position else self._guard
        smallest: GangShape | None = None
        for shape in self._line.shapes[position]:
            if smallest is not None and shape.gpus >= min(smallest.gpus, share):
                continue
            if not (self._nodes.fits(pool, shape) and self._rows.admits(job.queue, shape)):
                continue
            if guard and guard.delayed_by(shape, now + seconds(job, shape, self._slower)):
                continue
            if shape.gpus <= share:
                return shape
            smallest = shape
        return smallest

    def _start(self, position: int, job: Job, shape: GangShape, now: float, slot: int) -> None:
        rows, parts = self._nodes.take(self._nodes.pool_of(job), shape)
        end = now + seconds(job, shape, self._slower)
        if self._guard and self._guard.position != position:
            self._guard.charge(shape, end)
        self._rows.charge(job.queue, shape.gpu_type, shape.gpus)
        self._rows.drop(position)
        del self._left[position]
        self._starts[job.uid] = Start(now, shape, self._nodes.named(rows))
        ending = Ending(shape.gpu_type, job.queue, rows.tolist(), parts.tolist(), shape.gpus)
        self._due[max(slot + 1, self._slot(end))].append((end, ending))

    def _reservation(self, now: float) -> _Guard | None:
        """What the first in line is promised: kept until it has started, or should have."""
        first = next(iter(self._left), None)
        if first is None or not self._line.reserve:
            return None
        if self._guard is None or self._guard.position != first or self._guard.time < now:
            self._guard = self._reserve(first, now)
        return self._guard

    def _reserve(self, first: int, now: float) -> _Guard:
        smallest: dict[str, int] = {}
        for shape in self._line.shapes[first]:
            smallest[shape.gpu_type] = min(shape.gpus, smallest.get(shape.gpu_type, shape.gpus))
        pool = self._nodes.pool_of(self._line.jobs[first])
        free = {gpu_type: self._nodes.free_gpus(pool, gpu_type) for gpu_type in smallest}
        for _, due in sorted(self._due.items()):
            time = max(moment for moment, _ in due)
            for _, ending in due:
                if ending.gpu_type in free:
                    free[ending.gpu_type] += ending.gpus
            for gpu_type, gpus in smallest.items():
                if free[gpu_type] >= gpus and time > now:
                    return _Guard(first, gpu_type, time, free[gpu_type] - gpus)
        return _Guard(first, "", math.inf, 0)


def seconds(job: Job, shape: GangShape, slower: float = 1.0) -> float:
    """How long the job holds a gang of this shape."""
    left = max(1, job.training.steps - job.steps_done)
    return job.restart_seconds + left * shape.step_seconds * slower


class _Guard(Struct):
    """A reservation: from when the first in line has its GPUs, and how many are left over then."""

    position: int
    gpu_type: str
    time: float
    spare: int

    def delayed_by(self, shape: GangShape, end: float) -> bool:
        """Whether such a gang, to `end`, would keep the first in line from starting."""
        return shape.gpu_type == self.gpu_type and end > self.time and shape.gpus > self.spare

    def charge(self, shape: GangShape, end: float) -> None:
        """A gang has started."""
        if shape.gpu_type == self.gpu_type and end > self.time:
            self.spare -= shape.gpus


class _SmallestGangs:
    """The smallest gangs of the jobs on every GPU type and size of node, as arrays: who is the first that fits?

    Jobs that ask for the same thing have rows in common, which stand for the first of them that has not started.
    """

    def __init__(self, line: Line) -> None:
        nodes, snapshot = line.nodes, line.snapshot
        self._types = nodes.types
        self._keys = {(q.queue, q.gpu_type): number for number, q in enumerate(snapshot.quotas, start=1)}
        """Queue and type -> index of what is left of it; 0: no limit."""
        self._left = np.array([1 << 40, *(quota.gpus for quota in snapshot.quotas)], dtype=np.int64)
        for job in snapshot.jobs if snapshot.quotas else ():
            if job.placement:
                self.charge(job.queue, job.placement.gpu_type, job.placement.gpus)
        alike: dict[tuple[object, ...], list[int]] = {}
        for position, job in enumerate(line.jobs):
            left = job.training.steps - job.steps_done, job.restart_seconds
            key = id(line.shapes[position]), nodes.pool_of(job), job.queue, left
            alike.setdefault(key, []).append(position)
        self._alike = list(alike.values())
        """Groups of equal jobs, each in order of the line."""
        self._group_of = {position: number for number, group in enumerate(self._alike) for position in group}
        self._started = [0] * len(self._alike)
        """Of each group, how many have started: they do so in order."""
        firsts = [(group[0], line.jobs[group[0]], smallest(line.shapes[group[0]])) for group in self._alike]
        self._bounds = np.cumsum([0, *(len(shapes) for _, _, shapes in firsts)])
        rows = [
            (position, nodes.cell(nodes.pool_of(job), shape), needs(shape), shape.gpus, nodes.types[shape.gpu_type],
             self._key(job.queue, shape.gpu_type), self._key(job.queue, ALL_TYPES))
            for position, job, shapes in firsts
            for shape in shapes
        ]  # fmt: skip
        table = np.array(rows, dtype=np.int64).reshape(-1, 7).T.copy()
        self._position, self._cell, self._need, self._gpus, self._type, self._of_type, self._of_all = table
        self._seconds = np.array([seconds(job, shape) for _, job, shapes in firsts for shape in shapes], dtype=float)

    def copy(self) -> _SmallestGangs:
        """One that can be spent."""
        made = copy(self)
        made._position, made._left, made._started = self._position.copy(), self._left.copy(), self._started.copy()
        return made

    def first(self, nodes: Vacancies, beyond: int, guard: _Guard | None, now: float, slower: float) -> int | None:
        """Place in the line of the first job after `beyond` that fits and delays nobody; None if there is none."""
        fits = (nodes.counts.ravel()[self._cell] >= self._need) & (self._position > beyond)
        if len(self._left) > 1:
            fits &= (self._left[self._of_type] >= self._gpus) & (self._left[self._of_all] >= self._gpus)
        if guard and guard.gpu_type:
            harmless = (self._type != self._types[guard.gpu_type]) | (self._gpus <= guard.spare)
            fits &= harmless | (now + slower * self._seconds <= guard.time) | (self._position == guard.position)
        found = int(self._position[fits].min(initial=_NOBODY))
        return found if found < _NOBODY else None

    def drop(self, position: int) -> None:
        """A job has started: its rows stand for the next that asks for the same."""
        group = self._group_of[position]
        self._started[group] += 1
        left = self._alike[group][self._started[group] :]
        self._position[self._bounds[group] : self._bounds[group + 1]] = left[0] if left else _NOBODY

    def admits(self, queue: str, shape: GangShape) -> bool:
        """Whether the queue may take so many more."""
        keys = self._key(queue, shape.gpu_type), self._key(queue, ALL_TYPES)
        return all(shape.gpus <= self._left[key] for key in keys if key)

    def charge(self, queue: str, gpu_type: str, gpus: int) -> None:
        """So many more (less, where negative) are held by jobs of the queue."""
        if not self._keys:
            return
        for key in (self._key(queue, gpu_type), self._key(queue, ALL_TYPES)):
            if key:
                self._left[key] -= gpus

    def _key(self, queue: str, gpu_type: str) -> int:
        return self._keys.get((queue, gpu_type), 0)
