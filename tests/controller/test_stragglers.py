"""Running gangs leave slow GPUs where it is worth it, one at a time, and seldom."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace
from tests.builders import A100, NOW, gang_pod, job_object, node_object, placement, plan_of

from trimtab import names
from trimtab.api.status import Condition, JobStatus, Observed, Plan, StopRequest
from trimtab.controller.nodes.stragglers import AGAIN_SECONDS, ASKED_SECONDS, StragglerMigration, StragglerMoves
from trimtab.kube.objects import JobObject, NodeObject
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab.observe.stragglers import StragglerCandidate, StragglerRules, Stragglers
from trimtab.observe.telemetry import GpuFacts, NodeTelemetry
from trimtab_policy.scheduling.reservations import Reservation
from trimtab_policy.specs import Prediction
from trimtab_policy.types import NodeShare, StopCause

HOUR = 3600.0
SLOW = 0.5


def moment(posix: float) -> datetime:
    return datetime.fromtimestamp(posix, UTC)


def slow(*nodes: str, speed: float = SLOW, since: float = NOW) -> Stragglers:
    """Verdicts that one card of each of these nodes is slow."""
    found = Stragglers(StragglerRules(seconds=0.0))
    cards = [GpuFacts(f"GPU-{i}", i, utilization=1.0, sm_clock=2e9 * (speed if i == 0 else 1)) for i in range(8)]
    members = [
        StragglerCandidate(
            NodeTelemetry(name, "u", gpus=tuple(replace(card, uuid=name + card.uuid) for card in cards)), A100, name
        )
        for name in nodes
    ]
    found.look(members, since)
    return found


def plan(
    nodes: Mapping[str, int], *, hours: float = 20.0, age: float = 2 * HOUR, epoch: int = 1, **changes: Any
) -> Plan:
    """A plan of this age that was to run for so long."""
    said = Prediction(1.0, 65_536.0, 1 << 33, hours * HOUR)
    return plan_of(replace(placement("uid-job", nodes, prediction=said), **changes), epoch, now=moment(NOW - age))


def running(
    of: Plan,
    *,
    spec: Mapping[str, Any] | None = None,
    saved: float | None = 300.0,
    name: str = "job",
    ready: bool = True,
) -> JobObject:
    """A job whose gang runs by this plan; its last checkpoint is so many seconds old (None: it reports none)."""
    conditions = tuple(
        Condition(type=kind, status="True", reason="Yes", last_transition_time=of.created_time)
        for kind in (names.PLANNED, names.GANG_SCHEDULED, *([names.PODS_READY] if ready else []))
    )
    observed = None
    if saved is not None:
        observed = Observed(
            epoch=of.epoch, steps_done=1, last_checkpoint_step=1, last_checkpoint_time=moment(NOW - saved)
        )
    status = JobStatus(
        plan=of, last_epoch=of.epoch, conditions=conditions, start_time=of.created_time, observed=observed
    )
    return job_object(name, spec, status)


def observe(
    jobs: list[JobObject], stragglers: Stragglers, nodes: list[NodeObject] | None = None, taken: tuple[str, ...] = ()
) -> Observation:
    """The cluster: these jobs with their pods, and by default a slow node `a` and a full-speed one `b`."""
    pods = [
        gang_pod(job.metadata.name, status.plan.epoch, rank, share.name, gpus=share.gpus, phase="Running")
        for job in jobs
        for status in (JobStatus.model_validate_json(bytes(job.status)),)
        if status.plan
        for rank, share in enumerate(status.plan.nodes)
    ]
    others = [gang_pod(f"other-{node}", 1, 0, node) for node in taken]
    present = nodes or [node_object("a"), node_object("b")]
    return ClusterObserver((), slow=stragglers).observe(Caches(present, [*pods, *others], jobs), NOW)


def next_move(job: JobObject, stragglers: Stragglers | None = None, **world: Any) -> StragglerMigration | None:
    return StragglerMoves().next(observe([job], stragglers or slow("a"), **world), ())


def test_a_gang_on_a_slow_node_moves_where_it_gains_more_than_it_costs() -> None:
    move = next_move(running(plan({"a": 8})))
    assert move
    assert (move.job, move.epoch) == ("uid-job", 1)
    assert move.message == (
        "node a has a slow GPU, the gang runs at 0.50 of its rate; there is room for 1.00: "
        "it ends 64800 s sooner for 347 s of restart and lost work"
    )
    assert move.gain == pytest.approx(64_800 - 347, abs=1)


def test_it_goes_on_with_the_same_degrees_and_the_place_is_its_own_from_then_on() -> None:
    order = (move := next_move(running(plan({"a": 8}, speed=SLOW)))) and move.order()
    assert move
    assert order
    placed = order.placement
    assert (order.cause, order.beneficiary, placed.reason) == (StopCause.STRAGGLER, "", move.message)
    assert ([share.node for share in placed.shares], placed.speed) == (["b"], 1.0)
    assert placed.plan == placement("uid-job", {"a": 8}).plan
    assert placed.prediction.step_seconds == pytest.approx(SLOW * 1.0), "it was planned for the slow card"
    unslowed = next_move(running(plan({"a": 8})))
    assert unslowed
    assert unslowed.placement.prediction.step_seconds == pytest.approx(1.0)


def test_who_is_asked_already_or_moves_anyway_is_left_alone() -> None:
    job = running(plan({"a": 8}))
    status = JobStatus.model_validate_json(bytes(job.status))
    stop = StopRequest(
        epoch=1, cause=StopCause.PREEMPTED, message="x", requested_time=moment(NOW), deadline_time=moment(NOW + 60)
    )
    assert next_move(job_object(status=status.model_copy(update={"stop": stop}))) is None
    assert StragglerMoves().next(observe([job], slow("a")), [placement("uid-job", {"b": 4})]) is None


def test_a_gang_that_leaves_a_slow_card_is_the_only_one_on_its_way_for_a_new_controller_too() -> None:
    first, other = running(plan({"a": 8}), name="first"), running(plan({"c": 8}), name="other")
    nodes = [node_object(name) for name in "abcd"]
    assert StragglerMoves().next(observe([first, other], slow("a", "c"), nodes), ())
    status = JobStatus.model_validate_json(bytes(first.status))
    stop = StopRequest(
        epoch=1, cause=StopCause.STRAGGLER, message="x", requested_time=moment(NOW), deadline_time=moment(NOW + 60)
    )
    asked = job_object("first", None, status.model_copy(update={"stop": stop}))
    assert StragglerMoves().next(observe([asked, other], slow("a", "c"), nodes), ()) is None


def test_its_end_is_expected_later_and_what_waits_is_told_so() -> None:
    [job] = observe([running(plan({"a": 8}))], slow("a")).snapshot.jobs
    assert job.expected_finish == NOW + 36 * HOUR  # 18 hours were left when the card became slow, at half the rate
    [usual] = observe([running(plan({"b": 8}))], slow("a")).snapshot.jobs
    assert usual.expected_finish == NOW + 18 * HOUR
    [known] = observe([running(plan({"a": 8}, speed=0.5))], slow("a")).snapshot.jobs
    assert known.expected_finish == NOW + 18 * HOUR  # planned for the slow card: nothing has changed since


def test_a_gang_that_is_nearly_done_stays() -> None:
    assert next_move(running(plan({"a": 8}, hours=2.05))) is None


def test_without_a_checkpoint_all_its_work_is_lost_and_it_rarely_pays() -> None:
    old = plan({"a": 8}, hours=21, age=14 * HOUR)
    assert next_move(running(old, saved=None)) is None
    assert next_move(running(old, saved=60))
    assert next_move(running(plan({"a": 8}, hours=100, age=HOUR), saved=None))


def test_a_checkpoint_of_an_earlier_plan_is_no_checkpoint_of_this_one() -> None:
    job = running(plan({"a": 8}, hours=21, age=14 * HOUR, epoch=2), saved=None)
    status = JobStatus.model_validate_json(bytes(job.status))
    before = Observed(epoch=1, steps_done=1, last_checkpoint_step=1, last_checkpoint_time=moment(NOW - 60))
    stale = job_object(status=status.model_copy(update={"observed": before}))
    assert next_move(stale) is None


def test_it_stays_where_no_faster_place_is_free() -> None:
    job = running(plan({"a": 8}))
    assert next_move(job, taken=("b",)) is None
    assert next_move(job, slow("a", "b")) is None
    assert next_move(job, nodes=[node_object("a")]) is None
    assert next_move(job, nodes=[node_object("a"), node_object("b", "H100-SXM5-80GB")]) is None
    assert next_move(running(plan({"a": 8}), spec={"template.spec.nodeSelector": {names.HOSTNAME: "a"}})) is None


def test_it_stays_where_a_placement_of_the_same_round_takes_the_place() -> None:
    seen = observe([running(plan({"a": 8})), job_object("waits")], slow("a"))
    assert StragglerMoves().next(seen, ())
    assert StragglerMoves().next(seen, [placement("uid-waits", {"b": 8})]) is None


def test_it_stays_where_somebody_who_waits_would_start_later() -> None:
    there = job_object("waits", {"template.spec.nodeSelector": {names.HOSTNAME: "b"}})
    seen = observe([running(plan({"a": 8})), there], slow("a"))
    kept = Reservation("uid-waits", "default/waits", A100, (NodeShare("b", 8),), start=NOW + 60, earliest=NOW + 60)
    assert StragglerMoves().next(seen, (), [kept]) is None
    assert StragglerMoves().next(seen, (), [replace(kept, job="uid-gone")])
    anywhere = observe([running(plan({"a": 8})), job_object("waits")], slow("a"))
    assert StragglerMoves().next(anywhere, (), [kept]), "it may have the place that the gang leaves"


def test_a_gang_keeps_its_good_nodes_in_mind_when_it_asks_for_room() -> None:
    nodes = [node_object(name) for name in "abc"]
    assert next_move(running(plan({"a": 8, "b": 8})), nodes=nodes)
    assert next_move(running(plan({"a": 8, "b": 8})), nodes=nodes, taken=("c",)) is None


def test_a_node_that_is_a_little_faster_may_be_worth_it_too() -> None:
    stragglers = slow("a", "b", speed=0.5)
    stragglers._verdicts["b"] = {key: replace(card, speed=0.9) for key, card in stragglers._verdicts["b"].items()}
    move = next_move(running(plan({"a": 8})), stragglers)
    assert move
    assert "there is room for 0.90" in move.message


@pytest.mark.parametrize("policy", ["Fixed", "Moldable", "Elastic"])
def test_whatever_the_elasticity_the_nodes_may_change(policy: str) -> None:
    assert next_move(running(plan({"a": 8}), spec={"elasticity.policy": policy}))


def test_it_does_not_move_before_its_least_run_time_nor_twice_within_an_hour() -> None:
    assert next_move(running(plan({"a": 8}, age=599))) is None
    assert next_move(running(plan({"a": 8}, age=601), saved=60))
    longer = {"elasticity.minRuntimeSeconds": 7300}
    assert next_move(running(plan({"a": 8}), spec=longer)) is None
    assert next_move(running(plan({"a": 8}, age=AGAIN_SECONDS - 1, epoch=2), saved=60)) is None
    assert next_move(running(plan({"a": 8}, age=AGAIN_SECONDS + 1, epoch=2), saved=60))
    assert next_move(running(plan({"a": 8}), ready=False)) is None


def test_one_gang_moves_at_a_time_the_one_that_gains_most() -> None:
    short, long = running(plan({"a": 8}, hours=10), name="short"), running(plan({"c": 8}), name="long")
    nodes = [node_object(name) for name in "abc"]
    seen, moves = observe([short, long], slow("a", "c"), nodes), StragglerMoves()
    first = moves.next(seen, ())
    assert first
    assert first.job == "uid-long"
    assert moves.next(seen, ()) is None  # its plan still stands: it is on its way
    later = replace(seen, snapshot=replace(seen.snapshot, time=NOW + ASKED_SECONDS))
    assert StragglerMoves.next(copy.deepcopy(moves), later, ()), "it was not asked after all"
    given_up = JobStatus(
        last_epoch=1,
        conditions=(
            Condition(type=names.PLANNED, status="False", reason="Straggler", last_transition_time=moment(NOW)),
        ),
    )
    assert moves.next(observe([short, job_object("long", None, given_up)], slow("a"), nodes), ()) is None
    arrived = running(plan({"b": 8}, age=10, epoch=2), name="long")
    nodes.append(node_object("d"))
    then = moves.next(observe([short, arrived], slow("a"), nodes), ())
    assert then
    assert then.job == "uid-short"


def test_where_nothing_is_slow_nothing_moves() -> None:
    assert next_move(running(plan({"a": 8})), Stragglers()) is None
