"""The throughput model that jobs fit while they run: its gradient, its optimism, and that it is the artifact's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.policy.sim.toy_profiles import seconds

from trimtab_lab.goodput.throughput_fit import (
    ALPHA_C,
    ALPHA_N,
    ALPHA_R,
    BETA_C,
    BETA_N,
    BETA_R,
    GAMMA,
    Floats,
    StepObservation,
    fit,
    loss,
    step_seconds,
)


def seen(*splits: tuple[int, ...], local: int = 16) -> tuple[StepObservation, ...]:
    """What a job on one T4 type observes of the toy application."""
    times = [(split, *seconds(split, local)) for split in splits]
    return tuple(StepObservation(len(split), sum(split), local, step - sync, step) for split, step, sync in times)


def columns(observations: tuple[StepObservation, ...]) -> tuple[Floats, ...]:
    nodes, gpus, local, compute, step = np.array(observations, dtype=np.float64).T
    return nodes, gpus, local, np.log(compute), np.log(step)


positive = st.floats(1e-3, 2.0)
observations = st.lists(
    st.builds(
        lambda nodes, each, local, compute, sync: StepObservation(nodes, nodes * each, local, compute, compute + sync),
        st.integers(1, 3),
        st.integers(1, 8),
        st.integers(1, 512),
        positive,
        positive,
    ),
    min_size=1,
    max_size=8,
).map(tuple)
parameters = st.tuples(*[positive] * 6, st.floats(1.0, 9.9)).map(np.array)


def root_mean_square_errors(x: Floats, data: tuple[StepObservation, ...]) -> list[float]:
    """Of the logarithms of computing and step times."""
    compute, step = step_seconds(x, data)
    return [
        math.sqrt(np.mean(np.log(predicted / [getattr(each, field) for each in data]) ** 2))
        for field, predicted in (("compute", compute), ("step", step))
    ]


@given(observations, parameters)
def test_the_gradient_is_that_of_finite_differences(data: tuple[StepObservation, ...], x: Floats) -> None:
    assume(min(root_mean_square_errors(x, data)) > 1e-3)  # where a fit is exact the loss has a kink, and no gradient
    _, gradient = loss(x, *columns(data))
    for place in range(7):
        step = np.zeros(7)
        step[place] = 1e-6 * x[place]
        difference = loss(x + step, *columns(data))[0] - loss(x - step, *columns(data))[0]
        assert gradient[place] * x[place] == pytest.approx(difference / 2e-6, rel=1e-4, abs=1e-5)


@given(observations, parameters)
def test_the_loss_is_the_logarithmic_error_of_what_is_predicted(data: tuple[StepObservation, ...], x: Floats) -> None:
    errors = root_mean_square_errors(x, data)
    growth = (x[BETA_N] / x[ALPHA_N]) ** 2 + (x[BETA_R] / x[ALPHA_R]) ** 2
    assert loss(x, *columns(data))[0] == pytest.approx(sum(errors) + 1e-3 * (x[GAMMA] - 1) ** 2 + 1e-2 * growth)


@given(observations)
def test_a_fit_is_within_its_bounds_and_never_thinks_several_nodes_faster_unseen(
    data: tuple[StepObservation, ...],
) -> None:
    found = fit(data)
    assert np.all(np.isfinite(found))
    assert np.all(found[:GAMMA] >= 1e-8)
    assert 1 <= found[GAMMA] <= 10
    if all(each.nodes == 1 for each in data):
        assert found[ALPHA_N] >= 1.1 * found[ALPHA_R]
        assert found[BETA_N] >= 1.1 * found[BETA_R]


def test_one_observation_is_met_and_everything_unseen_is_thought_free() -> None:
    data = seen((1,))
    found = fit(data)
    assert step_seconds(found, data)[1][0] == pytest.approx(data[0].step, rel=0.02)
    assert found[ALPHA_C] == pytest.approx(data[0].compute / 2), "half of it is thought to be constant"
    assert list(found[[ALPHA_R, BETA_R]]) == [1e-8, 1e-8]
    assert max(found[[ALPHA_N, BETA_N]]) == pytest.approx(1.1e-8)
    elsewhere = seen((4,), (4, 4))
    assert step_seconds(found, elsewhere)[1] == pytest.approx(data[0].step, rel=0.02)


def test_two_gpus_tell_the_level_but_not_the_growth_of_synchronisation() -> None:
    found = fit(seen((1,), (2,)))
    assert found[ALPHA_R] > 1e-3
    assert found[BETA_R] == 1e-8
    assert found[ALPHA_N] == pytest.approx(1.1 * found[ALPHA_R]), "between nodes it is at least a tenth slower"


def test_several_nodes_are_told_apart_from_one() -> None:
    data = seen((1,), (2,), (4,), (2, 2), (4, 4)) + seen((1,), (4,), (4, 4), local=32)
    found = fit(data)
    assert found[ALPHA_N] + 6 * found[BETA_N] > 2 * (found[ALPHA_R] + 6 * found[BETA_R])
    compute, step = step_seconds(found, data)
    assert compute == pytest.approx([each.compute for each in data], rel=0.05)
    assert step == pytest.approx([each.step for each in data], rel=0.15), "it stops early, as the artifact does"


def test_several_batches_tell_constant_and_proportional_time_apart() -> None:
    found = fit(seen((1,), local=8) + seen((1,), local=16) + seen((1,), local=32))
    assert found[[ALPHA_C, BETA_C]] == pytest.approx([0.13, 0.007], rel=0.1)


def test_fits_are_remembered_and_need_something_to_fit() -> None:
    assert fit(seen((1,), (2,))) is fit(seen((1,), (2,)))
    with pytest.raises(ValueError, match="at least one observation"):
        fit(())


FITTED_BY_THE_ARTIFACT = [
    (seen((1,)), [0.121, 0.0075625, 1.1e-08, 1.1e-08, 1e-08, 1e-08, 1.001]),
    (seen((1,), (2,)), [0.121, 0.0075625, 0.0420785, 1.1e-08, 0.0382532, 1e-08, 1.23294]),
    (
        seen((1,), (4,), local=8) + seen((1,)),
        [0.130001, 0.00699978, 0.0735865, 3.21687e-07, 0.0668968, 2.92442e-07, 1.05073],
    ),
    (
        seen((1,), (2,), (4,), (4, 4)) + seen((4, 4), local=32),
        [0.13, 0.00699992, 0.107094, 0.0417314, 0.0218343, 0.0202537, 1.01737],
    ),
]
"""Its objective, differentiated by autograd and minimised by scipy's L-BFGS-B with tol=1e-5."""


@pytest.mark.parametrize(("data", "expected"), FITTED_BY_THE_ARTIFACT)
def test_it_is_what_the_artifact_fits(data: tuple[StepObservation, ...], expected: list[float]) -> None:
    assert fit(data) == pytest.approx(expected, rel=1e-3)
