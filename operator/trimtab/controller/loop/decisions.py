"""What a round decides: who is asked, whether there is anything new to decide, and what becomes of the answers."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import structlog
from msgspec import Struct
from msgspec.structs import replace

from trimtab.apply.transitions import JobEvent
from trimtab.controller.event_recorder import EventRecorder
from trimtab.controller.jobs.evictions import Evictions
from trimtab.controller.jobs.gangs import Gangs
from trimtab.controller.loop.choosing import Choosing
from trimtab.controller.loop.monitor import Monitor
from trimtab.controller.loop.shadow import ShadowMode
from trimtab.decide.engine import Engine
from trimtab.decide.rules import rules_of
from trimtab.observe.node_usage import Claim
from trimtab.observe.snapshot import Observation
from trimtab.settings import Settings
from trimtab.telemetry import metrics
from trimtab_policy.placement.running_columns import running_columns
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.isolation import Isolated
from trimtab_policy.scheduling.reservations import Reservation
from trimtab_policy.scheduling.results import Fallback, Move, Outcome
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.types import Doubt, DoubtReason, Job, Node, PendingReason, Snapshot

REVIEW_SECONDS = 300.0
"""A decision that leaves jobs waiting is made anew so often though nothing has changed: age alone may change an answer.
The simulator's engine asks policies as often (`sim.engine.Rules.heartbeat`)."""
DOUBT_SECONDS = 6 * 3600.0
"""A doubt that is about the whole cluster is told again after so long at the earliest."""

log = structlog.get_logger(__name__)


class RoundDecision(Struct, frozen=True):
    """A round's decision: on what, by whom, and how it came out."""

    observation: Observation
    choice: Choice
    rules: Rules
    outcome: Outcome
    explained: Callable[[], Outcome]
    """The outcome with what those that wait are told (`engine.Decided`)."""


