"""Fake pods: they run as long as the performance model predicts, and fail where a job asks for it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.builders import MOMENT, NOW, placement, plan_of

from trimtab import names
from trimtab.api.status import JobStatus
from trimtab.kube.objects import Meta
from trimtab.plan.fake import COMPLETE_DELAY, FAIL_DELAY, FailureRequest, failure_request, pod_annotations, progress

PLACED = placement(nodes={"n1": 4, "n2": 4})


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


def test_progress_goes_in_steps_of_ten_and_never_says_done() -> None:
    running = JobStatus(plan=plan_of(PLACED), start_time=MOMENT)
    told = [progress(running, NOW + seconds) for seconds in (-5, 0, 49, 50, 260, 499, 10_000)]
    assert told == [0, 0, 0, 10, 50, 90, 90]


def test_progress_counts_from_the_start_of_the_standing_plan() -> None:
    restarted = JobStatus(plan=plan_of(PLACED), start_time=MOMENT - timedelta(hours=5))
    assert progress(restarted, NOW + 60) == 10


def test_there_is_no_progress_without_a_running_gang() -> None:
    assert progress(JobStatus(), NOW) is None
    assert progress(JobStatus(plan=plan_of(PLACED)), NOW) is None
