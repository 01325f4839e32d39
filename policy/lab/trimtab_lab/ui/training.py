"""What trainings look like: a bar a seed while they run, a table and a picture of their curves when they are done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from trimtab.printable import say
from trimtab.ui import words
from trimtab.ui.terminal import Console, column

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trimtab_lab.agents.checkpoint import Row
    from trimtab_lab.agents.train import TrainedAgent, TrainingStep

SCORE = "validation_score"
PANELS = {"return": "mean return of episodes", "loss": "loss", SCORE: "validation score"}
"""Figure -> what stands at its axis."""
SMOOTHED_FROM = 30
"""Points of a curve from which on a running mean over a tenth of them is drawn over it."""
DECADES = 100
"""Ratio of largest to smallest value from which on an axis is logarithmic."""
LEVELS = "▁▂▃▄▅▆▇█"
MOST_LEVELS = 20


# --- while it runs ---------------------------------------------------------------------------------------------------
@contextmanager
def watched(seeds: Sequence[int]) -> Iterator[Callable[[TrainingStep], None]]:
    """A bar for each seed on stderr; plain lines where nobody looks. What this gives is told every step."""
    if not sys.stderr.isatty():
        yield TrainingLines()
        return
    columns = (
        column(), BarColumn(bar_width=12), MofNCompleteColumn(),
        column("{task.fields[figures]}"), column("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with RichProgress(*columns, console=Console(stderr=True), speed_estimate_period=600) as progress:
        yield Bars(progress, seeds)


class Bars:
    """Bars of rich, which start to count when their seed does."""

    def __init__(self, progress: RichProgress, seeds: Sequence[int]) -> None:
        self._progress = progress
        self._bars = {seed: self._bar(seed) for seed in seeds}

    def _bar(self, seed: int) -> TaskID:
        return self._progress.add_task(f"seed {seed}", start=False, total=None, figures="")

    def __call__(self, step: TrainingStep) -> None:
        bar = self._bars[step.seed]
        self._progress.start_task(bar)  # the first time only
        self._progress.update(bar, total=step.segments, completed=step.segment, figures=figures(step))


class TrainingLines:
    """A line where a seed begins, and about every 10 % of it."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[float, int]] = {}
        self._tenth: dict[int, int] = {}

    def __call__(self, step: TrainingStep) -> None:
        began, first = self._begun.setdefault(step.seed, (time.monotonic(), step.segment))
        tenth = 10 * step.segment // step.segments
        if self._tenth.get(step.seed) == tenth:
            return
        self._tenth[step.seed] = tenth
        done, left = step.segment - first, step.segments - step.segment
        eta = f", {words.duration((time.monotonic() - began) / done * left)} left" if done and left else ""
        told = f"  {figures(step)}" if step.row else ""
        say(f"seed {step.seed}: {step.segment}/{step.segments}{told}{eta}", error=True)


def figures(step: TrainingStep) -> str:
    """`return -3.21  loss 0.0412  best -2.9`."""
    told = {"return": step.row.get("return"), "loss": step.row.get("loss"), "best": step.best}
    return "  ".join(f"{name} {value:.3g}" for name, value in told.items() if value is not None)


