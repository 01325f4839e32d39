"""The Pareto front: what it must contain, and what not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trimtab_policy.perf import pareto

COSTS = st.lists(st.tuples(*[st.sampled_from([0.0, 1, 2, 3, 4])] * 3), max_size=40)


@given(COSTS)
def test_nothing_on_it_is_beaten_and_everything_off_it_is(costs: list[tuple[float, float, float]]) -> None:
    table = np.array(costs, dtype=np.float64).reshape(-1, 3)
    chosen = pareto.front(*table.T)
    front = [costs[row] for row in chosen]
    assert front == sorted(set(front))
    for one in front:
        assert not any(all(x <= y for x, y in zip(other, one, strict=True)) and other != one for other in costs)
    for one in costs:
        assert any(all(x <= y for x, y in zip(other, one, strict=True)) for other in front)


def test_of_equal_rows_the_first_is_taken() -> None:
    assert pareto.front(np.array([1.0, 1, 0]), np.array([0.0, 0, 1])).tolist() == [2, 0]
