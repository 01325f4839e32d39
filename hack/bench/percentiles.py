"""Percentiles of a handful of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class Spread(Struct, frozen=True):
    """p50, p99 and maximum."""

    p50: float
    p99: float
    max: float


def spread(values: Sequence[float]) -> Spread:
    """Percentiles by nearest rank: each one is a value that was measured. Raises ValueError for no values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("there is nothing to take percentiles of")

    def rank(percent: int) -> float:
        return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]

    return Spread(rank(50), rank(99), ordered[-1])
