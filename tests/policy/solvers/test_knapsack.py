"""The exact assignment of GPUs: equal to HiGHS wherever both can say, and deterministic where many are cheapest."""

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab_policy.solvers import knapsack, milp, prices
from trimtab_policy.solvers.knapsack import Assignment

SIZES = ((1, 2, 4, 8, 12, 16, 20, 24), (1, 2, 4, 8, 16, 24), (1, 2, 4, 8, 16))
"""Configurations of the Sia artifact's 24 T4, 24 RTX and 16 A100."""


def assignment(capacity: list[int], jobs: list[list[tuple[int, int, float]]], idle: float = 1.1) -> Assignment:
    """From (type, GPUs, cost) of every option, job by job."""
    options = list(itertools.chain.from_iterable(jobs))
    return Assignment(
        capacity=np.array(capacity),
        first=np.cumsum([0, *map(len, jobs)]),
        kind=np.array([kind for kind, _, _ in options], dtype=np.int64),
        gpus=np.array([gpus for _, gpus, _ in options], dtype=np.int64),
        cost=np.array([cost for _, _, cost in options], dtype=np.float64),
        idle=np.full(len(jobs), idle),
    )


def like_sia(jobs: int, seed: int) -> Assignment:
    """Sia's problem of real size: concave speed-ups, rounded costs, jobs that have explored different counts."""
    chance = np.random.default_rng(seed)
    menus = []
    for _ in range(jobs):
        bend, menu = chance.uniform(0.4, 1.0), []
        for kind, sizes in enumerate(SIZES):
            speed, explored = chance.uniform(1, 4), chance.integers(1, len(sizes) + 1)
            menu += [(kind, gpus, round((speed * gpus**bend) ** -0.5, 2)) for gpus in sizes[:explored]]
        menus.append(menu)
    return assignment([24, 24, 16], menus)


def used(problem: Assignment, chosen: np.ndarray) -> np.ndarray:
    taken = chosen[chosen >= 0]
    return np.bincount(problem.kind[taken], weights=problem.gpus[taken], minlength=len(problem.capacity))


@pytest.mark.parametrize("seed", range(40))
def test_dynamic_programming_finds_the_same_cost_as_highs_at_gap_zero(seed: int) -> None:
    problem = like_sia(jobs=(5, 10, 20, 40, 60)[seed % 5], seed=seed)
    exact, other = knapsack.solve(problem), milp.assign(problem, gap=0.0)
    assert exact.cost == pytest.approx(other.cost, abs=1e-9)
    assert np.all(used(problem, exact.chosen) <= problem.capacity)


options = st.tuples(st.integers(0, 1), st.integers(1, 5), st.sampled_from([0.2, 0.5, 0.5, 0.9, 1.0, 1.3]))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(options, max_size=4), max_size=4), st.tuples(st.integers(0, 6), st.integers(0, 6)))
def test_no_assignment_is_cheaper(jobs: list[list[tuple[int, int, float]]], capacity: tuple[int, int]) -> None:
    problem = assignment(list(capacity), jobs)
    found = knapsack.solve(problem)
    ranges = [[-1, *range(problem.first[job], problem.first[job + 1])] for job in range(len(jobs))]
    for each in itertools.product(*ranges):
        choice = np.array(each, dtype=np.int64)
        if np.all(used(problem, choice) <= problem.capacity):
            assert found.cost <= knapsack.total(problem, choice) + 1e-12
    assert np.all(used(problem, found.chosen) <= problem.capacity)
    assert found.cost == knapsack.total(problem, found.chosen)


def test_a_job_idles_rather_than_take_what_costs_as_much() -> None:
    assert knapsack.solve(assignment([4], [[(0, 1, 1.1)]])).chosen.tolist() == [-1]


def test_of_equal_options_on_different_types_the_first_is_taken() -> None:
    assert knapsack.solve(assignment([4, 4], [[(1, 1, 0.5), (0, 1, 0.5)]])).chosen.tolist() == [0]


def test_of_equal_costs_the_fewest_gpus_are_taken() -> None:
    assert knapsack.solve(assignment([4], [[(0, 4, 0.5), (0, 2, 0.5)]])).chosen.tolist() == [1]


def test_nobody_to_serve_costs_nothing() -> None:
    found = knapsack.solve(assignment([4, 4], []))
    assert (found.chosen.tolist(), found.cost, found.gap) == ([], 0.0, 0.0)


def test_jobs_without_options_idle() -> None:
    found = knapsack.solve(assignment([4], [[], [(0, 4, 0.5)], []]))
    assert found.chosen.tolist() == [-1, 0, -1]
    assert found.cost == pytest.approx(0.5 + 2 * 1.1)


def test_a_cluster_of_many_types_is_left_to_the_integer_program() -> None:
    jobs = [[(kind, gpus, 1 / gpus) for kind in range(6) for gpus in (1, 2, 4, 8)] for _ in range(20)]
    large = assignment([32] * 6, jobs)
    assert not knapsack.fits(large)
    found = milp.cheapest(large, gap=1e-4)
    assert found.cost == pytest.approx(20 / 8)
    assert found.gap <= 1e-4


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(options, max_size=4), max_size=6), st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_prices_are_never_below_the_least_cost_and_prove_how_far_they_are_from_it(
    jobs: list[list[tuple[int, int, float]]], capacity: tuple[int, int]
) -> None:
    problem = assignment(list(capacity), jobs)
    found, least = prices.cheap(problem), knapsack.solve(problem).cost
    assert found.cost == pytest.approx(knapsack.total(problem, found.chosen))
    assert (used(problem, found.chosen) <= problem.capacity).all()
    assert least <= found.cost + 1e-9
    assert found.cost - found.gap * abs(found.cost) <= least + 1e-6


def test_what_prices_do_not_prove_is_asked_of_the_integer_program_and_the_cheaper_one_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = assignment([7, 7], [[(kind, gpus, 1 / gpus) for kind in (0, 1) for gpus in (2, 3, 5)] for _ in range(5)])
    least = knapsack.solve(problem).cost
    monkeypatch.setattr(knapsack, "fits", lambda *_: False)
    by_prices = prices.cheap(problem)
    assert milp.cheapest(problem, 0.0).cost == pytest.approx(least)
    monkeypatch.setattr(milp, "MOST_OPTIONS", 0)
    assert milp.cheapest(problem, 0.0).cost == by_prices.cost, "of very many nothing more is asked"
    monkeypatch.setattr(milp, "MOST_OPTIONS", 100)
    monkeypatch.setitem(sys.modules, "highspy", None)
    assert milp.cheapest(problem, 0.0).cost == by_prices.cost, "nor where there is no solver"


def test_the_best_that_was_found_within_the_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list(itertools.product(range(6), (1, 2, 4, 8)))
    jobs = [[(kind, gpus, (1 + number % 7) / gpus) for kind, gpus in sizes] for number in range(60)]
    problem = assignment([37] * 6, jobs)
    patient = milp.cheapest(problem, 0.0)
    monkeypatch.setattr(milp, "MOST_NODES", 0)
    hurried = milp.cheapest(problem, 0.0)
    assert patient.cost <= hurried.cost + 1e-9
    for found in (patient, hurried):
        assert found.cost * (1 - found.gap) <= patient.cost + 1e-6
        assert (used(problem, found.chosen) <= problem.capacity).all()
    again = milp.cheapest(problem, 0.0)
    assert (again.chosen == hurried.chosen).all(), "no clock has a part in it"
