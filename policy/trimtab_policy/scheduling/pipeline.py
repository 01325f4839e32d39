"""One decision, stage after stage: each sees the cluster as those before it leave it, and passes the shield.

    line          who comes first: priority, guarantee, share of the queue, age
    intake        who is considered at all: of very many, and of those whose plans were never searched for, some
    policies      place waiting jobs; may stop, move and resize elastic ones
    reservations  what would delay those first in line is taken back; its jobs are asked about once more, then others
    room          running jobs move or stop for jobs that still wait (preemption)
    resizes       elastic jobs get more, fewer or other GPUs, where nobody waits for these; a policy that decides about
                  those itself (`policy.rescales`) is asked instead, if it was not asked about jobs that wait
    hints         what would help those that wait, of what is kept for nobody before them
    etas          when those that wait are expected to start

A stage after the policies that fails, or is late, is left out: what was decided before it stands. The last two change
nothing of it (`Pipeline.explain`): the live controller has them done when placements are on their way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.policy import PolicyFailure, rescales
from trimtab_policy.scheduling.accounts import Accounts
from trimtab_policy.scheduling.advice import advice
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.eta_cache import Times
from trimtab_policy.scheduling.etas import expected_starts
from trimtab_policy.scheduling.fair_share import borrowed, in_line
from trimtab_policy.scheduling.intake import IntakeLimits, Taken
from trimtab_policy.scheduling.isolation import Isolated
from trimtab_policy.scheduling.permissions import Permissions
from trimtab_policy.scheduling.preemption import PreemptionRules, preempt_others
from trimtab_policy.scheduling.reservations import (
    IN_LINE,
    Reservation,
    ReservationGuard,
    hidden,
    refusal,
    reserve,
    told,
)
from trimtab_policy.scheduling.resize import ResizeRules, resizes
from trimtab_policy.scheduling.results import Fallback, Move, Outcome
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.scheduling.shield import BrokenRule, judge
from trimtab_policy.types import (
    MOST_LEAVING,
    Bounds,
    Decision,
    Doubt,
    Eta,
    Job,
    Pending,
    PendingReason,
    Placement,
    Snapshot,
    Stop,
    StopCause,
)

INTAKE, ROOM, RESIZES = "intake", "room", "resize"
"""Names of the stages that decide like a policy."""
HINTS = "hints"
FELL = "it would fit, but the gangs that would have to move for it would take what is kept for others"

T = TypeVar("T")


class Executor(Protocol):
    """Who runs policies, and everything else that may fail, within a deadline."""

    def ask(self, name: str, snapshot: Snapshot, choice: Choice) -> tuple[str, Decision, list[Fallback]]:
        """The name of the policy that answered in the end, its decision, and the failures on the way."""
        ...

    def timed(self, name: str, work: Callable[[], T], deadline: float) -> T:
        """What the work returns. Raises PolicyFailure."""
        ...

    def take(self, snapshot: Snapshot, limits: IntakeLimits, deadline: float) -> Taken:
        """The snapshot with those waiting jobs that are considered."""
        ...

    @property
    def times(self) -> Times:
        """What is known of the starts of those that wait."""
        ...


class _Proposal(Struct, frozen=True):
    """Somebody's decision, to be judged with others before and after it."""

    by: str
    decision: Decision
    permissions: Permissions


