"""Bad input never gets past the API server: every rule refuses an example, with a message that names the field.

All examples go to the real API server in one dry-run request each (one kubectl for all of them); what it said about
each is then looked up by the example's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.builders import changed

from trimtab.api import cel, schema
from trimtab.errors import LocalClusterError
from trimtab_local.control_plane.kubeconfig import kubectl

pytestmark = pytest.mark.cluster

ARCHITECTURE = "spec.model.architecture"
TRAINER = "spec.template.spec.containers"
POD = "spec.template.spec"


class Refused(NamedTuple):
    """A change to a valid job, the field that the API server must blame, and a piece of what it must say."""

    name: str
    changes: dict[str, Any]
    field: str
    says: str


def with_trainer(**fields: Any) -> dict[str, Any]:
    return {TRAINER: [{"name": "trainer", "image": "trainer:1", **fields}]}


REFUSED = [
    # --- model
    Refused("no-model", {"spec.model": {}}, "spec.model.preset", "exactly one of preset and architecture"),
    Refused("two-models", {"spec.model.preset": "gpt2"}, "spec.model.preset", "exactly one of preset and architecture"),
    Refused("unknown-preset", {"spec.model": {"preset": "gpt5"}}, "spec.model.preset", 'Unsupported value: "gpt5"'),
    Refused("heads", {f"{ARCHITECTURE}.attentionHeads": 7}, f"{ARCHITECTURE}.hiddenSize", "multiple of attentionHeads"),
    Refused("kv-heads", {f"{ARCHITECTURE}.kvHeads": 3}, f"{ARCHITECTURE}.kvHeads", "multiple of kvHeads"),
    Refused("experts-alone", {f"{ARCHITECTURE}.experts": 8}, f"{ARCHITECTURE}.expertsPerToken", "both or neither"),
    Refused(
        "experts-per-token",
        {f"{ARCHITECTURE}.experts": 8, f"{ARCHITECTURE}.expertsPerToken": 9},
        f"{ARCHITECTURE}.expertsPerToken",
        "must not exceed experts",
    ),
    Refused("no-layers", {f"{ARCHITECTURE}.layers": 0}, f"{ARCHITECTURE}.layers", "greater than or equal to 1"),
    # --- training
    Refused("no-length", {"spec.training.steps": None}, "spec.training.steps", "exactly one of steps and tokens"),
    Refused("two-lengths", {"spec.training.tokens": 10}, "spec.training.steps", "exactly one of steps and tokens"),
    Refused(
        "batch-zero", {"spec.training.globalBatchSize": 0}, "spec.training.globalBatchSize", "greater than or equal"
    ),
    Refused(
        "batch-float", {"spec.training.globalBatchSize": 1.5}, "spec.training.globalBatchSize", "must be of type int32"
    ),
    Refused("precision", {"spec.training.precision": "INT8"}, "spec.training.precision", 'Unsupported value: "INT8"'),
    Refused("optimizer", {"spec.training.optimizer": "adam"}, "spec.training.optimizer", 'Unsupported value: "adam"'),
    # --- resources
    Refused("min-max", {"spec.resources.gpus.min": 17}, "spec.resources.gpus.min", "must not exceed max"),
    Refused("no-gpus", {"spec.resources.gpus": {}}, "spec.resources.gpus.max", "Required value"),
    Refused(
        "gpu-type-twice", {"spec.resources.gpuTypes": ["T4", "T4"]}, "spec.resources.gpuTypes[1]", "Duplicate value"
    ),
    Refused("quantity", {"spec.resources.memoryPerGpu": "64GB"}, "spec.resources.memoryPerGpu", "should match"),
    Refused("negative", {"spec.resources.cpusPerGpu": -1}, "spec.resources.cpusPerGpu", "greater than or equal to 0"),
    Refused(
        "cpu-twice",
        {"spec.resources.cpusPerGpu": 4, **with_trainer(resources={"requests": {"cpu": "4"}})},
        "spec.resources.cpusPerGpu",
        "take it out of the container, or leave cpusPerGpu out",
    ),
    Refused(
        "memory-twice",
        {"spec.resources.memoryPerGpu": "4Gi", **with_trainer(resources={"limits": {"memory": "4Gi"}})},
        "spec.resources.memoryPerGpu",
        "take it out of the container, or leave memoryPerGpu out",
    ),
    # --- parallelism and elasticity
    Refused(
        "width",
        {"spec.parallelism.tensor": {"max": 4, "fixed": 2}},
        "spec.parallelism.tensor.fixed",
        "at most one of max and fixed",
    ),
    *(
        Refused(
            f"data-{degree}",
            {"spec.parallelism": {"mode": "Data", degree: {"fixed": 2}}},
            f"spec.parallelism.{degree}",
            "mode Data leaves the model whole",
        )
        for degree in ("tensor", "pipeline", "context")
    ),
    Refused(
        "model-on-one",
        {"spec.resources.gpus": {"max": 1}, "spec.parallelism.mode": "Model"},
        "spec.parallelism.mode",
        "at least 2 GPUs",
    ),
    Refused(
        "hybrid-on-two",
        {"spec.resources.gpus": {"max": 2}, "spec.parallelism.mode": "Hybrid"},
        "spec.parallelism.mode",
        "at least 4 GPUs",
    ),
    Refused(
        "hybrid-undivided",
        {
            "spec.parallelism": {
                "mode": "Hybrid",
                "tensor": {"fixed": 1},
                "pipeline": {"fixed": 1},
                "context": {"fixed": 1},
            }
        },
        "spec.parallelism.mode",
        "cannot all be fixed at 1",
    ),
    Refused(
        "model-too-narrow",
        {
            "spec.resources.gpus.min": 8,
            "spec.parallelism": {
                "mode": "Model",
                "tensor": {"fixed": 4},
                "pipeline": {"fixed": 1},
                "context": {"fixed": 1},
            },
        },
        "spec.parallelism.mode",
        "must lie within resources.gpus",
    ),
    Refused(
        "model-experts",
        {
            f"{ARCHITECTURE}.experts": 8,
            f"{ARCHITECTURE}.expertsPerToken": 2,
            "spec.parallelism": {"mode": "Model", "expert": {"fixed": 2}},
        },
        "spec.parallelism.expert",
        "no data-parallel ranks",
    ),
    Refused(
        "degrees-too-many",
        {"spec.parallelism": {"tensor": {"fixed": 8}, "pipeline": {"fixed": 4}}},
        "spec.parallelism",
        "product of the fixed degrees",
    ),
    Refused(
        "degrees-do-not-divide",
        {
            "spec.elasticity.policy": "Fixed",
            "spec.resources.gpus": {"max": 12},
            "spec.parallelism.tensor": {"fixed": 8},
        },
        "spec.parallelism",
        "product of the fixed degrees",
    ),
    Refused("tensor-heads", {"spec.parallelism.tensor": {"fixed": 3}}, "spec.parallelism.tensor", "attentionHeads"),
    Refused("pipeline-layers", {"spec.parallelism.pipeline": {"fixed": 16}}, "spec.parallelism.pipeline", "layers"),
    Refused(
        "context-sequence", {"spec.parallelism.context": {"fixed": 3}}, "spec.parallelism.context", "sequenceLength"
    ),
    Refused("expert-dense", {"spec.parallelism.expert": {"fixed": 2}}, "spec.parallelism.expert", "for a dense model"),
    Refused("zero-stage", {"spec.parallelism.zeroStage": 4}, "spec.parallelism.zeroStage", "less than or equal to 3"),
    Refused(
        "deepspeed-pipeline",
        {"spec.launcher": "DeepSpeed", "spec.parallelism": {"pipeline": {"fixed": 2}, "zeroStage": 2}},
        "spec.parallelism.zeroStage",
        "pipeline engine works with ZeRO stage 0 or 1",
    ),
    Refused(
        "deepspeed-tensor",
        {"spec.launcher": "DeepSpeed", "spec.parallelism": {"tensor": {"fixed": 2}, "zeroStage": 3}},
        "spec.parallelism.zeroStage",
        "ZeRO stages 0 to 2",
    ),
    Refused(
        "fixed-range", {"spec.elasticity.policy": "Fixed"}, "spec.resources.gpus.min", "exactly resources.gpus.max GPUs"
    ),
    # --- the rest of the spec
    Refused("launcher", {"spec.launcher": "mpirun"}, "spec.launcher", 'Unsupported value: "mpirun"'),
    Refused("queue-name", {"spec.queue": "My Queue"}, "spec.queue", "should match"),
    Refused("manager", {"spec.managedBy": "kueue"}, "spec.managedBy", "should match"),
    Refused("restarts", {"spec.maxRestarts": -1}, "spec.maxRestarts", "greater than or equal to 0"),
    # --- the pod template
    Refused("no-template", {"spec.template": None}, "spec.template", "Required value"),
    Refused("no-containers", {TRAINER: []}, TRAINER, "should have at least 1 items"),
    Refused("no-image", {TRAINER: [{"name": "trainer"}]}, f"{TRAINER}[0].image", "Required value"),
    Refused("restart-policy", {f"{POD}.restartPolicy": "Always"}, f"{POD}.restartPolicy", "must be Never"),
    Refused("node-name", {f"{POD}.nodeName": "n1"}, f"{POD}.nodeName", "the plan chooses the nodes"),
    Refused("scheduler", {f"{POD}.schedulerName": "volcano"}, f"{POD}.schedulerName", "bound by Trimtab"),
    Refused("hostname", {f"{POD}.hostname": "h"}, f"{POD}.hostname", "named by their rank"),
    Refused("subdomain", {f"{POD}.subdomain": "s"}, f"{POD}.subdomain", "named by the plan"),
    Refused(
        "pod-priority", {f"{POD}.priorityClassName": "high"}, f"{POD}.priorityClassName", "use spec.priorityClassName"
    ),
    Refused("gates", {f"{POD}.schedulingGates": [{"name": "a/b"}]}, f"{POD}.schedulingGates", "never behind gates"),
    Refused(
        "spread",
        {f"{POD}.topologySpreadConstraints": [{"maxSkew": 1}]},
        f"{POD}.topologySpreadConstraints",
        "places the gang by topology",
    ),
    Refused(
        "pod-affinity",
        {f"{POD}.affinity.podAffinity": {}},
        f"{POD}.affinity.podAffinity",
        "restrict nodes with nodeAffinity",
    ),
    Refused(
        "pod-anti-affinity",
        {f"{POD}.affinity.podAntiAffinity": {}},
        f"{POD}.affinity.podAntiAffinity",
        "restrict nodes with nodeAffinity",
    ),
    Refused(
        "gpu-limit",
        with_trainer(resources={"limits": {"nvidia.com/gpu": 8}}),
        f"{TRAINER}[0].resources.limits",
        "GPUs may not be requested in the template",
    ),
    Refused(
        "gpu-request",
        with_trainer(resources={"requests": {"amd.com/gpu": "8"}}),
        f"{TRAINER}[0].resources.requests",
        "GPUs may not be requested in the template",
    ),
    Refused(
        "mig-in-init",
        {f"{POD}.initContainers": [{"name": "i", "image": "i", "resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}]},
        f"{POD}.initContainers[0].resources.limits",
        "GPUs may not be requested in the template",
    ),
    Refused(
        "plan-env",
        with_trainer(env=[{"name": "PET_NNODES", "value": "2"}]),
        f"{TRAINER}[0].env[0].name",
        "set by the plan",
    ),
    Refused(
        "trimtab-env",
        with_trainer(env=[{"name": "TRIMTAB_TP", "value": "2"}]),
        f"{TRAINER}[0].env[0].name",
        "set by the plan",
    ),
    Refused(
        "label",
        {"spec.template.metadata.labels": {"trimtab.dev/job": "x"}},
        "spec.template.metadata.labels",
        "set by the plan",
    ),
    Refused(
        "annotation",
        {"spec.template.metadata.annotations": {"trimtab.dev/node": "x"}},
        "spec.template.metadata.annotations",
        "set by the plan",
    ),
    # --- the name (these keep their own)
    Refused("9-begins-with-a-digit", {}, "metadata.name", "begins with a letter"),
    Refused("dotted.name", {}, "metadata.name", "begins with a letter"),
    Refused("a-name-that-does-not-leave-room-for-ranks", {}, "metadata.name", "may not be more than 40"),
]

REFUSED_QUEUES = [
    Refused("type-twice", {"spec.quotas": [{"gpuType": "T4", "gpus": 1}] * 2}, "spec.quotas[1]", "Duplicate value"),
    Refused("no-number", {"spec.quotas": [{"gpuType": "T4"}]}, "spec.quotas[0].gpus", "gpus, guaranteed or both"),
    Refused(
        "promises-more-than-it-allows",
        {"spec.quotas": [{"gpuType": "T4", "gpus": 4, "guaranteed": 5}]},
        "spec.quotas[0].guaranteed",
        "guaranteed must not exceed gpus",
    ),
    Refused(
        "promises-more-than-altogether",
        {"spec.quotas": [{"gpuType": "T4", "guaranteed": 6}, {"gpuType": "*", "gpus": 5}]},
        "spec.quotas",
        "guaranteed must not exceed gpus of `*`",
    ),
    Refused("no-weight", {"spec.weight": 0}, "spec.weight", "greater than or equal to 1"),
    Refused("no-namespace", {"spec.namespaces": ["a.b"]}, "spec.namespaces[0]", "should match"),
    Refused("namespace-twice", {"spec.namespaces": ["a", "a"]}, "spec.namespaces[1]", "Duplicate value"),
    Refused("fewer-than-none", {"spec.maxPendingJobs": -1}, "spec.maxPendingJobs", "greater than or equal to 0"),
    Refused(
        "below-zero",
        {"spec.quotas": [{"gpuType": "*", "gpus": -1}]},
        "spec.quotas[0].gpus",
        "greater than or equal to 0",
    ),
]

ADMITTED = {
    "as-it-is": {},
    "head-dim": {
        f"{ARCHITECTURE}.attentionHeads": 7,
        f"{ARCHITECTURE}.headDim": 64,
        "spec.parallelism.tensor": {"fixed": 7},
    },
    "fixed-needs-no-min": {"spec.resources.gpus": {"max": 8}, "spec.elasticity.policy": "Fixed"},
    "context-shards-too": {"spec.parallelism": {"mode": "Model", "zeroStage": 3}},
    "deepspeed-zero-3": {"spec.launcher": "DeepSpeed", "spec.parallelism.zeroStage": 3},
    "sidecar-with-cpu": {
        "spec.resources.cpusPerGpu": "500m",
        TRAINER: [
            {"name": "logs", "image": "logs:1", "resources": {"requests": {"cpu": "100m", "rdma/hca": 1}}},
            {"name": "trainer", "image": "trainer:1", "env": [{"name": "PET_LOG_DIR", "value": "/logs"}]},
        ],
    },
    "unknown-pod-fields": {
        f"{POD}.hostNetwork": True,
        f"{POD}.volumes": [{"name": "d", "nfs": {"server": "s", "path": "/"}}],
    },
    "a-name-of-forty-characters-is-just-short": {},
}


def named(name: str, manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest | {"metadata": manifest["metadata"] | {"name": name}}


def answers(kubeconfig: Path, manifests: list[dict[str, Any]]) -> dict[str, str]:
    """Return what the API server said about each manifest that it refused, by name; kubectl's own checks are off."""
    listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
    try:
        kubectl(kubeconfig, "create", "--dry-run=server", "--validate=ignore", "-f", "-", stdin=json.dumps(listed))
    except LocalClusterError as error:
        parts = re.split(r'\.trimtab\.dev "([^"]+)" is invalid: ', str(error))
        return dict(zip(parts[1::2], parts[2::2], strict=True))
    return {}


