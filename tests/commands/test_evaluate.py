"""`trimtab evaluate`: policies on windows of a workload, from the command line to tables, files and pictures.

Most runs are made up at once (`tests.result_builders`); a few are simulated for real.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.result_builders import CLUSTER, FIGURES, fake, outcome
from typer.testing import CliRunner, Result

from trimtab.cli import app
from trimtab_lab.bounds import BelowBound
from trimtab_lab.evaluation import workers
from trimtab_lab.evaluation.scenario import Scenario, ScenarioResult
from trimtab_policy.types import Quota

PROMISED = {
    "avg_jct_h", "p50_jct_h", "p99_jct_h", "makespan_h", "gpu_hours_per_job", "restarts_per_job", "cpu_seconds",
}  # fmt: skip
USUAL = ("--policies", "fcfs,srtf", "--trace", "generator:philly-like", "--cluster", CLUSTER, "--windows", "4")

FITTING = (*USUAL, "--cluster", "T4=32")
"""All jobs of the generator can be drawn, and nothing has to be said about it."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Everything is written there, below `trimtab-evaluation`."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "trimtab-evaluation"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """Scenarios that were carried out, at once and without a simulation."""
    seen: list[Scenario] = []

    def work(scenarios: Sequence[Scenario]) -> Iterator[ScenarioResult]:
        for each in fake(scenarios):
            seen.append(each.scenario)
            yield each

    monkeypatch.setattr(workers, "processes", lambda count: work)
    return seen


def evaluate(*arguments: str | Path, usual: Sequence[str] = USUAL) -> Result:
    return CliRunner().invoke(app, ["evaluate", *usual, *map(str, arguments)])


def told(*arguments: str | Path, usual: Sequence[str] = USUAL) -> dict[str, Any]:
    result = evaluate(*arguments, "-o", "json", usual=usual)
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


# --- answers ---------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("made")
def test_json_is_a_policy_a_key_and_nothing_else_on_standard_output() -> None:
    answer = told("--load", "0.7")
    assert list(answer) == ["fcfs", "srtf"]
    assert answer["fcfs"].keys() >= PROMISED | set(FIGURES)
    assert answer["srtf"]["avg_jct_h"] == pytest.approx(5.0)
    assert answer["srtf"]["ratio"]["to"] == "fcfs"
    assert answer["srtf"]["bounds_h"].keys() == {"LB0", "LB1"}


@pytest.mark.usefixtures("made")
def test_several_loads_are_told_one_by_one() -> None:
    assert list(told("--load", "0.7,1.0,1.3")["srtf"]["loads"]) == ["0.7", "1", "1.3"]


@pytest.mark.usefixtures("made")
def test_people_get_a_table_a_load_the_bound_pictures_and_where_files_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.ui.output.WIDE_ENOUGH", 80)
    shown = evaluate("--load", "0.7,1.3").stdout
    assert max(map(len, shown.splitlines())) <= 80
    for word in (
        "load 0.7 · 4 windows · run times known", "load 1.3", "No schedule has an average JCT below",
        "share of jobs done", "fcfs (reference), first window at load 0.7", "srtf (lowest average JCT)", "a100-sxm4",
        "windows.csv", "gantt-srtf.png",
    ):  # fmt: skip
        assert word in shown


def test_the_reference_may_be_named(made: list[Scenario]) -> None:
    assert told("--reference", "srtf")["fcfs"]["ratio"]["to"] == "srtf"
    assert len(made) == 8


def test_options_reach_every_scenario(made: list[Scenario], tmp_path: Path) -> None:
    told(
        "--load", "0.9", "--window-jobs", "7", "--seed", "3", "--profiles", tmp_path, "--knowledge", "exact",
        "--estimates", "0.5", "--round", "60", "--mtbf-hours", "1000", "--straggler-mtbf-hours", "100",
        "--quota", "vc-0:T4=8", "--quota", "vc-1:*=12", "--skip-bad", "--no-plot",
        "--elastic", "0.25",
    )  # fmt: skip
    assert len(set(made)) == len(made) == 8
    for each in made:
        assert (each.load, each.window_jobs, each.seed, each.windows) == (0.9, 7, 3, 4)
        assert (each.profiles, each.knowledge, each.estimates) == (str(tmp_path), "exact", "0.5")
        assert (each.round_seconds, each.misfortunes.gpu_mtbf_seconds, each.skip_bad) == (60.0, 3.6e6, True)
        assert each.misfortunes.straggler_mtbf_seconds == 3.6e5
        assert each.quotas == (Quota("vc-0", "T4", 8), Quota("vc-1", "*", 12))
        assert each.elastic == 0.25
        assert not each.spans


