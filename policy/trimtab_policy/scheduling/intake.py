"""Who is considered in one decision: as many waiting jobs as can be decided about in time, each queue in its turn.

Anybody who may create jobs may create thousands, each with a plan space of its own to be searched. So a decision
considers no more than a number of them (of one queue, `observe.queues` has left fewer); and those whose plans were
never searched for are let in one after the other, for as long as a part of the deadline lasts: their turn comes in the
next rounds. The order is that of the line, in which queues take turns, so that nobody's many jobs are in the way of
somebody else's few. A decision that was late all the same considers half as many the next time.

What is found to fail for one job by itself costs that job alone (`isolation` finds what fails for several together).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.placement.candidates import is_known
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.node_columns import columns
from trimtab_policy.placement.pending_reasons import search
from trimtab_policy.types import Job, Pending, PendingReason, Snapshot

FEWEST = 32
"""Jobs that are considered however slow the machine is."""
GROWTH = 1.25
QUICK = 0.4
"""Part of the deadline within which a decision must have been made so that the next one considers more jobs."""
SEARCHED = 1 << 14
"""Jobs that are known to have been searched for."""

UNBOUNDED = 1 << 20


class IntakeLimits(Struct, frozen=True):
    """How many jobs one decision considers. By default, all."""

    jobs: int = UNBOUNDED
    search_part: float = math.inf
    """Part of the deadline in which plans of new jobs are searched for."""


class Taken(Struct, frozen=True):
    """The waiting jobs that are decided about, and why others are not."""

    snapshot: Snapshot
    left_out: dict[str, Pending] = {}
    failed: dict[str, Exception] = {}
    """UID of a job for which nothing can be searched -> why."""


class Intake:
    """Kept from decision to decision: whose plans were searched for, and how many jobs can be considered in time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._bound = UNBOUNDED
        """Jobs that are considered, as far as decisions were late."""
        self._searched: dict[tuple[int, int, int], tuple[object, ...]] = {}
        """Identities of what a search depends on -> the objects, which keeps these identities theirs."""
        self._offers: object = None

    def take(self, snapshot: Snapshot, limits: IntakeLimits, deadline: float) -> Taken:
        """The snapshot with those waiting jobs that are considered. Its jobs are in line (`shares.in_line`)."""
        if limits == IntakeLimits():
            return Taken(snapshot)
        most = min(limits.jobs, self._bound)
        until = self._clock() + limits.search_part * deadline
        capacity, left_out, failed = Capacity(snapshot), dict[str, Pending](), dict[str, Exception]()
        self._forget_others(snapshot)
        taken = 0
        for job in snapshot.waiting():
            if taken >= most:
                left_out[job.uid] = _waits(job, f"{most} jobs are considered at a time, each queue in its turn")
            elif not self._is_searched(snapshot, capacity, job) and self._clock() >= until:
                left_out[job.uid] = _waits(job, "many jobs are new, and their plans are searched for one by one")
            else:
                taken += 1
                if error := self._search(snapshot, capacity, job):
                    failed[job.uid] = error
        return Taken(_without(snapshot, left_out.keys() | failed.keys()), left_out, failed)

    def learn(self, seconds: float, deadline: float, *, late: bool, jobs: int) -> None:
        """Note how long a decision about so many jobs took, and whether some part of it was late."""
        if late:
            self._bound = max(FEWEST, min(self._bound, jobs) // 2)
        elif self._bound < UNBOUNDED and seconds < QUICK * deadline:
            self._bound = min(UNBOUNDED, math.ceil(self._bound * GROWTH))

    def _forget_others(self, snapshot: Snapshot) -> None:
        """Other GPU types, or other sizes of nodes, are other searches."""
        offers = columns(snapshot.nodes).offers
        if offers != self._offers or len(self._searched) > SEARCHED:
            self._offers, self._searched = offers, {}

    def _is_searched(self, snapshot: Snapshot, capacity: Capacity, job: Job) -> bool:
        return _key(job) in self._searched or is_known(snapshot, capacity, job)

    def _search(self, snapshot: Snapshot, capacity: Capacity, job: Job) -> Exception | None:
        if _key(job) in self._searched:
            return None
        try:
            search(snapshot, capacity, job)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this job's alone
            return error
        self._searched[_key(job)] = job.model, job.training, job.requirements
        return None


def _key(job: Job) -> tuple[int, int, int]:
    """What a search depends on; the same objects from round to round, for as long as the job's spec is the same."""
    return id(job.model), id(job.training), id(job.requirements)


def _waits(job: Job, why: str) -> Pending:
    return Pending(job.uid, PendingReason.NOT_CONSIDERED, f"its turn has not come: {why}")


def _without(snapshot: Snapshot, uids: Iterable[str]) -> Snapshot:
    out = frozenset(uids)
    if not out:
        return snapshot
    return replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.uid not in out))
