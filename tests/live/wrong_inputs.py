"""Inputs that are wrong, by what is wrong about them: what a person may type, and the field that has to be named.

Most the API server refuses when they are applied. Others make sense by themselves: a condition says what is wrong with
them as soon as the controller has seen them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

T = "spec.template.spec"
C = f"{T}.containers"
_TYPO = "unknown field"


class Wrong(NamedTuple):
    """Changes to a valid job by dotted path, the field that has to be named, and a piece of what is said."""

    changes: dict[str, Any]
    field: str
    says: str = ""


def set_to(field: str, value: Any, says: str = "", named: str = "") -> Wrong:
    """One field with a wrong value; `named` where another one is to blame."""
    return Wrong({field: value}, named or field, says)


def in_trainer(field: str, value: Any, says: str = "", named: str = "") -> Wrong:
    """One field of the trainer's container."""
    return Wrong({f"{C}.0.{field}": value}, named or f"{C}[0].{field}", says)


def variable(name: str) -> Wrong:
    return in_trainer("env", [{"name": name, "value": "2"}], "set by the plan", f"{C}[0].env[0].name")


def volume(**source: Any) -> list[dict[str, Any]]:
    return [{"name": "data", **source}]


WRONG: dict[str, list[Wrong]] = {
    "another type": [
        set_to("spec.resources.gpus.max", "eight", "must be of type integer"),
        set_to("spec.training.globalBatchSize", 1.5, "must be of type int32"),
        set_to("spec.training.steps", "1k", "must be of type integer"),
        set_to("spec.suspend", "yes", "must be of type boolean"),
        set_to("spec.queue", 7, "must be of type string"),
        set_to("spec.parallelism.tensor", 4, "must be of type object"),
        set_to("spec.resources.gpuTypes", "H100", "must be of type array"),
        set_to("spec.model", "gpt2", "must be of type object"),
        set_to(C, {"name": "trainer"}, "", C),
        in_trainer("env", [{"name": "A", "value": 3}], "must be of type string", f"{C}[0].env[0].value"),
    ],
    "a word in another case": [
        set_to("spec.training.precision", "bf16", '"BF16"'),
        set_to("spec.training.optimizer", "adamw", '"AdamW"'),
        set_to(
            "spec.training.adapters", {"rank": 8, "quantization": "nf4"}, '"NF4"', "spec.training.adapters.quantization"
        ),
        set_to("spec.launcher", "torchtitan", '"Torchtitan"'),
        set_to("spec.elasticity.policy", "elastic", '"Elastic"'),
        set_to("spec.parallelism.mode", "data", '"Data"'),
    ],
    "a model that there is not": [
        set_to("spec.model.preset", name, "Unsupported value")
        for name in ("gpt5", "llama3-8", "Llama3-8B", "llama-3-8b", "70b")
    ],
    "a number out of range": [
        set_to("spec.training.steps", 0, "greater than or equal to 1"),
        set_to("spec.training.globalBatchSize", 0, "greater than or equal to 1"),
        set_to("spec.training.sequenceLength", -1, "greater than or equal to 1"),
        set_to("spec.resources.gpus.max", 0, "greater than or equal to 1"),
        set_to("spec.resources.maxNodes", 0, "greater than or equal to 1"),
        set_to("spec.parallelism.zeroStage", 4, "less than or equal to 3"),
        set_to("spec.elasticity.checkpoint.graceSeconds", -5, "greater than or equal to 0"),
        set_to("spec.elasticity.minRuntimeSeconds", 10**9, "less than or equal to 31536000"),
        set_to("spec.maxRestarts", -1, "greater than or equal to 0"),
        set_to("spec.training.adapters", {"rank": 0}, "greater than or equal to 1", "spec.training.adapters.rank"),
    ],
    "an amount that is none": [
        set_to("spec.resources.memoryPerGpu", "64GB", "should match"),
        set_to("spec.resources.memoryPerGpu", "lots", "should match"),
        set_to("spec.resources.cpusPerGpu", "4 cores", "should match"),
        set_to("spec.resources.cpusPerGpu", -1, "greater than or equal to 0"),
        in_trainer("resources.requests.cpu", "four", "should match"),
    ],
    "a name that cannot be": [
        set_to("metadata.name", "9-begins-with-a-digit", "begins with a letter"),
        set_to("metadata.name", "dotted.name", "begins with a letter"),
        set_to("metadata.name", "a-name-that-does-not-leave-room-for-ranks", "may not be more than 40"),
        set_to("metadata.name", "Upper", "lowercase RFC 1123"),
        set_to("spec.queue", "My Queue", "should match"),
        set_to("spec.managedBy", "kueue", "should match"),
        set_to(C, [{"name": "Trainer", "image": "i:1"}], "should match", f"{C}[0].name"),
    ],
    "fields that do not go together": [
        set_to("spec.training.tokens", 10, "exactly one of steps and tokens", "spec.training.steps"),
        set_to("spec.training.steps", None, "exactly one of steps and tokens"),
        set_to("spec.model", {}, "exactly one of preset and architecture", "spec.model.preset"),
        set_to("spec.resources.gpus", {"min": 17, "max": 16}, "must not exceed max", "spec.resources.gpus.min"),
        Wrong(
            {"spec.resources.gpus": {"max": 1}, "spec.parallelism.mode": "Model"},
            "spec.parallelism.mode",
            "at least 2 GPUs",
        ),
        set_to(
            "spec.parallelism",
            {"mode": "Data", "tensor": {"fixed": 2}},
            "leaves the model whole",
            "spec.parallelism.tensor",
        ),
        set_to("spec.parallelism.tensor", {"max": 4, "fixed": 2}, "at most one of", "spec.parallelism.tensor.fixed"),
        Wrong(
            {"spec.launcher": "DeepSpeed", "spec.parallelism": {"pipeline": {"fixed": 2}, "zeroStage": 2}},
            "spec.parallelism.zeroStage",
            "pipeline engine",
        ),
        Wrong(
            {"spec.resources.cpusPerGpu": 4, f"{C}.0.resources": {"requests": {"cpu": "4"}}},
            "spec.resources.cpusPerGpu",
            "take it out of the container",
        ),
    ],
    "what the plan sets": [
        set_to(f"{T}.nodeName", "n1", "the plan chooses the nodes"),
        set_to(f"{T}.schedulerName", "volcano", "bound by Trimtab"),
        set_to(f"{T}.hostname", "h", "named by their rank"),
        set_to(f"{T}.restartPolicy", "OnFailure", "must be Never"),
        set_to(f"{T}.priorityClassName", "high", "use spec.priorityClassName"),
        set_to(f"{T}.affinity", {"podAntiAffinity": {}}, "nodeAffinity", f"{T}.affinity.podAntiAffinity"),
        in_trainer("resources.limits", {"nvidia.com/gpu": 8}, "GPUs may not be requested in the template"),
        set_to("spec.template.metadata.labels", {"trimtab.dev/job": "x"}, "set by the plan"),
    ],
    "a variable that the plan sets": [
        variable(name) for name in ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "TRIMTAB_TP", "TRIMTAB_MINE")
    ],
    "a field that there is not": [
        set_to("spec.resource", {"gpus": {"max": 8}}, _TYPO),
        set_to("spec.training.globalBatch", 8, _TYPO),
        set_to("spec.resources.gpu", 8, _TYPO),
        set_to("spec.parallelism.tp", 8, _TYPO),
        set_to("spec.elasticity.minRuntime", 8, _TYPO),
        set_to("spec.template.metadata.label", {"a": "b"}, _TYPO),
    ],
    "a typo in the template": [
        in_trainer("comand", ["torchrun"], _TYPO, "spec.containers[0].comand"),
        in_trainer("volumeMount", [{"name": "data", "mountPath": "/d"}], _TYPO, "spec.containers[0].volumeMount"),
        in_trainer("imagePullpolicy", "Always", _TYPO, "spec.containers[0].imagePullpolicy"),
        in_trainer("resource", {"requests": {"cpu": "1"}}, _TYPO, "spec.containers[0].resource"),
        set_to(f"{T}.volume", volume(emptyDir={}), _TYPO, "spec.volume"),
        set_to(f"{T}.initContainer", [], _TYPO, "spec.initContainer"),
        set_to(f"{T}.volumes", volume(emptyDir={"sizelimit": "1Gi"}), _TYPO, "spec.volumes[0].emptyDir.sizelimit"),
    ],
    "a value in the template that cannot be": [
        in_trainer("imagePullPolicy", "always", '"always"', "spec.containers[0].imagePullPolicy"),
        in_trainer(
            "volumeMounts", [{"name": "gone", "mountPath": "/d"}], '"gone"', "spec.containers[0].volumeMounts[0].name"
        ),
        in_trainer("ports", [{"containerPort": 99999}], "99999", "spec.containers[0].ports[0].containerPort"),
        in_trainer("securityContext", {"runAsUser": -1}, "-1", "spec.containers[0].securityContext.runAsUser"),
        set_to(
            f"{T}.volumes",
            volume(emptyDir={}, secret={"secretName": "x", "optional": True}),
            "more than 1 volume",
            "spec.volumes[0].secret",
        ),
    ],
    "what is not in the namespace": [
        set_to(f"{T}.serviceAccountName", "absent", "no ServiceAccount 'absent'"),
        set_to(
            f"{T}.volumes",
            volume(persistentVolumeClaim={"claimName": "absent"}),
            "no PersistentVolumeClaim 'absent'",
            f"{T}.volumes[0].persistentVolumeClaim.claimName",
        ),
        set_to(
            f"{T}.volumes",
            volume(configMap={"name": "absent"}),
            "no ConfigMap 'absent'",
            f"{T}.volumes[0].configMap.name",
        ),
        in_trainer(
            "env",
            [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "k"}}}],
            "no Secret 'absent'",
            f"{C}[0].env[0].valueFrom.secretKeyRef.name",
        ),
        in_trainer(
            "envFrom",
            [{"configMapRef": {"name": "absent"}}],
            "no ConfigMap 'absent'",
            f"{C}[0].envFrom[0].configMapRef.name",
        ),
    ],
    "what is not in the cluster": [
        set_to("spec.queue", "absent", "absent"),
        set_to("spec.queue", "of-others", "of-others"),
        set_to("spec.priorityClassName", "absent", "absent"),
        set_to("spec.resources.gpuTypes", ["H1000"], "H1000"),
        set_to("spec.resources.gpuTypes", ["H100"], "H100-SXM5-80GB"),
        set_to(f"{T}.nodeSelector", {"pool": "absent"}, "", "nodeSelector"),
        set_to(
            f"{T}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
            {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["absent"]}]}]},
            "",
            "affinity",
        ),
    ],
    "what no plan can be made of": [
        Wrong(
            {"spec.training.globalBatchSize": 7, "spec.parallelism.mode": "Data"}, "spec.training.globalBatchSize", "7"
        ),
        set_to("spec.parallelism.tensor", {"fixed": 3}, "product of the fixed degrees", "spec.parallelism"),
        set_to("spec.parallelism.expert", {"fixed": 4}, "", "expert"),
        Wrong(
            {"spec.model.preset": "llama3.1-405b", "spec.resources.gpus.max": 8}, "spec.resources.gpus", "would hold it"
        ),
        set_to("spec.resources.gpus.max", 8192, "asks for 8192 at least", "spec.resources.gpus"),
        set_to("spec.resources.cpusPerGpu", "4000", "requests.cpu 32000", "spec.resources.cpusPerGpu"),
        set_to("spec.resources.memoryPerGpu", "80Ti", "requests.memory 655360Gi", "spec.resources.memoryPerGpu"),
        in_trainer("resources.requests.cpu", "4000", "requests.cpu 4000", "spec.template"),
    ],
}
