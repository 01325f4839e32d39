"""One training job in the shape of another kind: an LLMTrainingJob, a TrainJob with its runtime, or a JobSet.

Whatever is read becomes a `ForeignJob`; here that becomes an object again. What an object of another kind has no place
for is written into annotations (`names.STATED`), by which it is read again: the way there and back loses nothing that
a `ForeignJob` has. What cannot be carried at all is told by name.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, structs

from trimtab import names
from trimtab.api.v1alpha1 import ElasticPolicy
from trimtab.errors import UsageError
from trimtab.foreign import gpu_types, models
from trimtab.foreign.arguments import Run, Stated
from trimtab.foreign.expansion import names_in, readable
from trimtab.foreign.job import ForeignJob, bounds
from trimtab.foreign.kinds import Json, Pods, at, mapping
from trimtab.foreign.tables import kinds, trainers
from trimtab_policy import catalog

PATHS: Final = {
    "model": "model.preset",
    **{field: f"model.architecture.{called}" for field, called in models.SHAPE.items()},
    "sequence_length": "training.sequenceLength",
    "global_batch_size": "training.globalBatchSize",
    "steps": "training.steps",
    "tokens": "training.tokens",
    "precision": "training.precision",
    "optimizer": "training.optimizer",
    "gpus": "resources.gpus.max",
    "gpu_type": "resources.gpuTypes",
    "mode": "parallelism.mode",
    "tensor": "parallelism.tensor.fixed",
    "pipeline": "parallelism.pipeline.fixed",
    "context": "parallelism.context.fixed",
    "expert": "parallelism.expert.fixed",
    "zero_stage": "parallelism.zeroStage",
    "recompute": "parallelism.recompute",
    "launcher": "launcher",
}
"""Field -> where it stands in the spec of an LLMTrainingJob."""
_WORDS: Final = frozenset({"model", "precision", "optimizer", "mode", "recompute", "launcher"})
_SWITCHES: Final = {"gated_ffn": "gatedFfn", "tied_embeddings": "tiedEmbeddings", "biases": "biases"}
_PRECISIONS: Final = {"bf16": "BF16", "fp16": "FP16", "fp8": "FP8", "nvfp4": "FP8", "fp32": "FP32"}
_NOT_IN_PODS: Final = (
    "nodeName",
    "schedulerName",
    "hostname",
    "subdomain",
    "priorityClassName",
    "schedulingGates",
    "topologySpreadConstraints",
    "restartPolicy",
)
_SET_BY_PLAN = re.compile(r"TRIMTAB_.*|PET_(?:NNODES|NPROC_PER_NODE|NODE_RANK|MASTER_ADDR)", re.ASCII)
_RENDEZVOUS = re.compile(
    r"--(?:nnodes|nproc[_-]per[_-]node|node[_-]rank|rdzv[_-][a-z]+|master[_-]addr|master[_-]port)(=.*)?",
    re.ASCII | re.DOTALL,
)
_ADAPTERS = re.compile("q?lora|peft", re.IGNORECASE)
_DEFAULT_PRECISION = "BF16"


class Converted(Struct, frozen=True):
    """Objects to apply, and what there is to say about them."""

    documents: tuple[Json, ...]
    notes: tuple[str, ...]


def job_of(document: Json) -> ForeignJob:
    """An LLMTrainingJob as the value that the others are read into; its spec must be one that the CRD allows."""
    spec = mapping(document.get("spec"))
    meta = mapping(document.get("metadata"))
    fields: dict[str, Stated] = {}
    for field, path in PATHS.items():
        value = at(spec, path)
        if isinstance(value, list):
            value = ",".join(map(str, value))
        if value is not None:
            fields[field] = Stated(str(value), f"spec.{path}")
    for field, called in _SWITCHES.items():
        if (value := at(spec, f"model.architecture.{called}")) is not None:
            fields[field] = Stated(str(value).lower(), f"spec.model.architecture.{called}")
    template = mapping(spec.get("template"))
    notes = [f"spec.{path} is left out: other kinds have no place for it" for path in _left_out(spec)]
    name, namespace = str(meta.get("name", "job")), str(meta.get("namespace", "default"))
    pods = (Pods("node", template, None, None),)
    return ForeignJob(names.JOB_KIND, name, namespace, fields, {}, "", (), (), tuple(notes), pods=pods, source=document)


def with_stated(job: ForeignJob, stated: Mapping[str, str]) -> ForeignJob:
    """An LLMTrainingJob with what the user states besides. Raises UsageError for what its spec says, or no field."""
    for field in stated:
        if field not in names.STATED:
            raise UsageError(f"--set {field}: there is no such field; known are {', '.join(names.STATED)}")
        if field in job.fields or field in PATHS:
            raise UsageError(f"--set {field}: say it in spec.{PATHS.get(field, field)}")
        if not re.fullmatch("[0-9]{1,6}", stated[field]):
            raise UsageError(f"--set {field} is {stated[field]!r}, which is no whole number")
    said = {field: Stated(value, f"--set {field}") for field, value in stated.items()}
    return structs.replace(job, fields={**job.fields, **said})


def _left_out(spec: Json) -> list[str]:
    carried = {
        *PATHS.values(),
        *(f"model.architecture.{called}" for called in _SWITCHES.values()),
        "template",
        "elasticity.policy",
    }
    found: list[str] = []

    def visit(value: Any, path: str) -> None:
        if path in carried:
            return
        if isinstance(value, dict):
            for key, inner in value.items():
                visit(inner, f"{path}.{key}" if path else str(key))
        else:
            found.append(path)

    visit(spec, "")
    return found


# --- to an LLMTrainingJob -----------------------------------------------------------------------------------------
def to_own(job: ForeignJob, runnable: bool = True) -> Converted:
    """The LLMTrainingJob that says the same. It gets as many GPUs as the job has; degrees that are stated are kept.

    With `runnable` false its pods need not be ones that could run: enough to plan with. Raises UsageError naming what
    the job does not state, or why there is nothing to plan.
    """
    _plannable(job)
    spec: Json = {}
    notes = [*job.notes]
    if job.run is not None and (words := _of_adapters(job.run)):
        notes.append(f"all weights are planned to be trained: {words} is not read; spec.training.adapters says LoRA")
    fields = _of_catalogue(job, notes)
    for field, path in PATHS.items():
        if field in fields and not (field == "model" and not models.preset(fields["model"].value)):
            _put(spec, path, _value(field, fields[field].value))
    spec |= _elastic(job, spec)
    for field, called in _SWITCHES.items():
        if field in fields and "architecture" in spec.get("model", {}):
            spec["model"]["architecture"][called] = fields[field].value == "true"
    if "preset" in spec["model"]:
        spec["model"] = {"preset": models.preset(fields["model"].value)}
    if "steps" in spec["training"]:
        spec["training"].pop("tokens", None)
    spec |= _place_in_line(job, notes)
    spec["template"] = _own_template(job, notes, runnable)
    document = {"apiVersion": names.API_VERSION, "kind": names.JOB_KIND, "metadata": _metadata(job), "spec": spec}
    return Converted((document,), tuple(notes))


def _elastic(job: ForeignJob, spec: Json) -> Json:
    """How many GPUs it may have, and when that is chosen: as many as it has, where the user states no range. Raises
    UsageError naming what is no value of these fields, or contradicts."""
    fields, resources = job.fields, {**spec["resources"]}
    gpus = bounds(fields["gpus"].value)
    policy = fields.get("elasticity", Stated("Moldable" if gpus else "Fixed", ""))
    resharding = fields.get("resharding", Stated("false", ""))
    if policy.value not in (allowed := [*ElasticPolicy]):
        raise UsageError(f"{job.name}: {policy.source} is {policy.value!r}: it has to be {', '.join(allowed)}")
    if policy.value != "Fixed" and not gpus:
        at = names.STATED["gpus"]
        raise UsageError(f"{job.name}: {policy.source} is {policy.value}, and {at} is no range, such as 8-64")
    if resharding.value not in ("true", "false"):
        raise UsageError(f"{job.name}: {resharding.source} is {resharding.value!r}: it has to be true or false")
    if gpus:
        resources["gpus"] = {"min": gpus[0], "max": gpus[1]}
    if each := bounds(fields["gpus_per_node"].value) if "gpus_per_node" in fields else None:
        resources["gpusPerNode"] = {"min": each[0], "max": each[1]}
    elasticity: Json = {"policy": policy.value}
    if resharding.value == "true":
        elasticity["checkpoint"] = {"resharding": True}
    return {"resources": resources, "elasticity": elasticity}


def _place_in_line(job: ForeignJob, notes: list[str]) -> Json:
    """Queue and priority. A queue of the job's own scheduler is none of ours, and is told. Raises UsageError."""
    if job.kind == names.JOB_KIND or not job.source:
        return {}
    found: Json = {}
    row = kinds()[job.kind]
    meta = mapping(job.source.get("metadata"))
    if queue := mapping(meta.get("annotations")).get(names.ANNOTATION_QUEUE):
        found["queue"] = str(queue)
    elif isinstance(theirs := at(job.source, row.queue), str) and theirs:
        notes.append(f"{row.queue} is left out: {theirs!r} is no Queue of Trimtab's; spec.queue names one")
    classes = {str(pods.spec["priorityClassName"]) for pods in job.pods if pods.spec.get("priorityClassName")}
    if len(classes) > 1:
        raise UsageError(
            f"{job.name}: its pods name several classes in priorityClassName: {', '.join(sorted(classes))}"
        )
    if isinstance(priority := next(iter(classes), at(job.source, row.priority)), str) and priority:
        found["priorityClassName"] = priority
    return found


