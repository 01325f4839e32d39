"""Workloads of Kueue, in whose status others write: understood or refused, and what they say can be told and done."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from tests.fuzz.draw import Draw, Json
from tests.fuzz.target import Target
from tests.fuzz.targets.jobs import _is_object

from trimtab import names
from trimtab.interop import admission, workload
from trimtab.kube.objects import FlavorObject, Meta, WorkloadObject

_TEMPLATE: Json = {"spec": {"containers": [{"name": "t", "resources": {"requests": {names.NVIDIA_GPU: "1"}}}]}}
_SPEC: Json = {"queueName": "gpus", "podSets": [{"name": "main", "count": 16, "template": _TEMPLATE}], "active": True}
_SLICE: Json = {
    "domainCount": 2,
    "valuesPerLevel": [{"universal": "r1"}, {"individual": {"roots": ["a", "b"], "prefix": "n"}}],
}
_ASSIGNED: Json = {
    "name": "main", "count": 16, "flavors": {names.NVIDIA_GPU: "a100"}, "resourceUsage": {names.NVIDIA_GPU: "16"},
    "topologyAssignment": {"levels": ["rack", "host"], "slices": [_SLICE]},
}  # fmt: skip
_KINDS = ("QuotaReserved", "Admitted", "Evicted", "Finished")
_FLAVORS = {"a100": FlavorObject(Meta("a100"), msgspec.Raw(b'{"nodeLabels":{"x":"y"},"tolerations":[{"key":"k"}]}'))}
_UPDATE: Json = {
    "name": "main",
    "nodeSelector": {"a": "b"},
    "tolerations": [{"operator": "Exists"}],
    "labels": {"c": "d"},
}


def _status(draw: Draw) -> Json:
    conditions = [
        {"type": kind, "status": draw.pick(("True", "False")), "reason": draw.text(), "message": draw.text(),
         "lastTransitionTime": "2026-01-02T03:00:00Z"}
        for kind in _KINDS
        if draw.byte() & 1
    ]  # fmt: skip
    checks = [
        {"name": "c", "state": draw.pick(("Ready", "Pending", "Retry")), "message": "", "podSetUpdates": [_UPDATE]}
    ]
    status: Json = {"conditions": conditions, "admissionChecks": checks[: draw.below(2)]}
    if not draw.chance(4):
        status["admission"] = {"clusterQueue": "research", "podSetAssignments": [_ASSIGNED]}
    if draw.chance(4):
        status["reclaimablePods"] = [{"name": "main", "count": draw.integer()}]
    found: Json = json.loads(json.dumps(status))
    return found


def run(data: bytes) -> None:
    """One Workload is read, told of and, where it is admitted, put on a template."""
    draw = Draw(data)
    spec = draw.encoded(draw.spoiled(draw.tweaked(json.loads(json.dumps(_SPEC)))))
    status = draw.encoded(draw.spoiled(draw.tweaked(_status(draw))))
    if not (_is_object(spec) and _is_object(status)):
        return
    obj = WorkloadObject(Meta("w", "team", uid="u"), msgspec.Raw(spec), msgspec.Raw(status))
    try:
        found = workload.read_workload(obj)
    except msgspec.DecodeError:
        return
    assert admission.words(found)
    assert found.gpus >= 0
    said: Any = admission.admission(found, _FLAVORS)
    if isinstance(said, str):
        assert said
        return
    assert said.gpus == found.gpus
    json.dumps(said.on(_TEMPLATE))
    said.covers({"rack": "r1", "host": "na"})


TARGET = Target("Workloads of Kueue, whose status others write", run)
