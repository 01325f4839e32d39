"""Fake gangs: they run as long as the performance model predicts, fail where a job asks for it, and answer."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import NOW, placement, plan_of

from trimtab import names
from trimtab.api.status import JobStatus, Observed
from trimtab.apply import transitions
from trimtab.kube.objects import Meta
from trimtab.plan.fake import (
    COMPLETE_DELAY,
    FAIL_DELAY,
    IGNORES,
    Answer,
    FailureRequest,
    FakeRun,
    answer,
    answers_at,
    failure_request,
    next_progress,
    pod_annotations,
    progress,
    run_of,
)

PLACED = placement(nodes={"n1": 4, "n2": 4})
META = Meta(name="job", namespace="default", uid="uid-job", generation=1)
RUNNING = transitions.scheduled(
    transitions.planned(JobStatus(), META, plan_of(PLACED), NOW), META, NOW, all_running=True
)


def meta(fail: str | None = None) -> Meta:
    return Meta(name="job", annotations={names.ANNOTATION_FAKE_FAIL: fail} if fail else {})


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("0@0.5", FailureRequest(0, 0.5, 1)),
        ("12@1x3", FailureRequest(12, 1.0, 3)),
        ("1@0", FailureRequest(1, 0.0, 1)),
        ("1@1.0x2", FailureRequest(1, 1.0, 2)),
    ],
)
def test_a_failure_is_asked_for_by_rank_fraction_and_times(text: str, meaning: FailureRequest) -> None:
    assert failure_request(text) == meaning


@pytest.mark.parametrize(
    "text", ["", "1", "@0.5", "1@", "1@1.5", "1@-0.5", "x@0.5", "1@0.5x", "1@0.5 ", "1@2", "-1@0.5"]
)
def test_a_malformed_request_is_none(text: str) -> None:
    assert failure_request(text) is None
    assert pod_annotations(meta(text), plan_of(PLACED), 1.0) == pod_annotations(meta(), plan_of(PLACED), 1.0)


def test_pods_complete_after_the_predicted_time_divided_by_the_speedup() -> None:
    assert pod_annotations(meta(), plan_of(PLACED, epoch=2), 100.0) == {
        "job-2-0": {COMPLETE_DELAY: "5000ms"},
        "job-2-1": {COMPLETE_DELAY: "5000ms"},
    }


@pytest.mark.parametrize(("speedup", "delay"), [(1e9, "1ms"), (1e-12, "3153600000000ms")])
def test_delays_stay_within_what_a_go_duration_can_say(speedup: float, delay: str) -> None:
    assert pod_annotations(meta(), plan_of(PLACED), speedup)["job-1-0"] == {COMPLETE_DELAY: delay}


def test_the_asked_rank_fails_in_the_first_epochs_only() -> None:
    first, second, third = (pod_annotations(meta("1@0.5x2"), plan_of(PLACED, epoch=epoch), 1.0) for epoch in (1, 2, 3))
    assert first == {"job-1-0": {COMPLETE_DELAY: "500000ms"}, "job-1-1": {FAIL_DELAY: "250000ms"}}
    assert second["job-2-1"] == {FAIL_DELAY: "250000ms"}
    assert third["job-3-1"] == {COMPLETE_DELAY: "500000ms"}


def test_a_rank_that_the_gang_does_not_have_fails_nobody() -> None:
    assert pod_annotations(meta("2@0.5"), plan_of(PLACED), 1.0) == pod_annotations(meta(), plan_of(PLACED), 1.0)


def test_a_gang_that_goes_on_runs_for_what_is_left_only() -> None:
    assert pod_annotations(meta("1@0.5x9"), plan_of(PLACED), 10.0, left=0.2) == {
        "job-1-0": {COMPLETE_DELAY: "10000ms"},
        "job-1-1": {FAIL_DELAY: "5000ms"},
    }


# --- how far it is -------------------------------------------------------------------------------------------------
def run(status: JobStatus) -> FakeRun:
    """Of 1000 steps in 500 s."""
    found = run_of(status, 1000, 1.0)
    assert found
    return found


def test_there_is_no_run_before_the_gang_runs() -> None:
    planned = transitions.planned(JobStatus(), META, plan_of(PLACED), NOW)
    bound = transitions.scheduled(planned, META, NOW, all_running=False)
    assert [run_of(status, 1000, 1.0) for status in (JobStatus(), planned, bound)] == [None] * 3
    assert run(RUNNING) == FakeRun(began=NOW, seconds=500.0, first=0, steps=1000)


def test_progress_goes_in_steps_of_ten_and_never_says_done() -> None:
    told = [progress(run(RUNNING), NOW + seconds) for seconds in (-5, 0, 49, 50, 260, 499, 10_000)]
    assert told == [0, 0, 0, 10, 50, 90, 90]


def test_a_gang_that_goes_on_begins_where_the_last_one_had_saved() -> None:
    saved = Observed(epoch=1, steps_done=400, last_checkpoint_step=400)
    second = transitions.planned(JobStatus(observed=saved, last_epoch=1), META, plan_of(PLACED, epoch=2), NOW)
    resumed = run(transitions.scheduled(second, META, NOW + 30, all_running=True))
    assert resumed == FakeRun(began=NOW + 30, seconds=300.0, first=400, steps=1000)
    assert [resumed.step(NOW + seconds) for seconds in (0, 30, 180, 330, 999)] == [400, 400, 700, 1000, 1000]
    assert progress(resumed, NOW + 30) == 40


@given(first=st.integers(0, 999), steps=st.integers(1, 1000), seconds=st.floats(1, 1e6), now=st.floats(0, 2e6))
def test_it_is_known_when_progress_changes(first: int, steps: int, seconds: float, now: float) -> None:
    anything = FakeRun(0.0, seconds, min(first, steps), steps)
    until = next_progress(anything, now)
    assert (until == math.inf) == (progress(anything, now) == 90)
    if until < math.inf:
        later = now + until + 1e-6 * (now + until) + 1e-3
        assert progress(anything, later) > progress(anything, now)


# --- asked to save its state ---------------------------------------------------------------------------------------
def asked(text: str | None, after: float) -> Answer:
    """What the gang says so long after it was asked, 100 s into its run."""
    annotations = {} if text is None else {names.ANNOTATION_FAKE_CHECKPOINT: text}
    return answer(Meta(name="job", annotations=annotations), run(RUNNING), NOW + 100, NOW + 100 + after)


def test_a_fake_trainer_saves_the_step_it_has_reached_at_once() -> None:
    assert asked(None, 0) == Answer(step=200, saved=200, done=True)


def test_it_takes_the_seconds_that_its_job_says() -> None:
    assert asked("30", 29) == Answer(step=258, saved=200, done=False)
    assert asked("30", 30) == Answer(step=260, saved=260, done=True)
    assert asked("0.5", 1).done


def test_a_deaf_one_has_a_checkpoint_of_every_tenth_of_its_run_and_no_other() -> None:
    assert asked(IGNORES, 0) == Answer(step=200, saved=200, done=False)
    assert asked(IGNORES, 149) == Answer(step=498, saved=400, done=False)
    assert answers_at(Meta(name="job", annotations={names.ANNOTATION_FAKE_CHECKPOINT: IGNORES}), NOW) == math.inf


@pytest.mark.parametrize("text", ["", "soon", "-1", "1e9", "nan"])
def test_a_malformed_answer_is_one_at_once(text: str) -> None:
    assert asked(text, 0).done
