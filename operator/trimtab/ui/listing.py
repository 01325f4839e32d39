"""A table of one line for each thing, as `kubectl get` prints it.

On a terminal the least important columns go first where it is narrow, and names stay whole; a last column of sentences
goes on below itself. Into a pipe or a file goes one line for each row, with nothing cut, folded or padded at its end,
so that grep and awk find what they look for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from rich.console import ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment

from trimtab.ui.terminal import Console, Text

GAP = 2
"""Blanks between columns."""
LEAST_LAST = 16
"""Columns of the terminal that sentences are folded into at least; in fewer they are cut."""

Cell = str | Text | RenderableType


class Listing:
    """Rows under column names."""

    def __init__(
        self,
        columns: Sequence[str],
        *,
        less: Sequence[str] = (),
        right: Sequence[str] = (),
        sentences: bool = False,
        headers: bool = True,
    ) -> None:
        """`less` names columns in the order in which they go, `right` those of numbers; `sentences`: the last column
        has some."""
        self._columns = tuple(columns)
        self._less, self._right = tuple(less), frozenset(right)
        self._sentences, self._headers = sentences, headers
        self._rows: list[tuple[Cell, ...]] = []
        self._above: tuple[list[int], list[int]] = [0] * len(self._columns), []
        """Least widths of the columns, and those that are shown; none: as there is room."""
        self._printed = self._above
        """The same as they were printed last."""

    def add(self, *cells: Cell) -> None:
        """One row, with a cell for every column."""
        self._rows.append(cells)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self._columns

    @property
    def rows(self) -> Sequence[tuple[Cell, ...]]:
        """Cells, row by row."""
        return self._rows

    def below(self, rows: Iterable[tuple[Cell, ...]]) -> Listing:
        """Other rows, to be printed below these once these have been: aligned with them, and without column names."""
        first = not self._printed[1]
        made = Listing(
            self._columns, less=self._less, right=tuple(self._right), sentences=self._sentences,
            headers=self._headers and first,
        )  # fmt: skip
        made._above, made._rows = self._printed, list(rows)
        return made

    def __rich_console__(self, console: Any, options: ConsoleOptions) -> Iterator[Text]:
        limit = options.max_width if console.is_terminal else 0
        rows = [[_text(cell, console, options) for cell in row] for row in self._rows]
        if not limit:  # lines of a cell become one
            rows = [[Text("; ").join(cell.split()) if "\n" in cell.plain else cell for cell in row] for row in rows]
        heads = [Text(name, "bold") for name in self._columns]
        lines = [heads, *rows] if self._headers else rows
        least, shown = self._above
        widths = [max([least[at], *(line[at].cell_len for line in lines)]) for at in range(len(heads))]
        kept = shown or self._kept(widths, limit)
        self._printed = widths, kept
        for line in lines:
            yield from self._lines(line, kept, widths, limit)

    def _kept(self, widths: Sequence[int], limit: int) -> list[int]:
        """The columns that a terminal has room for."""
        needed = list(widths)
        if self._sentences:
            needed[-1] = min(needed[-1], LEAST_LAST)
        kept = list(range(len(widths)))
        for name in self._less:
            if limit and sum(needed[at] + GAP for at in kept) - GAP > limit and name in self._columns:
                kept.remove(self._columns.index(name))
        return kept

    def _lines(self, line: Sequence[Text], kept: Sequence[int], widths: Sequence[int], limit: int) -> Iterator[Text]:
        *first, last = kept
        told = Text()
        for at in first:
            told += self._aligned(line[at], at, widths[at]) + " " * GAP
        end = self._aligned(line[last], last, widths[last])
        end.rstrip()
        room = limit - told.cell_len
        if not limit or end.cell_len <= room:
            yield _whole(told + end)
        elif room < LEAST_LAST:
            cut = told + end
            cut.truncate(limit, overflow="ellipsis")
            yield _whole(cut)
        else:
            for place, part in enumerate(end.wrap(Console(width=room), room)):
                yield _whole((told if place == 0 else Text(" " * told.cell_len)) + part)

    def _aligned(self, cell: Text, at: int, width: int) -> Text:
        blanks = Text(" " * (width - cell.cell_len))
        return blanks + cell if self._columns[at] in self._right else cell + blanks


class Rows(NamedTuple):
    """Things of a kind as they are at a moment; the same number of each, in the same order."""

    keys: Sequence[str]
    """What tells one from another."""
    names: Sequence[str]
    values: Sequence[Any]
    """As `-o json` shows them."""
    table: Listing
    heights: Sequence[int] = ()
    """Lines of the table that each takes; none are told where that is one."""

    @property
    def lines(self) -> Iterator[Sequence[tuple[Cell, ...]]]:
        """The lines of the table that each takes."""
        rest = iter(self.table.rows)
        return (tuple(islice(rest, height)) for height in self.heights or [1] * len(self.keys))


def _whole(line: Text) -> Text:
    """A line which the console leaves as it is."""
    line.rstrip()
    line.no_wrap, line.overflow = True, "ignore"
    return line


def _text(cell: Cell, console: Any, options: ConsoleOptions) -> Text:
    """A cell as text; bars and the like as they are drawn."""
    if isinstance(cell, str):
        return Text(cell)
    if isinstance(cell, Text):
        return cell
    width = Measurement.get(console, options, cell).maximum
    drawn = Text()
    for segment in Segment.simplify(console.render(cell, options.update(width=width))):
        if not segment.control:
            drawn.append(segment.text.rstrip("\n"), segment.style)
    return drawn