@pytest.fixture(scope="module")
def refusals(kubeconfig: Path, job: Callable[..., dict[str, Any]]) -> dict[str, str]:
    return answers(kubeconfig, [named(case.name, job(case.changes)) for case in REFUSED])


@pytest.fixture(scope="module")
def queue_refusals(kubeconfig: Path) -> dict[str, str]:
    queue = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "Queue"}
    return answers(
        kubeconfig,
        [
            queue
            | {"metadata": {"name": case.name}}
            | changed({"spec": {"quotas": [{"gpuType": "*", "gpus": 8}]}}, case.changes)
            for case in REFUSED_QUEUES
        ],
    )


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_a_bad_job_is_refused_naming_the_field(refusals: dict[str, str], case: Refused) -> None:
    said = refusals.get(case.name, "nothing: it was admitted")
    assert f"{case.field}: " in said
    assert case.says in said


@pytest.mark.parametrize("case", REFUSED_QUEUES, ids=lambda case: case.name)
def test_a_bad_queue_is_refused_naming_the_field(queue_refusals: dict[str, str], case: Refused) -> None:
    said = queue_refusals.get(case.name, "nothing: it was admitted")
    assert f"{case.field}: " in said
    assert case.says in said


def test_what_is_right_is_admitted(kubeconfig: Path, job: Callable[..., dict[str, Any]]) -> None:
    assert answers(kubeconfig, [named(name, job(changes)) for name, changes in ADMITTED.items()]) == {}


def test_every_rule_about_new_objects_has_an_example(refusals: dict[str, str], queue_refusals: dict[str, str]) -> None:
    """Rules that compare with the old object are the business of test_transitions."""
    said = " ".join([*refusals.values(), *queue_refusals.values()])
    missing = [r["message"] for r in all_rules() if "oldSelf" not in r["rule"] and r["message"] not in said]
    assert missing == []


def all_rules() -> Iterator[dict[str, str]]:
    (crd,) = (crd for name, crd in schema.definitions().items() if name.startswith("llmtrainingjobs"))
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    yield from cel.JOB
    yield from rules_below(spec)
    yield from cel.QUEUE_QUOTA
    yield from cel.QUEUE_SPEC


def rules_below(node: dict[str, Any]) -> Iterator[dict[str, str]]:
    yield from node.get("x-kubernetes-validations", [])
    for child in [*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")]:
        if isinstance(child, dict):
            yield from rules_below(child)


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).resolve().parents[2].glob("manifests/samples/*.yaml")), ids=lambda p: p.stem
)
def test_every_sample_is_admitted(kubeconfig: Path, path: Path) -> None:
    assert "(server dry run)" in kubectl(kubeconfig, "apply", "--dry-run=server", "-f", str(path))
