"""What a round decides: who is asked, whether there is anything new to decide, and what becomes of the answers."""

from __future__ import annotations

import asyncio

import structlog
from msgspec import Struct

from trimtab.apply.transitions import Happening
from trimtab.controller.choosing import Choosing
from trimtab.controller.gangs import Gangs
from trimtab.controller.recorder import Recorder
from trimtab.controller.shadow import ShadowMode
from trimtab.decide.choice import Choice
from trimtab.decide.engine import Engine, Fallback, Outcome
from trimtab.observe.snapshot import Observation
from trimtab.telemetry import metrics
from trimtab_policy.types import Snapshot

REVIEW_SECONDS = 300.0
"""A decision that leaves jobs waiting is made anew so often though nothing has changed: age alone may change an answer.
The simulator's engine asks policies as often (`sim.engine.Rules.heartbeat`)."""

log = structlog.get_logger(__name__)


class Decided(Struct, frozen=True):
    """A round's decision: on what, by whom, and how it came out."""

    observation: Observation
    choice: Choice
    outcome: Outcome


class Decisions:
    """Asks policies about what waits, and hands every answer to the job's driver."""

    def __init__(
        self, choosing: Choosing, engine: Engine, shadow: ShadowMode, gangs: Gangs, recorder: Recorder
    ) -> None:
        self._choosing = choosing
        self._engine = engine
        self._shadow = shadow
        self._gangs = gangs
        self._recorder = recorder
        self._last: tuple[Snapshot, Choice] | None = None

    async def choose(self) -> Choice:
        """Who decides in this round; to be called before the cluster is looked at, for it may take a while."""
        choice = await self._choosing.look()
        self._shadow.use(choice.shadow)
        return choice

    async def decide(self, observation: Observation, choice: Choice) -> Decided | None:
        """Decide about all jobs that wait; None where the last decision still stands."""
        for pending in observation.refused.values():
            self._gangs.explain(pending)
        snapshot = observation.snapshot
        waiting = snapshot.waiting()
        if not waiting or (self._stands(snapshot, choice) and self._gangs.answered(job.uid for job in waiting)):
            return None
        outcome = await asyncio.to_thread(self._engine.decide, snapshot, choice)
        self._last = snapshot, choice
        _count(outcome)
        for placement in outcome.placements:
            facts = observation.jobs[placement.job]
            self._gangs.promise(facts, placement, outcome.policies[placement.job])
        for pending in outcome.pending:
            self._gangs.explain(pending)
        for fallback in outcome.fallbacks:
            self._tell(fallback, observation)
        return Decided(observation, choice, outcome)

    def shadow(self, decided: Decided) -> None:
        """Have the shadow policy asked the same; to be called when the decision is on its way."""
        self._shadow.ask(decided.observation, decided.outcome)

    def _stands(self, snapshot: Snapshot, choice: Choice) -> bool:
        if self._last is None or snapshot.time - self._last[0].time >= REVIEW_SECONDS:
            return False
        return _same(snapshot, self._last[0]) and choice == self._last[1]

    def _tell(self, fallback: Fallback, observation: Observation) -> None:
        """Tell the jobs that a policy has failed for."""
        log.warning("policy failed", policy=fallback.policy, reason=fallback.reason, error=fallback.message)
        for uid in fallback.jobs:
            facts = observation.jobs[uid]
            message = f"policy {fallback.policy} failed, another one decided: {fallback.message}"
            happening = Happening("Warning", "PolicyFallback", message, facts.status.last_epoch or 0)
            self._recorder.job(facts.meta, happening)


def _same(snapshot: Snapshot, before: Snapshot) -> bool:
    """Whether a policy would see nothing new but the time."""
    return (
        snapshot.nodes == before.nodes
        and snapshot.jobs == before.jobs
        and snapshot.quotas == before.quotas
        and snapshot.unavailable == before.unavailable
    )


def _count(outcome: Outcome) -> None:
    for policy, seconds in outcome.seconds.items():
        metrics.DECISION_SECONDS.labels(policy).observe(seconds)
    for placement in outcome.placements:
        metrics.DECISIONS.labels(outcome.policies[placement.job], "placed").inc()
    for pending in outcome.pending:
        metrics.DECISIONS.labels(outcome.policies[pending.job], "pending").inc()
    for refusal in outcome.refused:
        metrics.SHIELD_REJECTIONS.labels(refusal.rule).inc()
    for fallback in outcome.fallbacks:
        metrics.POLICY_FALLBACKS.labels(fallback.policy, fallback.reason).inc()
