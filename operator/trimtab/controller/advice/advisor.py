"""Tells training jobs of other kinds, where they ask for it, what Trimtab would decide about them.

Level-based: each job that is labelled is looked at when it has changed, and anew every while; what its annotations say
is compared with what would be said now. The question goes to the policy that decides, in a process of its own, with
what the last round saw. Nobody waits for it, and it takes a fifth of a core at most, however many ask.

Of the job nothing is written but annotations of ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from trimtab.controller.advice import answer, question
from trimtab.controller.advice.answer import Advice
from trimtab.controller.event_recorder import EventRecorder
from trimtab.controller.other_jobs import OtherJob, OtherJobs, resource_of, too_large
from trimtab.decide.remote import RemoteEngine
from trimtab.decide.rules import rules_of
from trimtab.errors import ApiError, LeadershipLost, NotFound, PolicyError, UsageError
from trimtab.foreign.kinds import at
from trimtab.foreign.tables import Kind
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import PriorityClassObject
from trimtab.kube.resources import Resource
from trimtab.observe.snapshot import Observation, asked_about
from trimtab.settings import Settings
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.results import Outcome
from trimtab_policy.types import Pending, Placement, Snapshot

IDLE_SHARE = 4.0
"""It rests so many times as long as it has worked."""
LOOK_SECONDS = 1.0
"""Between two looks at all jobs."""
RUNTIMES = {"ClusterTrainingRuntime": "clustertrainingruntimes", "TrainingRuntime": "trainingruntimes"}
"""Kinds of the runtimes of a TrainJob, and how they are served."""

log = structlog.get_logger(__name__)


class _Looked(Struct):
    """When a job was looked at last (monotonic), and what it was then."""

    at: float
    about: str


class Advisor:
    """Asks, compares and writes while this controller leads."""

    def __init__(
        self,
        client: KubeClient,
        jobs: OtherJobs,
        engine: RemoteEngine,
        recorder: EventRecorder,
        settings: Settings,
        *,
        priority_classes: Callable[[], Iterable[PriorityClassObject]],
        correct: Callable[[Observation], Observation],
    ) -> None:
        """`correct` says what is known of the predictions' errors."""
        self.jobs = jobs
        self._client = client
        self._engine = engine
        self._recorder = recorder
        self._settings = settings
        self._priority_classes = priority_classes
        self._correct = correct
        self._seen: tuple[Observation, Choice] | None = None
        self._looked: dict[str, _Looked] = {}

    def see(self, observation: Observation, choice: Choice) -> None:
        """What the last round saw, and who decides."""
        self._seen = observation, choice

    async def run(self) -> None:
        """Look at all jobs that ask, again and again, until cancelled."""
        while True:
            there = list(self.jobs.all())
            uids = {job.metadata.uid for _, _, job in there}
            self._looked = {uid: looked for uid, looked in self._looked.items() if uid in uids}
            for kind, row, job in there:
                if self._seen and self._due(job):
                    began = time.monotonic()
                    await self._look(kind, row, job, *self._seen)
                    await asyncio.sleep(IDLE_SHARE * (time.monotonic() - began))
            await asyncio.sleep(LOOK_SECONDS)

    async def stop(self) -> None:
        """End the process that is asked."""
        await self._engine.stop()

    def _due(self, job: OtherJob) -> bool:
        looked = self._looked.get(job.metadata.uid)
        if looked is None or looked.about != job.digest:
            return True
        return time.monotonic() - looked.at >= self._settings.interop.advise_seconds

    async def _look(self, kind: str, row: Kind, job: OtherJob, seen: Observation, choice: Choice) -> None:
        self._looked[job.metadata.uid] = _Looked(time.monotonic(), job.digest)
        try:
            advice = await self._advice(kind, row, job, seen, choice)
            if answer.is_news(advice, job.metadata.annotations):
                await self._tell(kind, row, job, advice)
        except LeadershipLost:
            raise
        except (ApiError, PolicyError) as error:
            log.info("no advice for now", kind=kind, job=job.metadata.key, error=str(error))
        except Exception:  # a mistake of ours about one job must not keep the others without advice
            log.exception("a job cannot be advised: this is a bug, please report it", kind=kind, job=job.metadata.key)

    async def _advice(self, kind: str, row: Kind, job: OtherJob, seen: Observation, choice: Choice) -> Advice:
        now, about = seen.snapshot.time, job.digest
        if job.follows:
            return Advice(now, about, f"{job.follows} controls it: label that one", problem=True)
        if problem := job.too_large:
            return Advice(now, about, problem, problem=True)
        documents = [job.document(kind, row)]
        try:
            if row.runtime:
                documents.append(await self._runtime(documents[0]))
            facts, _ = await asyncio.to_thread(question.facts_of, documents)
        except UsageError as error:
            return Advice(now, about, str(error), problem=True)
        asked = asked_about(facts, seen, self._priority_classes())
        if isinstance(asked, Pending):
            return answer.waits(now, about, asked, None)
        snapshot = question.beside(seen.snapshot, asked)
        placed = await self._ask(seen, snapshot, choice, asked.uid)
        if isinstance(placed, Placement):
            return answer.advised(now, about, placed)
        later = await self._ask(seen, question.alone(seen.snapshot, asked), choice, asked.uid)
        return answer.waits(now, about, placed, later if isinstance(later, Placement) else None)

    async def _ask(self, seen: Observation, snapshot: Snapshot, choice: Choice, uid: str) -> Placement | Pending:
        """What the policy that decides says about this job, or else its fallback. Raises PolicyError."""
        snapshot = self._correct(msgspec.structs.replace(seen, snapshot=snapshot)).snapshot
        try:
            outcome = await self._decide(choice.policy, snapshot)
        except PolicyError:
            outcome = await self._decide(choice.fallback, snapshot)
        if placed := next((each for each in outcome.placements if each.job == uid), None):
            return question.with_room_made(placed, outcome)
        found = next((each for each in outcome.pending if each.job == uid), None)
        if found is None:
            raise PolicyError(f"{choice.policy} says nothing about the job", reason="invalid")
        return found

    async def _decide(self, policy: str, snapshot: Snapshot) -> Outcome:
        seconds = self._settings.policy.shadow_deadline_seconds
        return await self._engine.decide(policy, snapshot, seconds, rules_of(self._settings, live=True))

    async def _runtime(self, trainjob: dict[str, Any]) -> dict[str, Any]:
        """The runtime that a TrainJob names. Raises UsageError where there is none."""
        named = str(at(trainjob, "spec.runtimeRef.name") or "")
        kind = str(at(trainjob, "spec.runtimeRef.kind") or "ClusterTrainingRuntime")
        if not named or kind not in RUNTIMES:
            raise UsageError(
                f"{trainjob['metadata']['name']}: spec.runtimeRef names no runtime of a kind that is known"
            )
        namespace = "" if kind.startswith("Cluster") else trainjob["metadata"]["namespace"]
        try:
            path = Resource(trainjob["apiVersion"], RUNTIMES[kind]).path(namespace, named)
            found: dict[str, Any] = msgspec.json.decode(await self._client.get(path))
        except NotFound:
            raise UsageError(f"spec.runtimeRef: there is no {kind} {named!r}") from None
        if problem := too_large(f"spec of {kind} {named}", len(msgspec.json.encode(found.get("spec")))):
            raise UsageError(problem)
        return found

    async def _tell(self, kind: str, row: Kind, job: OtherJob, advice: Advice) -> None:
        meta, resource = job.metadata, resource_of(row)
        patch = {"metadata": {"uid": meta.uid, "annotations": answer.as_annotations(advice)}}
        written = await self._client.merge_patch(resource.path(meta.namespace, meta.name), patch)
        self.jobs.apply_written(kind, written)
        self._recorder.other(job.reference(kind, row), answer.event(advice))
