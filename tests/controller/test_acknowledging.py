"""From the request in a job's status to the trainer and back: who may acknowledge what, and when it counts."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.builders import MOMENT, NOW, job_object, placement, plan_of
from tests.controller.test_progress import KEY, UID, Stage
from tests.controller.test_reports import Desk, Known, Vouching

from trimtab import report
from trimtab.api.status import JobStatus, Observed, StopRequest
from trimtab.controller.reports.progress import SaveRequest
from trimtab_policy.types import StopCause

STOP = StopRequest(
    epoch=3,
    cause=StopCause.PREEMPTED,
    message="for others",
    requested_time=MOMENT,
    deadline_time=MOMENT + timedelta(seconds=120),
)


def ask(stage: Stage, stop: StopRequest | None = STOP, **status: Any) -> None:
    plan = plan_of(placement(nodes={"n1": 8, "n2": 8}), 3)
    stage.jobs[KEY] = job_object(status=JobStatus(plan=plan, last_epoch=3, stop=stop, **status))


def acknowledged(stage: Stage) -> bool:
    told = stage.progress.report(UID, stage.facts())
    assert told
    return told.acknowledged


def test_the_answer_says_by_when_and_why() -> None:
    stage = Stage()
    assert stage.progress.asked(KEY) is None
    ask(stage)
    assert stage.progress.asked(KEY) == SaveRequest("2026-01-02T03:06:05Z", "Preempted")
    assert stage.progress.asked("default/other") is None


def test_an_acknowledgement_counts_while_it_is_asked_for() -> None:
    stage = Stage()
    ask(stage)
    stage.take(step=100)
    assert not acknowledged(stage)
    stage.take(step=110, checkpoint_step=110, acknowledged=True)
    assert acknowledged(stage)
    told = stage.progress.report(UID, stage.facts())
    assert told
    assert (told.step, told.checkpoint_step) == (110, 110)


def test_it_comes_at_once_and_twice_without_harm() -> None:
    stage = Stage()
    ask(stage)
    stage.take(step=100)
    assert stage.take(step=100, acknowledged=True, after=0.01) == "accepted"
    assert stage.refused(step=100, acknowledged=True, after=0.01)[0] == 429  # it was heard: the usual pause
    stage.take(step=100, acknowledged=True)
    assert acknowledged(stage)


def test_it_counts_whatever_step_it_tells_of() -> None:
    stage = Stage()
    ask(stage)
    stage.take(step=100)
    assert stage.take(step=90, checkpoint_step=90, acknowledged=True) == "accepted"
    assert acknowledged(stage)


def test_one_that_nobody_asked_for_means_nothing() -> None:
    stage = Stage()
    stage.take(step=100, acknowledged=True)
    assert not acknowledged(stage)
    assert stage.refused(step=100, acknowledged=True, after=0.01)[0] == 429
    ask(stage)
    assert not acknowledged(stage)


def test_one_of_a_request_that_was_taken_back_does_not_answer_the_next_one() -> None:
    stage = Stage()
    ask(stage)
    stage.take(step=100, acknowledged=True)
    ask(stage, None)
    assert not acknowledged(stage)
    ask(stage, STOP.model_copy(update={"requested_time": MOMENT + timedelta(seconds=60)}))
    assert not acknowledged(stage)


def test_another_plans_pod_acknowledges_nothing() -> None:
    stage = Stage()
    ask(stage)
    assert stage.refused(epoch=2, acknowledged=True)[0] == 409
    assert stage.refused("pod-job-3-1", acknowledged=True)[0] == 403
    assert stage.progress.report(UID, stage.facts()) is None
    ask(stage, STOP.model_copy(update={"epoch": 2}))
    stage.take(step=100, acknowledged=True)
    assert not acknowledged(stage)


def test_a_controller_that_starts_anew_hears_it_first() -> None:
    stage = Stage()
    ask(stage, observed=Observed(epoch=3, steps_done=50))
    stage.take(step=100, checkpoint_step=100, acknowledged=True)
    assert acknowledged(stage)


def test_a_gang_that_goes_on_may_begin_at_the_last_checkpoint() -> None:
    stage = Stage()
    saved = Observed(epoch=2, steps_done=80, last_checkpoint_step=80, last_checkpoint_time=MOMENT)
    ask(stage, None, observed=saved)
    assert stage.take(step=81) == "accepted"
    told = stage.progress.report(UID, stage.facts())
    assert told
    assert (told.step, told.checkpoint_step, told.checkpoint_time) == (81, 80, NOW)


# --- with the client --------------------------------------------------------------------------------------------------
class Asking(Known):
    """One job that reports, and is asked to save its state at some point."""

    def ask(self) -> None:
        job = self.jobs["reports/mine"]
        status = JobStatus(
            plan=plan_of(placement(nodes={"n1": 8})), last_epoch=1, stop=STOP.model_copy(update={"epoch": 1})
        )
        self.jobs["reports/mine"] = replace(job, status=job_object("mine", status=status, namespace="reports").status)


async def test_the_request_reaches_the_training_with_the_next_report_and_the_answer_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Asking({"mine": "pod-a"})
    desk = Desk(known, Vouching())
    monkeypatch.setattr("trimtab.controller.reports.progress.LEAST_SECONDS", 0.0)
    async with desk.server:
        (tmp_path / "token").write_text("pod-a")
        for name in ("RANK", "PET_NODE_RANK", "TRIMTAB_CHECKPOINT_FILE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"URL": desk.server.url, "JOB": "reports/mine", "SECONDS": "0.1"}.items():
            monkeypatch.setenv(f"TRIMTAB_REPORT_{name}", value)
        monkeypatch.setenv("TRIMTAB_EPOCH", "1")
        reporter = report.Reporter(str(tmp_path / "token"))
        told = 0
        while not reporter.should_checkpoint():
            told += 1
            reporter.step(told)
            if told == 3:
                known.ask()
            await asyncio.sleep(0.05)
            assert told < 1000
        await asyncio.to_thread(reporter.checkpointed, told)
        said = desk.progress.report("uid-mine", desk.progress._read(known.jobs["reports/mine"]))
        assert said
        assert (said.acknowledged, said.step, said.checkpoint_step) == (True, told, told)
        await asyncio.to_thread(reporter.close)
