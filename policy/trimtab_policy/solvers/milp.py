"""HiGHS behind two questions: a linear program over arrays, and the assignment of GPUs as an integer program.

Models are handed over as arrays in one call. `highspy` is imported only when a question is asked, so that a process
without it can load every policy; asking then raises `SolverMissing`.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from trimtab_policy.solvers import knapsack, prices
from trimtab_policy.solvers.knapsack import Assignment, FloatArray, IntArray, Solution, total

MOST_OPTIONS = 5_000
"""Options of all jobs up to which HiGHS is asked."""
MOST_NODES = 500
"""Of its search: of so many options it needs less than a hundred as a rule, and less than half a second."""


class SolverMissing(ValueError):
    """A policy needs a solver that is not installed."""


class Unsolved(ValueError):
    """The solver found no solution: the program has none, or a limit was reached."""


class Matrix(Struct, frozen=True):
    """Entries of a sparse matrix by column: column c has those from `start[c]` to `start[c + 1]`."""

    start: NDArray[np.int32]
    row: NDArray[np.int32]
    value: FloatArray


class MixedIntegerProgram(Struct, frozen=True):
    """Minimise cost·x subject to low <= matrix·x <= high and 0 <= x <= limit."""

    cost: FloatArray
    limit: FloatArray
    low: FloatArray
    high: FloatArray
    matrix: Matrix


def import_solver(name: str) -> ModuleType:
    """The module of a solver. Raises SolverMissing where it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise SolverMissing(
            f"this policy solves its problem with {name}, which is not installed: pip install 'trimtab[sim]'"
        ) from error


def by_column(column: IntArray, row: IntArray, value: FloatArray, columns: int) -> Matrix:
    """A matrix from its entries in any order, each position at most once."""
    order = np.argsort(column, kind="stable")
    start = np.searchsorted(column[order], np.arange(columns + 1))
    return Matrix(start.astype(np.int32), row[order].astype(np.int32), value[order].astype(np.float64))


def linear(program: MixedIntegerProgram) -> FloatArray:
    """An optimal x in the middle of all optimal ones: interior point without crossover to a vertex.

    Columns that the program does not tell apart so get equal values, as they do from the interior-point solver (ECOS)
    that Gavel uses; a vertex would favour one of them, and is returned only where rounding keeps the interior point
    from ending. Raises Unsolved, SolverMissing.
    """
    continuous = np.zeros(len(program.cost), dtype=np.int32)
    try:
        found = _run(program, {"solver": "ipm", "run_crossover": "off", "presolve": "off"}, continuous)
    except Unsolved:
        found = _run(program, {}, continuous)
    x: FloatArray = np.clip(found.getSolution().col_value, 0.0, program.limit)
    return x


def cheapest(problem: Assignment, gap: float) -> Solution:
    """The cheapest assignment, by the fastest way that will do: exactly where it is small; else by prices, where these
    prove that no other is cheaper by more than a relative `gap`; else by HiGHS, which is asked of no more than
    `MOST_OPTIONS`, and not beyond `MOST_NODES`. The best that was found counts, and says how good it is known to be. No
    clock ends the search: what is decided is the same on a slow machine, and when it is decided again.
    """
    if knapsack.fits(problem):
        return knapsack.solve(problem)
    found = prices.cheap(problem)
    if found.gap <= gap or len(problem.cost) > MOST_OPTIONS:
        return found
    try:
        other = assign(problem, gap, MOST_NODES)
    except (Unsolved, SolverMissing):
        return found
    best = min(found, other, key=lambda each: each.cost)
    least = max(each.cost - each.gap * abs(each.cost) for each in (found, other))
    return replace(best, gap=max(0.0, (best.cost - least) / abs(best.cost)) if best.cost else 0.0)


def assign(problem: Assignment, gap: float = 0.0, nodes: int | None = None) -> Solution:
    """Solve the assignment to a relative `gap`, or as far as so many nodes of the search go; the solution says how far.

    Raises Unsolved where nothing was found with these, SolverMissing.
    """
    if not len(problem.cost):
        chosen = np.full(problem.jobs, -1, dtype=np.int64)
        return Solution(chosen, total(problem, chosen), 0.0)
    options: dict[str, Any] = {"mip_rel_gap": gap} | ({} if nodes is None else {"mip_max_nodes": nodes})
    found = _run(_binary(problem), options, np.ones(len(problem.cost), dtype=np.int32))
    taken = np.flatnonzero(np.array(found.getSolution().col_value) > 0.5)
    owner = np.repeat(np.arange(problem.jobs), np.diff(problem.first))
    chosen = np.full(problem.jobs, -1, dtype=np.int64)
    chosen[owner[taken]] = taken
    cost, bound = total(problem, chosen), found.getInfo().mip_dual_bound + float(problem.idle.sum())
    return Solution(chosen, cost, max(0.0, (cost - bound) / abs(cost)) if cost else 0.0)


def _binary(problem: Assignment) -> MixedIntegerProgram:
    """One column per option: what it saves over idling. Rows: one option per job, then the GPUs of each type."""
    options, jobs = len(problem.cost), problem.jobs
    owner = np.repeat(np.arange(jobs), np.diff(problem.first))
    column = np.tile(np.arange(options), 2)
    row = np.concatenate([owner, jobs + problem.kind])
    value = np.concatenate([np.ones(options), problem.gpus.astype(np.float64)])
    high = np.concatenate([np.ones(jobs), problem.capacity.astype(np.float64)])
    return MixedIntegerProgram(
        cost=problem.cost - problem.idle[owner],
        limit=np.ones(options),
        low=np.full(len(high), -np.inf),
        high=high,
        matrix=by_column(column, row, value, options),
    )


def _run(program: MixedIntegerProgram, options: dict[str, Any], integrality: NDArray[np.int32]) -> Any:
    highspy = import_solver("highspy")
    solver = highspy.Highs()
    for name, value in {"output_flag": False, "threads": 1, **options}.items():
        solver.setOptionValue(name, value)
    matrix = program.matrix
    solver.passModel(
        len(program.cost),
        len(program.high),
        len(matrix.value),
        int(highspy.MatrixFormat.kColwise),
        int(highspy.ObjSense.kMinimize),
        0.0,
        program.cost,
        np.zeros(len(program.cost)),
        program.limit,
        program.low,
        program.high,
        matrix.start,
        matrix.row,
        matrix.value,
        integrality,
    )
    solver.run()
    status = solver.getModelStatus()
    ended = status == highspy.HighsModelStatus.kSolutionLimit  # at the limit of nodes, too
    if not (status == highspy.HighsModelStatus.kOptimal or (ended and solver.getSolution().value_valid)):
        raise Unsolved(f"HiGHS: {solver.modelStatusToString(status)}")
    return solver
