"""`trimtab bench`: entries by name, results that are kept, a page that is written, and Ctrl-C in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from trimtab.cli import app
from trimtab_lab import bench
from trimtab_lab.bench import BenchEntry, Progress
from trimtab_lab.bench.report import BenchReport

ENTRIES = {
    "first": BenchEntry("One number.", "cluster", (0, 1), quick=bench.Quick((0,))),
    "second": BenchEntry("Another one.", "cluster", (5,)),
}


@pytest.fixture(autouse=True)
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Seeds of what was carried out; results land in the folder of the test."""
    seen: list[tuple[int, ...]] = []

    def run(entry: BenchEntry, progress: Progress, folder: Path) -> BenchReport:
        progress("half of it")
        seen.append(entry.seeds)
        return BenchReport(f"Seeds {len(entry.seeds)}", ("policy", "hours"), (("fcfs", 1.5), ("sjf", float("nan"))))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "entries", lambda: ENTRIES)
    monkeypatch.setattr(bench, "check", lambda name, entry: None)
    monkeypatch.setattr(bench, "make_entry", run)
    return seen


def run_bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


def told(*arguments: str) -> dict[str, Any]:
    result = run_bench(*arguments, "-o", "json")
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_every_entry_is_made_once(made: list[tuple[int, ...]]) -> None:
    answer = told()
    assert made == [(0, 1), (5,)]
    assert answer["first"]["report"]["rows"] == [["fcfs", 1.5], ["sjf", None]]
    assert answer["second"]["entry"]["seeds"] == [5]
    assert told() == answer
    assert made == [(0, 1), (5,)]


def test_one_entry_can_be_made_by_itself(made: list[tuple[int, ...]]) -> None:
    assert list(told("--only", "second")) == ["second"]
    assert made == [(5,)]


def test_quick_results_are_kept_apart(made: list[tuple[int, ...]]) -> None:
    told("--quick", "--only", "first")
    told("--only", "first")
    assert made == [(0,), (0, 1)]


def test_the_list_makes_nothing(made: list[tuple[int, ...]]) -> None:
    result = run_bench("--list")
    assert "first" in result.stdout
    assert "Another one." in result.stdout
    assert made == []


def test_progress_is_on_standard_error() -> None:
    result = run_bench("--only", "first")
    assert "first (1/1): begun" in result.stderr
    assert "Seeds 2" in result.stdout
    assert "begun" not in result.stdout


def test_the_page_is_written_from_results(tmp_path: Path) -> None:
    assert run_bench("--only", "second", "--write", "RESULTS.md").exit_code == 0
    assert "## second" in (tmp_path / "RESULTS.md").read_text()
    assert (tmp_path / "results" / "second.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "third"), "--only: there is no entry 'third'; there are: first, second"),
        (("--quick", "--write", "RESULTS.md"), "--write: numbers of --quick are not to be published"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = run_bench(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_interrupted_bench_goes_on_where_it_was(
    made: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(entry: BenchEntry, progress: Progress, folder: Path) -> BenchReport:
        if entry.seeds == (5,):
            raise KeyboardInterrupt
        return BenchReport("One", ("a",), ((1.0,),))

    with monkeypatch.context() as patch:
        patch.setattr(bench, "make_entry", interrupted)
        result = run_bench()
    assert result.exit_code == 130
    assert "1 of 2 entries are kept" in result.stderr
    assert list(told()) == ["first", "second"]
    assert made == [(5,)]


def test_an_entry_that_fails_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(entry: BenchEntry, progress: Progress, folder: Path) -> BenchReport:
        raise ValueError("weights are not there; train them")

    monkeypatch.setattr(bench, "make_entry", fails)
    result = run_bench()
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "trimtab: weights are not there; train them"
