"""Builders of the values and objects that all tests speak about: small, valid, and changed by keyword.

Two families: values as policies see them (`node`, `job`, `snapshot`, `placement`), and objects as the API server sends
them (`node_object`, `pod_object`, `job_object`), which `trimtab.observe` turns into the former.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from trimtab import names
from trimtab.api.convert import to_plan
from trimtab.api.status import JobStatus, Leaving, Plan
from trimtab.kube.objects import (
    GpuNodeObject,
    Identity,
    JobObject,
    Meta,
    NodeObject,
    PodObject,
    PriorityClassObject,
    QueueObject,
)
from trimtab_policy import catalog
from trimtab_policy.perf import plans
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.specs import ParallelPlan, Prediction, TrainingSpec
from trimtab_policy.types import Bounds, Job, Node, NodeShare, Placement, Quota, Requirements, Snapshot, StopCause

NOW = 1_767_323_045.0
"""2026-01-02 03:04:05 UTC."""
MOMENT = datetime.fromtimestamp(NOW, UTC)
A100, H100, V100, T4 = "A100-SXM4-80GB", "H100-SXM5-80GB", "V100-SXM2-16GB", "T4"
PRODUCTS = {
    A100: ("NVIDIA-A100-SXM4-80GB", 81920),
    H100: ("NVIDIA-H100-80GB-HBM3", 81559),
    V100: ("Tesla-V100-SXM2-16GB", 16384),
    T4: ("Tesla-T4", 15360),
}
"""Product label and memory in MiB, as GPU Feature Discovery writes them."""


# --- values ------------------------------------------------------------------------------------------
def node(name: str, gpu_type: str = A100, free: int | None = None, **changes: Any) -> Node:
    """A node with 8 GPUs, all free, and plenty of everything else."""
    gpus = changes.pop("gpus", 8)
    defaults: dict[str, Any] = {"free_cpu_milli": 128_000, "free_memory": 1 << 40, "free_pods": 100}
    return Node(name, gpu_type, gpus, gpus if free is None else free, **(defaults | changes))


def job(name: str = "job", *, gpus: tuple[int, int] = (1, 8), model: str = "gpt2", **changes: Any) -> Job:
    """A waiting job; fields of its training and its requirements are keywords, too."""
    training = {"sequence_length": 1024, "global_batch_size": 64, "steps": 1000} | _take(TrainingSpec, changes)
    requirements = {"gpus": Bounds(*gpus)} | _take(Requirements, changes)
    defaults = {"uid": f"uid-{name}", "namespace": "default", "created": NOW - 60}
    return Job(
        name=name,
        model=catalog.model(model),
        training=TrainingSpec(**training),
        requirements=Requirements(**requirements),
        **(defaults | changes),
    )


def _take(kind: type[msgspec.Struct], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: changes.pop(name) for name in kind.__struct_fields__ if name in changes}


def snapshot(
    nodes: Iterable[Node], jobs: Iterable[Job] = (), *, quotas: Iterable[Quota] = (), **changes: Any
) -> Snapshot:
    """The cluster at `NOW`; GPU facts come from the catalogue."""
    nodes = tuple(nodes)
    types = {name: catalog.gpu(name) for name in sorted({each.gpu_type for each in nodes})}
    return Snapshot(time=NOW, nodes=nodes, jobs=tuple(jobs), gpu_types=types, quotas=tuple(quotas), **changes)


def placement(
    uid: str = "uid-job",
    nodes: Mapping[str, int] | None = None,
    gpu_type: str = A100,
    plan: ParallelPlan | None = None,
    prediction: Prediction | None = None,
) -> Placement:
    """A placement on these nodes (name -> GPUs); data-parallel unless a plan is given."""
    shares = tuple(NodeShare(name, gpus) for name, gpus in (nodes or {"n1": 8}).items())
    degrees = plan or ParallelPlan(data=sum(share.gpus for share in shares), zero_stage=1)
    figures = prediction or Prediction(
        step_seconds=0.5, tokens_per_second=131_072.0, memory_bytes=1 << 33, run_seconds=500.0
    )
    return Placement(uid, gpu_type, shares, degrees, figures, reason="because")


def running(
    name: str, nodes: Mapping[str, int], gpu_type: str = A100, *, finish: float | None = None, **changes: Any
) -> Job:
    """A job that holds GPUs of these nodes. The nodes' `free` is up to the caller."""
    held = placement(f"uid-{name}", nodes, gpu_type)
    return job(name, placement=held, expected_finish=finish, **changes)


