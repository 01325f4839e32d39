"""Which jobs make a decision fail: found by trying, and set aside, so that all others are decided about.

A policy, or a stage of the decision, that raises says nothing of which job it stumbled over; and it may be two jobs
together. So the decision is tried again with parts of the jobs, halves of halves: whoever is left when a part with it
fails, and without it does not, is set aside for a while. One that waits waits, and says why; one that runs goes on, as
a `runtime.holder` of its GPUs of which nothing else is believed. Jobs of one namespace are neighbours in these halves:
where time runs out, the smallest part that was seen to fail is set aside for a moment, and that is the same tenant's.

A policy that fails whatever jobs there are is not helped by this, and its fallback decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Set

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.placement.runtime import quiet
from trimtab_policy.types import Pending, PendingReason, Snapshot

ASIDE_SECONDS = 300.0
"""For so long a job that makes decisions fail is left out of them, then it is tried again."""
UNTRIED_SECONDS = 15.0
"""And so long one that there was no time to try."""
SEARCH_SECONDS = 5.0
"""Of trying, at most: until then no round ends."""
MOST_ASIDE = 16
"""More jobs than this, and more than a tenth of all, are not at fault each by itself."""
PAUSE_SECONDS = 60.0
"""After a search that has found nothing no other one is begun for so long."""


class Isolated(Struct, frozen=True):
    """A job that decisions are made without."""

    job: str
    """UID."""
    part: str
    """Policy, or stage, that fails with it."""
    error: str
    """Kind of the error, or `untried`."""

    def pending(self) -> Pending:
        """What it is told while it waits. Errors may quote other jobs: their words are for the log."""
        message = (
            f"deciding about it fails in {self.part} ({self.error}): all other jobs are decided about without it, and "
            f"it is tried again within {ASIDE_SECONDS:.0f} s; this is a bug of Trimtab, please report it"
        )
        return Pending(self.job, PendingReason.DECISION_FAILED, message)


class Isolation:
    """Kept from decision to decision: who is set aside, and until when."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._aside: dict[str, tuple[float, Isolated]] = {}
        """UID -> until when, by the snapshot's time."""
        self._pause = -PAUSE_SECONDS

    def without(self, snapshot: Snapshot) -> tuple[Snapshot, tuple[Isolated, ...]]:
        """The snapshot without the jobs that are set aside, and who they are."""
        here = {job.uid for job in snapshot.jobs}
        self._aside = {uid: kept for uid, kept in self._aside.items() if kept[0] > snapshot.time and uid in here}
        if not self._aside:
            return snapshot, ()
        return part_of(snapshot, here - self._aside.keys()), tuple(kept for _, kept in self._aside.values())

    def set_aside(self, found: Iterable[Isolated], now: float) -> None:
        """Leave these jobs out of decisions for a while; `now` is the snapshot's time, POSIX seconds."""
        for each in found:
            seconds = UNTRIED_SECONDS if each.error == UNTRIED else ASIDE_SECONDS
            self._aside[each.job] = now + seconds, each

    def search(self, snapshot: Snapshot, fails: Callable[[Snapshot], Mapping[str, str]]) -> tuple[Isolated, ...]:
        """The jobs that make a decision fail; empty where it would fail without them, or where that was just tried.

        `fails` decides about a part of the snapshot: what failed (the part of the decision -> kind of the error).
        """
        if self._clock() - self._pause < PAUSE_SECONDS:
            return ()
        until = self._clock() + SEARCH_SECONDS
        jobs = sorted(snapshot.jobs, key=lambda job: (job.namespace, job.uid))
        most, good = max(MOST_ASIDE, len(jobs) // 10), set[str]()
        found: list[Isolated] = []
        narrowed = [job.uid for job in jobs]
        groups = _halves(narrowed)  # all of them together have failed before this was asked
        while groups and len(found) <= most:
            if self._clock() > until:
                found += [Isolated(uid, "decision", UNTRIED) for uid in narrowed if uid not in good]
                break
            group = groups.pop()
            if not (failed := fails(part_of(snapshot, good | set(group)))):
                good |= set(group)
            elif len(group) == 1:
                found.append(Isolated(group[0], *next(iter(failed.items()))))
            else:
                narrowed = group
                groups += _halves(group)
        if not 0 < len(found) <= most:
            self._pause = self._clock()
            return ()
        return tuple(found)


UNTRIED = "untried"


def _halves(group: list[str]) -> list[list[str]]:
    """The first one last: it is the next to be tried. A single one is whole."""
    middle = len(group) // 2
    return [group[middle:], group[:middle]] if middle else [group]


def part_of(snapshot: Snapshot, uids: Set[str]) -> Snapshot:
    """The snapshot with these jobs; of the others it has what they hold, and nothing else."""
    jobs = (job if job.uid in uids else quiet(job) for job in snapshot.jobs if job.uid in uids or job.placement)
    return replace(snapshot, jobs=tuple(jobs))