# --- when it is done -------------------------------------------------------------------------------------------------
def table(trained: Sequence[TrainedAgent], best: TrainedAgent) -> Table:
    """A line a seed; the best is bold."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("SEED", "BEST SCORE", "AT", "STEPS", "LAST RETURN", "LAST LOSS", "TIME"):
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column("SCORE", no_wrap=True)
    for each in trained:
        row = each.rows[-1]
        cells = (
            str(each.seed), _number(each.card.score), f"{each.best_segment}/{len(each.rows)}",
            f"{row.get('steps') or 0:,.0f}", _number(row.get("return")), _number(row.get("loss")),
            words.duration(row.get("seconds") or 0.0),
        )  # fmt: skip
        made.add_row(*cells, sparkline(each.rows), style="bold" if each is best else "")
    return made


def sparkline(rows: Sequence[Row]) -> str:
    """Validation scores in the order of the training, at most 20 of them: `▁▄▆█▇`."""
    scores = np.array([score for row in rows if (score := row.get(SCORE)) is not None], dtype=np.float64)
    if not len(scores):
        return ""
    shown = scores[np.linspace(0, len(scores) - 1, min(len(scores), MOST_LEVELS)).round().astype(int)]
    spread = np.ptp(shown) or 1.0
    return "".join(LEVELS[int(level)] for level in (shown - shown.min()) / spread * (len(LEVELS) - 1))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def curves(path: Path, title: str, runs: Mapping[int, Sequence[Row]], best: int) -> None:
    """Return, loss and validation score over steps, a line a seed, a star at the weights that were kept.

    What kind of picture it is follows from the name: .png, .svg, .pdf. Raises ImportError without matplotlib, OSError
    where it cannot write.
    """
    from matplotlib.figure import Figure

    shown = [name for name in PANELS if any(_points(rows, name)[1].size for rows in runs.values())]
    smoothed = any(len(rows) >= SMOOTHED_FROM for rows in runs.values())
    figure = Figure(figsize=(8.5, 1.0 + 2.2 * len(shown)), layout="constrained")
    boxes = figure.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
    for axes, name in zip(boxes, shown, strict=True):
        for number, (seed, rows) in enumerate(runs.items()):
            _curve(axes, name, *_points(rows, name), colour=f"C{number % 10}", label=f"seed {seed}")
        _finish(axes, name)
    _star(boxes[shown.index(SCORE)], runs, best)
    boxes[0].set_title(title, fontsize="medium")
    boxes[-1].xaxis.set_major_formatter("{x:,.0f}")
    boxes[-1].set_xlabel("steps (pale: segments, strong: their running mean)" if smoothed else "steps")
    boxes[0].legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize="small", frameon=False)
    figure.savefig(path, dpi=130)


def _points(rows: Sequence[Row], name: str) -> tuple[Any, Any]:
    """Steps and values of the rows that have this figure."""
    found = [(row.get("steps") or 0, value) for row in rows if (value := row.get(name)) is not None]
    return np.array([step for step, _ in found], float), np.array([value for _, value in found], float)


def _curve(axes: Axes, name: str, steps: Any, values: Any, *, colour: str, label: str) -> None:
    many = name != SCORE and len(values) >= SMOOTHED_FROM
    axes.plot(steps, values, color=colour, alpha=0.3 if many else 1.0, linewidth=0.8 if many else 1.6,
              label=None if many else label, marker="o" if name == SCORE else None, markersize=3)  # fmt: skip
    if many:
        axes.plot(steps, _running_mean(values, len(values) // 20), color=colour, linewidth=1.8, label=label)


def _running_mean(values: Any, reach: int) -> Any:
    """Of each value, and `reach` on either side of it, or as many as there are."""
    sums, at = np.concatenate([[0.0], np.cumsum(values)]), np.arange(len(values))
    first, last = np.maximum(0, at - reach), np.minimum(len(values), at + reach + 1)
    return (sums[last] - sums[first]) / (last - first)


def _finish(axes: Axes, name: str) -> None:
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.get_lines()] or [np.zeros(1)])
    if name == "loss" and values.min() > 0 and values.max() > DECADES * values.min():
        axes.set_yscale("log")
    axes.set_ylabel(PANELS[name])
    axes.grid(alpha=0.4, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _star(axes: Axes, runs: Mapping[int, Sequence[Row]], best: int) -> None:
    steps, scores = _points(runs[best], SCORE)
    at = int(np.argmax(scores))
    colour = f"C{list(runs).index(best) % 10}"
    axes.plot(steps[at], scores[at], "*", color=colour, markersize=13, markeredgecolor="white", zorder=5,
              label=f"kept: {scores[at]:.4g}")  # fmt: skip
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[-1:], labels[-1:], loc="upper left", bbox_to_anchor=(1.01, 1), fontsize="small", frameon=False)
