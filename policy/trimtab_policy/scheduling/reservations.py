"""GPUs kept for those who came first: nobody overtakes a gang in line if that would delay it.

The first in line that have no room, and whoever has waited for too long, get a reservation each: the earliest time at
which running gangs, as they are expected to end, will have left room for one of the gangs that the job could be, and
the nodes that it would take then. A later job may start before it where that does no harm: it is sure to end in time,
or the reserved gang could still start as early, on these nodes or on others (Lifka 1995, "EASY"; with several
reservations Mu'alem and Feitelson 2001, "conservative"). What counts is nodes with all that a pod needs and what quotas
leave, not the number of GPUs: scattered ones are of no use to a gang that takes whole nodes.

Predictions have intervals. What is let in must have ended by the high end of its own, start-up included, before the
reserved gang could start by the low ends of those that it waits for: else it would be the others' luck that delays it.
A gang that is overdue may take a while yet (`runtime.due`): one that hangs would else keep nodes idle for ever.

A policy that has a line of its own (`Decision.line`) says who comes first, behind priority and guarantee, and who
needs no reservation at all: jobs that can be moved later start with whatever is left, until it names them, too, for
having waited for too long (`learned.guards`). Who waits on purpose is kept nothing that is slower than what it waits
for.

A reservation is made anew in every decision, from what is known then: it is kept by being found again, not by being
remembered. As running gangs end no later than expected and nobody delays it, it does not move back.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.placement.candidates import Candidate, candidates, could_ever_fit, has_room, nodes_for
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.queueing import seconds_left, start_up
from trimtab_policy.placement.releases import FreeTimeline, expected_end, expected_ends, expected_timeline
from trimtab_policy.placement.wording import add, waits, worded
from trimtab_policy.scheduling.accounts import after
from trimtab_policy.types import Decision, Job, NodeShare, Pending, PendingReason, Placement, Snapshot

IN_LINE = (
    PendingReason.INSUFFICIENT_GPUS,
    PendingReason.FRAGMENTED,
    PendingReason.BEHIND_OTHERS,
    PendingReason.WAITING_FOR_BETTER,
    PendingReason.RESERVED,
    PendingReason.QUOTA_EXCEEDED,
)
"""Reasons that go away when others end: time is all that such a job needs."""
MOST_STARVING = 8
"""Jobs that get a reservation because they have waited for too long, at most: the oldest ones."""
MOST_LIMITED = 8
"""Queues whose limits get reservations, at most."""
MOST_NAMED = 4
"""Nodes that a message lists."""


class Reservation(Struct, frozen=True):
    """What is kept for a waiting job."""

    job: str
    """Its UID."""
    name: str
    """namespace/name."""
    gpu_type: str
    shares: tuple[NodeShare, ...]
    """Where it would start."""
    start: float
    """When, as things are expected to go."""
    earliest: float
    """When at the earliest, with 80 % intervals: whoever is let in has ended by then."""
    seconds: float = 0.0
    """How long it will hold them."""
    starving: bool = False
    """Whether it has it for having waited too long: then it counts for jobs before it in line, too, unless they are of
    higher priority, or their queue is owed what they take."""
    slowest: float = math.inf
    """Seconds that a step may take: of what it waits for on purpose."""
    queue: str = ""
    """Set where its queue's limit is what it waits for: it counts for jobs of this queue alone."""

    def describe(self) -> str:
        """`8×A100-SXM4-80GB on n1, n2`."""
        named = ", ".join(share.node for share in self.shares[:MOST_NAMED])
        more = f" and {len(self.shares) - MOST_NAMED} more" if len(self.shares) > MOST_NAMED else ""
        return f"{sum(share.gpus for share in self.shares)}×{self.gpu_type} on {named}{more}"


def reserve(
    snapshot: Snapshot,
    pending: Sequence[Pending],
    count: int,
    starvation_seconds: float,
    order: Sequence[str] | None = None,
) -> tuple[Reservation, ...]:
    """Reservations for the first `count` waiting jobs in line of those that only time can help (`pending` says which),
    of each queue for as many that its limit stops, for those that have waited for `starvation_seconds`, and for those
    that come back in a moment, whose place nobody is to take meanwhile; in line.

    Who cannot start though all end gets none. `order` is who comes first for a policy with a line of its own
    (`Decision.line`); who is not in it gets one only to come back.
    """
    limited = {each.job for each in pending if each.reason is PendingReason.QUOTA_EXCEEDED}
    helped = {each.job for each in pending if each.reason in IN_LINE}
    slowest = {each.job: each.awaited.step_seconds for each in pending if each.awaited}
    line = [job for job in jobs_in_line(snapshot, order) if job.uid in helped or job.not_before > snapshot.time]
    own = {job.uid for job in line} if order is None else set(order)
    waited = (job for job in line if job.uid in own and snapshot.time - _since(job) >= starvation_seconds)
    long = sorted(waited, key=_since)
    starving = {job.uid for job in long[:MOST_STARVING]}
    found: list[Reservation] = []
    if not count and not starving:
        return ()
    diary, places = _Diary(snapshot), Counter[str]()
    for job in line:
        queue = job.queue if job.uid in limited else ""
        known = not queue or queue in places or len(places) <= MOST_LIMITED
        first, returns = known and job.uid in own and places[queue] < count, job.not_before > snapshot.time
        if not (first or returns or job.uid in starving):
            continue
        how = _Terms(not first and not returns, slowest.get(job.uid, math.inf), queue)
        if reservation := diary.enter(job, how):
            found.append(reservation)
            places[queue] += first and not returns
    return tuple(found)


