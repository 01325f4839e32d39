"""Cone programs by a primal-dual interior-point method, for what HiGHS cannot solve: linear with hyperbolas.

Minimise cost·v subject to matrix·v + s = right, where s is in a cone: the first `linear` entries are not negative, and
each three that follow, (a, b, c), fulfil a >= |(b, c)|. That can say x·y >= 1: with a = x + y, b = x - y and c = 2.

The method is that of ECOS (Domahidi, Chu, Boyd 2013) and CVXOPT (Vandenberghe 2010, "The CVXOPT linear and quadratic
cone program solvers", from which the formulas are): Nesterov-Todd scaling, Mehrotra's predictor and corrector, steps to
0.99 of the way to the boundary. It ends in the interior of the optimal solutions, where there are many. Systems are
dense: it is for some hundred variables.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from trimtab_policy.solvers.knapsack import FloatArray
from trimtab_policy.solvers.milp import Unsolved

TOLERANCE = 1e-8
"""Relative, of the constraints and of the gap between both objectives."""
ACCEPTED = 1e-4
"""The same where rounding lets it come no nearer."""
DIVERGED = 1e6
"""Times the error was smaller before: there is no solution."""
ITERATIONS = 60
STEP = 0.99
"""Part of the way to the boundary."""
REGULAR = 1e-14
"""Relative addition to the diagonal of the normal equations, which become singular at the end."""


class ConeProgram(Struct, frozen=True):
    """The data. `right` has `linear` entries, and then three for each cone; the columns of `matrix` are independent."""

    cost: FloatArray
    matrix: FloatArray
    right: FloatArray
    linear: int


def solve(program: ConeProgram) -> FloatArray:
    """The solution v. Raises Unsolved when it comes not near enough to one."""
    cone = _Cone(program.linear)
    v, s, z = _start(program, cone)
    nearest, best = np.inf, v
    for _ in range(ITERATIONS):
        error = _error(program, v, s, z)
        if error < nearest:
            nearest, best = error, v
        if error <= TOLERANCE or error > DIVERGED * nearest or not (cone.inside(s) and cone.inside(z)):
            break
        scaling = _Scaling(cone, s, z)
        if not cone.inside(scaling.forth(z)):
            break
        v, s, z = _improved(program, cone, scaling, v, s, z)
    if nearest > ACCEPTED:
        raise Unsolved(f"interior point ended {nearest:.1e} from a solution")
    return best


class _Cone(Struct, frozen=True):
    """The algebra of the cone, on vectors of its linear part and then its three-dimensional parts."""

    linear: int

    def split(self, u: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(linear,) and (cones, 3); views."""
        return u[: self.linear], u[self.linear :].reshape(-1, 3)

    def unit(self, size: int) -> FloatArray:
        """The vector in the middle."""
        u = np.ones(size)
        self.split(u)[1][:, 1:] = 0.0
        return u

    def degree(self, size: int) -> int:
        return self.linear + (size - self.linear) // 3

    def inside(self, u: FloatArray) -> bool:
        """Whether it is off the boundary, so far as that can be told."""
        flat, round_ = self.split(u)
        return bool(np.all(flat > 0) and np.all(round_[:, 0] > 0) and np.all(_norm2(round_) > 0))

    def product(self, u: FloatArray, w: FloatArray) -> FloatArray:
        """The Jordan product."""
        (a, b), (x, y) = self.split(u), self.split(w)
        first = (b * y).sum(axis=1, keepdims=True)
        return np.concatenate([a * x, np.hstack([first, b[:, :1] * y[:, 1:] + y[:, :1] * b[:, 1:]]).ravel()])

    def quotient(self, u: FloatArray, w: FloatArray) -> FloatArray:
        """What multiplied with u gives w."""
        (a, b), (x, y) = self.split(u), self.split(w)
        first = (b[:, 0] * y[:, 0] - (b[:, 1:] * y[:, 1:]).sum(axis=1)) / _norm2(b)
        return np.concatenate(
            [x / a, np.column_stack([first, (y[:, 1:] - first[:, None] * b[:, 1:]) / b[:, :1]]).ravel()]
        )

    def reach(self, u: FloatArray, direction: FloatArray) -> float:
        """How far one can go from u in a direction; at most 1 / tiny."""
        (a, b), (x, y) = self.split(u), self.split(direction)
        length = np.sqrt(_norm2(b))[:, None]
        b = b / length
        along = b[:, :1] * y[:, :1] - (b[:, 1:] * y[:, 1:]).sum(axis=1, keepdims=True)
        across = y[:, 1:] - (y[:, :1] + along) / (b[:, :1] + 1) * b[:, 1:]
        decay = ((np.linalg.norm(across, axis=1, keepdims=True) - along) / length).max(initial=0.0)
        return 1 / max(float(decay), float((-x / a).max(initial=0.0)), np.finfo(float).tiny)


