"""Kubernetes quantities, exactly: `"64Gi"` of memory, `"500m"` of a CPU.

The grammar is that of k8s.io/apimachinery/pkg/api/resource (Quantity): a decimal number, then a binary suffix (Ki to
Ei), a decimal suffix (n to E) or a decimal exponent. Fractions keep the arithmetic exact; what must be whole is
rounded up, as `Quantity.Value` and `Quantity.MilliValue` do, so that a request is never counted too small.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

from trimtab.errors import QuantityError

_SUFFIXES: Final = {
    "": Fraction(1),
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate("mun", start=1)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
}
PATTERN: Final = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,2})?$"
"""Quantities that are not negative, in a regular expression that Python and the API server (RE2) both read."""
LONGEST: Final = 64
"""Characters; the API server writes quantities in fewer than half as many."""
_GRAMMAR: Final = re.compile(PATTERN)


@lru_cache(maxsize=4096)
def parse(quantity: int | str) -> Fraction:
    """Return the exact value of a quantity. Raises `QuantityError` when it is malformed or negative."""
    text = str(quantity)
    match = _GRAMMAR.fullmatch(text) if len(text) <= LONGEST else None
    if match is None:
        raise QuantityError(
            f"{text[:LONGEST]!r} is no quantity: write a number with an optional suffix, as in 8, 500m or 64Gi"
        )
    number, _, suffix = match.groups(default="")
    scale = _SUFFIXES.get(suffix) or Fraction(10) ** int(suffix[1:])
    return Fraction(number) * scale


MOST: Final = 1 << 50
"""Of anything that a machine has: a pebibyte, or a trillion CPUs in thousandths. What is asked for or offered beyond
counts as this much, so that thousands of such requests still add up within 64 bits."""


def to_int(quantity: int | str) -> int:
    """Return a quantity as a whole number (bytes, devices, pods), rounded up, and at most `MOST`."""
    return min(MOST, math.ceil(parse(quantity)))


def to_milli(quantity: int | str) -> int:
    """Return a quantity in thousandths (CPU time), rounded up, and at most `MOST`."""
    return min(MOST, math.ceil(parse(quantity) * 1000))
