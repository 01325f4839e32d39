"""A training job of any kind, read: one value with what it states, where, and what it leaves open."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from msgspec import Struct, structs

from trimtab import names
from trimtab.errors import UsageError
from trimtab.foreign import configs, gpu_types, judge, models, slurm
from trimtab.foreign.arguments import Read, Run, Stated, launched, run_of, told, trainer_of
from trimtab.foreign.expansion import known
from trimtab.foreign.kinds import Json, Pods, at, environment_of, mapping, pods_of, row_of, whole, words_of
from trimtab.foreign.shell import Command, Walk, walk, walk_words
from trimtab.foreign.syntax import TooLong
from trimtab.foreign.tables import trainers

SCRIPT: Final = "script"
"""Kind of a job that is a shell script: for sbatch, or one that a job starts."""
_LEAST = ("model", "sequence_length", "global_batch_size", "steps", "gpus")
_CONFIG_OPTIONS = frozenset({"config", "config_file", "job.config_file", "config_path", "config_name", "deepspeed", "deepspeed_config", "cfg"})
_HELPERS = re.compile(r"convert|preprocess|download|export|merge|prepare|tokeni[sz]e|inference|evaluat|metadata|check_", re.ASCII)
_COUNTED = re.compile(r"[0-9][0-9_]{0,18}", re.ASCII)
_WHOLE = frozenset(
    {"sequence_length", "micro_batch_size", "gradient_accumulation", "global_batch_size", "global_batch_tokens", "steps", "samples"}
    | {"tokens", "tensor", "pipeline", "context", "expert", "data", "nodes", "gpus_per_node", "gpus", "layers", "hidden_size"}
    | {"attention_heads", "kv_heads", "head_dim", "ffn_hidden_size", "vocab_size", "experts", "experts_per_token", "zero_stage"}
)


class Source(Struct, frozen=True):
    """A file, and those that lie beside it."""

    name: str
    text: str
    beside: Mapping[str, str] = {}
    """Text by file name: configs and scripts that the job names."""


class ForeignJob(Struct, frozen=True):
    """A training job of another kind."""

    kind: str
    name: str
    namespace: str
    fields: dict[str, Stated]
    """What it states, by the names of `trainers.yaml`, numbers as texts; what follows from it for sure is among them."""
    unknown: dict[str, str]
    """Fields that it sets to what is known only when it runs: where."""
    trainer: str
    launchers: tuple[str, ...]
    runs: tuple[dict[str, Stated], ...]
    """Where it starts several that differ: what each of them states. `fields` has what they agree on, then."""
    notes: tuple[str, ...]
    refused: str = ""
    """Why it is no training of an LLM, or cannot be planned for; empty for most."""
    unsupported: str = ""
    """Accelerators that Trimtab does not plan for."""
    pods: tuple[Pods, ...] = ()
    run: Run | None = None
    image: str = ""
    source: Json = {}
    """The object itself; empty for a script."""
    derived: tuple[str, ...] = ()
    """Fields that are computed from others."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Fields that a plan needs and nothing states."""
        lacking = [field for field in _LEAST if field not in self.fields]
        if "steps" in lacking and self.fields.keys() & {"tokens"}:
            lacking.remove("steps")
        model = self.fields.get("model")
        if "model" in lacking or (model and not models.preset(model.value)):
            shaped = all(field in self.fields for field in models.NEEDED)
            lacking = [field for field in lacking if field != "model"] + ([] if shaped else ["model"])
        return tuple(lacking)


def read(source: Source, stated: Mapping[str, str] | None = None, number: int = 0) -> ForeignJob:
    """Read a job. `stated` are fields that the user states himself; `number` picks one of several runs, from 1.

    Raises UsageError naming the file where it holds no job that can be read.
    """
    for name in stated or {}:
        if name not in names.STATED:
            raise UsageError(f"--set {name}: there is no such field; known are {', '.join(names.STATED)}")
    try:
        job = _script(source, number) if _is_script(source) else _object(source, number)
    except TooLong as error:
        raise UsageError(f"{source.name} cannot be read: {error}") from error
    fields = {**job.fields, **{name: Stated(value, f"--set {name}") for name, value in (stated or {}).items()}}
    fields = {name: stated for name, stated in fields.items() if _usable(name, stated, source.name)}
    derived = _derive(fields, job.trainer)
    unknown = {name: where for name, where in job.unknown.items() if name not in fields}
    return structs.replace(job, fields=fields, unknown=unknown, derived=derived)


