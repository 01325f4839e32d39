"""Pictures: predicted against measured step times in the terminal and as PNG, and what a whole consists of as bars.

In the terminal the error is drawn over the step time, because over four decades of time an error of ten percent is less
than a character wide. The PNG shows both times, with a band of 20 % around equality.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.bar import Bar
from rich.table import Table

from trimtab.ui import words
from trimtab.ui.terminal import Text
from trimtab_policy.perf.accuracy import APART, Accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console, ConsoleOptions

Times = NDArray[np.float64]

NARROWEST, WIDEST = 40, 110
"""Columns of a picture, however wide the terminal is: in one that is narrower still, lines are folded."""
BAND = 0.2
LEVELS = {"green": 0.1, "yellow": BAND}
"""Colour of a point -> largest error that it stands for; beyond these it is red."""
MOST = 2.0
"""Factor by which a prediction can be off before its point sits at the edge."""
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""Bits of the braille patterns, from U+2800 on, by row and column."""


def room(options: ConsoleOptions) -> int:
    """Columns that a picture has."""
    return min(max(options.max_width, NARROWEST), WIDEST)


class ErrorChart:
    """Predicted over measured time by measured time, both logarithmic, as wide as the console."""

    def __init__(self, measured: Times, predicted: Times, height: int = 15) -> None:
        self._measured, self._ratio = measured, np.clip(predicted / measured, 1 / MOST, MOST)
        self._height = height | 1  # odd: equality is the middle of a line of text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text | str]:
        width = room(options) - 7
        yield Text("predicted / measured step time", "bold")
        dots, worst = self._canvas(width)
        for line in range(self._height):
            yield self._margin(line) + self._line(dots[line], worst[line], line)
        yield self._axis(width)

    def _canvas(self, width: int) -> tuple[NDArray[np.int64], Times]:
        """Braille bits and largest error of every character, (height, width) each."""
        across = _scaled(np.log(self._measured), 2 * width)
        down = _scaled(-np.log(self._ratio), 4 * self._height, np.log(MOST))
        dots = np.zeros((self._height, width), dtype=np.int64)
        worst = np.zeros((self._height, width))
        np.bitwise_or.at(dots, (down // 4, across // 2), DOTS[down % 4, across % 2])
        np.maximum.at(worst, (down // 4, across // 2), np.abs(self._ratio - 1))
        return dots, worst

    def _line(self, dots: NDArray[np.int64], worst: Times, line: int) -> Text:
        text = Text()
        for bits, error in zip(dots.tolist(), worst.tolist(), strict=True):
            if bits:
                text.append(chr(0x2800 + bits), _colour(error))
            else:
                text.append("─" if line == self._row(1.0) else "╌" if line in self._band() else " ", "dim")
        return text

    def _margin(self, line: int) -> Text:
        labels = {self._row(ratio): ratio for ratio in (MOST, 1 + BAND, 1.0, 1 - BAND, 1 / MOST)}
        return Text(f"{labels[line]:5.3g} ┤" if line in labels else "      │", "dim")

    def _row(self, ratio: float) -> int:
        return int(_scaled(np.array([-np.log(ratio)]), 4 * self._height, np.log(MOST))[0]) // 4

    def _band(self) -> tuple[int, int]:
        return self._row(1 + BAND), self._row(1 - BAND)

    def _axis(self, width: int) -> Text:
        ends = [words.duration(float(time)) for time in (self._measured.min(), self._measured.max())]
        left = width - sum(map(len, ends))
        middle = next((said for said in ("measured step time", "measured", "") if len(said) + 2 <= left), "")
        gap = left - len(middle)
        return Text("      └" + ends[0] + " " * (gap // 2) + middle + " " * (gap - gap // 2) + ends[1], "dim")


def _scaled(values: Times, steps: int, most: float | None = None) -> NDArray[np.int64]:
    """Positions 0 to steps - 1 of values from their minimum to their maximum, or from -most to most."""
    low, high = (-most, most) if most else (float(values.min()), float(values.max()))
    share = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return np.clip(np.floor(share * steps), 0, steps - 1).astype(np.int64)


def _colour(error: float) -> str:
    return next((colour for colour, most in LEVELS.items() if error <= most), "red")


def bars(parts: Mapping[str, float], say: Callable[[float], str], *, width: int = 28) -> Table:
    """What a sum consists of: a line a part, its bar beginning where the one before ended. Parts of 0 are left out."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for justify in ("left", "left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    total, begun = sum(parts.values()), 0.0
    for name, value in parts.items():
        if value > 0:
            bar = Bar(total, begun, begun + value, width=width, color="cyan")
            table.add_row(name.replace("_", " "), bar, say(value), f"{value / total:.0%}")
        begun += value
    return table


def plot(path: Path, sources: Sequence[str], measured: Times, predicted: Times, accuracy: Accuracy) -> None:
    """Write a scatter plot of all rows, a colour a source. Raises ImportError without matplotlib, OSError.

    What kind of picture it is follows from the name: .png, .svg, .pdf.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.add_subplot()
    _identity(axes, measured, predicted)
    names = np.array(sources)
    for number, name in enumerate(sorted(accuracy.sources, key=lambda each: (each != APART, each))):
        rows = names == name
        axes.scatter(measured[rows], predicted[rows], label=_legend(name, accuracy), zorder=3, **_look(number, name))
    axes.set(xscale="log", yscale="log", xlabel="measured step time, s", ylabel="predicted step time, s")
    overall = accuracy.overall
    axes.set_title(
        f"Step time of {overall.n:,} training runs: mean error {overall.macro_mape:.1%} over sources, "
        f"median {overall.median_ape:.1%} over rows"
    )
    axes.grid(alpha=0.25, which="both", linewidth=0.5)
    figure.legend(loc="outside right upper", fontsize="small", frameon=False, title="source (rows, mean error)")
    figure.savefig(path, dpi=130)


def _identity(axes: Axes, measured: Times, predicted: Times) -> None:
    """The line of equality and the band around it."""
    ends = np.array([min(measured.min(), predicted.min()) / 1.5, max(measured.max(), predicted.max()) * 1.5])
    axes.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color="0.88", label=f"within {BAND:.0%}", zorder=1)
    axes.plot(ends, ends, color="0.3", linewidth=1, label="equal", zorder=2)
    axes.set(xlim=ends, ylim=ends)


def _legend(name: str, accuracy: Accuracy) -> str:
    found = accuracy.sources[name]
    return f"{name} ({found.n}, {found.mape:.1%})"


def _look(number: int, name: str) -> dict[str, Any]:
    """Ten colours times four shapes; the source with most rows stays in the background."""
    if name == APART:
        return {"color": "0.6", "marker": ".", "s": 8, "alpha": 0.6}
    return {"color": f"C{number % 10}", "marker": "osD^"[number // 10 % 4], "s": 26, "alpha": 0.8, "linewidths": 0}
