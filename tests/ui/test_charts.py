"""Pictures of errors and of what a sum consists of."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from trimtab.ui import charts
from trimtab_policy.perf import accuracy


def shown(renderable: RenderableType, width: int = 80) -> list[str]:
    out = StringIO()
    Console(file=out, width=width).print(renderable)
    return out.getvalue().splitlines()


def points(lines: list[str]) -> list[tuple[int, int]]:
    """Line and column of every point."""
    return [(y, x) for y, line in enumerate(lines) for x, sign in enumerate(line) if "\u2801" <= sign <= "\u28ff"]


def chart(measured: list[float], predicted: list[float], **size: int) -> list[str]:
    return shown(charts.ErrorChart(np.array(measured), np.array(predicted)), **size)


def test_a_right_prediction_lies_on_the_line_of_equality() -> None:
    lines = chart([1.0, 10.0], [1.0, 10.0])
    assert {lines[y][:7] for y, _ in points(lines)} == {"    1 ┤"}


def test_longer_times_are_further_right_and_longer_predictions_further_up() -> None:
    lines = chart([1.0, 100.0], [1.3, 80.0])
    (high, left), (low, right) = points(lines)
    assert (high < low, left < right) == (True, True)


def test_the_axis_says_what_the_ends_mean() -> None:
    assert chart([0.05, 90.0], [0.05, 90.0])[-1].split() == ["└50", "ms", "measured", "step", "time", "1m30s"]


def test_where_there_is_no_room_the_axis_says_less() -> None:
    assert chart([9e6, 9e7], [9e6, 9e7], width=40)[-1].split() == ["└104d4h", "measured", "1041d16h"]
    assert chart([9e11, 9e14], [9e11, 9e14], width=40)[-1].split() == ["└10416666d16h", "10416666666d16h"]


def test_colours_say_how_far_a_point_is_off() -> None:
    drawn = charts.ErrorChart(np.array([1.0, 10.0, 100.0]), np.array([1.05, 11.5, 150.0]))
    dots = [segment for segment in Console(width=80).render(drawn) if points([segment.text])]
    assert {segment.style.color.name for segment in dots if segment.style and segment.style.color} == {
        "green",
        "yellow",
        "red",
    }


TIMES = st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=30)


@st.composite
def errors(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Measured and predicted times."""
    measured = draw(TIMES)
    return measured, draw(st.lists(st.floats(1e-6, 1e6), min_size=len(measured), max_size=len(measured)))


@given(errors(), st.integers(40, 200))
@example(([0.99999], [1.0]), 40)
@example(([8.7e6, 8.7e8], [1.0, 1.0]), 40)
def test_any_errors_fit_the_picture(times: tuple[list[float], list[float]], width: int) -> None:
    lines = chart(*times, width=width)
    assert len(lines) == 17
    assert max(map(len, lines)) <= width
    assert points(lines)


def test_bars_begin_where_the_one_before_ended_and_nothing_is_left_out_but_zeros() -> None:
    lines = shown(charts.bars({"weights": 1.0, "nothing": 0.0, "layer_communication": 3.0}, lambda part: f"{part:g} s"))
    assert [line.split()[0] for line in lines] == ["weights", "layer"]
    assert lines[0].rstrip().endswith("1 s  25%")
    assert lines[0].rindex("█") < lines[1].index("█")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_scatter_plot_is_written_in_the_format_of_its_name(tmp_path: Path, suffix: str) -> None:
    measured, predicted = np.array([1.0, 2.0, 40.0]), np.array([1.1, 2.5, 41.0])
    sources = np.array(["a", "a", accuracy.APART])
    said = SimpleNamespace(seconds=predicted, low=predicted * 0.9, high=predicted * 1.1)
    found = accuracy.assess(sources, sources, sources, measured, said)
    file = tmp_path / f"runs.{suffix}"
    charts.plot(file, sources.tolist(), measured, predicted, found)
    begins = {"png": b"\x89PNG", "svg": b"<?xml"}
    assert file.read_bytes().startswith(begins[suffix])
