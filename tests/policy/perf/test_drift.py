"""Drift: noticed soon and seldom without reason, and corrected to within a few per cent."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab_policy.perf.drift import DriftRules, Stream, watch

SLOWER = 1 / 0.7
"""Step times of a GPU type that has lost 30 % of its speed, relative to what is predicted."""
Noise = Callable[[np.random.Generator, int], np.ndarray]


def first_alarm(errors: np.ndarray, rules: DriftRules | None = None) -> float:
    """How many observations were made when the first alarm came; infinite for none."""
    stream = Stream()
    for count, error in enumerate(errors.tolist(), 1):
        stream = watch(stream, error, rules or DriftRules())
        if stream.alarms:
            return count
    return math.inf


def observed(errors: np.ndarray | list[float], stream: Stream | None = None) -> Stream:
    """The stream after jobs whose steps took exp(error) times as long as predicted."""
    stream = stream or Stream()
    for error in errors:
        stream = watch(stream, float(error), DriftRules())
    return stream


def factor(stream: Stream) -> float:
    """By how much predicted step times are too short, as it says."""
    return math.exp(stream.correction)


def student(sigma: float) -> Noise:
    """Heavy tails: of Student's distribution with 4 degrees of freedom, which has variance 2."""
    return lambda random, count: random.standard_t(4, count) * sigma / math.sqrt(2)


def gaussian(sigma: float) -> Noise:
    return lambda random, count: random.normal(0.0, sigma, count)


# --- monitoring -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("noise", "allowed"),
    [(gaussian(0.05), 0.05), (gaussian(0.15), 0.05), (gaussian(0.3), 0.1), (student(0.15), 0.05)],
    ids=["gaussian-0.05", "gaussian-0.15", "gaussian-0.3", "heavy-tails"],
)
def test_300_jobs_without_drift_raise_no_alarm_in_95_of_100_runs(noise: Noise, allowed: float) -> None:
    """At twice the noise that is believed in at first, one run in ten may be alarmed while that is learned."""
    random = np.random.default_rng(1)
    alarms = [first_alarm(noise(random, 300)) < math.inf for _ in range(200)]
    assert np.mean(alarms) <= allowed


def test_false_alarms_are_as_rare_as_theory_says() -> None:
    """Siegmund (1985): one side with k = 1/2, threshold h runs (e^(2kb) - 2kb - 1) / 2k^2 on average, b = h + 1.166;
    with two sides half as long. A low threshold makes it short enough to be measured; here the noise is known."""
    rules = DriftRules(threshold=4.0, noise=0.15, believed=1_000_000, outlier=50.0)
    random = np.random.default_rng(2)
    lengths = [first_alarm(random.normal(0.0, 0.15, 3000), rules) for _ in range(400)]
    b = 4.0 + 1.166
    expected = (math.exp(b) - b - 1) / 0.5 / 2

    assert math.inf not in lengths
    assert np.mean(lengths) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(("sigma", "jobs"), [(0.05, 6), (0.15, 10), (0.3, 30)])
@pytest.mark.parametrize("factor", [SLOWER, 1 / SLOWER])
def test_a_change_by_30_per_cent_is_noticed_within_so_many_jobs(sigma: float, jobs: int, factor: float) -> None:
    random, delays = np.random.default_rng(3), []
    for _ in range(100):
        errors = random.normal(0.0, sigma, 200)
        errors[100:] += math.log(factor)
        found = first_alarm(errors)
        if found > 100:
            delays.append(found - 100)

    assert len(delays) >= 90
    assert np.quantile(delays, 0.95) <= jobs


def test_a_bias_from_the_first_job_on_is_drift_too() -> None:
    assert first_alarm(np.random.default_rng(0).normal(0.3, 0.1, 50)) <= 15


def test_one_broken_job_is_no_drift() -> None:
    stream = observed([0.0] * 20 + [8.0] + [0.0] * 20)
    assert (stream.alarms, stream.correction) == (0, 0.0)


# --- recalibration ------------------------------------------------------------------------------------
def test_corrected_predictions_are_right_to_a_few_per_cent() -> None:
    errors = []
    for seed in range(50):
        noise = np.random.default_rng(seed).normal(0.0, 0.1, 60)
        noise[10:] += math.log(SLOWER)
        errors.append(abs(factor(observed(noise)) / SLOWER - 1))
    assert np.mean(errors) < 0.03
    assert np.quantile(errors, 0.95) < 0.08


def test_a_type_that_is_repaired_loses_its_correction() -> None:
    random = np.random.default_rng(4)
    slow = observed(random.normal(math.log(SLOWER), 0.1, 60))
    repaired = observed(random.normal(0.0, 0.1, 60), slow)

    assert factor(slow) == pytest.approx(SLOWER, rel=0.08)
    assert factor(repaired) == pytest.approx(1.0, abs=0.08)


@given(st.lists(st.floats(-20, 20), max_size=80))
def test_factors_keep_their_bounds_and_sums_never_fall_below_zero(errors: list[float]) -> None:
    stream = observed(errors)
    assert 1 / 3 - 1e-9 <= factor(stream) <= 3 + 1e-9
    assert min(stream.slower.height, stream.faster.height) >= 0


def test_few_jobs_correct_less_than_many() -> None:
    few = observed([0.5] * 8)
    many = observed([0.5] * 30, few)
    assert 1 < factor(few) < factor(many) < math.exp(0.5)


def test_rules_name_the_field_that_is_wrong() -> None:
    with pytest.raises(ValueError, match="noise must be"):
        DriftRules(noise=math.nan)
    with pytest.raises(ValueError, match="largest_factor"):
        DriftRules(largest_factor=1.0)
