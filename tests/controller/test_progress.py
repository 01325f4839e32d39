"""Who may say what of a running gang, what is remembered of it, and what it teaches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.builders import gang_pod, job_object, placement, plan_of

from trimtab.api.status import JobStatus, Observed
from trimtab.controller.reports.progress import (
    BACK_REPORTS,
    MIN_STEPS,
    REFINED_STEPS,
    Body,
    Figure,
    MeasuredSteps,
    ProgressReports,
    ReportRefused,
    predicted_seconds,
)
from trimtab.kube.objects import Identity, JobObject, PodObject
from trimtab.observe.jobs import JobFacts, facts

KEY, UID = "default/job", "uid-job"


class Stage:
    """A job with a gang of two pods under epoch 3, and a clock."""

    def __init__(self, settle_seconds: float = 0.0) -> None:
        plan = plan_of(placement(nodes={"n1": 8, "n2": 8}), 3)
        self.jobs = {KEY: job_object(status=JobStatus(plan=plan, last_epoch=3))}
        self.pods = [gang_pod("job", 3, rank, f"n{rank + 1}", phase="Running") for rank in range(2)]
        self.now = 0.0
        self.news: list[str] = []
        self.learned: list[MeasuredSteps] = []
        self.progress = ProgressReports(
            self,
            facts,
            news=self.news.append,
            learn=self.learned.append,
            settle_seconds=settle_seconds,
            clock=lambda: self.now,
        )

    def job_named(self, key: str) -> JobObject | None:
        return self.jobs.get(key)

    def pods_of(self, job: str) -> tuple[PodObject, ...]:
        return tuple(self.pods) if job == Identity(KEY, UID).digest else ()

    def take(self, pod: str = "pod-job-3-0", *, after: float = 10.0, **said: Any) -> str:
        self.now += after
        return self.progress.take(Body(**({"job": KEY, "epoch": 3, "step": 100} | said)), pod)

    def refused(self, pod: str = "pod-job-3-0", **said: Any) -> tuple[int, str]:
        with pytest.raises(ReportRefused) as refusal:
            self.take(pod, **said)
        return refusal.value.status, str(refusal.value)

    def facts(self) -> JobFacts:
        return facts(self.jobs[KEY])

    def ratio(self) -> float | None:
        report = self.progress.report(UID, self.facts())
        assert report
        return report.ratio


def test_the_pod_of_rank_0_speaks_for_its_job() -> None:
    stage = Stage()
    assert stage.take(step=7, checkpoint_step=5, step_seconds=0.5, metrics=(Figure("loss", "2.5"),)) == "accepted"
    report = stage.progress.report(UID, stage.facts())
    assert report
    assert (report.epoch, report.step, report.steps, report.checkpoint_step) == (3, 7, 1000, 5)
    assert (report.step_seconds, report.tokens_per_second) == (0.5, 2 * 1024 * 64)
    assert report.metrics == (("loss", "2.5"),)
    assert stage.news == [UID]
    stage.take(step=8, tokens_per_second=99_000.0)
    report = stage.progress.report(UID, stage.facts())
    assert report
    assert report.tokens_per_second == 99_000


def test_nobody_else_does() -> None:
    stage = Stage()
    stage.pods.append(gang_pod("job", 2, 0, "n1", phase="Running"))
    assert stage.refused(job="default/other") == (403, "job: the token's pod is no pod of default/other")
    assert stage.refused("pod-of-another-job") == (403, "job: the token's pod is no pod of default/job")
    assert stage.refused("pod-job-3-1")[0] == 403
    assert stage.refused("pod-job-2-0") == (409, "the pod belongs to a plan that stands no more")
    assert stage.refused(epoch=2) == (409, "epoch: 2 is not that of the standing plan, 3")
    assert stage.news == []


def test_a_pod_that_has_ended_and_a_job_without_a_plan_say_nothing() -> None:
    stage = Stage()
    stage.pods[0] = gang_pod("job", 3, 0, "n1", phase="Succeeded")
    assert stage.refused()[0] == 409
    stage = Stage()
    stage.jobs[KEY] = job_object(status=JobStatus(last_epoch=3))
    assert stage.refused()[0] == 409
    assert stage.progress.report(UID, stage.facts()) is None


def test_a_checkpoint_of_the_future_is_refused() -> None:
    assert Stage().refused(step=5, checkpoint_step=6) == (422, "checkpointStep: 6 lies after step 5")


def test_a_job_reports_once_a_second_at_most() -> None:
    stage = Stage()
    stage.take(step=1)
    assert stage.refused(step=2, after=0.5)[0] == 429
    assert stage.take(step=2, after=0.5) == "accepted"


def test_steps_do_not_go_back_within_an_epoch_and_may_with_a_new_one() -> None:
    stage = Stage()
    stage.take(step=100)
    assert stage.take(step=99) == "ignored"
    assert stage.take(step=100) == "accepted"
    stage.jobs[KEY] = job_object(status=JobStatus(plan=plan_of(placement(), 4), last_epoch=4))
    assert stage.progress.report(UID, stage.facts()) is None
    stage.pods = [gang_pod("job", 4, 0, "n1", phase="Running")]
    assert stage.take("pod-job-4-0", epoch=4, step=50) == "accepted"


def test_a_trainer_that_starts_anew_in_its_pod_is_believed_after_a_few_reports() -> None:
    stage = Stage()
    for step in (0, 450, 900):
        stage.take(step=step, step_seconds=1.0)
    told = [stage.take(step=500 + number, step_seconds=0.5) for number in range(BACK_REPORTS + MIN_STEPS)]
    assert told[:BACK_REPORTS] == ["ignored"] * (BACK_REPORTS - 1) + ["accepted"]
    assert set(told[BACK_REPORTS:]) == {"accepted"}
    assert stage.ratio() == pytest.approx(1.0)


def test_a_single_report_of_earlier_steps_is_none_of_a_new_start() -> None:
    stage = Stage()
    stage.take(step=100)
    for step in range(101, 110):
        assert [stage.take(step=back) for back in (50, 51, step)] == ["ignored", "ignored", "accepted"]


def test_a_step_far_beyond_the_jobs_is_refused_and_silences_nobody() -> None:
    stage = Stage()
    assert stage.refused(step=10**9) == (422, "step: 1000000000 lies far beyond the job's 1000 steps (above 2000)")
    assert stage.take(step=5) == "accepted"
    assert stage.take(step=1500) == "accepted"


def test_a_checkpoint_that_the_status_knows_is_not_new_after_a_change_of_the_controller() -> None:
    stage = Stage()
    then = datetime(2026, 1, 2, tzinfo=UTC)
    status = stage.facts().status
    known = Observed(epoch=3, steps_done=100, last_checkpoint_step=90, last_checkpoint_time=then)
    stage.jobs[KEY] = job_object(status=status.model_copy(update={"observed": known}))
    for step, saved, new in ((110, 90, False), (120, None, False), (130, 90, False), (140, 130, True)):
        stage.take(step=step, checkpoint_step=saved)
        report = stage.progress.report(UID, stage.facts())
        assert report
        assert report.checkpoint_time
        assert (report.checkpoint_time > then.timestamp()) is new


def test_a_single_slow_report_does_not_count_for_much() -> None:
    stage = Stage()
    for step, seconds in ((0, 0.5), (50, 0.5), (100, 60.0), (150, 0.5)):
        stage.take(step=step, step_seconds=seconds)
    assert stage.ratio() == pytest.approx(1.0)


def test_a_ratio_is_told_only_after_enough_steps() -> None:
    stage = Stage()
    stage.take(step=500, step_seconds=1.0)
    assert stage.ratio() is None
    stage.take(step=500 + MIN_STEPS - 1, step_seconds=1.0)
    assert stage.ratio() is None
    stage.take(step=500 + MIN_STEPS, step_seconds=1.0)
    assert stage.ratio() == pytest.approx(2.0)


def test_a_job_teaches_once_and_once_again_when_its_figure_has_settled() -> None:
    stage = Stage()
    for step in range(0, 3 * REFINED_STEPS, MIN_STEPS):
        stage.take(step=step, step_seconds=0.75)
    assert [(each.facts.meta.uid, each.seconds, each.settled) for each in stage.learned] == [
        (UID, 0.75, False),
        (UID, 0.75, True),
    ]


def test_a_job_teaches_nothing_before_a_slow_card_could_have_been_found() -> None:
    stage = Stage(settle_seconds=150.0)
    for step in range(0, 4 * REFINED_STEPS, REFINED_STEPS // 5):
        stage.take(step=step, step_seconds=0.75)
        assert bool(stage.learned) == (stage.now >= 160.0)
    assert [each.settled for each in stage.learned] == [True]


def test_without_step_times_there_is_nothing_to_learn() -> None:
    stage = Stage()
    for step in range(0, 3 * REFINED_STEPS, 50):
        stage.take(step=step)
    assert stage.learned == []
    assert stage.ratio() is None


def test_what_gone_jobs_said_is_forgotten() -> None:
    stage = Stage()
    stage.take(step=1)
    stage.progress.forget()
    assert stage.progress.report(UID, stage.facts())
    known = stage.facts()
    del stage.jobs[KEY]
    stage.progress.forget()
    assert stage.progress.report(UID, known) is None


def test_the_prediction_is_read_from_the_finer_figure() -> None:
    known = Stage().facts()
    assert known.status.plan
    assert known.training
    predicted = known.status.plan.predicted
    fast = predicted.model_copy(update={"tokens_per_second": 45_000_000, "step_milliseconds": 1})
    plan = known.status.plan.model_copy(update={"predicted": fast})
    assert predicted_seconds(plan, known.training) == pytest.approx(65_536 / 45_000_000)
    slow = predicted.model_copy(update={"tokens_per_second": 3, "step_milliseconds": 21_845_333})
    plan = known.status.plan.model_copy(update={"predicted": slow})
    assert predicted_seconds(plan, known.training) == pytest.approx(21_845.333)