def jobs_in_line(snapshot: Snapshot, order: Sequence[str] | None) -> list[Job]:
    """Waiting jobs, in line; behind priority and guarantee, as a policy has it that has a line of its own."""
    if order is None:
        return snapshot.line()
    place = {uid: number for number, uid in enumerate(order)}
    return sorted(snapshot.line(), key=lambda job: (-job.priority, not job.entitled, place.get(job.uid, len(place))))


def _since(job: Job) -> float:
    """When it began to wait."""
    return job.created if job.waits_since is None else job.waits_since


def hidden(snapshot: Snapshot, reservations: Sequence[Reservation]) -> Snapshot:
    """The snapshot without the free GPUs that are kept: what is left to jobs that are not sure to end in time."""
    if not reservations:
        return snapshot
    ahead, kept = expected_timeline(snapshot), dict[str, int]()
    jobs = {job.uid: job for job in snapshot.jobs}
    for reservation in reservations:
        then = ahead.at(reservation.start)
        for share in () if reservation.queue else reservation.shares:
            spare = max(0, int(then.free[then.index[share.node]]) - share.gpus)
            kept[share.node] = min(spare, kept.get(share.node, spare))
        _promise(ahead, jobs[reservation.job], reservation)
    nodes = tuple(
        replace(node, free_gpus=min(node.free_gpus, kept[node.name])) if node.name in kept else node
        for node in snapshot.nodes
    )
    return replace(snapshot, nodes=nodes)


def refusal(snapshot: Snapshot, reservation: Reservation, placement: Placement) -> Pending:
    """Why a job waits though there is room for it."""
    job = next(job for job in snapshot.jobs if job.uid == placement.job)
    now, free, ends = snapshot.time, reservation.earliest, _sure_end(snapshot, job, placement)
    kept = f"what queue {reservation.queue} is allowed" if reservation.queue else reservation.describe()
    but = f"there is room for {placement.gpus}×{placement.gpu_type}, but {kept} is kept for {reservation.name}"
    sure = " at the earliest; this job would be sure to have ended "
    message = worded(now, f"{but}, which can start ", free, sure, ends)
    hint = worded(now, "a run that is sure to end before ", free, " could start now")
    return waits(placement.job, PendingReason.RESERVED, message, (reservation.name,), (hint,))


def told(pending: Pending, reservation: Reservation, now: float) -> Pending:
    """The same reason why a job waits, with what is kept for it."""
    kept = f"{reservation.describe()} is kept for it, and expected to be free "
    return add(pending, worded(now, kept, reservation.start))


class ReservationGuard:
    """Asked about placement after placement, which of them would delay a reserved job; those that would not count as
    made from then on. Where one that came first takes what was kept, it is kept elsewhere, or for later."""

    def __init__(
        self, snapshot: Snapshot, reservations: Sequence[Reservation], order: Sequence[str] | None = None
    ) -> None:
        """`order` as of `reserve`."""
        self._snapshot = snapshot
        self._jobs = {job.uid: job for job in snapshot.jobs}
        self._turn = {job.uid: turn for turn, job in enumerate(jobs_in_line(snapshot, order))}
        self._made: list[Placement] = []
        self._kept = self._watch(snapshot, reservations)

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """As they are after all that was made."""
        return tuple(kept.reservation for kept in self._kept)

    def copy(self) -> ReservationGuard:
        """The same, to try placements that belong together, which may come to nothing."""
        other = copy(self)
        other._made, other._kept = list(self._made), [copy(kept) for kept in self._kept]
        return other

    def before(self, job: Job) -> tuple[Reservation, ...]:
        """What is kept for those whom the job has to let go first."""
        return tuple(kept.reservation for kept in self._kept if kept.job.uid != job.uid and self._yields(job, kept))

    def delayed_by(self, placement: Placement) -> Reservation | None:
        """The first reservation that the placement would delay; where there is none, it is made."""
        job = self._jobs[placement.job]
        own = next((i for i, kept in enumerate(self._kept) if kept.job.uid == job.uid), None)
        end, taken = _sure_end(self._snapshot, job, placement), own is not None
        then_free: list[tuple[_Watched, Capacity]] = []
        for kept in self._kept[:own]:
            if end > kept.reservation.earliest and kept.reservation.queue in ("", job.queue):
                then = kept.with_placed(self._snapshot, job, placement)
                if not kept.still_starts(then):
                    if self._yields(job, kept):
                        return kept.reservation
                    taken = True
                then_free.append((kept, then))
        self._made.append(placement)
        for kept, then in then_free:
            kept.then = then
        if taken:
            self._keep_anew()
        return None

    def _keep_anew(self) -> None:
        made = {placement.job for placement in self._made}
        now = after(self._snapshot, Decision("made", tuple(self._made)))
        diary = _Diary(now)
        left = [kept for kept in self._kept if kept.job.uid not in made]
        found = [diary.enter(kept.job, _terms(kept.reservation)) for kept in left]
        self._kept = self._watch(now, [reservation for reservation in found if reservation])

    def _watch(self, snapshot: Snapshot, reservations: Sequence[Reservation]) -> list[_Watched]:
        ahead, watched = expected_timeline(snapshot), list[_Watched]()
        for reservation in reservations:
            if reservation.job in self._turn:
                job = self._jobs[reservation.job]
                then = ahead.at(reservation.start)
                watched.append(_Watched(reservation, job, then, _options(snapshot, then, job, reservation.slowest)))
                _promise(ahead, job, reservation)
        return watched

    def _yields(self, job: Job, kept: _Watched) -> bool:
        """Whether the job has to let the reserved one go first."""
        if kept.reservation.starving:
            return job.priority <= kept.job.priority and (kept.job.entitled or not job.entitled)
        return job.uid not in self._turn or self._turn[job.uid] > self._turn[kept.job.uid]


