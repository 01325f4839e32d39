"""Whether one policy is better than another, and how sure that is: windows of a workload, compared in pairs.

Most of what varies between windows is who arrives when, so policies meet the same windows with the same arrivals and
failures, and what counts is the ratio within a window: its geometric mean over windows, with the BCa
bootstrap interval (Efron 1987; Efron and Tibshirani 1993, chapter 14). A policy that was trained has seeds, too, all on
the same windows. Seeds and windows are then resampled independently of each other (Owen 2007, the pigeonhole
bootstrap), so that neither a lucky seed nor a kind window decides. A table of many cells is corrected by Holm (1979).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray
from scipy.stats import bootstrap, permutation_test
from scipy.stats import t as student

FloatArray = NDArray[np.float64]

MIN_WINDOWS = 3
RESAMPLES = 9_999
FLIPS = 50_000
"""Of signs that are drawn where there are more than so many; all are counted where there are not."""
_DIGITS = 12
_SAME = 10.0**-_DIGITS
"""By how much numbers may differ that would be equal without rounding."""


class TooFewWindows(ValueError):
    """Less than can show how much windows differ."""


class Interval(Struct, frozen=True):
    """An estimate and where it lies with the confidence that was asked for."""

    value: float
    low: float
    high: float


class Comparison(Struct, frozen=True):
    """A policy against another on the same windows. Ratios below 1 are less of the measure, e.g. shorter JCT."""

    ratio: Interval
    """Geometric mean of the ratios."""
    p: float
    """Two-sided, of the hypothesis that the two are alike (`significance`), over windows with the mean of the seeds."""
    windows: int
    seeds: int
    wins: float
    """Share of the windows in which the ratio (geometric mean over seeds) is below 1."""


class Regression(Struct, frozen=True):
    """A line y = intercept + slope * x by least squares."""

    slope: Interval
    intercept: float
    r_squared: float
    n: int


def compare(ours: ArrayLike, theirs: ArrayLike, level: float = 0.95, seed: int = 0) -> Comparison:
    """Paired comparison of a measure where less is better and zero cannot be, such as the mean JCT.

    `ours` is (windows,) or (seeds, windows), `theirs` (windows,) or the same shape. `seed` draws the resamples.
    Raises TooFewWindows below `MIN_WINDOWS` windows, ValueError for values that are not positive and finite.
    """
    logs = _log_ratios(ours, theirs)
    interval = _bca(logs, level, np.random.default_rng(seed))
    per_window = logs.mean(axis=0)
    return Comparison(
        ratio=Interval(*(float(np.exp(x)) for x in (interval.value, interval.low, interval.high))),
        p=significance(per_window, seed),
        windows=logs.shape[1],
        seeds=logs.shape[0],
        wins=float((per_window < 0).mean()),
    )


def significance(log_ratios: ArrayLike, seed: int = 0) -> float:
    """Two-sided p of the paired permutation test: if both were alike, every sign of a log ratio were as likely as not.

    `log_ratios` (windows,). Exact up to 15 windows; above, as many flips are drawn as `FLIPS`, and p is never 0.
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    found = permutation_test(
        (values,),
        lambda signed, axis: np.abs(signed.sum(axis=axis)),
        permutation_type="samples",
        alternative="greater",
        vectorized=True,
        n_resamples=FLIPS,
        batch=1000,
        rng=np.random.default_rng(seed),
    )
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values of a family of tests, raised so that the chance of any false finding is what each of them says."""
    p = np.asarray(p_values, dtype=np.float64)
    if p.size and not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p-values must be in [0, 1]: {list(p_values)}")
    order = np.argsort(p)
    raised = np.maximum.accumulate(np.minimum(1.0, p[order] * np.arange(p.size, 0, -1)))
    adjusted = np.empty_like(p)
    adjusted[order] = raised
    return [float(each) for each in adjusted]


def regression(x: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None, level: float = 0.95) -> Regression:
    """How y goes with x, e.g. the logarithm of the mean JCT with utilisation, over policies and windows; each (n,).

    With `groups` (n,), e.g. the window, both are taken relative to the mean of their group (fixed effects), so that a
    busy window, with long JCT and high utilisation, does not pass for an effect of utilisation. The interval is
    Student's, for independent errors of equal variance. Raises ValueError for less than 3 points more than groups,
    values that are not finite, or x that does not vary.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if xs.ndim != 1 or xs.shape != ys.shape:
        raise ValueError(f"x and y must be of equal length, they are {xs.shape} and {ys.shape}")
    if not (np.isfinite(xs).all() and np.isfinite(ys).all()):
        raise ValueError("x and y must be finite: leave out windows without a value")
    group = np.zeros(xs.size, dtype=np.int64) if groups is None else np.unique(groups, return_inverse=True)[1]
    freedom = xs.size - (int(group.max()) + 1 if xs.size else 0) - 1
    if freedom < 2:
        raise ValueError(f"{xs.size} points are too few for a line: at least 3 more than groups are needed")
    return _line(_centred(xs, group), _centred(ys, group), float(xs.mean()), float(ys.mean()), freedom, level)


