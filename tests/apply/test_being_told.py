"""The time that a gang is given counts once its pods know of it; and it moves for nothing that it would not find."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from tests.apply.test_steps import META, MOMENT, NOW, PLAN, RUNNING, given_up, pods, view, written
from tests.apply.test_stops import ASKED, DEADLINE, GRACE, ONWARDS, ORDER, RESIZING, annotated, exits, outcome, stop_of

from trimtab import names
from trimtab.api.history import FailureCause
from trimtab.api.status import JobStatus
from trimtab.apply import stops, transitions
from trimtab.apply.actions import AnnotatePod, WriteStatus
from trimtab.apply.gang_failures import GangFailure
from trimtab.apply.steps import Step, next_step
from trimtab.controller.jobs.gangs import _urgency
from trimtab.controller.loop.priority_semaphore import Urgency
from trimtab.kube.objects import PodObject

ANEW = "2026-01-02T03:11:06Z"
"""What pods are told after an outage of 301 s."""


def at(seconds: float, status: JobStatus, *gang: PodObject, **changes: Any) -> Step:
    return next_step(replace(view(status, *gang, **changes), now=NOW + seconds))


# --- being told late -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("told", [0, 1])
def test_a_gang_that_was_not_told_while_its_controller_was_away_has_all_its_time_from_then_on(told: int) -> None:
    gang = (*annotated()[:told], *pods("Running")[told:])
    action = written(at(301, ASKED, *gang))
    stop = stop_of(action.status)
    assert (action.status.plan, stop.requested_time) == (PLAN, MOMENT)
    assert stop.renewed_time == MOMENT + timedelta(seconds=301)
    assert stop.deadline_time == MOMENT + timedelta(seconds=301 + GRACE)
    assert len(action.status.stops) == 1
    assert action.happening
    assert action.happening.message.endswith("301 s after it was to be asked: it has 120 s from now on")
    step = at(301, action.status, *gang)
    assert step == tuple(AnnotatePod(f"job-1-{rank}", f"pod-job-1-{rank}", ANEW) for rank in range(2))
    late = annotated(deadline=ANEW)
    assert at(300 + GRACE, action.status, *late) == ()
    assert outcome(at(301 + GRACE, action.status, *late)) == ("Preempted", "deadline")


def test_it_is_given_its_time_anew_only_once() -> None:
    again = written(at(301, ASKED, *pods("Running"))).status
    assert outcome(at(301 + GRACE, again, *pods("Running"))) == ("Preempted", "deadline")


def test_who_is_told_a_moment_late_is_told_and_has_what_is_left() -> None:
    told = tuple(AnnotatePod(f"job-1-{rank}", f"pod-job-1-{rank}", DEADLINE) for rank in range(2))
    assert at(stops.LATE_PART * GRACE - 1, ASKED, *pods("Running")) == told
    assert stop_of(written(at(stops.LATE_PART * GRACE, ASKED, *pods("Running"))).status).renewed_time
    short = stops.requested(RUNNING, META, ORDER, 1.0, NOW)
    [first, _] = at(1.5, short, *pods("Running"))
    assert isinstance(first, AnnotatePod), "nobody is stopped before he was told"


def test_who_is_told_late_for_somebody_who_needs_it_no_more_goes_on() -> None:
    assert outcome(at(301, ASKED, *pods("Running"), unwanted=True)) == ("Preempted", "withdrawn")


def test_whose_pods_have_all_been_told_has_had_its_time_though_nobody_was_there_to_end_it() -> None:
    assert outcome(at(301, ASKED, *annotated())) == ("Preempted", "deadline")


def test_pods_that_have_ended_need_not_be_told() -> None:
    gang = (pods("Succeeded")[0], annotated()[1])
    assert outcome(at(301, ASKED, *gang)) == ("Preempted", "deadline")


def test_a_pod_whose_time_runs_is_told_before_statuses_are_written() -> None:
    assert _urgency(AnnotatePod("p", "u", DEADLINE), PLAN) is Urgency.COMPLETE < _urgency(WriteStatus(RUNNING), PLAN)


def test_what_only_tells_why_a_job_waits_is_written_after_all_that_gangs_need() -> None:
    waits = _urgency(WriteStatus(JobStatus()), None)
    assert waits is Urgency.EXPLAIN > _urgency(WriteStatus(RUNNING), None)
    assert _urgency(WriteStatus(JobStatus()), PLAN) is Urgency.REPORT, "a plan that is given up frees GPUs"


# --- a place that is not there any more ------------------------------------------------------------------------------
UNFIT = "node n3: cordoned"


@pytest.mark.parametrize("seconds", [1, GRACE])
def test_a_gang_stays_where_the_place_that_it_was_to_move_to_is_gone(seconds: float) -> None:
    action = written(at(seconds, RESIZING, *annotated(), unfit=UNFIT))
    assert (action.status.plan, action.status.stop) == (PLAN, None)
    assert outcome((action,)) == ("Resized", "withdrawn")
    assert action.happening
    assert action.happening.message == f"its next plan cannot be carried out ({UNFIT}): the gang goes on"


def test_one_that_has_saved_its_state_by_then_is_planned_anew_and_not_set_back() -> None:
    saved = stops.acknowledged(RESIZING, stop_of(RESIZING), None, NOW)
    action = written(at(1, saved, *annotated(), unfit=UNFIT))
    status = action.status
    assert (status.plan, status.last_epoch, status.setbacks, status.retry_time) == (None, 1, 0, None)
    assert action.happening
    assert action.happening.message.endswith(f"planned anew, for its next plan cannot be carried out ({UNFIT})")


def test_so_is_one_that_makes_room_for_another_or_has_begun_to_leave_or_is_suspended() -> None:
    for_another = stops.requested(RUNNING, META, replace(ONWARDS, beneficiary="team/urgent"), GRACE, NOW)
    assert at(1, for_another, *annotated(), unfit=UNFIT) == ()
    assert written(at(GRACE, for_another, *annotated(), unfit=UNFIT)).status.plan is None
    leaving = (annotated()[0], annotated(**exits(names.EXIT_CHECKPOINTED))[1])
    assert at(1, RESIZING, *leaving, unfit=UNFIT) == ()
    assert at(1, RESIZING, *annotated(), unfit=UNFIT, suspended=True) == ()


# --- setbacks in a row -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("ran", "left"), [(301.0, 0), (100.0, 8)])
def test_a_gang_that_ran_for_long_and_then_gave_way_has_begun_a_new_row_of_setbacks(ran: float, left: int) -> None:
    after_eight = RUNNING.model_copy(update={"setbacks": 8})
    status = written(at(ran, after_eight, *pods("Running"), order=ORDER, grace_seconds=0.0)).status
    assert (status.plan, status.setbacks) == (None, left)


# --- whose degrees a checkpoint has ----------------------------------------------------------------------------------
def failed(after: float, status: JobStatus) -> JobStatus:
    """The gang has failed after so many seconds."""
    setback = GangFailure("PodFailed", "exited with 1", cause=FailureCause.PROGRAM)
    return transitions.set_back(status, META, setback, NOW + after, (1.0, 300.0))


def reporting(saved: int | None, status: JobStatus = RUNNING) -> JobStatus:
    said = transitions.GangReport(epoch=1, step=500, steps=1000, received=NOW, checkpoint_step=saved)
    return transitions.heard(status, said)


def test_the_degrees_are_those_of_the_last_gang_that_is_known_to_have_saved_its_state() -> None:
    assert RUNNING.degrees is None, "it has saved nothing yet"
    assert reporting(None).degrees is None
    assert reporting(480).degrees == PLAN.parallelism
    answered = stops.acknowledged(ASKED, stop_of(ASKED), None, NOW)
    assert answered.degrees == PLAN.parallelism
    left = written(at(1, ASKED, *annotated(**exits(names.EXIT_CHECKPOINTED)))).status
    assert left.degrees == PLAN.parallelism
    deaf = written(at(GRACE, ASKED, *annotated())).status
    assert deaf.degrees is None


def test_a_gang_that_goes_on_from_a_checkpoint_has_not_saved_it() -> None:
    other = PLAN.parallelism.model_copy(update={"data": 16})
    resumed = reporting(480).model_copy(update={"degrees": other})
    assert reporting(480, resumed).degrees == other
    assert reporting(481, resumed).degrees == PLAN.parallelism


@pytest.mark.parametrize(("ran", "kept"), [(599, False), (600, True)])
def test_of_one_that_never_tells_of_checkpoints_the_time_that_it_ran_decides(ran: float, kept: bool) -> None:
    assert (failed(ran, RUNNING).degrees is not None) is kept
    assert (transitions.suspended(RUNNING, META, NOW + ran).degrees is not None) is kept
    assert failed(7200, reporting(0)).degrees is None, "it does tell, and has saved nothing"


def test_what_was_saved_outlives_a_gang_that_could_not_load_it() -> None:
    saved = failed(3600, reporting(480))
    smaller = PLAN.model_copy(
        update={"epoch": 2, "parallelism": PLAN.parallelism.model_copy(update={"data": 4}), "gpus": 4}
    )
    again = transitions.scheduled(transitions.planned(saved, META, smaller, NOW), META, NOW, all_running=True)
    assert failed(60, again).degrees == PLAN.parallelism


def test_who_left_as_it_was_asked_though_it_need_not_has_saved_its_state() -> None:
    gang = (annotated(deadline="")[0], annotated(deadline="", **exits(names.EXIT_CHECKPOINTED))[1])
    step = next_step(view(RUNNING, *gang))
    assert given_up(step) == ("Checkpointed", 0)
    assert written(step).status.degrees == PLAN.parallelism
