"""Jobs that Kueue admits: asked for, held back until it does, kept within what it gives, stopped when it takes it back.

What a Workload says and what is written to it, `trimtab.interop` decides; here the writes are sent, one after the other
for each job and side by side for different ones. A round looks at the Workloads before it observes (who waits, who may
have how much where) and advances them after it has decided.

Three rules keep what is missing from doing harm. Gangs are only ever stopped for what a Workload says, never because
none is there, or Kueue has not looked at it: one that was deleted is asked for anew first. Where Kueue itself has gone,
gangs run on, and jobs that waited for it go on waiting. While it is not known whether Kueue is there, its jobs wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import msgspec
import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from trimtab import names
from trimtab.api.status import Plan
from trimtab.apply.stops import StopOrder
from trimtab.apply.transitions import JobEvent
from trimtab.controller.cluster import Cluster
from trimtab.controller.event_recorder import EventRecorder
from trimtab.controller.kueue.caches import KueueCaches
from trimtab.controller.kueue.cases import Cases, queue_of
from trimtab.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, LeadershipLost, NotFound
from trimtab.interop.admission import Admission
from trimtab.interop.reply import Amend, Create, Tell, Withdraw, Write, next_write
from trimtab.kube.backoff import Backoff
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import WorkloadObject
from trimtab.kube.resources import WORKLOADS
from trimtab.observe.jobs import JobFacts
from trimtab.observe.running import startable
from trimtab.telemetry import metrics
from trimtab_policy.types import Bounds, Pending, PendingReason, StopCause

RETRY_SECONDS = 30.0
"""After a refusal that only somebody else can mend."""

log = structlog.get_logger(__name__)


class Verdicts(Struct, frozen=True):
    """What a look at Kueue means for a round, by job UID."""

    held_back: dict[str, Pending] = {}
    """Jobs that must not be planned."""
    limited: dict[str, JobFacts] = {}
    """Jobs with what they may have at most written into their requirements and their template."""


class Dealing(Struct):
    """What is remembered of one job between two looks."""

    task: asyncio.Task[None] | None = None
    refusal: str = ""
    """Why its Workload could not be written the last time, ..."""
    until: float = 0.0
    """... and the monotonic time when it is tried again."""
    gone: set[str] = field(default_factory=set)
    """UIDs of Workloads whose deletion was answered, or noticed."""
    limited: tuple[JobFacts, Admission, tuple[str, ...], JobFacts] | None = None
    """Its own facts, what limits them, and the result."""


class Kueue:
    """Deals with Kueue for all jobs that name one of its queues.

    `order_stop` has a gang asked to stop; `promised` are the UIDs of jobs that are about to get a plan.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        caches: KueueCaches,
        cases: Cases,
        recorder: EventRecorder,
        *,
        order_stop: Callable[[str, StopOrder], None],
        promised: Callable[[], Collection[str]],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._caches = caches
        self._cases = cases
        self._recorder = recorder
        self._order_stop = order_stop
        self._promised = promised
        self._fail = fail
        self._about: Collection[str] = ()
        self._dealings: dict[str, Dealing] = {}

    # --- before a round ---------------------------------------------------------------------------------------------
    def look(self) -> Verdicts:
        """Who has to wait, and who may have how much."""
        self._cases.refresh()
        verdicts = Verdicts()
        for facts in self._cases.labelled():
            found = self._standing(facts)
            if isinstance(found, JobFacts):
                verdicts.limited[facts.meta.uid] = found
            elif found is not None and facts.status.plan is None:
                verdicts.held_back[facts.meta.uid] = found
        return verdicts

    @property
    def _present(self) -> bool:
        return self._caches.presence == "Present"

    def _standing(self, facts: JobFacts) -> JobFacts | Pending | None:
        """Limited facts, why it waits, or None where Kueue has no say."""
        uid, queue = facts.meta.uid, queue_of(facts)
        if self._caches.presence == "Absent":
            return self._without_kueue(facts, queue)
        if not self._present:
            why = self._caches.trouble or "it is being asked"
            return _pending(uid, f"it is not known yet whether Kueue is installed: {why}")
        found = self._cases.admission(uid)
        if isinstance(found, Admission):
            return self._limited(facts, found)
        refusal = self._dealing(uid).refusal
        return _pending(uid, refusal or found or f"LocalQueue {queue} of Kueue is being asked", f"LocalQueue {queue}")

    def _without_kueue(self, facts: JobFacts, queue: str) -> Pending | None:
        """Jobs that waited for Kueue go on waiting when it is removed; where it never was, its label means nothing."""
        if _waited(facts):
            message = f"LocalQueue {queue} is to admit it, and Kueue is no longer installed"
            mend = f"remove the label {names.LABEL_KUEUE_QUEUE} to start without Kueue"
            return _pending(facts.meta.uid, message, alternative=mend)
        if facts.status.plan is None and not facts.suspended:
            message = f"Kueue is not installed: the label {names.LABEL_KUEUE_QUEUE}={queue} is ignored"
            self._recorder.job(facts.meta, JobEvent("Warning", names.REASON_KUEUE_MISSING, message, 0))
        return None

    def _limited(self, facts: JobFacts, found: Admission) -> JobFacts | Pending:
        """The job as its quota allows it. The very same facts where nothing has changed."""
        uid, allowed = facts.meta.uid, startable(facts)
        assert allowed
        if found.gpus < allowed.gpus.low:
            message = f"Kueue has admitted {found.gpus} GPUs, the job needs {allowed.gpus.low}: it is asked anew"
            return _pending(uid, message)
        types = self._cases.types(found.resource)
        usable = allowed.gpu_types if types is None else tuple(sorted(set(allowed.gpu_types or types) & types))
        if types is not None and not usable:
            return _pending(uid, f"Kueue has admitted it for {found.resource}, which no node of its types offers")
        dealing = self._dealing(uid)
        known = dealing.limited
        if known and known[0] is facts and known[1:3] == (found, usable):
            return known[3]
        gpus = Bounds(allowed.gpus.low, min(allowed.gpus.high, found.gpus))
        requirements = replace(allowed, gpus=gpus, gpu_types=usable)
        limited = replace(facts, requirements=requirements, equipped=found.on(facts.template))
        dealing.limited = facts, found, usable, limited
        return limited

    # --- after it ---------------------------------------------------------------------------------------------------
    def advance(self) -> None:
        """Order gangs to stop that Kueue does not admit any more, and see to every Workload that needs a word."""
        states: Counter[tuple[str, ...]] = Counter()
        if self._present:
            self._about = frozenset(self._promised())
            labelled = {facts.meta.uid: facts for facts in self._cases.labelled()}
            for facts in labelled.values():
                states[(self._judge(facts),)] += 1
            for uid in {*labelled, *self._caches.owners}:
                self._see_to(uid)
        metrics.replace(metrics.KUEUE_JOBS, states)
        for uid in [uid for uid, dealing in self._dealings.items() if not dealing.task and not self._cluster.job(uid)]:
            del self._dealings[uid]

    def next_deadline(self) -> float:
        """Seconds until a refused write is to be tried again; infinite where none was refused."""
        now = time.monotonic()
        return min((each.until - now for each in self._dealings.values() if each.until > now), default=float("inf"))

    async def stop(self) -> None:
        """Let running requests end."""
        tasks = [dealing.task for dealing in self._dealings.values() if dealing.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _judge(self, facts: JobFacts) -> str:
        """Stop the job's gang where it must not run; say how it stands with Kueue in one word."""
        uid, plan = facts.meta.uid, facts.status.plan
        workload, found = self._cases.workload(uid), self._cases.admission(uid)
        if workload is None:
            return "unasked"
        if plan and (why := str(found) if workload.refused else self._beyond(plan, found)):
            self._order_stop(uid, StopOrder(epoch=plan.epoch, cause=StopCause.EVICTED, message=why))
        if isinstance(found, str):
            return "reserved" if workload.reserved else "waiting"
        if plan is None and _waited(facts):
            message = f"ClusterQueue {found.cluster_queue} of Kueue admits {found.gpus} GPUs"
            happening = JobEvent("Normal", names.REASON_KUEUE_ADMITTED, message, facts.status.last_epoch or 0)
            self._recorder.job(facts.meta, happening)
        return "admitted"

    def _beyond(self, plan: Plan, found: Admission | str) -> str:
        """What a standing plan has that is not admitted. Where that cannot be told, nobody is stopped."""
        if isinstance(found, str):
            return ""
        if plan.gpus > found.gpus:
            return f"its plan has {plan.gpus} GPUs, Kueue admits {found.gpus}"
        nodes = ((share.name, self._cases.node(share.name)) for share in plan.nodes)
        outside = [name for name, node in nodes if node and not found.covers(node.labels)]
        return f"node {outside[0]} does not belong to what Kueue admits" if outside else ""

    def _see_to(self, uid: str) -> None:
        dealing = self._dealing(uid)
        if dealing.task is None and time.monotonic() >= dealing.until and self._next(uid):
            dealing.task = asyncio.create_task(self._drive(uid), name=f"kueue {uid}")

    # --- one job's driver ---------------------------------------------------------------------------------------------
    async def _drive(self, uid: str) -> None:
        dealing = self._dealing(uid)
        backoff = Backoff(initial=0.2, cap=5.0)
        try:
            while write := self._next(uid):
                try:
                    await self._send(uid, write)
                    dealing.refusal = ""
                except (Forbidden, Invalid, NotFound) as error:
                    self._refused(uid, str(error))
                    return
                except ApiError as error:
                    dealing.refusal = f"its Workload for Kueue could not be written yet: {error}"
                    log.info("look again", workload_of=uid, error=str(error), kind=type(error).__name__)
                    await asyncio.sleep(backoff.next(error.retry_after))
        except LeadershipLost as lost:
            self._fail(lost)
        except Exception:  # a mistake of ours about one job must not stop the others
            log.exception("a Workload cannot be dealt with: this is a bug, please report it", uid=uid)
            metrics.DRIVER_ERRORS.inc()
            dealing.until = time.monotonic() + RETRY_SECONDS
        finally:
            dealing.task = None

    def _next(self, uid: str) -> Write | None:
        case = self._cases.case(uid, self._about)
        if case is None or (case.workload and case.workload.meta.uid in self._dealing(uid).gone):
            return None
        return next_write(case)

    async def _send(self, uid: str, write: Write) -> None:
        """Send one write and take its answer. Raises ApiError."""
        there = self._cases.written(uid)
        match write:
            case Create(workload):
                self._caches.workloads.apply_written(await self._create(uid, workload))
            case Withdraw(gone) if there:
                with suppress(NotFound, Conflict):
                    await self._client.delete(_path(there), uid=gone)
                self._dealing(uid).gone.add(gone)
            case Amend() | Tell() if there:
                try:
                    self._caches.workloads.apply_written(await self._patch(there, write))
                except NotFound:
                    self._dealing(uid).gone.add(there.metadata.uid)
        metrics.KUEUE_WRITES.labels(type(write).__name__.lower()).inc()

    async def _create(self, uid: str, workload: dict[str, Any]) -> bytes:
        """Create the Workload, or find the one that an earlier attempt has created."""
        meta = workload["metadata"]
        try:
            return await self._client.create(WORKLOADS.path(meta["namespace"]), workload)
        except AlreadyExists:
            there = await self._client.get(WORKLOADS.path(meta["namespace"], meta["name"]))
            job = self._cluster.job(uid)
            if job and msgspec.json.decode(there, type=WorkloadObject).metadata.job == job.metadata.identity:
                return there
            raise Forbidden(f"a Workload named {meta['name']} exists and belongs to somebody else") from None

    async def _patch(self, there: WorkloadObject, write: Amend | Tell) -> bytes:
        """Patch a Workload; where somebody else was faster, what there is now. Raises NotFound when it is gone."""
        subresource = "status" if isinstance(write, Tell) else ""
        try:
            return await self._client.merge_patch(_path(there), write.patch, subresource=subresource)
        except Conflict:
            return await self._client.get(_path(there))

    def _refused(self, uid: str, message: str) -> None:
        """Note why a Workload could not be written, tell the user, and try again later."""
        dealing, job = self._dealing(uid), self._cluster.job(uid)
        dealing.refusal = f"its Workload for Kueue was refused: {message}"
        dealing.until = time.monotonic() + RETRY_SECONDS
        metrics.KUEUE_REFUSED.inc()
        if job:
            happening = JobEvent("Warning", names.REASON_KUEUE_REFUSED, dealing.refusal, 0)
            self._recorder.job(job.metadata, happening)

    def _dealing(self, uid: str) -> Dealing:
        return self._dealings.setdefault(uid, Dealing())


def _path(workload: WorkloadObject) -> str:
    return WORKLOADS.path(workload.metadata.namespace, workload.metadata.name)


def _waited(facts: JobFacts) -> bool:
    """Whether Kueue was to admit the job when its status was written last."""
    return facts.status.pending is not None and facts.status.pending.reason is PendingReason.WAITING_FOR_ADMISSION


def _pending(uid: str, message: str, blocker: str = "", alternative: str = "") -> Pending:
    some = PendingReason.WAITING_FOR_ADMISSION
    return Pending(uid, some, message, (blocker,) if blocker else (), (alternative,) if alternative else ())
