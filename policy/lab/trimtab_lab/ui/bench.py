"""Benchmarks in the terminal: reports like in Markdown, but without lines; and what is going on while they are made."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Group
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from trimtab.printable import say
from trimtab.ui.terminal import Console, Text, column
from trimtab_lab.bench.report import BenchReport, numeric, written

if TYPE_CHECKING:
    from trimtab_lab.bench import BenchEntry

QUIET_SECONDS = 10.0
"""Between two lines of a log about the same entry."""


def report(found: BenchReport) -> Group:
    """Title, table, and the notes below it."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, right in zip(found.columns, numeric(found), strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in found.rows:
        table.add_row(*(Text(written(cell)) for cell in row))
    return Group(Text(found.title, "bold"), table, *(Text(note, "dim") for note in found.notes))


def entries(found: Mapping[str, BenchEntry]) -> Table:
    """What there is to be made."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("NAME", "SEEDS", "ABOUT"):
        table.add_column(name, justify="right" if name == "SEEDS" else "left", overflow="fold")
    for name, entry in found.items():
        table.add_row(Text(name), str(len(entry.seeds)), Text(entry.about))
    return table


class EntryProgress(Protocol):
    """Progress over entries."""

    def begin(self, name: str) -> None:
        """The next entry."""

    def say(self, text: str) -> None:
        """What is being done for it."""

    def end(self) -> None:
        """It is done."""


@contextmanager
def progress(total: int) -> Iterator[EntryProgress]:
    """A bar over entries on stderr that says what is being done; plain lines where nobody looks."""
    if not sys.stderr.isatty():
        yield BenchLines(total)
        return
    columns = (column(), BarColumn(bar_width=12), MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, column("{task.fields[said]}"), console=Console(stderr=True)) as bars:
        yield BenchBar(bars, total)


class BenchBar:
    """A bar of rich."""

    def __init__(self, bars: RichProgress, total: int) -> None:
        self._bars = bars
        self._task = bars.add_task("", total=total, said="")

    def begin(self, name: str) -> None:
        self._bars.update(self._task, description=name, said="")

    def say(self, text: str) -> None:
        self._bars.update(self._task, said=text)

    def end(self) -> None:
        self._bars.advance(self._task)


class BenchLines:
    """A line for each entry, and one every `QUIET_SECONDS` while it is made."""

    def __init__(self, total: int) -> None:
        self._total, self._number, self._name = total, 0, ""
        self._said = time.monotonic()

    def begin(self, name: str) -> None:
        self._number, self._name = self._number + 1, name
        self._print("begun")

    def say(self, text: str) -> None:
        if time.monotonic() - self._said >= QUIET_SECONDS:
            self._print(text)

    def end(self) -> None:
        self._print("done")

    def _print(self, text: str) -> None:
        self._said = time.monotonic()
        say(f"{self._name} ({self._number}/{self._total}): {text}", error=True)
