"""What the policies ask of HiGHS: optimal, in the middle of the optimal ones, with an honest gap, and optional."""

import sys

import numpy as np
import pytest

from trimtab_policy.solvers import milp
from trimtab_policy.solvers.knapsack import Assignment
from trimtab_policy.solvers.milp import MixedIntegerProgram, SolverMissing, Unsolved, by_column


def shared(cost: list[float], capacity: float) -> MixedIntegerProgram:
    """Minimise cost·x with 0 <= x <= 1 and sum(x) <= capacity."""
    n = len(cost)
    matrix = by_column(np.arange(n), np.zeros(n, dtype=np.int64), np.ones(n), n)
    return MixedIntegerProgram(np.array(cost), np.ones(n), np.array([-np.inf]), np.array([capacity]), matrix)


def test_equal_columns_get_equal_values() -> None:
    assert milp.linear(shared([-1.0, -1.0, -1.0, -5.0], 2.0)) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0], abs=1e-6)


def test_entries_may_come_in_any_order() -> None:
    matrix = by_column(np.array([2, 0, 2]), np.array([1, 0, 0]), np.array([5.0, 3.0, 4.0]), 3)
    assert matrix.start.tolist() == [0, 1, 1, 3]
    assert sorted(zip(matrix.row[1:].tolist(), matrix.value[1:].tolist(), strict=True)) == [(0, 4.0), (1, 5.0)]


def test_a_program_without_solution_says_so() -> None:
    impossible = MixedIntegerProgram(
        np.ones(1), np.ones(1), np.array([2.0]), np.array([np.inf]), by_column(*[np.zeros(1, int)] * 2, np.ones(1), 1)
    )
    with pytest.raises(Unsolved, match="nfeasible"):
        milp.linear(impossible)


def test_the_gap_of_an_assignment_is_between_its_cost_and_the_bound() -> None:
    one = Assignment(
        np.array([4]), np.array([0, 2]), np.array([0, 0]), np.array([1, 4]), np.array([1.0, 0.5]), np.array([1.1])
    )
    found = milp.assign(one)
    assert (found.chosen.tolist(), found.cost, found.gap) == ([1], 0.5, pytest.approx(0.0, abs=1e-9))


def test_a_gap_that_is_above_zero_is_a_plain_number_that_can_be_stored() -> None:
    """Rounding alone makes one here: (0.1 - 0.9) + 0.9 is below 0.1."""
    one = Assignment(np.array([4]), np.array([0, 1]), np.array([0]), np.array([1]), np.array([0.1]), np.array([0.9]))
    found = milp.assign(one)
    assert 0 < found.gap < 1e-12
    assert type(found.gap) is float


def test_an_assignment_without_options_needs_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    none = np.zeros(0, dtype=np.int64)
    found = milp.assign(Assignment(np.array([4]), np.zeros(3, int), none, none, np.zeros(0), np.full(2, 1.1)))
    assert found.chosen.tolist() == [-1, -1]


def test_without_highs_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(SolverMissing, match=r"pip install 'trimtab\[sim\]'"):
        milp.linear(shared([-1.0], 1.0))
