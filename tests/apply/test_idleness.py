"""What the status of a gang says that does nothing, and how it is stopped and comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import gang_pod, placement, plan_of

from trimtab import names
from trimtab.api import conditions
from trimtab.api.history import StopRecord
from trimtab.api.status import JobStatus
from trimtab.apply import stops, transitions
from trimtab.apply.actions import WriteStatus
from trimtab.apply.change import moment
from trimtab.apply.idleness import MOST_PAUSE_SECONDS, PAUSE_SECONDS, IdleGang, judged, pause
from trimtab.apply.steps import JobContext, next_step
from trimtab.apply.stops import StopOrder
from trimtab.kube.objects import Meta
from trimtab_policy.types import PendingReason, StopCause

META = Meta(name="job", namespace="default", uid="uid-job", generation=1)
BEGAN = 1_767_323_000.0
SINCE = BEGAN + 100
NOW = BEGAN + 2000
FOUND = IdleGang(8, SINCE)
WARNED = IdleGang(8, SINCE, notice_seconds=600.0)


def running() -> JobStatus:
    status = transitions.planned(JobStatus(), META, plan_of(placement()), BEGAN - 20)
    return transitions.scheduled(status, META, BEGAN, all_running=True)


def view(
    status: JobStatus, now: float = NOW, idle: IdleGang | None = None, order: StopOrder | None = None
) -> JobContext:
    pod = gang_pod("job", 1, 0, "n1", phase="Running")
    return JobContext(
        META, status, False, False, 3, now, (1.0, 300.0), pods=(pod,), has_service=True, idle=idle, order=order,
        grace_seconds=60.0,
    )  # fmt: skip


def write(context: JobContext) -> WriteStatus:
    [step] = next_step(context)
    assert isinstance(step, WriteStatus)
    return step


def told(status: JobStatus) -> tuple[str, str]:
    found = conditions.find(status.conditions, names.IDLE)
    return (found.status, found.message) if found else ("", "")


def test_a_gang_that_does_nothing_gets_a_condition_and_an_event_and_keeps_its_state() -> None:
    done = write(view(running(), idle=FOUND))
    assert done.status.idle
    assert (done.status.idle.since_time, done.status.idle.stop_time) == (moment(SINCE), None)
    assert told(done.status)[0] == "True"
    assert "2026-01-02T03:05:00Z" in told(done.status)[1]
    assert done.happening
    assert (done.happening.type, done.happening.reason) == ("Warning", "Idle")
    assert done.status.conditions[-1].type == names.PODS_READY, "the state column says Running as before"
    assert next_step(view(done.status, NOW + 60, FOUND)) == (), "it is said once"


def test_where_it_is_to_be_stopped_condition_and_event_say_when_and_that_is_kept() -> None:
    done = write(view(running(), idle=WARNED))
    assert done.status.idle
    assert done.status.idle.stop_time == moment(NOW + 600)
    assert done.happening
    assert f"stopped at {moment(NOW + 600):%Y-%m-%dT%H:%M:%SZ}" in done.happening.message == told(done.status)[1]
    assert next_step(view(done.status, NOW + 60, replace(WARNED, since=SINCE + 7))) == ()


def test_a_notice_that_comes_later_is_news_and_one_that_is_taken_back_is_not_kept() -> None:
    silent = write(view(running(), idle=FOUND)).status
    warned = write(view(silent, NOW + 900, WARNED))
    assert warned.status.idle
    assert warned.status.idle.stop_time == moment(NOW + 1500)
    assert warned.happening
    assert warned.happening.reason == "Idle"
    spared = write(view(warned.status, NOW + 960, FOUND))
    assert spared.status.idle
    assert spared.status.idle.stop_time is None
    assert spared.happening is None


def test_it_is_over_as_soon_as_nobody_says_so_any_more() -> None:
    idle = write(view(running(), idle=WARNED)).status
    done = write(view(idle, NOW + 60))
    assert done.status.idle is None
    assert told(done.status)[0] == "False"
    assert next_step(view(done.status, NOW + 120)) == ()


@pytest.mark.parametrize("cause", [StopCause.PREEMPTED, StopCause.IDLE])
def test_a_gang_that_has_ended_is_not_idle(cause: StopCause) -> None:
    idle = write(view(running(), idle=FOUND)).status
    asked = stops.requested(idle, META, StopOrder(epoch=1, cause=cause, message="why"), 60.0, NOW)
    assert asked.stop
    for after in (
        stops.stopped(asked, META, asked.stop, "stopped", None, NOW, successor=None),
        transitions.completed(idle, META, NOW),
        transitions.suspended(idle, META, NOW),
    ):
        assert (after.idle, told(after)[0]) == (None, "False")


def test_while_it_is_asked_to_stop_nothing_more_is_said() -> None:
    idle = write(view(running(), idle=WARNED)).status
    order = StopOrder(epoch=1, cause=StopCause.IDLE, message="its notice is over")
    asked = write(view(idle, NOW + 600, WARNED, order))
    assert asked.status.stop
    assert (asked.status.stop.cause, asked.status.stop.deadline_time) == (StopCause.IDLE, moment(NOW + 660))
    assert asked.happening
    assert asked.happening.reason == names.CHECKPOINT_REQUESTED
    assert asked.status.idle == idle.idle


def test_who_was_stopped_for_it_waits_and_is_told_how_long() -> None:
    idle = write(view(running(), idle=WARNED)).status
    asked = stops.requested(idle, META, StopOrder(epoch=1, cause=StopCause.IDLE, message="why"), 60.0, NOW)
    assert asked.stop
    after = stops.stopped(asked, META, asked.stop, "why", None, NOW + 60, successor=None)
    assert after.plan is None
    assert after.retry_time == moment(NOW + 60 + PAUSE_SECONDS)
    assert after.pending
    assert after.pending.reason is PendingReason.BACKING_OFF
    assert (after.restarts, after.setbacks) == (0, 0), "it has not failed"
    assert not conditions.holds(after.conditions, names.PREEMPTED)


def records(causes: list[StopCause]) -> tuple[StopRecord, ...]:
    return tuple(StopRecord(time=moment(BEGAN), epoch=1, cause=cause) for cause in causes)


@given(st.lists(st.sampled_from(StopCause), max_size=16))
def test_each_further_stop_for_idleness_makes_a_longer_pause_up_to_a_day(causes: list[StopCause]) -> None:
    before, after = (pause(records([*causes, *more])) for more in ([StopCause.IDLE], [StopCause.IDLE] * 2))
    assert PAUSE_SECONDS <= before <= after <= MOST_PAUSE_SECONDS
    assert after == min(MOST_PAUSE_SECONDS, 2 * before)
    assert pause(records([StopCause.IDLE] * 16)) == MOST_PAUSE_SECONDS


@given(st.lists(st.sampled_from([None, FOUND, WARNED]), max_size=12))
def test_whatever_is_found_condition_and_field_say_the_same_and_a_promise_never_comes_nearer(
    found: list[IdleGang | None],
) -> None:
    status, now = running(), NOW
    for each in found:
        before, now = status, now + 60
        status = judged(before, META, each, now)
        assert (status.idle is not None) == (each is not None) == conditions.holds(status.conditions, names.IDLE)
        assert judged(status, META, each, now + 30) is status, "the same finding changes nothing"
        if status.idle and status.idle.stop_time:
            assert each
            assert each.notice_seconds is not None
            kept = before.idle.stop_time if before.idle else None
            assert status.idle.stop_time == (kept or moment(now + each.notice_seconds))
