"""When GPUs come free: which gangs give back what, on which nodes, at what time; and from when on a job fits.

There is one rule for the end of a gang (`expected_end`) and one kind of end (`Release`), with two questions about many:

- `Releases.enough` counts GPUs of a type, wherever they are. That is what EASY backfilling does as published, and what
  a message says: it costs a sum.
- `FreeTimeline` gives the GPUs back node by node, with CPU, memory, pods and what quotas leave: scattered GPUs are of
  no use to a gang that takes whole nodes. What decides for or against somebody asks it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from threading import Lock

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.last_asked import LastAsked
from trimtab_policy.placement.runtime import due, within_reach
from trimtab_policy.types import Job, NodeShare, Placement, Snapshot


class Release(Struct, frozen=True):
    """A gang gives back what it holds."""

    time: float
    """POSIX time, finite: a gang whose end is not in sight has no release."""
    job: Job
    gpu_type: str
    shares: tuple[NodeShare, ...]
    uncertainty: float = 1.0
    """Factor of the 80 % interval of the time that is left to it."""

    @property
    def gpus(self) -> int:
        """GPUs on all nodes together."""
        return sum([share.gpus for share in self.shares])


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


def as_expected(snapshot: Snapshot) -> Iterator[Release]:
    """What running gangs give back, each at its `expected_end`, in no order."""
    for job in snapshot.jobs:
        if (held := job.placement) and (end := expected_end(snapshot, job, held)) < math.inf:
            yield Release(end, job, held.gpu_type, held.shares, held.prediction.uncertainty)


def as_told(snapshot: Snapshot) -> Iterator[Release]:
    """What running gangs give back, each when it is said to end, even if that has passed, in no order.

    For EASY backfilling, which believes estimates, and for messages: the expected end of an overdue gang is later in
    every decision, and a message with it would never be the same twice.
    """
    for job in snapshot.jobs:
        if (held := job.placement) and job.expected_finish is not None:
            yield Release(within_reach(job.expected_finish, snapshot.time), job, held.gpu_type, held.shares)


class Releases:
    """Ends of gangs in order of time. Nothing in it changes."""

    def __init__(self, releases: Iterable[Release]) -> None:
        ends: dict[str, list[tuple[float, int]]] = {}
        for release in releases:
            ends.setdefault(release.gpu_type, []).append((release.time, release.gpus))
        self._ends = {gpu_type: _in_order(of_type) for gpu_type, of_type in ends.items()}

    def enough(self, gpu_type: str, gpus: int, free: int, now: float) -> tuple[float, int] | None:
        """From when on there are so many GPUs of a type, wherever they are, and how many more there are then; None if
        that is not in sight. `free` are those that are free `now`; what should have ended by now counts with them."""
        times, returned = self._ends.get(gpu_type, ((), (0,)))
        needed = bisect_left(returned, gpus - free)
        if needed == len(returned):
            return None
        moment = max(now, times[needed - 1]) if needed else now
        return moment, free + returned[bisect_right(times, moment)] - gpus


def _in_order(ends: list[tuple[float, int]]) -> tuple[Sequence[float], Sequence[int]]:
    """When gangs of a type end, and how many GPUs have been given back after so many of them."""
    ends.sort()
    return [time for time, _ in ends], list(accumulate((gpus for _, gpus in ends), initial=0))


def told_releases(snapshot: Snapshot, capacity: Capacity) -> Releases:
    """`as_told`, in order, computed once for all capacities of the snapshot."""
    return capacity.remember("told releases", lambda: Releases(as_told(snapshot)), lasting=True)


class FreeTimeline:
    """What is free at which time, node by node, as gangs give back what they hold, and as others take what they were
    promised."""

    def __init__(self, now: float, free: Capacity, releases: Iterable[Release]) -> None:
        """`free`: what is free at `now`; it is not to change from then on."""
        self._now, self._course = now, _Course(free, releases)
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

    def __init__(self, free: Capacity, releases: Iterable[Release]) -> None:
        self._releases = sorted(releases, key=_order)
        self.times = [release.time for release in self._releases]
        """Of all ends, in order."""
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
                free.give_all((ends.job, ends.gpu_type, ends.shares) for ends in self._releases[before:past])
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
    def releases(self) -> tuple[Release, ...]:  # without the lock: whoever holds it asks for these, too
        return tuple(as_expected(self._snapshot))

    def timeline(self, *, early: bool) -> FreeTimeline:
        with self._lock:
            return (self._early if early else self._usual).copy()

    @cached_property
    def _free(self) -> Capacity:
        free = Capacity(self._snapshot)
        free.expect(self._snapshot.ending, (share for each in self.releases for share in each.shares))
        return free

    @cached_property
    def _usual(self) -> FreeTimeline:
        return FreeTimeline(self._snapshot.time, self._free, self.releases)

    @cached_property
    def _early(self) -> FreeTimeline:
        now = self._snapshot.time
        low = (replace(each, time=now + (each.time - now) / each.uncertainty) for each in self.releases)
        return FreeTimeline(now, self._free, low)


_expected: LastAsked[Snapshot, _Expected] = LastAsked(_Expected, 2)


def expected_timeline(snapshot: Snapshot, *, early: bool = False) -> FreeTimeline:
    """When GPUs come free in a snapshot, as things are expected to go, or at the low ends of the intervals; whoever
    asks may promise of it."""
    return _expected.of(snapshot).timeline(early=early)


def expected_releases(snapshot: Snapshot) -> tuple[Release, ...]:
    """`as_expected`, worked out once for all who ask."""
    return _expected.of(snapshot).releases
