"""Drift: noticing that GPUs are no longer as fast as predicted, and by how much.

Every job gives its GPU type one number, ln(observed / predicted step time), whose mean is 0 while predictions hold.
Page's two-sided cumulative sums (Page 1954; two-sided with a known target, unlike Hinkley's form, because a bias that
is there from the first job is to be found, too) run over these numbers in units of their noise, which is measured by
successive differences: a step in the mean changes one of them only.

The mean since the change, as the sums tell it, shrunk towards no correction and bounded, becomes the correction at the
alarm, and is refined by the jobs that follow. What is corrected by it, `correction` decides.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace


class DriftRules(Struct, frozen=True, forbid_unknown_fields=True):
    """How soon something is noticed, and how much is done about it."""

    noise: float = 0.15
    """Standard deviation of ln(observed / predicted), as believed before anything was observed."""
    believed: int = 10
    """Observations that this belief is worth."""
    allowance: float = 0.5
    """Deviations of the mean that are let pass, in units of the noise: k of the cumulative sums."""
    threshold: float = 10.0
    """h of the cumulative sums: a larger one means fewer false alarms and later true ones."""
    outlier: float = 3.0
    """Beyond so many units of noise an observation counts no more than this: one broken job is no drift."""
    shrinkage: float = 1.0
    """Observations of "no drift" that are mixed into the estimate of a factor."""
    refined: int = 30
    """Observations from the change on after which a factor is settled."""
    largest_factor: float = 3.0
    """Bound of a factor, and of its inverse."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        for name in ("noise", "threshold", "outlier"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number above 0, got {getattr(self, name)}")
        for name in ("allowance", "shrinkage"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")
        for name in ("believed", "refined"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 1 < self.largest_factor < math.inf:
            raise ValueError(f"largest_factor must be finite and above 1, got {self.largest_factor}")


class Sum(Struct, frozen=True):
    """One side of Page's test: a cumulative sum that starts again at 0, and what was seen since then."""

    height: float = 0.0
    count: int = 0
    total: float = 0.0
    """Of the observed logarithms."""


class Stream(Struct, frozen=True):
    """All that is remembered of one GPU type."""

    slower: Sum = Sum()
    faster: Sum = Sum()
    fit: Sum = Sum()
    """Observations since the change that the correction follows from."""
    correction: float = 0.0
    """ln of the factor in force."""
    last: float | None = None
    differences: int = 0
    squares: float = 0.0
    """Of successive differences, halved: each is one estimate of the variance of the noise."""
    alarms: int = 0


def watch(stream: Stream, error: float, rules: DriftRules) -> Stream:
    """One more observation: `error` is ln(observed / predicted without any correction). `alarms` counts changes."""
    noise = spread(stream, rules)
    residual = max(-rules.outlier, min(rules.outlier, (error - stream.correction) / noise))
    error = stream.correction + residual * noise
    slower = _accumulate(stream.slower, residual - rules.allowance, error)
    faster = _accumulate(stream.faster, -residual - rules.allowance, error)
    following = _measured(replace(stream, slower=slower, faster=faster), error)
    for side in (slower, faster):
        if side.height > rules.threshold:
            fit = replace(side, height=0.0)
            return _corrected(replace(following, slower=Sum(), faster=Sum(), alarms=stream.alarms + 1), fit, rules)
    if 0 < stream.fit.count < rules.refined:
        fit = replace(stream.fit, count=stream.fit.count + 1, total=stream.fit.total + error)
        return _corrected(following, fit, rules)
    return following


def spread(stream: Stream, rules: DriftRules) -> float:
    """Standard deviation of the noise: belief and successive differences (von Neumann 1941), by their numbers."""
    return math.sqrt((rules.believed * rules.noise**2 + stream.squares) / (rules.believed + stream.differences))


def _accumulate(side: Sum, step: float, error: float) -> Sum:
    height = side.height + step
    return Sum(height, side.count + 1, side.total + error) if height > 0 else Sum()


def _measured(stream: Stream, error: float) -> Stream:
    if stream.last is None:
        return replace(stream, last=error)
    square = (error - stream.last) ** 2 / 2
    return replace(stream, last=error, differences=stream.differences + 1, squares=stream.squares + square)


def _corrected(stream: Stream, fit: Sum, rules: DriftRules) -> Stream:
    """The factor that these observations call for: their mean, with some of "no drift" among them, bounded."""
    limit = math.log(rules.largest_factor)
    mean = fit.total / (fit.count + rules.shrinkage)
    return replace(stream, fit=fit, correction=max(-limit, min(limit, mean)))