def _line(x: FloatArray, y: FloatArray, mean_x: float, mean_y: float, freedom: int, level: float) -> Regression:
    spread, total = float(x @ x), float(y @ y)
    if spread <= _SAME * max(1.0, mean_x**2):
        raise ValueError("x does not vary: no line can be fitted")
    slope = float(x @ y) / spread
    left = max(0.0, total - slope**2 * spread)
    half = float(student.ppf((1 + level) / 2, freedom)) * float(np.sqrt(left / freedom / spread))
    explained = 1 - left / total if total > 0 else 0.0
    return Regression(Interval(slope, slope - half, slope + half), mean_y - slope * mean_x, explained, x.size)


def _centred(values: FloatArray, group: NDArray[np.int64]) -> FloatArray:
    means = np.bincount(group, values) / np.bincount(group)
    return np.asarray(values - means[group])


# --- bootstrap -----------------------------------------------------------------------------------------
def _log_ratios(ours: ArrayLike, theirs: ArrayLike) -> FloatArray:
    """(seeds, windows)"""
    a, b = (np.atleast_2d(np.asarray(values, dtype=np.float64)) for values in (ours, theirs))
    if a.shape[1] != b.shape[1] or b.shape[0] not in (1, a.shape[0]):
        raise ValueError(f"not the same windows: ours are {a.shape}, theirs {b.shape} (seeds, windows)")
    if a.shape[1] < MIN_WINDOWS:
        raise TooFewWindows(f"{a.shape[1]} windows: at least {MIN_WINDOWS} are needed to see how much they differ")
    for name, values in (("ours", a), ("theirs", b)):
        bad = np.argwhere(~(np.isfinite(values) & (values > 0)))
        if bad.size:
            seed, window = bad[0]
            raise ValueError(f"{name}[{seed}, {window}] is {values[seed, window]:g}: ratios need positive values")
    return np.asarray(np.log(a / b))


def _bca(values: FloatArray, level: float, rng: np.random.Generator) -> Interval:
    """Of the mean of `values` (seeds, windows), whose rows and columns are resampled independently of each other."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level:g}: must be between 0 and 1")
    mean = float(values.mean())
    if np.ptp(values) <= _SAME:
        return Interval(mean, mean, mean)

    def resampled(*drawn: NDArray[np.int64], axis: int = -1) -> FloatArray:
        """(...) means over the rows and columns that were drawn, (..., n) each; of one row, over its columns."""
        rows, columns = drawn if len(drawn) == 2 else (np.zeros_like(drawn[0][..., :1]), drawn[0])
        # rounded, so that resamples that are the sample itself are equal to it, and count half in the bias
        means = values[rows[..., :, None], columns[..., None, :]].mean(axis=(-2, -1))
        return np.asarray(np.round(means, _DIGITS))

    samples = [np.arange(size) for size in values.shape if size > 1]
    found = bootstrap(samples, resampled, n_resamples=RESAMPLES, batch=1000, confidence_level=level, rng=rng)
    return Interval(mean, float(found.confidence_interval.low), float(found.confidence_interval.high))
