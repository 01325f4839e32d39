"""`trimtab replay`: what other policies would have done, from the command line to tables and pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.builders import NOW, job, node, placement, snapshot
from typer.testing import CliRunner, Result

from trimtab.cli import app
from trimtab_policy.types import Snapshot

POLICIES = ("--policies", "fcfs,sjf+paper")


@pytest.fixture
def now() -> Snapshot:
    """One job holds the only node; a long, a short and an impossible one wait."""
    running = job("running", gpus=(8, 8), steps=20_000, created=NOW - 3600)
    running = replace(running, placement=placement(running.uid, {"a100-0": 8}), started=NOW - 60)
    return snapshot(
        [node("a100-0", free=0)],
        [
            running,
            job("long", gpus=(8, 8), steps=40_000, created=NOW - 50),
            job("short", gpus=(8, 8), steps=1_000, created=NOW - 40),
            job("giant", gpus=(8, 8), model="llama3.1-405b"),
        ],
    )


@pytest.fixture
def dump(now: Snapshot, tmp_path: Path) -> Path:
    file = tmp_path / "now.json"
    file.write_bytes(msgspec.json.encode(now))
    return file


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three jobs of eight GPUs that come within a second: an hour, a minute, and half an hour."""
    file = tmp_path / "jobs.swf"
    lines = (
        f"{n} {n} -1 {seconds} 8 -1 -1 8 {seconds} -1 1 1 1 1 1 1 -1 -1" for n, seconds in enumerate((3600, 60, 1800))
    )
    file.write_text("\n".join(lines) + "\n")
    return file


