"""What a training reports, in the status of its job: what is written when, and what outlives the gang."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import NOW, job_object, placement, plan_of

from trimtab import names
from trimtab.api import conditions
from trimtab.api.status import JobStatus
from trimtab.apply import transitions
from trimtab.apply.gang_failures import GangFailure
from trimtab.apply.transitions import QUIET_SECONDS, REPORT_SECONDS, GangReport
from trimtab.kube.objects import Meta
from trimtab.observe.jobs import facts

META: Meta = job_object().metadata
BACKOFF = (1.0, 300.0)
LOST = GangFailure("NodeLost", "node n1")


def running() -> JobStatus:
    status = transitions.planned(JobStatus(), META, plan_of(placement(), 3), NOW)
    return transitions.scheduled(status, META, NOW, all_running=True)


def report(step: int = 100, *, at: float = NOW, **changes: Any) -> GangReport:
    return GangReport(**({"epoch": 3, "step": step, "steps": 1000, "received": at, "step_seconds": 0.5} | changes))


def said(status: JobStatus, told: GangReport, now: float | None = None) -> JobStatus:
    return transitions.reported(status, META, told, told.received if now is None else now)


def test_the_first_report_of_a_gang_is_written_at_once() -> None:
    told = report(tokens_per_second=131_072.4, checkpoint_step=90, checkpoint_time=NOW - 5, metrics=(("loss", "2.5"),))
    status = said(running(), told)
    assert status.observed
    assert status.observed.to_wire() == {
        "epoch": 3,
        "stepMilliseconds": 500,
        "tokensPerSecond": 131_072,
        "stepsDone": 100,
        "lastCheckpointStep": 90,
        "lastCheckpointTime": "2026-01-02T03:04:00Z",
    }
    assert status.trainer_status
    assert status.trainer_status.to_wire() == {
        "progressPercentage": 10,
        "estimatedRemainingSeconds": 450,
        "metrics": [{"name": "loss", "value": "2.5"}],
        "lastUpdatedTime": "2026-01-02T03:04:05Z",
    }


def test_a_report_of_another_epoch_or_without_a_plan_changes_nothing() -> None:
    for status in (running(), JobStatus()):
        assert said(status, report(epoch=2)) is status


def test_a_gang_that_goes_on_as_it_did_is_written_every_five_minutes() -> None:
    status = said(running(), report(100))
    for seconds in (1, REPORT_SECONDS, 100, QUIET_SECONDS - 1):
        assert said(status, report(101, at=NOW + seconds)) is status
    after = said(status, report(101, at=NOW + QUIET_SECONDS))
    assert after.observed
    assert after.observed.steps_done == 101


@pytest.mark.parametrize(
    "news", [{"step": 110}, {"step_seconds": 0.6}, {"checkpoint_step": 100, "checkpoint_time": NOW}], ids=str
)
def test_news_is_written_every_half_minute(news: dict[str, Any]) -> None:
    status = said(running(), report(100, checkpoint_step=50, checkpoint_time=NOW - 60))
    told = report(**({"step": 101, "checkpoint_step": 50, "at": NOW + REPORT_SECONDS - 1} | news))
    assert said(status, told) is status
    told = report(**({"step": 101, "checkpoint_step": 50, "at": NOW + REPORT_SECONDS} | news))
    assert said(status, told) is not status


def test_a_training_that_hangs_is_not_written_again() -> None:
    status = said(running(), report(100))
    assert said(status, report(100, at=NOW), now=NOW + 10 * QUIET_SECONDS) is status


@given(st.lists(st.tuples(st.integers(1, 120), st.integers(0, 3), st.floats(0.49, 0.51)), max_size=60))
def test_writes_are_bounded_whatever_is_reported(heard: list[tuple[int, int, float]]) -> None:
    status, now, step, writes = running(), NOW, 0, 0
    for seconds, steps, duration in heard:
        now, step = now + seconds, step + steps
        after = said(status, report(step, at=now, step_seconds=duration))
        assert said(after, report(step, at=now, step_seconds=duration)) is after
        writes += after is not status
        status = after
    assert writes <= 1 + (now - NOW) / REPORT_SECONDS


def test_what_a_training_says_counts_more_than_what_the_clock_does() -> None:
    status = running()
    assert transitions.progressed(status, 50, NOW) is not status
    status = said(status, report(100))
    assert transitions.progressed(status, 50, NOW) is status


def test_an_earlier_checkpoint_is_still_one_when_a_later_report_tells_of_none() -> None:
    status = said(running(), report(100, checkpoint_step=90, checkpoint_time=NOW))
    status = said(status, report(200, at=NOW + 60))
    assert status.observed
    assert (status.observed.last_checkpoint_step, status.observed.steps_done) == (90, 200)


@pytest.mark.parametrize("ending", ["setback", "suspended"])
def test_of_a_gang_that_is_gone_the_steps_count_that_a_checkpoint_keeps(ending: str) -> None:
    status = said(running(), report(100, checkpoint_step=90, checkpoint_time=NOW, ratio=2.0))
    if ending == "setback":
        status = transitions.set_back(status, META, LOST, NOW, BACKOFF)
    else:
        status = transitions.suspended(status, META, NOW)
    known = facts(job_object(status=status))
    assert known.steps_done() == 90
    assert not conditions.holds(status.conditions, names.DRIFTED)
    assert status.observed
    assert status.observed.step_milliseconds is None
    status = transitions.planned(status, META, plan_of(placement(), 4), NOW)
    assert facts(job_object(status=status)).steps_done() == 90


def test_without_a_checkpoint_a_training_begins_anew() -> None:
    status = transitions.set_back(said(running(), report(100)), META, LOST, NOW, BACKOFF)
    assert facts(job_object(status=status)).steps_done() == 0


def test_a_training_that_has_ended_keeps_its_last_figures() -> None:
    status = transitions.completed(said(running(), report(999, metrics=(("loss", "1.2"),))), META, NOW + 9)
    assert status.trainer_status
    assert status.trainer_status.progress_percentage == 100
    assert [(each.name, each.value) for each in status.trainer_status.metrics] == [("loss", "1.2")]


def test_when_a_job_will_end_follows_from_its_steps_once_they_were_measured() -> None:
    status = running()
    assert status.plan
    predicted = status.plan.predicted.finish_time.timestamp()
    assert facts(job_object(status=status)).expected_finish() == predicted
    unmeasured = said(status, report(100, step_seconds=None))
    assert facts(job_object(status=unmeasured)).expected_finish() == predicted
    measured = said(status, report(100, at=NOW + 60, step_seconds=2.0))
    assert facts(job_object(status=measured)).expected_finish() == NOW + 60 + 900 * 2
    assert facts(job_object(status=JobStatus())).expected_finish() is None


# --- drift ------------------------------------------------------------------------------------------------------------
def drifted(status: JobStatus) -> bool:
    return conditions.holds(status.conditions, names.DRIFTED)


def test_a_job_that_is_much_slower_than_predicted_says_so_at_once_and_once() -> None:
    status = said(running(), report(100))
    slow = said(status, report(101, at=NOW + 1, step_seconds=0.7, ratio=1.4))
    assert drifted(slow)
    found = conditions.find(slow.conditions, names.DRIFTED)
    assert found
    assert found.reason == "SlowerThanPredicted"
    assert found.message == "a step takes 0.7 s, 1.40 times the predicted 0.5 s"
    happening = transitions.what_happened(status, slow)
    assert happening
    assert (happening.type, happening.reason) == ("Warning", "Drifted")
    assert said(slow, report(102, at=NOW + 2, step_seconds=0.8, ratio=1.6)) is slow


def test_it_takes_clearly_less_to_be_as_predicted_again() -> None:
    status = said(running(), report(100, ratio=1.3))
    status = said(status, report(101, at=NOW + 1, ratio=1.2))
    assert drifted(status)
    status = said(status, report(102, at=NOW + 2, ratio=1.1))
    assert not drifted(status)


def test_much_faster_is_drift_as_well() -> None:
    found = conditions.find(said(running(), report(ratio=0.7)).conditions, names.DRIFTED)
    assert found
    assert (found.status, found.reason) == ("True", "FasterThanPredicted")


@pytest.mark.parametrize("ratio", [None, 1.0, 0.85, 1.2])
def test_within_the_bounds_there_is_no_such_condition(ratio: float | None) -> None:
    assert conditions.find(said(running(), report(ratio=ratio)).conditions, names.DRIFTED) is None


def test_the_state_of_the_job_stays_the_last_condition() -> None:
    assert said(running(), report(ratio=2.0)).conditions[-1].type == names.PODS_READY


def test_times_are_whole_seconds_in_utc() -> None:
    status = said(running(), report(at=NOW + 0.7))
    assert status.trainer_status
    assert status.trainer_status.last_updated_time == datetime.fromtimestamp(NOW, UTC)
