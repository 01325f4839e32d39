"""Nodes with slow GPUs: avoided while there is a choice, and told of truthfully where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, H100, T4, capacity, job, node, running, snapshot
from tests.strategies import snapshots

from trimtab_policy import policy
from trimtab_policy.placement.candidates import Candidate, candidates
from trimtab_policy.placement.capacity import MOST_SPEEDS, Capacity, GangDemand
from trimtab_policy.scheduling.shield import check
from trimtab_policy.types import Decision, Job, Node, Snapshot, Speed

LLAMA: dict[str, Any] = {"model": "llama3-8b", "gpus": (8, 8), "precision": "BF16"}
SERVING = sorted(set(policy.names()) - {"pollux"})
"""Pollux searches nodes by chance, and knows nothing of any."""


def decide(name: str, nodes: list[Node], jobs: list[Job]) -> Decision:
    return policy.load(name).decide(snapshot(nodes, jobs))


def test_a_cluster_without_slow_nodes_looks_as_ever() -> None:
    free = capacity(node("n1"), node("n2"))
    assert not free.slow
    assert free.lower_speeds(A100) == ()


@pytest.mark.parametrize("name", SERVING)
def test_a_job_avoids_the_slow_node(name: str) -> None:
    nodes = [node("a", speed=0.6), node("b"), node("c", speed=0.9)]
    [placed] = decide(name, nodes, [job(gpus=(8, 8), max_nodes=1)]).placements
    assert [share.node for share in placed.shares] == ["b"]
    assert placed.speed == 1
    assert "slow" not in placed.reason


@pytest.mark.parametrize("name", policy.names())
def test_where_only_the_slow_node_is_left_the_prediction_and_the_reason_say_so(name: str) -> None:
    [usual] = decide(name, [node("a")], [job(gpus=(8, 8))]).placements
    [slowed] = decide(name, [node("a", speed=0.5)], [job(gpus=(8, 8))]).placements
    assert slowed.speed == 0.5
    assert slowed.prediction.step_seconds == pytest.approx(2 * usual.prediction.step_seconds)
    assert slowed.prediction.run_seconds == pytest.approx(2 * usual.prediction.run_seconds)
    assert slowed.prediction.tokens_per_second == pytest.approx(usual.prediction.tokens_per_second / 2)
    assert slowed.prediction.memory_bytes == usual.prediction.memory_bytes
    assert slowed.reason.endswith("; at 0.50 of the usual rate, because node a has a slow GPU")


@pytest.mark.parametrize("name", ["best_fit", "fcfs", "easy_backfill", "fgd"])
def test_an_option_on_slow_cards_competes_by_what_it_would_bring(name: str) -> None:
    waiting = [job(**LLAMA)]
    [one] = decide(name, [node("h", H100, speed=0.9), node("a", A100)], waiting).placements
    [other] = decide(name, [node("h", H100, speed=0.1), node("a", A100)], waiting).placements
    assert (one.gpu_type, other.gpu_type) == (H100, A100)


def test_the_slowest_node_of_a_gang_sets_its_pace() -> None:
    nodes = [node("a", speed=0.8), node("b"), node("c", speed=0.6)]
    [placed] = decide("fcfs", nodes, [job(gpus=(16, 16))]).placements
    assert sorted(share.node for share in placed.shares) == ["a", "b"]
    assert placed.speed == 0.8


def test_nearness_decides_between_equally_fast_places_only() -> None:
    nodes = [
        node("a", topology=("z", "b", "r1")),
        node("b", topology=("z", "b", "r1"), speed=0.7),
        node("c", topology=("z", "b", "r2")),
        node("d", topology=("z", "b", "r3"), speed=0.7),
    ]
    found = capacity(*nodes)
    two, three = (found.find(job(gpus=(1, 99)), GangDemand(A100, 8 * count, count)) for count in (2, 3))
    assert two
    assert three
    assert [share.node for share in two] == ["a", "c"]
    assert {share.node for share in three} >= {"a", "b"}
    assert found.find(job(gpus=(1, 99)), GangDemand(A100, 24, 3, least_speed=1.0)) is None
    assert found.fits(job(), GangDemand(A100, 24, 3, least_speed=0.7))
    assert not found.could_ever_fit(job(), GangDemand(A100, 24, 3, least_speed=1.0))


def test_a_job_that_takes_a_full_speed_node_leaves_the_next_one_the_slow_node() -> None:
    nodes = [node("a", speed=0.75), node("b")]
    first, second = decide("best_fit", nodes, [job("j1", gpus=(8, 8)), job("j2", gpus=(8, 8))]).placements
    assert ([share.node for share in first.shares], first.speed) == (["b"], 1.0)
    assert ([share.node for share in second.shares], second.speed) == (["a"], 0.75)


def test_gangs_of_unequal_parts_avoid_slow_nodes_as_well() -> None:
    rows = tuple(Speed(T4, gpus, -(-gpus // 4), float(gpus)) for gpus in range(1, 13))
    nodes = [node(name, T4, gpus=4, speed=speed) for name, speed in (("a", 0.5), ("b", 1.0), ("c", 0.8), ("d", 1.0))]
    for gpus, names, speed in ((6, {"b", "d"}, 1.0), (10, {"b", "c", "d"}, 0.8)):
        [placed] = decide("fcfs", nodes, [job(gpus=(gpus, gpus), speeds=rows)]).placements
        assert {share.node for share in placed.shares} == names
        assert placed.speed == speed
        assert placed.prediction.step_seconds == pytest.approx(1 / gpus / speed)
    found = capacity(*nodes)
    assert not found.fits(job(), GangDemand(T4, 10, 3, 4, least_speed=1.0))
    assert not found.could_ever_fit(job(), GangDemand(T4, 10, 3, 4, least_speed=1.0))
    assert found.could_ever_fit(job(), GangDemand(T4, 10, 3, 4, least_speed=0.8))


def test_a_larger_option_that_only_slow_cards_could_hold_says_so_among_the_alternatives() -> None:
    nodes = [node("h", H100, speed=0.3), node("busy", H100, free=0), node("a", A100)]
    [placed] = decide("best_fit", nodes, [job(**LLAMA)]).placements
    told = {each.gpu_type: each.why_not for each in placed.alternatives}
    assert told[H100] == f"{H100} has room for 8 only with slow GPUs, at 0.30 of the rate"


def test_of_many_speeds_a_few_are_offered_and_the_lowest_is_among_them() -> None:
    speeds = [round(0.1 + 0.05 * step, 2) for step in range(18)]
    nodes = [node(f"n{number}", speed=speed) for number, speed in enumerate(speeds)]
    found = capacity(*nodes).lower_speeds(A100)
    assert len(found) <= MOST_SPEEDS
    assert min(found) == min(speeds)
    assert list(found) == sorted(found, reverse=True)


def test_a_running_job_that_stays_is_left_alone() -> None:
    held = running("r", {"a": 8}, preemptible=True)
    nodes = [node("a", free=0, speed=0.5), node("b")]
    for name in ("sia", "gavel", "srtf"):
        assert decide(name, nodes, [held]).stops == ()


@st.composite
def slow_snapshots(draw: st.DrawFn) -> Snapshot:
    """Any snapshot, with some nodes slow."""
    now = draw(snapshots())
    speeds = st.sampled_from([1.0, 1.0, 0.95, 0.6, 0.1])
    return replace(now, nodes=tuple(replace(each, speed=draw(speeds)) for each in now.nodes))


@pytest.mark.parametrize("name", policy.names())
@given(slow_snapshots())
@settings(max_examples=15, deadline=None)
def test_whatever_is_slow_every_policy_keeps_every_rule_and_predicts_for_the_slowest_node(
    name: str, now: Snapshot
) -> None:
    decision = policy.load(name).decide(now)
    answered = [placed.job for placed in decision.placements] + [pending.job for pending in decision.pending]
    assert sorted(answered) == sorted(waiting.uid for waiting in now.waiting())
    assert check(now, decision).refused == ()
    speed = {each.name: each.speed for each in now.nodes}
    for placed in decision.placements:
        assert placed.speed == min(speed[share.node] for share in placed.shares)
        usual = replace(now, nodes=tuple(replace(each, speed=1.0) for each in now.nodes))
        [waiting] = [each for each in now.jobs if each.uid == placed.job]
        same = [
            each.option.prediction
            for each in _known(usual, waiting, name)
            if (each.gpu.name, each.option.plan) == (placed.gpu_type, placed.plan)
        ]
        assert any(placed.prediction.step_seconds == pytest.approx(each.step_seconds / placed.speed) for each in same)


def _known(now: Snapshot, waiting: Job, name: str) -> list[Candidate]:
    """All that the job could be given; `fixed` looks at each mode alone."""
    need = waiting.requirements
    alone = [replace(waiting, requirements=replace(need, modes=(mode,))) for mode in need.modes]
    versions = alone if name == "fixed" else [waiting]
    return [each for version in versions for each in candidates(now, Capacity(now), version)]
