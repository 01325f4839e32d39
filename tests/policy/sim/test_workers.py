"""A run is a function of its scenario: the same numbers in this process, in others, and on a Ray cluster."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.outcomes import outcome, scenario

from trimtab_policy.sim.evaluation import workers
from trimtab_policy.sim.evaluation.scenario import Outcome, Scenario
from trimtab_policy.sim.textfile import FileError

MEASURED = ("cpu_seconds", "decision_ms_p50", "decision_ms_p99")
"""By a clock of this machine, so never the same twice."""
SCENARIOS = [
    scenario(policy, window=window, window_jobs=40, windows=2, skip_bad=True, spans=True)
    for policy in ("fcfs", "srtf")
    for window in range(2)
]


def without_clocks(found: Iterator[Outcome]) -> dict[Scenario, Outcome]:
    return {
        each.scenario: replace(each, summary={key: value for key, value in each.summary.items() if key not in MEASURED})
        for each in found
    }


@pytest.fixture(scope="module")
def in_this_process() -> dict[Scenario, Outcome]:
    return without_clocks(workers.here(SCENARIOS))


def equal(some: dict[Scenario, Outcome], others: dict[Scenario, Outcome]) -> bool:
    """Bit for bit; unlike ==, what is not known (NaN) equals itself."""
    return {one: repr(some[one]) for one in some} == {one: repr(others[one]) for one in others}


def test_two_processes_give_the_same_bits(in_this_process: dict[Scenario, Outcome]) -> None:
    assert len(in_this_process) == len(SCENARIOS)
    assert equal(without_clocks(workers.processes(2)(SCENARIOS)), in_this_process)


def test_a_ray_cluster_gives_the_same_bits(in_this_process: dict[Scenario, Outcome]) -> None:
    pytest.importorskip("ray")
    assert equal(without_clocks(workers.ray_cluster("local")(SCENARIOS)), in_this_process)


def test_one_process_is_this_one() -> None:
    assert workers.processes(1) is workers.here


def test_outcomes_come_one_by_one_so_that_each_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Scenario] = []
    monkeypatch.setattr(workers, "run", lambda one: made.append(one) or outcome(one))
    next(iter(workers.here(SCENARIOS)))
    assert made == SCENARIOS[:1]


def test_what_is_wrong_with_a_file_is_said_by_other_processes_in_the_same_words(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("nonsense\n")
    bad = [replace(each, trace=str(trace)) for each in SCENARIOS[:2]]
    said = []
    for work in (workers.here, workers.processes(2)):
        with pytest.raises(FileError) as error:
            list(work(bad))
        said.append(str(error.value))
    assert said[0] == said[1]
    assert said[0].startswith(f"{trace}:1: header")


def test_errors_of_files_travel_between_processes() -> None:
    error = FileError("jobs.csv", 7, "gpus", "is 0: write at least 1")
    assert str(pickle.loads(pickle.dumps(error))) == "jobs.csv:7: gpus: is 0: write at least 1"


def test_without_ray_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError) as error:
        workers.ray_cluster("local")
    assert error.value.name == "ray"
