"""Which of many choices no other beats in every respect."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.perf.columns import Array


def front(*costs: Array) -> NDArray[np.int64]:
    """Rows of the Pareto front of columns (n,) that are all to be small, by the first cost, then the second, ...

    Of rows that are equal in all of them the first. Every other row is at least as high in all costs as a row returned.
    """
    table = np.stack(costs, axis=1)
    rows = np.lexsort(costs[::-1])
    optimal: list[int] = []
    while len(rows):
        best = rows[0]  # nothing before it in this order is left, so nothing can beat it
        optimal.append(int(best))
        rows = rows[(table[rows] < table[best]).any(axis=1)]
    return np.array(optimal, dtype=np.int64)