class _Scaling:
    """Nesterov-Todd scaling of a pair: W z = W⁻¹ s."""

    def __init__(self, cone: _Cone, s: FloatArray, z: FloatArray) -> None:
        self._cone = cone
        (s_flat, s_round), (z_flat, z_round) = cone.split(s), cone.split(z)
        self._flat = np.sqrt(s_flat / z_flat)
        s_length, z_length = np.sqrt(_norm2(s_round)), np.sqrt(_norm2(z_round))
        s_unit, z_unit = s_round / s_length[:, None], z_round / z_length[:, None]
        w = (s_unit + z_unit * _MIRROR) / np.sqrt(2 + 2 * (s_unit * z_unit).sum(axis=1, keepdims=True))
        size = np.sqrt(s_length / z_length)[:, None, None]
        rotation = np.empty((len(w), 3, 3))
        rotation[:, 0, :], rotation[:, 1:, 0] = w, w[:, 1:]
        rotation[:, 1:, 1:] = np.eye(2) + w[:, 1:, None] * w[:, None, 1:] / (1 + w[:, :1, None])
        self._forth, self._back = size * rotation, rotation * np.outer(_MIRROR, _MIRROR) / size

    def forth(self, u: FloatArray) -> FloatArray:
        """W u, of a vector."""
        flat, round_ = self._cone.split(u)
        return np.concatenate([self._flat * flat, np.einsum("cij,cj->ci", self._forth, round_).ravel()])

    def back(self, u: FloatArray) -> FloatArray:
        """W⁻¹ u, of a vector or of the columns of a matrix."""
        columns = u.reshape(len(u), -1)
        round_ = np.matmul(self._back, columns[self._cone.linear :].reshape(-1, 3, columns.shape[1]))
        flat = columns[: self._cone.linear] / self._flat[:, None]
        return np.concatenate([flat, round_.reshape(-1, columns.shape[1])]).reshape(u.shape)


_MIRROR = np.array([1.0, -1.0, -1.0])


def _norm2(round_: FloatArray) -> FloatArray:
    """a² - b² - c² of each three, (cones,): positive inside of the cone."""
    across = np.hypot(round_[:, 1], round_[:, 2])
    norm2: FloatArray = (round_[:, 0] - across) * (round_[:, 0] + across)
    return norm2


def _start(program: ConeProgram, cone: _Cone) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Least-squares solutions of both sets of constraints, moved into the cone."""
    matrix = program.matrix
    both = np.column_stack([matrix.T @ program.right, -program.cost])
    v, w = np.linalg.solve(matrix.T @ matrix, both).T
    return v, _moved_inside(cone, program.right - matrix @ v), _moved_inside(cone, matrix @ w)


def _moved_inside(cone: _Cone, u: FloatArray) -> FloatArray:
    flat, round_ = cone.split(u)
    lack = float(np.concatenate([-flat, np.hypot(round_[:, 1], round_[:, 2]) - round_[:, 0]]).max())
    moved: FloatArray = u + (1 + lack) * cone.unit(len(u)) if lack >= 0 else u
    return moved


def _error(program: ConeProgram, v: FloatArray, s: FloatArray, z: FloatArray) -> float:
    """The largest of the relative violations and the gap."""
    primal = _length(program.matrix @ v + s - program.right) / max(1.0, _length(program.right))
    dual = _length(program.matrix.T @ z + program.cost) / max(1.0, _length(program.cost))
    return max(primal, dual, float(s @ z) / max(1.0, abs(float(program.cost @ v))))


def _length(u: FloatArray) -> float:
    return float(np.linalg.norm(u))


def _improved(
    program: ConeProgram, cone: _Cone, scaling: _Scaling, v: FloatArray, s: FloatArray, z: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """One predictor and corrector step."""
    scaled = scaling.back(program.matrix)
    normal = scaled.T @ scaled
    factor = np.linalg.inv(np.linalg.cholesky(normal + REGULAR * np.diag(np.diag(normal))))
    primal, dual = program.matrix @ v + s - program.right, program.matrix.T @ z + program.cost
    middle, unit = scaling.forth(z), cone.unit(len(s))
    centre = s @ z / cone.degree(len(s))

    def solved(infeasible: float, complement: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Steps of v, W⁻¹ s and W z that remove so much of the residuals, and change W⁻¹s ∘ Wz by `complement`."""
        both = cone.quotient(middle, complement)
        rest = -infeasible * scaling.back(primal) - both
        aim = scaled.T @ rest - infeasible * dual
        step = factor.T @ (factor @ aim)
        step += factor.T @ (factor @ (aim - scaled.T @ (scaled @ step)))  # rounding, once
        change = scaled @ step - rest
        return step, both - change, change

    square = cone.product(middle, middle)
    _, slack, multiplier = solved(1.0, -square)
    affine = min(1.0, cone.reach(middle, slack), cone.reach(middle, multiplier))
    centring = min(1.0, max(1e-4, (1 - affine) ** 3))
    aim = centring * centre * unit - square - cone.product(slack, multiplier)
    step, slack, multiplier = solved(1 - centring, aim)
    length = min(1.0, STEP * min(cone.reach(middle, slack), cone.reach(middle, multiplier)))
    return v + length * step, s + length * scaling.forth(slack), z + length * scaling.back(multiplier)