def _of_adapters(run: Run) -> str:
    """The words of a command that speak of adapters."""
    told = [name for name, value in run.arguments if _ADAPTERS.search(name) and value.lower() != "false"]
    return ", ".join([*told, *(word for word in (run.program, *run.positional) if _ADAPTERS.search(word))][:3])


def _plannable(job: ForeignJob) -> None:
    if job.refused:
        raise UsageError(f"{job.name}: {job.refused}")
    if job.unsupported:
        raise UsageError(f"{job.name} asks for {job.unsupported}: Trimtab does not plan for these accelerators")
    if job.missing:
        raise UsageError(f"{job.name} does not say all that a plan needs:\n" + "\n".join(asked_for(job)))


def asked_for(job: ForeignJob) -> list[str]:
    """What is missing, one line each: what stands there instead, and how to state it."""
    lines = []
    for field in job.missing:
        why = "nothing states it"
        if field in job.unknown:
            why = (
                f"{job.unknown[field]} is known only when it runs"
                if "differ" not in job.unknown[field]
                else job.unknown[field]
            )
        if field == "steps" and "epochs" in job.fields:
            why = f"it trains {job.fields['epochs'].value} epochs, and does not say how many steps that is"
        if field == "model" and "model" in job.fields:
            why = f"{job.fields['model'].value!r} ({job.fields['model'].source}) is no preset"
        shape = [each for each in models.NEEDED if each not in job.fields]
        hint = f", or its shape: {', '.join(shape)}" if field == "model" else ""
        lines.append(f"  {field}: {why}; --set {field}=VALUE, or the annotation {names.STATED[field]}{hint}")
    return lines


