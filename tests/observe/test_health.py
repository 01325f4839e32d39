"""Which fault means what, and how a node is judged from one look to the next: the table, and every step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import fault, gpu_reading, gpunode_object

from trimtab import names
from trimtab.observe import health, telemetry
from trimtab.observe.health import APPLICATION_XIDS, XIDS, HealthState, NodeHealth, SickGpu
from trimtab.observe.telemetry import NodeTelemetry

BEFORE, AFTER = "2026-01-02T02:00:00Z", "2026-01-02T04:00:00Z"
"""`fault()` is of 03:00."""


def told(*faults: dict[str, Any], repaired: str = "", **changes: Any) -> NodeTelemetry:
    """A node of two GPUs; number 1 has the faults."""
    meta = {"annotations": {names.ANNOTATION_REPAIRED: repaired}} if repaired else {}
    gpus = [gpu_reading(0), gpu_reading(1, faults=list(faults), **changes)]
    return telemetry.read_telemetry(gpunode_object(gpus=gpus, metadata=meta))


def reasons(node: NodeTelemetry) -> list[str]:
    return [bad.reason for bad in health.bad_gpus(node)]


WELL, ILL = told(), told(fault(code=79))


# --- faults --------------------------------------------------------------------------------------------------------
FATAL = {46, 48, 61, 62, 64, 74, 79, 95, 110, 119, 120, 140, 143}


def test_the_xids_that_take_a_gpu_away() -> None:
    assert {code for code in range(1, 1000) if reasons(told(fault(code=code)))} == FATAL
    assert reasons(told(fault(code=79))) == [names.REASON_XID_FATAL]


@pytest.mark.parametrize("code", sorted(APPLICATION_XIDS))
def test_mistakes_of_programs_are_not_held_against_a_gpu(code: int) -> None:
    node = told(fault(code=code))
    assert (health.bad_gpus(node), health.remarks(node)) == ((), ())


@pytest.mark.parametrize("code", [63, 92, 94, 154, 999])
def test_other_xids_are_told_and_not_acted_on(code: int) -> None:
    node = told(fault(code=code))
    assert health.bad_gpus(node) == ()
    assert [remark.split(",")[0] for remark in health.remarks(node)] == [f"GPU 1: XID {code}"]


def test_no_xid_is_both_a_programs_mistake_and_the_gpus() -> None:
    assert not APPLICATION_XIDS & XIDS.keys()
    assert all(xid.advice for xid in XIDS.values())


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ([fault("Lost")], names.REASON_GPU_LOST),
        ([fault("RowRemapFailure")], names.REASON_ROW_REMAP_FAILED),
        ([fault("UncorrectableEcc")], names.REASON_UNCORRECTABLE_ECC),
        ([fault("UncorrectableEcc"), fault(code=95)], names.REASON_XID_FATAL),
        ([fault("UncorrectableEcc"), fault(code=94), fault(code=48)], names.REASON_XID_FATAL),
        ([fault(code=79), fault("Lost")], names.REASON_GPU_LOST),
    ],
)
def test_of_several_faults_the_worst_is_told(faults: list[dict[str, Any]], reason: str) -> None:
    assert reasons(told(*faults)) == [reason]


def test_a_memory_error_that_was_contained_ends_a_program_and_not_the_gpu() -> None:
    assert reasons(told(fault("UncorrectableEcc"), fault(code=94))) == []


def test_what_is_said_names_the_gpu_what_happened_and_what_to_do() -> None:
    [bad] = health.bad_gpus(ILL)
    assert str(bad).startswith("GPU 1: XID 79, the GPU has fallen off the bus; restart the machine")


def test_the_same_fault_of_several_gpus_is_told_once() -> None:
    several = NodeHealth(HealthState.UNHEALTHY, 50, tuple(SickGpu(f"GPU-{i}", i, "GpuLost", "gone") for i in (0, 2, 5)))
    assert health.verdict(several, ILL, recovery=300).message.startswith("GPU 0, 2, 5: gone; once")


def test_a_repair_mends_what_happened_before_it() -> None:
    assert reasons(told(fault(code=79), repaired=AFTER)) == []
    assert reasons(told(fault(code=79), repaired=BEFORE)) == [names.REASON_XID_FATAL]
    assert reasons(told(fault(code=79), repaired="when I had time")) == [names.REASON_XID_FATAL]


def test_a_repair_does_not_mend_what_is_broken_still() -> None:
    broken = told(repaired=AFTER, memoryErrors={"rowRemapFailed": True})
    assert reasons(broken) == [names.REASON_ROW_REMAP_FAILED]


# --- steps ---------------------------------------------------------------------------------------------------------
def step(before: NodeHealth, node: NodeTelemetry, now: float = 100.0, *, fresh: bool = True) -> NodeHealth:
    return health.step(before, node, fresh=fresh, now=now, recovery=300)


UNSEEN, HEALTHY = NodeHealth(HealthState.UNSEEN, 0), NodeHealth(HealthState.HEALTHY, 50)
BAD = (SickGpu("GPU-n1-1", 1, names.REASON_XID_FATAL, "gone"),)
REPORTED, UNHEALTHY = (
    NodeHealth(HealthState.REPORTED, 50, BAD, "boot"),
    NodeHealth(HealthState.UNHEALTHY, 50, BAD, "boot"),
)
RECOVERING, STALE = NodeHealth(HealthState.RECOVERING, 50, BAD, "boot"), NodeHealth(HealthState.STALE, 50)
ALL = [UNSEEN, HEALTHY, REPORTED, UNHEALTHY, RECOVERING, STALE]


@pytest.mark.parametrize(
    ("before", "node", "state", "since"),
    [
        (UNSEEN, WELL, HealthState.HEALTHY, 100),
        (HEALTHY, WELL, HealthState.HEALTHY, 50),
        (STALE, WELL, HealthState.HEALTHY, 100),
        (REPORTED, WELL, HealthState.HEALTHY, 100),
        (UNHEALTHY, WELL, HealthState.RECOVERING, 100),
        (RECOVERING, WELL, HealthState.RECOVERING, 50),
        (UNSEEN, ILL, HealthState.REPORTED, 100),
        (HEALTHY, ILL, HealthState.REPORTED, 100),
        (STALE, ILL, HealthState.REPORTED, 100),
        (REPORTED, ILL, HealthState.REPORTED, 50),
        (UNHEALTHY, ILL, HealthState.UNHEALTHY, 50),
        (RECOVERING, ILL, HealthState.UNHEALTHY, 100),
    ],
)
def test_every_step_with_fresh_readings(
    before: NodeHealth, node: NodeTelemetry, state: HealthState, since: float
) -> None:
    after = step(before, node)
    assert (after.state, after.since) == (state, since)


@pytest.mark.parametrize("before", ALL)
@pytest.mark.parametrize("node", [WELL, ILL])
def test_readings_that_are_stale_hold_nobody_back_and_release_nobody(before: NodeHealth, node: NodeTelemetry) -> None:
    after = step(before, node, fresh=False)
    assert after.held == before.held
    assert after == before if before.held else after.state is HealthState.STALE


@pytest.mark.parametrize("before", ALL)
def test_neither_does_a_report_without_readings(before: NodeHealth) -> None:
    for silent in (
        telemetry.read_telemetry(gpunode_object(gpus=[])),
        telemetry.read_telemetry(gpunode_object(error="no driver")),
    ):
        assert step(before, silent).held == before.held


def test_a_node_recovers_when_it_was_without_fault_for_long_enough() -> None:
    assert step(RECOVERING, WELL, 349.9).state is HealthState.RECOVERING
    assert step(RECOVERING, WELL, 350.0) == NodeHealth(HealthState.HEALTHY, 350)


def test_every_relapse_starts_the_recovery_anew() -> None:
    standing = UNHEALTHY
    for minute in range(60):
        standing = step(standing, ILL if minute % 4 else WELL, 60.0 * minute)
        assert standing.held


def test_a_broken_gpu_that_is_left_out_of_the_report_is_still_broken() -> None:
    fewer = telemetry.read_telemetry(gpunode_object(gpus=1))
    assert step(UNHEALTHY, fewer).bad == BAD
    restarted = telemetry.read_telemetry(gpunode_object(gpus=1, bootId="another"))
    assert step(UNHEALTHY, restarted).state is HealthState.RECOVERING


# --- the brake -----------------------------------------------------------------------------------------------------
def admitted(reported: int, held: int, nodes: int, share: float = 0.25) -> int:
    standings = {f"n{index}": REPORTED for index in range(reported)} | {"well": HEALTHY}
    return len(health.admitted(standings, held, nodes, share))


def test_a_part_of_the_nodes_may_be_held_back_and_one_at_least() -> None:
    assert admitted(10, held=0, nodes=16) == 4
    assert admitted(10, held=3, nodes=16) == 1
    assert admitted(10, held=4, nodes=16) == 0
    assert admitted(10, held=9, nodes=16) == 0
    assert admitted(2, held=0, nodes=1) == 1
    assert admitted(10, held=0, nodes=16, share=1.0) == 10


def test_faults_that_are_read_come_before_what_only_a_condition_tells() -> None:
    standings = {
        "told": NodeHealth(HealthState.UNHEALTHY, 1),
        "new": NodeHealth(HealthState.REPORTED, 9, UNHEALTHY.bad),
        "held": NodeHealth(HealthState.UNHEALTHY, 9, UNHEALTHY.bad),
    }
    assert health.admitted(standings, 0, 8, 1.0) == ["held", "new", "told"]


def test_those_reported_first_count_first() -> None:
    standings = {
        "a": NodeHealth(HealthState.REPORTED, 9),
        "b": NodeHealth(HealthState.REPORTED, 3),
        "c": NodeHealth(HealthState.REPORTED, 5),
    }
    assert health.admitted(standings, 0, 8, 0.25) == ["b", "c"]


@given(reported=st.integers(0, 50), held=st.integers(0, 50), nodes=st.integers(1, 50), share=st.floats(0.01, 1))
def test_agents_alone_never_take_more_than_the_share(reported: int, held: int, nodes: int, share: float) -> None:
    assert admitted(reported, held, nodes, share) <= max(0, max(1, share * nodes) - held)


# --- words, and what is remembered by them -------------------------------------------------------------------------
def judged(standing: NodeHealth, node: NodeTelemetry = ILL) -> telemetry.HealthyCondition:
    said = health.verdict(standing, node, recovery=300)
    return telemetry.HealthyCondition(said.status, said.reason, said.message, 0.0, said.contained)


@pytest.mark.parametrize(
    ("standing", "status", "reason"),
    [
        (HEALTHY, "True", names.REASON_HEALTHY),
        (UNHEALTHY, "False", names.REASON_XID_FATAL),
        (REPORTED, "Unknown", names.REASON_TOO_MANY_UNHEALTHY),
        (RECOVERING, "Unknown", names.REASON_RECOVERING),
        (STALE, "Unknown", names.REASON_STALE_READINGS),
    ],
)
def test_the_condition_says_how_a_node_stands_and_is_enough_to_go_on_from(
    standing: NodeHealth, status: str, reason: str
) -> None:
    said = judged(standing)
    assert (said.status, said.reason) == (status, reason)
    [told_again] = [telemetry.read_telemetry(gpunode_object(gpus=2))]
    remembered = health.remembered(_with(told_again, said), age=20.0, now=70.0)
    assert (remembered.state, remembered.since, remembered.held) == (standing.state, 50, standing.held)


def test_a_node_that_was_never_judged_is_unseen() -> None:
    assert health.remembered(WELL, age=0.0, now=70.0) == NodeHealth(HealthState.UNSEEN, 70)


def test_a_condition_of_the_future_is_one_of_now() -> None:
    assert health.remembered(_with(WELL, judged(HEALTHY)), age=-500.0, now=70.0).since == 70


def test_after_a_restart_a_standing_verdict_is_said_in_the_same_words() -> None:
    node = _with(WELL, judged(UNHEALTHY))
    remembered = health.remembered(node, age=20.0, now=70.0)
    kept = step(remembered, node, fresh=False)
    assert judged(kept, node) == judged(UNHEALTHY)


def test_an_agent_that_cannot_read_says_why() -> None:
    silent = telemetry.read_telemetry(gpunode_object(gpus=[], error="driver and library do not match"))
    said = judged(STALE, silent)
    assert (said.reason, said.message) == (
        names.REASON_NO_READINGS,
        "the agent cannot read the GPUs: driver and library do not match",
    )


def _with(node: NodeTelemetry, said: telemetry.HealthyCondition) -> NodeTelemetry:
    return telemetry.NodeTelemetry(node.name, node.uid, gpus=node.gpus, boot_id=node.boot_id, judged=said)
