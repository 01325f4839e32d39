"""Checks of what an environment is made with: a ValueError that names the argument and says what it should be."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral


def whole(name: str, value: int, low: int) -> int:
    """`value`, if it is a whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise ValueError(f"{name} must be a whole number of at least {low}, got {value!r}")
    return int(value)


def positive(name: str, value: float) -> float:
    """`value`, if it is finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    return float(value)


def between(name: str, value: float, low: float, high: float) -> float:
    """`value`, if low <= value <= high."""
    if not low <= value <= high:
        raise ValueError(f"{name} must lie between {low:g} and {high:g}, got {value!r}")
    return float(value)


def known(name: str, given: Collection[str], names: Collection[str]) -> None:
    """Raise if one of the `given` is none of the `names`."""
    if strange := sorted(set(given) - set(names)):
        raise ValueError(f"{name}: unknown {', '.join(map(repr, strange))}, known are {', '.join(sorted(names))}")
