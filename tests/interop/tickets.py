"""Workloads as Kueue leaves them, in words: waiting, reserved, admitted, evicted, finished.

`stand` makes the object with a status; what Kueue would write is taken from its own code (0.19): conditions with its
reasons, `status.admission` with one assignment per podset.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from trimtab import names
from trimtab.interop import request
from trimtab.interop.request import KueueRequest
from trimtab.interop.workload import Workload, read_workload
from trimtab.kube.objects import FlavorObject, Meta, WorkloadObject
from trimtab_policy.types import Bounds

Json = dict[str, Any]

SINCE = "2026-01-02T03:00:00Z"
TEMPLATE: Json = {"spec": {"containers": [{"name": "trainer", "image": "trainer:1"}]}}


def ask(**changes: Any) -> KueueRequest:
    """A job that can do with 4 to 16 GPUs."""
    job = Meta("job", "team", uid="uid-job", generation=1)
    defaults: Json = {"queue": "gpus", "gpus": Bounds(4, 16), "resource": names.NVIDIA_GPU, "template": TEMPLATE}
    return KueueRequest(job=changes.pop("job", job), **(defaults | changes))


def condition(kind: str, value: bool = True, reason: str = "", message: str = "") -> Json:
    return {
        "type": kind,
        "status": "True" if value else "False",
        "reason": reason or kind,
        "message": message,
        "lastTransitionTime": SINCE,
    }


def granted(count: int = 16, *flavors: str, **changes: Any) -> Json:
    """`status.admission` of so many GPUs."""
    given = {"name": "main", "flavors": {names.NVIDIA_GPU: flavors[0] if flavors else "a100"}, "count": count}
    given["resourceUsage"] = {names.NVIDIA_GPU: str(count)}
    return {"clusterQueue": "research", "podSetAssignments": [given | changes]}


def waiting(reason: str = "WaitingForQuota", message: str = "no quota left") -> Json:
    return {"conditions": [condition("QuotaReserved", False, reason, message)]}


def admitted(count: int = 16, *more: Json, **changes: Any) -> Json:
    conditions = [condition("QuotaReserved"), condition("Admitted"), *more]
    return {"conditions": conditions, "admission": granted(count)} | changes


def evicted(reason: str = "Preempted", message: str = "to make room", count: int = 16, **changes: Any) -> Json:
    return admitted(count, condition("Evicted", True, reason, message), **changes)


def stand(
    status: Json | None = None, asked: KueueRequest | None = None, spec: Json | None = None, **meta: Any
) -> WorkloadObject:
    """The Workload of a job as the API server has it."""
    made = request.workload(asked or ask())
    raw = made["metadata"] | {"uid": "uid-workload", "resourceVersion": "7", "generation": 1} | meta
    body = json.dumps(made["spec"] | (spec or {})).encode()
    return WorkloadObject(msgspec.convert(raw, Meta), msgspec.Raw(body), msgspec.Raw(json.dumps(status or {}).encode()))


def ticket(
    status: Json | None = None, asked: KueueRequest | None = None, spec: Json | None = None, **meta: Any
) -> Workload:
    """The same, understood."""
    return read_workload(stand(status, asked, spec, **meta))


def flavor(name: str = "a100", labels: dict[str, str] | None = None, *tolerations: Json) -> dict[str, FlavorObject]:
    """A ResourceFlavor by its name."""
    spec = {"nodeLabels": labels or {}, "tolerations": tolerations}
    return {name: FlavorObject(Meta(name), msgspec.Raw(json.dumps(spec).encode()))}
