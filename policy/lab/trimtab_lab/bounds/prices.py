"""LB3: a price for every GPU type and stretch of time, and each job buys its work where it is cheapest.

The linear program behind it: a job may mix its configurations a (R_a of its work per second on g_a GPUs of type k_a),
at most one at a time; all jobs together keep within the capacity C_k at every moment; the sum of their mean busy times
is least, to which p/2 is added as in LB2. With prices lambda_k(t) >= 0 on the capacity it falls apart into jobs:

    LB3 = sum over j of [ p_j/2 - r_j + max over mu of ( mu - integral over t >= r_j of h_j(mu - t, t) dt ) ]
          - sum over k of C_k * integral of lambda_k(t) dt
    h_j(u, t) = max over a of ( R_a u - lambda_k(t) g_a, 0 ) with k = k_a

It is a bound for any prices and any mu (weak duality), so nothing depends on how well they were found. Prices are
constant in a slot of time, where h is integrated exactly: u falls, and the job changes to configurations of lower rate.
They are zero after the last slot, so that no schedule is too long. The dual is concave and smooth; L-BFGS-B maximises
it from zero prices on, where it is LB0.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from trimtab_lab.bounds import fluid
from trimtab_lab.bounds.demand import BoundsDemand, FloatArray
from trimtab_lab.numba_cache import jit

SLOTS = 800
"""Slots between moments at which jobs come or may go. More than that are thinned out."""
EVEN_SLOTS = 400
"""Further slots, of equal length. Together they leave 0.1 % of the bound to finer ones on 600 jobs."""
EVEN_SLOTS_PER_JOB = 16
"""Of which fewer jobs need no more than this."""
ITERATIONS = 300
_ROOT_STEPS = 60
_ROOT_TOLERANCE = 1e-10


def total_jct(demand: BoundsDemand) -> float:
    """Lower bound on the sum of JCT in seconds, never below LB0."""
    edges = _edges(demand)
    supply = np.outer(demand.capacity, np.diff(edges))
    # a price acts through slot length and capacity; measured in their roots all have like curvature
    unit = 1 / np.sqrt(supply)
    marginal = demand.submitted + demand.alone
    lb0 = float(demand.alone.sum())
    fixed = float((demand.alone / 2 - demand.submitted).sum())
    values = [lb0]

    def descent(scaled: FloatArray) -> tuple[float, FloatArray]:
        """Negative of the dual and its gradient, over LB0."""
        prices = scaled.reshape(supply.shape) * unit
        bought, usage = _purchases(demand, prices, edges, marginal)
        values.append(fixed + bought - float((supply * prices).sum()))
        return -values[-1] / lb0, ((supply - usage) * unit).ravel() / lb0

    options = {"maxiter": ITERATIONS, "maxcor": 20, "ftol": 1e-10, "gtol": 1e-10}
    minimize(
        descent, np.zeros(supply.size), jac=True, method="L-BFGS-B", bounds=[(0, None)] * supply.size, options=options
    )
    return max(values)


def _edges(demand: BoundsDemand) -> FloatArray:
    """(S + 1,) where slots begin, and the end of the last."""
    moments = np.unique(np.concatenate((demand.submitted, demand.submitted + demand.alone, fluid.completions(demand))))
    if moments.size > SLOTS:
        moments = moments[np.linspace(0, moments.size - 1, SLOTS).round().astype(np.int64)]
    even = min(EVEN_SLOTS, EVEN_SLOTS_PER_JOB * demand.submitted.size)
    return np.union1d(moments, np.linspace(moments[0], moments[-1], even))


@jit
def _purchases(
    demand: BoundsDemand, prices: FloatArray, edges: FloatArray, marginal: FloatArray
) -> tuple[float, FloatArray]:
    """Sum over jobs of max over mu (...), and (K, S) GPU-seconds that they buy.

    `prices` (K, S); `marginal` (n,) holds each job's mu of the call before, where the search starts, and is updated.
    """
    usage = np.zeros(prices.shape)
    total = 0.0
    for job in range(marginal.size):
        mu = _marginal(demand, job, prices, edges, marginal[job], usage)
        surplus, _, _ = _buy(demand, job, mu, prices, edges, 1.0, usage)
        total += mu - surplus
        marginal[job] = mu
    return total, usage


@jit
def _marginal(
    demand: BoundsDemand, job: int, prices: FloatArray, edges: FloatArray, guess: float, usage: FloatArray
) -> float:
    """The mu at which a job buys exactly its work: Newton on a piecewise linear function, kept in a bracket."""
    start, fastest = demand.submitted[job], demand.rate[demand.first[job] : demand.first[job + 1]].max()
    low, high = float(start + 1 / fastest), np.inf
    mu = max(guess, low)
    for _ in range(_ROOT_STEPS):
        _, work, slope = _buy(demand, job, mu, prices, edges, 0.0, usage)
        if abs(work - 1) < _ROOT_TOLERANCE:
            break
        if work < 1:
            low = mu
        else:
            high = mu
        mu = mu + (1 - work) / slope if slope > 0 else np.inf
        if not low < mu < high:
            mu = (low + high) / 2 if high < np.inf else 2 * low - float(start)
    return mu


@jit
def _buy(
    demand: BoundsDemand, job: int, mu: float, prices: FloatArray, edges: FloatArray, weight: float, usage: FloatArray
) -> tuple[float, float, float]:
    """Integral of h, its derivative by mu (the work that is bought) and the derivative of that.

    Adds `weight` times the GPU-seconds to `usage` (K, S).
    """
    surplus, work, slope = 0.0, 0.0, 0.0
    start, slots = demand.submitted[job], edges.size - 1
    for slot in range(max(0, np.searchsorted(edges, start, side="right") - 1), slots):
        now, end = max(edges[slot], start), edges[slot + 1]
        if now >= mu:
            return surplus, work, slope
        row = _best(demand, job, mu - now, prices, slot)
        while row >= 0:
            cost = prices[demand.kind[row], slot] * demand.gpus[row]
            change, then = _change(demand, job, row, cost, prices, slot)
            until = max(now, min(end, mu - change))
            surplus += (demand.rate[row] * (mu - (now + until) / 2) - cost) * (until - now)
            work += demand.rate[row] * (until - now)
            usage[demand.kind[row], slot] += weight * demand.gpus[row] * (until - now)
            if until == end:
                break
            slope += demand.rate[row] - (demand.rate[then] if then >= 0 else 0.0)
            now, row = until, then
    rest = max(0.0, mu - max(edges[slots], start))  # free of charge, so the job takes its fastest configuration
    fastest = demand.rate[demand.first[job] : demand.first[job + 1]].max()
    return surplus + fastest * rest**2 / 2, work + fastest * rest, slope + (fastest if rest > 0 else 0.0)


@jit
def _best(demand: BoundsDemand, job: int, u: float, prices: FloatArray, slot: int) -> int:
    """The configuration with the greatest R u - cost; -1 where none is positive."""
    most, best = 0.0, -1
    for row in range(demand.first[job], demand.first[job + 1]):
        value = demand.rate[row] * u - prices[demand.kind[row], slot] * demand.gpus[row]
        if value > most:
            most, best = value, row
    return best


@jit
def _change(demand: BoundsDemand, job: int, row: int, cost: float, prices: FloatArray, slot: int) -> tuple[float, int]:
    """At which u, falling, a slower configuration becomes better than `row`, and which; -1 for none at all."""
    change, then = cost / demand.rate[row], -1
    for other in range(demand.first[job], demand.first[job + 1]):
        slower = demand.rate[row] - demand.rate[other]
        if slower > 0:
            equal = (cost - prices[demand.kind[other], slot] * demand.gpus[other]) / slower
            if equal > change:
                change, then = equal, other
    return change, then
