"""Plan -> the objects that must exist: one headless Service and one pod per node, as plain dicts.

Everything is derived from the job and the plan in its status, so that a controller that starts anew makes the very
same objects: names are deterministic (`JOB-EPOCH-RANK`), and making one that exists already changes nothing.
The user's pod template stays as it is but for what the plan decides: GPU limits, ranks, flags, environment, scheduler.
"""

from __future__ import annotations

import copy
from typing import Any

from msgspec import Struct

from trimtab import names
from trimtab.api.template import trainer_of
from trimtab.plan.launch import DEEPSPEED_CONFIG_PATH, Gang, Launch, launch
from trimtab_policy.specs import ParallelPlan, TrainingSpec
from trimtab_policy.types import NodeShare

Object = dict[str, Any]


class GangPlan(Struct, frozen=True):
    """A planned job: all that its objects are made of."""

    namespace: str
    job: str
    uid: str
    epoch: int
    gpu_type: str
    gpu_resource: str
    """Extended resource that the nodes offer, e.g. `nvidia.com/gpu`."""
    shares: tuple[NodeShare, ...]
    plan: ParallelPlan
    training: TrainingSpec
    layers: int
    launcher: str
    template: Object
    priority_class: str = ""
    cpus_per_gpu_milli: int = 0
    memory_per_gpu: int = 0
    annotations: dict[str, dict[str, str]] = {}
    """Pod name -> further annotations (fake mode's run times)."""

    def pod_name(self, rank: int) -> str:
        """Name of the pod of a node rank; deterministic, so that creating it twice is creating it once."""
        return pod_name(self.job, self.epoch, rank)


def pod_name(job: str, epoch: int, rank: int) -> str:
    """`JOB-EPOCH-RANK`: no epoch ever meets the pods of another."""
    return f"{job}-{epoch}-{rank}"


def service(plan: GangPlan) -> Object:
    """The headless Service under which the ranks find one another before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": plan.job,
            "namespace": plan.namespace,
            "labels": {names.LABEL_JOB: plan.job},
            "ownerReferences": [_owner(plan)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.LABEL_JOB: plan.job},
        },
    }


def pod(plan: GangPlan, rank: int) -> Object:
    """The pod of a node rank."""
    share = plan.shares[rank]
    started = launch(plan.launcher, _gang(plan), rank)
    template = copy.deepcopy(plan.template)
    meta = template.get("metadata") or {}
    name = plan.pod_name(rank)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": plan.namespace,
            "labels": {**(meta.get("labels") or {}), **_labels(plan, rank)},
            "annotations": {**(meta.get("annotations") or {}), **_annotations(plan, name, share, started)},
            "ownerReferences": [_owner(plan)],
        },
        "spec": _pod_spec(plan, template["spec"], name, share, started),
    }


def _pod_spec(plan: GangPlan, spec: Object, name: str, share: NodeShare, started: Launch) -> Object:
    _equip(plan, trainer_of(spec["containers"]), share, started)
    spec |= {
        "schedulerName": names.SCHEDULER_NAME,
        "restartPolicy": "Never",
        "hostname": name,
        "subdomain": plan.job,
        "tolerations": [*(spec.get("tolerations") or []), {"key": plan.gpu_resource, "operator": "Exists"}],
        "volumes": [*(spec.get("volumes") or []), *_volumes(spec, started)],
    }
    if plan.priority_class:
        spec["priorityClassName"] = plan.priority_class
    return spec


def _equip(plan: GangPlan, trainer: Object, share: NodeShare, started: Launch) -> None:
    """Give the trainer container its GPUs, flags, environment and mounts. The user's own environment wins."""
    resources = trainer.setdefault("resources", {})
    asked: Object = {plan.gpu_resource: str(share.gpus)}
    if plan.cpus_per_gpu_milli:
        asked["cpu"] = f"{plan.cpus_per_gpu_milli * share.gpus}m"
    if plan.memory_per_gpu:
        asked["memory"] = str(plan.memory_per_gpu * share.gpus)
    for kind in ("requests", "limits"):
        resources[kind] = {**(resources.get(kind) or {}), **asked}
    own = trainer.get("env") or []
    taken = {entry["name"] for entry in own}
    trainer["env"] = [{"name": k, "value": v} for k, v in started.env.items() if k not in taken] + own
    if started.args:
        trainer["args"] = [*(trainer.get("args") or []), *started.args]
    mounts = trainer.setdefault("volumeMounts", [])
    if not any(mount["mountPath"] == "/dev/shm" for mount in mounts):
        mounts.append({"name": "trimtab-shm", "mountPath": "/dev/shm"})
    if started.deepspeed_config:
        directory = DEEPSPEED_CONFIG_PATH.rpartition("/")[0]
        mounts.append({"name": "trimtab-launch", "mountPath": directory, "readOnly": True})


def _volumes(spec: Object, started: Launch) -> list[Object]:
    """Shared memory for the data loader and NCCL, and the DeepSpeed file from the pod's own annotation."""
    used = {mount["name"] for container in spec["containers"] for mount in container.get("volumeMounts") or []}
    volumes: list[Object] = []
    if "trimtab-shm" in used:
        volumes.append({"name": "trimtab-shm", "emptyDir": {"medium": "Memory"}})
    if started.deepspeed_config:
        source = f"metadata.annotations['{names.ANNOTATION_DEEPSPEED}']"
        item = {"path": DEEPSPEED_CONFIG_PATH.rpartition("/")[2], "fieldRef": {"fieldPath": source}}
        volumes.append({"name": "trimtab-launch", "downwardAPI": {"items": [item]}})
    return volumes


def _labels(plan: GangPlan, rank: int) -> dict[str, str]:
    return {names.LABEL_JOB: plan.job, names.LABEL_EPOCH: str(plan.epoch), names.LABEL_RANK: str(rank)}


def _annotations(plan: GangPlan, name: str, share: NodeShare, started: Launch) -> dict[str, str]:
    values = {
        names.ANNOTATION_NODE: share.node,
        names.ANNOTATION_PLAN: f"{plan.plan.gpus}×{plan.gpu_type} {plan.plan.describe()}",
    }
    if started.deepspeed_config:
        values[names.ANNOTATION_DEEPSPEED] = started.deepspeed_config
    return values | plan.annotations.get(name, {})


def _owner(plan: GangPlan) -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.JOB_KIND,
        "name": plan.job,
        "uid": plan.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _gang(plan: GangPlan) -> Gang:
    return Gang(
        job=plan.job,
        epoch=plan.epoch,
        gpu_type=plan.gpu_type,
        nodes=len(plan.shares),
        gpus_per_node=plan.shares[0].gpus,
        master_address=f"{plan.pod_name(0)}.{plan.job}",
        plan=plan.plan,
        training=plan.training,
        layers=plan.layers,
    )
