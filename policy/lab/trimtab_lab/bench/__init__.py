"""Published numbers: what each of them is made with (`bench.yaml`), and the tables that come out (`report`).

An entry names a module of this package, the arguments and seeds that it is given, and the commands that trained the
weights that it judges. A module is a function `run(*, seeds, progress, **arguments) -> Report`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trimtab_lab.bench.report import BenchReport
from trimtab_policy.inputs import documents

Progress = Callable[[str], None]
"""Told in a few words what is being done."""


class BenchError(ValueError):
    """What is asked for is not in `bench.yaml`, or that is wrong: which entry and field, in one line."""


class Quick(Struct, frozen=True, forbid_unknown_fields=True):
    """What to put in the place of an entry's own, to see in seconds whether it works."""

    seeds: tuple[int, ...] | None = None
    arguments: dict[str, Any] = {}


class BenchEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """How one table is made."""

    about: str
    """A sentence or two for people."""
    module: Literal["parallel_mode", "rlalloc", "adlro", "decentralised", "cluster", "flagship"]
    seeds: tuple[int, ...]
    arguments: dict[str, Any] = {}
    trained_by: tuple[str, ...] = ()
    """Commands that made the weights which are judged; empty where the module trains itself."""
    quick: Quick = Quick()

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be different numbers from 0 on, at least one, got {list(self.seeds)}")
        if not self.about.strip():
            raise ValueError("about must say what is measured")

    @property
    def quickly(self) -> BenchEntry:
        """The same entry with what `quick` puts in place of its own."""
        seeds = self.seeds if self.quick.seeds is None else self.quick.seeds
        return replace(self, seeds=seeds, arguments=self.arguments | self.quick.arguments, quick=Quick())


def entries(text: str | None = None) -> dict[str, BenchEntry]:
    """All entries by name, of the text of a `bench.yaml` or of the one of this package.

    Raises BenchError. What only the module of an entry can tell, `check` asks it.
    """
    source = (files("trimtab_lab") / "bench.yaml").read_text(encoding="utf-8") if text is None else text
    try:
        found = msgspec.convert(documents.parse(source), dict[str, BenchEntry])
    except ValueError as error:
        raise BenchError(f"bench.yaml: {' '.join(str(error).split())}") from error
    return found


def check(name: str, entry: BenchEntry) -> None:
    """Raise BenchError for arguments that the module does not take, or lacks; ImportError without its packages."""
    try:
        module = f"{__name__}.{entry.module}"
        _bind(_function(entry), entry.arguments)
    except TypeError as error:
        raise BenchError(f"bench.yaml: {name}.arguments: {module} has {error}") from error


def make_entry(entry: BenchEntry, progress: Progress, folder: Path) -> BenchReport:
    """Make the table. Modules that can go on where they were stopped keep their parts in `folder`."""
    function = _function(entry)
    kept = {"folder": folder} if "folder" in inspect.signature(function).parameters else {}
    found: BenchReport = function(seeds=list(entry.seeds), progress=progress, **kept, **entry.arguments)
    return found


def _bind(function: Callable[..., BenchReport], arguments: Mapping[str, Any]) -> None:
    taken = inspect.signature(function)
    given = {"seeds": [], "progress": print, **arguments}
    if "folder" in taken.parameters:
        given["folder"] = Path()
    taken.bind(**given)


def _function(entry: BenchEntry) -> Callable[..., BenchReport]:
    function: Callable[..., BenchReport] = import_module(f"{__name__}.{entry.module}").run
    return function
