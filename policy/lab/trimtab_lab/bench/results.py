"""Results on disk: the report of an entry with what it was made of, so that a stopped bench goes on where it was.

A result counts for as long as nothing that it follows from has changed: the entry, the source of this package, its
data and weights, and the versions of what computes (`sim.evaluation.sources`).
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import msgspec
from msgspec import Struct

from trimtab_lab import bench, provenance
from trimtab_lab.bench import BenchEntry, Progress
from trimtab_lab.bench.report import BenchReport
from trimtab_lab.evaluation import sources


class Result(Struct, frozen=True, forbid_unknown_fields=True):
    """A report, and where it comes from."""

    name: str
    """Of the entry."""
    entry: BenchEntry
    report: BenchReport
    digest: str
    commit: str
    machine: str
    date: str
    seconds: float
    """That making it took, less what was there from before."""


def known(folder: Path, name: str, entry: BenchEntry) -> Result | None:
    """The result that is kept, if this very entry was carried out with this very code; a broken file counts as none."""
    found = read_results(folder, name)
    return found if found and found.digest == digest(entry) else None


def make_result(folder: Path, name: str, entry: BenchEntry, progress: Progress) -> Result:
    """Carry out an entry, and keep its result in `folder`. Raises what the module raises, and OSError."""
    begun, commit, computed_by = monotonic(), provenance.commit(), digest(entry)  # before anybody edits a file
    report = bench.make_entry(entry, progress, folder / name)
    made = Result(
        name=name,
        entry=entry,
        report=report,
        digest=computed_by,
        commit=commit,
        machine=provenance.machine(),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        seconds=round(monotonic() - begun, 1),
    )
    write(folder, made)
    return made


def read_results(folder: Path, name: str) -> Result | None:
    """Whatever result of that name is there; a file that is none counts as none."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except msgspec.DecodeError:
        return None


def write(folder: Path, result: Result) -> None:
    """Nobody ever sees half of it."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{result.name}.json.part"
    part.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    part.replace(folder / f"{result.name}.json")


def digest(entry: BenchEntry) -> str:
    """Of all that a result follows from."""
    return hashlib.sha256(msgspec.msgpack.encode(entry) + sources.of_package()).hexdigest()[:24]
