"""The record of a run: times per job and GPU-seconds per type, from nothing but successive looks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from trimtab.api import conditions
from trimtab.api.status import Condition, JobStatus, PendingStatus, Plan
from trimtab.kube.objects import Meta
from trimtab.names import COMPLETE, PODS_READY, REASON_COMPLETED, REASON_RUNNING
from trimtab.observe.jobs import JobFacts
from trimtab.observe.snapshot import Observation
from trimtab_local.demo.history import History
from trimtab_policy.types import Node, PendingReason, Snapshot

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
PLAN = Plan.model_validate(
    {
        "epoch": 1, "observedGeneration": 1, "createdTime": MOMENT, "policy": "best_fit", "reason": "why not",
        "gpuType": "T4", "gpuResource": "nvidia.com/gpu", "gpus": 4, "mode": "Data", "summary": "dp=4 tp=1 pp=1",
        "parallelism": {"data": 4, "tensor": 1, "pipeline": 1, "context": 1, "expert": 1, "microBatch": 1,
                        "zeroStage": 0, "recompute": "None"},
        "nodeCount": 1, "nodes": [{"name": "t4-0", "gpus": 4}],
        "predicted": {"stepMilliseconds": 1, "tokensPerSecond": 1, "memoryBytesPerGpu": 1, "runSeconds": 3600,
                      "finishTime": MOMENT},
    }
)  # fmt: skip


def status(*true: tuple[str, str], **fields: Any) -> JobStatus:
    held = [Condition(type=kind, status="True", reason=why, last_transition_time=MOMENT) for kind, why in true]
    return JobStatus(conditions=conditions.merge(conditions.initial(1, MOMENT), held), **fields)


def look(job: JobStatus, held: int = 0) -> Observation:
    facts = JobFacts(Meta(name="train", namespace="default", uid="1"), job, created=0.0)
    node = Node("t4-0", "T4", 8, 8 - held, 0, 0, 0)
    snapshot = Snapshot(0.0, (node,), (), {})
    return Observation(snapshot, {"1": facts}, nodes={}, refused={}, overallocated={}, problems=())


WAITING = status(pending=PendingStatus(reason=PendingReason.INSUFFICIENT_GPUS, message="all busy"))
PLANNED = status(plan=PLAN, last_epoch=1)
RUNNING = status((PODS_READY, REASON_RUNNING), plan=PLAN, last_epoch=1, start_time=MOMENT)
COMPLETED = status((COMPLETE, REASON_COMPLETED), plan=PLAN, last_epoch=1, start_time=MOMENT)


@pytest.fixture
def history() -> History:
    """Arrives at 10, is planned at 13, runs at 14 and is done at 24."""
    history = History()
    for now, state, held in (
        (10, JobStatus(), 0),
        (11, WAITING, 0),
        (13, PLANNED, 4),
        (14, RUNNING, 4),
        (24, COMPLETED, 0),
    ):
        history.note(look(state, held), now)
    return history


def test_times_of_a_job_are_those_between_its_states(history: History) -> None:
    trail = history.trails["train"]
    assert (trail.queued_seconds(), trail.starting_seconds()) == (3, 1)
    assert (trail.running_seconds(), trail.completion_seconds()) == (10, 14)


def test_what_a_job_waited_for_is_remembered_after_it_runs(history: History) -> None:
    waited_for = history.trails["train"].waited_for
    assert waited_for is not None
    assert waited_for.message == "all busy"


def test_gpus_are_charged_for_as_long_as_a_job_held_them(history: History) -> None:
    assert history.gpus["T4"].held_seconds == 4 * (24 - 13)
    assert history.utilisation("T4") == 4 * 11 / (8 * 14)


def test_a_job_that_waits_for_others_is_not_over_and_one_that_waiting_cannot_help_is() -> None:
    history = History()
    history.note(look(WAITING), 1)
    assert not history.trails["train"].over
    impossible = status(pending=PendingStatus(reason=PendingReason.NO_FEASIBLE_PLAN, message="too big"))
    history.note(look(impossible), 2)
    assert history.trails["train"].over
    assert history.trails["train"].completion_seconds() is None


def test_before_the_first_job_nothing_has_begun() -> None:
    assert History().seconds == 0
