"""Pictures of evaluations for the terminal, as wide as it is: distributions, who held which nodes, how full they were.

Colours help, and nothing depends on them: curves and jobs carry letters, too. `ui.pictures` draws the same as files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trimtab.ui import words
from trimtab.ui.charts import DOTS, room
from trimtab.ui.terminal import Text
from trimtab_lab.evaluation import timeline
from trimtab_lab.evaluation.timeline import Timeline
from trimtab_policy.types import Node

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

HEIGHT = 12
"""Lines of the distributions."""
SHORTEST_H = 1e-6
"""Hours that a logarithmic axis takes for zero."""
MARGIN = 20
"""Columns for the names of nodes."""
MOST_ROWS = 16
"""Lines of nodes; more nodes share lines with their neighbours."""
MOST_NAMED_JOBS = 16
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
COLOURS = ("cyan", "magenta", "yellow", "green", "red", "blue", "bright_cyan", "bright_magenta", "bright_yellow")
LEVELS = "▁▂▃▄▅▆▇█"
FULL_FROM = 0.995


class Distributions:
    """Cumulative distributions of completion times, logarithmic in time: policy -> hours."""

    def __init__(self, jct_h: Mapping[str, Sequence[float]]) -> None:
        self._jct_h = {
            policy: np.sort(np.asarray(hours, dtype=np.float64)) for policy, hours in jct_h.items() if len(hours)
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = room(options) - 7
        if not self._jct_h:
            yield Text("no job finished", "dim")
            return
        yield Text("share of jobs done by completion time", "bold")
        ends = min(float(hours[0]) for hours in self._jct_h.values()), max(float(h[-1]) for h in self._jct_h.values())
        signs, owners = self._canvas(ends, width)
        for line in range(HEIGHT):
            yield _share(line) + _coloured(signs[line], owners[line])
        yield _axis(6, width, *(words.duration(3600 * end) for end in ends))
        yield from self._legend(width + 7)

    def _canvas(self, ends: tuple[float, float], width: int) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
        """Sign and curve (-1: none) of every character, (height, width) each."""
        dots = np.zeros((HEIGHT, width), dtype=np.int64)
        owners = np.full((HEIGHT, width), -1)
        letters = np.full((HEIGHT, width), "")
        times = np.geomspace(max(ends[0], SHORTEST_H), max(ends[1], SHORTEST_H), 2 * width)
        for number, hours in enumerate(self._jct_h.values()):
            shares: NDArray[np.float64] = np.searchsorted(hours, times, side="right") / len(hours)
            down: NDArray[np.int64] = np.clip(((1 - shares) * 4 * HEIGHT).astype(np.int64), 0, 4 * HEIGHT - 1)
            across, down_to = _joined(down)
            np.bitwise_or.at(dots, (down_to // 4, across // 2), DOTS[down_to % 4, across % 2])
            owners[down_to // 4, across // 2] = number
            marked = np.arange(3 * number, width, max(10, 3 * len(self._jct_h)))
            marked = marked[(shares[2 * marked] > 0) & (shares[2 * marked] < 1)]
            letters[down[2 * marked] // 4, marked] = LETTERS[number % len(LETTERS)]
            owners[down[2 * marked] // 4, marked] = number
        braille = np.vectorize(lambda bits: chr(0x2800 + bits) if bits else " ")(dots)
        return np.where(letters != "", letters, braille), owners

    def _legend(self, width: int) -> Iterator[Text]:
        entries = [
            Text(f"{LETTERS[number % len(LETTERS)]} {policy} (median {words.duration(3600 * np.median(hours))})")
            for number, (policy, hours) in enumerate(self._jct_h.items())
        ]
        for number, entry in enumerate(entries):
            entry.stylize(COLOURS[number % len(COLOURS)], 0, 1)
        yield from _flow(entries, width)


class Gantt:
    """Who held most of each node, or group of nodes: a letter and a colour a job."""

    def __init__(self, run: Timeline) -> None:
        self._run = run

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = room(options) - MARGIN
        edges = timeline.edges(self._run, width)
        holders = timeline.holders(self._run, edges)
        shares = timeline.in_use(self._run, edges) * [[node.gpus] for node in self._run.nodes]
        drawn = np.unique(holders[holders >= 0]).tolist()
        few = len(self._run.names) <= len(LETTERS)  # so that a job has the same letter in the next picture, too
        order = {job: job if few else place for place, job in enumerate(drawn)}
        for rows in _groups(self._run.nodes):
            fullest = rows[0] + shares[rows[0] : rows[-1] + 1].argmax(axis=0)
            line = Text.assemble((_label([self._run.nodes[row] for row in rows]), "dim"))
            for job in holders[fullest, np.arange(width)].tolist():
                line.append(*_cell(order.get(job)))
            yield line
        yield _axis(MARGIN - 1, width, "0", words.duration(self._run.end))
        yield from self._legend(order, width + MARGIN)

    def _legend(self, order: Mapping[int, int], width: int) -> Iterator[Text]:
        if len(order) > MOST_NAMED_JOBS:
            told = f"each letter the job that held most of the node; {len(order)} of {len(self._run.names)}"
            yield Text(" " * MARGIN + told, "dim")
            return
        entries = [Text.assemble(_cell(place), f" {self._run.names[job]}") for job, place in order.items()]
        yield from _flow(entries, width)


class Heat:
    """How full each node, or group of nodes, was over time; its average stands at the right."""

    def __init__(self, run: Timeline) -> None:
        self._run = run

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = room(options) - MARGIN - 5
        shares = np.round(timeline.in_use(self._run, timeline.edges(self._run, width)), 6)
        gpus = np.array([node.gpus for node in self._run.nodes], dtype=np.float64)
        for rows in _groups(self._run.nodes):
            held = np.average(shares[rows], axis=0, weights=gpus[rows])
            line = Text.assemble((_label([self._run.nodes[row] for row in rows]), "dim"))
            for share in held.tolist():
                line.append(*_level(share))
            line.append(f" {held.mean():4.0%}")
            yield line
        yield _axis(MARGIN - 1, width, "0", words.duration(self._run.end))


def _joined(down: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Column and row of every dot of a curve without gaps; `down` is its row by column."""
    before = np.concatenate((down[:1], down[:-1]))
    top, count = np.minimum(down, before), np.abs(down - before) + 1
    across = np.repeat(np.arange(len(down)), count)
    return across, np.repeat(top, count) + np.arange(len(across)) - np.repeat(np.cumsum(count) - count, count)


