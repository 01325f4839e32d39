"""A command taken apart: what launches it, which trainer it is, and what that is told, by `trainers.yaml`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from msgspec import Struct

from trimtab.foreign.expansion import known
from trimtab.foreign.families import family
from trimtab.foreign.tables import Names, Trainer, trainers

_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_][A-Za-z0-9_.@/-]*)=")
_OPTION = re.compile(r"-{1,2}[A-Za-z]")
_PROGRAM_WORDS: Final = 2
"""Words of the longest name of a program: `tune run`."""
_NOTHING = frozenset({"", "none", "null", "None", "~", "auto", "no"})
_FALSE = frozenset({"false", "False", "0", "no", "off"})


class Stated(Struct, frozen=True):
    """A value, and where it stands."""

    value: str
    source: str


class Run(Struct, frozen=True):
    """One command that starts a trainer, taken apart."""

    program: str
    launchers: tuple[str, ...]
    before: tuple[str, ...]
    """Words up to the program."""
    arguments: tuple[tuple[str, str], ...]
    """What the program is told: names as they are written without dashes in front (`-b` keeps its one), values."""
    positional: tuple[str, ...]
    words: tuple[str, ...]
    environment: Mapping[str, str]
    certain: bool = True


def run_of(words: Sequence[str], environment: Mapping[str, str], certain: bool = True) -> Run:
    """Take a command apart."""
    at, after, program = _program(words)
    named, positional = _told(words[after:])
    launchers = tuple(dict.fromkeys(name for _, name in _launchers(words[: at + _PROGRAM_WORDS])))
    return Run(program, launchers, tuple(words[:at]), named, positional, tuple(words), environment, certain)


def _launchers(words: Sequence[str]) -> Iterator[tuple[int, str]]:
    for index, word in enumerate(words):
        name = word.rpartition("/")[2]
        pair = f"{name} {words[index + 1]}" if index + 1 < len(words) else ""
        if pair in trainers().launchers:
            yield index, pair
        elif name in trainers().launchers:
            yield index, name


def _program(words: Sequence[str]) -> tuple[int, int, str]:
    """Where the program stands, where its arguments begin, and what it is."""
    interpreted = False
    first = script = -1
    for index, word in enumerate(words):
        name = word.rpartition("/")[2]
        if interpreted and word in ("-m", "--module") and index + 1 < len(words):
            module = words[index + 1]
            if module not in trainers().launchers and _MODULE.fullmatch(module):
                return index, index + 2, module
        if word.endswith(".py") and not word.startswith("-") and not any(mark in word for mark in "=, "):
            return index, index + 1, word
        pair = f"{name} {words[index + 1]}" if index + 1 < len(words) else ""
        if pair in _own_programs():
            return index, index + 2, pair
        if name in _own_programs():
            return index, index + 1, word
        if script < 0 and word.endswith(".sh") and not word.startswith("-") and "=" not in word:
            script = index
        interpreted |= name.startswith("python") or name in trainers().launchers or name == "accelerate"
        if (
            first < 0
            and not word.startswith("-")
            and name not in _WRAPPERS
            and name not in trainers().launchers
            and "=" not in word
        ):
            first = index
    first = script if script >= 0 else first
    if first < 0:  # arguments alone, for the entry point of an image
        return 0, 0, ""
    return first, first + 1, words[first] if words else ""


_WRAPPERS = frozenset(
    {"srun", "sudo", "env", "nohup", "time", "numactl", "nsys", "exec", "uv", "poetry", "stdbuf", "timeout", "nice"}
)


@cache
def _own_programs() -> frozenset[str]:
    """Programs that are no Python files or modules: `tune run`, `train_gpt2cu`."""
    return frozenset(name for each in trainers().trainers.values() for name in each.programs if _is_binary(name))


def _is_binary(name: str) -> bool:
    return " " in name or name in ("train_gpt2cu", "llamafactory-cli")


def _told(words: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    named: list[tuple[str, str]] = []
    positional: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if _OPTION.match(word):
            name, equals, value = word.partition("=")
            if not equals:
                follows = words[index] if index < len(words) else "-"
                takes = not _OPTION.match(follows) and not (
                    follows and _OVERRIDE.match(follows) and "." in follows.partition("=")[0]
                )
                value = follows if takes and follows != "-" else "true"
                index += takes and follows != "-"
                while (
                    takes
                    and index < len(words)
                    and not _OPTION.match(words[index])
                    and not _OVERRIDE.match(words[index])
                ):
                    index += 1  # more values of the same option
            named.append((name.lstrip("-") if len(name) > 2 else name, _bare(value)))
        elif match := _OVERRIDE.match(word):
            named.append((match[1], _bare(word[match.end() :])))
        else:
            positional.append(word)
    return tuple(named), tuple(positional)


def _bare(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


# --- which trainer it is ------------------------------------------------------------------------------------------
def hints(about: str) -> frozenset[str]:
    """The trainers that the text of a job speaks of, where the program's name alone would not tell."""
    about = about.casefold()
    return frozenset(name for name, each in trainers().trainers.items() if any(hint in about for hint in each.hints))


