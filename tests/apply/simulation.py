"""What the life of a job is tried out on: an API server that judges, and a controller that sees it late.

`Controller` is the loop of the real drivers, reduced to what matters: it looks at its own copy of `Server`, asks
`next_step`, sends the writes, and remembers only what was answered.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

import msgspec
from tests.apply.server import JOB, UID, Crash, Server
from tests.builders import placement as placement_on
from tests.builders import plan_of

from trimtab import names
from trimtab.api import conditions
from trimtab.api.status import JobStatus
from trimtab.apply import transitions, write
from trimtab.apply.actions import (
    Action,
    AnnotatePod,
    BindPod,
    CreateClaimTemplate,
    CreateComputeDomain,
    CreatePod,
    CreatePodGroup,
    CreateService,
    DeleteClaimTemplate,
    DeleteComputeDomain,
    DeletePod,
    DeletePodGroup,
    ReleasePod,
    WriteStatus,
)
from trimtab.apply.gang_failures import GangFailure
from trimtab.apply.gates import released
from trimtab.apply.steps import JobContext, next_step
from trimtab.apply.stops import StopOrder
from trimtab.apply.transitions import GangReport
from trimtab.errors import ApiError
from trimtab.kube.objects import AnyObject, JobObject, PodObject
from trimtab.kube.resources import COMPUTE_DOMAINS, POD_GROUPS, PODS, RESOURCE_CLAIM_TEMPLATES, SERVICES
from trimtab.observe.jobs import facts
from trimtab.plan import objects
from trimtab.plan.claim_template import claim_template
from trimtab.plan.compute_domain import compute_domain
from trimtab.plan.gang import gang_plan
from trimtab.plan.pod_group import pod_group
from trimtab_policy.types import StopCause

GRACE_SECONDS = 30.0


class Controller:
    """The driver of one job, with a copy of the cluster that is as old as its last `sync`."""

    def __init__(self, server: Server, order: random.Random) -> None:
        self._server = server
        self._order = order
        self.now = 1_767_323_045.0
        self.restart()

    def restart(self) -> None:
        """Forget everything, and list."""
        self._assumed: dict[str, str] = {}
        self._deleted: dict[str, bool] = {}
        self._setback: GangFailure | None = None
        self._binding_since: float | None = None
        self._stop: StopOrder | None = None
        self._unwanted: int | None = None
        self.sync_job()
        self.sync_pods()

    def sync_job(self) -> None:
        self._read(json.dumps(self._server.job).encode())

    def _read(self, job: bytes) -> None:
        self._facts = facts(msgspec.json.decode(job, type=JobObject))

    def sync_pods(self) -> None:
        listed = [msgspec.json.decode(json.dumps(pod), type=PodObject) for pod in self._server.pods.values()]
        self._pods = {pod.metadata.uid: pod for pod in listed}
        groups = [msgspec.json.decode(json.dumps(group), type=AnyObject) for group in self._server.groups.values()]
        self._groups = {group.metadata.uid: group.metadata for group in groups}
        templates = [msgspec.json.decode(json.dumps(each), type=AnyObject) for each in self._server.templates.values()]
        self._templates = {template.metadata.uid: template.metadata for template in templates}
        domains = [msgspec.json.decode(json.dumps(each), type=AnyObject) for each in self._server.domains.values()]
        self._domains = {domain.metadata.uid: domain.metadata for domain in domains}
        self._has_service = self._server.service is not None

    async def turn(self) -> bool:
        """One look and the writes that follow from it; whether there was anything to do."""
        view = self.view()
        step = next_step(view)
        try:
            await self._take(view, step)
        except Crash:
            self.restart()
        return bool(step)

    async def _take(self, view: JobContext, step: tuple[Action, ...]) -> None:
        errors: list[Exception] = []
        for action in self._order.sample(step, len(step)):  # in parallel, so in any order; a crash may come in between
            try:
                await self._act(view, action)
            except (write.WriteRefused, ApiError) as error:
                errors.append(error)
        refused = [error for error in errors if isinstance(error, write.WriteRefused)]
        if refused:
            self._setback = GangFailure(refused[0].reason, str(refused[0]))
        elif errors:
            self.sync_job()

    async def _act(self, view: JobContext, action: Action) -> None:
        server: Any = self._server
        match action:
            case WriteStatus(status):
                answer = await write.write_status(server, view.meta, view.status, status, 1)
                self._read(answer)
                if status.plan is None or (view.status.plan and status.plan.epoch != view.status.plan.epoch):
                    self._setback = self._binding_since = None
            case BindPod(name, uid, node):
                self._binding_since = self._binding_since or self.now
                await write.bind(server, "default", name, uid, node)
                self._assumed[uid] = node
            case ReleasePod(name, uid):
                self._binding_since = self._binding_since or self.now
                answer = await write.release(server, "default", name, uid)
                self._pods[uid] = msgspec.json.decode(answer, type=PodObject)
            case CreatePodGroup():
                answer = await write.create(server, POD_GROUPS, pod_group(self._gang(), POD_GROUPS), JOB)
                made_group = msgspec.json.decode(answer, type=AnyObject).metadata
                self._groups[made_group.uid] = made_group
            case DeletePodGroup(name, uid):
                await write.delete_owned(server, POD_GROUPS, "default", name, uid)
                self._deleted[uid] = False
            case CreateClaimTemplate():
                answer = await write.create(server, RESOURCE_CLAIM_TEMPLATES, claim_template(self._gang()), JOB)
                made_template = msgspec.json.decode(answer, type=AnyObject).metadata
                self._templates[made_template.uid] = made_template
            case DeleteClaimTemplate(name, uid):
                await write.delete_owned(server, RESOURCE_CLAIM_TEMPLATES, "default", name, uid)
                self._deleted[uid] = False
            case CreateComputeDomain():
                answer = await write.create(server, COMPUTE_DOMAINS, compute_domain(self._gang()), JOB)
                made_domain = msgspec.json.decode(answer, type=AnyObject).metadata
                self._domains[made_domain.uid] = made_domain
            case DeleteComputeDomain(name, uid):
                await write.delete_owned(server, COMPUTE_DOMAINS, "default", name, uid)
                self._deleted[uid] = False
            case AnnotatePod(name, uid, deadline):
                answer = await write.annotate(server, "default", name, uid, deadline)
                self._pods[uid] = msgspec.json.decode(answer, type=PodObject)
            case DeletePod(uid=uid, force=force):
                await write.delete_pod(server, "default", action)
                self._deleted[uid] = force
            case CreateService():
                await write.create(server, SERVICES, objects.service(self._gang()), JOB)
                self._has_service = True
            case CreatePod(rank):
                made = await write.create(server, PODS, objects.pod(self._gang(), rank), JOB)
                pod = msgspec.json.decode(made, type=PodObject)
                self._pods[pod.metadata.uid] = pod

    def view(self) -> JobContext:
        job = self._facts
        status, nodes = job.status, self._server.nodes
        known = self._pods.keys() | self._groups.keys() | self._templates.keys() | self._domains.keys()
        self._deleted = {uid: force for uid, force in self._deleted.items() if uid in known}
        self._assumed = {uid: node for uid, node in self._assumed.items() if uid in self._pods}
        if status.plan is None:
            self._setback = None
        if status.plan is None or transitions.is_scheduled(status):
            self._binding_since = None
        elif self._server.gated and released(self._pods.values()):
            self._binding_since = self._binding_since or self.now
        planned = [node.name for node in status.plan.nodes] if status.plan else []
        epoch = status.plan.epoch if status.plan else None
        return JobContext(
            meta=job.meta,
            status=status,
            suspended=job.suspended,
            finished=job.finished,
            max_restarts=1000,
            now=self.now,
            backoff=(1.0, 300.0),
            pods=tuple(self._pods.values()),
            assumed=self._assumed,
            deleted=self._deleted,
            has_service=self._has_service,
            gated=self._server.gated,
            pod_groups=tuple(self._groups.values()) if self._server.gated else None,
            claim_templates=tuple(self._templates.values()) if self._server.gated else None,
            compute_domains=tuple(self._domains.values()) if self._server.linked else None,
            linked=status.plan is not None and self._server.linked,
            by_claim=status.plan is not None and self._server.by_claim,
            plan=self._decide(status) if not job.suspended else None,
            order=self._stop,
            unwanted=epoch is not None and self._unwanted == epoch,
            grace_seconds=GRACE_SECONDS,
            report=self._report(status),
            setback=self._setback,
            unavailable={name: nodes.get(name, "deleted") for name in planned if nodes.get(name, "deleted")},
            lost={name: "deleted" for name in planned if name not in nodes},
            gone_nodes=frozenset(n for pod in self._pods.values() if (n := pod.spec.node_name) and n not in nodes),
            binding_overdue=self._binding_since is not None and self.now - self._binding_since >= 5,
        )

    def order(self, *, goes_on: bool) -> None:
        """A decision that the gang is to stop for another job, or to go on elsewhere."""
        status = self._facts.status
        if status.plan is None or self._facts.finished:
            return
        successor = self._decide(status) if goes_on else None
        cause = StopCause.MOVED if goes_on else StopCause.PREEMPTED
        self._stop = StopOrder(
            epoch=status.plan.epoch, cause=cause, message="for others", beneficiary="default/other", successor=successor
        )
        self._unwanted = None

    def withdraw(self) -> None:
        """A decision that it need not."""
        self._stop, self._unwanted = None, self._facts.status.last_epoch

    def _report(self, status: JobStatus) -> GangReport | None:
        """What the training has said, where it says anything; as `controller.progress` hands it on."""
        server, stop = self._server, status.stop
        if server.steps == 1 or status.plan is None:
            return None
        saved = server.saved or None
        answered = stop is not None and server.answered == (stop.epoch, stop.requested_time)
        return GangReport(
            status.plan.epoch, server.step, server.steps, self.now, checkpoint_step=saved, acknowledged=answered
        )

    def _decide(self, status: JobStatus) -> Any:
        usable = [name for name, why in self._server.nodes.items() if not why]
        if len(usable) < 2 or (status.retry_time and status.retry_time.timestamp() > self.now):
            return None
        moment = datetime.fromtimestamp(int(self.now), UTC)
        chosen = placement_on(UID, dict.fromkeys(self._order.sample(usable, 2), 4))
        resource = names.DEVICE_CLASS_RESOURCE + names.NVIDIA_DRIVER if self._server.by_claim else names.NVIDIA_GPU
        return plan_of(chosen, (status.last_epoch or 0) + 1, now=moment, resource=resource)

    def _gang(self) -> objects.GangPlan:
        job = self._facts
        assert job.status.plan
        assert job.spec
        assert job.training
        gated = self._server.gated
        scheduler = "trimtab" if gated else ""
        epoch = str(job.status.plan.epoch)
        return gang_plan(
            job.meta,
            job.spec,
            job.template,
            job.training,
            job.status.plan,
            scheduler=scheduler,
            grouped=gated,
            domained=any(domain.labels[names.LABEL_EPOCH] == epoch for domain in self._domains.values()),
        )

    @property
    def complete(self) -> bool:
        return conditions.holds(self._server.status.conditions, names.COMPLETE)
