"""Results on disk: what was made is not made again, and nothing stale is read."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.result_builders import outcome, scenario

from trimtab_lab.evaluation import sources
from trimtab_lab.evaluation.store import Store
from trimtab_policy.sim.failures import FailureModel

ROOT = Path(__file__).parents[3]
RUN = ("trimtab_lab.evaluation.run_scenario",)


def test_what_was_put_is_got_down_to_jobs_and_spans(tmp_path: Path) -> None:
    made = outcome(scenario(spans=True), bounded_slowdown=1 / 3)
    Store(tmp_path).put(made)
    assert Store(tmp_path).get(made.scenario) == made


def test_endless_times_between_failures_and_unknown_figures_survive(tmp_path: Path) -> None:
    one = scenario(misfortunes=FailureModel(gpu_mtbf_seconds=math.inf))
    Store(tmp_path).put(outcome(one, deadline_hits=math.nan))
    found = Store(tmp_path).get(one)
    assert found
    assert found.scenario == one
    assert math.isnan(found.summary["deadline_hits"])


CHANGES = st.sampled_from(
    [{"policy": "las"}, {"load": 0.8}, {"load": None}, {"window": 1}, {"seed": 1}, {"knowledge": "exact"},
     {"spans": True}, {"skip_bad": True}, {"round_seconds": 60.0}, {"misfortunes": FailureModel(repair_seconds=60.0)}]
)  # fmt: skip


@given(CHANGES)
def test_whatever_differs_is_another_run(tmp_path_factory: pytest.TempPathFactory, changes: dict[str, object]) -> None:
    kept = Store(tmp_path_factory.mktemp("store"))
    kept.put(outcome(scenario()))
    assert kept.get(replace(scenario(), **changes)) is None


def test_a_trace_that_was_changed_is_another_trace(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("first")
    one, kept = scenario(trace=str(trace)), Store(tmp_path)
    kept.put(outcome(one))
    assert kept.get(one)
    trace.write_text("second")
    assert kept.get(one) is None


def test_a_folder_of_profiles_counts_with_all_that_is_in_it(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles" / "bert"
    profiles.mkdir(parents=True)
    (profiles / "t4.csv").write_text("1")
    one, kept = scenario(profiles=str(profiles.parent)), Store(tmp_path)
    kept.put(outcome(one))
    (profiles / "a100.csv").write_text("1")
    assert kept.get(one) is None


def test_a_table_that_is_read_beside_the_trace_counts_too(tmp_path: Path) -> None:
    jobs, tasks = (tmp_path / f"pai_{what}_table.csv" for what in ("job", "task"))
    for table in (jobs, tasks):
        table.write_text("first")
    one, kept = scenario(trace=str(jobs)), Store(tmp_path)
    kept.put(outcome(one))
    assert kept.get(one)
    tasks.write_text("second")
    assert kept.get(one) is None


def test_runs_of_another_solver_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path).put(outcome(scenario()))
    monkeypatch.setattr(sources, "version", lambda name: "next" if name == "highspy" else "1")
    assert Store(tmp_path).get(scenario()) is None


def test_runs_of_older_code_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path).put(outcome(scenario()))
    monkeypatch.setattr(sources, "of_run", lambda policy: b"newer")
    assert Store(tmp_path).get(scenario()) is None


@pytest.mark.parametrize("left", [0, 1, -1])
def test_a_file_that_was_cut_short_counts_as_none_and_goes_away(tmp_path: Path, left: int) -> None:
    kept = Store(tmp_path)
    kept.put(outcome(scenario()))
    [file] = (tmp_path / "runs").iterdir()
    file.write_bytes(file.read_bytes()[:left])
    assert kept.get(scenario()) is None
    assert not file.exists()


def test_a_run_that_is_put_twice_is_one_file_and_nothing_half_written_stays(tmp_path: Path) -> None:
    for hours in (1.0, 2.0):
        Store(tmp_path).put(outcome(scenario(), hours))
    assert [path.suffix for path in (tmp_path / "runs").iterdir()] == [".msgpack"]
    found = Store(tmp_path).get(scenario())
    assert found
    assert found.summary["avg_jct_h"] == 2.0


def test_what_takes_part_in_a_run_is_what_is_imported_for_it() -> None:
    """Also from within functions, as workloads of environments are, and by way of the policy."""
    files = {path.name for path in sources.imported(*RUN, "trimtab_policy.heuristics.sia")}
    assert files >= {"run_scenario.py", "engine.py", "cluster_v0.py", "sia.py", "milp.py", "types.py", "__init__.py"}
    assert files.isdisjoint({"gavel.py", "dqn_cnn.py", "train.py"})


def test_whatever_a_run_imports_is_part_of_it() -> None:
    """The interpreter's own account of what it loaded for a run, against ours."""
    script = (
        "import sys; from tests.result_builders import scenario\n"
        "from trimtab_lab.evaluation.run_scenario import run_scenario\n"
        "run_scenario(scenario('gavel', window_jobs=5, trace='generator:cluster-v0'))\n"
        "for name, module in sys.modules.items():\n"
        "    if name.startswith('trimtab_policy') and module.__file__: print(module.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {Path(line) for line in done.stdout.split()}
    assert loaded <= sources.imported(*RUN, "trimtab_policy.heuristics.gavel")
    assert len(loaded) > 30