def _usable(name: str, stated: Stated, file: str) -> bool:
    by_user = stated.source.startswith(("--set", names.GROUP))
    if name in _WHOLE and not _COUNTED.fullmatch(stated.value):
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
def _script(source: Source, number: int) -> ForeignJob:
    options = slurm.directives(source.text)
    if not source.text.startswith("#!") and not options and configs.is_template(source.text):
        raise UsageError(f"{source.name} is a template: render it first, and give what comes out")
    found = walk(source.text, slurm.variables(options), source.beside)
    for script in found.submitted:
        options = {**slurm.directives(script), **options}
    into = Read(dict(slurm.fields(options)), {})
    about = [line for line in source.text.splitlines() if not line.lstrip().startswith("#")]
    name = options.get("job-name") or PurePosixPath(source.name).stem
    base = ForeignJob(SCRIPT, name, "default", into.fields, into.unknown, "", (), (), ())
    job = _with_runs(base, found, into, "\n".join(about), number)
    run = job.run
    if run is not None and "gpus_per_node" not in job.fields and "gpus" not in job.fields:
        tasks = slurm.tasks_per_node(options)
        if tasks > 1 and set(run.launchers) <= {"srun"} and (job.trainer or "pipeline" in job.fields):
            job.fields["gpus_per_node"] = Stated(str(tasks), "#SBATCH --ntasks-per-node, a process for each GPU")
    image = next((value for key, value in _srun_options(run) if key == "container-image"), "")
    asks = None if not options else bool({"gpus", "gpus_per_node"} & job.fields.keys())
    return _judged(structs.replace(job, image=image), about, asks)


def _srun_options(run: Run | None) -> Iterable[tuple[str, str]]:
    words = run.before if run else ()
    for index, word in enumerate(words):
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            yield key, value if equals else words[index + 1] if index + 1 < len(words) else ""


# --- objects --------------------------------------------------------------------------------------------------------
def _object(source: Source, number: int) -> ForeignJob:
    documents = configs.objects(source.text, source.name)
    beside = [each for name, text in source.beside.items() if name.endswith((".yaml", ".yml")) and not configs.is_template(text) for each in _quietly(text, name)]
    jobs = [(document, row) for document in documents if (row := row_of(document)) and row[1].roles]
    if not jobs:
        found = ", ".join(sorted({str(each.get("kind")) for each in documents})) or "nothing"
        raise UsageError(f"{source.name} holds no training job of a kind that Trimtab reads; it holds {found}")
    jobs.sort(key=lambda each: each[1][0] == "RayCluster")
    document, (kind, row) = jobs[0]
    meta = mapping(document.get("metadata"))
    base = ForeignJob(kind, str(meta.get("name", PurePosixPath(source.name).stem)), str(meta.get("namespace", "default")), {}, {}, "", (), (), ())
    pods = pods_of(document, kind, row, [*documents, *beside])
    files = {**_config_maps(documents), **source.beside}
    into = Read(_annotated(document), {})
    base = structs.replace(base, fields=into.fields, unknown=into.unknown)
    notes = [f"{len(jobs)} jobs are in this file: the first, {kind} {base.name}, is read"] if len(jobs) > 1 else []
    if row.runtime and not any(pod.spec.get("containers", [{}])[0].get("image") for pod in pods if pod.containers):
        notes.append("its runtime is not at hand: give it with --with FILE")
    _count_pods(pods, into)
    found = _pod_commands(pods, at(document, row.entrypoint), files)
    about = [base.name, *_texts(pods), str(at(document, row.entrypoint) or "")]
    if row.processes and (processes := whole(at(document, row.processes))):
        into.fields.setdefault("gpus_per_node", Stated(str(processes), row.processes))
    job = _with_runs(base, found, into, "\n".join(about), number)
    _pods_against_trainer(job, pods, notes)
    variables = {name: value for pod in pods for each in pod.containers for name, value in environment_of(each).items() if known(value)}
    for field, called in trainers().environment.items():
        for name in called:
            if name in variables and variables[name] and field not in job.fields and field not in job.unknown:
                job.fields[field] = Stated(variables[name], f"environment {name}")
    asked = [pod.accelerators for pod in pods]
    asks = None if None in asked else any(asked)
    image = next((str(each.get("image", "")) for pod in pods if pod.accelerators for each in pod.containers), "")
    resources = {pod.resource for pod in pods if pod.resource}
    kind_named = job.fields["gpu_type"].value if "gpu_type" in job.fields else ""
    unsupported = next((called for each in (*sorted(resources), kind_named) if (called := gpu_types.unsupported(each))), "")
    job = structs.replace(job, pods=tuple(pods), source=document, image=image, unsupported=unsupported, notes=(*job.notes, *notes))
    return _judged(job, about, asks)


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
            found += [str(each.get("image", "")), *words_of(each), *(value for value in environment_of(each).values() if len(value) < 200)]
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
                walked = walk_words(words, environment_of(container), found.files)
                found.commands += walked.commands
                found.files |= walked.files
            else:
                found.commands.append(Command((), environment_of(container)))
    return found


