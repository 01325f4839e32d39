"""The programs of Gavel about finish times, which are convex but not linear.

A job finishes after remaining steps over throughput: within w·t seconds if t·y >= 1, where y is its throughput relative
to its best, and w what the rest would take at that. So the least sum of finish times, and their least maximum relative
to an equal share, are linear programs with one hyperbola a job (`conic`).
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from trimtab_policy.heuristics.gavel_programs import GavelDemand, equal_share
from trimtab_policy.solvers.conic import ConeProgram, solve
from trimtab_policy.solvers.knapsack import FloatArray

NEGLIGIBLE = 1e-5
"""Part of the longest job's work below which the others need not be told apart: it would be lost by rounding."""


def fastest_finish(demand: GavelDemand) -> FloatArray:
    """Shares (jobs, types) with the least sum of the jobs' finish times."""
    demand = _relative(demand)
    weight = np.maximum(demand.remaining / demand.remaining.max(), NEGLIGIBLE)
    cost = np.concatenate([np.zeros(demand.rate.size), weight / weight.sum()])
    return _shares(demand, cost, np.zeros((0, len(cost))), np.zeros(0))


def least_unfair(demand: GavelDemand) -> FloatArray:
    """Shares (jobs, types) with the least maximum of finish time over finish time in an equal share (section 4.2)."""
    demand = _relative(demand)
    jobs, shares = demand.rate.shape[0], demand.rate.size
    fair = demand.start + demand.steps / equal_share(demand)
    below = np.zeros((jobs, shares + jobs + 1))  # (age + w·t) / fair - worst <= 0
    below[range(jobs), range(shares, shares + jobs)] = demand.remaining / fair
    below[:, -1] = -1.0
    cost = np.zeros(shares + jobs + 1)
    cost[-1] = 1.0
    return _shares(demand, cost, below, -demand.age / fair)


def _relative(demand: GavelDemand) -> GavelDemand:
    """The same with the steps of each job such that its best rate is 1 a second."""
    best = demand.rate.max(axis=1)
    return replace(
        demand, rate=demand.rate / best[:, None], steps=demand.steps / best, remaining=demand.remaining / best
    )


def _shares(demand: GavelDemand, cost: FloatArray, below: FloatArray, most: FloatArray) -> FloatArray:
    """Minimise over shares x, then t of each job, then what else `cost` has, with below·v <= most besides."""
    (jobs, types), columns = demand.rate.shape, len(cost)
    x, t = np.arange(jobs * types).reshape(jobs, types), jobs * types + np.arange(jobs)
    positive, of_type, of_job = np.zeros((x.size, columns)), np.zeros((types, columns)), np.zeros((jobs, columns))
    positive[x, x] = -1.0
    of_type[np.arange(types), x] = demand.gpus
    of_job[np.arange(jobs)[:, None], x] = 1.0
    hyperbola = np.zeros((jobs, 3, columns))  # t + y >= |(t - y, 2)|
    hyperbola[np.arange(jobs)[:, None], 0, x] = -demand.rate
    hyperbola[np.arange(jobs)[:, None], 1, x] = demand.rate
    hyperbola[range(jobs), :2, t] = -1.0
    matrix = np.vstack([positive, of_type, of_job, below, hyperbola.reshape(-1, columns)])
    right = np.concatenate([np.zeros(x.size), demand.capacity, np.ones(jobs), most, np.tile([0.0, 0.0, 2.0], jobs)])
    found = solve(ConeProgram(cost, matrix, right, len(right) - 3 * jobs))
    shares: FloatArray = np.where(demand.rate > 0, found[x].clip(0.0, 1.0), 0.0)
    return shares
