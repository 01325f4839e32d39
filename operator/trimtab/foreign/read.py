"""A training job of any kind, read from a file: a manifest, or a script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from msgspec import Struct, structs

from trimtab import names
from trimtab.errors import UsageError
from trimtab.foreign import configs, gpu_types, judge, slurm
from trimtab.foreign.arguments import Read, Stated
from trimtab.foreign.budget import TooLong, reading
from trimtab.foreign.derive import derive
from trimtab.foreign.expansion import known
from trimtab.foreign.job import COUNTED, ForeignJob, bounds, number
from trimtab.foreign.kinds import (
    Json,
    Pods,
    at,
    environment_of,
    mapping,
    members_of,
    pods_of,
    row_of,
    whole,
    words_of,
)
from trimtab.foreign.runs import launcher_options, with_runs
from trimtab.foreign.shell import Command, Walk, walk, walk_words
from trimtab.foreign.tables import Kind, trainers
from trimtab.launch import FLAGS

SCRIPT: Final = "script"
"""Kind of a job that is a shell script: for sbatch, or one that a job starts."""
_WHOLE = frozenset(
    {
        "sequence_length",
        "micro_batch_size",
        "gradient_accumulation",
        "global_batch_size",
        "global_batch_tokens",
        "steps",
        "samples",
    }
    | {
        "tokens",
        "tensor",
        "pipeline",
        "context",
        "expert",
        "data",
        "nodes",
        "gpus_per_node",
        "gpus",
        "layers",
        "hidden_size",
    }
    | {
        "attention_heads",
        "kv_heads",
        "head_dim",
        "ffn_hidden_size",
        "vocab_size",
        "experts",
        "experts_per_token",
        "zero_stage",
    }
)
_RANGES = frozenset({"gpus", "gpus_per_node"})
"""Of these the user may say from where to where."""


class Source(Struct, frozen=True):
    """A file, and those that lie beside it."""

    name: str
    text: str
    beside: Mapping[str, str] = {}
    """Text by file name: configs and scripts that the job names."""


def read(source: Source, stated: Mapping[str, str] | None = None, choice: int = 0) -> ForeignJob:
    """Read a job. `stated` are fields that the user states himself; `choice` picks one of several runs, from 1.

    Raises UsageError naming the file where it holds no job that can be read.
    """
    for name in stated or {}:
        if name not in names.STATED:
            raise UsageError(f"--set {name}: there is no such field; known are {', '.join(names.STATED)}")
    try:
        with reading():
            job = _script(source, choice) if _is_script(source) else _object(source, choice)
    except TooLong as error:
        raise UsageError(f"{source.name} cannot be read: {error}") from error
    return _stated(job, source.name, stated)


def read_objects(documents: Sequence[Json], name: str) -> ForeignJob:
    """Read the training job among objects that an API server has sent, its runtime beside it where it has one.

    `name` is what messages call it. Raises UsageError as `read` does.
    """
    try:
        with reading():
            return _stated(_of_objects(list(documents), Source(name, ""), 0), name)
    except TooLong as error:
        raise UsageError(f"{name} cannot be read: {error}") from error


def _stated(job: ForeignJob, file: str, stated: Mapping[str, str] | None = None) -> ForeignJob:
    """With what the user states, and what follows from all of it."""
    fields = {**job.fields, **{name: Stated(value, f"--set {name}") for name, value in (stated or {}).items()}}
    fields = {name: Stated(_plain(said.value), said.source) for name, said in fields.items()}
    fields = {name: said for name, said in fields.items() if _usable(name, said, file)}
    derived = derive(fields, job.trainer)
    unknown = {name: where for name, where in job.unknown.items() if name not in fields}
    # Who says which LLM it is knows better than the words of a command.
    refused = "" if any(_by_user(fields[name]) for name in ("model", "hidden_size") if name in fields) else job.refused
    return structs.replace(job, fields=fields, unknown=unknown, derived=derived, refused=refused)


def _plain(text: str) -> str:
    """`1e5` and `10.0` as the whole numbers that they are; all other texts as they are."""
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?(e\+?[0-9]{1,2})?", text, re.ASCII) and not text.isdigit():
        value = float(text)
        return str(int(value)) if value < 1e18 and value == int(value) else text
    return text


def _by_user(stated: Stated) -> bool:
    return stated.source.startswith(("--set", names.GROUP))


def _usable(name: str, stated: Stated, file: str) -> bool:
    by_user = _by_user(stated)
    if name == "gpu_type" and not by_user:
        return bool(gpu_types.catalogued(stated.value)) or gpu_types.is_unsupported(stated.value)
    if name in _WHOLE and not COUNTED.fullmatch(stated.value):
        if by_user and name in _RANGES and (said := bounds(stated.value)):
            if 1 <= said[0] <= said[1]:
                return True
            raise UsageError(f"{file}: {stated.source} is {stated.value!r}: the fewest, at least 1, come first")
        if by_user:
            raise UsageError(f"{file}: {stated.source} is {stated.value!r}, which is no whole number")
        return False
    return True


def _is_script(source: Source) -> bool:
    if source.name.endswith(tuple(configs.CONFIGS)):
        return False
    if source.name.endswith((".sh", ".sbatch", ".slurm", ".bash", ".job")):
        return True
    head = source.text.lstrip()[:200]
    return head.startswith("#!") or "#SBATCH" in source.text or not re.search(r"^kind:", source.text, re.MULTILINE)


# --- scripts --------------------------------------------------------------------------------------------------------
def _script(source: Source, choice: int) -> ForeignJob:
    options = slurm.directives(source.text)
    if not source.text.startswith("#!") and not options and configs.is_template(source.text):
        raise UsageError(f"{source.name} is a template: render it first, and give what comes out")
    found = walk(source.text, slurm.variables(options), source.beside)
    for script in found.submitted:
        options = {**slurm.directives(script), **options}
    into = Read(dict(slurm.fields(options)), {})
    about = [line for line in source.text.splitlines() if not line.lstrip().startswith("#")]
    name = options.get("job-name") or PurePosixPath(source.name).stem
    skipped = [f"--{option}" for option in slurm.IN_LINE if option in options]
    notes = (
        (f"left out of #SBATCH: {', '.join(skipped)}: Slurm's queues and limits are none of Trimtab's",)
        if skipped
        else ()
    )
    base = ForeignJob(SCRIPT, name, "default", into.fields, into.unknown, "", (), (), notes)
    job = with_runs(base, found, into, "\n".join(about), choice)
    run = job.run
    if run is not None and "gpus_per_node" not in job.fields and "gpus" not in job.fields:
        tasks = slurm.tasks_per_node(options)
        if tasks > 1 and set(run.launchers) <= {"srun"} and (job.trainer or "pipeline" in job.fields):
            job.fields["gpus_per_node"] = Stated(str(tasks), "#SBATCH --ntasks-per-node, a process for each GPU")
    image = next((value for key, value in launcher_options(run) if key == "container-image"), "")
    asks = None if not options else bool({"gpus", "gpus_per_node"} & job.fields.keys())
    return _judged(structs.replace(job, image=image), about, asks)


# --- objects --------------------------------------------------------------------------------------------------------
def _object(source: Source, choice: int) -> ForeignJob:
    return _of_objects(configs.objects(source.text, source.name), source, choice)


def _of_objects(documents: list[Json], source: Source, choice: int) -> ForeignJob:
    jobs = [(each, *found) for each in documents if (found := row_of(each)) and _is_job(each, found[1], documents)]
    if not jobs:
        there = ", ".join(sorted({str(each.get("kind")) for each in documents})) or "nothing"
        raise UsageError(f"{source.name} holds no training job of a kind that Trimtab reads; it holds {there}")
    jobs.sort(key=lambda each: each[1] == "RayCluster")
    document, kind, row = jobs[0]
    meta = mapping(document.get("metadata"))
    name, namespace = str(meta.get("name", PurePosixPath(source.name).stem)), str(meta.get("namespace", "default"))
    pods = pods_of(document, kind, row, [*documents, *_beside(source)])
    into = Read(_annotated(document), {})
    base = ForeignJob(
        kind, name, namespace, into.fields, into.unknown, "", (), (), (), pods=tuple(pods), source=document
    )
    notes = [f"{len(jobs)} jobs are in this file: the first, {kind} {name}, is read"] if len(jobs) > 1 else []
    if row.runtime and not any(each.get("image") for pod in pods for each in pod.containers):
        notes.append("its runtime is not at hand: give it with --with FILE")
    _count_pods(pods, into)
    return _with_pods(base, row, into, {**_config_maps(documents), **source.beside}, notes, choice)


def _is_job(document: Json, row: Kind, documents: Sequence[Json]) -> bool:
    """Whether it has pods of its own. A group has those that are beside it, and name it."""
    return bool(row.roles or (row.members and members_of(document, row.members, documents)))


def _with_pods(
    base: ForeignJob, row: Kind, into: Read, files: Mapping[str, str], notes: list[str], choice: int
) -> ForeignJob:
    """What the containers of the pods run, and what they are told."""
    pods, entrypoint = base.pods, at(base.source, row.entrypoint)
    about = [base.name, *_texts(pods), str(entrypoint or "")]
    if row.processes and (processes := whole(at(base.source, row.processes))):
        into.fields.setdefault("gpus_per_node", Stated(str(processes), row.processes))
    if isinstance(model := at(base.source, row.model), str) and model.startswith("hf://"):
        into.fields.setdefault("model", Stated(model.removeprefix("hf://"), row.model))
    job = with_runs(base, _pod_commands(pods, entrypoint, files), into, "\n".join(about), choice)
    _pods_against_trainer(job, pods, notes)
    _environment(job)
    asked = [pod.accelerators for pod in pods]
    image = next((str(each.get("image", "")) for pod in pods if pod.accelerators for each in pod.containers), "")
    named = job.fields["gpu_type"].value if "gpu_type" in job.fields else ""
    accelerators = [*sorted({pod.resource for pod in pods if pod.resource}), named]
    unsupported = next((called for each in accelerators if (called := gpu_types.unsupported(each))), "")
    job = structs.replace(job, image=image, unsupported=unsupported, notes=(*job.notes, *notes))
    return _judged(job, about, None if None in asked else any(asked))


def _environment(job: ForeignJob) -> None:
    """Variables of containers that a trainer in the image reads: where no argument states the same."""
    containers = [each for pod in job.pods for each in pod.containers]
    variables = {name: value for each in containers for name, value in environment_of(each).items() if known(value)}
    for field, called in trainers().environment.items():
        for name in called:
            if variables.get(name) and field not in job.fields and field not in job.unknown:
                job.fields[field] = Stated(variables[name], f"environment {name}")


def _beside(source: Source) -> list[Json]:
    """Objects in files beside the job: the runtime of a TrainJob may be among them."""
    manifests = [name for name in source.beside if name.endswith((".yaml", ".yml"))]
    return [each for name in manifests for each in _quietly(source.beside[name], name)]


def _quietly(text: str, name: str) -> list[Json]:
    try:
        return configs.objects(text, name)
    except UsageError:
        return []


def _config_maps(documents: Sequence[Json]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in documents:
        if each.get("kind") in ("ConfigMap", "Secret"):
            for key, text in (mapping(each.get("data")) | mapping(each.get("stringData"))).items():
                if isinstance(text, str):
                    found[str(key)] = text
    return found


def _annotated(document: Json) -> dict[str, Stated]:
    annotations = mapping(mapping(document.get("metadata")).get("annotations"))
    found = {}
    for field, name in names.STATED.items():
        if name in annotations:
            found[field] = Stated(str(annotations[name]), name)
    return found


def _texts(pods: Sequence[Pods]) -> list[str]:
    found: list[str] = []
    for pod in pods:
        for each in pod.containers:
            found += [
                str(each.get("image", "")),
                *words_of(each),
                *(value for value in environment_of(each).values() if len(value) < 200),
            ]
    return found


def _count_pods(pods: Sequence[Pods], into: Read) -> None:
    asking = [pod for pod in pods if pod.accelerators is None or pod.accelerators]
    if not asking:
        return
    if all(pod.count is not None for pod in asking):
        into.fields.setdefault("nodes", Stated(str(sum(pod.count or 0 for pod in asking)), "pods that ask for GPUs"))
    each = {pod.accelerators for pod in asking}
    if len(each) == 1 and None not in each:
        into.fields.setdefault("gpus_per_node", Stated(str(asking[0].accelerators), f"{asking[0].resource} of a pod"))
    for pod in asking:
        kind, where = gpu_types.of_pod(pod.spec)
        if kind:
            into.fields.setdefault("gpu_type", Stated(kind, where))
    other = next((called for pod in asking if (called := gpu_types.unsupported(pod.resource))), "")
    if other:
        into.fields.setdefault("gpu_type", Stated(other, asking[0].resource))


def _pod_commands(pods: Sequence[Pods], entrypoint: Any, files: Mapping[str, str]) -> Walk:
    found = Walk([], dict(files), [])
    if isinstance(entrypoint, str):
        found.commands += walk(entrypoint, {}, files).commands
    for pod in pods:
        for container in pod.containers:
            words = words_of(container)
            if words:
                walked = walk_words(words, {FLAGS: "", **environment_of(container)}, found.files)
                found.commands += walked.commands
                found.files |= walked.files
            else:
                found.commands.append(Command((), environment_of(container)))
    return found


def _pods_against_trainer(job: ForeignJob, pods: Sequence[Pods], notes: list[str]) -> None:
    """Where the trainer is told other counts than the pods have, the split is not known: only their sum is."""
    told_nodes, told_each = (number(job.runs[0], field) if job.runs else 0 for field in ("nodes", "gpus_per_node"))
    nodes, each = (number(job.fields, field) for field in ("nodes", "gpus_per_node"))
    if not (told_nodes and told_each and nodes and each) or (told_nodes, told_each) == (nodes, each):
        return
    notes.append(f"the pods are {nodes} × {each} accelerators, and the trainer is told {told_nodes} × {told_each}")
    if told_nodes * told_each == nodes * each:
        job.fields["gpus"] = Stated(str(nodes * each), job.fields["gpus_per_node"].source)
        del job.fields["nodes"], job.fields["gpus_per_node"]


def _judged(job: ForeignJob, about: Iterable[str], asks: bool | None) -> ForeignJob:
    model = job.fields["model"].value if "model" in job.fields else ""
    runs = [job.run] if job.run else []
    if "duration" in job.fields:
        _duration(job.fields)
    if "precision" in job.fields and (precision := _precision(job.fields["precision"].value)):
        job.fields["precision"] = Stated(precision, job.fields["precision"].source)
    if "gpu_type" not in job.fields and (kind := gpu_types.in_name(job.name)):
        job.fields["gpu_type"] = Stated(kind, "the name of the job")
    if "gpu_type" in job.fields:
        said = job.fields["gpu_type"]
        types = [gpu_types.of_text(each.strip()) for each in said.value.split(",")]
        job.fields["gpu_type"] = Stated(",".join(types), said.source)
    return structs.replace(job, refused=judge.other_than_llm(job.trainer, job.fields, model, runs, about, asks))


def _precision(text: str) -> str:
    low = text.casefold()
    for called, signs in {
        "nvfp4": ("fp4",),
        "fp8": ("fp8", "float8"),
        "bf16": ("bf16", "bfloat16"),
        "fp16": ("fp16", "float16", "16"),
        "fp32": ("fp32", "float32", "32"),
    }.items():
        if any(sign in low for sign in signs):
            return called
    return ""


def _duration(fields: dict[str, Stated]) -> None:
    """`2ep`, `4800ba`, `2e12T`: how long OLMo and Composer train."""
    text = fields.pop("duration")
    match = re.fullmatch(r"([0-9_.e+]{1,20})\s*(ba|ep|tok|T|steps|epochs)?", text.value.strip(), re.ASCII)
    if match is None:
        return
    field = {
        "ba": "steps",
        "steps": "steps",
        None: "steps",
        "ep": "epochs",
        "epochs": "epochs",
        "tok": "tokens",
        "T": "tokens",
    }[match[2]]
    try:
        value = int(float(match[1].replace("_", "")))
    except (ValueError, OverflowError):
        return
    fields.setdefault(field, Stated(str(value), text.source))
