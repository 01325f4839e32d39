"""Assignments by prices: never too much of anything, never worth more than proven, and best where that can be known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator

from trimtab_policy.solvers import knapsack
from trimtab_policy.solvers.knapsack import Assignment
from trimtab_policy.solvers.prices import Bids, Deal, deal

SIZES = np.array([1, 2, 4, 8, 16])


def drawn(random: Generator, jobs: int, capacity: list[int]) -> Bids:
    """Jobs that could use each size of each type, and gain ever less by more GPUs."""
    kinds = len(capacity)
    gpus = np.tile(SIZES.astype(float), (jobs, kinds))
    kind = np.tile(np.repeat(np.arange(kinds), len(SIZES)), (jobs, 1))
    urgency, speed = np.exp(random.normal(size=(jobs, 1))), np.exp(0.5 * random.normal(size=(jobs, kinds)))
    rate = speed[np.arange(jobs)[:, None], kind] * gpus**0.8
    value = urgency * ((rate**0.2 - 1) / 0.2 + random.uniform(0, 5))
    return Bids(np.array(capacity, dtype=float), value, gpus, kind[:, :, None])


def used(bids: Bids, found: Deal) -> np.ndarray:
    """GPUs of each pool that the assignment takes, (pools,)."""
    total = np.zeros(len(bids.capacity) + 1)
    for job, option in enumerate(found.chosen.tolist()):
        if option >= 0:
            np.add.at(total, bids.pools[job, option], bids.gpus[job, option])
    return total[:-1]


def exact(bids: Bids) -> float:
    jobs, options = bids.value.shape
    problem = Assignment(
        capacity=bids.capacity.astype(np.int64),
        first=np.arange(jobs + 1) * options,
        kind=bids.pools[:, :, 0].ravel(),
        gpus=bids.gpus.ravel().astype(np.int64),
        cost=-bids.value.ravel(),
        idle=np.zeros(jobs),
    )
    return -knapsack.solve(problem).cost


@given(st.integers(0, 1 << 30), st.integers(1, 14), st.lists(st.integers(0, 24), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_what_is_found_is_within_the_proof_of_the_best(seed: int, jobs: int, capacity: list[int]) -> None:
    bids = drawn(np.random.default_rng(seed), jobs, capacity)
    found, best = deal(bids), exact(bids)
    assert (used(bids, found) <= bids.capacity).all()
    assert found.value <= best + 1e-6
    assert best <= found.bound + 1e-6
    assert found.gap <= 0.02


@pytest.mark.parametrize(("jobs", "capacity"), [(200, [400, 300, 300]), (600, [4000, 3000])])
def test_of_many_jobs_the_gap_is_proven_to_be_small(jobs: int, capacity: list[int]) -> None:
    bids = drawn(np.random.default_rng(5), jobs, capacity)
    found = deal(bids)
    assert (used(bids, found) <= bids.capacity).all()
    assert found.gap <= 0.01


def test_a_quota_is_a_pool_like_any_other() -> None:
    bids = drawn(np.random.default_rng(1), 6, [32])
    pools = np.concatenate([bids.pools, np.full_like(bids.pools, 2)], axis=2)
    pools[:3, :, 1] = 1  # three jobs are of a queue that may have 4 GPUs
    limited = Bids(np.array([32.0, 4.0]), bids.value, bids.gpus, pools)
    found = deal(limited)
    assert (used(limited, found) <= limited.capacity).all()
    assert (found.chosen[:3] >= 0).any()


def test_what_is_worth_nothing_is_never_taken() -> None:
    bids = drawn(np.random.default_rng(2), 3, [8])
    assert (deal(Bids(bids.capacity, -np.abs(bids.value), bids.gpus, bids.pools)).chosen == -1).all()


def test_no_jobs_is_an_answer() -> None:
    empty = Bids(np.ones(2), np.zeros((0, 1)), np.ones((0, 1)), np.zeros((0, 1, 1), dtype=np.int64))
    assert deal(empty).gap == 0.0
