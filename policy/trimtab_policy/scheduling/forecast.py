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
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy

import numpy as np
from msgspec import Struct

from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.placement.node_columns import GangColumns, IntArray
from trimtab_policy.placement.running_columns import FloatArray
from trimtab_policy.scheduling.vacancies import GangShape, Vacancies, needs, smallest
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

    def forecast(self, times: FloatArray, held: GangColumns, slower: float = 1.0) -> dict[str, Start]:
        """UID -> its start, for those whose start is in sight.

        `times` tell when running gangs end, which hold what `held` says, (gangs,) each. Jobs of the line run `slower`
        times as long as predicted.
        """
        return _Forecast(self, slower, times, held).run()


class _Running:
    """What comes free as running gangs end, slot after slot; (slots,) each, of those in which any gang ends."""

    def __init__(self, slots: IntArray, times: FloatArray, held: GangColumns, types: Mapping[str, int]) -> None:
        order = np.argsort(slots, kind="stable")
        self._held = held.in_order(order)
        found, first = np.unique(slots[order], return_index=True)
        self.slots: list[int] = found.tolist()
        self.moments: list[float] = (np.maximum.reduceat(times[order], first) if len(first) else times).tolist()
        """When the last gang of each ends."""
        bounds = np.append(first, len(slots))
        self._shares: list[int] = self._held.begin[bounds].tolist()
        lines = len(self._held.lines)
        at = np.repeat(np.arange(len(first)), np.diff(bounds)) * lines + self._held.line
        self._gpus = np.bincount(at, self._held.whole, len(first) * lines).reshape(len(first), lines).astype(np.int64)
        self._kinds = [types.get(gpu_type) for _, gpu_type in self._held.lines]

    def nodes(self, number: int) -> tuple[IntArray, IntArray, set[int]]:
        """What gangs of a slot give back: places of nodes, GPUs on each, and the numbers of their types."""
        shares = slice(self._shares[number], self._shares[number + 1])
        lines = np.flatnonzero(self._gpus[number]).tolist()
        kinds = {kind for line in lines if (kind := self._kinds[line]) is not None}
        return self._held.rows[shares], self._held.gpus[shares], kinds

    def gpus(self, number: int) -> Iterator[tuple[str, str, int]]:
        """Queue, GPU type, and how many of them gangs of a slot give back."""
        of_line = self._gpus[number].tolist()
        return ((*line, gpus) for line, gpus in zip(self._held.lines, of_line, strict=True) if gpus)


class _Started(Struct, frozen=True):
    """A gang that has started in the forecast."""

    end: float
    gpu_type: str
    queue: str
    rows: IntArray
    """Places of its nodes ..."""
    parts: IntArray
    """... and its GPUs on each."""
    gpus: int


class _Forecast:
    """One forecast in the making."""

    def __init__(self, line: Line, slower: float, times: FloatArray, held: GangColumns) -> None:
        self._line, self._slower = line, slower
        self._now = line.snapshot.time
        self._nodes = line.nodes.copy()
        self._rows = line.rows.copy()
        self._left = dict(enumerate(line.jobs))
        """Place in the line -> who has not started, in order."""
        self._running = _Running(self._slots(times), times, held, line.nodes.types)
        self._ended = 0
        """Slots of running gangs that are over."""
        self._due: defaultdict[int, list[_Started]] = defaultdict(list)
        """Slot -> gangs that have started, and end in it."""
        self._guard: _Guard | None = None
        self._starts: dict[str, Start] = {}

    def run(self) -> dict[str, Start]:
        """Slot after slot, until all have started or nothing ends any more."""
        while self._left and (slot := self._next()) is not None:
            self._serve(self._end_all(slot), slot)
        return self._starts

    def _next(self) -> int | None:
        """The next slot in which gangs end."""
        return min([*self._running.slots[self._ended : self._ended + 1], *self._due], default=None)

    def _end_all(self, slot: int) -> float:
        """Let go of what all gangs hold that end in this slot; when the last of them does."""
        ended, running, number = self._due.pop(slot, []), self._running, self._ended
        moments, types = [each.end for each in ended], self._nodes.types
        returned = [(each.rows, each.parts, {types[each.gpu_type]}) for each in ended]
        for each in ended:
            self._rows.charge(each.queue, each.gpu_type, -each.gpus)
        if number < len(running.slots) and running.slots[number] == slot:
            self._ended += 1
            moments.append(running.moments[number])
            returned.append(running.nodes(number))
            for queue, gpu_type, gpus in running.gpus(number):
                self._rows.charge(queue, gpu_type, -gpus)
        rows, parts, kinds = zip(*returned, strict=True)
        self._nodes.give(np.concatenate(rows), np.concatenate(parts), set().union(*kinds))
        return max(moments)

    def _slot(self, time: float) -> int:
        """1 and up: nobody starts at once."""
        steps = max(0.0, time - self._now) / SLOT_SECONDS * (GROWTH - 1)
        return 1 + int(math.log1p(steps) / math.log(GROWTH))

    def _slots(self, times: FloatArray) -> IntArray:
        """`_slot` of thousands at once."""
        steps = np.maximum(0.0, times - self._now) / SLOT_SECONDS * (GROWTH - 1)
        return 1 + (np.log1p(steps) / math.log(GROWTH)).astype(np.int64)

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
        started = _Started(end, shape.gpu_type, job.queue, rows, parts, shape.gpus)
        self._due[max(slot + 1, self._slot(end))].append(started)

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
        for time, returned in self._coming():
            for gpu_type, gpus in returned:
                if gpu_type in free:
                    free[gpu_type] += gpus
            for gpu_type, gpus in smallest.items():
                if free[gpu_type] >= gpus and time > now:
                    return _Guard(first, gpu_type, time, free[gpu_type] - gpus)
        return _Guard(first, "", math.inf, 0)

    def _coming(self) -> Iterator[tuple[float, list[tuple[str, int]]]]:
        """Slot after slot, when the last gang of it ends, and what all of them give back: GPU types, and how many."""
        running, own = range(self._ended, len(self._running.slots)), sorted(self._due)
        ending = {self._running.slots[number]: number for number in running}
        for slot in sorted({*ending, *own}):
            started = self._due.get(slot, [])
            moments, returned = [each.end for each in started], [(each.gpu_type, each.gpus) for each in started]
            if (number := ending.get(slot)) is not None:
                moments.append(self._running.moments[number])
                returned += [(gpu_type, gpus) for _, gpu_type, gpus in self._running.gpus(number)]
            yield max(moments), returned


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
