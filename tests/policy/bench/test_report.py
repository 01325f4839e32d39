"""Reports: the same table as Markdown, in the terminal and as JSON."""

from __future__ import annotations

import math
from io import StringIO

import msgspec
import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from trimtab_lab.bench.report import BenchReport, Cell, interval, markdown, numeric, written
from trimtab_lab.ui import bench as ui

REPORT = BenchReport(
    title="Agents on their world",
    columns=("agent", "return", "accuracy (95 %)", "why"),
    rows=(
        ("q_learning", 0.41234, interval(0.841, 0.79, 0.902), "a|b"),
        ("sarsa", math.nan, "–", "two\nlines"),
        ("fixed", 12345.6, interval(-1.2, -1.4, 0.1), ""),
    ),
    notes=("Twenty seeds each.",),
)


def test_markdown_is_a_table_that_github_draws(snapshot: SnapshotAssertion) -> None:
    assert markdown(REPORT) == snapshot


def test_the_terminal_shows_the_same(snapshot: SnapshotAssertion) -> None:
    shown = StringIO()
    Console(width=100, file=shown).print(ui.report(REPORT))
    assert shown.getvalue() == snapshot


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (0.41234, "0.412"), (7.9, "7.90"), (95.84, "95.8"), (1234.4, "1234"), (-0.5, "-0.500"), (3, "3"), ("x", "x"),
        (0.00002, "2e-05"), (0.0, "0"), (None, "–"), (math.nan, "–"), (math.inf, "inf"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits(cell: Cell, text: str) -> None:
    assert written(cell) == text


def test_columns_of_numbers_stand_on_the_right() -> None:
    assert numeric(REPORT) == [False, True, True, False]


def test_what_is_not_known_stays_unknown_in_json() -> None:
    again = msgspec.json.decode(msgspec.json.encode(REPORT), type=BenchReport)
    assert again.rows[1][1] is None
    assert markdown(again) == markdown(REPORT)


def test_a_row_has_a_cell_in_every_column() -> None:
    with pytest.raises(ValueError, match=r"rows\[1\] of 'T' has 1 cells for 2 columns"):
        BenchReport("T", ("a", "b"), (("x", 1.0), ("y",)))
