"""Workloads: what was submitted when, read from published traces, cut out of them, or generated.

`read` recognises the format of a file, `check_fits` says which jobs a cluster can run; `windows` cuts, `generator`
makes.
"""

from __future__ import annotations

import csv
from pathlib import Path

from trimtab_lab.workloads import acme, helios, normalised, openb, pai, philly, sia, swf
from trimtab_lab.workloads.fits import check_fits
from trimtab_lab.workloads.table import Schema, TraceReport
from trimtab_lab.workloads.textfile import FileError, open_text
from trimtab_lab.workloads.trace import Trace

__all__ = ["SCHEMAS", "FileError", "Schema", "Trace", "TraceReport", "check_fits", "files", "read_trace"]

SCHEMAS = {
    schema.name: schema
    for schema in (
        normalised.SCHEMA,
        philly.LOG,
        philly.CSV,
        acme.SCHEMA,
        helios.SCHEMA,
        openb.SCHEMA,
        pai.TABLES,
        pai.MERGED,
        sia.SCHEMA,
        swf.SCHEMA,
    )
}
_HEAD = 65_536
"""Characters that suffice to recognise a format."""


def read_trace(path: str | Path, schema: str | None = None, *, skip_bad: bool = False) -> tuple[Trace, TraceReport]:
    """The jobs of a trace file (plain, or gzip by the suffix .gz), and what became of its rows.

    The schema is recognised from the beginning of the file unless it is named. Raises FileError, a ValueError of one
    line `FILE:ROW: field: what is wrong, what to do`, for the first bad row; with `skip_bad` bad rows are counted in
    the report, and only a file that is no trace at all, or has no good row, is an error.
    """
    file = Path(path)
    if schema is not None and schema not in SCHEMAS:
        known = "; ".join(f"{each.name} ({each.about})" for each in SCHEMAS.values())
        raise ValueError(f"unknown schema {schema!r}, known are {known}")
    return SCHEMAS[schema or _recognise(file)].read(file, skip_bad)


def files(path: str | Path) -> list[Path]:
    """All files that reading a trace of this name may open."""
    beside = (schema.beside(Path(path)) for schema in SCHEMAS.values())
    return [Path(path), *(each for each in beside if each)]


def _recognise(path: Path) -> str:
    with open_text(path) as lines:
        head = lines.read(_HEAD)
    if not head.strip():
        raise FileError(path, 1, "file", "is empty")
    if head.lstrip()[0] in "[{":
        return philly.LOG.name
    line = head.splitlines()[0]
    if head.lstrip()[0] == ";" or len(line.split()) == len(swf.FIELDS):
        return swf.SCHEMA.name
    if pai.JOBS in path.name:
        return pai.TABLES.name
    header = {name.strip() for name in next(csv.reader([line]))}
    found = [schema for schema in SCHEMAS.values() if schema.columns and header.issuperset(schema.columns)]
    if not found:
        known = f"known are {', '.join(SCHEMAS)}: name one to be told what it needs"
        raise FileError(path, 1, "header", f"{line[:80]!r} is of no known schema, {known}")
    return max(found, key=lambda schema: len(schema.columns)).name
