"""Whatever the API server admits: values at the edges of every field of our kinds, made from their schemas.

A new field is tried at its edges from the day on which it is in a model. What spans fields (CEL) is left out on
purpose: an object that breaks such a rule was written under another version of the CRD, and must stop nobody either.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
from hypothesis import strategies as st
from tests.builders import A100, H100, JOB_SPEC, MOMENT, T4, V100, gpu_reading, gpunode_object, node_object

from trimtab import names
from trimtab.api.gpunode import GPUNode
from trimtab.api.schema import structural
from trimtab.api.v1alpha1 import JobSpec, QueueSpec
from trimtab.kube.objects import GpuNodeObject, JobObject, Meta, NodeObject, PodObject, QueueObject

Json = dict[str, Any]
INT64 = (1 << 63) - 1
HOSTILE = (
    "",
    "x" * 1024,
    "[link=http://x]y[/b]",
    "\x1b]0;t\x07\x1b[2J",
    "‮​",
    "😀" * 300,
    "0",
    "-1",
    "1e999",
    "NaN",
    "null",
)
QUANTITIES = (
    "0",
    "1",
    "8",
    "500m",
    "64Gi",
    "1n",
    "9223372036854775807",
    "9E",
    "1e99",
    "99999999999999999999999999999999",
    ".5",
)
_JOB, _QUEUE, _GPUNODE = structural(JobSpec), structural(QueueSpec), structural(GPUNode)


def of(schema: Json) -> st.SearchStrategy[Any]:
    """Any value that a structural schema admits, the edges above all."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return st.sampled_from(QUANTITIES) | st.integers(0, 1 << 31)
    match schema.get("type"):
        case "integer":
            return integers(schema)
        case "number":
            return st.floats(schema.get("minimum", -1e308), schema.get("maximum", 1e308))
        case "boolean":
            return st.booleans()
        case "string":
            return texts(schema)
        case "array":
            return st.lists(
                of(schema["items"]), min_size=schema.get("minItems", 0), max_size=min(4, schema.get("maxItems", 4))
            )
        case "object" if "properties" in schema:
            return objects(schema)
    return st.recursive(
        st.none() | st.booleans() | st.integers(-INT64, INT64) | st.sampled_from(HOSTILE),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(HOSTILE), inner, max_size=2),
        max_leaves=4,
    )


def integers(schema: Json) -> st.SearchStrategy[int]:
    """Both ends and their neighbours, usual sizes, and anything between."""
    limit = (1 << 31) - 1 if schema.get("format") == "int32" else INT64
    low, high = schema.get("minimum", -limit - 1), schema.get("maximum", limit)
    edges = (low, low + 1, 1, 2, 3, 7, 8, 64, 1000, 4096, high - 1, high)
    return st.sampled_from([edge for edge in edges if low <= edge <= high]) | st.integers(low, high)


def texts(schema: Json) -> st.SearchStrategy[str]:
    """Where there is a pattern, what meets it; else anything."""
    most, least = schema.get("maxLength", 2048), schema.get("minLength", 0)
    if schema.get("format") == "date-time":
        return st.sampled_from(
            ["0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", f"{MOMENT:%Y-%m-%dT%H:%M:%SZ}", "9999-12-31T23:59:59Z"]
        )
    if "pattern" in schema:
        fitting = ["a", "a" * most, "q", "default", "H100", A100, H100, "x.y-z", "trimtab.dev/controller", "*"]
        return st.sampled_from([text[:most] for text in fitting if len(text[:most]) >= least])
    return st.sampled_from([text[:most] for text in HOSTILE if len(text[:most]) >= least]) | st.text(
        min_size=least, max_size=min(most, 20)
    )


@st.composite
def objects(draw: st.DrawFn, schema: Json) -> Json:
    """All that is required, and some of the rest."""
    required = schema.get("required", [])
    return {
        name: draw(of(field))
        for name, field in schema["properties"].items()
        if name in required or draw(st.integers(0, 2)) == 0
    }


def _leaves(schema: Json, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Json]]:
    """Path and schema of every field that is no object of its own."""
    found: list[tuple[tuple[str, ...], Json]] = []
    for name, field in schema.get("properties", {}).items():
        if field.get("type") == "object" and "properties" in field:
            found += _leaves(field, (*path, name))
        found.append(((*path, name), field))
    return found


_JOB_LEAVES = [(path, field) for path, field in _leaves(_JOB) if path[0] not in ("template", "managedBy", "suspend")]
_HARMLESS = (
    *("steps", "tokens", "precision", "optimizer", "globalBatchSize", "sequenceLength", "cpusPerGpu", "memoryPerGpu"),
    *("graceSeconds", "minRuntimeSeconds", "resharding", "maxRestarts", "queue", "priorityClassName"),
    *("recompute", "zeroStage", "mode"),
)
_NUMBERS = [leaf for leaf in _JOB_LEAVES if leaf[0][-1] in _HARMLESS]
"""Fields at whose edges a job may still run."""


