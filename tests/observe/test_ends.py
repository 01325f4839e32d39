"""When a running gang ends: as it says, for as long as it keeps its word; never farther away than a century."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import MOMENT, NOW, job_object, node, node_object, placement, plan_of, snapshot

from trimtab import names
from trimtab.api.status import Condition, JobStatus, Observed, TrainerStatus
from trimtab.observe.snapshot import Caches, ClusterObserver
from trimtab_policy.placement.running_columns import running_columns
from trimtab_policy.placement.runtime import LONGEST, due
from trimtab_policy.specs import Prediction
from trimtab_policy.types import Job

HOUR = 3600.0
CENTURY = 100 * 366 * 86_400.0


class Watch:
    """A gang that was started at NOW, and somebody who looks at it from time to time."""

    def __init__(self, run_seconds: float = 500.0, **spec: Any) -> None:
        self.observer, self.spec = ClusterObserver(()), spec
        figures = Prediction(0.5, 131_072.0, 1 << 33, run_seconds)
        self.plan = plan_of(placement(nodes={"n1": 8}, prediction=figures))
        self.epoch = 1

    def look(self, after: float, remaining: float | None = None, milliseconds: int = 500) -> Job:
        """So many seconds after the start; it says that so many are left."""
        now = MOMENT + timedelta(seconds=after)
        ready = {"type": names.PODS_READY, "status": "True", "reason": "Running", "last_transition_time": MOMENT}
        told: dict[str, Any] = {}
        if remaining is not None:
            left = min(int(remaining), (1 << 63) - 1)
            told["observed"] = Observed(epoch=self.epoch, step_milliseconds=milliseconds, steps_done=10)
            told["trainer_status"] = TrainerStatus(estimated_remaining_seconds=left, last_updated_time=now)
        plan = self.plan.model_copy(update={"epoch": self.epoch})
        status = JobStatus(
            plan=plan, last_epoch=self.epoch, conditions=(Condition(**ready),), start_time=MOMENT, **told
        )
        waiting = job_object(status=status, spec=self.spec)
        [found] = self.observer.observe(Caches([node_object("n1")], [], [waiting]), NOW + after).snapshot.jobs
        return found


def test_a_training_that_reports_is_believed_more_than_its_prediction() -> None:
    watch = Watch()
    assert watch.look(60).expected_finish == NOW + 500
    assert watch.look(60, remaining=HOUR).expected_finish == NOW + 60 + HOUR


def test_one_that_is_always_about_to_end_is_overdue_by_its_own_word() -> None:
    watch = Watch(run_seconds=HOUR)
    assert watch.look(100, remaining=20).expected_finish == NOW + 120
    assert watch.look(150, remaining=20).expected_finish == NOW + 170
    late = watch.look(300, remaining=20)
    assert late.expected_finish == NOW + 120
    assert due(late, NOW + 300) == NOW + 300 + 0.05 * 300


def test_so_it_can_be_stopped_for_others_in_the_end() -> None:
    watch, told = Watch(run_seconds=10 * HOUR), []
    for minutes in range(10, 600, 5):
        job = watch.look(60.0 * minutes, remaining=10)
        now = replace(snapshot([node("n1")], [job]), time=NOW + 60.0 * minutes)
        told.append(bool(running_columns(now).may_be_touched(now).all()))
    assert told[-1], "it has said for ten hours that it ends in ten seconds"


def test_one_that_gets_somewhat_slower_is_still_believed() -> None:
    watch = Watch()
    watch.look(600, remaining=4 * HOUR)
    slower = watch.look(4.5 * HOUR, remaining=0.4 * HOUR)
    assert slower.expected_finish == NOW + 4.9 * HOUR


def test_another_gang_of_the_job_has_a_word_of_its_own() -> None:
    watch = Watch()
    watch.look(100, remaining=10)
    assert watch.look(1000, remaining=10).expected_finish == NOW + 110
    watch.epoch = 2
    assert watch.look(1001, remaining=10).expected_finish == NOW + 1011


@pytest.mark.parametrize("remaining", [86_400 * 10.0**9, 2.0**62, 253_402_300_799.0])
def test_an_end_in_the_year_2739933_is_one_in_a_hundred_years(remaining: float) -> None:
    """A billion steps of a day each: one POST said so, and no job of anybody was decided about any more."""
    finish = Watch().look(60, remaining=remaining, milliseconds=86_400_000).expected_finish
    assert finish == NOW + 60 + LONGEST


@given(st.floats(0, 1e19), st.floats(0, 1e12), st.integers(1, 1 << 62))
def test_whatever_is_said_an_end_is_a_date(remaining: float, run_seconds: float, milliseconds: int) -> None:
    finish = Watch(run_seconds=run_seconds).look(60, remaining=remaining, milliseconds=milliseconds).expected_finish
    assert finish is not None
    assert abs(finish - NOW) <= CENTURY
