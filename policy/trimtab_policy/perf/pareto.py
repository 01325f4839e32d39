"""Which of many choices no other beats in every respect."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.perf.plan_arrays import Array


def front(*costs: Array) -> NDArray[np.int64]:
    """Rows of the Pareto front of columns (n,) that are all to be small, by the first cost, then the second, ...

    Of rows that are equal in all of them the first. Every other row is at least as high in all costs as a row returned.
    """
    rows = np.lexsort(costs[::-1])
    left = [cost[rows] for cost in costs]
    optimal: list[int] = []
    while len(rows):
        optimal.append(int(rows[0]))  # whatever could beat it would stand before it
        better = np.logical_or.reduce([cost < cost[0] for cost in left])
        rows, left = rows[better], [cost[better] for cost in left]
    return np.array(optimal, dtype=np.int64)
