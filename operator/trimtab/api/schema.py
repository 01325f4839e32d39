"""API models -> CustomResourceDefinitions, as `hack/generate` writes them to manifests/crds/.

pydantic's JSON schema becomes a structural schema (apiextensions.k8s.io/v1): references inlined, null unions unwrapped,
titles dropped, closed and open objects told apart by `x-kubernetes-preserve-unknown-fields`. What a schema cannot say
stays in one place each: CEL rules in `cel`, columns and names of the kinds in this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import yaml

from trimtab import names
from trimtab.api.base import ApiModel, JsonSchema
from trimtab.api.gpunode import GPUNode
from trimtab.api.v1alpha1 import LLMTrainingJob, Queue
from trimtab.docstrings import describe
from trimtab_policy import catalog

_LAST_CONDITION = ".status.conditions[-1:]"

# name, type, JSONPath, description; priority 1 (`-o wide`) for those of _WIDE
_COLUMNS = (
    ("Type", "string", ".status.plan.gpuType", "GPU type of the plan."),
    ("GPUs", "integer", ".status.plan.gpus", "Number of GPUs of the plan."),
    ("Parallelism", "string", ".status.plan.summary", "Degrees of the plan."),
    ("Nodes", "integer", ".status.plan.nodeCount", "Number of nodes of the plan."),
    ("Progress%", "integer", ".status.trainerStatus.progressPercentage", "Steps done, in per cent."),
    ("State", "string", f"{_LAST_CONDITION}.reason", "Reason of the most telling condition."),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the job was created."),
)
_WIDE = (
    ("Policy", "string", ".status.plan.policy", "Policy that made the plan."),
    ("Queue", "string", ".spec.queue", "Queue whose quota the job counts against."),
    ("ETA", "string", ".status.plan.predicted.finishTime", "Predicted end, had the job started when planned."),
    ("Shadow", "string", ".status.shadow.summary", "What the shadow policy would have decided."),
    (
        "Difference",
        "integer",
        ".status.shadow.differenceSeconds",
        "Seconds that it would have ended later (-: sooner).",
    ),
    ("Reason", "string", f"{_LAST_CONDITION}.message", "Message of the most telling condition."),
)
_HEALTHY = f"@.type=='{names.HEALTHY}'"
_QUEUE_COLUMNS = (
    ("Weight", "integer", ".spec.weight", "Share of what is not guaranteed to anybody"),
    ("Running", "integer", ".status.runningJobs", "Jobs that hold GPUs"),
    ("Pending", "integer", ".status.pendingJobs", "Jobs that wait"),
    ("GPUs", "integer", ".status.gpus", "GPUs that its jobs hold"),
    ("Share", "integer", ".status.sharePermille", "Part of the cluster's throughput over its weight, in thousandths"),
)
_GPUNODE_COLUMNS = (
    ("Healthy", "string", f".status.conditions[?({_HEALTHY})].status", "Whether its GPUs may take jobs."),
    ("Reason", "string", f".status.conditions[?({_HEALTHY})].reason", "Why, or why not."),
    ("Backend", "string", ".status.backend", "What reads the GPUs."),
    ("Driver", "string", ".status.driverVersion", "Version of the GPU driver."),
    ("Reported", "date", ".status.observedTime", "Time since the readings were taken."),
)
_GPUNODE_WIDE = (
    ("Product", "string", ".status.gpus[0].product", "Product of the first GPU."),
    ("Utilization%", "integer", ".status.gpus[0].smUtilizationPercent", "Of the first GPU."),
    ("Temperature", "integer", ".status.gpus[0].temperatureCelsius", "Of the first GPU, in degrees Celsius."),
    ("Message", "string", f".status.conditions[?({_HEALTHY})].message", "What is wrong."),
)
_DROPPED = ("title", "$defs", "additionalProperties")


def structural(model: type[ApiModel]) -> JsonSchema:
    """Return the structural schema of a model class, with camelCase names and no `$ref`."""
    schema = describe(model.model_json_schema(by_alias=True), model, ApiModel)
    inlined: JsonSchema = _structural(schema, schema.get("$defs", {}))
    return inlined


def _structural(schema: JsonSchema, definitions: JsonSchema) -> JsonSchema:
    schema = _resolved(schema, definitions)
    kept = {key: value for key, value in schema.items() if key not in _DROPPED}
    if schema.get("additionalProperties") is True:
        kept["x-kubernetes-preserve-unknown-fields"] = True
    elif isinstance(schema.get("additionalProperties"), dict):
        kept["additionalProperties"] = _structural(schema["additionalProperties"], definitions)
    if "properties" in schema:
        kept["properties"] = {name: _structural(field, definitions) for name, field in schema["properties"].items()}
    if "items" in schema:
        kept["items"] = _structural(schema["items"], definitions)
    if "description" in schema:
        kept["description"] = _reflow(schema["description"])
    return _with_default(kept)


def _resolved(schema: JsonSchema, definitions: JsonSchema) -> JsonSchema:
    """Replace `$ref: X` and `anyOf: [X, null]` by X; what stands beside them (description, default) wins.

    In Kubernetes a field without a value is absent, never null.
    """
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
    elif {"type": "null"} in schema.get("anyOf", []):
        (target,) = (choice for choice in schema["anyOf"] if choice != {"type": "null"})
    else:
        return schema
    beside = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf")}
    return _resolved(target | beside, definitions)


def _with_default(schema: JsonSchema) -> JsonSchema:
    """Keep defaults that say something, also in words: `kubectl explain` shows none. Objects: see their fields."""
    default = schema.pop("default", None)
    if default is None or default in ([], ""):
        return schema
    if isinstance(default, dict):
        return schema | {"default": {}}
    told = yaml.safe_dump(default).splitlines()[0]
    return schema | {"default": default, "description": f"{schema['description']} Default: {told}."}


def _reflow(text: str) -> str:
    """Join the lines of each paragraph: `kubectl explain` wraps them itself."""
    return "\n\n".join(re.sub(r"\s*\n\s*", " ", paragraph) for paragraph in text.split("\n\n"))


def definitions() -> dict[str, JsonSchema]:
    """Return the CustomResourceDefinitions by object name."""
    job = _definition(
        names.JOB_KIND, names.JOB_PLURAL, "ltj", "Namespaced", _job_schema(), [*_columns(_COLUMNS), *_columns(_WIDE, 1)]
    )
    job["spec"]["versions"][0]["subresources"] = {"status": {}}
    age = next(column for column in _COLUMNS if column[0] == "Age")
    queue = _definition(
        names.QUEUE_KIND, names.QUEUE_PLURAL, "ltq", "Cluster", _root(Queue), _columns([*_QUEUE_COLUMNS, age])
    )
    queue["spec"]["versions"][0]["subresources"] = {"status": {}}
    gpu_node = _definition(
        names.GPUNODE_KIND, names.GPUNODE_PLURAL, "gpun", "Cluster", _root(GPUNode),
        [*_columns(_GPUNODE_COLUMNS), *_columns([age]), *_columns(_GPUNODE_WIDE, 1)],
    )  # fmt: skip
    gpu_node["spec"]["versions"][0]["subresources"] = {"status": {}}
    return {crd["metadata"]["name"]: crd for crd in (job, queue, gpu_node)}


def _definition(
    kind: str, plural: str, short: str, scope: str, schema: JsonSchema, columns: list[JsonSchema]
) -> JsonSchema:
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": columns,
    }
    called: JsonSchema = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    called |= {"shortNames": [short], "categories": ["trimtab"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}"},
        "spec": {"group": names.GROUP, "names": called, "scope": scope, "versions": [version]},
    }


def _columns(columns: Iterable[tuple[str, str, str, str]], priority: int = 0) -> list[JsonSchema]:
    return [
        {"name": name, "type": kind, "jsonPath": path, "description": text, "priority": priority}
        for name, kind, path, text in columns
    ]


def _job_schema() -> JsonSchema:
    schema = _root(LLMTrainingJob)
    model = schema["properties"]["spec"]["properties"]["model"]["properties"]
    model["preset"] |= {"enum": list(catalog.model_names())}
    schema["properties"]["metadata"]["properties"] = {"name": {"type": "string", "maxLength": names.MAX_NAME_LENGTH}}
    return schema


def _root(model: type[ApiModel]) -> JsonSchema:
    """The schema of a kind: the API server itself looks after apiVersion, kind and metadata, except for the name."""
    schema = structural(model)
    own = {name: field for name, field in schema["properties"].items() if name != "metadata"}
    properties = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    required = [name for name in schema["required"] if name != "metadata"]
    whole = schema | {"properties": properties | own, "required": required}
    return {key: value for key, value in whole.items() if value != []}