def _of_catalogue(job: ForeignJob, notes: list[str]) -> dict[str, Stated]:
    """The fields in the terms of an LLMTrainingJob."""
    fields = dict(job.fields)
    if job.kind == names.JOB_KIND:
        return fields
    precision = fields.pop("precision", None)
    if precision is not None:
        called = _PRECISIONS.get(precision.value.casefold(), precision.value)
        fields["precision"] = Stated(called, precision.source)
        if precision.value == "nvfp4":
            notes.append("NVFP4 is planned as FP8")
    else:
        notes.append(f"precision is not stated: {_DEFAULT_PRECISION}, as in every LLMTrainingJob that does not say it")
    if kind := fields.pop("gpu_type", None):
        types = [
            name for each in kind.value.split(",") for name in gpu_types.catalogued(each.strip()) or (each.strip(),)
        ]
        fields["gpu_type"] = Stated(",".join(dict.fromkeys(types)), kind.source)
    trainer = trainers().trainers.get(job.trainer)
    fields.setdefault("launcher", Stated(trainer.launcher if trainer else "Torchrun", "its trainer"))
    if trainer and trainer.data_only and not fields.keys() & {"tensor", "pipeline", "context", "mode"}:
        fields["mode"] = Stated("Data", f"{job.trainer} divides data only")
    if job.trainer == "megatron":
        for field, missing in (("gated_ffn", "false"), ("tied_embeddings", "true")):
            fields.setdefault(field, Stated(missing, "Megatron-LM, where no argument says otherwise"))
    return fields


def _value(field: str, text: str) -> Any:
    if field == "gpu_type":
        return text.split(",")
    if field in _WORDS:
        return text
    found = bounds(text)
    return found[1] if found else int(text.replace("_", ""))


