"""The convex program of Gavel: the least sum of the jobs' finish times, by following the central path.

A job finishes after remaining steps over throughput. That is convex in its shares of time but not linear, so HiGHS
cannot be asked. The sum is minimised by a barrier method (Boyd and Vandenberghe, Convex Optimization, section 11.3):
the sum over mu minus the logarithms of all slacks is minimised by Newton's method for ever smaller mu. That ends in the
middle of the optimal shares, as ECOS does with which Gavel solves it.

Jobs are coupled only by the GPUs of each type, so a Newton step is a batch of small systems, one a job, and one more
with a row for each type: linear in the number of jobs.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.heuristics.gavel_programs import Demand
from trimtab_policy.knapsack import FloatArray

GAP = 1e-7
"""Relative distance of the sum from the least one at the end."""
SHRINK = 0.1
"""By how much mu becomes smaller at a time."""
CENTRED = 1e-4
"""First-order decrease by a Newton step at which the path is reached."""
SUFFICIENT = 0.01
"""Part of that decrease that a step must keep (Armijo)."""
NEWTON_STEPS = 50
"""At most, for one mu; a handful do."""


def fastest_finish(demand: Demand) -> FloatArray:
    """Shares (jobs, types) with the least sum of the jobs' finish times."""
    best = demand.rate.max(axis=1)
    demand = replace(demand, rate=demand.rate / best[:, None])
    shares = _inside(demand)
    seconds = demand.remaining / best
    weight = seconds / (seconds / (demand.rate * shares).sum(axis=1)).sum()
    barriers = shares.size + 2 * len(shares) + shares.shape[1]
    mu = 1.0 / barriers
    while mu > GAP / barriers:
        mu *= SHRINK
        shares = _centred(_Path(demand, weight / mu), shares)
    return shares


class _Path(Struct, frozen=True):
    """What is minimised for one mu, with throughput y relative to the best: sum of pull/y - log(y) - log(slacks).

    log(y) is what is left of the barrier of "finishes within z seconds", z·y >= 1, at the best z.
    """

    demand: Demand
    pull: FloatArray
    """Weight of each job's finish time over mu, (jobs,)."""

    def slacks(self, shares: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Time that each job has left, (jobs,), and GPUs that each type has, (types,)."""
        demand = self.demand
        return 1 - shares.sum(axis=1), demand.capacity - (demand.gpus * shares).sum(axis=0)

    def value(self, shares: FloatArray) -> float:
        """Infinite outside of the limits."""
        y = (self.demand.rate * shares).sum(axis=1)
        walls = [y, shares[self.demand.rate > 0], *self.slacks(shares)]
        if min(float(wall.min()) for wall in walls) <= 0:
            return np.inf
        return float((self.pull / y).sum()) - sum(float(np.log(wall).sum()) for wall in walls)

    def slope(self, shares: FloatArray, step: FloatArray) -> float:
        """Its derivative along a step."""
        demand, can = self.demand, shares > 0
        y, (idle, left) = (demand.rate * shares).sum(axis=1), self.slacks(shares)
        change = (step.sum(axis=1) / idle).sum() + ((demand.gpus * step).sum(axis=0) / left).sum()
        change -= (step[can] / shares[can]).sum() + ((self.pull / y + 1) / y * (demand.rate * step).sum(axis=1)).sum()
        return float(change)

    def newton(self, shares: FloatArray) -> FloatArray:
        """Newton's step, (jobs, types).

        Slacks near 0 would make the Hessian useless. So the unknowns are the steps relative to the shares and, beside
        them, the multipliers that the step leads to: of throughput and of time for each job, of GPUs for each type.
        Then all numbers are moderate, even at the end of the path.
        """
        demand, (jobs, types), (idle, left) = self.demand, shares.shape, self.slacks(shares)
        y = (demand.rate * shares).sum(axis=1)
        first, second = -(self.pull / y + 1) / y, (2 * self.pull / y + 1) / y**2
        speed, held = shares * demand.rate, shares * demand.gpus
        blocks, columns = np.zeros((jobs, types + 2, types + 2)), np.zeros((jobs, types + 2, types + 1))
        blocks[:, range(types), range(types)] = 1.0
        blocks[:, :types, types] = blocks[:, types, :types] = speed
        blocks[:, :types, types + 1] = blocks[:, types + 1, :types] = shares
        blocks[:, types, types], blocks[:, types + 1, types + 1] = -1 / second, -(idle**2)
        columns[:, range(types), range(types)] = held
        columns[:, :types, types], columns[:, types, types], columns[:, types + 1, types] = 1.0, -first / second, -idle
        solved = np.linalg.solve(blocks, columns)[:, :types]
        coupled = (held[:, :, None] * solved).sum(axis=0)
        multipliers = np.linalg.solve(coupled[:, :types] + np.diag(left**2), coupled[:, types] + left)
        step: FloatArray = shares * (solved[:, :, types] - solved[:, :, :types] @ multipliers)
        return step


def _centred(path: _Path, shares: FloatArray) -> FloatArray:
    """The point of the path, from shares inside all limits."""
    for _ in range(NEWTON_STEPS):
        step = path.newton(shares)
        slope = path.slope(shares, step)
        if slope > -CENTRED:
            break
        here, length = path.value(shares), 1.0
        while path.value(shares + length * step) > here + SUFFICIENT * length * slope:
            length /= 2
        shares = shares + length * step
    return shares


def _inside(demand: Demand) -> FloatArray:
    """Shares that keep away from all limits, (jobs, types); 0 where a job cannot run."""
    part = np.where(demand.rate > 0, demand.capacity / len(demand.rate) / np.maximum(demand.gpus, 1), 0.0)
    shares: FloatArray = 0.5 * part / np.maximum(part.sum(axis=1, keepdims=True), 1.0)
    return shares
