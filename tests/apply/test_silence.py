"""A node that falls silent: who is blamed, and when what is left of a gang there is let go."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from tests.apply.test_steps import META, PLAN, RUNNING, view, written
from tests.builders import MOMENT, NOW, gang_pod

from trimtab import names
from trimtab.api.history import FailureCause
from trimtab.api.status import JobStatus
from trimtab.apply import transitions, unreachable_nodes
from trimtab.apply.actions import DeletePod
from trimtab.apply.gang_failures import GangFailure
from trimtab.apply.steps import HUNG_SECONDS, next_step
from trimtab.kube.objects import PodObject
from trimtab.settings import FailureSettings

RULES = FailureSettings()
PATIENCE = RULES.silent_node_seconds
LONG_AGO = {"n2": NOW - PATIENCE}
"""n2 has been silent for just long enough."""


def rank(number: int, size: int = 2, phase: str = "Running", **changes: Any) -> PodObject:
    """A pod of a gang, one for each of the nodes n1, n2, ..."""
    metadata = {"annotations": {names.ANNOTATION_GANG: str(size)}} if size else {}
    return gang_pod("job", 1, number, f"n{number + 1}", phase=phase, metadata=metadata | changes)


def failed(cause: FailureCause = FailureCause.PROGRAM) -> JobStatus:
    """The job waits after its first gang has failed."""
    setback = GangFailure("PodFailed", "pod job-1-0: exited with 1", cause=cause)
    return transitions.set_back(RUNNING, META, setback, NOW, (1.0, 300.0))


# --- letting go ------------------------------------------------------------------------------------------------------
def test_a_rank_whose_peer_has_ended_is_let_go_once_its_node_was_silent_for_long() -> None:
    left = rank(1)
    assert list(unreachable_nodes.abandoned([left], LONG_AGO, RULES, NOW)) == [left.metadata.uid]
    [why] = unreachable_nodes.abandoned([left], LONG_AGO, RULES, NOW).values()
    assert why == (
        "pod job-1-1 is deleted by force: nothing was heard of node n2 for 300 s, and 1 of its gang of 2 pods have "
        "ended: it cannot compute alone"
    )
    assert unreachable_nodes.abandoned([left], LONG_AGO, RULES, NOW - 1) == {}
    assert unreachable_nodes.due([left], LONG_AGO, RULES, NOW - 1) == NOW
    assert unreachable_nodes.due([left], LONG_AGO, RULES, NOW) == math.inf


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_peer_that_has_ended_and_is_still_there_counts_as_ended(phase: str) -> None:
    assert len(unreachable_nodes.abandoned([rank(0, phase=phase), rank(1)], LONG_AGO, RULES, NOW)) == 1


@pytest.mark.parametrize(
    ("pods", "silent"),
    [
        ([rank(0), rank(1)], LONG_AGO),
        ([rank(0), rank(1)], {"n1": 0.0, "n2": 0.0}),
        ([rank(0, size=1)], {"n1": 0.0}),
        ([rank(1, size=0)], LONG_AGO),
        ([rank(1)], {}),
        ([rank(1)], {"n1": 0.0}),
        ([rank(1, phase="Failed")], LONG_AGO),
    ],
    ids=["peer-alive", "all-silent", "alone", "size-unknown", "node-answers", "another-node", "has-ended"],
)
def test_whatever_may_still_compute_or_has_a_kubelet_is_waited_for(
    pods: list[PodObject], silent: dict[str, float]
) -> None:
    assert unreachable_nodes.abandoned(pods, silent, RULES, NOW) == {}
    assert unreachable_nodes.due(pods, silent, RULES, NOW) == math.inf


def test_who_makes_sure_of_machines_in_another_way_lets_go_of_whole_gangs_and_who_trusts_nobody_of_none() -> None:
    always, never = (RULES.model_copy(update={"silent_nodes": word}) for word in ("Always", "Wait"))
    alone = [rank(0, size=1)]
    assert len(unreachable_nodes.abandoned(alone, {"n1": 0.0}, always, NOW)) == 1
    assert unreachable_nodes.abandoned([rank(1)], LONG_AGO, never, NOW) == {}


def test_a_pod_of_a_silent_node_is_asked_to_end_then_deleted_by_force_and_then_the_job_goes_on() -> None:
    waits = failed(FailureCause.NODE)
    soon = {"n2": NOW - PATIENCE + 60}
    asked = next_step(view(waits, rank(1), plan=PLAN, silent=soon))
    assert asked == (DeletePod("job-1-1", rank(1).metadata.uid, force=False),)
    going = rank(1, deletionTimestamp="2026-01-02T03:04:05Z")
    assert next_step(view(waits, going, plan=PLAN, silent=soon)) == ()
    told = written(next_step(replace(view(waits, going, plan=PLAN, silent=soon), now=NOW + HUNG_SECONDS + 1)))
    until = MOMENT + timedelta(seconds=60)
    assert told.status.pending
    assert f"to end until {until:%H:%M:%S} UTC" in told.status.pending.message
    [forced] = next_step(replace(view(told.status, going, plan=PLAN, silent=soon), now=NOW + 60))
    assert isinstance(forced, DeletePod)
    assert forced.force
    assert "by force" in forced.why
    again = replace(view(told.status, going, plan=PLAN, silent=soon), now=NOW + 60, deleted={going.metadata.uid: True})
    assert next_step(again) == (), "asked once"
    assert written(next_step(view(told.status, plan=PLAN))).status.plan


def test_of_a_pod_that_not_even_force_removes_no_end_is_told_and_it_is_told_once() -> None:
    kept = rank(1, deletionTimestamp="2026-01-02T03:04:05Z", finalizers=["example.com/keep"])
    forced = {kept.metadata.uid: True}
    for where in ({"silent": LONG_AGO}, {"gone_nodes": frozenset({"n2"})}):
        waits = view(failed(FailureCause.NODE), kept, plan=PLAN, deleted=forced, **where)
        told = written(next_step(replace(waits, now=NOW + HUNG_SECONDS + 1))).status
        assert told.pending
        assert "to end: two gangs" in told.pending.message
        assert next_step(replace(waits, status=told, now=NOW + HUNG_SECONDS + 100)) == ()


def test_a_node_that_is_gone_explains_a_failure_just_before() -> None:
    action = written(next_step(replace(view(failed(), rank(1), gone_nodes=frozenset({"n2"})), now=NOW + 30)))
    assert action.status.restarts == 0


def test_a_running_gang_is_never_deleted_by_force() -> None:
    assert not any(
        isinstance(action, DeletePod) for action in next_step(view(RUNNING, rank(0), rank(1), silent=LONG_AGO))
    )


# --- who is blamed ---------------------------------------------------------------------------------------------------
def test_a_failure_that_a_silent_node_explains_costs_no_restart() -> None:
    booked = failed()
    assert booked.restarts == 1
    action = written(next_step(view(booked, rank(1), silent={"n2": NOW + 40})))
    [record] = action.status.failures
    assert (record.cause, record.reason, record.node) == (FailureCause.NODE, "NodeLost", "n2")
    assert record.time == booked.failures[0].time
    assert (action.status.restarts, action.status.retry_time) == (0, booked.retry_time)
    assert action.happening
    assert (action.happening.type, action.happening.reason) == ("Warning", "NodeLost")
    again = next_step(view(action.status, rank(1), silent={"n2": NOW + 40}))
    assert not any(hasattr(each, "status") for each in again), "corrected once"


@pytest.mark.parametrize(
    ("status", "pod", "silent"),
    [
        (failed(), rank(1), {"n2": NOW + unreachable_nodes.EXCUSED_SECONDS + 1}),
        (failed(), rank(1), {"n1": NOW}),
        (failed(), gang_pod("job", 2, 1, "n2"), {"n2": NOW}),
        (failed(FailureCause.OUT_OF_MEMORY), rank(1), {"n2": NOW}),
        (failed(FailureCause.USER_ERROR), rank(1), {"n2": NOW}),
    ],
    ids=["much-later", "another-node", "another-gang", "out-of-memory", "user-error"],
)
def test_any_other_failure_stays_as_it_was_booked(status: JobStatus, pod: PodObject, silent: dict[str, float]) -> None:
    assert unreachable_nodes.excused(status, [pod], silent) is None