def _put(spec: Json, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    place = spec
    for name in parents:
        place = place.setdefault(name, {})
    place[last] = value


def _metadata(job: ForeignJob) -> Json:
    name = re.sub(r"[^a-z0-9-]+", "-", job.name.lower())[: names.MAX_NAME_LENGTH].strip("-") or "job"
    name = name if name[0].isalpha() else f"job-{name}"[: names.MAX_NAME_LENGTH].strip("-")
    metadata: Json = {"name": name} | ({"namespace": job.namespace} if job.namespace != "default" else {})
    if admitted_by := mapping(mapping(job.source.get("metadata")).get("labels")).get(names.LABEL_KUEUE_QUEUE):
        metadata["labels"] = {names.LABEL_KUEUE_QUEUE: str(admitted_by)}
    return metadata


def _own_template(job: ForeignJob, notes: list[str], runnable: bool) -> Json:
    asking = [pod for pod in job.pods if pod.accelerators is None or pod.accelerators]
    if not asking or not asking[0].containers:
        return _template_of_script(job, notes, runnable)
    template = copy.deepcopy(max(asking, key=lambda pod: pod.count or 0).template)
    pod = mapping(template.get("spec"))
    for field in _NOT_IN_PODS:
        told = field not in ("restartPolicy", "priorityClassName")  # the latter is the job's now
        if field in pod and told and pod[field] not in (None, "default-scheduler"):
            notes.append(f"{field} of the pods is left out: the plan sets it")
        pod.pop(field, None)
    if isinstance(affinity := pod.get("affinity"), dict):
        pod["affinity"] = {key: value for key, value in affinity.items() if key == "nodeAffinity"}
    for container in pod["containers"]:
        _clean(container, notes, ours=job.kind == names.JOB_KIND)
    main = _main(pod["containers"])
    if not main.get("image"):
        main["image"] = _image(job, runnable)
    if not main.get("command") and not main.get("args") and job.run is not None and job.kind != names.JOB_KIND:
        main["command"] = _command(job.run, notes)
    kept = {
        key: value
        for key, value in mapping(template.get("metadata")).items()
        if key in ("labels", "annotations") and value
    }
    return {**({"metadata": kept} if kept else {}), "spec": pod}


def _main(containers: list[Json]) -> Json:
    return next((each for each in containers if each.get("name") == names.TRAINER_CONTAINER), containers[0])


def _clean(container: Json, notes: list[str], ours: bool) -> None:
    resources = mapping(container.get("resources"))
    for table in ("requests", "limits"):
        if isinstance(resources.get(table), dict):
            resources[table] = {
                key: value for key, value in resources[table].items() if not gpu_types.is_accelerator(str(key))
            }
            if not resources[table]:
                del resources[table]
    if not resources:
        container.pop("resources", None)
    if isinstance(environment := container.get("env"), list):
        container["env"] = [
            each for each in environment if not _SET_BY_PLAN.fullmatch(str(mapping(each).get("name", "")))
        ]
        if not container["env"]:
            del container["env"]
    for part in ("command", "args"):
        if not ours and isinstance(words := container.get(part), list):
            container[part] = _without_rendezvous([str(word) for word in words])
            if any(re.search(r"--(?:nnodes|nproc[_-]per[_-]node)\b", word) for word in container[part]):
                notes.append(
                    "its script gives torchrun --nnodes or --nproc_per_node itself: take them out, the plan sets both"
                )


def _without_rendezvous(words: list[str]) -> list[str]:
    found: list[str] = []
    index = 0
    while index < len(words):
        match = _RENDEZVOUS.fullmatch(words[index])
        if match is None:
            found.append(words[index])
        index += 1 if match is None or match[1] else 2
    return found


def _template_of_script(job: ForeignJob, notes: list[str], runnable: bool) -> Json:
    container: Json = {"name": names.TRAINER_CONTAINER, "image": _image(job, runnable)}
    if job.run is not None and runnable:
        container["command"] = _command(job.run, notes)
    return {"spec": {"containers": [container]}}


def _image(job: ForeignJob, runnable: bool) -> str:
    image = job.fields["image"].value if "image" in job.fields else job.image
    if runnable and (not image or names_in(image)):
        raise UsageError(f"{job.name} does not say which image its pods run: --set image=IMAGE")
    return readable(image) or "none"


def _command(run: Run, notes: list[str]) -> list[str]:
    """The trainer under torchrun, which takes ranks and rendezvous from the plan."""
    after = run.words[len(run.before) :]
    words = [readable(word) for word in after]
    unknown = sorted({name for word in after for name in names_in(word)})
    if unknown:
        what = ", ".join(filter(None, unknown)) or "answers of commands"
        notes.append(f"its command needs values that only the script's run tells: {what}")
    if set(run.launchers) - {"srun", "torchrun", "torch.distributed.run", "trimtab.launch"}:
        notes.append(f"its command was started by {', '.join(run.launchers)}: here torchrun starts it")
    if not run.program.endswith(".py") and words[:1] not in (["-m"], ["--module"]):
        return words
    return ["torchrun", *words]


# --- to other kinds --------------------------------------------------------------------------------------------------
def to_jobset(job: ForeignJob) -> Converted:
    """A JobSet of one replicated job. Raises UsageError where the split into nodes is not stated."""
    document, notes, nodes, template = _foreign(job)
    body = {"backoffLimit": 0, "completions": nodes, "parallelism": nodes, "template": template}
    replicated = [{"name": "node", "replicas": 1, "template": {"spec": body}}]
    made = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        **document,
        "spec": {"replicatedJobs": replicated},
    }
    return Converted((made,), tuple(notes))


