"""Ranges, and notes of what was written, on jobs of other kinds: a shape is chosen, or refused in words.

Who may write a job may write any annotation on it, a forged note among them. Whatever it says, nothing is written but
where the row of the kind lets it be, the same again changes nothing, and the user gets back what he gave.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
from tests.fuzz.draw import Draw, Json
from tests.fuzz.target import Target

from trimtab import names
from trimtab.controller.other_jobs import OtherJob
from trimtab.controller.place.stand_in import stand_in
from trimtab.errors import UsageError
from trimtab.foreign import shape
from trimtab.foreign.kinds import FieldPath, row_of, value_at
from trimtab.foreign.tables import Kind

_STATED = {"model": "gpt2", "sequence_length": "1024", "global_batch_size": "64", "steps": "10"}
_RANGES = (
    "4-64",
    "8",
    "8-8",
    "64-4",
    "0-8",
    "1-16384",
    "8-",
    "-8",
    "8-64-2",
    " 8-64",
    "8‑64",
    "9" * 40 + "-1",
    "1-" + "9" * 40,
)
_POLICIES = ("Moldable", "Elastic", "Fixed", "elastic", "")
_POINTERS = (
    "/spec/parallelism",
    "/spec/completions",
    "/spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu",
    "/spec/pytorchReplicaSpecs/Worker/replicas",
    "/spec/rayClusterSpec/workerGroupSpecs/0/replicas",
    "/spec/rayClusterSpec/workerGroupSpecs/0/maxReplicas",
    "/spec/nprocPerNode",
    "/spec/suspend",
    "/metadata/annotations",
    "/spec/template/spec/containers/" + "9" * 12,
    "/spec/template/spec/containers/-1/image",
    "spec",
    "",
    "/",
    "/spec//~2~",
)


def _pod(draw: Draw) -> Json:
    gpus = draw.pick((8, "8", "4", 1, "0", "x", None, "٣"))
    resources = {
        "limits": {"nvidia.com/gpu": gpus},
        **({"requests": {"nvidia.com/gpu": gpus}} if draw.chance(4) else {}),
    }
    command = draw.pick(
        (["python", "train.py"], ["torchrun", "--nproc-per-node=8", "train.py"], ["x", "--nnodes", "4"])
    )
    container: Json = {"name": draw.pick(("main", "pytorch")), "image": "i", "command": command, "resources": resources}
    if draw.chance(6):
        container["env"] = [{"name": draw.pick(("PET_NNODES", "WORLD_SIZE", "X")), "value": draw.text()}]
    spec: Json = {
        "schedulerName": names.SCHEDULER_NAME,
        "schedulingGates": [{"name": names.SCHEDULING_GATE}],
        "restartPolicy": "Never",
        "containers": [container] * (1 + draw.chance(8)),
    }
    return {"metadata": {"labels": {names.LABEL_MANAGED: "true"}}, "spec": spec}


def _spec(draw: Draw, kind: str) -> Json:
    count, template = draw.pick((4, 1, 2, 0, 10**6)), _pod(draw)
    match kind:
        case "Job":
            counts = {"parallelism": count, "completions": count, "completionMode": "Indexed"}
            return {**counts, "suspend": draw.chance(2), "template": template}
        case "PyTorchJob":
            role: Json = {"restartPolicy": "ExitCode", "template": template}
            roles = {"Master": {**role, "replicas": 1}, "Worker": {**role, "replicas": count}}
            if draw.chance(4):
                del roles[draw.pick(("Master", "Worker"))]
            policy = {"cleanPodPolicy": "Running", "suspend": draw.chance(2)}
            told = {"nprocPerNode": draw.pick(("8", "4", "auto", "", 8))} if draw.chance(3) else {}
            return {"pytorchReplicaSpecs": roles, "runPolicy": policy, **told}
    group = {"groupName": "gpu", "replicas": count, "minReplicas": 0, "maxReplicas": count, "template": template}
    head = {"template": {"spec": {"containers": [{"name": "head", "image": "i"}]}}}
    cluster = {"headGroupSpec": head, "workerGroupSpecs": [group] * (1 + draw.chance(6))}
    return {"entrypoint": "python train.py", "shutdownAfterJobFinishes": True, "rayClusterSpec": cluster}


def _note(draw: Draw) -> str:
    if draw.chance(4):
        return draw.text()
    values: tuple[Any, ...] = (4, "4", 8, "8", 2, None, 0, -1, 10**30, 1.5, True, [], "x")
    found = {draw.pick(_POINTERS): [draw.pick(values), draw.pick(values)] for _ in range(draw.below(4))}
    return draw.encoded(draw.spoiled(found)).decode("utf-8", "replace") if draw.chance(4) else json.dumps(found)


def _job(draw: Draw) -> tuple[str, Kind, OtherJob] | None:
    version, kind = draw.pick((("batch/v1", "Job"), ("kubeflow.org/v1", "PyTorchJob"), ("ray.io/v1", "RayJob")))
    told = {names.STATED[field]: value for field, value in _STATED.items()}
    for field, usual in (
        ("gpus", _RANGES),
        ("gpus_per_node", _RANGES),
        ("elasticity", _POLICIES),
        ("resharding", ("true",)),
    ):
        if field == "gpus" or draw.chance(3):
            told[names.STATED[field]] = draw.text(usual=usual)
    if draw.chance(2):
        told[names.ANNOTATION_SHAPED] = _note(draw)
    meta = {
        "name": "llama",
        "namespace": "team",
        "uid": "u",
        "annotations": told,
        "labels": {names.LABEL_MANAGED: "true"},
    }
    spec = _spec(draw, kind)
    found = {
        "apiVersion": version,
        "kind": kind,
        "metadata": meta,
        "spec": draw.tweaked(spec) if draw.chance(4) else spec,
    }
    row = row_of(found)
    assert row
    try:
        return *row, msgspec.json.decode(json.dumps(found).encode("utf-8", "replace"), type=OtherJob)
    except msgspec.DecodeError:  # the API server sends none of these
        return None


def _differences(one: Any, other: Any, at: FieldPath = ()) -> list[FieldPath]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = {**one, **other}
        return [path for key in keys for path in _differences(one.get(key), other.get(key), (*at, key))]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [path for index, (a, b) in pairs for path in _differences(a, b, (*at, index))]
    return [] if one == other and type(one) is type(other) else [at]


def _counts(at: FieldPath) -> bool:
    """Whether it is a field that has a say in a shape."""
    words = ("parallelism", "completions", "replicas", "minReplicas", "maxReplicas", "nprocPerNode", "nvidia.com/gpu")
    return at[0] == "spec" and at[-1] in words


def run(data: bytes) -> None:
    """One job, whose shape is chosen twice, and given back."""
    draw = Draw(data)
    drawn = _job(draw)
    if drawn is None:
        return
    kind, row, job = drawn
    note = job.metadata.annotations.get(names.ANNOTATION_SHAPED, "")
    document = job.document(kind, row)
    before = job.given(kind, row)
    assert all(_counts(at) for at in _differences(document["spec"], before.document["spec"], ("spec",)))
    try:
        made = stand_in(kind, row, job, names.SCHEDULER_NAME)
    except UsageError as error:
        assert str(error)
        return
    assert json.dumps(made, allow_nan=False)
    if job.shape(kind, row) is None:
        return
    low, high = (made["spec"]["resources"]["gpusPerNode"][end] for end in ("min", "max"))
    nodes, gpus = 1 + draw.below(min(64, made["spec"]["resources"]["maxNodes"])), draw.pick((low, high))
    kept = copy.deepcopy(document)
    shaped, said = shape.written(document, kind, row, note, nodes, gpus)
    assert document == kept
    assert shape.shape_of(shaped, kind, row) == (nodes, gpus)
    assert all(_counts(at) for at in _differences(document["spec"], shaped["spec"], ("spec",)))
    assert shape.written(shaped, kind, row, said or "", nodes, gpus) == (shaped, said), "again is the same"
    after = shape.given(shaped, kind, row, said or "")
    assert after.document == before.document, "its user gets back what he gave"
    assert all(value_at(shaped, place) == now for place, (_, now) in after.note.items())


TARGET = Target("ranges of GPUs and notes of shapes on jobs of other kinds", run)
