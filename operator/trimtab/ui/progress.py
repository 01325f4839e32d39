"""Progress on stderr: bars and spinners for people, plain lines for logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from trimtab.printable import say
from trimtab.ui.terminal import Console, Text, column


class StepCounter(Protocol):
    """Counts steps that are done."""

    def advance(self, steps: int = 1) -> None:
        """Count `steps` more."""


@contextmanager
def progress(title: str, total: int) -> Iterator[StepCounter]:
    """Show how many of `total` steps are done; `total` may be an upper bound."""
    if not sys.stderr.isatty():
        yield PlainProgress(title, total)
        return
    columns = (column(), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        yield BarProgress(bar, title, total)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Say what is being done, and how long it took once it is."""
    console = Console(stderr=True, highlight=False)
    began = time.monotonic()
    with console.status(Text(title)) if console.is_terminal else nullcontext():
        yield
    mark = [("✓ ", "green")] if console.is_terminal else []
    told = Text.assemble(*mark, title, (f" ({time.monotonic() - began:.1f} s)", "dim"))
    console.print(told, soft_wrap=True)


@contextmanager
def shares(title: str) -> Iterator[Callable[[int, float], None]]:
    """`progress` for what knows the share that is done: the function takes a number of steps, and that share."""
    with progress(title, 100) as bar:
        told = 0

        def report(_: int, share: float) -> None:
            nonlocal told
            percent = max(told, min(100, int(100 * share)))
            bar.advance(percent - told)
            told = percent

        yield report


class Silence:
    """Progress that nobody watches."""

    def advance(self, steps: int = 1) -> None:
        """Ignore it."""


class BarProgress:
    """A bar of rich."""

    def __init__(self, bar: RichProgress, title: str, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task(title, total=total or None)

    def advance(self, steps: int = 1) -> None:
        self._bar.advance(self._task, steps)


class PlainProgress:
    """A line at the start and about every 10 %."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._print()

    def advance(self, steps: int = 1) -> None:
        before = self._tenths()
        self._done += steps
        if self._tenths() > before:
            self._print()

    def _tenths(self) -> int:
        return 10 * self._done // self._total if self._total else 0

    def _print(self) -> None:
        say(f"{self._title}: {self._done}/{self._total}", error=True)
