"""Who makes room for whom: gangs are asked to stop for what is planned, and for nothing else.

A job that gets GPUs which others still hold is planned first, and its plan says whom it waits for (`plan.waitsFor`).
From then on these are asked to stop, in every round anew, because that plan says so: a controller that is killed right
after the plan was written loses nothing. Nor does one that wakes up to find the plan given up: whom nobody waits for
any more is told to go on. A gang that moves for its own good is asked at once, with its next plan.

All that is remembered is where gangs move to, until their statuses say so. Lost by a restart, such a gang stops for
whoever waits for it, and is planned anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from trimtab.api.convert import from_grants, to_grants
from trimtab.api.history import StopRecord
from trimtab.api.status import Leaving, PlanTerms
from trimtab.apply.stops import StopOrder
from trimtab.controller.jobs.gangs import Gangs
from trimtab.controller.views import PlannedPlacement, Views
from trimtab.observe.jobs import JobFacts
from trimtab.observe.kept import Each
from trimtab.observe.node_usage import Claim
from trimtab.observe.running import GAVE_WAY, HOUR, gave_way
from trimtab.observe.snapshot import Observation
from trimtab.telemetry import metrics
from trimtab_policy.placement.grants import granted
from trimtab_policy.scheduling.results import Move, Outcome
from trimtab_policy.types import Grant, Job, StopCause


class Moving(Struct, frozen=True):
    """A gang that is to go on elsewhere."""

    move: Move
    digest: str
    """Of its job's identity."""
    epoch: int
    """Of the plan that ends."""
    generation: int
    """Of the spec that the move was decided for."""
    terms: PlanTerms
    waits_for: tuple[Leaving, ...]

    def claim(self) -> Claim:
        """What it is about to have."""
        after = *((left.digest, left.epoch) for left in self.waits_for if left.digest), (self.digest, self.epoch)
        return Claim(self.move.placement.job, self.epoch + 1, self.move.placement, after, to_grants(self.terms))


