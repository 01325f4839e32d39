"""What comes between asking a gang to stop and its end: its pods go, nobody wants it any more, it is suspended."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.apply.test_steps import (
    DELETED,
    FAILED_POD,
    META,
    MOMENT,
    NOW,
    PLAN,
    PLANNED,
    RUNNING,
    UNBOUND,
    deletions,
    find,
    given_up,
    pods,
    view,
    written,
)
from tests.apply.test_stops import (
    ASKED,
    DEADLINE,
    GRACE,
    ORDER,
    RESIZING,
    SUCCESSOR,
    annotated,
    ended,
    exits,
    outcome,
    report,
    stop_of,
)

from trimtab import names
from trimtab.api.history import FailureCause
from trimtab.api.status import Observed, TrainerStatus
from trimtab.apply import stops, transitions
from trimtab.apply.actions import AnnotatePod
from trimtab.apply.gang_failures import GangFailure
from trimtab.apply.steps import next_step
from trimtab.apply.stops import StopResult
from trimtab.apply.transitions import GangReport
from trimtab.kube.objects import PodObject
from trimtab_policy.types import StopCause

# --- pods that end meanwhile ---------------------------------------------------------------------------------------
CHECKPOINTED = annotated(**exits(names.EXIT_CHECKPOINTED))


def test_pods_that_end_as_they_were_asked_to_have_not_failed() -> None:
    assert next_step(view(ASKED, CHECKPOINTED[0], annotated()[1])) == ()  # the others may still be saving
    step = next_step(view(ASKED, *CHECKPOINTED))
    assert outcome(step) == ("Preempted", "ended")
    assert written(step).status.restarts == 0
    helper = {"name": "helper", "state": {"terminated": {"exitCode": 0}}}
    beside = exits(names.EXIT_CHECKPOINTED)
    beside["status"]["containerStatuses"].append(helper)
    assert outcome(next_step(view(ASKED, CHECKPOINTED[0], annotated(**beside)[1]))) == ("Preempted", "ended")
    evicted = exits(names.EXIT_CHECKPOINTED)
    evicted["status"]["reason"] = "Evicted"
    assert given_up(next_step(view(ASKED, *annotated(**evicted)))) == ("PodRefused", 0)
    unasked = pods(**exits(names.EXIT_CHECKPOINTED))
    assert given_up(next_step(view(RUNNING, *unasked))) == ("PodFailed", 1)


def test_the_end_of_those_that_wait_for_others_comes_with_the_deadline() -> None:
    late = replace(view(ASKED, CHECKPOINTED[0], annotated()[1]), now=NOW + GRACE)
    assert outcome(next_step(late)) == ("Preempted", "deadline")


def test_pods_that_succeed_with_steps_left_are_not_complete() -> None:
    done = annotated("Succeeded")
    step = next_step(view(ASKED, *done, report=report(500)))
    assert outcome(step) == ("Preempted", "ended")
    remembered = ASKED.model_copy(
        update={
            "observed": Observed(epoch=1, steps_done=500),
            "trainer_status": TrainerStatus(progress_percentage=50, last_updated_time=MOMENT),
        }
    )
    assert outcome(next_step(view(remembered, *done))) == ("Preempted", "ended")


def test_of_pods_that_succeed_and_have_never_said_anything_nobody_knows_whether_they_are_done() -> None:
    step = next_step(view(ASKED, *annotated("Succeeded")))
    assert outcome(step) == ("Preempted", "ended")
    again = transitions.scheduled(
        transitions.planned(written(step).status, META, PLAN, NOW), META, NOW, all_running=True
    )
    assert find(written(next_step(view(again, *pods("Succeeded")))).status, names.COMPLETE) == "True"
    fake = next_step(view(ASKED, *annotated("Succeeded"), progress=90))
    assert find(written(fake).status, names.COMPLETE) == "True"


@pytest.mark.parametrize("said", [report(1000), report(999)])
def test_pods_that_succeed_are_complete_where_nothing_says_that_steps_are_left(said: GangReport | None) -> None:
    status = written(next_step(view(ASKED, *annotated("Succeeded"), report=said))).status
    assert find(status, names.COMPLETE) == "True"
    assert (status.stop, find(status, names.CHECKPOINT_REQUESTED)) == (None, "False")
    before_asked = written(next_step(view(RUNNING, *pods("Succeeded"), report=report(500)))).status
    assert find(before_asked, names.COMPLETE) == "True"  # nobody had asked it to end


@pytest.mark.parametrize("code", [1, 137])
def test_any_other_failure_is_one_that_the_job_does_not_pay_for_and_the_request_is_forgotten(code: int) -> None:
    gang = (annotated()[0], annotated(**exits(code))[1])
    step = next_step(view(ASKED, *gang))
    assert given_up(step) == ("PodFailed", 0)  # torchrun makes 1 of every exit code, 143 too
    status = written(step).status
    assert status.failures[-1].cause is FailureCause.OTHER
    assert (status.stop, find(status, names.CHECKPOINT_REQUESTED)) == (None, "False")
    assert stops.outcome(ASKED, status, NOW + 7) == StopResult(StopCause.PREEMPTED, "ended", 7.0)
    used_up = ASKED.model_copy(update={"restarts": 1})
    assert given_up(next_step(view(used_up, *gang)))[0] == "PodFailed"
    out_of_memory = exits(137)
    out_of_memory["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
    failed = written(next_step(view(used_up, annotated()[0], annotated(**out_of_memory)[1]))).status
    assert (find(failed, names.FAILED), failed.stop) == ("True", None)


@pytest.mark.parametrize(
    ("gang", "changes", "reason"),
    [
        ((annotated()[0], annotated(**DELETED)[1]), {}, "PodDeleted"),
        (annotated()[:1], {}, "PodDeleted"),
        (annotated(), {"lost": {"n2": "deleted"}}, "NodeLost"),
        (annotated(), {"setback": GangFailure("NodeOverallocated", "too many")}, "NodeOverallocated"),
    ],
)
def test_what_takes_a_gang_down_does_so_while_it_is_asked(
    gang: tuple[PodObject, ...], changes: dict[str, Any], reason: str
) -> None:
    step = next_step(view(RESIZING, *gang, **changes))
    assert given_up(step) == (reason, 0)
    assert written(step).status.stop is None


def test_what_was_reported_last_is_kept_whatever_ends_the_gang() -> None:
    step = next_step(view(RUNNING, *pods(**FAILED_POD), report=report(500, saved=480)))
    observed = written(step).status.observed
    assert observed
    assert (observed.steps_done, observed.last_checkpoint_step) == (480, 480)


# --- taking it back ------------------------------------------------------------------------------------------------
def test_a_request_that_nobody_wants_any_more_is_taken_back() -> None:
    action = written(next_step(view(ASKED, *annotated(), unwanted=True)))
    assert (action.status.plan, action.status.stop) == (PLAN, None)
    assert find(action.status, names.CHECKPOINT_REQUESTED) == "False"
    assert len(action.status.stops) == 1  # it was asked all the same
    assert outcome((action,)) == ("Preempted", "withdrawn")
    assert action.happening
    assert action.happening.message == "team/urgent does not need its GPUs any more: the gang goes on"
    untold = tuple(AnnotatePod(f"job-1-{rank}", f"pod-job-1-{rank}", "") for rank in range(2))
    assert next_step(view(action.status, *annotated(), unwanted=True)) == untold
    assert next_step(view(action.status, *annotated(deadline=""), unwanted=True)) == ()


def test_a_request_for_the_jobs_own_sake_is_not_taken_back() -> None:
    assert next_step(view(RESIZING, *annotated(), unwanted=True)) == ()


def test_it_is_not_taken_back_from_a_gang_that_has_answered_or_is_out_of_time() -> None:
    assert outcome(ended(ASKED, unwanted=True)) == ("Preempted", "acknowledged")
    late = replace(view(ASKED, *annotated(), unwanted=True), now=NOW + GRACE)
    assert outcome(next_step(late)) == ("Preempted", "deadline")


def test_a_trainer_that_was_on_its_way_out_when_it_was_taken_back_has_not_failed() -> None:
    gang = (annotated(deadline="")[0], annotated(deadline="", **exits(names.EXIT_CHECKPOINTED))[1])
    assert given_up(next_step(view(RUNNING, *gang))) == ("Checkpointed", 0)


@pytest.mark.parametrize("deadline", ["", DEADLINE])
def test_nor_is_its_job_complete_where_it_ended_with_0_and_steps_are_left(deadline: str) -> None:
    done = annotated("Succeeded", deadline=deadline)
    others = written(next_step(view(RUNNING, done[0], annotated(deadline="")[1], report=report(500)))).status
    assert (others.plan, find(others, names.COMPLETE)) == (PLAN, "False")
    assert given_up(next_step(view(RUNNING, *done, report=report(500)))) == ("Checkpointed", 0)
    finished = written(next_step(view(RUNNING, *done, report=report(999)))).status
    assert find(finished, names.COMPLETE) == "True"


# --- suspending a running job --------------------------------------------------------------------------------------
def test_a_running_job_that_is_suspended_is_asked_like_any_other() -> None:
    asked = written(next_step(view(RUNNING, *pods("Running"), suspended=True, grace_seconds=GRACE))).status
    assert (stop_of(asked).cause, asked.plan) == (StopCause.SUSPENDED, PLAN)
    assert find(asked, names.SUSPENDED) != "True"
    action = written(ended(asked, report(700, saved=700, acknowledged=True), suspended=True))
    assert (action.status.plan, action.status.stop) == (None, None)
    assert action.status.conditions[-1].reason == "Suspended"
    assert action.happening
    assert action.happening.reason == "Suspended"
    assert action.status.observed
    assert action.status.observed.last_checkpoint_step == 700
    assert next_step(view(action.status, *annotated(), suspended=True)) == deletions("job-1-0", "job-1-1")


def test_a_job_that_is_suspended_while_it_is_asked_for_another_reason_has_no_successor() -> None:
    action = written(ended(RESIZING, suspended=True))
    assert (action.status.plan, find(action.status, names.SUSPENDED)) == (None, "True")
    assert action.status.last_epoch == 1
    assert action.happening
    assert "goes on" not in action.happening.message


def test_a_job_that_is_resumed_while_it_is_asked_is_stopped_and_planned_anew() -> None:
    asked = stops.requested(RUNNING, META, replace(ORDER, cause=StopCause.SUSPENDED), GRACE, NOW)
    status = written(ended(asked)).status
    assert (status.plan, find(status, names.SUSPENDED), find(status, names.PREEMPTED)) == (None, "False", None)
    assert written(next_step(view(status, plan=SUCCESSOR))).status.plan == SUCCESSOR


def test_a_preempted_job_that_is_suspended_is_preempted_no_more() -> None:
    gone = written(ended(ASKED)).status
    assert find(written(next_step(view(gone, suspended=True))).status, names.PREEMPTED) == "False"


def test_a_suspended_job_that_cannot_start_is_suspended_not_set_back() -> None:
    step = next_step(view(PLANNED, *UNBOUND, suspended=True, lost={"n1": "deleted"}))
    assert written(step).status.conditions[-1].reason == "Suspended"
