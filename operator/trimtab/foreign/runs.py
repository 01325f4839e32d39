"""The trainers that a job starts: which of its commands they are, and what they agree on where they are several."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec import structs

from trimtab.errors import UsageError
from trimtab.foreign import budget, configs, models
from trimtab.foreign.arguments import Read, Run, Stated, hints, launched, run_of, told, trainer_of
from trimtab.foreign.expansion import known, readable
from trimtab.foreign.families import family, model_in
from trimtab.foreign.job import LEAST, ForeignJob
from trimtab.foreign.shell import Walk
from trimtab.foreign.tables import trainers

_CONFIG_OPTIONS = frozenset(
    {"config", "config_file", "job.config_file", "config_path", "config_name", "deepspeed", "deepspeed_config", "cfg"}
)
_HELPERS = re.compile(
    r"convert|preprocess|download|export|merge|prepare|tokeni[sz]e|inference|evaluat|metadata|check_", re.ASCII
)
_OF_CONFIG, _OF_KEY = 5, 50
"""How many characters of a script one of a config costs as much as to take apart, and one of its keys to look up."""
Candidate: TypeAlias = tuple[int, Run, str, Read, list[str]]
"""How surely it is the training, the run, its trainer, what it states, and what there is to say."""


def with_runs(base: ForeignJob, found: Walk, into: Read, about: str, choice: int) -> ForeignJob:
    """Read the trainers that are started; where they differ, keep what they agree on."""
    ranked: list[Candidate] = []
    parsed = Parsed(found.files)
    hinted = hints(about)
    for command in found.commands:
        run = run_of(command.words, command.environment, command.certain)
        name = trainer_of(run, hinted)
        said = Read({}, {})
        notes = _read_run(run, name, parsed, said)
        quantities = len(said.fields.keys() & ({*LEAST, "layers", "tensor", "micro_batch_size", "epochs"} - {"gpus"}))
        rank = (4 if name else 0) + min(quantities, 3) + (0 if not _HELPERS.search(run.program) else -4)
        if rank > 0 or _referenced(run, found.files):
            ranked.append((max(rank, 1), run, name, said, notes))
    if not ranked:
        plain = [
            run for command in found.commands if command.words for run in (run_of(command.words, command.environment),)
        ]
        return structs.replace(
            base, run=plain[-1] if plain else None, runs=(), launchers=plain[-1].launchers if plain else ()
        )
    best = max(rank for rank, *_ in ranked)
    chosen = [each for each in ranked if each[0] >= best - 1]
    by_values: dict[frozenset[tuple[str, str]], Candidate] = {}
    for each in chosen:
        by_values.setdefault(frozenset(_values(each[3]).items()), each)
    different = [*by_values.values()]
    if choice:
        if choice > len(different):
            raise UsageError(f"--run {choice}: the file starts {len(different)} different runs")
        different = different[choice - 1 : choice]
    return _agreeing(base, different, into)


def _agreeing(base: ForeignJob, different: list[Candidate], into: Read) -> ForeignJob:
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
    return structs.replace(
        base, trainer=name, launchers=run.launchers, run=run, runs=runs, notes=(*base.notes, *dict.fromkeys(notes))
    )


def _values(said: Read) -> dict[str, str]:
    return {field: stated.value for field, stated in said.fields.items()}


class Parsed:
    """The keys of configs beside a job, each taken apart once, however often it is named."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        self._keys: dict[str, list[tuple[str, str]]] = {}

    def keys(self, name: str) -> list[tuple[str, str]]:
        """Dotted keys and values. Raises UsageError and TooLong naming the file."""
        if name not in self._keys:
            budget.charge(_OF_CONFIG * len(self.files[name]), f"{name} and the like")
            self._keys[name] = configs.flat(self.files[name], name)
        found = self._keys[name]
        budget.charge(_OF_KEY * len(found), f"{name} and the like")
        return found


def _read_run(run: Run, name: str, parsed: Parsed, into: Read) -> list[str]:
    trainer = trainers().trainers.get(name)
    program = run.program.rpartition("/")[2]
    told(run.arguments, trainer, readable(program) or "arguments", into)
    notes = []
    for mentioned, certain in _mentioned(run):
        base = mentioned.rpartition("/")[2]
        candidates = [base] if base.endswith(configs.CONFIGS) else [base + ending for ending in configs.CONFIGS]
        called = next((each for each in candidates if each in parsed.files), "")
        if called and parsed.files[called]:
            keys = parsed.keys(called)
            of_deepspeed = any(
                key.startswith(("zero_optimization.", "train_micro_batch_size_per_gpu")) for key, _ in keys
            )
            told(keys, trainers().trainers["deepspeed"] if of_deepspeed else trainer, called, into)
            _hint(base, into)
        elif certain and known(base):
            notes.append(f"{mentioned.replace(chr(0), '$')} is not at hand: give it with --with FILE")
            _hint(base, into)
    if not name and "model_hint" not in into.fields and (hinted := model_in(program)) and known(hinted):
        into.fields["model_hint"] = Stated(hinted, f"the name of {readable(program)}")
    launched(run, into)
    _name_model(into)
    return notes


def _hint(config: str, into: Read) -> None:
    """A config that is called after a model says which, where nothing else does."""
    hinted = models.of_recipe(config.rpartition(".")[0] or config)
    if family(hinted):
        into.fields.setdefault("model_hint", Stated(hinted, f"the name of {config}"))


def _mentioned(run: Run) -> Iterable[tuple[str, bool]]:
    """Configs that a run names, and whether it is sure that they are: by the option, or by the ending alone."""
    path = {key.replace("-", "_") for key, _ in run.arguments}
    for name, value in (*run.arguments, *_launcher_configs(run)):
        option = name.lower().replace("-", "_")
        if option == "config_path" and "config_name" in path:
            continue
        if option == "config_name" and "config_path" not in path:
            continue  # a model's, not Hydra's
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
    return [(key, value) for key, value in launcher_options(run) if key.replace("-", "_") == "config_file"]


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
        elif pieces[0] and family(pieces[0].value):
            fields["model"] = pieces[0]
        elif hint:
            fields["model"] = hint
    if "model" in fields:
        fields["model"] = Stated(models.named(fields["model"].value), fields["model"].source)


def launcher_options(run: Run | None) -> Iterable[tuple[str, str]]:
    words = run.before if run else ()
    for index, word in enumerate(words):
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            yield key, value if equals else words[index + 1] if index + 1 < len(words) else ""
