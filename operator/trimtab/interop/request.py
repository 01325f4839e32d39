"""A job -> the Workload with which Kueue is asked to admit it.

One podset, of pods with one GPU each: as many as the job may have, and as few as it can do with, so that Kueue counts
quota in GPUs and may admit a part of them (partial admission). What a pod asks for beside, whatever its GPUs, is not in
it: how many pods there are is not known before the plan. Its selector, affinity and tolerations are, for Kueue chooses
flavors by them.

The name is the one that Kueue's own integrations would give: a controller that starts anew finds what another one has
made. A digest of what was asked tells whether the job was edited since; fields that the API server or Kueue's webhooks
fill in or take away (`minCount`, where partial admission is off) make no difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from trimtab import names
from trimtab.api.template import trainer_of
from trimtab.interop.workload import PODSET, Workload
from trimtab.kube.objects import Meta
from trimtab.kube.resources import WORKLOADS
from trimtab_policy.types import Bounds

Json = dict[str, Any]

_FOR_FLAVORS = ("nodeSelector", "affinity", "tolerations")
"""What Kueue matches flavors with."""


class KueueRequest(Struct, frozen=True):
    """What a job asks Kueue for."""

    job: Meta
    queue: str
    """LocalQueue in the job's namespace."""
    gpus: Bounds
    resource: str
    """Extended resource of its GPUs, or their DeviceClass in Kubernetes' notation for a resource, which is then what
    ClusterQueues have quota for."""
    template: Mapping[str, Any]
    """The job's pod template."""
    cpu_milli_per_gpu: int = 0
    memory_per_gpu: int = 0
    """Bytes."""
    priority_class: str = ""
    priority: int = 0


def gpu_resource(offered: Mapping[str, int], now: str) -> str:
    """Which extended resource the quota is asked of: GPUs of one job are all of one kind.

    `offered` are GPUs by resource on nodes of the types that the job allows. What it asks for `now` stays as long as
    some node has it; else the most common one, and NVIDIA's where there are no nodes yet.
    """
    if now in offered or (now and not offered):
        return now
    return max(sorted(offered), key=lambda resource: offered[resource], default=names.NVIDIA_GPU)


def name_of(job: Meta) -> str:
    """`llmtrainingjob-NAME-HASH`, with Kueue's own hash of kind, group, name and UID."""
    said = "\n".join((names.JOB_KIND, names.GROUP, job.name, job.uid))
    return f"{names.JOB_KIND.lower()}-{job.name}-{hashlib.sha1(said.encode(), usedforsecurity=False).hexdigest()[:5]}"


def workload(ask: KueueRequest) -> Json:
    """The Workload that asks for it."""
    job, wanted = ask.job, spec(ask)
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": "Workload",
        "metadata": {
            "name": name_of(job),
            "namespace": job.namespace,
            "labels": {names.LABEL_JOB: job.name, names.LABEL_KUEUE_JOB_UID: job.uid},
            "annotations": {names.ANNOTATION_ASKED: digest(wanted)},
            "ownerReferences": [
                {
                    "apiVersion": names.API_VERSION,
                    "kind": names.JOB_KIND,
                    "name": job.name,
                    "uid": job.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": wanted,
    }


def spec(ask: KueueRequest) -> Json:
    """`spec` of that Workload."""
    podset: Json = {"name": PODSET, "count": ask.gpus.high, "template": {"spec": _pod(ask)}}
    if ask.gpus.low < ask.gpus.high:
        podset["minCount"] = ask.gpus.low
    wanted: Json = {"queueName": ask.queue, "podSets": [podset], "priority": ask.priority}
    if ask.priority_class:
        reference = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": ask.priority_class}
        wanted["priorityClassRef"] = reference
    return wanted


def digest(wanted: Json) -> str:
    """Tells two requests apart."""
    return hashlib.sha256(msgspec.json.encode(wanted, order="deterministic")).hexdigest()[:16]


def asks(existing: Workload, ask: KueueRequest) -> bool:
    """Whether a Workload asks for just this."""
    return existing.meta.annotations.get(names.ANNOTATION_ASKED) == digest(spec(ask))


def serves(existing: Workload, ask: KueueRequest) -> bool:
    """Whether the job can do with what is reserved for it, though it may have been edited since it asked."""
    return existing.queue == ask.queue and existing.resource == ask.resource and existing.gpus >= ask.gpus.low


def _pod(ask: KueueRequest) -> Json:
    """A pod with one GPU, as far as Kueue looks at it."""
    given = ask.template.get("spec") or {}
    trainer = trainer_of(given["containers"])
    amounts = {ask.resource: "1"}
    if ask.cpu_milli_per_gpu:
        amounts["cpu"] = f"{ask.cpu_milli_per_gpu}m"
    if ask.memory_per_gpu:
        amounts["memory"] = str(ask.memory_per_gpu)
    container = {
        "name": trainer["name"],
        "image": trainer.get("image") or "",
        "resources": {"requests": amounts, "limits": dict(amounts)},
    }
    pod = {field: given[field] for field in _FOR_FLAVORS if given.get(field)}
    pod["tolerations"] = [*(pod.get("tolerations") or ()), {"key": _tainted_as(ask.resource), "operator": "Exists"}]
    if ask.priority_class:
        pod["priorityClassName"] = ask.priority_class
    return {"containers": [container], "restartPolicy": "Never", **pod}


def _tainted_as(resource: str) -> str:
    """Key of the taints that keep others away from nodes with such GPUs: that of the vendor, as of the gang's pods."""
    return names.VENDOR_RESOURCES.get(resource.removeprefix(names.DEVICE_CLASS_RESOURCE), resource)
