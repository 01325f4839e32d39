"""Keeps a stand-in for each job of another kind that is to be placed, and tells the job about it.

Level-based: what the job says is compared with what its stand-in says, whenever either has changed. How the gang of a
stand-in comes to its nodes, the drivers of all jobs see to (`controller.jobs.gangs`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import msgspec
import structlog

from trimtab import names
from trimtab.apply.transitions import JobEvent
from trimtab.controller.cluster import Cluster
from trimtab.controller.event_recorder import EventRecorder
from trimtab.controller.other_jobs import MOST_SAID, OtherJob, OtherJobs, resource_of
from trimtab.controller.place import stand_in
from trimtab.errors import AlreadyExists, ApiError, Forbidden, Invalid, LeadershipLost, NotFound, UsageError
from trimtab.foreign.kinds import Json, row_of
from trimtab.foreign.tables import Kind, kinds
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import AnyObject, JobObject, Meta
from trimtab.kube.resources import JOBS
from trimtab.observe.jobs import JobFacts
from trimtab.printable import printable
from trimtab.settings import BindingSettings

LOOK_SECONDS = 5.0
"""It looks at once after a change, and so often without any ..."""
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
        described = row.place.describing if row.place else None
        shown = self._shown(kind, row, job) if described else None
        if described and shown is None:
            return  # its own controller has not made that yet
        wanted = await self._wanted(kind, row, job, shown)
        if isinstance(wanted, UsageError):
            await self._tell(kind, row, job, problem=str(wanted))
            return
        try:
            await self._bring_about(wanted, job)
        except (Forbidden, Invalid, UsageError) as error:
            await self._tell(kind, row, job, problem=str(error))
            return
        await self._tell(kind, row, job, name=wanted["metadata"]["name"])

    def _shown(self, kind: str, row: Kind, job: OtherJob) -> Meta | None:
        """What the job controls that describes its pods; None while there is none. Of several it is the first one."""
        made = self._jobs.controls(kind, job.itself(kind, row))
        return min(made, key=lambda each: (each.creation_timestamp or "", each.uid), default=None)

    async def _wanted(self, kind: str, row: Kind, job: OtherJob, shown: Meta | None) -> Json | UsageError:
        """The stand-in that the job is to have, or why there can be none. Scripts are followed in a thread: they may
        take a moment, and are read once as long as the job stays the same."""
        known = self._read.get(job.metadata.uid)
        if known and known[0].spec == job.spec and (known[0].metadata, known[1]) == (job.metadata, shown):
            return known[2]
        made: Json | None = None
        if shown and row.place and (described := row.place.describing):  # no more than its metadata is kept
            path = resource_of(kinds()[described.kind]).path(shown.namespace, shown.name)
            made = msgspec.json.decode(await self._client.get(path))
        try:
            found: Json | UsageError = await asyncio.to_thread(stand_in.stand_in, kind, row, job, self._scheduler, made)
        except UsageError as error:
            found = error
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
            path = JOBS.path(meta["namespace"], meta["name"])
            changed = {"metadata": {"uid": there.metadata.uid}, "spec": patch}
            self._cluster.jobs.apply_written(await self._client.merge_patch(path, changed))

    async def _create(self, wanted: Json) -> None:
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        try:
            answer = await self._client.create(JOBS.path(namespace), wanted, strict=True)
        except AlreadyExists:  # by an earlier attempt, or a controller before us: it is looked at in the next turn
            answer = await self._client.get(JOBS.path(namespace, name))
        self._cluster.jobs.apply_written(answer)

    async def _tell(self, kind: str, row: Kind, job: OtherJob, *, name: str = "", problem: str = "") -> None:
        """Bring the annotations of the job up to date, and tell of what is news."""
        there = job.metadata.annotations
        said: dict[str, str | None] = {}
        if problem:
            said[names.ANNOTATION_PLACE_PROBLEM] = printable(" ".join(problem.split()))[:MOST_SAID]
        else:
            said |= {names.ANNOTATION_STAND_IN: name, names.ANNOTATION_PLACE_PROBLEM: None}
            if not job.suspended(row):  # its user has resumed what we had suspended
                said[names.ANNOTATION_SUSPENDED] = None
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
        """Stand-ins whose job is not among those that are to be placed."""
        for each in self._cluster.jobs.items.values():
            gone = not each.metadata.deletion_timestamp and self._jobs.controlling(each.metadata) is None
            if gone and self._facts(each).stands_in:
                yield each

    async def _take_away(self, left: JobObject) -> None:
        """Delete it where its job is gone, or not to be placed any more, by the API server's own word: our copy may not
        be complete. The garbage collector does so, too, but learns of a new kind late."""
        for owner in left.metadata.owner_references:
            found = row_of({"apiVersion": owner.api_version, "kind": owner.kind}) if owner.controller else None
            if found is None or not found[1].served:
                continue
            try:
                answer = await self._client.get(resource_of(found[1]).path(left.metadata.namespace, owner.name))
            except NotFound:
                break
            job = msgspec.json.decode(answer, type=AnyObject).metadata
            if job.uid == owner.uid and job.labels.get(names.LABEL_MANAGED) == "true":
                return
        path = JOBS.path(left.metadata.namespace, left.metadata.name)
        try:
            await self._client.delete(path, uid=left.metadata.uid)
        except NotFound:
            return
        log.info("a stand-in without a job is deleted", job=left.metadata.key)
