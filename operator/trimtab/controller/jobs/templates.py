"""Templates that the API server takes no pods of are told while the job waits, not when its GPUs come free.

The schema of a job keeps what it does not know in a template, so a misspelt field shows only when a pod is made of it.
Jobs that are planned at once are told by that. Of those that wait, a pod is tried in a dry run, once for each spec:
what is refused as no valid pod, or for a field that there is not, is the job's condition `InvalidSpec`.

All other refusals (a quota, a policy, a webhook that knows no dry runs) may pass with time, and keep no job from being
planned. None of this depends on words: a pod that is refused for being read strictly is tried once more without.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable

from msgspec import Struct

from trimtab.controller.jobs.screening import Screening
from trimtab.errors import ApiError, Invalid
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import JobObject
from trimtab.kube.resources import PODS
from trimtab.observe.facts_memo import FactsMemo
from trimtab.observe.jobs import JobFacts
from trimtab.plan.objects import trial
from trimtab.telemetry.isolation import isolated
from trimtab_policy.types import Pending, PendingReason

WAIT_SECONDS = 2.0
"""A job that has waited for so long is tried: most are planned before, and then their own pods tell."""
AGAIN_SECONDS = 60.0
"""A template that was refused is tried again after so long: the cluster may have changed."""
SWEEP_SECONDS = 0.5
MOST_OF_A_NAMESPACE = 8
"""Tried in one sweep: thousands of jobs of one namespace do not keep those of others from their turn."""
DEADLINE_SECONDS = 3.0
UNPROCESSABLE = 422
"""The status of an object that can be read, and is none that there may be."""


class Tried(Struct):
    """What is known of the template of one job."""

    job: JobObject
    due: float
    """When to try it (again); monotonic, infinite where it need not be."""
    refused: str = ""
    """What is said against it."""


class Templates(Screening):
    """Tries the templates of jobs that wait."""

    def __init__(
        self,
        client: KubeClient,
        jobs: Callable[[], Iterable[JobObject]],
        facts: Callable[[JobObject], JobFacts],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(client, jobs, facts, wake)
        self._wait: FactsMemo[JobObject, bool] = FactsMemo(
            "templates", lambda job: facts(job).waits and not facts(job).stands_in, lambda job, error: False
        )
        self._tried: dict[str, Tried] = {}

    def look(self) -> dict[str, Pending | None]:
        """Jobs that must not be planned because of their template, by UID. To be called once in every round."""
        before, self._tried, now = self._tried, {}, time.monotonic()
        for job, waits in self._wait.all(self._jobs()):
            if waits:
                uid, known = job.metadata.uid, before.get(job.metadata.uid)
                if known is None or known.job.metadata.generation != job.metadata.generation:
                    known = Tried(job, now + WAIT_SECONDS)
                known.job = job
                self._tried[uid] = known
        return {uid: _pending(uid, known.refused) for uid, known in self._tried.items() if known.refused}

    async def run(self) -> None:
        """Try one after the other, until cancelled. Raises LeadershipLost."""
        while True:
            for uid, known in self._turns(time.monotonic()):
                said = await self._against(known.job)
                if self._tried.get(uid) is not known:
                    continue  # it waits no more, or has another spec by now
                known.due = time.monotonic() + AGAIN_SECONDS if said else float("inf")
                if said != known.refused:
                    known.refused = said
                    self._wake()
            await asyncio.sleep(SWEEP_SECONDS)

    def _turns(self, now: float) -> list[tuple[str, Tried]]:
        """Whom to try now."""
        taken: Counter[str] = Counter()
        turns = []
        for uid, known in self._tried.items():
            namespace = known.job.metadata.namespace
            if known.due <= now and taken[namespace] < MOST_OF_A_NAMESPACE:
                taken[namespace] += 1
                turns.append((uid, known))
        return turns

    async def _against(self, job: JobObject) -> str:
        """What the API server says against pods of the job, if it says that they cannot be."""
        # A template that nobody has thought of costs its job this help, and no more.
        pod = isolated(
            "templates", lambda: trial(job.metadata, self._facts(job).template), lambda _: None, job.metadata.key
        )
        if pod is None:
            return ""
        try:
            await self._try(pod, "Strict")
        except Invalid as error:
            if error.status == UNPROCESSABLE or not await self._refused(pod, "Ignore"):
                return str(error)
        except ApiError:
            return ""  # it may pass with time
        return ""

    async def _refused(self, pod: dict[str, object], reading: str) -> bool:
        try:
            await self._try(pod, reading)
        except ApiError:
            return True
        return False

    async def _try(self, pod: dict[str, object], reading: str) -> None:
        metadata = pod["metadata"]
        assert isinstance(metadata, dict)
        params = {"dryRun": "All", "fieldValidation": reading}
        path = PODS.path(metadata["namespace"])
        await self._client.request("POST", path, body=pod, params=params, deadline=DEADLINE_SECONDS)


def _pending(uid: str, said: str) -> Pending:
    message = f"spec.template: the API server takes no such pod: {said}"
    return Pending(uid, PendingReason.INVALID_SPEC, message, alternatives=("correct the field",))
