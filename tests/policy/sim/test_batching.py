"""How a batch is divided among GPUs, and which GPUs a job of measured goodput may have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.sim.toy_profiles import cluster

from trimtab_lab.goodput import batching as dividing
from trimtab_lab.goodput.batching import Batching, BatchLimits, best, ways
from trimtab_lab.goodput.profiles import Gradient, ProfileError
from trimtab_lab.goodput.site import TypePool, configurations, pools
from trimtab_lab.goodput.throughput_fit import StepObservation, step_seconds
from trimtab_lab.workloads.clusters import preset

# Batches


@pytest.mark.parametrize(
    ("batch", "gpus", "accumulate", "expected"),
    [
        (16, 1, False, Batching(16, 0)),
        (17, 1, False, Batching(9, 1)),
        (16, 1, True, Batching(8, 1)),
        (64, 2, False, Batching(32, 0)),
        (66, 2, False, Batching(17, 1)),
        (128, 1, False, Batching(32, 3)),
        (100, 3, True, Batching(17, 1)),
    ],
)
def test_a_given_batch_is_divided_into_as_few_micro_batches_as_fit(
    batch: int, gpus: int, accumulate: bool, expected: Batching
) -> None:
    limits = BatchLimits(init_batch=16, max_batch=128, min_local=8, max_local=32)
    assert dividing.given(batch, gpus, limits, always_accumulate=accumulate) == expected


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 20), st.integers(1, 16), st.integers(1, 8))
def test_all_ways_to_divide_are_within_the_limits(
    gpus: int, init: int, growth: int, min_local: int, spread: int
) -> None:
    limits = BatchLimits(init, init * growth, min_local, min_local * spread)
    options = ways([(1, gpus)], limits)
    for way in range(len(options.local)):
        each = options.at(way)
        assert min_local <= each.local <= min_local * spread
        assert each.batch(gpus) >= init
        assert gpus > 1 or each.batch(1) <= init or each.accumulations >= 1


def test_the_best_way_is_that_of_most_gain_per_second() -> None:
    rows = [(1, 1), (1, 4), (2, 8)]
    options = ways(rows, BatchLimits(init_batch=16, max_batch=512, min_local=4, max_local=32))
    parameters, gradient = np.array([0.1, 0.01, 0.05, 0.002, 0.03, 0.001, 1.7]), Gradient(0.4, 3.0)
    rates, chosen = best(parameters, gradient, 16, 3, options)
    for row, (nodes, gpus) in enumerate(rows):
        mine = [options.at(way) for way in range(options.starts[row], options.starts[row + 1])]
        compute, step = step_seconds(parameters, [StepObservation(nodes, gpus, each.local, 1, 1) for each in mine])
        gains = np.array([3.4 / (3.0 * 16 / each.batch(gpus) + 0.4) for each in mine])
        expected = gains / (step + compute * [each.accumulations for each in mine])
        assert rates[row] == pytest.approx(expected.max())
        assert chosen[row] == options.starts[row] + expected.argmax()


def test_a_configuration_whose_batches_do_not_fit_has_no_goodput() -> None:
    options = ways([(1, 1), (2, 16)], BatchLimits(init_batch=16, max_batch=16, min_local=8, max_local=7))
    rates, _ = best(np.array([0.1, 0.01, 0.05, 0.002, 0.03, 0.001, 1.7]), Gradient(1, 1), 16, 2, options)
    assert list(rates) == [0, 0]


# Configurations


@pytest.mark.parametrize(
    ("pool", "max_nodes", "expected"),
    [
        (TypePool("T4", 4, 4), 16, [(1, 1), (1, 2), (1, 4), (2, 8), (3, 12), (4, 16)]),
        (TypePool("RTX-2080-Ti", 9, 8), 3, [(1, 1), (1, 2), (1, 4), (1, 8), (2, 16), (3, 24)]),
        (TypePool("T4", 40, 4), 40, [(1, 1), (1, 2), *((n, 4 * n) for n in range(1, 17))]),
        (TypePool("RTX-2080-Ti", 2, 6), 3, [(1, 1), (1, 2), (1, 4), (1, 6), (2, 12)]),
        (TypePool("T4", 2, 1), 16, [(1, 1), (2, 2)]),
    ],
)
def test_configurations_are_powers_of_two_and_whole_nodes(
    pool: TypePool, max_nodes: int, expected: list[tuple[int, int]]
) -> None:
    assert list(configurations(pool, max_nodes)) == expected


def test_only_profiled_gpu_types_are_used_in_the_artifacts_order() -> None:
    assert [pool.gpu_type for pool in pools(preset("sia-heterogeneous"))] == ["T4", "A100-SXM4-40GB", "RTX-2080-Ti"]
    with pytest.raises(ProfileError, match="none of the profiled GPU types, which are T4"):
        pools(cluster(0, 0))