def _pods_against_trainer(job: ForeignJob, pods: Sequence[Pods], notes: list[str]) -> None:
    """Where the trainer is told other counts than the pods have, the split is not known; the pods' sum is what is asked."""
    told_nodes, told_each = (_number(job.runs[0], field) if job.runs else 0 for field in ("nodes", "gpus_per_node"))
    nodes, each = (_number(job.fields, field) for field in ("nodes", "gpus_per_node"))
    if not (told_nodes and told_each and nodes and each) or (told_nodes, told_each) == (nodes, each):
        return
    notes.append(f"the pods are {nodes} × {each} accelerators, and the trainer is told {told_nodes} × {told_each}")
    if told_nodes * told_each == nodes * each:
        job.fields["gpus"] = Stated(str(nodes * each), job.fields["gpus_per_node"].source)
        del job.fields["nodes"], job.fields["gpus_per_node"]


# --- runs -------------------------------------------------------------------------------------------------------------
def _with_runs(base: ForeignJob, found: Walk, into: Read, about: str, number: int) -> ForeignJob:
    """Read the trainers that are started; where they differ, keep what they agree on."""
    ranked: list[tuple[int, Run, str, Read, list[str]]] = []
    for command in found.commands:
        run = run_of(command.words, command.environment, command.certain)
        name = trainer_of(run, about)
        said = Read({}, {})
        notes = _read_run(run, name, found.files, said)
        quantities = len(said.fields.keys() & ({*_LEAST, "layers", "tensor", "micro_batch_size", "epochs"} - {"gpus"}))
        rank = (4 if name else 0) + min(quantities, 3) + (0 if not _HELPERS.search(run.program) else -4)
        if rank > 0 or _referenced(run, found.files):
            ranked.append((max(rank, 1), run, name, said, notes))
    if not ranked:
        plain = [run for command in found.commands if command.words for run in (run_of(command.words, command.environment),)]
        return structs.replace(base, run=plain[-1] if plain else None, runs=(), launchers=plain[-1].launchers if plain else ())
    best = max(rank for rank, *_ in ranked)
    chosen = [each for each in ranked if each[0] >= best - 1]
    different: list[tuple[int, Run, str, Read, list[str]]] = []
    for each in chosen:
        if all(_values(each[3]) != _values(other[3]) for other in different):
            different.append(each)
    if number:
        if number > len(different):
            raise UsageError(f"--run {number}: the file starts {len(different)} different runs")
        different = different[number - 1 : number]
    return _agreeing(base, different, into)