def capacity(*nodes: Node, **changes: Any) -> Capacity:
    """What is free in a cluster of these nodes."""
    return Capacity(snapshot(nodes, **changes))


# --- objects ------------------------------------------------------------------------------------------
JOB_SPEC: dict[str, Any] = {
    "model": {"preset": "gpt2"},
    "training": {"sequenceLength": 1024, "globalBatchSize": 64, "steps": 1000},
    "resources": {"gpus": {"min": 1, "max": 8}},
    "template": {"spec": {"containers": [{"name": "trainer", "image": "trainer:1"}]}},
}


def changed(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with values set by dotted path (numbers index lists); None takes the field away."""
    result: dict[str, Any] = copy.deepcopy(dict(tree))
    for path, value in changes.items():
        *parents, last = path.split(".")
        place: Any = result
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return result


def node_object(name: str, gpu_type: str | None = A100, **changes: Any) -> NodeObject:
    """A Ready v1.Node with 8 NVIDIA GPUs. `labels` and `allocatable` are added, None takes one away."""
    labels: dict[str, str | None] = {names.HOSTNAME: name}
    if gpu_type:
        product, memory = PRODUCTS[gpu_type]
        labels |= {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": str(memory)}
    allocatable: dict[str, str | None] = {"cpu": "128", "memory": "1Ti", "pods": "110", names.NVIDIA_GPU: "8"}
    labels |= changes.pop("labels", {})
    allocatable |= changes.pop("allocatable", {})
    raw = {
        "metadata": {"name": name, "uid": f"node-{name}", "labels": _present(labels)} | changes.pop("metadata", {}),
        "spec": changes.pop("spec", {}),
        "status": {
            "allocatable": _present(allocatable),
            "conditions": [{"type": "Ready", "status": changes.pop("ready", "True")}],
        },
    }
    assert not changes, changes
    return msgspec.convert(raw, NodeObject)


def _present(table: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in table.items() if value is not None}


def owned_by(job: str, **changes: Any) -> dict[str, Any]:
    """The ownerReference of what belongs to the job of this name."""
    made = {"apiVersion": names.API_VERSION, "kind": names.JOB_KIND, "name": job, "uid": f"uid-{job}"}
    return {**made, "controller": True, **changes}


def leaving(job: str, epoch: int = 1, namespace: str = "default") -> Leaving:
    """A gang that was asked to make room, as plans name it."""
    identity = Identity(f"{namespace}/{job}", f"uid-{job}")
    return Leaving(job=identity.key, digest=identity.digest, epoch=epoch, cause=StopCause.PREEMPTED)


def pod_object(
    name: str, node: str = "", *, gpus: int = 0, owner: str = "", phase: str = "Running", **changes: Any
) -> PodObject:
    """A v1.Pod with one container, of the gang of the job `owner` if that is named. `labels`, `metadata`, `spec` and
    `status` are merged in."""
    limits = {names.NVIDIA_GPU: str(gpus)} if gpus else {}
    owners = [owned_by(owner)] if owner else []
    meta = {"name": name, "namespace": "default", "uid": f"pod-{name}", "labels": changes.pop("labels", {})}
    raw = {
        "metadata": meta | {"ownerReferences": owners} | changes.pop("metadata", {}),
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}],
        }
        | changes.pop("spec", {}),
        "status": {"phase": phase} | changes.pop("status", {}),
    }
    assert not changes, changes
    return msgspec.convert(raw, PodObject)


def gang_pod(
    job: str, epoch: int, rank: int, node: str = "", *, gpus: int = 8, phase: str = "Pending", **changes: Any
) -> PodObject:
    """The pod of one rank of a job's plan, as Trimtab makes it."""
    labels = {names.LABEL_JOB: job, names.LABEL_EPOCH: str(epoch), names.LABEL_RANK: str(rank)}
    return pod_object(
        f"{job}-{epoch}-{rank}",
        node,
        gpus=gpus,
        owner=job,
        phase=phase,
        labels=labels | changes.pop("labels", {}),
        **changes,
    )


def job_object(
    name: str = "job", spec: Mapping[str, Any] | None = None, status: JobStatus | None = None, **meta: Any
) -> JobObject:
    """An LLMTrainingJob; `spec` holds changes of `JOB_SPEC` by dotted path."""
    defaults: dict[str, Any] = {"namespace": "default", "uid": f"uid-{name}", "generation": 1, "resource_version": "1"}
    defaults["creation_timestamp"] = "2026-01-02T03:00:00Z"
    body = json.dumps(changed(JOB_SPEC, spec or {})).encode()
    told = json.dumps(status.to_wire() if status else {}).encode()
    return JobObject(Meta(name=name, **(defaults | meta)), msgspec.Raw(body), msgspec.Raw(told))


def queue_object(name: str, *quotas: Mapping[str, Any], **spec: Any) -> QueueObject:
    """A Queue with these quotas as JSON; other fields of its spec, and `status`, by their names on the wire."""
    status = json.dumps(spec.pop("status", {})).encode()
    body = json.dumps({"quotas": quotas} | spec).encode()
    return QueueObject(Meta(name=name, uid=f"queue-{name}"), msgspec.Raw(body), msgspec.Raw(status))


def priority_class(name: str, value: int, *, default: bool = False) -> PriorityClassObject:
    """A PriorityClass."""
    return PriorityClassObject(Meta(name=name), value, default)


def plan_of(given: Placement, epoch: int = 1, **changes: Any) -> Plan:
    """The placement as `status.plan`."""
    defaults: dict[str, Any] = {"policy": "best_fit", "resource": names.NVIDIA_GPU, "generation": 1, "now": MOMENT}
    return to_plan(given, epoch=epoch, **(defaults | changes))


def fitting_plan(waiting: Job, gpu_type: str, nodes: int, gpus_per_node: int) -> plans.Option:
    """The fastest plan of a job for one gang; the test is wrong when there is none."""
    option = plans.best(
        waiting.model, waiting.training, waiting.requirements, catalog.gpu(gpu_type), nodes, gpus_per_node
    )
    assert option
    return option


# --- what agents report --------------------------------------------------------------------------------------------
def gpu_reading(index: int = 0, node: str = "n1", **changes: Any) -> dict[str, Any]:
    """One idle, sound A100 as its agent reports it; fields by their names on the wire, None takes one away."""
    reading = {
        "uuid": f"GPU-{node}-{index}",
        "index": index,
        "product": "NVIDIA A100-SXM4-80GB",
        "memoryTotalBytes": 80 << 30,
        "memoryUsedBytes": 0,
        "smUtilizationPercent": 0,
        "memoryUtilizationPercent": 0,
        "temperatureCelsius": 35,
        "powerMilliwatts": 60_000,
        "powerLimitMilliwatts": 400_000,
        "smClockMhz": 210,
        "smClockMaxMhz": 1410,
        "throttledPercent": 0,
    }
    return {key: value for key, value in (reading | changes).items() if value is not None}


def fault(kind: str = "Xid", code: int = 0, time: str = "2026-01-02T03:00:00Z") -> dict[str, Any]:
    """A fault as an agent reports it."""
    return {"kind": kind, "code": code, "time": time, "count": 1}


def gpunode_object(name: str = "n1", gpus: int | list[dict[str, Any]] = 8, **changes: Any) -> GpuNodeObject:
    """A GPUNode; `observed` numbers its reports. Other keywords are fields of its status, or of `metadata`."""
    readings = [gpu_reading(index, name) for index in range(gpus)] if isinstance(gpus, int) else gpus
    observed, meta = changes.pop("observed", 0), changes.pop("metadata", {})
    status = {"observedTime": f"report {observed}", "periodSeconds": 30, "bootId": "boot", "gpus": readings} | changes
    defaults: dict[str, Any] = {"uid": f"gpunode-{name}", "resource_version": str(observed + 1)}
    return GpuNodeObject(Meta(name=name, **(defaults | meta)), msgspec.Raw(json.dumps(status).encode()))
