"""Shadow mode: a second policy is asked what the first one was asked, and what it would have done is written down.

It is asked after the decision was handed to the drivers, in a process of its own, one round at a time; rounds that come
while it thinks, or sits out a failure, are skipped and counted. Nothing waits for it, and nothing reads its answer but
people: it goes into `status.shadow`, the log and metrics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from msgspec import structs

from trimtab.api.convert import to_shadow
from trimtab.controller.gangs import Gangs
from trimtab.controller.views import Watched
from trimtab.decide.compare import Difference, compare
from trimtab.decide.engine import Outcome
from trimtab.decide.remote import RemoteEngine
from trimtab.errors import PolicyError
from trimtab.kube.backoff import Backoff
from trimtab.observe.snapshot import Observation
from trimtab.settings import Settings
from trimtab.telemetry import metrics
from trimtab_policy.types import PendingReason, Snapshot

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""After a failure, which costs a new process."""

log = structlog.get_logger(__name__)


class ShadowMode:
    """Asks the shadow policy, and tells what it says. `wake` lets a round come that writes it down."""

    def __init__(self, engine: RemoteEngine, gangs: Gangs, settings: Settings, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._gangs = gangs
        self._wake = wake
        self._seconds = settings.policy.shadow_deadline_seconds
        self._speedup = settings.fake.speedup if settings.fake.enabled else 1.0
        self._backoff = Backoff(PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._failed = ""
        """The policy that failed last, if it has not answered since ..."""
        self._resumes = 0.0
        """... and when it is asked again."""
        self._task: asyncio.Task[None] | None = None

    def ask(self, policy: str, observation: Observation, outcome: Outcome) -> None:
        """Ask in the background what the policy would have made of this round; without one, end its process."""
        if self._task and not self._task.done():
            metrics.SHADOW_SKIPPED.labels("busy").inc()
        elif not policy and self._engine.started:
            self._task = asyncio.create_task(self._engine.stop(), name="shadow")
        elif not policy:
            return
        elif policy == self._failed and time.monotonic() < self._resumes:
            metrics.SHADOW_SKIPPED.labels("failed").inc()
        else:
            self._task = asyncio.create_task(self._watch(policy, observation, outcome), name="shadow")

    async def stop(self) -> None:
        """End what is under way, and the process."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._engine.stop()

    async def _watch(self, policy: str, observation: Observation, real: Outcome) -> None:
        try:
            answer = await self._engine.decide(policy, _unpinned(observation.snapshot), self._seconds)
            self._compare(policy, observation, real, answer)
            self._failed = ""
        except PolicyError as failure:
            reason, _, message = str(failure).partition(": ")
            self._fail(policy, reason, message)
        except Exception:  # a mistake of ours in watching must not become one in deciding
            log.exception("the shadow policy's answer cannot be used: this is a bug, please report it")
            self._fail(policy, "bug", "see the traceback")

    def _fail(self, policy: str, reason: str, message: str) -> None:
        if policy != self._failed:
            self._backoff.reset()
        pause = self._backoff.next()
        self._failed, self._resumes = policy, time.monotonic() + pause
        metrics.SHADOW_FAILURES.labels(policy, reason).inc()
        log.warning("shadow policy failed", policy=policy, reason=reason, error=message, pause=pause)

    def _compare(self, policy: str, observation: Observation, real: Outcome, answer: Outcome) -> None:
        metrics.SHADOW_SECONDS.labels(policy).observe(answer.seconds.get(policy, 0.0))
        for refusal in answer.refused:
            metrics.SHADOW_FAILURES.labels(policy, "refused").inc()
            log.warning("shadow policy broke a rule", policy=policy, rule=refusal.rule, error=refusal.message)
        for difference in compare(real, answer):
            metrics.SHADOW_ANSWERS.labels(policy, difference.agreement.value).inc()
            if difference.seconds is not None:
                metrics.SHADOW_DIFFERENCE.labels(policy).observe(difference.seconds)
            self._note(policy, observation, difference)
        self._wake()

    def _note(self, policy: str, observation: Observation, difference: Difference) -> None:
        facts = observation.jobs[difference.job]
        waits = difference.pending.reason if difference.pending else PendingReason.DECISION_REFUSED
        shadow = to_shadow(
            policy,
            difference.placement or waits,
            now=datetime.fromtimestamp(int(observation.snapshot.time), UTC),
            difference_seconds=difference.seconds,
            speedup=self._speedup,
        )
        epoch = (facts.status.last_epoch or 0) + 1 if difference.starts else None
        if self._gangs.watch(difference.job, Watched(shadow, epoch)):
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