def to_trainjob(job: ForeignJob) -> Converted:
    """A TrainJob and the TrainingRuntime that has its pod. Raises UsageError where the split is not stated."""
    document, notes, nodes, template = _foreign(job)
    name = f"{document['metadata']['name']}-runtime"
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    main = _main(template["spec"]["containers"])
    if main["name"] != "node":
        notes.append(f"its container {main['name']} is called node, as Kubeflow Trainer expects it")
    main["name"] = "node"
    replicated = [
        {"name": "node", "replicas": 1, "template": {"metadata": {"labels": labels}, "spec": {"template": template}}}
    ]
    policy = {"numNodes": nodes, "torch": {}}
    version = "trainer.kubeflow.org/v1alpha1"
    runtime = {
        "apiVersion": version,
        "kind": "TrainingRuntime",
        "metadata": {"name": name, **{key: value for key, value in document["metadata"].items() if key == "namespace"}},
        "spec": {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": replicated}}},
    }
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": name}
    made = {
        "apiVersion": version,
        "kind": "TrainJob",
        **document,
        "spec": {"runtimeRef": reference, "trainer": {"numNodes": nodes}},
    }
    return Converted((runtime, made), tuple(notes))


def _foreign(job: ForeignJob) -> tuple[Json, list[str], int, Json]:
    """Metadata with annotations, notes, nodes, and the pod with its GPUs."""
    own = job if job.kind == names.JOB_KIND else _as_own(job)
    notes = [*own.notes]
    gpus = int(own.fields["gpus"].value)
    each = _per_node(own, job, gpus)
    template = copy.deepcopy(own.pods[0].template)
    main = _main(template["spec"]["containers"])
    resources = main.setdefault("resources", {})
    resources["limits"] = {**(resources.get("limits") or {}), _resource(own): each}
    template["spec"]["restartPolicy"] = "Never"
    annotations = {names.STATED[field]: own.fields[field].value for field in own.fields if field in names.STATED}
    metadata = {**_metadata(own), "annotations": annotations}
    return {"metadata": metadata}, notes, gpus // each, template


def _as_own(job: ForeignJob) -> ForeignJob:
    made = to_own(job)
    own = job_of(made.documents[0])
    return structs.replace(own, notes=made.notes)


def _per_node(own: ForeignJob, job: ForeignJob, gpus: int) -> int:
    stated = job.fields.get("gpus_per_node")
    if stated is None and (gpus == 1 or at(own.source, "spec.resources.maxNodes") == 1):
        return gpus
    if stated is None:
        raise UsageError(f"{job.name} does not say how its {gpus} GPUs are spread over pods: --set gpus_per_node=VALUE")
    each: int = _value("gpus_per_node", stated.value)
    if not each or gpus % each:
        raise UsageError(
            f"{job.name} has {gpus} GPUs, which are no multiple of gpus_per_node, {each} ({stated.source})"
        )
    return each


def _resource(job: ForeignJob) -> str:
    """What GPUs of its first type are called; NVIDIA's where it names none."""
    first = job.fields["gpu_type"].value.split(",")[0] if "gpu_type" in job.fields else ""
    vendor = catalog.gpu(first).vendor if catalog.is_known(first) else ""
    return names.AMD_GPU if vendor.upper() == "AMD" else names.NVIDIA_GPU


TARGETS: Final[Mapping[str, Any]] = {"ltj": to_own, "trainjob": to_trainjob, "jobset": to_jobset}
"""Values of `trimtab convert -o`."""