def replay(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


def told(*arguments: str | Path) -> dict[str, Any]:
    result = replay(*arguments, "-o", "json")
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


# --- snapshots -------------------------------------------------------------------------------------------------------
def test_every_job_is_told_under_every_policy(dump: Path) -> None:
    answer = told(dump, *POLICIES)
    fcfs, sjf = (answer["policies"][policy]["jobs"] for policy in ("fcfs", "sjf+paper"))
    assert list(fcfs) == list(sjf) == ["running", "long", "short"]
    assert fcfs["running"] == sjf["running"]
    assert fcfs["running"]["jct"] == pytest.approx(fcfs["running"]["done"] + 3600)
    assert fcfs["long"]["done"] < fcfs["short"]["done"]
    assert sjf["short"]["done"] < sjf["long"]["done"]
    assert fcfs["long"]["held"] == "8×A100"


def test_who_decides_how_is_told(dump: Path) -> None:
    answer = told(dump, *POLICIES)["policies"]
    assert [answer[policy]["decided"] for policy in ("fcfs", "sjf+paper")] == ["controller", "paper"]
    shown = " ".join(replay(dump, *POLICIES).stdout.split())
    assert "Decisions: fcfs as the controller does, with its default settings; sjf+paper alone" in shown


def test_figures_are_those_of_the_jobs(dump: Path) -> None:
    found = told(dump, *POLICIES)["policies"]["sjf+paper"]
    times = [each["jct"] / 3600 for each in found["jobs"].values()]
    assert found["avg_jct_h"] == pytest.approx(sum(times) / 3)
    assert found["last_h"] == pytest.approx(max(each["done"] for each in found["jobs"].values()) / 3600)
    assert found["restarts_per_job"] == 0


def test_jobs_that_nobody_can_help_are_set_aside(dump: Path) -> None:
    assert list(told(dump, *POLICIES)["set_aside"]) == ["default/giant"]
    shown = replay(dump, *POLICIES).stdout
    assert "SET ASIDE" in shown
    assert "needs at least" in shown


def test_with_preempt_policies_may_stop_what_runs(dump: Path) -> None:
    kept, stopped = (told(dump, "--policies", "srtf", *more) for more in ((), ("--preempt",)))
    assert kept["policies"]["srtf"]["jobs"]["running"]["restarts"] == 0
    assert stopped["policies"]["srtf"]["jobs"]["running"]["restarts"] == 1


def test_people_see_jobs_side_by_side_totals_the_winner_and_who_held_what(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.ui.output.WIDE_ENOUGH", 80)
    shown = replay(dump, *POLICIES).stdout
    assert max(map(len, shown.splitlines())) <= 80
    for word in ("running  runs", "short    waits", "AVG JCT", "sjf+paper has the lowest average JCT", "a100-0 │AAA"):
        assert word in shown


def test_jobs_of_several_namespaces_carry_them(now: Snapshot, tmp_path: Path) -> None:
    file = tmp_path / "now.json"
    jobs = (*now.jobs[:2], replace(now.jobs[2], namespace="team-a"))
    file.write_bytes(msgspec.json.encode(replace(now, jobs=jobs)))
    assert list(told(file, *POLICIES)["policies"]["fcfs"]["jobs"]) == [
        "default/running",
        "default/long",
        "team-a/short",
    ]


def test_yaml_is_read_as_well(now: Snapshot, dump: Path) -> None:
    file = dump.with_suffix(".yaml")
    file.write_bytes(msgspec.yaml.encode(now))
    assert told(file, *POLICIES) == told(dump, *POLICIES)


def test_pictures_go_where_they_are_wanted(dump: Path, tmp_path: Path) -> None:
    told(dump, *POLICIES, "--plot", tmp_path / "pictures")
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {
        "gantt-fcfs.png", "gantt-sjf+paper.png", "heat-fcfs.png", "heat-sjf+paper.png",
    }  # fmt: skip


# --- traces ----------------------------------------------------------------------------------------------------------
def test_a_trace_begins_on_an_empty_cluster_and_counts_from_submission(trace: Path) -> None:
    answer = told(trace, "--cluster", "T4=8", *POLICIES)
    fcfs, sjf = (list(answer["policies"][policy]["jobs"].values()) for policy in ("fcfs", "sjf+paper"))
    assert [each["done"] for each in fcfs] == pytest.approx([3600, 3659, 5458])
    assert [each["done"] for each in sjf] == pytest.approx([3600, 3659, 5458])
    assert [each["jct"] for each in fcfs] == [each["done"] for each in fcfs]


def test_what_a_preemptive_policy_gains_is_told(trace: Path) -> None:
    shown = replay(trace, "--cluster", "T4=8", "--policies", "fcfs,srtf").stdout
    assert "srtf has the lowest average JCT" in shown
    assert "SUBMITTED" in shown


# --- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("now.json", "--policies", "fastest"), "unknown policy 'fastest'"),
        (("absent.json", *POLICIES), "cannot read snapshot"),
        (("jobs.swf", *POLICIES), "a trace needs --cluster"),
        (("jobs.swf", *POLICIES, "--cluster", "moon-base"), "unknown cluster"),
        (("jobs.swf", *POLICIES, "--cluster", "T4=4"), "jobs.swf:1: gpus: job"),
        (("other.json", *POLICIES), "other.json is no snapshot"),
    ],
)
@pytest.mark.usefixtures("dump", "trace")
def test_what_cannot_be_replayed_is_refused_in_one_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.json").write_text("{}")
    result = replay(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_of_fake_pods_that_run_faster_it_says_so_and_tells_the_times_of_the_cluster(
    now: Snapshot, tmp_path: Path
) -> None:
    file = tmp_path / "now.json"
    file.write_bytes(msgspec.json.encode(replace(now, speedup=60.0)))
    fates = told(file, *POLICIES)["policies"]["fcfs"]["jobs"]
    assert fates["running"]["jct"] == pytest.approx(fates["running"]["done"] + 60 * 3600)
    assert "run 60 times as fast" in replay(file, *POLICIES).stdout
    file.write_bytes(msgspec.json.encode(now))
    assert "times as fast" not in replay(file, *POLICIES).stdout


def test_a_snapshot_of_nobody_has_nothing_to_replay(now: Snapshot, tmp_path: Path) -> None:
    file = tmp_path / "now.json"
    file.write_bytes(msgspec.json.encode(replace(now, jobs=())))
    result = replay(file, *POLICIES)
    assert result.exit_code == 2
    assert "no job that a policy could run" in result.stderr