class Evictions:
    """Carries what is decided about running gangs to their drivers."""

    def __init__(self, gangs: Gangs, views: Views) -> None:
        self._gangs = gangs
        self._views = views
        self._moving: dict[str, Moving] = {}
        self._doubtful: set[str] = set()
        """UIDs of gangs that move for a job which was neither promised nor planned when it was looked for last: it may
        have been on its way from the one to the other."""
        self._reasons: dict[tuple[str, int], str] = {}
        """UID and epoch of a gang -> why it gives way, as the decision says it."""
        self._ordered: dict[str, int] = {}
        """UID -> epoch of the plan that was ordered to stop."""
        self._told: dict[str, tuple[StopRecord, ...]] = {}
        """UID -> its requests to stop, as they were seen last."""
        self._waiting: Each[tuple[Leaving, ...]] = Each()
        self._asked: Each[bool] = Each()
        self._stops: Each[tuple[StopRecord, ...]] = Each()

    def being_stopped(self, observation: Observation) -> int:
        """Gangs that were asked to stop for others and have not done so."""
        return len(self._asked_to_stop(observation))

    def _asked_to_stop(self, observation: Observation) -> Collection[str]:
        """Their UIDs."""
        return self._asked.of(
            observation.jobs, lambda facts: bool((stop := facts.status.stop) and stop.beneficiary) or None
        )

    def claims(self) -> list[Claim]:
        """Where gangs move to, as far as no status says so."""
        return [moving.claim() for moving in self._moving.values()]

    def note(self, observation: Observation, outcome: Outcome) -> None:
        """Give the waiting jobs of a decision their placements, and note whom they wait for and who moves."""
        causes = {stop.job: stop.cause for stop in outcome.stops}
        causes |= {move.placement.job: move.cause for move in outcome.moves}
        jobs, shown = observation.jobs, {job.uid: job for job in observation.snapshot.jobs}
        for placement in outcome.placements:
            facts = jobs[placement.job]
            waits_for = _named(jobs, outcome.waits.get(placement.job, ()), causes)
            terms = terms_of(facts, shown[placement.job], outcome.grants.get(placement.job, ()))
            self._gangs.promise(facts, PlannedPlacement(placement, outcome.policies[placement.job], terms), waits_for)
        for move in outcome.moves:
            uid = move.placement.job
            waits_for = _named(jobs, outcome.waits.get(uid, ()), causes)
            self._move(jobs[uid], shown[uid], move, outcome.grants.get(uid, ()), waits_for)
        for stop in outcome.stops:
            if plan := jobs[stop.job].status.plan:
                self._reasons[stop.job, plan.epoch] = stop.reason

    def move(self, observation: Observation, move: Move) -> None:
        """Have a running gang go on elsewhere, where all is free."""
        uid = move.placement.job
        job = next(job for job in observation.snapshot.jobs if job.uid == uid)
        grants = granted(observation.snapshot, [move.placement])
        self._move(observation.jobs[uid], job, move, grants[uid])

    def _move(
        self, facts: JobFacts, job: Job, move: Move, grants: Sequence[Grant], waits_for: tuple[Leaving, ...] = ()
    ) -> None:
        """`waits_for` are others that must be gone there."""
        if plan := facts.status.plan:
            terms = terms_of(facts, job, grants)
            digest, generation = facts.meta.identity.digest, facts.meta.generation
            self._moving[job.uid] = Moving(move, digest, plan.epoch, generation, terms, waits_for)

    def carry_out(self, observation: Observation) -> None:
        """Order the stops that plans wait for, and take back those that none does."""
        jobs = observation.jobs
        waiting = self._waiting.of(jobs, lambda facts: _waits_for(facts) or None)
        asked = self._asked_to_stop(observation)
        stops = self._stops.of(jobs, lambda facts: facts.status.stops)
        waited = dict(_waited_for(jobs, waiting))
        self._forget(observation, waited)
        orders = {uid: self._order(observation.jobs[uid], *why) for uid, why in waited.items()}
        orders |= {uid: order for uid in self._moving if (order := self._moves(observation, uid, waited))}
        for uid, order in orders.items():
            if observation.jobs[uid].status.stop is None:
                self._gangs.order_stop(uid, order)
        for uid, epoch in self._no_more_wanted(observation, asked, orders.keys()):
            self._gangs.withdraw_stop(uid, epoch)
        self._ordered = {uid: order.epoch for uid, order in orders.items()}
        if self._told is not stops:
            self._count(stops)

    def _order(self, facts: JobFacts, cause: StopCause, beneficiary: str) -> StopOrder:
        assert facts.status.plan
        epoch = facts.status.plan.epoch
        message = self._reasons.get((facts.meta.uid, epoch)) or f"{beneficiary} gets its GPUs"
        return StopOrder(epoch=epoch, cause=cause, message=message, beneficiary=beneficiary)

    def _moves(self, observation: Observation, uid: str, waited: dict[str, tuple[StopCause, str]]) -> StopOrder | None:
        """The order of a gang that moves; None where it would move for somebody who is not planned yet."""
        moving, facts = self._moving[uid], observation.jobs[uid]
        move = moving.move
        if move.beneficiary and uid not in waited:
            return None
        decided = PlannedPlacement(move.placement, move.policy, moving.terms)
        return StopOrder(
            epoch=moving.epoch,
            cause=move.cause,
            message=move.placement.reason,
            beneficiary=waited[uid][1] if move.beneficiary else "",
            successor=self._views.next_plan(facts, decided, moving.waits_for),
        )

    def _forget(self, observation: Observation, waited: dict[str, tuple[StopCause, str]]) -> None:
        """Drop what has become visible, or void."""
        self._moving = {
            uid: moving
            for uid, moving in self._moving.items()
            if (facts := observation.jobs.get(uid)) and _stands(facts, moving)
        }
        wanted = {"", *(claim.job for claim in self._gangs.promised())}
        alone = {uid for uid, moving in self._moving.items() if moving.move.beneficiary not in wanted} - waited.keys()
        for uid in alone & self._doubtful:
            del self._moving[uid]
        self._doubtful = alone
        plans = ((uid, epoch, observation.jobs.get(uid)) for uid, epoch in self._reasons)
        standing = {(uid, epoch) for uid, epoch, f in plans if f and f.status.plan and f.status.plan.epoch == epoch}
        self._reasons = {key: why for key, why in self._reasons.items() if key in standing}

    def _no_more_wanted(
        self, observation: Observation, asked: Iterable[str], wanted: Collection[str]
    ) -> Iterator[tuple[str, int]]:
        """Gangs that were `asked`, or are about to be, for somebody who needs that no more."""
        for uid in dict.fromkeys((*asked, *self._ordered)):
            facts = observation.jobs.get(uid)
            plan = facts.status.plan if facts else None
            if uid in wanted or facts is None or plan is None:
                continue
            stop = facts.status.stop
            if (stop and stop.beneficiary) or (stop is None and self._ordered.get(uid) == plan.epoch):
                yield uid, plan.epoch

    def _count(self, told: dict[str, tuple[StopRecord, ...]]) -> None:
        """Count the stops that have become visible, and those of gangs that had given way within the hour before."""
        for uid, stops in told.items():
            known = self._told.get(uid, stops)  # what a controller before us has seen is not news
            if stops is known:
                continue
            seen = {(stop.epoch, stop.time) for stop in known}  # what a restart took is added to its record later
            for number, stop in enumerate(stops):
                if (stop.epoch, stop.time) in seen or stop.cause not in GAVE_WAY:
                    continue
                metrics.PREEMPTIONS.labels(stop.cause.value).inc()
                if gave_way(stop) and any(gave_way(s) and _seconds(stop) - _seconds(s) < HOUR for s in stops[:number]):
                    metrics.REPEATED_PREEMPTIONS.inc()
        self._told = told