def _share(line: int) -> Text:
    """The margin of the distributions: a label every quarter."""
    labels = {round(quarter * (HEIGHT - 1) / 4): 100 - 25 * quarter for quarter in range(5)}
    return Text(f"{labels[line]:3.0f} % ┤" if line in labels else "      │", "dim")


def _coloured(signs: NDArray[np.str_], owners: NDArray[np.int64]) -> Text:
    text = Text()
    for owner, cells in groupby(zip(owners.tolist(), signs.tolist(), strict=True), key=lambda cell: cell[0]):
        text.append("".join(sign for _, sign in cells), "" if owner < 0 else COLOURS[owner % len(COLOURS)])
    return text


def _axis(indent: int, width: int, first: str, last: str) -> Text:
    gap = max(1, width - len(first) - len(last))
    return Text(" " * indent + "└" + first + " " * gap + last, "dim")


def _flow(entries: Sequence[Text], width: int) -> Iterator[Text]:
    """Entries side by side, as many to a line as there is room for."""
    line = Text()
    for entry in entries:
        if line and len(line) + 3 + len(entry) > width:
            yield line
            line = Text()
        line = line + "   " + entry if line else entry
    if line:
        yield line


def _groups(nodes: Sequence[Node]) -> Iterator[list[int]]:
    """Rows of neighbouring nodes of one type that share a line."""
    types = {gpu_type: len(list(members)) for gpu_type, members in groupby(nodes, key=lambda node: node.gpu_type)}
    together = -(-len(nodes) // max(1, MOST_ROWS - len(types)))
    begun = 0
    for count in types.values():
        rows = list(range(begun, begun + count))
        begun += count
        yield from (rows[i : i + together] for i in range(0, count, together))


def _label(nodes: Sequence[Node]) -> str:
    name = words.nodes([node.name for node in nodes], limit=1)
    room = MARGIN - 2
    return f"{name if len(name) <= room else '…' + name[1 - room :]:>{room}} │"  # numbers tell nodes apart


def _cell(place: int | None) -> tuple[str, str]:
    """Sign and style of a job by its place among those that are drawn."""
    if place is None:
        return "·", "dim"
    return LETTERS[place % len(LETTERS)], f"black on {COLOURS[place % len(COLOURS)]}"


def _level(share: float) -> tuple[str, str]:
    if share <= 0:
        return "·", "dim"
    style = "green" if share >= FULL_FROM else "yellow" if share >= 0.5 else "red"
    return LEVELS[min(len(LEVELS) - 1, int(share * len(LEVELS)))], style
