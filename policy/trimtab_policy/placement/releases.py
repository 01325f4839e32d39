"""When GPUs come free: which gangs give back what, on which nodes, at what time; and from when on a job fits.

There is one rule for the end of a gang (`expected_end`), and there are two questions about many:

- `Releases.enough` counts GPUs of a type, wherever they are. That is what EASY backfilling does as published, and what
  a message says: it costs a sum.
- `FreeTimeline` gives the GPUs back node by node, with CPU, memory, pods and what quotas leave: scattered GPUs are of
  no use to a gang that takes whole nodes. What decides for or against somebody asks it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from operator import attrgetter
from threading import Lock

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.last_asked import LastAsked
from trimtab_policy.placement.node_columns import GangColumns, IntArray, columns
from trimtab_policy.placement.running_columns import FloatArray, RunningColumns, all_within_reach, running_columns
from trimtab_policy.placement.runtime import due, within_reach
from trimtab_policy.types import Job, NodeShare, Placement, Snapshot


class Release(Struct, frozen=True):
    """A gang gives back what it holds."""

    time: float
    """POSIX time, finite: a gang whose end is not in sight has no release."""
    gpu_type: str
    gpus: int
    """On all nodes together."""


def expected_end(snapshot: Snapshot, job: Job, held: Placement) -> float:
    """When a gang is to be expected to give its GPUs back, as a POSIX time.

    That is when its end is due (`runtime.due`: an overdue gang may take a while yet, or one that hangs would keep
    others waiting for ever). Where nobody has said so it is what its plan takes; infinite for a gang that is on its way
    out, whose GPUs another one will have at once, and for one of which nothing is known (`runtime.holder`).
    """
    if (end := due(job, snapshot.time)) is not None:
        return end
    if math.isinf(job.movable_from):
        return math.inf
    left = max(0, job.training.steps - job.steps_done) * held.prediction.step_seconds
    return within_reach(snapshot.time + (job.resuming + left) / snapshot.speedup, snapshot.time)


class Releases:
    """Ends of gangs in order of time, and how many GPUs of which type they give back. Nothing in it changes."""

    def __init__(self, kinds: Mapping[str, int], kind: IntArray, times: FloatArray, gpus: IntArray) -> None:
        """`kinds` are the numbers of GPU types; the others are (gangs,) each, in no order."""
        self._kinds, self._kind, self._times, self._gpus = kinds, kind, times, gpus
        self._known: dict[str, tuple[FloatArray, IntArray]] = {}

    def plus(self, releases: Iterable[Release]) -> Releases:
        """These ends, and more of them."""
        more, kinds = list(releases), dict(self._kinds)
        kind = [kinds.setdefault(release.gpu_type, len(kinds)) for release in more]
        return Releases(
            kinds,
            np.concatenate((self._kind, np.array(kind, dtype=np.int64))),
            np.concatenate((self._times, np.array([release.time for release in more], dtype=float))),
            np.concatenate((self._gpus, np.array([release.gpus for release in more], dtype=np.int64))),
        )

    def enough(self, gpu_type: str, gpus: int, free: int, now: float) -> tuple[float, int] | None:
        """From when on there are so many GPUs of a type, wherever they are, and how many more there are then; None if
        that is not in sight. `free` are those that are free `now`; what should have ended by now counts with them."""
        times, returned = self._of(gpu_type)
        needed = int(np.searchsorted(returned, gpus - free))
        if needed == len(returned):
            return None
        moment = max(now, float(times[needed - 1])) if needed else now
        return moment, free + int(returned[np.searchsorted(times, moment, side="right")]) - gpus

    def _of(self, gpu_type: str) -> tuple[FloatArray, IntArray]:
        """When gangs of a type end, and how many GPUs have been given back after so many of them."""
        if gpu_type not in self._known:
            rows = np.flatnonzero(self._kind == self._kinds.get(gpu_type, -1))
            times, gpus = self._times[rows], self._gpus[rows]
            order = np.lexsort((gpus, times))
            self._known[gpu_type] = times[order], np.concatenate(([0], np.cumsum(gpus[order])))
        return self._known[gpu_type]


class Ends(Struct, frozen=True):
    """Gangs whose ends are in sight. Nothing of it is to be changed."""

    jobs: Sequence[Job]
    times: FloatArray
    """(gangs,) POSIX times, finite."""
    uncertainty: FloatArray
    """(gangs,) factors of the 80 % intervals of the times that are left to them."""
    rank: IntArray
    """(gangs,) who comes first of those that end at the same time."""
    unproven: FloatArray
    """(gangs,) when those began that are not known to have done anything; NaN for all others."""
    held: GangColumns
    """What they hold."""

    def only(self, rows: IntArray) -> Ends:
        """Those of the gangs at these places, in this order."""
        return Ends(
            [self.jobs[row] for row in rows.tolist()],
            self.times[rows],
            self.uncertainty[rows],
            self.rank[rows],
            self.unproven[rows],
            self.held.in_order(rows),
        )

    def without(self, uids: Iterable[str]) -> Ends:
        """Those of all other gangs than these."""
        left_out = {*uids}
        rows = [row for row, job in enumerate(self.jobs) if job.uid not in left_out]
        return self.only(np.array(rows, dtype=np.int64)) if len(rows) < len(self.jobs) else self

    def early(self, now: float) -> Ends:
        """Those at the low ends of the intervals."""
        return replace(self, times=now + (self.times - now) / self.uncertainty)


class FreeTimeline:
    """What is free at which time, node by node, as gangs give back what they hold, and as others take what they were
    promised."""

    def __init__(self, now: float, free: Capacity, ends: Ends) -> None:
        """`free`: what is free at `now`; it is not to change from then on."""
        self._now, self._course = now, _Course(free, ends)
        self._promises: list[_Promise] = []
        """In order."""
        self._known: dict[tuple[int, int], Capacity] = {}
        """What is free after so many ends and so many promises, as far as it was asked for with `at`."""

    def copy(self) -> FreeTimeline:
        """The same, to promise of it without promising of this one: what ends when is worked out once for both."""
        other = copy(self)
        other._promises, other._known = list(self._promises), dict(self._known)
        return other

    def at(self, time: float) -> Capacity:
        """What is free then. Shared: copy it before you take of it."""
        promised = bisect_right(self._promises, time, key=attrgetter("time"))
        key = self._course.past(time), promised
        if not promised:
            return self._course.after(key[0])
        if key not in self._known:
            free = self._course.after(key[0]).copy()
            for promise in self._promises[:promised]:
                promise.keep(free)
            self._known[key] = free
        return self._known[key]

    def last_change(self, time: float) -> float | None:
        """When it became so: the last event by then; None if there is none."""
        promised = [each.time for each in self._promises if -math.inf < each.time <= time]
        ended = self._course.last(time)
        return max(promised if ended is None else [*promised, ended], default=None)

    def first(self, fits: Callable[[Capacity], bool]) -> tuple[float, Capacity] | None:
        """The earliest time at which what is free fits, and what is free then; None where it never does.

        For timelines on which all promises hold from the beginning, so that ever more comes free, and for `fits` that
        stay true when more does: they are asked about a logarithm of the times only.
        """
        events = {*self._course.times, *(promise.time for promise in self._promises)}
        moments = sorted({self._now, *(time for time in events if time > self._now)})
        # Many fit at once: that is looked at first, for the middle is half of all events away.
        now = fits(self.at(self._now))
        found = 0 if now else bisect_left(moments, True, lo=1, key=lambda moment: fits(self.at(moment)))
        return (moments[found], self.at(moments[found])) if found < len(moments) else None

    def promise(self, job: Job, gpu_type: str, shares: tuple[NodeShare, ...], since: float, until: float) -> None:
        """These GPUs are those of a job that waits, in this time: nobody else is to count on the same. From now on, it
        is as if it held them in advance; infinite `until`: it is not asked when it gives them back."""
        since = since if since > self._now else -math.inf
        insort(self._promises, _Promise(since, job, gpu_type, shares), key=_order)
        if until < math.inf:
            insort(self._promises, _Promise(until, job, gpu_type, shares, over=True), key=_order)
        self._known.clear()


MOST_KNOWN = 32
"""Moments of a course of which is kept what is free then: of 10,000 nodes that is a third of a megabyte each."""


class _Course:
    """What comes free as gangs give back what they hold, whatever is promised of it; from any thread."""

    def __init__(self, free: Capacity, ends: Ends) -> None:
        order = np.lexsort((ends.rank, ends.times))
        self.times: list[float] = ends.times[order].tolist()
        """Of all ends, in order."""
        self._held = ends.held.in_order(order)
        self._lock = Lock()
        self._known = {0: free}
        """What is free after so many ends, as far as it was asked for."""

    def past(self, time: float) -> int:
        """How many ends there have been by then."""
        return bisect_right(self.times, time)

    def last(self, time: float) -> float | None:
        """The last end by then; None if there is none."""
        past = self.past(time)
        return self.times[past - 1] if past else None

    def after(self, past: int) -> Capacity:
        """What is free after so many ends."""
        with self._lock:
            if past not in self._known:
                if len(self._known) >= MOST_KNOWN:
                    self._known = {0: self._known[0]}
                before = max(known for known in self._known if known < past)
                free = self._known[before].copy()
                free.give_all(self._held, before, past)
                self._known[past] = free
            return self._known[past]


class _Promise(Struct, frozen=True):
    """A job that waits takes what it was promised, or is over and leaves it."""

    time: float
    job: Job
    gpu_type: str
    shares: tuple[NodeShare, ...]
    over: bool = False

    def keep(self, free: Capacity) -> None:
        """Take what was promised, or take it back: what gangs give meanwhile comes to the same before and after."""
        (free.take_back if self.over else free.take)(self.job, self.gpu_type, self.shares)


_order = attrgetter("time", "job.uid")


class _Expected:
    """What comes free in one snapshot, worked out when it is asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._lock = Lock()

    @cached_property
    def running(self) -> RunningColumns:  # this and the next two without the lock: whoever holds it asks for these, too
        return running_columns(self._snapshot)

    @cached_property
    def told(self) -> Releases:
        """Each when it is said to end, even if that has passed.

        For EASY backfilling, which believes estimates, and for messages: the expected end of an overdue gang is later
        in every decision, and a message with it would never be the same twice.
        """
        running = self.running
        rows = np.flatnonzero(running.told)
        times = all_within_reach(running.finish[rows], self._snapshot.time)
        return Releases(running.kinds, running.kind[rows], times, running.gpus[rows])

    @cached_property
    def ends(self) -> Ends:
        """Each at its `expected_end`."""
        running, index = self.running, columns(self._snapshot.nodes).index
        times = running.expected_end(self._snapshot)
        uncertainty, unproven = running.uncertainty, running.unproven
        every = Ends(running.jobs, times, uncertainty, running.rank, unproven, running.held(index))
        rows = np.flatnonzero(times < math.inf)
        return every.only(rows) if len(rows) < len(times) else every

    def timeline(self, *, early: bool) -> FreeTimeline:
        with self._lock:
            return (self._early if early else self._usual).copy()

    @cached_property
    def _free(self) -> Capacity:
        free = Capacity(self._snapshot)
        free.expect(self._snapshot.ending, self.ends.held)
        return free

    @cached_property
    def _usual(self) -> FreeTimeline:
        return FreeTimeline(self._snapshot.time, self._free, self.ends)

    @cached_property
    def _early(self) -> FreeTimeline:
        now = self._snapshot.time
        return FreeTimeline(now, self._free, self.ends.early(now))


_expected: LastAsked[Snapshot, _Expected] = LastAsked(_Expected, 2)


def expected_timeline(snapshot: Snapshot, *, early: bool = False) -> FreeTimeline:
    """When GPUs come free in a snapshot, as things are expected to go, or at the low ends of the intervals; whoever
    asks may promise of it."""
    return _expected.of(snapshot).timeline(early=early)


def told_releases(snapshot: Snapshot) -> Releases:
    """What running gangs give back, each when it is said to end, worked out once for all who ask."""
    return _expected.of(snapshot).told


def expected_ends(snapshot: Snapshot) -> Ends:
    """What running gangs give back, each at its `expected_end`, worked out once for all who ask; in the order of the
    snapshot."""
    return _expected.of(snapshot).ends
