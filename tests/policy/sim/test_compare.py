"""Results of many runs in tables: what is paired, what is kept apart, and what stands beside."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.result_builders import FIGURES, SLOWNESS, outcome, scenario

from trimtab_lab.evaluation import compare
from trimtab_lab.evaluation.compare import ComparisonRow, ComparisonTable, Ratio
from trimtab_lab.evaluation.scenario import JobGroup, ScenarioResult

POLICIES = tuple(SLOWNESS)


def runs(
    policies: Sequence[str] = POLICIES, loads: Sequence[float | None] = (0.7,), windows: int = 4
) -> list[ScenarioResult]:
    return [outcome(scenario(policy, load, n)) for policy in policies for load in loads for n in range(windows)]


def only(found: Sequence[ComparisonTable]) -> ComparisonTable:
    [table] = found
    return table


def row(table: ComparisonTable, policy: str) -> ComparisonRow:
    return next(row for row in table.rows if row.policy == policy)


def ratio(table: ComparisonTable, policy: str) -> Ratio:
    found = row(table, policy).ratio
    assert found
    return found


# --- tables ----------------------------------------------------------------------------------------------------------
def test_a_row_holds_means_over_windows_and_the_times_of_all_jobs() -> None:
    table = only(compare.tables(runs(), POLICIES))
    assert [each.policy for each in table.rows] == list(POLICIES)
    assert row(table, "fcfs").figures["avg_jct_h"] == pytest.approx(4.0 * 2.5)
    assert len(row(table, "fcfs").jct_h) == 4 * 3
    assert (table.windows, row(table, "srtf").windows) == (4, 4)


def test_every_load_has_a_table_of_its_own_in_ascending_order() -> None:
    tables = compare.tables(runs(loads=(1.3, 0.7)), POLICIES)
    assert [table.loads for table in tables] == [(0.7,), (1.3,)]


def test_what_knew_more_is_never_in_one_table_with_what_knew_less() -> None:
    knowing = [replace(run, regime="run times known") for run in runs(["srtf"])]
    blind = [replace(run, regime="nothing known") for run in runs(["fcfs", "las"])]
    tables = compare.tables(knowing + blind, ("fcfs", "srtf", "las"), reference="fcfs")
    assert [(table.regime, [each.policy for each in table.rows]) for table in tables] == [
        ("nothing known", ["fcfs", "las"]),
        ("run times known", ["srtf"]),
    ]
    assert [table.reference for table in tables] == ["fcfs", "srtf"]


def test_windows_are_paired_so_that_how_long_they_are_does_not_count() -> None:
    """Every window is longer than the one before, under both: the ratio is the same in all, and so its interval."""
    found = ratio(only(compare.tables(runs(), POLICIES)), "srtf")
    assert (found.to, found.windows, found.wins) == ("fcfs", 4, 1.0)
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_only_windows_that_both_have_are_compared() -> None:
    odd = [run for run in runs() if run.scenario.policy != "srtf" or run.scenario.window < 3]
    table = only(compare.tables(odd, POLICIES))
    assert (ratio(table, "srtf").windows, ratio(table, "las").windows) == (3, 4)


def test_the_reference_may_be_any_policy_of_the_table() -> None:
    table = only(compare.tables(runs(), POLICIES, reference="srtf"))
    assert row(table, "srtf").ratio is None
    assert ratio(table, "fcfs").mean == pytest.approx(2.0)


@pytest.mark.parametrize("windows", [1, 2])
def test_few_windows_give_a_ratio_and_no_interval(windows: int) -> None:
    found = ratio(only(compare.tables(runs(windows=windows), POLICIES)), "srtf")
    assert found == Ratio("fcfs", pytest.approx(0.5), windows)


def test_p_values_are_corrected_for_all_ratios_that_are_told() -> None:
    """Four windows that all point one way have p = 2/16; of four such ratios each is raised fourfold (Holm)."""
    tables = compare.tables(runs(loads=(0.7, 1.3)), POLICIES)
    alone = compare.tables(runs(["fcfs", "srtf"]), POLICIES)
    assert ratio(only(alone), "srtf").p == pytest.approx(0.125)
    assert ratio(tables[0], "srtf").p == pytest.approx(0.5)


def test_the_greatest_bound_of_each_window_counts_and_all_are_told() -> None:
    table = only(compare.tables(runs(), POLICIES))
    assert table.bounds_h == {"LB0": pytest.approx(2.5), "LB1": pytest.approx(1.25)}
    assert (table.bound_h, table.binding) == (pytest.approx(2.5), "LB0")


def test_figures_that_some_windows_lack_are_means_of_the_others() -> None:
    odd = [replace(run, summary=run.summary | {"deadline_hits": hits}) for run, hits in
           zip(runs(["fcfs"]), (math.nan, 0.5, math.nan, 1.0), strict=True)]  # fmt: skip
    assert row(only(compare.tables(odd, POLICIES)), "fcfs").figures["deadline_hits"] == 0.75
    unknown = [replace(run, summary=run.summary | {"deadline_hits": math.nan}) for run in odd]
    assert row(only(compare.tables(unknown, POLICIES)), "fcfs").figures["deadline_hits"] is None


def test_unfinished_jobs_are_added_up_and_the_largest_gap_is_kept() -> None:
    odd = [replace(run, solver_gap=gap, summary=run.summary | {"unfinished": 2.0}) for run, gap in
           zip(runs(["fcfs"]), (None, 0.01, 0.002, None), strict=True)]  # fmt: skip
    found = row(only(compare.tables(odd, POLICIES)), "fcfs")
    assert (found.unfinished, found.solver_gap) == (8, 0.01)


def test_the_regression_tells_what_utilisation_gains_within_windows() -> None:
    """JCT is the inverse of utilisation here, so more of it must go with less JCT."""
    used = only(compare.tables(runs(), POLICIES)).used
    assert used
    assert used.n == 12
    assert used.slope.high < 0


def test_equal_utilisation_or_too_few_runs_make_no_regression() -> None:
    equal = [replace(run, summary=run.summary | {"utilisation": 0.5}) for run in runs()]
    assert only(compare.tables(equal, POLICIES)).used is None
    assert only(compare.tables(runs(["fcfs"], windows=1), POLICIES)).used is None


@settings(max_examples=20)
@given(st.permutations(runs(loads=(0.7, 1.3))))
def test_in_which_order_runs_came_does_not_matter(shuffled: list[ScenarioResult]) -> None:
    in_order = compare.tables(runs(loads=(0.7, 1.3)), POLICIES)
    for table, other in zip(compare.tables(shuffled, POLICIES), in_order, strict=True):
        assert [each.policy for each in table.rows] == [each.policy for each in other.rows]
        assert [each.ratio and each.ratio.mean for each in table.rows] == pytest.approx(
            [each.ratio and each.ratio.mean for each in other.rows]
        )


# --- what programs get -----------------------------------------------------------------------------------------------
def as_json(outcomes: list[ScenarioResult], policies: Sequence[str] = POLICIES) -> dict[str, dict[str, object]]:
    single = compare.tables(outcomes, policies)
    found: dict[str, dict[str, object]] = json.loads(
        json.dumps(compare.as_json(compare.summed_up(outcomes, policies), single))
    )
    return found


def test_json_has_a_policy_a_key_with_all_figures_and_what_belongs_to_them() -> None:
    answer = as_json(runs())
    assert list(answer) == list(POLICIES)
    assert answer["srtf"].keys() >= set(FIGURES)
    assert answer["srtf"]["avg_jct_h"] == pytest.approx(5.0)
    assert answer["srtf"]["regime"] == "run times known"
    assert (answer["srtf"]["bound"], answer["srtf"]["bound_h"]) == ("LB0", pytest.approx(2.5))
    assert answer["srtf"]["ratio"]["mean"] == pytest.approx(0.5)
    assert answer["fcfs"]["ratio"] is None
    assert answer["srtf"]["jct_on_utilisation"]["slope"]["high"] < 0
    assert "loads" not in answer["fcfs"]


def test_with_several_loads_each_is_told_and_the_ratio_is_that_of_all_pairs() -> None:
    answer = as_json(runs(loads=(0.7, 1.3)))
    assert list(answer["srtf"]["loads"]) == ["0.7", "1.3"]
    assert answer["srtf"]["loads"]["1.3"]["ratio"]["windows"] == 4
    assert answer["srtf"]["ratio"]["windows"] == 8


def test_what_is_not_known_is_null() -> None:
    unknown = [replace(run, summary=run.summary | {"worst_rho": math.nan}, bounds_h={}) for run in runs(["fcfs"])]
    answer = as_json(unknown, ["fcfs"])["fcfs"]
    assert (answer["worst_rho"], answer["bound_h"], answer["bound"]) == (None, None, "")


def test_a_row_of_the_csv_file_is_a_window_with_figures_and_bounds() -> None:
    rows = list(compare.window_rows(runs(["fcfs"])))
    assert [each["window"] for each in rows] == [0, 1, 2, 3]
    assert rows[0].keys() >= {"policy", "load", "regime", "lb0_h", "lb1_h", "solver_gap", *FIGURES}


def test_jobs_of_runs_that_kept_them_are_rows_with_seconds_named_so() -> None:
    kept = outcome(scenario(spans=True))
    rows = list(compare.job_rows([kept, *runs(["srtf"])]))
    assert [each["uid"] for each in rows] == ["job-0", "job-1", "job-2"]
    assert (rows[2]["finished_s"], rows[2]["restarts"]) == (10800.0, 1)


def test_jobs_of_a_queue_count_alike_whatever_their_window() -> None:
    found = [
        replace(outcome(scenario(window=0)), queues={"a": JobGroup(1, 4.0), "b": JobGroup(2, 1.0)}),
        replace(outcome(scenario(window=1)), queues={"a": JobGroup(3, 8.0)}),
    ]
    [table] = compare.tables(found, ["fcfs"])
    assert table.rows[0].queues == {"a": JobGroup(4, 7.0), "b": JobGroup(2, 1.0)}
    assert compare.as_json([table], [table])["fcfs"]["queues"]["a"] == {"jobs": 4, "avg_jct_h": 7.0}
