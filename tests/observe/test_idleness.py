"""When a gang counts as doing nothing: only while everybody who could know has said so, without a break, for long."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from tests.builders import MOMENT, NOW, job_object, placement, plan_of

from trimtab import names
from trimtab.api.status import Condition, JobStatus, Observed, StopRequest, TrainerStatus
from trimtab.observe.idleness import Watched, active_at, begin, may_be_idle, step
from trimtab.observe.jobs import JobFacts, facts
from trimtab_policy.types import StopCause

APART, AFTER = 180.0, 1800.0


class Look(Struct, frozen=True):
    """What a look finds, so many seconds after the last one."""

    after: float
    idle: bool | None
    reported: float | None
    """Seconds since the gang has reported a step, if it has since the last look."""


LOOKS = st.lists(
    st.builds(
        Look,
        st.sampled_from([0.0, 1.0, 5.0, 60.0, APART, APART + 1, 1000.0]),
        st.sampled_from([True] * 8 + [False, None]),
        st.sampled_from([None] * 8 + [0.0, 3.0]),
    ),
    max_size=60,
)


def watch(looks: list[Look], began: float = 0.0) -> list[tuple[float, Look, Watched]]:
    now, active, found = began, began, []
    watched = begin(1, None, began)
    for look in looks:
        now += look.after
        active = max(active, now - look.reported) if look.reported is not None else active
        watched = step(watched, look.idle, active, now, APART)
        found.append((now, look, watched))
    return found


@given(LOOKS)
def test_whoever_is_idle_was_found_so_at_every_look_without_a_gap_and_reported_nothing(looks: list[Look]) -> None:
    history = watch(looks)
    for number, (now, _, watched) in enumerate(history):
        if watched.since is None:
            continue
        assert watched.since <= now
        window = [(at, look) for at, look, _ in history[: number + 1] if at >= watched.since]
        times = [at for at, _ in window]
        if watched.idle_for(AFTER):
            assert all(look.idle for _, look in window[1:])
            assert all(later - earlier <= APART for earlier, later in pairwise(times))
            assert all(look.reported is None or at - look.reported <= watched.since for at, look in window)


@given(LOOKS)
def test_one_look_that_finds_a_gpu_used_or_cannot_tell_ends_it(looks: list[Look]) -> None:
    for _, look, watched in watch(looks):
        assert (watched.since is not None) == bool(look.idle)


def test_a_gang_that_is_watched_for_long_enough_is_idle_once_that_is_over() -> None:
    looks = [Look(60.0, True, None)] * 31
    assert [watched.idle_for(AFTER) for _, _, watched in watch(looks)][-2:] == [False, True]


def test_a_clock_that_goes_back_begins_anew() -> None:
    idle = step(begin(1, None, 100.0), True, 0.0, 200.0, APART)
    assert step(idle, True, 0.0, 190.0, APART).since == 190.0


def test_what_the_status_says_goes_on_counting_with_a_new_controller() -> None:
    watched = step(begin(3, NOW - 5000, NOW), True, NOW - 6000, NOW, APART)
    assert (watched.since, watched.first) == (NOW - 5000, NOW)
    assert step(begin(3, NOW - 5000, NOW), None, NOW - 6000, NOW, APART).since is None


def gang(**changes: object) -> JobFacts:
    ready = Condition(type=names.PODS_READY, status="True", reason="Yes", last_transition_time=MOMENT)
    defaults = {"plan": plan_of(placement(), 2), "last_epoch": 2, "conditions": (ready,)}
    return facts(job_object("job", {}, JobStatus(**(defaults | changes))))


def test_a_gang_is_active_when_it_begins_to_run_and_with_every_report() -> None:
    assert active_at(gang(), None) == MOMENT.timestamp()
    assert active_at(gang(), MOMENT.timestamp() + 100) == MOMENT.timestamp() + 100
    later = MOMENT.replace(year=MOMENT.year + 1)
    told = {"trainer_status": TrainerStatus(last_updated_time=later)}
    assert active_at(gang(observed=Observed(epoch=2, steps_done=7), **told), None) == later.timestamp()
    assert active_at(gang(observed=Observed(epoch=1, steps_done=7), **told), None) == MOMENT.timestamp()


def test_only_gangs_that_run_and_go_on_are_watched() -> None:
    assert may_be_idle(gang())
    assert not may_be_idle(gang(conditions=()))
    stop = StopRequest(
        epoch=2, cause=StopCause.PREEMPTED, message="for another", requested_time=MOMENT, deadline_time=MOMENT
    )
    assert not may_be_idle(gang(stop=stop))
    assert not may_be_idle(gang(plan=None))
