"""What ends a gang, and who pays for it: the life of a job in which things go wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import NOW, gang_pod, placement, plan_of

from trimtab import names
from trimtab.api import conditions
from trimtab.api.history import FailureCause, FailureRecord
from trimtab.api.status import JobStatus
from trimtab.apply import transitions
from trimtab.apply.actions import WriteStatus
from trimtab.apply.gang_failures import FAILURES_KEPT, PAYS, GangFailure, last_word
from trimtab.apply.steps import JobContext, next_step
from trimtab.kube.objects import Meta, PodObject
from trimtab.settings import FailureSettings

META = Meta(name="job", namespace="default", uid="uid-job", generation=1)
NODES = ("n0", "n1", "n2")
PLAN = plan_of(placement(nodes=dict.fromkeys(NODES, 4)))
PLANNED = transitions.planned(JobStatus(), META, PLAN, NOW)
BOUND = transitions.scheduled(PLANNED, META, NOW, all_running=False)
RUNNING = transitions.scheduled(PLANNED, META, NOW, all_running=True)
USER, PROGRAM, MEMORY = FailureCause.USER_ERROR, FailureCause.PROGRAM, FailureCause.OUT_OF_MEMORY
NODE, GPU, OTHER = FailureCause.NODE, FailureCause.GPU, FailureCause.OTHER

Told = dict[str, Any]
RUNS: Told = {"phase": "Running"}
DELETED: Told = {"phase": "Running", "metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}
EVICTED: Told = {"phase": "Failed", "status": {"reason": "Evicted", "message": "memory pressure"}}


def exited(code: int = 1, reason: str = "Error", second: int = 0) -> Told:
    end = {"exitCode": code, "reason": reason, "finishedAt": f"2026-01-02T03:04:{second:02}Z"}
    return {"phase": "Failed", "status": {"containerStatuses": [{"name": "trainer", "state": {"terminated": end}}]}}


def waits(reason: str, message: str = "") -> Told:
    told = {"waiting": {"reason": reason, "message": message}}
    return {"status": {"containerStatuses": [{"name": "trainer", "state": told}]}}


def pods(*told: Told) -> tuple[PodObject, ...]:
    return tuple(gang_pod("job", 1, rank, NODES[rank], **each) for rank, each in enumerate(told))


def view(status: JobStatus, gang: tuple[PodObject, ...], **changes: Any) -> JobContext:
    defaults: dict[str, Any] = {"suspended": False, "finished": False, "max_restarts": 3, "backoff": (1.0, 300.0)}
    return JobContext(META, status, **({"now": NOW + 1} | defaults | {"pods": gang, "has_service": True} | changes))


def after(looked_at: JobContext) -> JobStatus:
    [action] = next_step(looked_at)
    assert isinstance(action, WriteStatus)
    return action.status


def ended(*told: Told, status: JobStatus = RUNNING, **changes: Any) -> FailureRecord:
    """The record of a gang that was given up."""
    given_up = after(view(status, pods(*told), **changes))
    assert given_up.plan is None
    return given_up.failures[-1]


# --- the most telling cause ----------------------------------------------------------------------------------------
def test_what_ended_a_gang_is_kept_in_the_status_in_the_same_write() -> None:
    record = ended(RUNS, exited(), RUNS)
    assert record == FailureRecord(
        time=record.time, epoch=1, generation=1, cause=PROGRAM, reason="PodFailed", node=None, running=True
    )
    assert not ended(exited(), RUNS, RUNS, status=BOUND).running


@pytest.mark.parametrize(
    ("told", "cause", "node"),
    [
        ((exited(second=0), exited(137, "OOMKilled", 9), exited(second=1)), MEMORY, None),
        ((exited(), exited(), EVICTED), NODE, "n2"),
        ((exited(137, "OOMKilled"), exited(), EVICTED), NODE, "n2"),
        ((exited(), exited(127), exited()), USER, None),
        ((exited(), DELETED, exited()), OTHER, None),
        ((exited(137, "OOMKilled"), DELETED, exited()), MEMORY, None),
    ],
)
def test_programs_that_end_because_another_part_of_the_gang_has_ended_hide_nothing(
    told: tuple[Told, ...], cause: FailureCause, node: str | None
) -> None:
    record = ended(*told)
    assert (record.cause, record.node) == (cause, node)


def test_of_several_failed_programs_the_first_is_told() -> None:
    status = after(view(RUNNING, pods(exited(1, second=5), exited(2, second=3), exited(3, second=4))))
    assert status.pending
    assert "pod job-1-1: container trainer exited with 2" in status.pending.message


def test_a_broken_gpu_is_told_before_everything_else() -> None:
    broken = GangFailure("GpuUnhealthy", "node n1: GPU 3", cause=GPU, node="n1")
    record = ended(exited(), EVICTED, exited(), setback=broken)
    assert (record.cause, record.reason, record.node) == (GPU, "GpuUnhealthy", "n1")


def test_a_node_that_is_not_ready_is_why_programs_on_the_others_fail_long_before_it_is_given_up() -> None:
    record = ended(exited(), RUNS, RUNS, unready=frozenset({"n2"}))
    assert (record.cause, record.reason, record.node) == (NODE, "NodeLost", "n2")


def test_a_pod_that_is_gone_with_its_node_is_the_nodes_matter() -> None:
    record = ended(RUNS, RUNS, unready=frozenset({"n2"}))
    assert (record.cause, record.reason, record.node) == (NODE, "PodDeleted", "n2")
    assert ended(RUNS, RUNS).cause is OTHER


def test_a_lost_node_is_blamed() -> None:
    record = ended(RUNS, RUNS, RUNS, lost={"n1": "NotReady for 60 s"}, unready=frozenset({"n1"}))
    assert (record.cause, record.reason, record.node) == (NODE, "NodeLost", "n1")


# --- holding a verdict ---------------------------------------------------------------------------------------------
def test_a_programs_failure_is_not_judged_while_agents_may_still_tell_of_a_broken_gpu() -> None:
    assert next_step(view(RUNNING, pods(RUNS, exited(), RUNS), holding=True)) == ()
    assert ended(RUNS, exited(), RUNS).cause is PROGRAM


@pytest.mark.parametrize("told", [EVICTED, exited(137, "OOMKilled"), exited(127), DELETED])
def test_what_is_plain_is_judged_at_once(told: Told) -> None:
    assert ended(RUNS, told, RUNS, holding=True).cause is not PROGRAM


# --- who pays ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("told", [exited(), exited(137, "OOMKilled"), exited(127)])
def test_what_the_job_has_done_uses_up_its_restarts(told: Told) -> None:
    assert after(view(RUNNING, pods(RUNS, told, RUNS))).restarts == 1
    status = after(view(RUNNING, pods(RUNS, told, RUNS), max_restarts=0))
    assert conditions.holds(status.conditions, names.FAILED)
    assert status.failures[-1].cause in PAYS
    assert "; no restarts are left" in status.conditions[-1].message


@pytest.mark.parametrize("told", [EVICTED, DELETED])
def test_for_what_others_have_done_it_is_tried_for_ever(told: Told) -> None:
    status = RUNNING
    for _ in range(40):
        status = after(view(status, pods(RUNS, told, RUNS), max_restarts=0))
        assert (status.plan, status.restarts) == (None, 0)
        status = status.model_copy(update={"plan": PLAN})
    assert len(status.failures) == FAILURES_KEPT


def test_a_mistake_of_the_user_is_tried_twice_and_no_more() -> None:
    mistake = pods(waits("InvalidImageName", "couldn't parse image"), {}, {})
    status = after(view(BOUND, mistake))
    assert (status.plan, status.restarts, status.failures[-1].cause) == (None, 1, USER)
    again = BOUND.model_copy(update={"failures": status.failures, "restarts": status.restarts})
    status = after(view(again, mistake))
    failed = conditions.find(status.conditions, names.FAILED)
    assert failed
    assert failed.status == "True"
    assert failed.message.startswith("InvalidImageName: pod job-1-0: container trainer cannot be started")
    assert failed.message.endswith("; trying again does not help: mend it in a new job")


def record(cause: FailureCause, generation: int = 1) -> FailureRecord:
    return FailureRecord(time="2026-01-02T03:04:05Z", epoch=1, generation=generation, cause=cause, reason="R")


@pytest.mark.parametrize(
    ("before", "end"),
    [
        ((), False),
        ((record(USER),), True),
        ((record(USER), record(NODE)), False),
        ((record(NODE), record(USER)), True),
        ((record(USER, generation=7),), False),
    ],
)
def test_only_mistakes_in_a_row_in_one_and_the_same_spec_end_a_job(
    before: tuple[FailureRecord, ...], end: bool
) -> None:
    status = RUNNING.model_copy(update={"failures": before})
    assert bool(last_word(GangFailure("CannotStart", "no such command", cause=USER), status, 99, 2)) is end


@given(st.lists(st.sampled_from(FailureCause), max_size=30), st.integers(0, 4), st.integers(1, 3))
def test_a_job_ends_by_its_own_failures_and_by_nothing_else(
    causes: list[FailureCause], max_restarts: int, attempts: int
) -> None:
    status, own = RUNNING, 0
    for cause in causes:
        setback = GangFailure("Reason", "message", cause=cause)
        own += cause in PAYS
        rules = FailureSettings(user_error_attempts=attempts)
        status = after(view(status, pods(RUNS, RUNS, RUNS), setback=setback, max_restarts=max_restarts, rules=rules))
        assert len(status.failures) <= FAILURES_KEPT
        if conditions.holds(status.conditions, names.FAILED):
            tail = [each.cause for each in status.failures[-attempts:]]
            assert cause in PAYS
            assert own > max_restarts or tail == [USER] * attempts
            return
        assert own <= max_restarts
        assert status.restarts == own
        status = status.model_copy(update={"plan": PLAN})


# --- starting ------------------------------------------------------------------------------------------------------
def test_a_gang_that_does_not_run_as_a_whole_in_time_is_given_up_with_the_kubelets_words() -> None:
    slow = pods(RUNS, waits("ImagePullBackOff", "i/o timeout"), RUNS)
    rules = FailureSettings(start_timeout_seconds=600)
    assert next_step(view(BOUND, slow, now=NOW + 599, rules=rules)) == ()
    status = after(view(BOUND, slow, now=NOW + 600, rules=rules))
    assert status.pending
    assert "job-1-1 on n1: ImagePullBackOff i/o timeout" in status.pending.message
    assert (status.failures[-1].reason, status.failures[-1].cause, status.failures[-1].node) == (
        "StartTimeout",
        NODE,
        "n1",
    )


FETCHES: Told = {"status": {"initContainerStatuses": [{"name": "fetch", "state": {"running": {}}}]}}


def fetched(at: str) -> Told:
    end = {"exitCode": 0, "reason": "Completed", "finishedAt": at}
    told = waits("ContainerCreating")
    told["status"]["initContainerStatuses"] = [{"name": "fetch", "state": {"terminated": end}}]
    return told


def test_what_is_fetched_before_the_training_may_take_its_time_and_the_training_has_its_own() -> None:
    assert next_step(view(BOUND, pods(FETCHES, FETCHES, FETCHES), now=NOW + 86_400)) == ()
    after_fetching = pods(*[fetched("2026-01-02T04:04:05Z")] * 3)  # an hour later
    assert next_step(view(BOUND, after_fetching, now=NOW + 3600 + 1799)) == ()
    assert after(view(BOUND, after_fetching, now=NOW + 3600 + 1800)).failures[-1].reason == "StartTimeout"


def test_a_sidecar_that_runs_is_no_sign_that_anything_is_fetched() -> None:
    stuck = pods(FETCHES | {"spec": {"initContainers": [{"name": "fetch", "restartPolicy": "Always"}]}}, RUNS, RUNS)
    assert after(view(BOUND, stuck, now=NOW + 1800)).failures[-1].reason == "StartTimeout"


def test_a_gang_that_has_run_is_not_late() -> None:
    assert next_step(view(RUNNING, pods(RUNS, RUNS, RUNS), now=NOW + 9999)) == ()


# --- mass failure --------------------------------------------------------------------------------------------------
def test_where_lost_nodes_are_not_acted_on_a_condition_says_so_until_they_are_back() -> None:
    gang = pods(RUNS, RUNS, RUNS)
    why = "10 of 20 GPU nodes are lost at once, of this gang n1; nothing is taken down"
    status = after(view(RUNNING, gang, spared=why))
    told = conditions.find(status.conditions, names.DEGRADED)
    assert told
    assert (told.status, told.reason, told.message) == ("True", "MassFailure", why)
    assert conditions.holds(status.conditions[-1:], names.PODS_READY), "the job runs on"
    assert next_step(view(status, gang, spared=why.replace("10", "11"))) == (), "figures that change are no news"
    back = after(view(status, gang))
    assert not conditions.holds(back.conditions, names.DEGRADED)
    assert back.plan == PLAN


def test_a_gang_that_ends_is_degraded_no_more() -> None:
    status = after(view(RUNNING, pods(RUNS, RUNS, RUNS), spared="why"))
    for max_restarts in (0, 3):
        given_up = after(view(status, pods(RUNS, exited(), RUNS), spared="why", max_restarts=max_restarts))
        assert not conditions.holds(given_up.conditions, names.DEGRADED)