# --- files -----------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("made")
def test_every_window_is_a_row_and_the_first_one_is_kept_job_by_job(folder: Path) -> None:
    told("--load", "0.7")
    windows = rows(folder / "windows.csv")
    assert [(each["policy"], each["window"]) for each in windows] == [
        (policy, str(n)) for n in range(4) for policy in ("fcfs", "srtf")
    ]
    assert windows[0].keys() >= PROMISED | {"load", "regime", "lb0_h"}
    assert [each["uid"] for each in rows(folder / "jobs.csv")] == 2 * ["job-0", "job-1", "job-2"]


@pytest.mark.usefixtures("made")
def test_pictures_are_drawn_for_every_policy_unless_nobody_wants_them(folder: Path) -> None:
    told("--no-plot")
    assert not list(folder.glob("*.png"))
    told()
    drawn = {f"{kind}-{policy}.png" for kind in ("gantt", "heat") for policy in ("fcfs", "srtf")}
    assert {path.name for path in folder.glob("*.png")} == drawn | {"jct.png"}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, made: list[Scenario]) -> None:
    (tmp_path / "file").write_text("")
    result = evaluate("--out", tmp_path / "file")
    assert (result.exit_code, made) == (2, [])
    assert str(tmp_path / "file") in result.stderr


# --- stopped and gone on ---------------------------------------------------------------------------------------------
def test_runs_that_were_made_are_not_made_again(made: list[Scenario]) -> None:
    first = told()
    made.clear()
    assert told() == first
    assert made == []
    told("--policies", "fcfs,srtf,las")
    assert {each.policy for each in made} == {"las"}


