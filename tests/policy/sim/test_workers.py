"""A run is a function of its scenario: the same numbers in one process, in several, and on a Ray cluster."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace
from tests.result_builders import outcome, scenario

from trimtab_lab.evaluation import workers
from trimtab_lab.evaluation.scenario import Scenario, ScenarioResult
from trimtab_lab.processes import STARTS, connected
from trimtab_lab.workloads.textfile import FileError

MEASURED = ("cpu_seconds", "decision_ms_p50", "decision_ms_p99")
"""By a clock of this machine, so never the same twice."""
SCENARIOS = [
    scenario(policy, window=window, window_jobs=40, windows=2, skip_bad=True, spans=True)
    for policy in ("fcfs", "srtf")
    for window in range(2)
]


def without_clocks(found: Iterator[ScenarioResult]) -> dict[Scenario, ScenarioResult]:
    return {
        each.scenario: replace(each, summary={key: value for key, value in each.summary.items() if key not in MEASURED})
        for each in found
    }


@pytest.fixture(scope="module")
def in_one_process() -> dict[Scenario, ScenarioResult]:
    return without_clocks(workers.processes(1)(SCENARIOS))


def equal(some: dict[Scenario, ScenarioResult], others: dict[Scenario, ScenarioResult]) -> bool:
    """Bit for bit; unlike ==, what is not known (NaN) equals itself."""
    return {one: repr(some[one]) for one in some} == {one: repr(others[one]) for one in others}


def test_two_processes_give_the_same_bits(in_one_process: dict[Scenario, ScenarioResult]) -> None:
    assert len(in_one_process) == len(SCENARIOS)
    assert equal(without_clocks(workers.processes(2)(SCENARIOS)), in_one_process)


@pytest.mark.long
def test_a_ray_cluster_gives_the_same_bits(in_one_process: dict[Scenario, ScenarioResult]) -> None:
    pytest.importorskip("ray")
    assert equal(without_clocks(workers.ray_cluster("local")(SCENARIOS)), in_one_process)


def threads(one: Scenario) -> ScenarioResult:
    """Instead of a run: with how many threads it would compute."""
    return outcome(one, blas=float(os.environ["OPENBLAS_NUM_THREADS"]))


@pytest.mark.parametrize("count", [1, 2])
def test_runs_compute_with_one_thread_whatever_is_set_here_and_that_stays(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    monkeypatch.setattr(workers, "run_scenario", threads)
    assert [each.summary["blas"] for each in workers.processes(count)(SCENARIOS[:2])] == [1.0, 1.0]
    assert os.environ["OPENBLAS_NUM_THREADS"] == "7"


def test_what_is_wrong_with_a_file_is_said_by_other_processes_in_the_same_words(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("nonsense\n")
    bad = [replace(each, trace=str(trace)) for each in SCENARIOS[:2]]
    said = []
    for work in (workers.processes(1), workers.processes(2)):
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


class BusyRay(ModuleType):
    """Ray on a machine on which its processes do not come up the first times."""

    def __init__(self, late: int) -> None:
        super().__init__("ray")
        self.late, self.calls = late, list[str]()

    def init(self, **options: Any) -> None:
        self.calls.append("init")
        if self.calls.count("init") <= self.late:
            raise Exception("the current node timed out during startup")

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def test_a_cluster_of_this_machine_is_begun_again_where_it_was_late() -> None:
    ray = BusyRay(late=STARTS - 1)
    with connected(ray, "local"):
        ray.calls.append("work")
    assert ray.calls == ["init", "shutdown"] * (STARTS - 1) + ["init", "work", "shutdown"]


@pytest.mark.parametrize(("address", "starts"), [("local", STARTS), ("ray://elsewhere:10001", 1)])
def test_what_goes_wrong_each_time_is_told(address: str, starts: int) -> None:
    ray = BusyRay(late=STARTS)
    with pytest.raises(Exception, match="timed out during startup"), connected(ray, address):
        pytest.fail("there is no cluster")
    assert ray.calls == ["init", "shutdown"] * starts