def _agreeing(base: ForeignJob, different: list[tuple[int, Run, str, Read, list[str]]], into: Read) -> ForeignJob:
    _, run, name, first, notes = different[0]
    for field, stated in first.fields.items():
        same = all(other.fields.get(field) and other.fields[field].value == stated.value for *_, other, _ in different)
        if same and field not in into.fields:
            into.fields[field] = stated
        elif not same:
            into.unknown[field] = "its runs differ"
    for field, where in first.unknown.items():
        if field not in into.fields:
            into.unknown.setdefault(field, where)
    if len(different) > 1:
        notes = [f"it starts {len(different)} runs that differ: pick one with --run N", *notes]
    runs = tuple(dict(each[3].fields) for each in different)
    return structs.replace(base, trainer=name, launchers=run.launchers, run=run, runs=runs, notes=(*base.notes, *dict.fromkeys(notes)))


def _values(said: Read) -> dict[str, str]:
    return {field: stated.value for field, stated in said.fields.items()}


def _read_run(run: Run, name: str, files: Mapping[str, str], into: Read) -> list[str]:
    trainer = trainers().trainers.get(name)
    told(run.arguments, trainer, run.program.rpartition("/")[2], into)
    notes = []
    for mentioned, certain in _mentioned(run):
        base = mentioned.rpartition("/")[2]
        candidates = [base] if base.endswith(configs.CONFIGS) else [base + ending for ending in configs.CONFIGS]
        if text := next((files[each] for each in candidates if each in files), None):
            called = next(each for each in candidates if each in files)
            told(configs.flat(text, called), trainer, called, into)
        elif certain and known(base):
            notes.append(f"{mentioned.replace(chr(0), '$')} is not at hand: give it with --with FILE")
            hinted = models.of_recipe(base.rpartition(".")[0] or base)
            if judge.family(hinted) and "model" not in into.fields:
                into.fields["model_hint"] = Stated(hinted, f"the name of {base}")
    if not name and "model_hint" not in into.fields and (hinted := judge.model_in(run.program.rpartition("/")[2])):
        into.fields["model_hint"] = Stated(hinted, f"the name of {run.program.rpartition('/')[2]}")
    launched(run, into)
    _name_model(into)
    return notes


def _mentioned(run: Run) -> Iterable[tuple[str, bool]]:
    """Configs that a run names, and whether it is sure that they are: by the option, or by the ending alone."""
    path = dict(run.arguments)
    for name, value in (*run.arguments, *_launcher_configs(run)):
        option = name.lower().replace("-", "_")
        if option == "config_path" and "config_name" in {key.replace("-", "_") for key in path}:
            continue
        if option in _CONFIG_OPTIONS:
            yield value, value not in ("true", "false")
        elif value.endswith(configs.CONFIGS):
            yield value, False
    for each in run.positional:
        if each.endswith(configs.CONFIGS):
            yield each, True
    for value in run.environment.values():
        if value.endswith(configs.CONFIGS):
            yield value, False


def _launcher_configs(run: Run) -> Iterable[tuple[str, str]]:
    return [(key, value) for key, value in _srun_options(run) if key.replace("-", "_") == "config_file"]


def _referenced(run: Run, files: Mapping[str, str]) -> bool:
    return any(value.rpartition("/")[2] in files for value, _ in _mentioned(run))


def _name_model(into: Read) -> None:
    """One name of the model: as it is given, as family and size, as a recipe, or as its config is called."""
    fields = into.fields
    pieces = [fields.pop(each, None) for each in ("family", "flavor")]
    recipe, hint = fields.pop("recipe", None), fields.pop("model_hint", None)
    if "model" not in fields:
        if pieces[1] and pieces[0]:
            fields["model"] = Stated(f"{pieces[0].value} {pieces[1].value}", pieces[1].source)
        elif recipe:
            fields["model"] = Stated(models.of_recipe(recipe.value), recipe.source)
        elif pieces[0] and judge.family(pieces[0].value):
            fields["model"] = pieces[0]
        elif hint:
            fields["model"] = hint
    if "model" in fields:
        fields["model"] = Stated(models.named(fields["model"].value), fields["model"].source)


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
        job.fields["gpu_type"] = Stated(gpu_types.of_text(job.fields["gpu_type"].value), job.fields["gpu_type"].source)
    return structs.replace(job, refused=judge.other_than_llm(job.trainer, job.fields, model, runs, about, asks))