def trainer_of(run: Run, hinted: frozenset[str]) -> str:
    """The name of the trainer that a run starts, in the table; empty for another one. `hinted` ones may be meant by a
    vague name."""
    program = run.program.casefold()
    path = f"/{program.strip('/')}/"
    paths = (path, path.replace(".", "/")) if "/" not in program else (path,)
    for name, trainer in trainers().trainers.items():
        if any(_within(each.casefold(), paths) for each in trainer.programs):
            return name
        if name in hinted and any(_within(each.casefold(), paths) for each in trainer.vague):
            return name
    said = {key.lower().replace("-", "_") for key, _ in run.arguments}
    return next((name for name, trainer in trainers().trainers.items() if said & {*trainer.signs}), "")


def _within(called: str, paths: Iterable[str]) -> bool:
    """Whether whole parts of a path, or of a module, are called so."""
    return any(f"/{called}/" in path or f"/{called.replace('.', '/')}/" in path for path in paths)


# --- what it is told --------------------------------------------------------------------------------------------------
class Read(Struct):
    """Fields that were found, and those that depend on what is known only when the job runs."""

    fields: dict[str, Stated]
    unknown: dict[str, str]


def told(arguments: Iterable[tuple[str, str]], trainer: Trainer | None, source: str, into: Read) -> None:
    """Read fields off arguments or the keys of a config; what is there already stays, and the last of a kind counts."""
    found = Read({}, {})
    strength: dict[str, int] = {}
    for name, value in arguments:
        for field, said, weight in _fields(name, value, trainer):
            if weight < strength.get(field, 0):
                continue
            strength[field] = weight
            if not known(said):
                found.unknown[field] = f"{source} {name}"
                found.fields.pop(field, None)
            elif said not in _NOTHING or field == "zero_stage":
                found.fields[field] = Stated(said, f"{source} {name}")
                found.unknown.pop(field, None)
    for field, stated in found.fields.items():
        if field not in into.fields and field not in into.unknown:
            into.fields[field] = stated
    for field, where in found.unknown.items():
        if field not in into.fields:
            into.unknown.setdefault(field, where)
    for field in (trainer.implied if trainer else {}).keys() & into.fields.keys():
        for implied, value in (trainer.implied if trainer else {})[field].items():
            if into.fields[field].value not in ("1", "0"):
                into.fields.setdefault(implied, Stated(value, into.fields[field].source))


def _fields(name: str, value: str, trainer: Trainer | None) -> Iterator[tuple[str, str, int]]:
    """Fields that one argument states, and how sure the name is."""
    key = name.replace("-", "_").lower() if len(name) > 2 else name
    *parents, last = key.split(".")
    if trainer is not None:
        for field in _named(trainer.names, {key, key.lstrip("-")}):
            yield field, value, 3
            return
        if last in trainer.ignored:
            return
    if any(parent in trainers().aside for parent in parents) or key.startswith(
        ("eval_", "val_", "test_", "no_", "teacher_")
    ):
        return
    if last in ("model", "model_name") and not family(value):
        return  # a file, a number, a class: only a name of an LLM is one for sure
    for field in _named(trainers().common, {last, ".".join((*parents[-1:], last))}):
        yield field, value, 2
        return
    flags = trainers().flags.get(key) or trainers().flags.get(last)
    if flags and value not in _FALSE and value not in _NOTHING:
        for field, said in flags.items():
            yield (
                field,
                value if field == "sharding" and "shard" in value.casefold() else said,
                3 if "8" in said or "4" in said else 1,
            )


def _named(table: Names, keys: set[str]) -> Iterator[str]:
    for field, called in table.items():
        if keys & {*called}:
            yield field


def launched(run: Run, into: Read) -> None:
    """Read what launchers are told about nodes and processes."""
    own = trainers().launchers.get(run.program, {})
    for name, value in run.arguments:
        for field in (each for each, called in own.items() if name.replace("-", "_") in called):
            into.fields.setdefault(field, Stated(value, f"{run.program} {name}"))
    spots = list(_launchers(run.before))
    ends = [*(at for at, _ in spots[1:]), len(run.before)][: len(spots)]
    for (at, launcher), end in reversed(list(zip(spots, ends, strict=True))):
        names = trainers().launchers[launcher]
        segment = run.words[at + 1 : end]
        named, _ = _told(segment)
        if launcher == "torchrun" and "standalone" in dict(named):
            into.fields.setdefault("nodes", Stated("1", "torchrun --standalone"))
        for name, value in (*named, *_attached(segment)):
            key = name.lstrip("-").replace("-", "_")
            for field in (each for each, called in names.items() if key in called and each != "config"):
                if known(value) and value not in _NOTHING and value != "true":
                    into.fields.setdefault(field, Stated(value, f"{launcher} {name}"))


def _attached(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`-N1`: an option and its number in one word."""
    for word in words:
        if match := re.fullmatch(r"-([A-Za-z])([0-9]{1,6})", word):
            yield match[1], match[2]
