"""A trace file as columns of text, with books on which rows are jobs.

Readers ask for columns in the kind that they need and say what must hold; everything is checked a column at a time.
The first row that breaks a rule stops the reading with one line that names file, row and field, or is skipped and
counted (`skip_bad`). Rows that are well-formed but no GPU job of known length are left out by rule, and counted, too.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from trimtab_lab.workloads.textfile import FileError, open_text
from trimtab_lab.workloads.trace import (
    BoolArray,
    Coded,
    FloatArray,
    IntArray,
    Trace,
    code,
    code_by,
    constant,
    trace,
)
from trimtab_policy.sim import gputypes

ROUNDED_GPUS = "fractional GPUs rounded up"
ROUNDED_SECONDS = "run times below a second rounded up"
CPU_ONLY = "asks for no GPU"
_CHUNK = 256
"""Rows at a time: fewer than make the garbage collector look at all that was read before (2 x faster)."""
_EXACT = 1e-6
"""Sums of hundredths are not exact: 7.000000000000001 GPUs are seven."""
_MOST = 1e15
_OFFSET = re.compile(r"(\.\d+)?\s*(?:Z|UTC|([+-])(\d\d):?(\d\d))?")


class TraceReport(Struct, frozen=True):
    """What became of the rows of a file."""

    source: str
    schema: str
    rows: int
    jobs: int
    skipped: dict[str, int]
    """Bad rows by reason; always empty unless they are to be skipped."""
    left_out: dict[str, int]
    """Well-formed rows that are no GPU job of known length, by reason."""
    changed: dict[str, int]
    """Jobs whose figures were rounded, by what was done."""

    def lines(self) -> list[str]:
        """For people, the counts one by one."""
        head = f"{self.source}: {self.jobs} jobs in {self.rows} rows ({self.schema})"
        kinds = {"skipped": self.skipped, "left out": self.left_out, "changed": self.changed}
        return [head, *(f"{kind}: {count} {why}" for kind, whys in kinds.items() for why, count in whys.items())]


class Schema(Struct, frozen=True):
    """A format that traces are published in."""

    name: str
    about: str
    columns: tuple[str, ...]
    """What its header must have; empty for formats without one."""
    read: Callable[[Path, bool], tuple[Trace, TraceReport]]
    """From file and whether to skip bad rows."""
    beside: Callable[[Path], Path | None] = lambda path: None
    """The file that it reads besides, if it has a second one: found by the name of the first."""


LONGEST_FIELD = 256
"""Characters. All names of a trace take as much memory as the longest one."""


class TraceTable:
    """Columns of text. Only rows that are still `usable` are checked further."""

    def __init__(self, path: Path, header: Sequence[str], lines: Iterable[list[str]], first: int, skip: bool) -> None:
        """`lines` are the rows after the header, empty ones for blank lines; the first stands in line `first`."""
        self.path, self.skip = path, skip
        self.header = [name.strip() for name in header]
        self.skipped: dict[str, int] = {}
        self.left_out: dict[str, int] = {}
        self.changed: dict[str, int] = {}
        self._columns: list[list[str]] = [[] for _ in self.header]
        self._at = first
        widths = [width for chunk in self._load(lines) for width in chunk]
        self.row: IntArray = np.arange(first, first + len(widths))
        width = np.array(widths, dtype=np.int64)
        self.usable: BoolArray = width > 0
        self.rows = int(self.usable.sum())
        self._check_widths(width)

    def __len__(self) -> int:
        return len(self.row)

    def text(self, name: str) -> list[str]:
        """A column as it stands; empty texts where the file lacks it."""
        return self._columns[self.header.index(name)] if name in self.header else [""] * len(self)

    def coded(self, name: str) -> Coded[str]:
        """A column of words that repeat."""
        return code(self.text(name)) if name in self.header else constant("", len(self))

    def words(self, name: str) -> list[str]:
        """A column of words, none of which may be missing."""
        found = self.text(name)
        self.refuse(np.fromiter(map(len, found), np.int64, len(found)) == 0, name, "is missing", "fill it in")
        return found

    def number(self, name: str, *, optional: bool = False, unknown: float | None = None) -> FloatArray:
        """A column of numbers >= 0; NaN where an optional one is missing or holds what stands for `unknown`."""
        if optional and name not in self.header:
            return np.full(len(self), np.nan)
        found = self.text(name)
        values, wrong = _numbers(found)
        missing = np.isnan(values)
        missing[missing] = [not found[row].strip() for row in np.flatnonzero(missing)]
        if unknown is not None:
            missing |= values == unknown
            values[missing] = np.nan
        if not optional:
            self.refuse(missing, name, "is missing", "fill it in, or fetch the file again if it was cut off")
        self.refuse(wrong, name, "is no number", "write one, such as 3600")
        self.refuse(~np.isfinite(values) & ~missing & ~wrong, name, "is not finite", "write a number")
        self.refuse(values < 0, name, "is negative", "it must be 0 or more")
        self.refuse(values > _MOST, name, "is too large to be true", f"at most {_MOST:.0e} is")
        values[(values < 0) | (values > _MOST)] = np.nan
        return values

    def times(self, name: str, *, optional: bool = False) -> FloatArray:
        """A column of dates and times, `2023-03-01 00:18:22+08:00`, as POSIX seconds; without offset as if UTC."""
        found = self.text(name)
        values = seconds_of(found)
        missing = np.isnan(values)
        missing[missing] = [not found[row].strip() for row in np.flatnonzero(missing)]
        if not optional:
            self.refuse(missing, name, "is missing", "fill it in, or fetch the file again if it was cut off")
        self.refuse(np.isnan(values) & ~missing, name, "is no time", "write one such as 2023-03-01 00:18:22")
        return values

    def gpus(self, wanted: FloatArray, name: str, *, cpu_jobs: bool) -> IntArray:
        """GPUs of each job, fractions rounded up. Without any it is a CPU job where the schema has such, else wrong."""
        if cpu_jobs:
            self.leave_out(wanted == 0, CPU_ONLY)
        self.refuse(wanted == 0, name, "asks for 0 GPUs", "a job needs at least one")
        self.refuse(wanted > 1e6, name, "is more than a million GPUs", "check the column")
        whole = np.maximum(rounded_up(wanted), wanted > 0)  # a millionth of one takes a whole one, too
        self.change(whole - wanted > _EXACT, ROUNDED_GPUS)
        return whole

    def gpu_types(self, name: str, found: list[str] | None = None) -> Coded[tuple[str, ...]]:
        """A column (or texts `found` instead) of allowed types, several as `A|B`, by their names in the catalogue."""
        column = self.coded(name) if found is None else code(found)
        known: list[tuple[str, ...]] = []
        for number, text in enumerate(column.values):
            try:
                known.append(tuple(sorted({gputypes.resolve(part).name for part in text.split("|") if part})))
            except gputypes.UnknownGpu as error:
                known.append(())
                self.refuse(column.codes == number, name, "is no known GPU type", str(error))
        return code_by(column.codes, known)

    def refuse(self, mask: BoolArray, field: str, problem: str, advice: str) -> None:
        """Rows that break a rule. Raises FileError for the first of them unless bad rows are skipped."""
        bad = mask & self.usable
        count = int(bad.sum())
        if count and not self.skip:
            at = int(np.argmax(bad))
            value = f"{self.text(field)[at]!r} " if field in self.header else ""
            raise FileError(self.path, int(self.row[at]), field, f"{value}{problem}: {advice}")
        self._strike(bad, count, self.skipped, f"{field} {problem}")

    def leave_out(self, mask: BoolArray, reason: str) -> None:
        """Rows that are no GPU job of known length."""
        gone = mask & self.usable
        self._strike(gone, int(gone.sum()), self.left_out, reason)

    def change(self, mask: BoolArray, what: str) -> None:
        """Count the usable rows in which a figure was rounded."""
        count = int((mask & self.usable).sum())
        if count:
            self.changed[what] = self.changed.get(what, 0) + count

    def finish(
        self,
        schema: str,
        *,
        name: list[str],
        submitted: FloatArray,
        seconds: FloatArray | None = None,
        from_zero: bool = False,
        **columns: Any,
    ) -> tuple[Trace, TraceReport]:
        """The usable rows as a trace; `from_zero` for clocks whose zero means nothing. Raises FileError if none is."""
        self._check_names(name)
        if not self.usable.any():
            raise FileError(
                self.path, 1, "file", "holds no job that could be simulated: see whether it is the right one"
            )
        if seconds is not None:
            self.change(seconds < 1, ROUNDED_SECONDS)
            seconds = np.maximum(seconds, 1.0)
        if from_zero:
            submitted = submitted - submitted[self.usable].min()
        rows = np.flatnonzero(self.usable)
        columns |= {"name": np.array(name), "submitted": submitted, "seconds": seconds, "row": self.row}
        kept = {key: column.take(rows) for key, column in columns.items() if column is not None}
        found = trace(**kept, source=str(self.path))
        return found, TraceReport(
            str(self.path), schema, self.rows, len(found), self.skipped, self.left_out, self.changed
        )

    def _load(self, lines: Iterable[list[str]]) -> Iterator[list[int]]:
        """Fill the columns; yields the numbers of fields of the rows."""
        rows, width = iter(lines), len(self.header)
        while chunk := list(islice(rows, _CHUNK)):
            widths = [len(row) for row in chunk]
            if any(each != width for each in widths):
                chunk = [row[:width] + [""] * (width - len(row)) for row in chunk]
            for name, column, values in zip(self.header, self._columns, zip(*chunk, strict=True), strict=True):
                longest = max(map(len, values))
                if longest > LONGEST_FIELD:
                    problem = (
                        f"has {longest:,} characters in one of {len(chunk):,} rows, at most {LONGEST_FIELD} may be"
                    )
                    raise FileError(self.path, self._at, name, f"{problem}: shorten it")
                column.extend(values)
            self._at += len(chunk)
            yield widths

    def _check_widths(self, width: IntArray) -> None:
        full = len(self.header)
        for got in sorted(set(width[(width > 0) & (width < full)].tolist())):
            self.refuse(
                width == got,
                self.header[got],
                f"is missing, with all after it ({got} of {full} fields)",
                "fetch the file again if it was cut off",
            )
        self.refuse(width > full, self.header[-1], f"is not the last field of {full}", "quote commas inside of fields")

    def _check_names(self, name: list[str]) -> None:
        if len(set(name)) == len(name):
            return
        first: dict[str, int] = {}
        again = np.array([first.setdefault(text, row) != row for row, text in self._usable(name)], dtype=np.bool_)
        twice = np.zeros(len(self), dtype=np.bool_)
        twice[self.usable] = again
        self.refuse(twice, self.header[0], "is there twice", "give every job a name of its own")

    def _usable(self, texts: list[str]) -> Iterator[tuple[int, str]]:
        return ((row, text) for row, (text, usable) in enumerate(zip(texts, self.usable, strict=True)) if usable)

    def _strike(self, rows: BoolArray, count: int, books: dict[str, int], reason: str) -> None:
        if count:
            books[reason] = books.get(reason, 0) + count
            self.usable = self.usable & ~rows


def load(path: Path, skip_bad: bool, needed: Sequence[str]) -> TraceTable:
    """A CSV file with a header. Raises FileError if it lacks a needed column."""
    with open_text(path) as lines:
        reader = csv.reader(lines)
        header = [name.strip() for name in next(reader, [])]
        if missing := [name for name in needed if name not in header]:
            raise FileError(path, 1, "header", f"lacks {', '.join(missing)}: check file and schema")
        return TraceTable(path, header, reader, 2, skip_bad)


def rounded_up(values: FloatArray) -> IntArray:
    """Whole numbers; 0 for NaN, which only rows have that are not usable."""
    return np.ceil(np.nan_to_num(values) - _EXACT).astype(np.int64)


def _numbers(found: list[str]) -> tuple[FloatArray, BoolArray]:
    """Values, NaN for blanks, and which texts are no numbers."""
    try:
        return np.array([text or "nan" for text in found], dtype=np.float64), np.zeros(len(found), dtype=np.bool_)
    except ValueError:
        parsed = [_number(text) for text in found]
        wrong = np.array([value is None for value in parsed], dtype=np.bool_)
        return np.array([np.nan if value is None else value for value in parsed]), wrong


def _number(text: str) -> float | None:
    try:
        return float(text.strip() or "nan")
    except ValueError:
        return None


def seconds_of(found: list[str]) -> FloatArray:
    """Dates and times, `2023-03-01 00:18:22+08:00`, as POSIX seconds (UTC without an offset); NaN for other texts."""
    offsets = {suffix: _offset(suffix) for suffix in {text[19:] for text in found}}
    offset = np.array([offsets[text[19:]] for text in found])
    stamps = _stamps(["" if len(text) < 19 else text[:19] for text in found])
    return np.asarray(np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64)) - offset, dtype=np.float64)


def _offset(suffix: str) -> float:
    """Seconds that local time is ahead of UTC, less the fraction of a second; NaN if it is none of both."""
    parts = _OFFSET.fullmatch(suffix)
    if not parts:
        return float("nan")
    fraction, sign, hours, minutes = parts.groups()
    ahead = (int(hours) * 3600 + int(minutes) * 60) * (-1 if sign == "-" else 1) if hours else 0
    return ahead - float(fraction or 0)


def _stamps(found: list[str]) -> Any:
    try:
        return np.array(found, dtype="datetime64[s]")
    except ValueError:
        return np.array([_stamp(text) for text in found], dtype="datetime64[s]")


def _stamp(text: str) -> Any:
    try:
        return np.datetime64(text, "s")
    except ValueError:
        return np.datetime64("NaT", "s")