class Decisions:
    """Asks policies about what waits, and hands every answer to the job's driver."""

    def __init__(
        self,
        choosing: Choosing,
        engine: Engine,
        shadow: ShadowMode,
        gangs: Gangs,
        recorder: EventRecorder,
        successions: Evictions,
        settings: Settings,
        correct: Callable[[Observation], Observation] = lambda observation: observation,
        monitor: Monitor | None = None,
    ) -> None:
        """`correct` says what is known of the predictions' errors, `monitor` whether the policy is good enough here."""
        self._choosing = choosing
        self._engine = engine
        self._shadow = shadow
        self._gangs = gangs
        self._recorder = recorder
        self._successions = successions
        self._settings = settings
        self._correct = correct
        self._monitor = monitor
        self._last: tuple[Snapshot, Choice] | None = None
        self.reserved: tuple[Reservation, ...] = ()
        """What the decision that stands keeps for jobs that wait."""
        self._resized = -math.inf
        """When resizes were considered last."""
        self._doubted: set[tuple[str, DoubtReason, str]] = set()
        """Policy, reason and job of the doubts that were told."""
        self._cluster_doubted: dict[str, float] = {}
        """Policy -> when it was told last that it doubts the cluster, as a POSIX time."""

    async def choose(self) -> Choice:
        """Who decides in this round; to be called before the cluster is looked at, for it may take a while."""
        choice = await self._choosing.look()
        self._shadow.use(choice.shadow)
        return self._monitor.decides(choice) if self._monitor else choice

    def watch(self, observation: Observation) -> None:
        """Have the policy compared with its fallback, where that is due; to be called when all is on its way."""
        if self._monitor:
            self._monitor.watch(observation, self._choosing.choice)

    async def decide(self, observation: Observation, choice: Choice) -> RoundDecision | None:
        """Decide about all jobs that wait; None where the last decision still stands."""
        for pending in observation.refused.values():
            self._gangs.explain(pending)
        observation = self._correct(observation)
        snapshot = observation.snapshot
        waiting, due = snapshot.waiting(), self._resizes_due(snapshot)
        if not due and (not waiting or self._stands(snapshot, choice, waiting)):
            return None
        rules = rules_of(self._settings, self._successions.being_stopped(observation), resize=due, live=True)
        outcome, explained = await asyncio.to_thread(self._engine.begin, snapshot, choice, rules)
        self._last, self.reserved = (snapshot, choice), outcome.reserved
        self._resized = snapshot.time if due else self._resized
        _tell_figures(outcome)
        self._successions.note(observation, outcome)
        self._tell_failures(outcome, observation)
        self._tell_doubts(outcome, observation)
        return RoundDecision(observation, choice, rules, outcome, explained)

    async def explain(self, decided: RoundDecision) -> None:
        """Tell those that wait why, what would help and until when; to be called when placements are on their way, for
        on a large cluster it takes as long as the decision itself."""
        before, told = decided.outcome, await asyncio.to_thread(decided.explained)
        _tell_stages(told.stages, before.stages)
        news = told.fallbacks[len(before.fallbacks) :]
        _tell_fallbacks(news)
        self._tell_failures(
            replace(told, fallbacks=news, isolated=told.isolated[len(before.isolated) :]), decided.observation
        )
        for pending in told.pending:
            self._gangs.explain(pending)
        self._gangs.look_at([pending.job for pending in told.pending])

    def _tell_failures(self, outcome: Outcome, observation: Observation) -> None:
        """Tell jobs whose policy has failed, and those that decisions are made without."""
        for fallback in outcome.fallbacks:
            self._tell(fallback, observation)
        for isolated in outcome.isolated:
            self._tell_isolated(isolated, observation)

    def shadow(self, decided: RoundDecision) -> None:
        """Have the shadow policy asked the same; to be called when the decision is on its way."""
        if decided.outcome.policies:
            self._shadow.ask(decided.observation, decided.outcome, decided.rules)

    def move(self, observation: Observation, move: Move) -> None:
        """Have a running gang go on elsewhere, though no policy has said so; before `carry_out`."""
        self._successions.move(observation, move)

    def promised(self) -> list[Claim]:
        """What was decided and no status shows yet."""
        return [*self._gangs.promised(), *self._successions.claims()]

    def carry_out(self, observation: Observation) -> None:
        """Have those asked to stop whom plans wait for; to be called in every round."""
        self._successions.carry_out(observation)

    def next_deadline(self, snapshot: Snapshot) -> float:
        """Seconds until another decision may come out otherwise though nothing happens: a gang may be moved from then
        on, or resizes are due."""
        now, running = snapshot.time, running_columns(snapshot)
        touchable = running.touchable_from
        movable = float(touchable[touchable > now].min(initial=math.inf)) - now
        elastic = any(job.preemptible for job in running.jobs)
        return min(movable, self._resized + self._settings.elasticity.interval_seconds - now if elastic else math.inf)

    def _stands(self, snapshot: Snapshot, choice: Choice, waiting: Iterable[Job]) -> bool:
        """Whether the last decision answers these jobs still."""
        if self._last is None or snapshot.time - self._last[0].time >= REVIEW_SECONDS:
            return False
        if not self._gangs.answered(job.uid for job in waiting):
            return False
        before, now = self._last[0].time, snapshot.time
        touchable = running_columns(snapshot).touchable_from
        freed = bool(((before < touchable) & (touchable <= now)).any())
        return not freed and _same(snapshot, self._last[0]) and choice == self._last[1]

    def _resizes_due(self, snapshot: Snapshot) -> bool:
        if snapshot.time - self._resized < self._settings.elasticity.interval_seconds:
            return False
        return any(job.preemptible and job.placement for job in snapshot.jobs)

    def _tell(self, fallback: Fallback, observation: Observation) -> None:
        """Tell the jobs that a policy has failed for."""
        log.warning("policy failed", policy=fallback.policy, reason=fallback.reason, error=fallback.message)
        for facts in (observation.jobs[uid] for uid in fallback.jobs if uid in observation.jobs):
            message = f"policy {fallback.policy} failed, {fallback.instead}: {fallback.message}"
            happening = JobEvent("Warning", "PolicyFallback", message, facts.status.last_epoch or 0)
            self._recorder.job(facts.meta, happening)

    def _tell_doubts(self, outcome: Outcome, observation: Observation) -> None:
        """Tell of what a policy decided without what it has learned: each job once, and what is about the cluster once
        for all jobs, for it would be told on every one that waits."""
        self._doubted = {told for told in self._doubted if told[2] in observation.jobs}
        for policy, doubts in outcome.doubts.items():
            for doubt in doubts:
                if doubt.reason is DoubtReason.CLUSTER_OUT_OF_TRAINING:
                    continue
                for facts in (observation.jobs[uid] for uid in doubt.jobs if uid in observation.jobs):
                    told = policy, doubt.reason, facts.meta.uid
                    if told not in self._doubted:  # its message may name other figures in each round
                        self._doubted.add(told)
                        self._recorder.job(facts.meta, _doubt(f"policy {policy}: {doubt.message}"))
            about = [doubt for doubt in doubts if doubt.reason is DoubtReason.CLUSTER_OUT_OF_TRAINING]
            if about:
                self._tell_cluster_doubt(policy, about, observation)

    def _tell_cluster_doubt(self, policy: str, doubts: Sequence[Doubt], observation: Observation) -> None:
        """On the ConfigMap that chooses the policy; where there is none, on one of the jobs."""
        now = observation.snapshot.time
        if now - self._cluster_doubted.get(policy, -math.inf) < DOUBT_SECONDS:
            return
        jobs = [uid for doubt in doubts for uid in doubt.jobs if uid in observation.jobs]
        if not jobs:
            return
        self._cluster_doubted[policy] = now
        message = f"policy {policy}: {doubts[0].message}; jobs decided about so: {len(jobs)}"
        log.info("PolicyDoubt", policy=policy, message=message)
        if about := self._choosing.told_on:
            self._recorder.choice(about, _doubt(message))
        else:
            self._recorder.job(observation.jobs[min(jobs)].meta, _doubt(message))

    def _tell_isolated(self, isolated: Isolated, observation: Observation) -> None:
        """Tell a job that decisions are made without it. One that waits has it in its condition, too."""
        facts = observation.jobs.get(isolated.job)
        if facts is None:
            return
        happening = JobEvent(
            "Warning", PendingReason.DECISION_FAILED, isolated.pending().message, facts.status.last_epoch or 0
        )
        self._recorder.job(facts.meta, happening)