def _put(tree: Json, path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        found = tree.get(name)
        tree[name] = found if isinstance(found, dict) else {}
        tree = tree[name]
    tree[path[-1]] = value


_NAMED = {
    ("model", "preset"): st.sampled_from(["gpt2", "llama3-8b", "mixtral-8x7b", "bert-base", "llama3-70b"]),
    ("queue",): st.sampled_from(["q", "a"]) | st.just("none-such"),
    ("priorityClassName",): st.sampled_from(["high", "low"]),
    ("resources", "gpuTypes"): st.lists(st.sampled_from([A100, H100, V100, T4, "H100", "x"]), min_size=1, max_size=3),
}
"""Fields whose edges are not their own: what they name is there, or is not."""


@st.composite
def job_specs(draw: st.DrawFn) -> Json:
    """A spec that asks for something that is mostly to be had, some of its fields at their edges; seldom one that makes
    no sense at all."""
    spec = copy.deepcopy(JOB_SPEC)
    most = draw(st.sampled_from([1, 4, 8, 8, 16, 32, 1024, 16384]))
    spec["resources"]["gpus"] = {"min": draw(st.sampled_from([1, 1, min(2, most)])), "max": most}
    spec["model"] = {"preset": draw(st.sampled_from(["gpt2", "gpt2", "llama3-8b", "mixtral-8x7b"]))}
    spec["training"]["precision"] = draw(st.sampled_from(["FP16", "FP16", "BF16"]))
    spec["launcher"] = draw(st.sampled_from(["Torchrun", "Megatron", "Torchtitan", "DeepSpeed", "Custom"]))
    spec["elasticity"] = {"policy": draw(st.sampled_from(["Elastic", "Moldable", "Elastic"])), "minRuntimeSeconds": 0}
    if draw(st.integers(0, 5)) == 0:
        spec["model"] = draw(_architectures())
    wild = draw(st.integers(0, 4)) == 0
    fields = st.sampled_from(_JOB_LEAVES if wild else _NUMBERS)
    for path, field in draw(st.lists(fields, max_size=4 if wild else 2)):
        _put(spec, path, draw(_NAMED[path] if path in _NAMED else of(field)))
    if isinstance(spec.get("training"), dict):
        _one_of(spec["training"], "steps", "tokens")
    if isinstance(spec.get("model"), dict):
        _one_of(spec["model"], "architecture", "preset")
    if draw(st.integers(0, 7)) == 0:
        spec["template"] = {"spec": draw(templates())}
    return spec


def _one_of(tree: Json, first: str, second: str) -> None:
    if first in tree and second in tree:
        del tree[first]


@st.composite
def _architectures(draw: st.DrawFn) -> Json:
    schema = _JOB["properties"]["model"]["properties"]["architecture"]
    usual = {"layers": 32, "hiddenSize": 4096, "attentionHeads": 32, "ffnHiddenSize": 14336, "vocabSize": 128256}
    drawn = draw(objects(schema))
    return {"architecture": usual | {name: value for name, value in drawn.items() if draw(st.booleans())}}


@st.composite
def templates(draw: st.DrawFn) -> Json:
    """Pod specs as nobody should write them: the schema keeps what it does not know."""
    container: Json = {"name": "trainer", "image": draw(st.sampled_from(["trainer:1", *HOSTILE]))}
    asked = st.dictionaries(
        st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "x.example/y"]), st.sampled_from(QUANTITIES), max_size=3
    )
    container["resources"] = {"requests": draw(asked), "limits": draw(asked)}
    spec: Json = {"containers": [container] * draw(st.sampled_from([1, 1, 2, 20]))}
    huge = ["9" * 4301, "-" + "9" * 30, *HOSTILE]
    expression = {
        "key": "cpu",
        "operator": draw(st.sampled_from(["Gt", "Lt", "In", "Exists", "?"])),
        "values": [draw(st.sampled_from(huge))],
    }
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    odd = {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "nodeSelector": {"x": draw(st.sampled_from(HOSTILE))},
        "tolerations": [{"operator": "Exists", "tolerationSeconds": draw(st.sampled_from([-INT64, 0, INT64]))}],
        "initContainers": [container],
        "overhead": draw(asked),
        "terminationGracePeriodSeconds": draw(st.sampled_from([0, INT64, -1])),
    }
    for name in draw(st.lists(st.sampled_from(sorted(odd)), max_size=4)):
        spec[name] = draw(st.just(odd[name]) | of({})) if draw(st.integers(0, 3)) == 0 else odd[name]
    return spec