class _Watched:
    """A reservation, and what there will be when its job is to start."""

    def __init__(self, reservation: Reservation, job: Job, then: Capacity, options: Sequence[Candidate]) -> None:
        self.reservation, self.job, self.then = reservation, job, then
        self._options = options

    def with_placed(self, snapshot: Snapshot, job: Job, placement: Placement) -> Capacity:
        """What there will be if the placement is made; a gang that moves gives back what it has."""
        then = self.then.copy()
        if job.placement and expected_end(snapshot, job, job.placement) > self.reservation.start:
            then.give(job, job.placement.gpu_type, job.placement.shares)
        then.take(job, placement.gpu_type, placement.shares)
        return then

    def still_starts(self, then: Capacity) -> bool:
        """Whether the reserved job could start as early all the same, if need be elsewhere."""
        return _fits(then, self.job, self._options)


def _promise(ahead: FreeTimeline, job: Job, made: Reservation) -> None:
    ahead.promise(job, made.gpu_type, made.shares, since=-math.inf, until=made.start + made.seconds)


class _Terms(NamedTuple):
    """How a reservation is made; as the fields of `Reservation`."""

    starving: bool
    slowest: float
    queue: str


def _terms(made: Reservation) -> _Terms:
    return _Terms(made.starving, made.slowest, made.queue)


class _Diary:
    """Makes reservations one after the other, each with those before it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._expected = expected_timeline(snapshot)
        certain = bool((expected_ends(snapshot).uncertainty == 1.0).all())
        self._early = None if certain else expected_timeline(snapshot, early=True)

    def enter(self, job: Job, how: _Terms) -> Reservation | None:
        """The earliest start of the job; None where it could not start though all had ended."""
        options = _options(self._snapshot, self._expected.at(self._snapshot.time), job, how.slowest)
        found = self._expected.first(lambda free: _fits(free, job, options))
        if found is None:
            return None
        start, free = found
        chosen, shares = next((each, shares) for each in options if (shares := nodes_for(free, job, each)))
        sooner = self._early.first(lambda free: _fits(free, job, options)) if self._early else None
        made = Reservation(
            job=job.uid,
            name=f"{job.namespace}/{job.name}",
            gpu_type=chosen.gpu.name,
            shares=shares,
            start=max(start, job.not_before),
            earliest=max(min(start, sooner[0]) if sooner else start, job.not_before),
            seconds=(seconds_left(job, chosen) + start_up(job)) / self._snapshot.speedup,
            starving=how.starving,
            slowest=how.slowest,
            queue=how.queue,
        )
        for ahead in (self._expected, self._early):
            if ahead:
                _promise(ahead, job, made)
        return made


def _options(snapshot: Snapshot, capacity: Capacity, job: Job, slowest: float) -> list[Candidate]:
    """What the job could run on with steps of at most so many seconds, the fastest first, whatever of it is free."""
    fast = [each for each in candidates(snapshot, capacity, job) if each.option.prediction.step_seconds <= slowest]
    known = [each for each in fast if could_ever_fit(capacity, job, each)]
    return sorted(known, key=lambda each: (-each.tokens_per_second, each.cost))


def _fits(free: Capacity, job: Job, options: Iterable[Candidate]) -> bool:
    return any(has_room(free, job, option) for option in options)


def _sure_end(snapshot: Snapshot, job: Job, placement: Placement) -> float:
    """By when a job that starts now is sure to have ended."""
    longest = start_up(job) + _seconds(job, placement) * placement.prediction.uncertainty
    return snapshot.time + longest / snapshot.speedup


def _seconds(job: Job, placement: Placement) -> float:
    return (job.training.steps - job.steps_done) * placement.prediction.step_seconds
