"""The table of seed 001's world: who is in it, that stopped trainings go on, and that nobody gains by giving up."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab_lab.agents import sac_tasks
from trimtab_lab.bench import rlalloc
from trimtab_lab.bench.report import BenchReport

SHORT = {
    "total_episodes": 2,
    "episodes_per_segment": 1,
    "environments": 1,
    "hidden": 8,
    "warm_up_steps": 10_000,  # no update at all
    "validation_episodes": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rlalloc")


@pytest.fixture(scope="module")
def told() -> list[str]:
    return []


@pytest.fixture(scope="module")
def report(folder: Path, told: list[str]) -> BenchReport:
    return rlalloc.run(seeds=[0], progress=told.append, folder=folder, windows=3, training=SHORT)


def test_learners_with_and_without_their_parts_experts_and_chance_are_compared(report: BenchReport) -> None:
    assert [row[0] for row in report.rows] == [*rlalloc.VARIANTS, *rlalloc.RULES, "random"]
    assert any("no numbers" in note for note in report.notes)


def test_the_shortest_first_beats_the_oldest_first_in_every_column_that_says_so(report: BenchReport) -> None:
    slowdown = {row[0]: row[1] for row in report.rows}
    assert slowdown["SJF"] < slowdown["FCFS"]
    ratio = {row[0]: row[-2] for row in report.rows}
    assert ratio["SJF"] == "1"
    assert float(str(ratio["FCFS"]).split()[0]) > 1


def test_a_training_that_is_done_is_not_done_again(report: BenchReport, folder: Path, told: list[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/figures.csv")}
    again = rlalloc.run(seeds=[0], progress=told.append, folder=folder, windows=3, training=SHORT)
    assert again == report
    assert before == {path: path.stat().st_mtime_ns for path in folder.glob("*/figures.csv")}
    assert len(before) == len(rlalloc.VARIANTS)


def test_jobs_that_are_left_undone_are_charged_for() -> None:
    half, none = (
        {"jobs": 60.0, "done": done, "avg_slowdown": slow} for done, slow in ((30.0, 2.0), (0.0, float("inf")))
    )
    assert sac_tasks.charged(half) == 4.0
    assert 1e5 < sac_tasks.charged(none) < float("inf")
