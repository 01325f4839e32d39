"""The default policy against Sia: ratios beside their goals, on windows that all have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.result_builders import outcome

from trimtab_lab.bench import flagship
from trimtab_lab.bench.report import BenchReport
from trimtab_lab.evaluation.scenario import Scenario, ScenarioResult

HOURS = {"rudder": 2.0, "sia": 4.0, "sized_sia": 2.5, "analytic_rudder": 2.2}
GOALS = {"sia": 0.6, "sized_sia": 0.75, "errors": 0.5}
ROW = {"workload": "cluster-v0", "cluster": "T4=8x4", "load": 1.0, "windows": 4, "goals": GOALS}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """Scenarios that were carried out, at once; with errors everybody takes an hour longer."""
    seen: list[Scenario] = []

    def work(scenarios: Sequence[Scenario]) -> Iterator[ScenarioResult]:
        seen.extend(scenarios)
        for each in reversed(scenarios):
            yield outcome(each, HOURS[each.policy] + (each.size_error > 0), worst_slowdown=HOURS[each.policy])

    monkeypatch.setattr(flagship, "processes", lambda workers: work)
    return seen


def table(folder: Path, *rows: dict[str, Any]) -> BenchReport:
    return flagship.run(
        seeds=[7], progress=lambda text: None, folder=folder, rows=rows or [ROW], errors={"model": 0.2, "size": 0.5}
    )


def cells(report: BenchReport, number: int = 0) -> dict[str, Any]:
    return dict(zip(report.columns, report.rows[number], strict=True))


@pytest.mark.usefixtures("made")
def test_a_ratio_stands_beside_its_goal_and_by_how_much_that_was_missed(tmp_path: Path) -> None:
    found = cells(table(tmp_path))
    assert found["÷ Sia"] == "0.50 (0.50–0.50), 0.60 met"
    assert found["no schedule below, ÷ Sia"] == pytest.approx(0.25)
    assert found["÷ Sia, sizes known"] == "0.80 (0.80–0.80), 0.75 missed by 6.7 %"
    assert found["with errors ÷ Sia"] == "0.60 (0.60–0.60), 0.50 missed by 20.0 %"
    assert found["÷ before training"] == "0.91 (0.91–0.91), 0.93 met"
    assert found["worst slowdown ÷ Sia"] == "0.50 (0.50–0.50), 1.00 met"
    assert found["restarts/job (Sia)"] == "1.00 (1.00)"


def test_all_meet_the_same_windows_and_with_errors_both_do(made: list[Scenario], tmp_path: Path) -> None:
    table(tmp_path)
    seen = {(each.policy, each.estimates, each.size_error, each.window) for each in made}
    assert len(seen) == len(made) == 6 * 4
    assert {policy for policy, estimates, size, _ in seen if (estimates, size) == ("0.2", 0.5)} == {"rudder", "sia"}
    assert {(each.seed, each.load, each.decider) for each in made} == {(7, 1.0, "paper")}


def test_both_are_compared_as_stages_of_the_controller_where_that_is_asked_for(
    made: list[Scenario], tmp_path: Path
) -> None:
    assert cells(table(tmp_path))["÷ Sia, both under our pipeline"] is None
    made.clear()
    found = table(tmp_path, ROW | {"pipeline": True})
    assert cells(found)["÷ Sia, both under our pipeline"] == "0.50 (0.50–0.50), 0.60 met"
    assert {(each.policy, each.decider, each.elastic) for each in made} == {
        ("rudder", "controller", 1.0),
        ("sia", "controller", 1.0),
    }
    assert any("as a stage of the live controller" in note for note in found.notes)


def test_runs_are_kept_and_more_windows_cost_those_alone(made: list[Scenario], tmp_path: Path) -> None:
    first = table(tmp_path)
    made.clear()
    assert table(tmp_path) == first
    assert made == []
    table(tmp_path, ROW | {"windows": 5})
    assert {each.window for each in made} == {4}


@pytest.mark.usefixtures("made")
def test_it_is_said_where_windows_are_few_and_intervals_wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [told] = [note for note in table(tmp_path).notes if "fewer than 30" in note]
    assert (
        told
        == "1 of the 1 rows have fewer than 30 windows. Of these, the interval of ÷ Sia is wider than ±8 % in none."
    )
    monkeypatch.setattr(flagship, "WANTED", 4)
    assert not any("fewer than" in note for note in table(tmp_path).notes)


def test_a_row_that_is_none_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown field `laod`"):
        table(tmp_path, ROW | {"laod": 1.0})