def _doubt(message: str) -> JobEvent:
    return JobEvent("Normal", "PolicyDoubt", message, 0)


def _same(snapshot: Snapshot, before: Snapshot) -> bool:
    """Whether a policy would see nothing new but the time."""
    return (
        _same_nodes(snapshot.nodes, before.nodes)
        and _same_jobs(snapshot.jobs, before.jobs)
        and snapshot.quotas == before.quotas
        and snapshot.weights == before.weights
        and snapshot.unavailable == before.unavailable
    )


def _same_jobs(jobs: Sequence[Job], before: Sequence[Job]) -> bool:
    """The same but for the progress of those that run, which a policy need not hear of at every report."""
    return len(jobs) == len(before) and all(
        new is old or new == old or _as_expected(new, old) for new, old in zip(jobs, before, strict=True)
    )


def _as_expected(new: Job, old: Job) -> bool:
    """Whether a running job differs in what it has done only, and is expected to end when it was."""
    if not new.placement or (new.expected_finish is None) != (old.expected_finish is None):
        return False
    moved = abs((new.expected_finish or 0.0) - (old.expected_finish or 0.0))
    same = replace(
        new,
        steps_done=old.steps_done,
        expected_finish=old.expected_finish,
        lost_seconds=old.lost_seconds,
        served=old.served,
    )
    return same == old and moved <= REVIEW_SECONDS


def _same_nodes(nodes: Sequence[Node], before: Sequence[Node]) -> bool:
    """The same but for readings, which always change a little: who looks at them sees them with other news."""
    return len(nodes) == len(before) and all(
        new is old or replace(new, readings=None) == replace(old, readings=None)
        for new, old in zip(nodes, before, strict=True)
    )


def _tell_stages(stages: Mapping[str, float], before: Mapping[str, float] = MappingProxyType({})) -> None:
    """What the stages took, those left out that have been told of `before`."""
    for stage in stages.keys() - before.keys():
        metrics.DECISION_STAGE_SECONDS.labels(stage).observe(stages[stage])


def _tell_fallbacks(fallbacks: Iterable[Fallback]) -> None:
    for fallback in fallbacks:
        metrics.POLICY_FALLBACKS.labels(fallback.policy, fallback.reason).inc()


def _tell_figures(outcome: Outcome) -> None:
    for policy, seconds in outcome.seconds.items():
        metrics.DECISION_SECONDS.labels(policy).observe(seconds)
    _tell_stages(outcome.stages)
    for placement in outcome.placements:
        metrics.DECISIONS.labels(outcome.policies[placement.job], "placed").inc()
    for pending in outcome.pending:
        metrics.DECISIONS.labels(outcome.policies[pending.job], "pending").inc()
    for refusal in outcome.refused:
        metrics.SHIELD_REJECTIONS.labels(refusal.rule).inc()
        log.warning("DecisionRefused", job=refusal.job, rule=refusal.rule, message=refusal.message)
    _tell_fallbacks(outcome.fallbacks)
    for policy, doubts in outcome.doubts.items():
        for doubt in doubts:
            metrics.POLICY_DOUBTS.labels(policy, doubt.reason).inc(len(doubt.jobs))
    isolated: Counter[tuple[str, ...]] = Counter((each.part,) for each in outcome.isolated)
    metrics.replace(metrics.ISOLATED_JOBS, isolated)
