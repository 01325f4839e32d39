"""Learning curves and progress: any training can be drawn, and nothing that was not measured is."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress

from trimtab_lab.agents.checkpoint import Row
from trimtab_lab.agents.train import TrainingStep
from trimtab_lab.ui import training


def rows(count: int, **changes: Any) -> list[Row]:
    """As a training might give them; validated every fourth time."""
    return [
        {
            "segment": n + 1,
            "seconds": 2.0 * n,
            "steps": 100 * (n + 1),
            "return": None if n == 0 else n / 3,
            "loss": 100.0 / (n + 1) ** 2,
            "validation_score": float(n) if n % 4 == 3 or n == count - 1 else None,
        }
        | changes
        for n in range(count)
    ]


@pytest.fixture
def as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters of SVG files as text and not as outlines."""
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")


def drawn(folder: Path, runs: dict[int, list[Row]], best: int = 0) -> str:
    path = folder / "curves.svg"
    training.curves(path, "stub learns point", runs, best)
    return path.read_text()


@pytest.mark.usefixtures("as_text")
@pytest.mark.parametrize("count", [1, 5, 100])
def test_every_seed_has_a_curve_in_every_panel_and_a_star_stands_at_what_was_kept(tmp_path: Path, count: int) -> None:
    picture = drawn(tmp_path, {0: rows(count), 7: rows(count, loss=2.0)}, best=7)
    for text in ("mean return of episodes", "loss", "validation score", "seed 0", "seed 7", f"kept: {count - 1}"):
        assert (text in picture) == (text != "mean return of episodes" or count > 1)
    assert ("their running mean" in picture) == (count >= training.SMOOTHED_FROM)


@pytest.mark.usefixtures("as_text")
def test_what_was_never_measured_has_no_panel(tmp_path: Path) -> None:
    picture = drawn(tmp_path, {0: rows(9, loss=None)})
    assert "mean return of episodes" in picture
    assert "loss" not in picture


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), reach=st.integers(0, 60))
def test_a_running_mean_is_that_of_what_is_within_reach(values: list[float], reach: int) -> None:
    expected = [np.mean(values[max(0, n - reach) : n + reach + 1]) for n in range(len(values))]
    assert training._running_mean(np.array(values), reach) == pytest.approx(np.array(expected), abs=1e-6)


@given(scores=st.lists(st.floats(-1e9, 1e9), max_size=60))
def test_a_line_of_scores_is_short_and_spans_from_lowest_to_highest(scores: list[float]) -> None:
    line = training.sparkline([{"validation_score": score} for score in scores])
    assert len(line) == min(len(scores), training.MOST_LEVELS)
    if 1 < len(scores) <= training.MOST_LEVELS and min(scores) < max(scores):
        assert line[int(np.argmin(scores))] == training.LEVELS[0]
        assert line[int(np.argmax(scores))] == training.LEVELS[-1]


def test_bars_show_return_loss_and_best_and_start_when_their_seed_does() -> None:
    out = io.StringIO()
    with Progress(console=Console(file=out, width=80)) as progress:
        bars = training.Bars(progress, [0, 1])
        bars(TrainingStep(0, 3, 8, {"return": -1.5, "loss": 0.25}, -2.0))
        first, second = progress.tasks
        assert (first.completed, first.total, first.fields["figures"]) == (3, 8, "return -1.5  loss 0.25  best -2")
        assert (first.started, second.started) == (True, False)


def test_a_step_without_figures_tells_none() -> None:
    assert training.figures(TrainingStep(0, 0, 8, {}, None)) == ""
    assert training.figures(TrainingStep(0, 1, 8, {"return": None, "loss": 1.0}, None)) == "loss 1"
