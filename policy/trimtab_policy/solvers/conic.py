"""Cone programs by Clarabel, for what HiGHS cannot solve: linear with hyperbolas.

Minimise cost·v subject to matrix·v + s = right, where s is in a cone: the first `linear` entries are not negative, and
each three that follow, (a, b, c), fulfil a >= |(b, c)|. That can say x·y >= 1: with a = x + y, b = x - y and c = 2.

Clarabel (Goulart and Chen 2024) is the successor of ECOS, to which Gavel's artifact gives such programs: interior point
as well, so that it ends in the middle of the optimal solutions, where there are many. It says that it needs scipy, of
which it uses neither the sparse matrices, whose attributes are enough, nor, for these cones, the linear algebra.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trimtab_policy.solvers.knapsack import FloatArray, IntArray
from trimtab_policy.solvers.milp import Unsolved, import_solver

TOLERANCE = 1e-9
"""Of the constraints and of the gap between both objectives. Clarabel's 1e-8 leaves shares of short jobs 1e-4 off."""

STEP = 0.9
"""Part of the way to the boundary: shorter steps than Clarabel's 0.99 follow the central path more closely."""


class ConeProgram(Struct, frozen=True):
    """The data. `right` has `linear` entries, and then three for each cone."""

    cost: FloatArray
    matrix: FloatArray
    right: FloatArray
    linear: int


class _Columns(Struct, frozen=True):
    """What Clarabel reads of a `scipy.sparse.csc_matrix`."""

    data: FloatArray
    indices: IntArray
    indptr: IntArray
    shape: tuple[int, ...]
    has_canonical_format: bool = True


def solve(program: ConeProgram) -> FloatArray:
    """The solution v, to `TOLERANCE`, where rounding is in the way to 5e-5. Raises Unsolved, SolverMissing."""
    clarabel = import_solver("clarabel")
    columns = len(program.cost)
    cones = [clarabel.NonnegativeConeT(program.linear)]
    cones += [clarabel.SecondOrderConeT(3)] * ((len(program.right) - program.linear) // 3)
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.max_threads = False, 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TOLERANCE
    settings.max_step_fraction = STEP
    none, matrix = _by_column(np.zeros((columns, columns))), _by_column(program.matrix)
    found = clarabel.DefaultSolver(none, program.cost, matrix, program.right, cones, settings).solve()
    if found.status not in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved):
        raise Unsolved(f"Clarabel: {found.status}")
    return np.array(found.x)


def _by_column(matrix: NDArray[np.float64]) -> _Columns:
    column, row = np.nonzero(matrix.T)
    start = np.searchsorted(column, np.arange(matrix.shape[1] + 1))
    return _Columns(matrix[row, column], row, start, matrix.shape)
