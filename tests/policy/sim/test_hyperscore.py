"""HyperScore as the paper writes it, of a V that the paper leaves open."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab_lab.evaluation.hyperscore import hyperscore, value

PARTS = {"mean_jct": 4.0, "least_mean_jct": 2.0, "makespan": 10.0, "least_makespan": 10.0, "goodput_utilisation": 0.5}


def test_the_formula_with_the_constants_of_the_paper() -> None:
    assert hyperscore(1.0) == pytest.approx(100 * (1 + (1 / 3) ** 2.1))
    # by hand: sigma(5 ln 2 - ln 2) = 16 / 17
    assert hyperscore(2.0) == pytest.approx(100 * (1 + (16 / 17) ** 2.1))
    assert hyperscore(0.5) == pytest.approx(100 * (1 + (1 / 65) ** 2.1))


@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0))
def test_a_greater_value_scores_no_less_and_stays_in_range(one: float, other: float) -> None:
    low, high = hyperscore(min(one, other)), hyperscore(max(one, other))
    assert 100 <= low <= high <= 109.96


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_value_without_a_logarithm_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        hyperscore(bad)


def test_v_is_the_geometric_mean_of_what_was_reached() -> None:
    assert value(**PARTS) == pytest.approx((0.5 * 1.0 * 0.5) ** (1 / 3))
    best = PARTS | {"mean_jct": 2.0, "goodput_utilisation": 1.0}
    assert value(**best) == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean_jct": 1.0}, "least_mean_jct / mean_jct is 2"),
        ({"makespan": 0.0}, "least_makespan / makespan is nan"),
        ({"goodput_utilisation": 0.0}, "goodput_utilisation is 0"),
        ({"goodput_utilisation": 1.1}, "goodput_utilisation is 1.1"),
    ],
)
def test_a_part_outside_of_zero_to_one_is_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        value(**(PARTS | changes))
