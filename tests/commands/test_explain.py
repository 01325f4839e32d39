"""`trimtab explain`: one page for a job in every state of its life, for people and for programs."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.builders import (
    A100,
    H100,
    MOMENT,
    NOW,
    job,
    job_object,
    leaving,
    node,
    placement,
    plan_of,
    running,
    snapshot,
)
from typer.testing import CliRunner, Result

from trimtab import names
from trimtab.api.history import FailureCause, FailureRecord, StopRecord
from trimtab.api.status import JobStatus, StopRequest
from trimtab.apply import change as small
from trimtab.apply import transitions
from trimtab.cli import app
from trimtab.observe.jobs import JobFacts, facts
from trimtab.ui import explain as ui
from trimtab_policy.types import Alternative, Eta, StopCause

META = job_object().metadata


def lines(rows: ui.Rows) -> list[str]:
    return [f"{name}: {text}" for name, text in rows]


def planned(epoch: int = 3) -> JobStatus:
    return transitions.planned(JobStatus(), META, plan_of(placement(), epoch), NOW)


def at(status: JobStatus) -> JobFacts:
    return facts(job_object(status=status))


def said(status: JobStatus, now: float = NOW + 60) -> str:
    return "\n".join(lines(ui.standing(at(status), now)))


# --- every state of a job's life -------------------------------------------------------------------------------------
def test_a_job_that_is_bound_and_runs_tells_its_plan_and_since_when() -> None:
    status = transitions.scheduled(planned(), META, NOW, all_running=True)
    told = said(status, NOW + 3600)
    assert "State: Running, for 1h00m" in told
    assert f"Plan: 8×{A100}, Data dp=8" in told
    assert "(plan 3, by best_fit)" in told
    assert "Because: because" in told


def test_a_plan_that_its_spec_no_longer_allows_says_so() -> None:
    why = "the plan no longer meets the spec: 8 GPUs; it is replaced at 2026-01-02T04:00:00Z"
    status = transitions.scheduled(planned(), META, NOW, all_running=True)
    assert status.plan
    assert "But:" not in said(status)
    assert f"But: {why}" in said(transitions.standing(status, META, status.plan, NOW, outdated=why)).splitlines()


def test_a_plan_tells_what_lost_when_it_was_decided() -> None:
    made = placement()
    lost = Alternative("T4", 16, made.plan, made.prediction, "worth 0.50 as much to this job", 0.5, 0.0)
    plan = plan_of(replace(made, alternatives=(lost,)), 3)
    told = said(transitions.planned(JobStatus(), META, plan, NOW))
    assert "Lost then: 16×T4, dp=8" in told
    assert told.splitlines()[4].endswith("; worth 0.50 as much to this job")


def test_what_would_be_decided_now_is_told_apart_from_what_was_decided_then() -> None:
    plan = plan_of(placement(), 3)
    [(_, same)] = ui.since_then(plan, placement())
    assert same == "the same as it was decided at 2026-01-02 03:04:05 UTC"
    [(_, other)] = ui.since_then(plan, placement(nodes={"n2": 4}))
    assert f"(8×{A100}, {plan.summary}): now 4×{A100}" in other


def test_a_plan_that_waits_for_others_to_stop_names_them_until_its_pods_are_bound() -> None:
    plan = plan_of(placement(), 3).model_copy(update={"waits_for": (leaving("victim", 2, "team"),)})
    waits = transitions.planned(JobStatus(), META, plan, NOW)
    assert "Waits for: team/victim to stop (Preempted)" in said(waits)
    assert "Waits for" not in said(transitions.scheduled(waits, META, NOW, all_running=False))


@pytest.mark.parametrize(
    ("acknowledged", "told"),
    [
        (None, "Checkpoint: not saved yet; it is stopped in 2m00s at the latest"),
        (MOMENT + timedelta(seconds=30), "Checkpoint: saved at 2026-01-02 03:04:35 UTC: it stops now"),
    ],
)
def test_a_job_that_was_asked_to_stop_tells_for_whom_until_when_and_how_it_goes_on(
    acknowledged: Any, told: str
) -> None:
    stop = StopRequest(
        epoch=3, cause=StopCause.PREEMPTED, message="priority 9 against 0", requested_time=MOMENT,
        deadline_time=MOMENT + timedelta(minutes=3), acknowledged_time=acknowledged, beneficiary="team/urgent",
        successor=plan_of(placement(nodes={"n2": 4}), 4),
    )  # fmt: skip
    page = said(planned().model_copy(update={"stop": stop}))
    assert "Asked to stop: 2026-01-02 03:04:05 UTC for team/urgent (Preempted): priority 9 against 0" in page
    assert told in page
    assert f"Goes on: with 4×{A100}, Data dp=4" in page


def test_a_preempted_job_and_one_that_backs_off_say_so() -> None:
    gone = small.say(JobStatus(), META, NOW, names.PREEMPTED, True, "Preempted", "team/urgent got its GPUs")
    assert "Preempted: team/urgent got its GPUs" in said(gone)
    back = JobStatus().model_copy(update={"retry_time": MOMENT + timedelta(seconds=100)})
    assert "Tries again: in 40 s" in said(back)


def test_a_suspended_job_says_what_has_suspended_it() -> None:
    assert said(transitions.suspended(planned(), META, NOW)).splitlines()[1].startswith("State: Suspended")


def test_jobs_that_have_ended_say_how() -> None:
    page = said(transitions.completed(planned(), META, NOW))
    assert "State: Completed" in page
    assert "Ended: all pods of the gang have succeeded" in page
    assert [line for line in page.splitlines() if line.startswith("Because")] == ["Because: because"]


def test_a_spec_that_cannot_be_understood_has_a_page_too() -> None:
    broken = facts(job_object(spec={"training.steps": -1}))
    assert lines(ui.standing(broken, NOW))[0] == "Job: default/job"


# --- the place in line, and when its turn comes ----------------------------------------------------------------------
def test_the_place_in_line_says_who_is_before_and_why() -> None:
    line = snapshot(
        [node("a", free=0)],
        [
            job("me", queue="q", share=0.2),
            job("urgent", priority=7, queue="r"),
            job("poor", queue="s", entitled=True),
            job("less", queue="r", share=0.1),
            job("older", queue="q", share=0.2, created=NOW - 100),
        ],
    ).waiting()
    place = ui.place(line, "uid-me")
    assert place is not None
    assert (place.position, place.waiting) == (5, 5)
    assert place.before == (
        "default/poor (queue s holds less than it is guaranteed)",
        "default/less (queue r has had less of the cluster)",
        "default/older (older)",
    )
    [(_, text)] = ui.prospects(place, None, NOW)[:1]
    assert text.endswith(" and 1 more")
    assert ui.place(line, "uid-gone") is None


def test_a_start_is_told_to_the_minute_with_its_interval_and_nodes() -> None:
    eta = Eta(NOW + 600, NOW + 850, NOW + 7500)
    found = ui.Prospect(eta, H100, 16, ("h-0", "h-1"), "r3")
    place = ui.Place(1, 1, ())
    assert lines(ui.prospects(place, found, NOW)) == [
        "In line: 1 of 1",
        f"Starts: in ~14 min (four times of five in 10 min to 2h05m), with 16×{H100} on h-[0-1] (r3)",
    ]
    assert "not in sight" in lines(ui.prospects(place, None, NOW))[1]
    assert ui.prospects(None, None, NOW) == []


# --- what it went through --------------------------------------------------------------------------------------------
def test_history_is_told_in_its_order() -> None:
    status = planned().model_copy(
        update={
            "start_time": MOMENT,
            "stops": (
                StopRecord(time=MOMENT + timedelta(hours=2), epoch=2, cause=StopCause.RECLAIMED, beneficiary="a/b"),
            ),
            "failures": (
                FailureRecord(
                    time=MOMENT + timedelta(hours=1), epoch=1, cause=FailureCause.GPU, reason="Xid", node="n"
                ),
            ),
            "restarts": 1,
        }
    )
    assert lines(ui.history(status, NOW)) == [
        "History: 2026-01-02 03:04:05 UTC  ran for the first time",
        "History: 2026-01-02 04:04:05 UTC  Xid on n: Gpu (plan 1)",
        "History: 2026-01-02 05:04:05 UTC  asked to stop for a/b: Reclaimed (plan 2)",
        "Counts: 1 restart after failures, 1 request to stop, 3 plans",
    ]
    assert ui.history(JobStatus(), NOW) == []


def test_what_comes_about_in_one_second_is_told_in_the_order_in_which_it_does() -> None:
    status = planned().model_copy(update={"start_time": MOMENT, "completion_time": MOMENT})
    status = transitions.completed(status, META, MOMENT.timestamp()).model_copy(update={"completion_time": MOMENT})
    told = [line.partition("  ")[2] for line in lines(ui.history(status, NOW)) if line.startswith("History")]
    assert told == ["ran for the first time", "completed"]


def test_a_name_that_repeats_is_told_once() -> None:
    assert list(ui.told_by([[("A", "1"), ("A", "2")], [("A", "3"), ("B", "4")]])) == [
        ("A", "1"), ("", "2"), ("", "3"), ("B", "4"),
    ]  # fmt: skip


# --- from a dump -----------------------------------------------------------------------------------------------------
@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A full node with a job that ends in 25 minutes; half a node is free."""
    first = running("first", {"a": 8}, finish=NOW + 1500, started=NOW - 600, steps_done=5)
    waiting = [
        job("next", gpus=(8, 8), max_nodes=1, created=NOW - 90, priority=2),
        job("mine", gpus=(8, 8), max_nodes=1, queue="q"),
    ]
    nodes = [node("a", free=0, topology=("zone", "r3")), node("b", free=4, topology=("zone", "r4"))]
    file = tmp_path / "now.json"
    file.write_bytes(msgspec.json.encode(snapshot(nodes, [first, *waiting])))
    return file