class Pipeline:
    """Everything that is known of one decision while it is made."""

    def __init__(self, snapshot: Snapshot, choice: Choice, rules: Rules, executor: Executor) -> None:
        self._choice, self._rules, self._executor = choice, rules, executor
        self._fallbacks: list[Fallback] = []
        self._seconds: dict[str, float] = {}
        self._stages: dict[str, float] = {}
        self._policies: dict[str, str] = {}
        self._doubts: dict[str, tuple[Doubt, ...]] = {}
        self._pending: dict[str, Pending] = {}
        self._said: list[_Proposal] = []
        self._base = snapshot
        self._base = self._stage("line", lambda: in_line(snapshot), snapshot, "jobs are in line by priority and age")
        self._taken = executor.take(self._base, rules.limits, choice.deadline_seconds)
        self._base = self._taken.snapshot
        self._accounts, self._refused = Accounts(self._base), list[BrokenRule]()
        self._reserved: tuple[Reservation, ...] = ()
        self._order: tuple[str, ...] | None = None
        """Who comes first, where the policy has a line of its own."""
        self._stops: list[Stop] = []
        self._moves: dict[str, str] = {}
        self._asked: set[str] = set()
        self.outcome: Outcome
        """Of `decide`."""

    def run(self) -> Outcome:
        """All stages."""
        self.decide()
        return self.explain()

    def decide(self) -> Outcome:
        """All stages that change who gets what. Why others wait is told, but not what would help, and until when."""
        line = self._base.waiting()
        for name, jobs in _by_policy(line, self._choice.policy).items():
            self._ask(name, jobs, self._accounts.view())
        left = any(job.placement is None and job.uid not in self._accounts.placed for job in self._base.jobs)
        if line and left and (self._rules.reservations or self._rules.starvation_seconds):
            self._keep_reserved()
        if self._rules.preemption and self._waiting():
            self._preempt(self._rules.preemption)
        if self._rules.resize:
            self._resize(self._rules.resize)
        self.outcome = self._outcome(self._in_order())
        return self.outcome

    def explain(self) -> Outcome:
        """After `decide`: the same decision, with hints and start times for those that wait. On a large cluster that is
        much of the work, and nobody's GPUs wait for it."""
        if self._reserved and self._rules.times and self._waiting():
            self._advise()
        return self._outcome(self._timed_pendings())

    def _outcome(self, pending: Iterable[Pending]) -> Outcome:
        waits = self._accounts.waits_of(self._accounts.placed.values())
        failed = [Isolated(uid, INTAKE, type(error).__name__) for uid, error in self._taken.failed.items()]
        left_out = (*self._taken.left_out.values(), *(each.pending() for each in failed))
        return Outcome(
            policies=self._policies | {pending.job: INTAKE for pending in left_out},
            placements=tuple(p for p in self._accounts.placed.values() if self._accounts.jobs[p.job].placement is None),
            pending=(*pending, *left_out),
            refused=tuple(self._refused),
            fallbacks=tuple(self._fallbacks),
            seconds=dict(self._seconds),
            stops=tuple(self._named(stop) for stop in self._stops),
            moves=tuple(self._move(uid, by) for uid, by in self._moves.items()),
            waits=waits,
            grants=self._accounts.grants(),
            reserved=self._reserved,
            stages=dict(self._stages),  # `explain` adds to it
            isolated=tuple(failed),
            doubts=dict(self._doubts),
        )

    # --- policies -------------------------------------------------------------------------------------------------
    def _ask(self, name: str, jobs: Sequence[Job], view: Snapshot) -> None:
        """Ask a policy about these jobs. Only the one that is in force may touch running ones."""
        uids = frozenset(job.uid for job in jobs)
        seen = replace(view, jobs=tuple(self._seen_by(name, view.jobs, uids)))
        began = time.perf_counter()
        by, decision, failures = self._executor.ask(name, seen, self._choice)
        if by == self._choice.policy and by not in self._asked and decision.line is not None:
            self._order = (*decision.line, *(job.uid for job in self._base.line() if job.uid not in uids))
        self._asked.add(by)
        self._seconds[by] = self._seconds.get(by, 0.0) + time.perf_counter() - began
        self._fallbacks += failures
        if decision.doubts:
            self._doubts[by] = tuple(dict.fromkeys((*self._doubts.get(by, ()), *decision.doubts)))
        permissions = Permissions(at_once=self._left(), about=uids, elastic=name == self._choice.policy)
        refused = self._judge(_Proposal(by, decision, permissions))
        self._policies |= dict.fromkeys((job.uid for job in jobs), by)
        broken = {refusal.job: f"{by} broke rule {refusal.rule}: {refusal.message}" for refusal in refused}
        said = {pending.job: pending for pending in decision.pending}
        said |= {uid: Pending(uid, PendingReason.DECISION_REFUSED, message) for uid, message in broken.items()}
        self._pending |= {uid: said[uid] for uid in (job.uid for job in jobs) if uid not in self._accounts.placed}

    def _seen_by(self, name: str, jobs: Iterable[Job], mine: frozenset[str]) -> Iterable[Job]:
        for job in jobs:
            if job.placement is None:
                if job.uid in mine:
                    yield job
            elif job.preemptible and (name != self._choice.policy or self._left() < 1):
                yield replace(job, preemptible=False)
            else:
                yield job

    # --- those who came first --------------------------------------------------------------------------------------
    def _keep_reserved(self) -> None:
        rules = self._rules

        def find() -> tuple[tuple[Reservation, ...], dict[str, Reservation]]:
            kept = reserve(
                self._base, self._in_order(), rules.reservations, rules.starvation_seconds or math.inf, self._order
            )
            guard = ReservationGuard(self._base, kept, self._order)
            asked = [(placed, guard.delayed_by(placed)) for placed in self._accounts.placed.values()]
            return guard.reservations, {placed.job: kept_for for placed, kept_for in asked if kept_for}

        none: tuple[tuple[Reservation, ...], dict[str, Reservation]] = (), {}
        self._reserved, delaying = self._stage("reservations", find, none, "whoever fits starts")
        for kept in self._reserved:
            if kept.job in self._pending:
                self._pending[kept.job] = told(self._pending[kept.job], kept, self._base.time)
        if delaying:
            self._ask_again(delaying)

    def _ask_again(self, delaying: dict[str, Reservation]) -> None:
        """Take back what would delay others, and ask once more about those jobs, with what is kept out of sight."""
        before = self._accounts.placed
        self._take_back(delaying.keys())
        for uid, kept in delaying.items():
            self._pending[uid] = refusal(self._base, kept, before[uid])
        again = {uid: self._pending[uid] for uid in delaying}
        view, settled = self._accounts.view(), set(self._accounts.placed)
        jobs = [job for job in self._base.waiting() if job.uid in delaying]
        rest = self._stage("hidden", lambda: hidden(self._accounts.view(), self._reserved), None, "they wait")
        if rest:
            for name, asked in _by_policy(jobs, self._choice.policy).items():
                self._ask(name, asked, rest)
        self._pending |= {uid: why for uid, why in again.items() if uid not in self._accounts.placed}
        self._let_pass(delaying.keys())
        self._keep_out(view, settled)

    def _let_pass(self, delaying: Set[str]) -> None:
        """What these must not have is for those whom it is kept for, once they can start: a policy with an order of its
        own would else leave it idle. It may be just right for others, too, who are sure to end in time."""
        line = [job for job in self._waiting() if job.uid not in delaying and self._pending[job.uid].reason in IN_LINE]
        ready = {kept.job for kept in self._reserved if kept.start <= self._base.time}
        reserved = {kept.job for kept in self._reserved}
        known = {job.uid: self._pending[job.uid] for job in line if job.uid in ready}
        for jobs in ([job for job in line if job.uid in ready], [job for job in line if job.uid not in reserved]):
            for name, asked in _by_policy(jobs, self._choice.policy).items():
                self._ask(name, asked, self._accounts.view())
        self._pending |= {uid: why for uid, why in known.items() if uid not in self._accounts.placed}

    def _keep_out(self, view: Snapshot, before: Set[str]) -> None:
        """Of what was placed since then, take back what would delay others all the same."""

        def late() -> dict[str, Pending]:
            guard = ReservationGuard(view, self._reserved, self._order)
            asked = ((p, guard.delayed_by(p)) for p in self._accounts.placed.values() if p.job not in before)
            return {placed.job: refusal(view, kept, placed) for placed, kept in asked if kept}

        none: dict[str, Pending] = {}
        if refused := self._stage("reservations", late, none, "whoever fits passes"):
            self._take_back(refused)
            self._pending |= refused

    # --- preemption ------------------------------------------------------------------------------------------------
    def _preempt(self, rules: PreemptionRules) -> None:
        view, waiting = self._accounts.view(), [self._as_awaited(job) for job in self._waiting()]
        bounded = replace(rules, at_once=self._left(), for_one=MOST_LEAVING - len(self._accounts.left))

        def find() -> tuple[Decision, Permissions]:
            decision = preempt_others(
                view, waiting, bounded, ReservationGuard(view, self._reserved, self._order) if self._reserved else None
            )
            lent = borrowed(view) if decision.placements else {}
            return decision, Permissions(for_others=True, at_once=self._left(), borrowed=lent)

        found = self._stage(ROOM, find, None, "nobody was preempted")
        if found:
            self._judge(_Proposal(ROOM, *found))

    def _as_awaited(self, job: Job) -> Job:
        """The job; one that waits on purpose as if it could run on nothing but what it waits for: room is made for no
        other gang of it."""
        if (awaited := self._pending[job.uid].awaited) is None:
            return job
        gpus = Bounds(awaited.gpus, awaited.gpus)
        return replace(job, requirements=replace(job.requirements, gpu_types=(awaited.gpu_type,), gpus=gpus))

    def _resize(self, rules: ResizeRules) -> None:
        own = self._choice.policy
        if rescales(own) and own not in self._asked:
            self._ask(own, (), self._accounts.view())
        if rescales(own) and own in self._asked:
            return
        view = self._accounts.view()
        bounded = replace(rules, at_once=min(rules.at_once, self._left()))
        none: tuple[Placement, ...] = ()
        found = self._stage(RESIZES, lambda: resizes(view, bounded), none, "no job was resized")
        self._judge(_Proposal(RESIZES, Decision(RESIZES, found), Permissions(at_once=self._left(), about=frozenset())))

    def _advise(self) -> None:
        """The policies' hints were tried on what was free then."""
        view, pending = self._accounts.view(), self._in_order()
        none: dict[str, Pending] = {}
        for uid, now in self._stage(
            HINTS, lambda: advice(view, pending, self._reserved, self._order), none, "as it was"
        ).items():
            self._pending[uid] = replace(self._pending[uid], alternatives=now.alternatives, remedies=now.remedies)

    # --- keeping account ---------------------------------------------------------------------------------------------
    def _judge(self, said: _Proposal) -> tuple[BrokenRule, ...]:
        """Let the shield have its say, and note what is left; returns what is not."""
        verdict, self._accounts = judge(self._accounts, said.decision, said.permissions)
        self._said.append(said)
        self._refused += verdict.refused
        self._stops += [stop if said.permissions.for_others else _yielded(stop) for stop in verdict.stops]
        for placed in verdict.accepted:
            self._pending.pop(placed.job, None)
            if self._accounts.jobs[placed.job].placement:
                self._moves[placed.job] = said.by
        for refused in verdict.refused:
            why = f"{said.by} broke rule {refused.rule}: {refused.message}"
            self._pending.setdefault(refused.job, Pending(refused.job, PendingReason.DECISION_REFUSED, why))
        return verdict.refused

    def _take_back(self, uids: Iterable[str]) -> None:
        """Judge all anew, without the placements of these jobs: what was to give way for them stays. What falls with
        them is no mistake of who decided it."""
        out, mistakes, before = set(uids), set(self._refused), self._accounts.placed.keys()
        said, self._said = self._said, []
        self._accounts, self._refused, self._stops, self._moves = Accounts(self._base), [], [], {}
        for each in said:
            left = tuple(placed for placed in each.decision.placements if placed.job not in out)
            self._judge(replace(each, decision=replace(each.decision, placements=left)))
        self._refused = [refused for refused in self._refused if refused in mistakes]
        for uid in before - out - self._accounts.placed.keys():
            self._pending[uid] = Pending(uid, PendingReason.RESERVED, FELL)

    def _left(self) -> int:
        """Gangs that may still be stopped or moved before nobody else is helped."""
        return max(0, self._rules.at_once - len(self._accounts.left))

    def _waiting(self) -> list[Job]:
        """Jobs without a placement, in line."""
        return [job for job in self._base.waiting() if job.uid not in self._accounts.placed]

    def _in_order(self) -> tuple[Pending, ...]:
        return tuple(self._pending[job.uid] for job in self._waiting())

    def _timed_pendings(self) -> tuple[Pending, ...]:
        """Why each job waits that has no placement, and until when."""
        pending = self._in_order()
        if not pending or not self._rules.times or self._rules == Rules():
            return pending
        view, reserved = self._accounts.view(), self._rules.reservations > 0
        hurried = self._rules.limits != IntakeLimits()  # else times may take theirs, and nobody is told old ones
        etas = self._executor.times.recent(each.job for each in pending) if hurried else None
        if etas is None:
            none: dict[str, Eta] = {}
            work = partial(expected_starts, view, pending, reserve=reserved, order=self._order)
            etas = self._stage("etas", work, none, "no times are told")
            if hurried:
                self._executor.times.note(etas, (each.job for each in pending), self._stages["etas"])
        return tuple(replace(each, eta=etas[each.job]) if each.job in etas else each for each in pending)

    def _named(self, stop: Stop) -> Stop:
        """A stop names whom it is for: where the policy did not, the first who waits for it."""
        return stop if stop.beneficiary else replace(stop, beneficiary=self._accounts.awaited()[stop.job][0])

    def _move(self, uid: str, by: str) -> Move:
        placement, held = self._accounts.placed[uid], self._accounts.jobs[uid].placement
        same = held is not None and (held.gpus, held.gpu_type) == (placement.gpus, placement.gpu_type)
        starting = [other for other in self._accounts.awaited().get(uid, ()) if other not in self._moves]
        cause = StopCause.MOVED if same else StopCause.RESIZED
        return Move(placement, by, cause, starting[0] if by == ROOM and starting else "")

    def _stage(self, name: str, work: Callable[[], T], otherwise: T, instead: str) -> T:
        """Do something that may fail, within the deadline of a policy."""
        began = time.perf_counter()
        try:
            return self._executor.timed(name, work, self._choice.deadline_seconds)
        except PolicyFailure as failure:
            jobs = tuple(job.uid for job in self._base.waiting()[:1])
            self._fallbacks.append(Fallback(name, failure.reason, str(failure), jobs, instead, failure.kind))
            return otherwise
        finally:
            self._stages[name] = self._stages.get(name, 0.0) + time.perf_counter() - began


def _yielded(stop: Stop) -> Stop:
    """A policy's own stop: whatever it says, it is neither a matter of priority nor of guarantees."""
    return replace(stop, cause=StopCause.YIELDED)


def _by_policy(waiting: Iterable[Job], default: str) -> dict[str, list[Job]]:
    groups: dict[str, list[Job]] = {}
    for job in waiting:
        groups.setdefault(job.policy or default, []).append(job)
    return groups