def test_ctrl_c_ends_with_130_says_how_to_go_on_and_the_same_command_does(
    made: list[Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(scenarios: Sequence[Scenario]) -> Iterator[ScenarioResult]:
        yield from fake(scenarios[:3])
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(workers, "processes", lambda count: interrupted)
        result = evaluate("-o", "json")
    assert (result.exit_code, result.stdout) == (130, "")
    assert "stopped; 3 of 8 runs are kept in trimtab-evaluation: the same command goes on" in result.stderr
    told()
    assert len(made) == 5


# --- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policies", "fcfs,fastest"), "unknown policy 'fastest'; registered are: best_fit"),
        (("--policies", ","), "name at least one of"),
        (("--policies", "srtf@x"), "write NAME@SEED"),
        (("--cluster", "moon-base"), "unknown cluster 'moon-base'"),
        (("--cluster", "Abacus=4"), "Abacus"),
        (("--trace", "absent.csv"), "absent.csv:1: file: cannot be read"),
        (("--load", "much"), "--load: 'much' is no number"),
        (("--load", "-1"), "--load: -1 is out of range"),
        (("--load", "nan"), "--load: nan is out of range"),
        (("--reference", "las"), "--reference: 'las' is none of --policies fcfs, srtf"),
        (("--mtbf-hours", "0"), "gpu_mtbf_seconds must be above 0"),
        (("--straggler-mtbf-hours", "0"), "straggler_mtbf_seconds must be above 0"),
        (("--estimates", "some"), "--estimates: 'some': write true, user, or a spread"),
        (("--estimates", "nan"), "--estimates: 'nan': write true"),
        (("--estimates", "user"), "--estimates user: jobs of generator:philly-like have no users"),
        (("--size-error", "0.5"), "--size-error: jobs of a trace state no steps"),
        (("--quota", "vc-0=8"), "--quota: 'vc-0=8': write QUEUE:TYPE=GPUS"),
        (("--quota", "vc-0:T5=8"), "--quota: 'vc-0:T5=8': unknown GPU type"),
        (("--quota", "vc-9:T4=8"), "--quota: no job is in queue vc-9; queues of generator:philly-like: vc-0, vc-1"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line_before_any_run(
    arguments: tuple[str, ...], said: str, made: list[Scenario]
) -> None:
    result = evaluate(*arguments, usual=FITTING)
    assert (result.exit_code, result.stdout, made) == (2, "", [])
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_what_a_generator_does_not_draw_for_a_small_cluster_is_said(made: list[Scenario]) -> None:
    assert "generator:philly-like: jobs of 16, 32 GPUs are not drawn: 8 of one type are there" in evaluate().stderr
    assert made


def test_estimates_of_users_are_asked_of_every_job_or_those_without_are_counted(
    tmp_path: Path, made: list[Scenario]
) -> None:
    trace = tmp_path / "jobs.swf"
    trace.write_text(
        "".join(f"{n} {n} -1 60 1 -1 -1 1 {told} -1 1 1 1 1 1 1 -1 -1\n" for n, told in ((1, 90), (2, -1)))
    )
    usual = ("--policies", "sjf", "--trace", str(trace), "--cluster", CLUSTER, "--no-plot", "--estimates", "user")
    refused = evaluate(usual=usual)
    assert (refused.exit_code, made) == (2, [])
    assert f"{trace}:2: estimate: job 2 has none by its user" in refused.stderr
    counted = evaluate("--skip-bad", usual=usual)
    assert counted.exit_code == 0
    assert "skipped: 1 estimate is not known" in counted.stderr


def test_a_trace_with_a_bad_row_is_refused_by_file_and_row_or_it_is_counted(
    tmp_path: Path, made: list[Scenario]
) -> None:
    trace = tmp_path / "jobs.swf"
    good = "1 0 -1 60 1 -1 -1 1 60 -1 1 1 1 1 1 1 -1 -1\n"
    trace.write_text(f"{good}{good.replace('1 0', '2 -5', 1)}")
    usual = ("--policies", "fcfs", "--trace", str(trace), "--cluster", CLUSTER, "--no-plot")
    refused = evaluate(usual=usual)
    assert (refused.exit_code, made) == (2, [])
    assert f"{trace}:2: " in refused.stderr
    counted = evaluate("--skip-bad", usual=usual)
    assert counted.exit_code == 0
    assert "skipped: 1 " in counted.stderr


def test_a_policy_that_beats_the_bound_fails_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(scenarios: Sequence[Scenario]) -> Iterator[ScenarioResult]:
        yield outcome(scenarios[0])
        raise BelowBound("srtf: mean JCT (LB3) of 7 s is below its lower bound of 9 s")

    monkeypatch.setattr(workers, "processes", lambda count: work)
    result = evaluate()
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == "trimtab: srtf: mean JCT (LB3) of 7 s is below its lower bound of 9 s"


WITHOUT = """
import sys
for name in {absent!r}:
    sys.modules[name] = None
from trimtab.cli import app
app({arguments!r})
"""


@pytest.mark.parametrize(
    ("absent", "arguments", "said"),
    [
        (["scipy", "numba", "matplotlib", "highspy", "ray"], ["version"], ""),
        (["numba", "highspy", "scipy"], ["evaluate", *USUAL], "pip install 'trimtab[sim]'"),
        (["matplotlib"], ["evaluate", *USUAL], "this needs matplotlib: pip install 'trimtab[sim]'"),
        (["ray"], ["evaluate", *USUAL, "--ray", "local"], "this needs ray: pip install 'trimtab[ray]'"),
    ],
)
def test_without_an_extra_all_else_works_and_the_error_says_what_to_install(
    absent: list[str], arguments: list[str], said: str
) -> None:
    program = WITHOUT.format(absent=absent, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == (2 if said else 0), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


# --- for real --------------------------------------------------------------------------------------------------------
REAL = (
    "--policies", "fcfs,srtf", "--trace", "generator:philly-like", "--cluster", CLUSTER, "--windows", "3",
    "--window-jobs", "40", "--load", "0.8", "--skip-bad",
)  # fmt: skip


def test_a_small_evaluation_is_simulated_told_and_drawn(folder: Path) -> None:
    answer = told(usual=REAL)
    for policy in ("fcfs", "srtf"):
        assert answer[policy]["avg_jct_h"] >= answer[policy]["bound_h"] > 0
        assert answer[policy]["windows"] == 3
    compared = answer["srtf"]["ratio"]
    assert compared["low"] <= compared["mean"] <= compared["high"]
    assert (folder / "gantt-srtf.png").stat().st_size > 10_000


def wait_until(true: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "this took too long"
        time.sleep(0.05)


def test_ctrl_c_in_a_terminal_reaches_all_processes_and_none_complains(folder: Path) -> None:
    """In a terminal the signal goes to the whole group."""
    arguments = [*REAL, "--windows", "200", "--jobs", "2", "--no-plot", "-o", "json"]
    command = [sys.executable, "-m", "trimtab", "evaluate", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        wait_until(lambda: process.poll() is not None or list(folder.glob("runs/*.msgpack")))
        os.killpg(process.pid, signal.SIGINT)
        out, said = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "the same command goes on from there" in said
    assert "Traceback" not in said
