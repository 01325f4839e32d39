"""What a restart took, in the record of the stop: the time to save, and that until the training went on."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.builders import MOMENT, NOW, job_object, leaving, placement, plan_of

from trimtab.api.history import StopRecord
from trimtab.api.status import JobStatus, Plan
from trimtab.apply import stops, transitions
from trimtab.apply.stops import StopOrder
from trimtab.apply.transitions import GangReport
from trimtab.kube.objects import Meta
from trimtab_policy.types import StopCause

META: Meta = job_object().metadata
GRACE = 60.0
SUCCESSOR = plan_of(placement(nodes={"n2": 8}), 2, now=MOMENT + timedelta(seconds=12))


def asked(successor: Plan | None = None) -> JobStatus:
    """It runs, and is to save its state."""
    running = transitions.scheduled(
        transitions.planned(JobStatus(), META, plan_of(placement(), 1), NOW - 500), META, NOW - 490, all_running=True
    )
    order = StopOrder(epoch=1, cause=StopCause.RESIZED, message="more", successor=successor)
    return stops.requested(running, META, order, GRACE, NOW)


def gang(status: JobStatus, now: float) -> stops.PlannedGang:
    assert status.plan
    return stops.PlannedGang(meta=META, status=status, plan=status.plan, pods={}, now=now, grace_seconds=GRACE)


def saved(at: float) -> JobStatus:
    """It says so at that time, and is stopped a little later."""
    status = asked()
    assert status.stop
    status = stops.acknowledged(status, status.stop, None, at)
    change = stops.next_change(gang(status, at + 2))
    assert change
    return change.status


def last(status: JobStatus) -> StopRecord:
    return status.stops[-1]


def again(status: JobStatus, plan: Plan = SUCCESSOR, *, after: float = 30.0) -> JobStatus:
    """Its next gang runs so many seconds after it was planned."""
    began = plan.created_time.timestamp()
    status = transitions.planned(status, META, plan, began)
    return transitions.scheduled(status, META, began + after, all_running=True)


def told(status: JobStatus, step: int, *, after: float, step_seconds: float | None = None) -> JobStatus:
    at = SUCCESSOR.created_time.timestamp() + after
    return transitions.reported(status, META, GangReport(2, step, 1000, at, step_seconds), at)


def test_the_time_to_save_ends_with_the_answer() -> None:
    record = last(saved(NOW + 12))
    assert (record.save_seconds, record.start_seconds) == (12, None)


def test_of_a_gang_that_did_not_answer_nobody_knows_how_long_it_takes_to_save() -> None:
    change = stops.next_change(gang(asked(), NOW + GRACE + 1))
    assert change
    assert change.status.plan is None
    assert last(change.status).save_seconds is None


def test_it_is_back_when_its_pods_run_or_when_it_computes_where_it_says_so() -> None:
    status = again(saved(NOW + 12))
    assert (last(status).save_seconds, last(status).start_seconds) == (12, 30)
    assert last(told(status, 40, after=100, step_seconds=0.5)).start_seconds == 80
    assert last(told(status, 0, after=100)).start_seconds == 100
    late = told(told(status, 40, after=100, step_seconds=0.5), 90, after=900, step_seconds=0.5)
    assert last(late).start_seconds == 80, "the first report counts"


def test_what_an_earlier_gang_has_done_is_not_taken_off() -> None:
    status = saved(NOW + 12)
    done = GangReport(1, 400, 1000, NOW + 11, 0.5)
    before = transitions.heard(asked(), done)
    assert before.observed
    status = again(status.model_copy(update={"observed": before.observed}))
    assert last(told(status, 440, after=100, step_seconds=0.5)).start_seconds == 80


def test_a_plan_that_waits_for_others_tells_nothing() -> None:
    status = again(saved(NOW + 12), SUCCESSOR.model_copy(update={"waits_for": (leaving("victim", 2, "team"),)}))
    assert last(told(status, 40, after=100)).start_seconds is None


@pytest.mark.parametrize("epoch", [3, 4])
def test_nor_does_one_that_follows_a_gang_that_was_not_asked(epoch: int) -> None:
    plan = plan_of(placement(nodes={"n2": 8}), epoch, now=MOMENT + timedelta(seconds=12))
    assert last(again(saved(NOW + 12), plan)).start_seconds is None