def job_object_of(name: str, namespace: str, spec: Json, status: bytes = b"{}", **meta: Any) -> JobObject:
    """An LLMTrainingJob with this spec and status."""
    known: Json = {
        "uid": f"uid-{namespace}-{name}",
        "generation": 1,
        "resource_version": "1",
        "creation_timestamp": "2026-01-02T03:00:00Z",
    }
    return JobObject(
        Meta(name=name, namespace=namespace, **(known | meta)),
        msgspec.Raw(json.dumps(spec).encode()),
        msgspec.Raw(status),
    )


@st.composite
def queues(draw: st.DrawFn, name: str, namespaces: list[str]) -> QueueObject:
    """A queue with limits at their edges."""
    spec = draw(objects(_QUEUE))
    if draw(st.booleans()):
        spec["namespaces"] = draw(st.lists(st.sampled_from(namespaces), unique=True, max_size=3))
    return QueueObject(Meta(name=name, uid=f"queue-{name}"), msgspec.Raw(json.dumps(spec).encode()), msgspec.Raw(b"{}"))


_LABELS = ("nvidia.com/gpu.product", "nvidia.com/gpu.memory", "nvidia.com/gpu.compute.major", "nvidia.com/gpu.replicas",
           "nvidia.com/gpu.clique", "topology.kubernetes.io/zone", "topology.kubernetes.io/rack")  # fmt: skip
_LABEL_VALUES = (
    "",
    "0",
    "1",
    "-1",
    "81920",
    "99999999999999999999",
    "1e99",
    "NVIDIA-H100-80GB-HBM3",
    "X" * 63,
    "A100-MIG-1g.5gb",
)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> NodeObject:
    """A node of a usual type, some of whose labels and resources are at their edges."""
    changes: Json = {}
    if draw(st.integers(0, 3)):
        return node_object(name, draw(st.sampled_from([A100, A100, H100, T4, V100])))
    if draw(st.integers(0, 2)) == 0:
        changes["labels"] = draw(
            st.dictionaries(st.sampled_from(_LABELS), st.sampled_from(_LABEL_VALUES) | st.none(), max_size=3)
        )
    if draw(st.integers(0, 2)) == 0:
        resources = st.sampled_from(["cpu", "memory", "pods", names.NVIDIA_GPU, names.AMD_GPU])
        changes["allocatable"] = draw(
            st.dictionaries(resources, st.sampled_from([*QUANTITIES, "16"]) | st.none(), max_size=2)
        )
    if draw(st.integers(0, 5)) == 0:
        changes["ready"] = draw(st.sampled_from(["False", "Unknown"]))
    return node_object(name, draw(st.sampled_from([A100, A100, H100, T4, V100])), **changes)


@st.composite
def strangers(draw: st.DrawFn, name: str, node: str, namespace: str) -> PodObject:
    """A pod of somebody else, with requests at their edges."""
    asked = draw(
        st.dictionaries(st.sampled_from(["cpu", "memory", names.NVIDIA_GPU]), st.sampled_from(QUANTITIES), max_size=3)
    )
    raw: Json = {
        "metadata": {"name": name, "namespace": namespace, "uid": f"pod-{namespace}-{name}"},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "x", "resources": {"requests": asked}}] * draw(st.sampled_from([1, 3])),
        },
        "status": {"phase": "Running"},
    }
    return msgspec.convert(raw, PodObject)


@st.composite
def gpunodes(draw: st.DrawFn, name: str, observed: int) -> GpuNodeObject:
    """What an agent says of its node, some of it at the edges of the schema."""
    reading = _GPUNODE["properties"]["status"]["properties"]["gpus"]["items"]
    gpus = [gpu_reading(index, name) for index in range(draw(st.sampled_from([8, 8, 1, 0])))]
    for gpu in gpus:
        if draw(st.integers(0, 3)) == 0:
            gpu |= {k: v for k, v in draw(objects(reading)).items() if k not in ("uuid", "index")}
    return gpunode_object(name, gpus, observed=observed)


@st.composite
def reports(draw: st.DrawFn) -> Json:
    """Figures of a training's report, anything that its body may say (`controller.progress.Body`)."""
    said: Json = {"step": draw(st.sampled_from([0, 1, 19, 20, 100, 1000, 10**9, 2 * 10**9, 1 << 53]))}
    optional: dict[str, st.SearchStrategy[Any]] = {
        "stepSeconds": st.sampled_from([1e-6, 1e-3, 0.5, 60.0, 86_400.0]) | st.floats(1e-6, 86_400.0),
        "tokensPerSecond": st.sampled_from([1e-300, 1.0, 1e15]),
        "checkpointStep": st.sampled_from([0, 1, 100, 10**9]),
        "acknowledged": st.booleans(),
        "metrics": st.just([{"name": "loss", "value": "NaN"}, {"name": "\x1b[31m", "value": "😀" * 64}]),
    }
    for name in draw(st.lists(st.sampled_from(sorted(optional)), max_size=4)):
        said[name] = draw(optional[name])
    return said
