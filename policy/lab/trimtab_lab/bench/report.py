"""A table of published numbers as a value, and the same as Markdown and as JSON.

Whoever measures something returns a `BenchReport`; how it is written is decided here, once for all of them. Numbers are
written with three digits, which is more than most of them are worth; the JSON form has all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

Cell = str | float | None

_TINY = 5e-4
"""Three digits behind the point would not show it."""


class BenchReport(Struct, frozen=True, forbid_unknown_fields=True):
    """One table and what must be known to read it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    """Numbers as they are; text for everything that is no single number. None or NaN is what could not be measured."""
    notes: tuple[str, ...] = ()
    """A sentence or two each."""

    def __post_init__(self) -> None:
        """Raise ValueError for rows that do not have a cell in every column."""
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"rows[{number}] of {self.title!r} has {len(row)} cells for {len(self.columns)} columns"
                )


def written(cell: Cell) -> str:
    """A cell for people: `0.412`, `7.90`, `95.8`, `1234`; counts stay whole, and what is not known is a dash."""
    if isinstance(cell, str):
        return cell
    if cell is None or math.isnan(cell):
        return "–"
    if isinstance(cell, int) or math.isinf(cell) or cell == 0:
        return f"{cell:g}"
    if abs(cell) < _TINY:
        return f"{cell:.0e}"
    digits = 3 if abs(cell) < 1 else 2 if abs(cell) < 10 else 1 if abs(cell) < 100 else 0
    return f"{cell:.{digits}f}"


def interval(value: float, low: float, high: float) -> str:
    """An estimate and its interval in one cell: `0.841 (0.790–0.902)`, `-1.20 (-1.40 to 0.100)`."""
    between = " to " if low < 0 else "–"
    return f"{written(value)} ({written(low)}{between}{written(high)})"


def numeric(report: BenchReport) -> list[bool]:
    """Which columns are read from the right: those in which every cell begins like a number."""
    return [
        bool(report.rows) and all(_number_like(row[column]) for row in report.rows)
        for column in range(len(report.columns))
    ]


def markdown(report: BenchReport, level: int = 3) -> str:
    """The report as GitHub writes tables, under a heading of that level."""
    lines = [
        f"{'#' * level} {report.title}",
        "",
        _line(report.columns),
        "|" + "|".join("---:" if right else "---" for right in numeric(report)) + "|",
        *(_line([written(cell) for cell in row]) for row in report.rows),
    ]
    if report.notes:
        lines += ["", *(f"- {note}" for note in report.notes)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _number_like(cell: Cell) -> bool:
    return not isinstance(cell, str) or cell[:1] in set("0123456789–-+±<≤")
