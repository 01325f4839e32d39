"""Keeps a stand-in for each job of another kind that is to be placed, and tells the job about it.

Level-based: what the job says is compared with what its stand-in says, whenever either has changed. How the gang of a
stand-in comes to its nodes, the drivers of all jobs see to (`controller.jobs.gangs`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import msgspec
import structlog

from trimtab import names
from trimtab.apply.transitions import JobEvent
from trimtab.controller.cluster import Cluster
from trimtab.controller.event_recorder import EventRecorder
from trimtab.controller.other_jobs import MOST_SAID, OtherJob, OtherJobs, resource_of, too_large, versions_of
from trimtab.controller.place import stand_in
from trimtab.controller.place.their_jobs import waits
from trimtab.errors import AlreadyExists, ApiError, Forbidden, Invalid, LeadershipLost, NotFound, UsageError
from trimtab.foreign.kinds import Json
from trimtab.foreign.tables import Kind, kinds
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import AnyObject, JobObject, Meta
from trimtab.kube.resources import JOBS, PODS
from trimtab.observe.jobs import JobFacts
from trimtab.printable import printable
from trimtab.settings import BindingSettings

LOOK_SECONDS = 5.0
"""It looks at once after a change, and so often without any ..."""
READ_SECONDS = 2.0
"""For which new words of one namespace are read in one look: the rest of them is for the next."""
QUIET_SECONDS = 0.05
"""... with a pause between two looks, in which changes gather."""
log = structlog.get_logger(__name__)


class Placer:
    """Makes, changes and deletes stand-ins while this controller leads."""

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        jobs: OtherJobs,
        recorder: EventRecorder,
        binding: BindingSettings,
        facts: Callable[[JobObject], JobFacts],
        changed: asyncio.Event,
    ) -> None:
        """`facts` understands a job of our own; `changed` is set when something has changed."""
        self._facts = facts
        self._client = client
        self._cluster = cluster
        self._jobs = jobs
        self._recorder = recorder
        self._scheduler = binding.scheduler_name if binding.mode == "Extender" else names.SCHEDULER_NAME
        self._changed = changed
        self._read: dict[str, tuple[OtherJob, Meta | None, Json | UsageError]] = {}
        """UID -> the job as it was read last, with what describes its pods, and what came of that."""
        self._reading: dict[str, float] = {}
        """Namespace -> seconds for which its jobs were read in this look."""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            self._changed.clear()
            await self.look()
            await asyncio.sleep(QUIET_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LOOK_SECONDS)

    async def look(self) -> None:
        """Once, at all jobs and all stand-ins."""
        self._reading.clear()
        for kind, row, job in self._jobs.all():
            await self._isolated(f"{kind} {job.metadata.key}", self._look(kind, row, job))
        for left in list(self._left()):
            await self._isolated(left.metadata.key, self._take_away(left))
        uids = {job.metadata.uid for _, _, job in self._jobs.all()}
        self._read = {uid: read for uid, read in self._read.items() if uid in uids}

    async def _isolated(self, what: str, work: Awaitable[None]) -> None:
        try:
            await work
        except LeadershipLost:
            raise
        except ApiError as error:
            log.info("look again", job=what, error=str(error))
        except Exception:  # a mistake of ours about one job must not keep the others from being placed
            log.exception("a job cannot be placed: this is a bug, please report it", job=what)

    # --- a job ------------------------------------------------------------------------------------------------------
    async def _look(self, kind: str, row: Kind, job: OtherJob) -> None:
        if problem := job.too_large:  # before anything of it is taken apart
            await self._tell(kind, row, job, problem=f"{row.kind or kind} {job.metadata.name}: {problem}")
            return
        elsewhere = row.members or (row.place and row.place.describing)
        shown = self._shown(kind, row, job) if elsewhere else None
        if elsewhere and shown is None:  # its own controller has not made that yet
            await self._keep_back(kind, row, job)
            return
        if (wanted := await self._wanted(kind, row, job, shown)) is None:
            self._changed.set()
            return
        try:
            if isinstance(wanted, UsageError):
                raise wanted
            if gathering := self._gathering(kind, row, job):
                wanted = {**wanted, "spec": wanted["spec"] | {"suspend": True}}
            await self._bring_about(wanted, job)
        except (Forbidden, Invalid, UsageError) as error:
            await self._tell(kind, row, job, problem=str(error))
            return
        await self._tell(kind, row, job, name=wanted["metadata"]["name"], gathering=gathering)

    def _shown(self, kind: str, row: Kind, job: OtherJob) -> Meta | None:
        """What the job controls that describes its pods, or a pod that names it and is of no gang yet; None while there
        is none. Of several it is the first one."""
        itself = job.itself(kind, row)
        made = (
            [pod.metadata for group in self._jobs.makers(kind, row, itself) for pod in self._cluster.made_by(group)]
            if row.members
            else self._jobs.controls(kind, itself)
        )
        return min(
            (each for each in made if not each.deletion_timestamp),
            key=lambda each: (each.creation_timestamp or "", each.uid),
            default=None,
        )

    def _gathering(self, kind: str, row: Kind, job: OtherJob) -> str:
        """What a group waits for before it is planned: who makes its pods, and when, nobody knows, so that a plan would
        hold GPUs for pods that may never come. Empty once all are there, or run; and for jobs of all other kinds.

        Raises UsageError where there are too many."""
        wanted = job.members(row)
        there = self._stand_in_of(job)
        facts = self._facts(there) if there else None
        if wanted is None or (facts and facts.finished):
            return ""
        if there and facts and (plan := facts.status.plan):
            taken_in = self._cluster.pods_of(there.metadata.identity.digest)
            if any(pod.metadata.labels.get(names.LABEL_EPOCH) == str(plan.epoch) for pod in taken_in):
                return ""
        groups = self._jobs.makers(kind, row, job.itself(kind, row))
        waiting = sum(waits(pod) for group in groups for pod in self._cluster.made_by(group))
        if waiting > wanted and row.members:
            raise UsageError(f"{row.members.count} is {wanted}, and {waiting} pods wait: a gang has all of them")
        return f"{waiting} of its {wanted} pods wait: it is planned once all do" if waiting < wanted else ""

    async def _keep_back(self, kind: str, row: Kind, job: OtherJob) -> None:
        """Suspend the stand-in of a group whose pods have gone, until others are there."""
        there = self._stand_in_of(job)
        if (
            there
            and self._gathering(kind, row, job)
            and (patch := stand_in.changes({"suspend": True}, msgspec.json.decode(there.spec)))
        ):
            await self._change(there, patch)

    def _stand_in_of(self, job: OtherJob) -> JobObject | None:
        there = self._cluster.job_named(f"{job.metadata.namespace}/{stand_in.name_of(job.metadata)}")
        owners = there.metadata.owner_references if there else ()
        return there if any(owner.uid == job.metadata.uid for owner in owners) else None

    async def _wanted(self, kind: str, row: Kind, job: OtherJob, shown: Meta | None) -> Json | UsageError | None:
        """The stand-in that the job is to have, or why there can be none. Scripts are followed in a thread: they may
        take a moment, and are read once as long as the job stays the same. None where others are to be read first."""
        known = self._read.get(job.metadata.uid)
        if known and known[0].spec == job.spec and (known[0].metadata, known[1]) == (job.metadata, shown):
            return known[2]
        namespace = job.metadata.namespace
        if self._reading.get(namespace, 0.0) >= READ_SECONDS:
            return None
        made: Json | None = None
        if shown and row.place:  # no more of it is kept than what others look at
            described = row.place.describing
            resource = resource_of(kinds()[described.kind]) if described else PODS
            answer: Json = msgspec.json.decode(await self._client.get(resource.path(shown.namespace, shown.name)))
            size = len(msgspec.json.encode(answer.get("spec")))
            if problem := too_large(f"spec of {resource.plural}/{shown.name}", size):
                return UsageError(problem)
            made = answer
            placing = self._jobs.placing(shown.controller) if row.members and shown.controller else None
            if placing:  # its pods would be of two gangs
                other = f"{placing[0]} {placing[1].metadata.name}"
                return UsageError(f"its pods are those of {other}, which is placed already: take one label away")
        began = time.monotonic()
        try:
            found: Json | UsageError = await asyncio.to_thread(stand_in.stand_in, kind, row, job, self._scheduler, made)
        except UsageError as error:
            found = error
        self._reading[namespace] = self._reading.get(namespace, 0.0) + time.monotonic() - began
        self._read[job.metadata.uid] = job, shown, found
        return found

    async def _bring_about(self, wanted: Json, job: OtherJob) -> None:
        meta = wanted["metadata"]
        there = self._cluster.job_named(f"{meta['namespace']}/{meta['name']}")
        if there is None:
            await self._create(wanted)
            return
        if not any(owner.uid == job.metadata.uid for owner in there.metadata.owner_references):
            raise UsageError(f"an LLMTrainingJob {meta['name']} exists, and does not stand in for this job")
        if patch := stand_in.changes(wanted["spec"], msgspec.json.decode(there.spec)):
            await self._change(there, patch)

    async def _change(self, there: JobObject, patch: Json) -> None:
        path = JOBS.path(there.metadata.namespace, there.metadata.name)
        changed = {"metadata": {"uid": there.metadata.uid}, "spec": patch}
        self._cluster.jobs.apply_written(await self._client.merge_patch(path, changed))

    async def _create(self, wanted: Json) -> None:
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        try:
            answer = await self._client.create(JOBS.path(namespace), wanted, strict=True)
        except AlreadyExists:  # by an earlier attempt, or a controller before us: it is looked at in the next turn
            answer = await self._client.get(JOBS.path(namespace, name))
        self._cluster.jobs.apply_written(answer)

    async def _tell(
        self, kind: str, row: Kind, job: OtherJob, *, name: str = "", problem: str = "", gathering: str = ""
    ) -> None:
        """Bring the annotations of the job up to date, and tell of what is news."""
        there = job.metadata.annotations
        said: dict[str, str | None] = {}
        if problem:
            said[names.ANNOTATION_PLACE_PROBLEM] = printable(" ".join(problem.split()))[:MOST_SAID]
        else:
            said |= {names.ANNOTATION_STAND_IN: name, names.ANNOTATION_PLACE_PROBLEM: None}
            if not job.suspended(row):  # its user has resumed what we had suspended
                said[names.ANNOTATION_SUSPENDED] = gathering or None
        news = {key: value for key, value in said.items() if there.get(key) != value}
        if not news:
            return
        meta, resource = job.metadata, resource_of(row)
        patch = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "annotations": news},
        }
        self._jobs.apply_written(kind, await self._client.merge_patch(resource.path(meta.namespace, meta.name), patch))
        if names.ANNOTATION_PLACE_PROBLEM in news and problem:
            self._event(kind, row, job, JobEvent("Warning", names.REASON_NOT_PLACED, problem, 0))
        if names.ANNOTATION_STAND_IN in news:
            message = f"LLMTrainingJob {name} stands in for it: its status says when and where it runs"
            self._event(kind, row, job, JobEvent("Normal", names.REASON_STAND_IN, message, 0))

    def _event(self, kind: str, row: Kind, job: OtherJob, happening: JobEvent) -> None:
        self._recorder.other(job.reference(kind, row), happening, "Place")

    # --- a stand-in without a job -----------------------------------------------------------------------------------
    def _left(self) -> Iterator[JobObject]:
        """Stand-ins whose job is not among those that are to be placed, or is being deleted: whatever finalizer keeps
        the job, its GPUs are others' then."""
        for each in self._cluster.jobs.items.values():
            found = self._jobs.controlling(each.metadata)
            gone = found is None or found[2].metadata.deletion_timestamp
            if gone and not each.metadata.deletion_timestamp and self._facts(each).stands_in:
                yield each

    async def _take_away(self, left: JobObject) -> None:
        """Delete it where its job is gone, or not to be placed any more, by the API server's own word: our copy may not
        be complete. The garbage collector does so, too, but learns of a new kind late."""
        owners = left.metadata.owner_references
        for owner, row in ((each, row) for each in owners for _, row in versions_of(each)):
            if not row.served:
                continue
            try:
                answer = await self._client.get(resource_of(row).path(left.metadata.namespace, owner.name))
            except NotFound:  # there is no such job, or the kind is served in another version
                continue
            job = msgspec.json.decode(answer, type=AnyObject).metadata
            stays = job.uid == owner.uid and not job.deletion_timestamp
            if stays and job.labels.get(names.LABEL_MANAGED) == "true":
                return
        path = JOBS.path(left.metadata.namespace, left.metadata.name)
        try:
            await self._client.delete(path, uid=left.metadata.uid)
        except NotFound:
            return
        log.info("a stand-in without a job is deleted", job=left.metadata.key)
