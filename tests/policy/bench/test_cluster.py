"""The comparison on Cluster-v0: paired windows, ratios to every reference and to the bound, p-values of one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.result_builders import fake

from trimtab_lab.bench import cluster
from trimtab_lab.bench.report import BenchReport
from trimtab_lab.evaluation.scenario import Scenario


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """Scenarios that were carried out, at once: fcfs takes 4 h, srtf 2 h, the bound is 1 h
    (`tests.result_builders`)."""
    seen: list[Scenario] = []

    def work(scenarios: Sequence[Scenario]) -> Any:
        seen.extend(scenarios)
        return fake(scenarios)

    monkeypatch.setattr(cluster, "processes", lambda workers: work)
    return seen


def table(folder: Path, **changes: Any) -> BenchReport:
    arguments: dict[str, Any] = {
        "seeds": [7], "progress": lambda text: None, "folder": folder, "cluster": "T4=8x4", "loads": [0.7, 1.3],
        "windows": 6, "window_jobs": 20, "agents": [], "baselines": ["fcfs", "srtf"], "references": ["srtf"],
    }  # fmt: skip
    return cluster.run(**(arguments | changes))


def column(report: BenchReport, name: str) -> list[Any]:
    return [row[report.columns.index(name)] for row in report.rows]


@pytest.mark.usefixtures("made_up")
def test_ratios_are_those_within_windows(tmp_path: Path) -> None:
    found = table(tmp_path)
    assert column(found, "policy") == ["srtf°", "fcfs"] * 2  # the best one first at each load; ° it uses run times
    assert column(found, "load") == ["0.7"] * 2 + ["1.3"] * 2
    assert column(found, "÷ srtf") == ["1", "2.00 (2.00–2.00)"] * 2
    assert column(found, "÷ bound") == ["2.00 (2.00–2.00)", "4.00 (4.00–4.00)"] * 2


@pytest.mark.usefixtures("made_up")
def test_p_values_are_those_of_one_family(tmp_path: Path) -> None:
    """Six windows that all agree have p = 2 / 64, alone significant; of two such tests Holm makes 1 / 16."""
    assert column(table(tmp_path, loads=[0.7]), "÷ srtf") == ["1", "2.00 (2.00–2.00)*"]
    assert not any("*" in cell for cell in column(table(tmp_path), "÷ srtf"))


def test_a_policy_that_takes_long_is_compared_on_the_windows_that_it_has(
    made_up: list[Scenario], tmp_path: Path
) -> None:
    found = table(tmp_path, loads=[0.7], fewer={"srtf": 4})
    assert [each.window for each in made_up if each.policy == "srtf"] == [0, 1, 2, 3]
    assert column(found, "windows") == ["4", "6"]
    assert column(found, "JCT, h")[0] == "–"  # a mean over other windows does not compare
    assert any("Over 4 windows no p can be small enough" in note for note in found.notes)
    assert any("srtf on the first 4" in note for note in found.notes)


def test_what_was_made_before_is_not_made_again(made_up: list[Scenario], tmp_path: Path) -> None:
    first = table(tmp_path)
    made_up.clear()
    assert table(tmp_path) == first
    assert made_up == []


def test_a_reference_that_is_not_compared_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="references and fewer: sia: not among"):
        table(tmp_path, references=["sia"])


def test_simulated_for_real_the_bound_is_below_everybody(tmp_path: Path) -> None:
    found = table(
        tmp_path, cluster="T4=8x4,A100-SXM4-40GB=8", loads=[1.0], windows=3, window_jobs=10, references=["fcfs"],
        workers=1,
    )  # fmt: skip
    assert all(float(str(cell).split(" ")[0]) >= 1 for cell in column(found, "÷ bound"))
    assert {row[1]: row[5] == 0 for row in found.rows}["fcfs"]  # restarts: it does not preempt
