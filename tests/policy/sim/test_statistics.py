"""Comparisons in pairs: against formulas and full enumeration, and by simulation."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab_lab.evaluation import statistics
from trimtab_lab.evaluation.statistics import TooFewWindows, compare, holm, regression, significance

WINDOWS = np.random.default_rng(5).lognormal(1.0, 1.2, 30)
"""Mean JCT of a policy in 30 windows of very different scale."""
FACTORS = np.random.default_rng(6).lognormal(-0.1, 0.1, 30)


def test_the_ratio_is_the_geometric_mean_within_windows() -> None:
    found = compare(WINDOWS * FACTORS, WINDOWS)
    assert found.ratio.value == pytest.approx(math.exp(np.log(FACTORS).mean()))
    assert found.ratio.low < found.ratio.value < found.ratio.high < 1
    assert found.p < 0.001
    assert (found.windows, found.seeds) == (30, 1)
    assert found.wins == pytest.approx((FACTORS < 1).mean())


def test_turned_around_it_is_the_inverse() -> None:
    one, other = compare(WINDOWS * FACTORS, WINDOWS), compare(WINDOWS, WINDOWS * FACTORS)
    assert other.ratio.value == pytest.approx(1 / one.ratio.value)
    assert other.p == pytest.approx(one.p, abs=0.002)


def bca(values: np.ndarray, resamples: int) -> tuple[float, float]:
    """The interval of the mean of (seeds, windows), from the formulas: how often each was drawn is multinomial."""
    rng, (rows, columns), mean = np.random.default_rng(2), values.shape, values.mean()
    drawn = [rng.multinomial(size, np.full(size, 1 / size), resamples) / size for size in (rows, columns)]
    means = np.einsum("br,rc,bc->b", drawn[0], values, drawn[1], optimize=True)
    influence = [values.mean(axis=1 - axis) - mean for axis in (0, 1)]
    cubes = sum((each**3).sum() / each.size**3 for each in influence)
    acceleration = cubes / (6 * sum((each**2).sum() / each.size**2 for each in influence) ** 1.5)
    bias = scipy.stats.norm.ppf(np.where(np.isclose(means, mean, rtol=0, atol=1e-12), 0.5, means < mean).mean())
    quantiles = bias + scipy.stats.norm.ppf([0.025, 0.975])
    low, high = np.quantile(means, scipy.stats.norm.cdf(bias + quantiles / (1 - acceleration * quantiles)))
    return math.exp(low), math.exp(high)


@pytest.mark.parametrize(("seeds", "windows"), [(1, 20), (4, 20), (1, 5)])
def test_the_interval_is_bca_over_windows_and_over_seeds(
    monkeypatch: pytest.MonkeyPatch, seeds: int, windows: int
) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 50_000)
    skew = np.random.default_rng(1).exponential(0.5, (seeds, windows)) + np.linspace(0, 0.3, seeds)[:, None] ** 2
    ours, (low, high) = compare(np.exp(skew), np.ones(windows)).ratio, bca(skew, 50_000)
    assert ours.low == pytest.approx(low, rel=0.01)
    assert ours.high == pytest.approx(high, rel=0.01)


@pytest.mark.parametrize("logs", [[0.2, 0.3, 0.4], [0.5, 0.6, 0.7], [0.3, 0.6, 0.9], [0.9, 1.1, 1.3], [0.4, 0.9, 1.4]])
def test_resamples_that_are_the_sample_count_half_however_they_were_added_up(logs: list[float]) -> None:
    """Of three windows 7 of 27 resamples have its mean: counted by what rounding makes of them, one side is shorter."""
    ratio = compare(np.exp(logs), np.ones(3)).ratio
    assert (math.log(ratio.low), math.log(ratio.high)) == (pytest.approx(logs[0]), pytest.approx(logs[2]))


def test_the_interval_covers_the_truth_about_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 999)
    rng, runs, covered = np.random.default_rng(3), 300, 0
    for seed in range(runs):
        interval = compare(np.exp(rng.exponential(0.3, 30)), np.ones(30), seed=seed).ratio
        covered += interval.low <= math.exp(0.3) <= interval.high
    assert 0.90 <= covered / runs <= 0.98


def test_seeds_that_differ_widen_the_interval_where_more_windows_would_not_help() -> None:
    rng = np.random.default_rng(4)
    windows, seeds = rng.normal(0, 0.05, 200), np.array([-0.2, 0.0, 0.2])
    ours = np.exp(windows + seeds[:, None])
    crossed, single = compare(ours, np.ones(200)), compare(ours.mean(axis=0), np.ones(200))
    assert (crossed.seeds, crossed.windows) == (3, 200)
    assert crossed.ratio.high - crossed.ratio.low > 10 * (single.ratio.high - single.ratio.low)


def test_the_same_windows_for_all_seeds_are_not_more_windows() -> None:
    logs = np.random.default_rng(4).normal(0, 0.3, 10)
    once = compare(np.exp(logs), np.ones(10)).ratio
    copies = compare(np.exp(np.tile(logs, (5, 1))), np.ones((5, 10))).ratio
    assert copies.low == pytest.approx(once.low, rel=0.02)
    assert copies.high == pytest.approx(once.high, rel=0.02)


def test_equal_policies_are_equal() -> None:
    found = compare(WINDOWS, WINDOWS)
    assert (found.ratio.value, found.ratio.low, found.ratio.high, found.p) == (1, 1, 1, 1)
    constant = compare(0.9 * WINDOWS, WINDOWS)
    assert constant.ratio.low == pytest.approx(0.9)
    assert constant.ratio.high == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("ours", "theirs", "error", "message"),
    [
        ([1, 2], [1, 2], TooFewWindows, "2 windows: at least 3"),
        ([1, 2, 0], [1, 2, 3], ValueError, r"ours\[0, 2\] is 0: ratios need positive values"),
        ([1, 2, 3], [1, math.nan, 3], ValueError, r"theirs\[0, 1\] is nan"),
        ([1, 2, 3], [1, 2, 3, 4], ValueError, "not the same windows"),
        ([[1, 2, 3]] * 2, [[1, 2, 3]] * 3, ValueError, "not the same windows"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    ours: list[float], theirs: list[float], error: type[ValueError], message: str
) -> None:
    with pytest.raises(error, match=message):
        compare(ours, theirs)


# --- significance --------------------------------------------------------------------------------------
@given(st.lists(st.integers(-200, 200), min_size=3, max_size=9))
@settings(max_examples=30, deadline=None)
def test_few_windows_are_tested_exactly(values: list[int]) -> None:
    """Sums of whole numbers have no rounding: ties are ties."""
    sums = [abs(sum(signed)) for signed in product(*((value, -value) for value in values))]
    assert significance(np.array(values) / 100) == pytest.approx(np.mean([each >= abs(sum(values)) for each in sums]))


def test_many_windows_are_tested_by_drawing() -> None:
    logs = np.random.default_rng(0).normal(0.1, 0.3, 40)
    assert significance(logs) == pytest.approx(scipy.stats.ttest_1samp(logs, 0).pvalue, abs=0.01)
    assert 0 < significance(np.ones(40)) < 1e-4


def test_alike_policies_are_seldom_told_apart() -> None:
    rng = np.random.default_rng(8)
    found = np.mean([significance(rng.normal(0, 1, 10)) <= 0.05 for _ in range(400)])
    assert 0.02 <= found <= 0.08


def test_holm_raises_p_values_step_by_step() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    with pytest.raises(ValueError, match=r"p-values must be in \[0, 1\]"):
        holm([0.5, 1.5])


# --- regression ----------------------------------------------------------------------------------------
def test_a_line_is_that_of_scipy() -> None:
    rng = np.random.default_rng(2)
    x = rng.uniform(0.4, 0.9, 50)
    y = 3 - 2 * x + rng.normal(0, 0.2, 50)
    ours, theirs = regression(x, y), scipy.stats.linregress(x, y)
    half = scipy.stats.t.ppf(0.975, 48) * theirs.stderr
    assert ours.slope.value == pytest.approx(theirs.slope)
    assert (ours.slope.low, ours.slope.high) == (pytest.approx(theirs.slope - half), pytest.approx(theirs.slope + half))
    assert (ours.intercept, ours.r_squared, ours.n) == (
        pytest.approx(theirs.intercept),
        pytest.approx(theirs.rvalue**2),
        50,
    )


def test_busy_windows_do_not_pass_for_an_effect_of_utilisation() -> None:
    # within a window higher utilisation shortens JCT; busy windows have more of both
    window = np.repeat(np.arange(10), 5)
    within = np.tile(np.linspace(-0.05, 0.05, 5), 10)
    x, y = 0.5 + 0.04 * window + within, 1.0 * window - 2 * within
    assert regression(x, y).slope.value > 0
    fixed = regression(x, y, groups=window)
    assert fixed.slope.value == pytest.approx(-2)
    assert fixed.r_squared == pytest.approx(1)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1, 2], [1, 2], "2 points are too few"),
        ([], [], "0 points are too few"),
        ([1, 2, 3], [1, 2], "equal length"),
        ([1, 2, math.nan], [1, 2, 3], "must be finite"),
        ([2, 2, 2, 2], [1, 2, 3, 4], "x does not vary"),
    ],
)
def test_no_line_without_points(x: list[float], y: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        regression(x, y)
