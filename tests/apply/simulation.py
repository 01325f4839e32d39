"""A tiny API server that judges, and a controller that sees it late: what the life of a job is tried out on.

`Server` keeps one job, its Service and its pods, answers the writes of `trimtab.apply.write` as the real one would, and
checks after each of them that nothing forbidden has happened. `Controller` is the loop of the real drivers, reduced to
what matters: it looks at its own copy, asks `next_step`, sends the writes, and remembers only what was answered.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from tests.builders import JOB_SPEC, plan_of
from tests.builders import placement as placement_on

from trimtab import names
from trimtab.api import conditions
from trimtab.api.status import JobStatus
from trimtab.apply import transitions, write
from trimtab.apply.steps import (
    Action,
    BindPod,
    CreatePod,
    CreateService,
    DeletePod,
    Setback,
    View,
    WriteStatus,
    next_step,
)
from trimtab.errors import AlreadyExists, ApiError, Conflict, NotFound, Overloaded, Unreachable
from trimtab.kube.objects import JobObject, PodObject
from trimtab.kube.resources import PODS, SERVICES
from trimtab.observe.jobs import facts
from trimtab.plan import objects
from trimtab.plan.gang import gang_plan

UID = "uid-job"
ENDED = ("Succeeded", "Failed")
FAULTS = ["ok", "lost", "unreachable", "overloaded", "crash before", "crash after"]


class Crash(BaseException):
    """The controller was killed."""


class Server:
    """The API server, its kubelets, and the oracle."""

    def __init__(self, nodes: int = 4) -> None:
        self.version = 1
        self.job: dict[str, Any] = {
            "metadata": {"name": "job", "namespace": "default", "uid": UID, "generation": 1, "resourceVersion": "1"},
            "spec": json.loads(json.dumps(JOB_SPEC)) | {"maxRestarts": 1000},
            "status": {},
        }
        self.pods: dict[str, dict[str, Any]] = {}
        self.service: dict[str, Any] | None = None
        self.nodes = {f"n{i}": "" for i in range(nodes)}
        """Node -> why it takes no pods."""
        self._status: tuple[Any, JobStatus] = (None, JobStatus())
        self.writes = 0
        self.plans: dict[int, Any] = {}
        self.fault: Callable[[], str] = lambda: "ok"

    # --- the interface of KubeClient that `write` uses ---------------------------------------------------------------
    async def get(self, path: str) -> bytes:
        return self._answer(lambda: self._find(path))

    async def create(self, path: str, obj: dict[str, Any]) -> bytes:
        return self._answer(lambda: self._create(path, obj), counts=True)

    async def bind(self, namespace: str, pod: str, uid: str, node: str) -> None:
        self._answer(lambda: self._bind(pod, uid, node), counts=True)

    async def delete(self, path: str, *, uid: str, grace_seconds: int | None = None) -> bytes:
        return self._answer(lambda: self._delete(path.rpartition("/")[2], uid, grace_seconds), counts=True)

    async def merge_patch(self, path: str, patch: dict[str, Any], *, subresource: str) -> bytes:
        return self._answer(lambda: self._patch(patch), counts=True)

    def _answer(self, act: Callable[[], dict[str, Any]], *, counts: bool = False) -> bytes:
        fault = self.fault()
        if fault == "crash before":
            raise Crash
        if fault == "unreachable":
            raise Unreachable("connection refused")
        if fault == "overloaded":
            raise Overloaded("try later", status=503)
        result = act()
        self.writes += counts
        self.judge()
        if fault == "crash after":
            raise Crash
        if fault == "lost":
            raise Unreachable("the reply was lost")
        return json.dumps(result).encode()

    def _find(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        found = self.pods.get(name) if "/pods/" in path else self.service if "/services/" in path else self.job
        if found is None:
            raise NotFound(f"{name} not found", status=404)
        return found

    def _create(self, path: str, obj: dict[str, Any]) -> dict[str, Any]:
        name = obj["metadata"]["name"]
        created = json.loads(json.dumps(obj)) | {"status": {"phase": "Pending"}}
        created["metadata"] |= {"uid": f"{name}-{self._tick()}", "resourceVersion": str(self.version)}
        if path == SERVICES.path("default"):
            if self.service:
                raise AlreadyExists("exists", status=409)
            self.service = created
            return created
        assert path == PODS.path("default")
        if name in self.pods:
            raise AlreadyExists("exists", status=409)
        self.pods[name] = created
        return created

    def _bind(self, name: str, uid: str, node: str) -> dict[str, Any]:
        pod = self.pods.get(name)
        if pod is None:
            raise NotFound("no such pod", status=404)
        if pod["metadata"]["uid"] != uid or pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
            raise Conflict("already assigned, another one, or being deleted", status=409)
        plan = self.status.plan
        assert plan, "a pod is bound without a plan"
        assert pod["metadata"]["labels"][names.LABEL_EPOCH] == str(plan.epoch), "a pod of an old plan is bound"
        assert node == plan.nodes[int(pod["metadata"]["labels"][names.LABEL_RANK])].name, "a pod is bound off its plan"
        pod["spec"]["nodeName"] = node
        self._tick()
        return {}

    def _delete(self, name: str, uid: str, grace: int | None) -> dict[str, Any]:
        pod = self.pods.get(name)
        if pod is None:
            raise NotFound("no such pod", status=404)
        if pod["metadata"]["uid"] != uid:
            raise Conflict("another pod of that name", status=409)
        self._tick()
        if grace == 0 or not pod["spec"].get("nodeName") or pod["status"]["phase"] in ENDED:
            del self.pods[name]
        else:
            pod["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
        return {}

    def _patch(self, patch: dict[str, Any]) -> dict[str, Any]:
        if patch["metadata"]["resourceVersion"] != self.job["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified", status=409)
        before = self.status
        self.job["status"] = merged(self.job["status"], patch["status"])
        self.touch()
        plan, last = self.status.plan, self.status.last_epoch or 0
        assert last >= (before.last_epoch or 0), "an epoch went back"
        if plan:
            assert plan.epoch == last
            assert before.plan or plan.epoch > (before.last_epoch or 0), "an epoch was used twice"
            assert self.plans.setdefault(plan.epoch, plan) == plan, "a plan was changed"
        return self.job

    # --- what others do -----------------------------------------------------------------------------------------
    def kubelet(self) -> None:
        """Every pod on a living node goes one step further."""
        for name, pod in list(self.pods.items()):
            if pod["spec"].get("nodeName") not in self.nodes:
                continue
            if "deletionTimestamp" in pod["metadata"]:
                del self.pods[name]
            elif pod["status"]["phase"] == "Pending":
                pod["status"]["phase"] = "Running"
            elif pod["status"]["phase"] == "Running" and self.ready():
                pod["status"]["phase"] = "Succeeded"
        self._tick()

    def ready(self) -> bool:
        """Training goes on only while the whole gang runs."""
        alive = [pod for pod in self.pods.values() if pod["status"]["phase"] in ("Running", "Succeeded")]
        plan = self.status.plan
        return plan is not None and len(alive) == len(self.pods) == len(plan.nodes)

    def fail(self, index: int) -> None:
        running = [pod for pod in self.pods.values() if pod["status"]["phase"] == "Running"]
        if running:
            running[index % len(running)]["status"]["phase"] = "Failed"
            self._tick()

    def remove(self, index: int, *, at_once: bool) -> None:
        """Somebody deletes a pod."""
        if self.pods:
            name = sorted(self.pods)[index % len(self.pods)]
            self._delete(name, self.pods[name]["metadata"]["uid"], 0 if at_once else None)

    def edit(self, **spec: Any) -> None:
        """Somebody edits the job."""
        self.job["spec"] |= spec
        self.job["metadata"]["generation"] += 1
        self.touch()

    # --- the oracle ---------------------------------------------------------------------------------------------
    @property
    def status(self) -> JobStatus:
        told = self.job["status"]
        if self._status[0] is not told:
            self._status = told, JobStatus.model_validate(told)
        return self._status[1]

    def judge(self) -> None:
        """What must hold after every write."""
        live = [pod for pod in self.pods.values() if pod["status"]["phase"] not in ENDED]
        ranks = [(p["metadata"]["labels"][names.LABEL_EPOCH], p["metadata"]["labels"][names.LABEL_RANK]) for p in live]
        assert len(ranks) == len(set(ranks)), "two live pods of one rank"
        on_nodes = {p["metadata"]["labels"][names.LABEL_EPOCH] for p in live if p["spec"].get("nodeName")}
        assert len(on_nodes) <= 1, "two gangs of one job at once"

    def touch(self) -> None:
        self.job["metadata"]["resourceVersion"] = str(self._tick())

    def _tick(self) -> int:
        self.version += 1
        return self.version


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


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
        self._setback: Setback | None = None
        self._binding_since: float | None = None
        self.sync_job()
        self.sync_pods()

    def sync_job(self) -> None:
        self._read(json.dumps(self._server.job).encode())

    def _read(self, job: bytes) -> None:
        self._facts = facts(msgspec.json.decode(job, type=JobObject))

    def sync_pods(self) -> None:
        listed = [msgspec.json.decode(json.dumps(pod), type=PodObject) for pod in self._server.pods.values()]
        self._pods = {pod.metadata.uid: pod for pod in listed}
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

    async def _take(self, view: View, step: tuple[Action, ...]) -> None:
        errors: list[Exception] = []
        for action in self._order.sample(step, len(step)):  # in parallel, so in any order; a crash may come in between
            try:
                await self._act(view, action)
            except (write.Refused, ApiError) as error:
                errors.append(error)
        refused = [error for error in errors if isinstance(error, write.Refused)]
        if refused:
            self._setback = Setback(refused[0].reason, str(refused[0]))
        elif errors:
            self.sync_job()

    async def _act(self, view: View, action: Action) -> None:
        server: Any = self._server
        match action:
            case WriteStatus(status):
                answer = await write.write_status(server, view.meta, view.status, status, 1)
                self._read(answer)
                if status.plan is None:
                    self._setback = self._binding_since = None
            case BindPod(name, uid, node):
                self._binding_since = self._binding_since or self.now
                await write.bind(server, "default", name, uid, node)
                self._assumed[uid] = node
            case DeletePod(name, uid, force):
                await write.delete_pod(server, "default", name, uid, force=force)
                self._deleted[uid] = force
            case CreateService():
                await write.create(server, SERVICES, objects.service(self._gang()), UID)
                self._has_service = True
            case CreatePod(rank):
                made = await write.create(server, PODS, objects.pod(self._gang(), rank), UID)
                pod = msgspec.json.decode(made, type=PodObject)
                self._pods[pod.metadata.uid] = pod

    def view(self) -> View:
        job = self._facts
        status, nodes = job.status, self._server.nodes
        self._deleted = {uid: force for uid, force in self._deleted.items() if uid in self._pods}
        self._assumed = {uid: node for uid, node in self._assumed.items() if uid in self._pods}
        if status.plan is None:
            self._setback = None
        if status.plan is None or transitions.is_scheduled(status):
            self._binding_since = None
        planned = [node.name for node in status.plan.nodes] if status.plan else []
        return View(
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
            plan=self._decide(status) if not job.suspended else None,
            setback=self._setback,
            unavailable={name: nodes.get(name, "deleted") for name in planned if nodes.get(name, "deleted")},
            lost={name: "deleted" for name in planned if name not in nodes},
            gone_nodes=frozenset(n for pod in self._pods.values() if (n := pod.spec.node_name) and n not in nodes),
            binding_overdue=self._binding_since is not None and self.now - self._binding_since >= 5,
        )

    def _decide(self, status: JobStatus) -> Any:
        usable = [name for name, why in self._server.nodes.items() if not why]
        if len(usable) < 2 or (status.retry_time and status.retry_time.timestamp() > self.now):
            return None
        moment = datetime.fromtimestamp(int(self.now), UTC)
        chosen = placement_on(UID, dict.fromkeys(self._order.sample(usable, 2), 4))
        return plan_of(chosen, (status.last_epoch or 0) + 1, now=moment)

    def _gang(self) -> objects.GangPlan:
        job = self._facts
        assert job.status.plan
        assert job.spec
        assert job.training
        return gang_plan(job.meta, job.spec, job.template, job.training, job.status.plan)

    @property
    def complete(self) -> bool:
        return conditions.holds(self._server.status.conditions, names.COMPLETE)
