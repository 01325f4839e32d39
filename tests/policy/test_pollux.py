"""Pollux: the genetic search keeps the limits and finds good allocations; GPU types are cut afterwards."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, NOW, T4, job, node, running, snapshot
from tests.trace_jobs import traced

from trimtab_lab import rigid
from trimtab_lab.workloads import clusters
from trimtab_lab.workloads.trace import trace
from trimtab_policy.heuristics import pollux_search
from trimtab_policy.heuristics.pollux import Pollux
from trimtab_policy.heuristics.pollux_search import SharedCluster, evaluate, search
from trimtab_policy.sim.engine import SimRules, simulate
from trimtab_policy.types import Bounds, Decision, Job, Node, Quota, Speed


def cluster(
    nodes: list[int], most: list[int], bend: float = 0.8, across: float = 0.7, factor: float = 1.0, least: int = 1
) -> SharedCluster:
    """Jobs whose speed-up is GPUs to the power `bend`, times `across` over several nodes."""
    total = sum(nodes)
    table = np.zeros((len(nodes) + 1, total + 1))
    table[1:] = np.arange(total + 1) ** bend
    table[2:] *= across
    return SharedCluster(
        gpus=np.array(nodes),
        least=np.full(len(most), least),
        most=np.array(most),
        speedup=np.repeat(table[None], len(most), axis=0),
        factor=np.full(len(most), factor),
        present=np.zeros((len(most), len(nodes)), dtype=np.int16),
    )


def best_of(given: SharedCluster, seed: int = 0, generations: int = 60) -> np.ndarray:
    return search(given, given.present[None], np.random.default_rng(seed), generations).best()


# --- the search ------------------------------------------------------------------------------------------
@given(
    nodes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    most=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    least=st.integers(1, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_all_that_is_found_keeps_every_limit(nodes: list[int], most: list[int], least: int, seed: int) -> None:
    given_ = cluster(nodes, most, least=least)
    found = search(given_, given_.present[None], np.random.default_rng(seed), generations=8).states
    assert np.all(found >= 0)
    assert np.all(found.sum(axis=1) <= given_.gpus)
    assert np.all(found.sum(axis=2) <= given_.most)
    assert np.all((found.sum(axis=2) >= least) | (found.sum(axis=2) == 0)), "no gang of less than it needs"
    spread = (np.count_nonzero(found, axis=2) > 1)[:, :, None] & (found > 0)
    assert np.all(spread.sum(axis=1) <= 1), "one job over several nodes per node"


def test_the_best_of_a_small_cluster_is_found() -> None:
    small = cluster([2, 2], [4, 4, 1])
    ways = [row for row in itertools.product(range(3), repeat=2) if sum(row) <= 4]
    every = np.array([s for s in itertools.product(ways, repeat=3) if np.all(np.sum(s, axis=0) <= 2)], dtype=np.int16)
    every = every[(every[:, 2].sum(axis=1) <= 1)]
    mean = -evaluate(small, every)[:, 0]
    found = best_of(small)
    assert -evaluate(small, found[None])[0, 0] == pytest.approx(mean.max())


def test_equal_jobs_share_equally() -> None:
    assert best_of(cluster([4] * 4, [16] * 4)).sum(axis=1).tolist() == [4, 4, 4, 4]


def test_a_restart_that_costs_too_much_is_not_made() -> None:
    """Both nodes would be faster than one, by less than the restart takes away."""
    held = np.array([[4, 0]], dtype=np.int16)
    for factor, nodes in ((0.5, 1), (1.0, 2)):
        given_ = replace(cluster([4, 4], [8], bend=1.0, factor=factor), present=held)
        assert np.count_nonzero(best_of(given_)) == nodes


def test_the_search_starts_where_it_ended() -> None:
    """Without any generation the best of the given population is what comes out."""
    given_ = cluster([4] * 4, [16] * 4)
    good = best_of(given_)
    population = np.stack([given_.present, good])
    assert np.array_equal(search(given_, population, np.random.default_rng(1), generations=0).best(), good)


def test_fronts_are_those_of_the_definition() -> None:
    chance = np.random.default_rng(0)
    costs = chance.integers(0, 12, (80, 2)).astype(float)
    ranks, spread = pollux_search._ranked(costs)
    rest, rank = np.arange(len(costs)), 0
    while len(rest):
        dominated = [
            any(np.all(costs[o] <= costs[i]) and np.any(costs[o] < costs[i]) for o in rest) for i in rest.tolist()
        ]
        front = rest[~np.array(dominated)]
        assert np.all(ranks[front] == rank)
        assert np.isinf(spread[front]).sum() >= 1
        rest, rank = rest[np.array(dominated)], rank + 1


# --- the policy ------------------------------------------------------------------------------------------
def blind(name: str, most: int = 4, **changes: object) -> Job:
    """A job whose speed is known by virtual nodes and GPUs, whatever their type."""
    rows = tuple(
        Speed("*", gpus, nodes, gpus**0.8 * (1.0 if nodes == 1 else 0.7))
        for gpus in range(1, 17)
        for nodes in range(1, 5)
        if nodes <= gpus and (nodes == 1 or gpus <= 4 * nodes)
    )
    made = traced(name, (1, 4), **changes)
    return replace(made, speeds=rows, requirements=replace(made.requirements, gpus=Bounds(1, most)))


def mixed() -> list[Node]:
    return [node("t0", T4, gpus=4), node("t1", T4, gpus=4), node("a0", gpus=8)]


def gpus_of(decision: Decision) -> dict[str, int]:
    return {placed.job.removeprefix("uid-"): placed.gpus for placed in decision.placements}


def test_no_gang_has_gpus_of_two_types() -> None:
    types = {each.name: each.gpu_type for each in mixed()}
    for seed in range(5):
        decision = Pollux(seed).decide(snapshot(mixed(), [blind("a", 16), blind("b", 16)]))
        for placed in decision.placements:
            assert {types[share.node] for share in placed.shares} == {placed.gpu_type}


def test_four_jobs_get_a_virtual_node_each() -> None:
    decision = Pollux().decide(snapshot(mixed(), [blind(name) for name in "abcd"]))
    assert gpus_of(decision) == dict.fromkeys("abcd", 4)
    assert sorted(share.node for placed in decision.placements for share in placed.shares) == ["a0", "a0", "t0", "t1"]


def test_what_it_decided_it_does_not_change_without_reason() -> None:
    policy, waiting = Pollux(), [blind(name) for name in "abcd"]
    placed = {each.job: each for each in policy.decide(snapshot(mixed(), waiting)).placements}
    now = [
        replace(each, placement=placed[each.uid], started=NOW, restarts=1, created=NOW - 120, served={"T4": 240.0})
        for each in waiting
    ]
    full = [replace(each, free_gpus=0) for each in mixed()]
    assert policy.decide(replace(snapshot(full, now), time=NOW + 60)) == Decision("pollux")


def test_the_same_seed_and_snapshot_give_the_same_decision() -> None:
    now = snapshot(mixed(), [blind("a", 8), blind("b", 8), blind("c", 2)])
    assert Pollux(7).decide(now) == Pollux(7).decide(now)


def test_jobs_whose_speeds_tell_types_apart_take_an_option_of_their_type() -> None:
    decision = Pollux().decide(snapshot(mixed(), [traced("a", (1, 2, 4), types=(A100, T4)), traced("b", 8)]))
    assert gpus_of(decision)["a"] in (1, 2, 4)
    assert all(placed.gpu_type == A100 for placed in decision.placements if placed.job == "uid-b")


def test_gangs_that_need_more_than_a_fair_share_take_turns() -> None:
    """Three gangs of half the cluster: two run, then the third."""
    nodes = [node("t0", T4, gpus=4), node("t1", T4, gpus=4)]
    decision = Pollux().decide(snapshot(nodes, [traced(name, 4, types=(T4,)) for name in "abc"]))
    assert sorted(gpus_of(decision).values()) == [4, 4]
    assert len(decision.pending) == 1
    there = clusters.cluster("T4=8x4")
    jobs = rigid.jobs(trace(["a", "b", "c", "d"], [0.0] * 4, [4, 4, 4, 8], [100.0] * 4), there)
    run = simulate(Pollux(), jobs, there, SimRules(round_seconds=60.0))
    assert sorted(job.finished for job in run.jobs) == [160.0, 160.0, 280.0, 400.0]


def test_a_large_gang_is_served_where_others_can_do_with_less() -> None:
    """Chance alone does not find half the GPUs of a cluster for one job at once."""
    nodes = [node(f"n{i}", gpus=4) for i in range(8)]
    jobs = [traced("gang", 16), *(traced(name, (1, 2, 4, 8)) for name in "abcd")]
    assert gpus_of(Pollux().decide(snapshot(nodes, jobs))) == {"gang": 16} | dict.fromkeys("abcd", 4)


def test_what_is_left_of_a_type_goes_to_those_for_whom_nothing_was_found() -> None:
    """Quotas are not in the search: what `a` may not have is for `b`."""
    nodes = [node("n0", gpus=4), node("n1", gpus=4)]
    a, b = replace(traced("a", 8), queue="q"), traced("b", 8)
    for jobs in ([a, b], [b, a]):
        now = replace(snapshot(nodes, jobs), quotas=(Quota("q", A100, 4),))
        assert gpus_of(Pollux(generations=0).decide(now)) == {"b": 8}


def test_jobs_of_the_performance_model_are_served_and_running_ones_left_alone() -> None:
    decision = Pollux().decide(
        snapshot(
            [node("n0", free=0), node("n1")], [running("f", {"n0": 8}), job("a", gpus=(1, 8)), job("b", gpus=(1, 8))]
        )
    )
    assert {placed.job for placed in decision.placements} == {"uid-a", "uid-b"}
    assert {share.node for placed in decision.placements for share in placed.shares} == {"n1"}


def test_a_job_that_needs_more_than_there_is_waits() -> None:
    decision = Pollux().decide(snapshot([node("n0", free=1)], [job("a", gpus=(2, 2))]))
    assert [answer.job for answer in decision.pending] == ["uid-a"]


def test_nothing_to_decide_is_decided() -> None:
    assert Pollux().decide(snapshot(mixed(), [])) == Decision("pollux")
    assert Pollux().decide(snapshot([], [])) == Decision("pollux")
