"""Gavel's shares of time and the rounds that keep to them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import A100, NOW, T4, job, node, running, snapshot
from tests.trace_jobs import traced

from trimtab_lab import rigid
from trimtab_lab.rigid import RigidRules
from trimtab_lab.workloads import clusters
from trimtab_lab.workloads.trace import trace
from trimtab_policy.heuristics.gavel import (
    Fifo,
    FinishTimeFairness,
    Gavel,
    MaxMinFairness,
    MaxSumThroughput,
    MinJct,
    tuned,
)
from trimtab_policy.heuristics.gavel_finish import fastest_finish, least_unfair
from trimtab_policy.heuristics.gavel_programs import GavelDemand, equal_share, largest_minimum, largest_sum
from trimtab_policy.placement.options import market
from trimtab_policy.sim.engine import SimRules, simulate
from trimtab_policy.solvers.conic import ConeProgram, solve
from trimtab_policy.solvers.knapsack import FloatArray
from trimtab_policy.solvers.milp import Unsolved
from trimtab_policy.types import Decision, Node, NodeShare, Speed

ALL = (MaxSumThroughput, MaxMinFairness, MinJct, FinishTimeFairness, Fifo)
SOLVED = (largest_sum, largest_minimum, fastest_finish, least_unfair)


def demand(rate: list[list[float]], gpus: list[int], capacity: list[int], **columns: list[float]) -> GavelDemand:
    """Jobs with the same GPUs on every type that they can run on."""
    rates = np.array(rate)
    jobs = len(rates)
    defaults = {"steps": [1000.0] * jobs, "remaining": [500.0] * jobs, "age": [100.0] * jobs, "start": [60.0] * jobs}
    values = {name: np.array(columns.get(name, default)) for name, default in defaults.items()}
    return GavelDemand(rates, np.where(rates > 0, np.array(gpus)[:, None], 0), np.array(capacity), **values)


def throughput(asked: GavelDemand, shares: np.ndarray) -> np.ndarray:
    return (asked.rate * shares).sum(axis=1)


def random_demand(seed: int) -> GavelDemand:
    chance = np.random.default_rng(seed)
    jobs, types = int(chance.integers(1, 12)), int(chance.integers(1, 4))
    rate = chance.lognormal(0, 1.5, (jobs, 1)) * chance.lognormal(0, 0.5, (jobs, types))
    rate[:, 1:] *= chance.random((jobs, types - 1)) < 0.8
    steps = chance.lognormal(8, 1, jobs) * rate[:, 0]
    return demand(
        rate.tolist(),
        chance.choice([1, 2, 4, 8], jobs).tolist(),
        chance.choice([8, 16, 24], types).tolist(),
        steps=steps.tolist(),
        remaining=(steps * chance.uniform(0.01, 1, jobs)).tolist(),
        age=chance.uniform(0, 10_000, jobs).tolist(),
    )


# --- the programs ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("program", SOLVED)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_shares_keep_every_limit(program: Callable[[GavelDemand], FloatArray], seed: int) -> None:
    asked = random_demand(seed)
    shares = program(asked)
    assert np.all((shares >= 0) & (shares <= 1))
    assert np.all(shares[asked.rate == 0] == 0)
    assert np.all(shares.sum(axis=1) <= 1 + 1e-5)
    assert np.all((asked.gpus * shares).sum(axis=0) <= asked.capacity * (1 + 1e-5))


def test_the_largest_sum_gives_the_fast_type_to_the_job_that_gains_most_by_it() -> None:
    shares = largest_sum(demand([[1.0, 2.0], [1.0, 5.0]], [8, 8], [8, 8]))
    assert shares == pytest.approx(np.array([[1.0, 0.0], [0.0, 1.0]]), abs=1e-6)


def test_equal_jobs_get_equal_shares() -> None:
    asked = demand([[2.0]] * 3, [8] * 3, [8])
    for program in SOLVED:
        assert program(asked) == pytest.approx(np.full((3, 1), 1 / 3), abs=1e-4)


def test_the_largest_minimum_equalises_throughput_times_gpus_over_the_equal_share() -> None:
    asked = demand([[1.0, 2.0], [1.0, 5.0], [3.0, 3.0]], [8, 8, 8], [8, 8])
    relative = throughput(asked, largest_minimum(asked)) * 8 / equal_share(asked)
    assert relative.min() == pytest.approx(relative.max(), rel=1e-4)


def test_the_least_sum_of_finish_times_has_the_closed_form_for_one_type() -> None:
    asked = demand([[1.0], [2.0], [5.0]], [4, 4, 4], [4], remaining=[100.0, 900.0, 10.0])
    seconds = asked.remaining / asked.rate[:, 0]
    expected = np.sqrt(seconds) / np.sqrt(seconds).sum()  # Lagrange: w/x² is the same for all
    assert fastest_finish(asked)[:, 0] == pytest.approx(expected, rel=1e-4)


def test_the_least_unfairness_is_the_same_for_all_who_compete_for_one_type() -> None:
    asked = demand([[1.0], [2.0], [5.0]], [4, 4, 4], [4], remaining=[100.0, 900.0, 10.0], age=[50.0, 10.0, 400.0])
    fair = asked.start + asked.steps / equal_share(asked)
    unfair = (asked.age + asked.remaining / throughput(asked, least_unfair(asked))) / fair
    assert unfair.min() == pytest.approx(unfair.max(), rel=1e-4)


def finish_sum(asked: GavelDemand, shares: np.ndarray) -> float:
    return float((asked.remaining / throughput(asked, shares)).sum())


def worst_unfairness(asked: GavelDemand, shares: np.ndarray) -> float:
    fair = asked.start + asked.steps / equal_share(asked)
    return float(((asked.age + asked.remaining / throughput(asked, shares)) / fair).max())


@pytest.mark.parametrize("seed", range(8))
def test_no_mixture_with_other_shares_is_better(seed: int) -> None:
    """Both objectives are convex: were there anything better, a step towards it would be better, too."""
    asked = random_demand(seed)
    others = [program(asked) for program in SOLVED]
    for program, value in ((fastest_finish, finish_sum), (least_unfair, worst_unfairness)):
        best = program(asked)
        for other in others:
            assert value(asked, best) <= value(asked, 0.9 * best + 0.1 * other) * (1 + 1e-5)


@pytest.mark.parametrize("seed", range(300, 330))
def test_the_interior_point_ends_on_jobs_of_very_different_length(seed: int) -> None:
    chance = np.random.default_rng(seed)
    rate = chance.lognormal(0, 3, (30, 1)) * chance.lognormal(0, 1, (30, 2))
    steps = chance.lognormal(8, 3, 30) * rate[:, 0]
    asked = demand(rate.tolist(), [8] * 30, [24, 16], steps=steps.tolist(), remaining=(steps * 0.3).tolist())
    assert np.all(throughput(asked, fastest_finish(asked)) > 0)
    assert np.all(throughput(asked, least_unfair(asked)) > 0)


def test_a_cone_program_with_a_known_answer() -> None:
    """Minimise x + y over x·y >= 1: at 1 and 1."""
    matrix = np.array([[-1.0, 0.0], [0.0, -1.0], [-1.0, -1.0], [-1.0, 1.0], [0.0, 0.0]])
    found = solve(ConeProgram(np.array([1.0, 1.0]), matrix, np.array([0.0, 0.0, 0.0, 0.0, 2.0]), linear=2))
    assert found == pytest.approx([1.0, 1.0], abs=1e-6)


def test_a_cone_program_without_solution_says_so() -> None:
    """x >= 2 and x <= 1."""
    with pytest.raises(Unsolved, match="Clarabel: PrimalInfeasible"):
        solve(ConeProgram(np.array([1.0]), np.array([[-1.0], [1.0]]), np.array([-2.0, 1.0]), linear=2))


# --- the rounds ------------------------------------------------------------------------------------------
def held(decision: Decision) -> dict[str, dict[str, int]]:
    return {
        placed.job.removeprefix("uid-"): {share.node: share.gpus for share in placed.shares}
        for placed in decision.placements
    }


def quads(*free: int) -> list[Node]:
    return [node(f"n{i}", gpus=4, free=left) for i, left in enumerate(free)]


@pytest.mark.parametrize("policy", ALL)
def test_a_job_alone_gets_what_it_asks_for_on_its_fastest_type(policy: type[Gavel]) -> None:
    now = snapshot([*quads(4), node("t0", T4)], [traced("a", 4, types=(A100, T4))])
    [placed] = policy().decide(now).placements
    assert (placed.gpu_type, placed.gpus) == (A100, 4)


def test_of_equal_jobs_the_one_that_has_received_less_is_served_next() -> None:
    had = replace(traced("a", 4, {"n0": 4}), served={A100: 4 * 360.0}, started=NOW - 360)
    decision = MaxSumThroughput().decide(snapshot(quads(0), [had, traced("b", 4)]))
    assert [stop.job for stop in decision.stops] == ["uid-a"]
    assert held(decision) == {"b": {"n0": 4}}


def test_what_jobs_had_that_are_gone_counts_as_given_out() -> None:
    """p is behind q on both types, more so on the T4s; but of all A100 time that was given out it has hardly any."""
    nodes = [node("n0", gpus=4), node("t0", T4, gpus=4)]
    p = replace(traced("p", 4, types=(A100, T4)), served={A100: 4 * 400.0, T4: 4 * 100.0})
    q = replace(traced("q", 4, types=(A100, T4)), served={A100: 4 * 800.0, T4: 4 * 2000.0})
    gone = replace(traced("gone", 4, {"n0": 4}), served={A100: 4 * 36_000.0})
    fresh, experienced = MaxSumThroughput(), MaxSumThroughput()
    experienced.decide(snapshot([node("n0", gpus=4, free=0)], [gone]))
    assert held(fresh.decide(snapshot(nodes, [p, q]))) == {"p": {"t0": 4}, "q": {"n0": 4}}
    assert held(experienced.decide(snapshot(nodes, [p, q]))) == {"p": {"n0": 4}, "q": {"t0": 4}}


def test_gpus_that_are_left_over_go_to_jobs_without_a_share() -> None:
    """The sum is largest if b never runs; a needs only half of the GPUs, though."""
    strong, weak = traced("a", 4, seconds=100.0), traced("b", 4, seconds=100.0)
    slow = replace(weak, speeds=(Speed(A100, 4, 1, 1.0),))
    assert set(held(MaxSumThroughput().decide(snapshot(quads(4, 4), [strong, slow])))) == {"a", "b"}
    assert set(held(MaxSumThroughput().decide(snapshot(quads(4), [strong, slow])))) == {"a"}


def test_a_large_job_is_passed_over_where_it_does_not_fit() -> None:
    first = replace(traced("large", 8), created=NOW - 500)
    decision = MaxSumThroughput().decide(snapshot(quads(4), [first, traced("small", 4)]))
    assert held(decision) == {"small": {"n0": 4}}


def test_a_job_that_cannot_have_more_keeps_what_it_has_unless_somebody_gets_that() -> None:
    rates = tuple(Speed(A100, gpus, gpus // 4, 10.0 * gpus) for gpus in (4, 8))
    had = {"served": {A100: 4 * 7200.0}, "started": NOW - 7200, "restart_seconds": 60.0}
    old = replace(traced("old", (4, 8), {"n0": 4}), speeds=rates, **had)
    new, other = traced("new", 8), traced("other", 4)
    decision = MaxMinFairness().decide(snapshot(quads(0, 4, 4), [old, new]))
    assert (sum(held(decision)["new"].values()), decision.stops) == (8, ())
    decision = MaxMinFairness().decide(snapshot(quads(0, 4, 4), [old, new, other]))
    assert (set(held(decision)), [stop.job for stop in decision.stops]) == ({"new", "other"}, ["uid-old"])


def test_fifo_lets_nobody_pass() -> None:
    queue = (("a", 4, 9), ("b", 8, 6), ("c", 4, 3))
    jobs = [replace(traced(name, gpus), created=NOW - age) for name, gpus, age in queue]
    assert held(Fifo().decide(snapshot(quads(4, 4), jobs))) == {"a": {"n0": 4}}


def test_of_equally_large_jobs_those_that_run_stay_where_they_are() -> None:
    decision = MaxSumThroughput().decide(snapshot(quads(0, 4), [traced("new", 4), traced("stays", 4, {"n0": 4})]))
    assert held(decision) == {"new": {"n1": 4}}
    assert not decision.stops


def test_larger_jobs_are_placed_first_even_where_smaller_ones_run() -> None:
    old = traced("old", 2, {"n0": 2}, restart_seconds=0.0)
    decision = MaxSumThroughput().decide(snapshot(quads(2, 4), [traced("new", 4), old]))
    assert held(decision) == {"new": {"n0": 4}, "old": {"n1": 2}}


@pytest.mark.parametrize(("started", "resuming", "stays"), [(360, 40, True), (360, 0, True), (361, 0, False)])
def test_a_job_that_has_not_yet_computed_since_it_was_started_stays(
    started: float, resuming: float, stays: bool
) -> None:
    """A restart takes a whole round here. It had more than its rival; and a larger job would take its nodes."""
    had = {"served": {A100: 2 * 7200.0}, "started": NOW - started, "resuming": resuming, "restart_seconds": 360.0}
    old = replace(traced("old", 2, {"n0": 2}), **had)
    decision = MaxSumThroughput().decide(snapshot(quads(2, 4), [old, traced("new", 4), traced("rival", 2)]))
    assert ("uid-old" in {each.job for each in (*decision.placements, *decision.stops)}) is not stays
    assert held(decision)["new"] == ({"n0": 2, "n1": 2} if stays else {"n0": 4})


@pytest.mark.parametrize("restart", [360.0, 400.0])
def test_jobs_whose_restart_takes_a_round_get_done(restart: float) -> None:
    there = clusters.cluster("T4=8x4")
    jobs = rigid.jobs(
        trace(["a", "b"], [0.0, 0.0], [8, 8], [3600.0, 3600.0]), there, RigidRules(restart_seconds=restart)
    )
    run = simulate(MaxSumThroughput(), jobs, there, SimRules(round_seconds=360.0, until=100 * 3600.0))
    assert all(job.finished is not None and job.restarts <= 11 for job in run.jobs)


def test_a_gang_takes_the_first_free_gpus_node_by_node() -> None:
    decision = MaxSumThroughput().decide(snapshot(quads(4, 4, 4), [traced("a", 6), traced("b", 6)]))
    assert held(decision) == {"a": {"n0": 4, "n1": 2}, "b": {"n1": 2, "n2": 4}}


def test_a_job_that_could_use_many_counts_asks_for_the_largest_that_scales() -> None:
    rates = {1: 10.0, 2: 18.0, 4: 21.0, 8: 24.0}
    elastic = replace(traced("a", (1, 8)), speeds=tuple(Speed(A100, n, 1, rate) for n, rate in rates.items()))
    [menu] = market(snapshot([node("n0")], [elastic])).menus
    assert menu.gpus[tuned(menu, 0, most=8)] == 4
    assert menu.gpus[tuned(menu, 0, most=3)] == 2


@pytest.mark.parametrize("policy", ALL)
def test_jobs_of_the_performance_model_are_served_and_running_ones_left_alone(policy: type[Gavel]) -> None:
    fixed = running("f", {"n0": 8})
    now = snapshot([node("n0", free=0), node("n1")], [fixed, job("a", gpus=(4, 4)), job("b", gpus=(4, 4))])
    decision = policy().decide(now)
    assert not decision.stops
    assert {placed.job: placed.shares for placed in decision.placements} == {
        "uid-a": (NodeShare("n1", 4),),
        "uid-b": (NodeShare("n1", 4),),
    }


@pytest.mark.parametrize("policy", ALL)
def test_a_type_that_is_taken_by_jobs_which_must_not_be_preempted_is_not_asked_for(policy: type[Gavel]) -> None:
    nodes = [node("n0", free=0), node("t0", T4)]
    jobs = [running("f", {"n0": 8}), *(traced(name, (4, 8), types=(A100, T4)) for name in "abc")]
    decision = policy().decide(snapshot(nodes, jobs))
    assert {placed.gpu_type for placed in decision.placements} == {T4}


@pytest.mark.parametrize("policy", ALL)
def test_nothing_to_decide_is_decided(policy: type[Gavel]) -> None:
    assert policy().decide(snapshot(quads(4), [])) == Decision(policy.name)
