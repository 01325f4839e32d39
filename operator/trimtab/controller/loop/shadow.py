"""Shadow mode: a second policy is asked what the first one was asked, and what it would have done is written down.

It is asked after the decision was handed to the drivers, in a process of its own, one round at a time. While it thinks,
the latest round waits; those before that, and those that come while it sits out a failure, are skipped and counted.
Nothing waits for it, and nothing reads its answer but people: it goes into `status.shadow`, the log and metrics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from msgspec import structs

from trimtab.api.convert import to_shadow
from trimtab.controller.jobs.gangs import Gangs
from trimtab.controller.views import ShadowDecision
from trimtab.decide.remote import RemoteEngine
from trimtab.decide.trial import trial
from trimtab.errors import PolicyError
from trimtab.kube.backoff import Backoff
from trimtab.observe.snapshot import Observation
from trimtab.settings import Settings
from trimtab.telemetry import metrics
from trimtab_policy.scheduling.comparison import Difference, compare
from trimtab_policy.scheduling.results import Outcome
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.types import PendingReason, Snapshot

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""After a failure, which costs a new process."""

log = structlog.get_logger(__name__)


class ShadowMode:
    """Asks the shadow policy, and tells what it says. `wake` lets a round come that writes it down.

    It has one thing to do at a time: to try a policy, to ask it, or to end its process.
    """

    def __init__(self, engine: RemoteEngine, gangs: Gangs, settings: Settings, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._gangs = gangs
        self._wake = wake
        self._seconds = settings.policy.shadow_deadline_seconds
        self._speedup = settings.fake.speedup if settings.fake.enabled else 1.0
        self._backoff = Backoff(PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._policy = ""
        self._next: tuple[Observation, Outcome, Rules] | None = None
        """The latest round that it has not been asked about."""
        self._failed = ""
        """The policy that failed last, if it has not answered since ..."""
        self._resumes = 0.0
        """... and when it is asked again."""
        self._task: asyncio.Task[None] | None = None

    def use(self, policy: str) -> None:
        """Let this be the shadow policy from now on, empty for none. It is tried at once, so that its process is there
        when a round asks; what an earlier one is still at is given up."""
        if policy != self._policy:
            self._policy, before = policy, self._task
            if before:
                before.cancel()
            self._task = asyncio.create_task(self._change(before), name="shadow")

    def ask(self, observation: Observation, outcome: Outcome, rules: Rules) -> None:
        """Ask in the background what the policy, if there is one, would have made of this round."""
        if not self._policy:
            return
        if self._next:
            metrics.SHADOW_SKIPPED.labels("busy").inc()
        self._next = observation, outcome, rules
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="shadow")

    async def stop(self) -> None:
        """End what is under way, and the process."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._engine.stop()

    async def _change(self, before: asyncio.Task[None] | None) -> None:
        """Try the policy that was chosen, or end the process where none was."""
        if before:
            await asyncio.gather(before, return_exceptions=True)
        if self._policy:
            await self._decide(trial())
            await self._work()
        else:
            self._next = None
            await self._engine.stop()

    async def _work(self) -> None:
        """Ask about the latest round until there is no later one."""
        while self._next:
            (observation, real, rules), self._next = self._next, None
            if self._policy == self._failed and time.monotonic() < self._resumes:
                metrics.SHADOW_SKIPPED.labels("failed").inc()
            elif answer := await self._decide(_unpinned(observation.snapshot), rules):
                self._told(observation, real, answer)

    async def _decide(self, snapshot: Snapshot, rules: Rules | None = None) -> Outcome | None:
        try:
            answer = await self._engine.decide(self._policy, snapshot, self._seconds, rules)
        except PolicyError as failure:
            self._fail(failure.reason, str(failure))
            return None
        self._failed = ""
        return answer

    def _fail(self, reason: str, message: str) -> None:
        if self._policy != self._failed:
            self._backoff.reset()
        pause = self._backoff.next()
        self._failed, self._resumes = self._policy, time.monotonic() + pause
        metrics.SHADOW_FAILURES.labels(self._policy, reason).inc()
        log.warning("shadow policy failed", policy=self._policy, reason=reason, error=message, pause=pause)

    def _told(self, observation: Observation, real: Outcome, answer: Outcome) -> None:
        try:
            self._compare(observation, real, answer)
        except Exception:  # a mistake of ours in watching must not become one in deciding
            log.exception("the shadow policy's answer cannot be used: this is a bug, please report it")
            self._fail("bug", "see the traceback")

    def _compare(self, observation: Observation, real: Outcome, answer: Outcome) -> None:
        policy = self._policy
        metrics.SHADOW_SECONDS.labels(policy).observe(answer.seconds.get(policy, 0.0))
        for refusal in answer.refused:
            metrics.SHADOW_FAILURES.labels(policy, "refused").inc()
            log.warning("shadow policy broke a rule", policy=policy, rule=refusal.rule, error=refusal.message)
        for difference in compare(real, answer):
            metrics.SHADOW_ANSWERS.labels(policy, difference.agreement.value).inc()
            if difference.seconds is not None:
                metrics.SHADOW_DIFFERENCE.labels(policy).observe(difference.seconds)
            self._note(observation, difference)
        self._wake()

    def _note(self, observation: Observation, difference: Difference) -> None:
        facts, policy = observation.jobs[difference.job], self._policy
        waits = difference.pending.reason if difference.pending else PendingReason.DECISION_REFUSED
        shadow = to_shadow(
            policy,
            difference.placement or waits,
            now=datetime.fromtimestamp(int(observation.snapshot.time), UTC),
            difference_seconds=difference.seconds,
            speedup=self._speedup,
        )
        epoch = (facts.status.last_epoch or 0) + 1 if difference.starts else None
        if self._gangs.watch(difference.job, ShadowDecision(shadow, epoch)):
            log.info(
                "shadow",
                job=facts.meta.key,
                uid=facts.meta.uid,
                policy=policy,
                agreement=difference.agreement.value,
                would=shadow.summary,
                difference_seconds=difference.seconds,
            )


def _unpinned(snapshot: Snapshot) -> Snapshot:
    """The snapshot without what jobs say about who shall decide: the shadow policy is asked about all of them."""
    jobs = tuple(structs.replace(job, policy=None) if job.policy else job for job in snapshot.jobs)
    return structs.replace(snapshot, jobs=jobs)