def explain(dump: Path, name: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", name, "--snapshot", str(dump), *arguments])


def test_a_waiting_job_is_told_why_when_and_what_would_help(dump: Path) -> None:
    shown = explain(dump, "mine").stdout
    for text in (
        "default/mine (queue q)",
        "Pending     InsufficientGpus",
        "default/first holds 8×A100-SXM4-80GB until ~03:29 UTC",
        "with 4 instead of 8 GPUs (4×A100-SXM4-80GB) it would start now at 0.",
        "2 of 2, behind default/next (priority 2 against 0)",
        "on a (r3)",
    ):
        assert text in shown


def test_a_job_whose_pods_fit_no_node_is_promised_no_start_and_told_of_nobody_elses_jobs(tmp_path: Path) -> None:
    nodes = [node("a", free=0, cpu_milli=128_000), node("b", cpu_milli=128_000)]
    held, greedy = running("first", {"a": 8}, finish=NOW + 1500), job("greedy", cpu_milli_per_pod=4_000_000)
    file = tmp_path / "now.json"
    file.write_bytes(msgspec.json.encode(snapshot(nodes, [held, greedy])))
    shown = " ".join(explain(file, "greedy").stdout.split())
    assert "ClusterTooSmall" in shown
    assert f"requests.cpu 4000, and the largest {A100} node, a, has 128" in shown
    assert "Starts not in sight" in shown
    assert "default/first" not in shown
    assert "more than such nodes have" not in shown


def test_programs_get_the_same(dump: Path) -> None:
    answer: dict[str, Any] = json.loads(explain(dump, "next", "-o", "json").stdout)
    assert answer["state"] == "Pending"
    assert answer["pending"]["reason"] == "InsufficientGpus"
    assert answer["line"] == {"position": 1, "waiting": 2, "before": []}
    start = answer["start"]
    assert start["nodes"] == ["a"]
    assert start["eta"]["expected"] == NOW + 1500
    assert start["eta"]["low"] < NOW + 1500 < start["eta"]["high"]
    assert answer["decision"] is None
    assert [choice["gpu_type"] for choice in answer["choices"]] == [A100]


def test_a_running_job_of_a_dump_is_told_with_what_would_be_decided_now(dump: Path) -> None:
    shown = explain(dump, "first").stdout
    assert "runs" in shown
    assert "in ~25 min" in shown
    assert f"If placed now  8×{A100}" in shown
    answer: dict[str, Any] = json.loads(explain(dump, "first", "-o", "json").stdout)
    assert (answer["state"], answer["pending"], answer["start"]) == ("Running", None, None)


def test_a_running_job_that_no_policy_could_place_now_does_not_pass_for_one_that_waits(tmp_path: Path) -> None:
    file = tmp_path / "now.json"
    file.write_bytes(msgspec.json.encode(snapshot([], [running("first", {"gone": 8})])))
    shown = explain(file, "first").stdout
    assert "Pending" not in shown
    assert "If placed now  NoSuchGpu: " in shown
    assert json.loads(explain(file, "first", "-o", "json").stdout)["pending"] is None


def test_the_policy_that_decides_is_asked_unless_another_is_named(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_POLICY__NAME", "nobodys")
    assert "nobodys" in explain(dump, "first").stderr
    assert explain(dump, "first", "--policy", "best_fit").exit_code == 0


# --- why not others --------------------------------------------------------------------------------------------------
@pytest.fixture
def choosy(tmp_path: Path) -> Path:
    """A job that runs on a full node, one that would get the four GPUs that are free, and a node that it does not
    allow."""
    first = running("first", {"a": 8}, finish=NOW + 1500, started=NOW - 600, steps_done=5)
    mine = job("mine", gpus=(4, 8), max_nodes=1, gpu_types=(A100,))
    large = job("large", gpus=(1, 8), model="llama3-70b", gpu_types=(A100,))
    file = tmp_path / "now.json"
    nodes = [node("a", free=0), node("b", free=4), node("h", H100)]
    file.write_bytes(msgspec.json.encode(snapshot(nodes, [first, mine, large])))
    return file


def why_not(dump: Path, name: str, asked: str) -> dict[str, Any]:
    answer = json.loads(explain(dump, name, "--why-not", asked, "-o", "json").stdout)
    found: dict[str, Any] = answer["whyNot"]
    return found


def test_gpus_that_the_job_does_not_allow_are_told_by_the_field_that_forbids_them(choosy: Path) -> None:
    found = why_not(choosy, "mine", "16xH100")
    assert found["wanted"] == {"gpu_type": H100, "gpus": 16}
    assert found["because"][0] == f"spec.resources.gpuTypes allows only {A100}"
    assert found["because"][1] == "spec.resources.gpus allows 4 to 8, not 16"
    assert why_not(choosy, "mine", "8 h100")["because"] == [
        f"spec.resources.gpuTypes allows only {A100}", "there would be room for it now",
    ]  # fmt: skip


def test_gpus_that_others_hold_are_told_with_who_holds_them_and_until_when(choosy: Path) -> None:
    found = why_not(choosy, "mine", f"8×{A100}")
    assert found["because"][0].startswith("InsufficientGpus: needs at least 8×")
    assert f"default/first holds 8×{A100}" in found["because"][1]
    assert found["start"]["expected"] == NOW + 1500
    assert found["prediction"]["tokens_per_second"] > 0
    shown = explain(choosy, "mine", "--why-not", "8xA100").stdout
    assert f"Why not 8×{A100}" in shown
    assert "Could start" in shown


def test_gpus_that_a_job_would_get_anyway_have_nothing_against_them(choosy: Path) -> None:
    assert why_not(choosy, "mine", "4")["because"] == [f"nothing: the job would get 4×{A100}"]
    assert why_not(choosy, "first", A100)["because"] == [f"nothing: the job has 8×{A100}"]


def test_gpus_that_there_is_room_for_are_held_against_what_the_job_has(choosy: Path) -> None:
    because = why_not(choosy, "first", "4xH100")["because"]
    assert because[0] == f"there is room for 4×{H100}; the job has 8×{A100}"
    assert because[1].startswith("predicted to be ")
    assert because[1].endswith("with 0.5 times the GPUs")
    assert because[-1].endswith("(spec.elasticity.policy: Fixed)")


def test_a_model_that_does_not_fit_says_what_does_not(choosy: Path) -> None:
    found = why_not(choosy, "large", "1xA100")
    assert found["because"][0].startswith("NoFeasiblePlan: ")
    assert (found["plan"], found["prediction"]) == (None, None)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("", None),
        ("V100", "the cluster has no V100"),
        ("8xA100-SXM4-80", "the cluster has no A100-SXM4-80"),
        ("0xA100", "at least one GPU"),
        ("*", "write COUNTxTYPE"),
        ("-3", "write COUNTxTYPE"),
        ("8×A100×2", "write COUNTxTYPE"),
        ("9" * 9 + "xA100", "write COUNTxTYPE"),
    ],
)
def test_what_cannot_be_read_as_gpus_is_an_error_that_names_the_option(
    choosy: Path, asked: str, said: str | None
) -> None:
    result = explain(choosy, "mine", f"--why-not={asked}")
    if said is None:
        assert result.exit_code == 0
    else:
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--why-not" in result.stderr
        assert said in " ".join(result.stderr.split())


def test_a_type_of_which_there_are_two_has_to_be_named(tmp_path: Path) -> None:
    file = tmp_path / "now.json"
    nodes = [node("a"), node("b", "A100-SXM4-40GB")]
    file.write_bytes(msgspec.json.encode(snapshot(nodes, [job("mine")])))
    assert "A100-SXM4-40GB or A100-SXM4-80GB" in " ".join(explain(file, "mine", "--why-not", "A100").stderr.split())


def test_a_job_that_is_not_there_is_an_error_of_one_line(dump: Path) -> None:
    result = explain(dump, "nobody", "-n", "team")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no LLMTrainingJob team/nobody" in result.stderr
