"""A tiny API server that judges: it keeps one job, its Service and its pods.

It answers the writes of `trimtab.apply.write` as the real one would, plays kubelets, kube-scheduler and the training
when it is told to, and checks after each write that nothing forbidden has happened.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from tests.builders import JOB_SPEC

from trimtab import names
from trimtab.api import conditions
from trimtab.api.status import JobStatus
from trimtab.errors import AlreadyExists, Conflict, NotFound, Overloaded, Unreachable
from trimtab.kube.objects import Identity
from trimtab.kube.resources import COMPUTE_DOMAINS, POD_GROUPS, PODS, RESOURCE_CLAIM_TEMPLATES, SERVICES

UID = "uid-job"
JOB = Identity("default/job", UID)
ENDED = ("Succeeded", "Failed")
FAULTS = ["ok", "lost", "unreachable", "overloaded", "crash before", "crash after"]


class Crash(BaseException):
    """The controller was killed."""


class Server:
    """The API server, its kubelets, and the oracle."""

    def __init__(
        self, nodes: int = 4, *, gated: bool = False, by_claim: bool = False, linked: bool = False, steps: int = 1
    ) -> None:
        self.version = 1
        self.steps, self.step, self.saved = steps, 0, 0
        """Of the training: all of them, those that the gang has done, and those that the last checkpoint keeps."""
        self.answered: tuple[int, datetime] | None = None
        """Epoch of the gang, and time of the request, that the trainer has answered."""
        self.gated = gated
        """Extender binding: kube-scheduler binds, once a pod's gate is gone."""
        self.by_claim = by_claim
        """Pods of a gang claim their GPUs, by a template."""
        self.groups: dict[str, dict[str, Any]] = {}
        self.templates: dict[str, dict[str, Any]] = {}
        self.linked = linked
        """Gangs get a ComputeDomain."""
        self.domains: dict[str, dict[str, Any]] = {}
        self.ever: set[tuple[str, str]] = set()
        """Epoch and rank of every pod that was ever created."""
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

    async def create(self, path: str, obj: dict[str, Any], *, strict: bool = False) -> bytes:
        return self._answer(lambda: self._create(path, obj), counts=True)

    async def bind(self, namespace: str, pod: str, uid: str, node: str) -> None:
        self._answer(lambda: self._bind(pod, uid, node), counts=True)

    async def delete(self, path: str, *, uid: str, grace_seconds: int | None = None) -> bytes:
        name = path.rpartition("/")[2]
        for kind, there in self._owned.items():
            if f"/{kind}/" in path:
                return self._answer(partial(self._delete_owned, there, name), counts=True)
        return self._answer(lambda: self._delete(name, uid, grace_seconds), counts=True)

    async def strategic_patch(self, path: str, patch: dict[str, Any]) -> bytes:
        act = self._annotate if "annotations" in patch["metadata"] else self._release
        return self._answer(lambda: act(path.rpartition("/")[2], patch), counts=True)

    async def merge_patch(self, path: str, patch: dict[str, Any], *, subresource: str) -> bytes:
        return self._answer(lambda: self._patch(patch), counts=True)

    @property
    def _owned(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What a gang has besides its pods, by kind and name."""
        return {
            POD_GROUPS.plural: self.groups,
            RESOURCE_CLAIM_TEMPLATES.plural: self.templates,
            COMPUTE_DOMAINS.plural: self.domains,
        }

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
        of_kind = {
            "pods": self.pods.get(name),
            "services": self.service,
        } | {kind: there.get(name) for kind, there in self._owned.items()}
        kind = path.split("/")[-2]
        found = of_kind.get(kind, self.job)
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
        for kind, there in self._owned.items():
            if path.endswith(f"/{kind}"):
                if name in there:
                    raise AlreadyExists("exists", status=409)
                there[name] = created
                return created
        assert path == PODS.path("default")
        if name in self.pods:
            raise AlreadyExists("exists", status=409)
        if self.gated:
            assert created["spec"]["schedulingGroup"]["podGroupName"] in self.groups, "a pod comes before its group"
        claimed = {claim["resourceClaimTemplateName"] for claim in created["spec"].get("resourceClaims", [])}
        assert claimed <= self._claimable, "a pod comes before the template of its claims"
        epoch, _ = _seat(created)
        holding = {_seat(pod)[0] for pod in self.pods.values() if pod["spec"].get("nodeName")}
        assert holding <= {epoch}, "a pod is made while pods of an earlier gang hold GPUs"
        if epoch not in {_seat(pod)[0] for pod in self.pods.values()}:
            self.step = self.saved  # where the training goes on
        self.pods[name] = created
        self.ever.add(_seat(created))
        return created

    def _release(self, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        pod = self.pods.get(name)
        if pod is None:
            raise NotFound("no such pod", status=404)
        if pod["metadata"]["uid"] != patch["metadata"]["uid"]:
            raise Conflict("another one", status=409)
        plan = self.status.plan
        assert plan, "a pod is released without a plan"
        assert _seat(pod)[0] == str(plan.epoch), "a pod of an old plan is released"
        assert {(str(plan.epoch), str(rank)) for rank in range(len(plan.nodes))} <= self.ever, "a gang is not whole"
        pod["spec"]["schedulingGates"] = []
        self._tick()
        return pod

    def _annotate(self, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        pod = self.pods.get(name)
        if pod is None:
            raise NotFound("no such pod", status=404)
        if pod["metadata"]["uid"] != patch["metadata"]["uid"]:
            raise Conflict("another one", status=409)
        pod["metadata"]["annotations"] |= patch["metadata"]["annotations"]
        self._tick()
        return pod

    @property
    def _claimable(self) -> set[str]:
        """Templates of claims, with those that NVIDIA's driver makes."""
        return {*self.templates, *(f"{domain}-channel" for domain in self.domains)}

    def _delete_owned(self, there: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
        if there.pop(name, None) is None:
            raise NotFound("no such object", status=404)
        living = {_seat(pod)[0] for pod in self.pods.values() if pod["status"]["phase"] not in ENDED}
        assert name.rpartition("-")[2] not in living, "what pods of a gang need goes before them"
        self._tick()
        return {}

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
        self._judge_stop(before, self.status)
        assert last >= (before.last_epoch or 0), "an epoch went back"
        if plan:
            assert plan.epoch == last
            assert before.plan or plan.epoch > (before.last_epoch or 0), "an epoch was used twice"
            assert self.plans.setdefault(plan.epoch, plan) == plan, "a plan was changed"
        return self.job

    def _judge_stop(self, before: JobStatus, after: JobStatus) -> None:
        if after.stop:
            assert after.plan, "a gang without a plan is asked to stop"
            assert after.stop.epoch == after.plan.epoch, "a gang is asked for another one"
        if before.plan and after.plan and before.plan.epoch != after.plan.epoch:
            ran = conditions.holds(before.conditions, names.PODS_READY)
            assert not ran or (before.stop and before.stop.successor == after.plan), "a running gang was not asked"
        kept = after.observed.last_checkpoint_step or 0 if after.observed else 0
        assert kept <= self.saved, "a checkpoint is claimed that nobody has saved"
        assert kept >= (before.observed.last_checkpoint_step or 0 if before.observed else 0), (
            "a checkpoint is forgotten"
        )

    # --- what others do -----------------------------------------------------------------------------------------
    def kubelet(self) -> None:
        """Every pod on a living node goes one step further, and the training with them."""
        self.step += self.ready()
        for name, pod in list(self.pods.items()):
            if pod["spec"].get("nodeName") not in self.nodes:
                continue
            if "deletionTimestamp" in pod["metadata"]:
                del self.pods[name]
            elif pod["status"]["phase"] == "Pending":
                pod["status"]["phase"] = "Running"
            elif pod["status"]["phase"] == "Running" and self.ready() and self.step >= self.steps:
                pod["status"]["phase"] = "Succeeded"
        self._tick()

    def scheduler(self, index: int | None = None) -> None:
        """Some pod that may be bound, or all of them, gets the node that it is pinned to."""
        released = [pod for _, pod in sorted(self.pods.items()) if not pod["spec"].get("schedulingGates")]
        waiting = [pod for pod in released if not pod["spec"].get("nodeName") and self.gated]
        for pod in waiting if index is None else waiting[index % len(waiting) :][:1] if waiting else []:
            terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            [node] = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"]
            claimed = {claim["resourceClaimTemplateName"] for claim in pod["spec"].get("resourceClaims", [])}
            assert len(claimed) == self.by_claim + self.linked
            free = self.nodes.get(node) == "" and claimed <= self._claimable
            if free and "deletionTimestamp" not in pod["metadata"]:
                pod["spec"]["nodeName"] = node
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

    def save(self) -> None:
        """The training saves its state, as it does from time to time."""
        if self.ready():
            self.saved = min(self.step, self.steps)

    def answer(self) -> None:
        """The trainer has heard of a request, and does as it is told."""
        stop = self.status.stop
        if stop and self.ready():
            self.save()
            self.answered = stop.epoch, stop.requested_time

    def leave(self, index: int) -> None:
        """A trainer that was asked to save its state ends."""
        asked = [
            pod
            for pod in self.pods.values()
            if names.ANNOTATION_CHECKPOINT in pod["metadata"]["annotations"] and pod["status"]["phase"] == "Running"
        ]
        if asked:
            self.save()
            ended = {"name": "trainer", "state": {"terminated": {"exitCode": names.EXIT_CHECKPOINTED}}}
            asked[index % len(asked)]["status"] = {"phase": "Failed", "containerStatuses": [ended]}
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


def _seat(pod: dict[str, Any]) -> tuple[str, str]:
    labels = pod["metadata"]["labels"]
    return labels[names.LABEL_EPOCH], labels[names.LABEL_RANK]


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
