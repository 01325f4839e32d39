"""What is said about predictions: errors by name, coverage, and the price of choosing by them."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trimtab_policy.perf import accuracy, measured
from trimtab_policy.perf.accuracy import APART, assess
from trimtab_policy.perf.plan_arrays import Array


class Said(NamedTuple):
    """A forecast."""

    seconds: Array
    low: Array
    high: Array


def said(seconds: list[float], spread: float = 0.1) -> Said:
    column = np.array(seconds, dtype=np.float64)
    return Said(column, column * (1 - spread), column * (1 + spread))


def column(*names: str) -> np.ndarray:
    return np.array(names)


def of(
    sources: list[str], measured: list[float], predicted: list[float], jobs: list[str] | None = None, **more: object
):
    names = column(*sources)
    gpus = column(*("H100" for _ in sources))
    return assess(names, gpus, column(*(jobs or sources)), np.array(measured), said(predicted), **more)


def test_errors_are_relative_to_what_was_measured() -> None:
    found = of(["a", "a", "a"], [1.0, 2.0, 4.0], [1.1, 1.0, 4.0])
    assert found.overall.mape == pytest.approx((0.1 + 0.5 + 0) / 3)
    assert found.overall.median_ape == pytest.approx(0.1)
    assert found.sources["a"].n == found.gpus["H100"].n == 3


def test_coverage_is_the_share_of_rows_inside_their_interval() -> None:
    assert of(["a"] * 4, [1.0, 1.05, 0.95, 2.0], [1.0] * 4).overall.coverage80 == 0.75


def test_every_source_has_the_same_weight_in_the_macro_mean() -> None:
    found = of(["big"] * 3 + ["small"], [1.0] * 4, [1.1, 1.1, 1.1, 1.3])
    assert found.overall.macro_mape == pytest.approx(0.2)
    assert found.overall.mape == pytest.approx(0.15)


def test_the_source_of_toys_stays_out_of_the_macro_mean_unless_it_is_alone() -> None:
    assert of([APART, "a"], [1.0, 1.0], [2.0, 1.1]).overall.macro_mape == pytest.approx(0.1)
    assert of([APART], [1.0], [2.0]).overall.macro_mape == pytest.approx(1.0)


def test_bias_tells_the_direction() -> None:
    error = accuracy.relative_error(np.array([1.0, 1.0, 1.0]), said([0.8, 0.9, 1.5]))
    assert accuracy.bias(column("a", "a", "b"), error) == pytest.approx({"a": -0.15, "b": 0.5})


def test_regret_is_what_the_plan_predicted_fastest_costs() -> None:
    found = of(["a"] * 4, [1.0, 1.2, 1.5, 2.0], [2.0, 1.0, 3.0, 4.0])
    assert found.ranking["a"].groups == 1
    assert found.ranking["a"].mean_regret == pytest.approx(0.2)
    assert found.ranking["a"].spearman == pytest.approx(0.8)


def test_a_few_tries_find_the_best_of_what_is_predicted_to_be_fast() -> None:
    measured, predicted = np.array([3.0, 1.0, 2.0, 1.5]), np.array([1.0, 4.0, 2.0, 3.0])
    losses = [accuracy.regret_of_first(tries, measured, predicted) for tries in range(1, 5)]
    assert losses == pytest.approx([2.0, 1.0, 0.5, 0.0])


def test_plans_predicted_equally_fast_count_on_average() -> None:
    assert accuracy.regret(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 5.0])) == pytest.approx(0.5)


def test_jobs_are_averaged_and_small_ones_left_out() -> None:
    jobs = ["x"] * 4 + ["y"] * 4 + ["few"] * 3
    found = of(["a"] * 11, [1.0, 2, 3, 4] * 2 + [1.0, 2, 3], [1.0, 2, 3, 4, 4, 3, 2, 1, 3, 2, 1], jobs)
    assert found.ranking["a"].groups == 2
    assert found.ranking["a"].mean_regret == pytest.approx(1.5)
    assert found.ranking["a"].spearman == pytest.approx(0)


def test_a_source_that_measured_no_alternatives_has_no_ranking() -> None:
    assert of(["a"] * 3, [1.0, 2, 3], [1.0, 2, 3]).ranking == {}


def test_a_plan_measured_again_and_again_is_one_plan() -> None:
    again = {"plans": np.array([1, 1, 2, 3])}
    assert of(["a"] * 4, [1.0, 2, 3, 4], [1.0, 2, 3, 4], **again).ranking == {}
    more = {"plans": np.array([1, 1, 1, 2, 3, 4])}
    found = of(["a"] * 6, [9.0, 1.0, 1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 2.0, 3.0, 4.0], ["x"] * 6, **more)
    assert found.ranking["a"].mean_regret == 0


def test_runs_of_a_table_are_told_apart_by_their_plans() -> None:
    row = {
        "source_kind": "mine", "gpu_type": "H100-SXM5-80GB", "n_gpus": "8", "layers": "8", "hidden": "1024",
        "heads": "16", "seq_len": "1024", "global_batch": "64", "step_time_s": "1.0",
    }  # fmt: skip
    plans = [{"tp": "2"}, {"tp": "4"}, {"tp": "2"}, {"tp": "2", "micro_batch": "2"}]
    numbers = accuracy.plan_numbers(measured.collect([row | plan for plan in plans]))
    assert numbers[0] == numbers[2]
    assert len(set(numbers.tolist())) == 3


def test_nothing_to_assess_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to assess"):
        of([], [], [])


def test_the_wire_format_is_the_documented_one() -> None:
    names = ["a"] * 4
    plain = msgspec.to_builtins(of(names, [1.0, 2, 3, 4], [1.0, 2, 3, 4]))
    each = {"n": 4, "mape": 0.0, "median_ape": 0.0, "coverage80": 1.0}
    assert plain == {
        "overall": each | {"macro_mape": 0.0},
        "sources": {"a": each},
        "gpus": {"H100": each},
        "ranking": {"a": {"groups": 1, "mean_regret": 0.0, "spearman": pytest.approx(1.0)}},
    }


TIMES = st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0]), min_size=4, max_size=12)


@given(TIMES, st.randoms())
def test_rank_correlation_with_ties_agrees_with_scipy(left: list[float], random: Random) -> None:
    right = list(left)
    random.shuffle(right)
    if len(set(left)) > 1:
        expected = stats.spearmanr(left, right).statistic
        assert accuracy.spearman(np.array(left), np.array(right)) == pytest.approx(expected)


def test_an_order_of_ties_orders_nothing() -> None:
    assert accuracy.spearman(np.array([1.0, 1.0, 1.0]), np.array([1.0, 2.0, 3.0])) == 0


@given(TIMES, st.data())
def test_regret_is_never_negative_and_right_orders_have_none(times: list[float], data: st.DataObject) -> None:
    measured = np.array(times)
    assert accuracy.regret(measured, measured * 1.7) == pytest.approx(0)
    other = np.array(data.draw(st.permutations(times)))
    assert accuracy.regret(measured, other) >= 0