def _precision(text: str) -> str:
    low = text.casefold()
    for called, signs in {"nvfp4": ("fp4",), "fp8": ("fp8", "float8"), "bf16": ("bf16", "bfloat16"), "fp16": ("fp16", "float16", "16"), "fp32": ("fp32", "float32", "32")}.items():
        if any(sign in low for sign in signs):
            return called
    return ""


def _duration(fields: dict[str, Stated]) -> None:
    """`2ep`, `4800ba`, `2e12T`: how long OLMo and Composer train."""
    text = fields.pop("duration")
    match = re.fullmatch(r"([0-9_.e+]{1,20})\s*(ba|ep|tok|T|steps|epochs)?", text.value.strip(), re.ASCII)
    if match is None:
        return
    field = {"ba": "steps", "steps": "steps", None: "steps", "ep": "epochs", "epochs": "epochs", "tok": "tokens", "T": "tokens"}[match[2]]
    try:
        value = int(float(match[1].replace("_", "")))
    except (ValueError, OverflowError):
        return
    fields.setdefault(field, Stated(str(value), text.source))


# --- what follows from what is stated -----------------------------------------------------------------------------
def _number(fields: Mapping[str, Stated], name: str) -> int:
    stated = fields.get(name)
    return int(stated.value) if stated and _COUNTED.fullmatch(stated.value) else 0


def _derive(fields: dict[str, Stated], trainer: str) -> tuple[str, ...]:
    """Add what follows for sure; the names of what was added."""
    before = {*fields}

    def follows(field: str, value: int, source: str) -> None:
        if value > 0 and field not in fields:
            fields[field] = Stated(str(value), source)

    nodes, each, gpus = (_number(fields, name) for name in ("nodes", "gpus_per_node", "gpus"))
    follows("gpus", nodes * each, "nodes × GPUs of a node")
    if gpus and each and gpus % each == 0:
        follows("nodes", gpus // each, "GPUs / GPUs of a node")
    if gpus and nodes and gpus % nodes == 0:
        follows("gpus_per_node", gpus // nodes, "GPUs / nodes")
    gpus, length = _number(fields, "gpus"), _number(fields, "sequence_length")
    batch = _number(fields, "global_batch_tokens")
    if length and batch % length == 0:
        follows("global_batch_size", batch // length, "tokens of a step / sequence length")
    _derive_data(fields, gpus, follows)
    micro, data, turns = (_number(fields, name) for name in ("micro_batch_size", "data", "gradient_accumulation"))
    follows("global_batch_size", micro * data * turns, "micro-batch × data degree × accumulation")
    samples, batch = _number(fields, "samples"), _number(fields, "global_batch_size")
    if samples and batch:
        follows("steps", -(-samples // batch), "samples / global batch size")
    return tuple(sorted({*fields} - before))


def _derive_data(fields: dict[str, Stated], gpus: int, follows: Any) -> None:
    tensor, pipeline, context = (_number(fields, name) for name in ("tensor", "pipeline", "context"))
    shard, replicate = (fields[name].value if name in fields else "" for name in ("data_shard", "data_replicate"))
    if tensor and pipeline and gpus % (tensor * pipeline * (context or 1)) == 0:
        follows("data", gpus // (tensor * pipeline * (context or 1)), "GPUs / other degrees")
    elif re.fullmatch("[0-9]{1,6}", shard) and re.fullmatch("[0-9]{1,6}", replicate or "1"):
        follows("data", int(shard) * int(replicate or "1"), "shard × replicate degree")
    if "sharding" in fields:
        stage = _STAGES.get(fields["sharding"].value.casefold().replace("-", "_"))
        if stage is not None and fields.get("zero_stage", Stated("1", "")).value == "1":
            fields["zero_stage"] = Stated(str(stage), fields["sharding"].source)


_STAGES: Final = {
    "full_shard": 3,
    "hybrid_shard": 3,
    "fsdp": 3,
    "fsdp2": 3,
    "optim_grads_params": 3,
    "shard_grad_op": 2,
    "optim_grads": 2,
    "optim": 1,
    "no_shard": 0,
    "ddp": 0,
}
