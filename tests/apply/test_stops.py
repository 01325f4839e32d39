"""Ending a running gang on request, as a specification: who is asked, what counts as an answer, what it costs.

And who waits for what it still holds.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from tests.apply.test_steps import (
    BOUND,
    DELETED,
    META,
    MOMENT,
    NOW,
    PENDING,
    PLAN,
    PLANNED,
    RUNNING,
    SCHEDULED,
    UNBOUND,
    deletions,
    find,
    given_up,
    pods,
    view,
    written,
)
from tests.builders import gang_pod, leaving, placement, plan_of

from trimtab import names
from trimtab.api import conditions
from trimtab.api.history import StopRecord
from trimtab.api.status import JobStatus, Observed, StopRequest
from trimtab.apply import stops, transitions
from trimtab.apply.actions import AnnotatePod, CreatePod, CreateService, Step
from trimtab.apply.steps import next_step
from trimtab.apply.stops import StopOrder, StopResult
from trimtab.apply.transitions import GangReport
from trimtab.kube.objects import PodObject
from trimtab_policy.types import StopCause

GRACE = 120.0
DEADLINE = "2026-01-02T03:06:05Z"
ORDER = StopOrder(epoch=1, cause=StopCause.PREEMPTED, message="GPUs for urgent", beneficiary="team/urgent")
SUCCESSOR = plan_of(placement(nodes={"n3": 8}), epoch=2)
ONWARDS = StopOrder(epoch=1, cause=StopCause.RESIZED, message="more GPUs are free", successor=SUCCESSOR)
ASKED = stops.requested(RUNNING, META, ORDER, GRACE, NOW)
RESIZING = stops.requested(RUNNING, META, ONWARDS, GRACE, NOW)


def annotated(phase: str = "Running", deadline: str = DEADLINE, **changes: Any) -> tuple[PodObject, ...]:
    metadata = {"annotations": {names.ANNOTATION_CHECKPOINT: deadline}}
    return pods(phase, **{**changes, "metadata": metadata | changes.get("metadata", {})})


def exits(code: int) -> dict[str, Any]:
    ended = {"name": "trainer", "state": {"terminated": {"exitCode": code}}}
    return {"status": {"phase": "Failed", "containerStatuses": [ended]}}


def report(step: int = 500, saved: int | None = None, *, acknowledged: bool = False, **changes: Any) -> GangReport:
    told = GangReport(epoch=1, step=step, steps=1000, received=NOW, checkpoint_step=saved, acknowledged=acknowledged)
    return replace(told, **changes)


def ended(status: JobStatus, said: GangReport | None = None, **changes: Any) -> Step:
    """The last write to a gang that has saved its state as it was asked to."""
    saved = written(next_step(view(status, *annotated(), report=said or report(acknowledged=True), **changes))).status
    assert stop_of(saved).acknowledged_time == MOMENT
    return next_step(view(saved, *annotated(), **changes))


def outcome(step: Step) -> tuple[str, str]:
    action = written(step)
    assert action.outcome
    return action.outcome.cause.value, action.outcome.result


def stop_of(status: JobStatus) -> StopRequest:
    assert status.stop
    return status.stop


# --- asking --------------------------------------------------------------------------------------------------------
def test_a_running_gang_is_asked_before_it_is_stopped() -> None:
    action = written(next_step(view(RUNNING, *pods("Running"), order=ORDER, grace_seconds=GRACE)))
    stop = stop_of(action.status)
    assert (stop.epoch, stop.cause, stop.message, stop.beneficiary) == (1, ORDER.cause, ORDER.message, "team/urgent")
    assert (stop.requested_time, stop.deadline_time) == (MOMENT, MOMENT + timedelta(seconds=GRACE))
    assert action.status.plan == PLAN
    assert find(action.status, names.CHECKPOINT_REQUESTED) == "True"
    assert action.status.conditions[-1].reason == "Stopping"
    assert action.status.stops == (
        StopRecord(time=MOMENT, epoch=1, cause=StopCause.PREEMPTED, beneficiary="team/urgent"),
    )
    assert action.happening
    assert action.happening.reason == "CheckpointRequested"
    assert action.happening.message == "Preempted: GPUs for urgent; it has 120 s to save its state"
    assert action.outcome is None


def test_an_order_is_obeyed_once() -> None:
    assert next_step(view(ASKED, *annotated(), order=ORDER, grace_seconds=GRACE)) == ()
    assert next_step(view(ASKED, *annotated(), order=ONWARDS, grace_seconds=GRACE)) == ()


def test_an_order_for_another_plan_is_void() -> None:
    for epoch in (0, 2):
        assert next_step(view(RUNNING, *pods("Running"), order=replace(ORDER, epoch=epoch))) == ()


def test_every_living_pod_is_told_once() -> None:
    step = next_step(view(ASKED, *pods("Running")))
    told = tuple(AnnotatePod(f"job-1-{rank}", f"pod-job-1-{rank}", DEADLINE) for rank in range(2))
    assert step == told
    assert next_step(view(ASKED, annotated()[0], pods("Running")[1])) == told[1:]
    assert next_step(view(ASKED, *annotated())) == ()
    assert next_step(view(ASKED, annotated()[0], pods("Succeeded")[1])) == ()


def test_only_the_last_requests_are_remembered() -> None:
    old = StopRecord(time=MOMENT - timedelta(days=1), epoch=1, cause=StopCause.MOVED)
    before = RUNNING.model_copy(update={"stops": (old,) * stops.MAX_RECORDS})
    after = stops.requested(before, META, ORDER, GRACE, NOW)
    assert len(after.stops) == stops.MAX_RECORDS
    assert [record.cause for record in after.stops[-2:]] == [StopCause.MOVED, StopCause.PREEMPTED]


@pytest.mark.parametrize(("status", "gang"), [(PLANNED, ()), (PLANNED, UNBOUND), (PLANNED, BOUND), (SCHEDULED, BOUND)])
def test_a_gang_that_does_not_run_as_a_whole_has_nothing_to_save(
    status: JobStatus, gang: tuple[PodObject, ...]
) -> None:
    step = next_step(view(status, *gang, order=ORDER, grace_seconds=GRACE))
    assert outcome(step) == ("Preempted", "unready")
    assert (written(step).status.plan, written(step).status.stop) == (None, None)
    assert len(written(step).status.stops) == 1


def test_without_a_grace_it_is_stopped_at_once() -> None:
    step = next_step(view(RUNNING, *pods("Running"), order=ORDER, grace_seconds=0.0))
    assert outcome(step) == ("Preempted", "deadline")
    assert written(step).status.plan is None


# --- the end -------------------------------------------------------------------------------------------------------
def test_a_gang_that_has_saved_its_state_is_stopped_at_once_and_pays_nothing_for_it() -> None:
    action = written(ended(ASKED, report(510, saved=510, acknowledged=True)))
    status = action.status
    assert (status.plan, status.stop, status.retry_time, status.pending) == (None, None, None, None)
    assert (status.restarts, status.setbacks) == (0, 0)
    kinds = (names.PLANNED, names.GANG_SCHEDULED, names.PODS_READY, names.CHECKPOINT_REQUESTED)
    assert [find(status, kind) for kind in kinds] == ["False"] * 4
    assert find(status, names.PREEMPTED) == "True"
    assert status.conditions[-1].reason == "Preempted"
    assert status.observed
    assert (status.observed.steps_done, status.observed.last_checkpoint_step) == (510, 510)
    assert action.happening == transitions.JobEvent(
        "Normal", "Preempted", "GPUs for urgent; it saved step 510, 0 s after it was asked", 1
    )
    assert action.outcome == StopResult(StopCause.PREEMPTED, "acknowledged", 0.0, 0.0)
    assert next_step(view(status, *annotated())) == deletions("job-1-0", "job-1-1")


def test_steps_beyond_what_it_saved_are_lost_though_it_answered() -> None:
    said = report(510, saved=500, step_seconds=0.5, acknowledged=True)
    saved = written(next_step(view(ASKED, *annotated(), report=said))).status
    action = written(next_step(view(saved, *annotated(), report=said)))
    assert action.outcome == StopResult(StopCause.PREEMPTED, "acknowledged", 0.0, 8 * 5.0)


def test_the_event_names_the_step_that_was_saved_last() -> None:
    first, last = (report(step, saved=step, acknowledged=True) for step in (510, 520))
    saved = written(next_step(view(ASKED, *annotated(), report=first))).status
    happening = written(next_step(view(saved, *annotated(), report=last))).happening
    assert happening
    assert "it saved step 520" in happening.message


def test_that_it_has_saved_its_state_is_noted_and_outlives_the_controller_that_heard_it() -> None:
    action = written(next_step(view(ASKED, *annotated(), report=report(510, saved=510, acknowledged=True))))
    assert (action.happening, action.outcome, action.status.plan) == (None, None, PLAN)
    assert outcome(next_step(view(action.status, *annotated()))) == ("Preempted", "acknowledged")


@pytest.mark.parametrize(
    "gang", [*(annotated(**exits(code)) for code in (1, 137, 139)), annotated("Succeeded"), annotated(**DELETED)]
)
def test_however_the_pods_end_that_have_saved_their_state_they_have_not_failed(gang: tuple[PodObject, ...]) -> None:
    said = report(510, saved=510, acknowledged=True)  # torchrun ends with 1 whatever its workers end with
    saved = written(next_step(view(ASKED, *gang, report=said))).status
    assert outcome(next_step(view(saved, *gang))) == ("Preempted", "acknowledged")


def test_a_report_that_is_no_answer_stops_nothing() -> None:
    told = written(next_step(view(ASKED, *annotated(), report=report(400, saved=300))))
    assert told.status.stop
    assert next_step(view(told.status, *annotated(), report=report(400, saved=300))) == ()


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        (None, 8 * GRACE),
        (report(500, saved=300, step_seconds=0.5), 8 * 100.0),
        (report(500, step_seconds=0.5), 8 * GRACE),
        (report(300, saved=300, step_seconds=0.5), 0.0),
    ],
)
def test_a_deaf_gang_is_stopped_when_its_time_is_over_and_loses_what_it_has_not_saved(
    said: GangReport | None, lost: float
) -> None:
    early = replace(view(ASKED, *annotated()), now=NOW + GRACE - 1)
    assert next_step(early) == ()
    action = written(next_step(replace(early, now=NOW + GRACE, report=said)))
    assert action.status.plan is None
    assert action.outcome == StopResult(StopCause.PREEMPTED, "deadline", GRACE, lost)
    observed = action.status.observed
    assert (observed.last_checkpoint_step if observed else None) == (said.checkpoint_step if said else None)
    assert action.happening
    assert action.happening.type == ("Warning" if lost else "Normal")
    assert f"{lost / 8:.0f} s of work on 8 GPUs is lost" in action.happening.message


def test_what_the_last_checkpoint_keeps_is_not_lost_with_the_time_that_is_over() -> None:
    saved = Observed(
        epoch=1, steps_done=400, last_checkpoint_step=300, last_checkpoint_time=MOMENT + timedelta(seconds=90)
    )
    before = ASKED.model_copy(update={"observed": saved})
    action = written(next_step(replace(view(before, *annotated()), now=NOW + GRACE)))
    assert action.outcome
    assert action.outcome.lost_gpu_seconds == 8 * 30
    assert action.status.observed
    assert action.status.observed.steps_done == 300


def test_a_gang_with_a_successor_goes_on_in_the_same_write() -> None:
    action = written(ended(RESIZING, report(510, saved=510, acknowledged=True)))
    status = action.status
    assert (status.plan, status.last_epoch, status.stop) == (SUCCESSOR, 2, None)
    kinds = (names.PLANNED, names.GANG_SCHEDULED, names.PODS_READY, names.CHECKPOINT_REQUESTED)
    assert [find(status, kind) for kind in kinds] == ["True", "False", "False", "False"]
    assert find(status, names.PREEMPTED) is None
    assert action.happening
    assert action.happening.reason == "Resized"
    assert action.happening.message.endswith("; it goes on as 8×A100-SXM4-80GB dp=8 tp=1 pp=1 zero=1")
    assert next_step(view(status, *annotated())) == deletions("job-1-0", "job-1-1")
    going = annotated(metadata={"deletionTimestamp": "2026-01-02T03:04:05Z"})
    assert next_step(view(status, *going)) == ()  # two gangs of one job never run at once
    assert next_step(view(status, has_service=True)) == (CreatePod(0),)


def test_a_successor_that_waits_for_a_pod_of_the_earlier_gang_that_hangs_says_so() -> None:
    status = written(ended(RESIZING)).status
    going = annotated(metadata={"deletionTimestamp": "2026-01-02T03:04:35Z"})[:1]
    assert next_step(replace(view(status, *going), now=NOW + 30)) == ()
    hangs = written(next_step(replace(view(status, *going), now=NOW + 31))).status
    told = conditions.find(hangs.conditions, names.PLANNED)
    assert told
    assert (told.reason, told.message.split("; ")[0]) == (
        "MakingRoom",
        "waits for GPUs that pod job-1-0 of its earlier gang on node n1 still hold",
    )
    assert next_step(replace(view(hangs, *going), now=NOW + 86_400)) == ()


def test_a_successor_of_another_time_is_forgotten() -> None:
    late = replace(ONWARDS, successor=plan_of(placement(), epoch=3))
    assert stop_of(stops.requested(RUNNING, META, late, GRACE, NOW)).successor is None


def test_a_preempted_job_is_so_until_it_is_planned_again() -> None:
    gone = written(ended(ASKED)).status
    waits = written(next_step(view(gone, pending=PENDING))).status
    assert find(waits, names.PREEMPTED) == "True"
    assert waits.conditions[-1].reason == "InsufficientGpus"
    again = written(next_step(view(waits, plan=SUCCESSOR))).status
    assert find(again, names.PREEMPTED) == "False"


# --- GPUs that others still hold -----------------------------------------------------------------------------------
WAITS = PLAN.model_copy(update={"waits_for": (leaving("b", 4, "team"),)})
PROMISED = transitions.planned(JobStatus(), META, WAITS, NOW)


def test_no_pod_is_made_while_others_hold_the_gpus_and_the_job_says_who() -> None:
    action = written(next_step(view(PROMISED, leaving=("team/b", "team/a"))))
    told = conditions.find(action.status.conditions, names.PLANNED)
    assert told
    assert (told.status, told.reason) == ("True", "MakingRoom")
    assert told.message.startswith("waits for GPUs that team/a, team/b still hold; best_fit: because")
    assert next_step(view(action.status, leaving=("team/b", "team/a"))) == ()


def test_the_gang_is_made_as_soon_as_they_are_gone() -> None:
    waits = written(next_step(view(PROMISED, leaving=("team/b",)))).status
    status = written(next_step(view(waits))).status
    assert status == PROMISED
    assert next_step(view(status)) == (CreateService(), CreatePod(0), CreatePod(1))


def test_a_gang_that_is_there_waits_for_nobody() -> None:
    running = transitions.scheduled(PROMISED, META, NOW, all_running=True)
    assert next_step(view(running, *pods("Running"), leaving=("team/b",))) == ()


def test_what_makes_the_plan_impossible_ends_the_waiting() -> None:
    waits = written(next_step(view(PROMISED, leaving=("team/b",)))).status
    assert given_up(next_step(view(waits, leaving=("team/b",), lost={"n1": "deleted"}))) == ("NodeLost", 0)
    suspended = written(next_step(view(waits, leaving=("team/b",), suspended=True))).status
    assert (suspended.plan, find(suspended, names.SUSPENDED)) == (None, "True")


def test_pods_of_its_own_leave_whoever_else_is_waited_for() -> None:
    stray = gang_pod("job", 0, 0, "n1", phase="Running")
    assert next_step(view(PROMISED, stray, leaving=("team/b",))) == deletions("job-0-0")


# --- what else is noted --------------------------------------------------------------------------------------------
def test_a_plan_that_no_longer_meets_the_spec_says_so_while_it_stands() -> None:
    why = "the plan no longer meets the spec: 8 GPUs; it is replaced at 2026-01-02T04:00:00Z"
    action = written(next_step(view(RUNNING, *pods("Running"), outdated=why)))
    told = conditions.find(action.status.conditions, names.PLANNED)
    assert told
    assert (told.reason, told.message) == ("Bound", f"{why}; best_fit: because")
    assert action.happening is None
    assert next_step(view(action.status, *pods("Running"), outdated=why)) == ()


def test_every_status_on_the_way_can_be_written() -> None:
    talkative = replace(ORDER, message="because " * 9999, beneficiary="b" * 9999)
    asked = stops.requested(RUNNING, META, talkative, GRACE, NOW)
    for status in (
        asked,
        written(ended(asked)).status,
        written(next_step(view(asked, *annotated(), unwanted=True))).status,
    ):
        assert JobStatus.model_validate(status.to_wire()) == status