def terms_of(facts: JobFacts, job: Job, grants: Sequence[Grant]) -> PlanTerms:
    """What holds for the next gang of the job until its end: what is true of it in this decision."""
    need, spec = facts.requirements, facts.spec
    return PlanTerms(
        queue=job.queue,
        priority_class=(spec.priority_class_name if spec else None) or "",
        priority=job.priority,
        cpu_millis_per_gpu=need.cpu_milli_per_gpu if need else 0,
        memory_bytes_per_gpu=need.memory_per_gpu if need else 0,
        grants=from_grants(grants),
    )


def _seconds(stop: StopRecord) -> float:
    return stop.time.timestamp()


def _named(jobs: Mapping[str, JobFacts], uids: Iterable[str], causes: Mapping[str, StopCause]) -> tuple[Leaving, ...]:
    """Gangs of these jobs, as plans name those that they wait for."""
    planned = ((jobs[uid].meta.identity, jobs[uid].status.plan) for uid in uids)
    return tuple(
        Leaving(job=job.key, digest=job.digest, epoch=plan.epoch, cause=causes[job.uid])
        for job, plan in planned
        if plan
    )


def _stands(facts: JobFacts, moving: Moving) -> bool:
    """Whether the gang can still be asked to move as it was decided."""
    plan = facts.status.plan
    return (
        plan is not None
        and plan.epoch == moving.epoch
        and facts.meta.generation == moving.generation
        and facts.status.stop is None
        and not (facts.suspended or facts.finished)
    )


def _waited_for(
    jobs: Mapping[str, JobFacts], waiting: Mapping[str, tuple[Leaving, ...]]
) -> Iterator[tuple[str, tuple[StopCause, str]]]:
    """UID of a running gang that a plan waits for -> why it is to stop, and for whom (`namespace/name`)."""
    if not waiting:
        return
    by_digest = {facts.meta.identity.digest: facts for facts in jobs.values() if facts.holds_gpus}
    for uid, named in waiting.items():
        for left in named:
            other = by_digest.get(left.digest or "")
            plan = other.status.plan if other else None
            if other and plan and plan.epoch <= left.epoch:
                yield other.meta.uid, (left.cause, jobs[uid].meta.key)


def _waits_for(facts: JobFacts) -> tuple[Leaving, ...]:
    """Gangs that are to make room for the job's plan, or for the next one."""
    plan, stop = facts.status.plan, facts.status.stop
    if plan is None or facts.finished or facts.suspended:
        return ()
    if stop:  # a plan that ends waits for nobody any more
        return (stop.successor.waits_for if stop.successor else None) or ()
    return plan.waits_for or ()
