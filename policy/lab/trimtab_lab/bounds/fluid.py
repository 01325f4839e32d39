"""Bounds from one machine: all GPUs melt into a single one; gangs and limits of speed are forgotten.

Give a GPU of type k a worth s_k > 0. The cluster is worth V = sum of s_k C_k per second, and job j cannot do its work
for less than v_j = min over k of s_k / e_jk, where e_jk is the greatest part of its work per GPU-second of type k. So
every schedule of the cluster is one of a single preemptive machine of speed V with jobs of size v_j. What is optimal
there bounds it from below, for any s. On a homogeneous cluster only one s matters; else a coordinate search maximises.

- LB1: shortest remaining processing time first minimises the sum of completion times there (Schrage 1968).
- LB2: a job that ends at C and at best takes p has done its work, on average, no later than C - p/2. The sum of those
  mean busy times is least under preemptive shortest job first by whole size (Goemans et al. 2002, section 2).
- Makespan: whatever comes at a moment or later has still to be done, and every job takes its time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trimtab_lab.bounds.demand import BoundsDemand, FloatArray
from trimtab_lab.numba_cache import jit

_FACTORS = (4.0, 2.0, 1.4, 1.15, 1.05)
"""Steps of the search by which the worth of one type is moved, coarse to fine."""


class Fluid(NamedTuple):
    """The three bounds in seconds, each at its own best worths."""

    srpt: float
    """LB1, sum of JCT."""
    busy: float
    """LB2, sum of JCT."""
    makespan: float
    """Moment before which the last job cannot end."""


def bounds(demand: BoundsDemand) -> Fluid:
    """All three; O(n log n) for each of the worths that are tried."""
    efficiency = demand.efficiency()
    return Fluid(*(_maximise(measure, demand, efficiency) for measure in (_srpt, _busy, _makespan)))


def completions(demand: BoundsDemand) -> FloatArray:
    """(n,) when jobs end on the single machine under SRPT, at the first worths: where prices are likely to change."""
    efficiency = demand.efficiency()
    size = _sizes(_worths(demand, efficiency), efficiency)
    return _run(demand.submitted, size, False)[0]


def _srpt(demand: BoundsDemand, size: FloatArray) -> float:
    ends, _ = _run(demand.submitted, size, False)
    return float((ends - demand.submitted).sum())


def _busy(demand: BoundsDemand, size: FloatArray) -> float:
    _, means = _run(demand.submitted, size, True)
    return float((means + demand.alone / 2 - demand.submitted).sum())


def _makespan(demand: BoundsDemand, size: FloatArray) -> float:
    order = np.argsort(demand.submitted)
    still_to_do = np.cumsum(size[order][::-1])[::-1]
    alone = float((demand.submitted + demand.alone).max())
    return max(alone, float((demand.submitted[order] + still_to_do).max()))


def _maximise(
    measure: Callable[[BoundsDemand, FloatArray], float], demand: BoundsDemand, efficiency: FloatArray
) -> float:
    """Greatest value of a bound that is found by moving one worth at a time."""
    worths = _worths(demand, efficiency)
    best = measure(demand, _sizes(worths, efficiency))
    if worths.size == 1:
        return best
    for factor in _FACTORS:
        best, worths = _sweep(measure, demand, efficiency, worths, best, factor)
    return best


def _sweep(
    measure: Callable[[BoundsDemand, FloatArray], float],
    demand: BoundsDemand,
    efficiency: FloatArray,
    worths: FloatArray,
    best: float,
    factor: float,
) -> tuple[float, FloatArray]:
    """Each worth up and down by a factor, once, kept where it helps."""
    for kind in range(worths.size):
        for step in (factor, 1 / factor):
            tried = _normal(np.where(np.arange(worths.size) == kind, worths * step, worths), demand)
            value = measure(demand, _sizes(tried, efficiency))
            if value > best:
                best, worths = value, tried
    return best, worths


def _worths(demand: BoundsDemand, efficiency: FloatArray) -> FloatArray:
    """To begin with, a type is worth how fast jobs are on it, on average over those that can run there."""
    relative = efficiency / efficiency.max(axis=1, keepdims=True)
    jobs = np.maximum(1, (relative > 0).sum(axis=0))
    return _normal(np.maximum(relative.sum(axis=0) / jobs, 1e-3), demand)


def _normal(worths: FloatArray, demand: BoundsDemand) -> FloatArray:
    """Scaled so that the cluster is worth 1 per second: sizes are seconds of all of it."""
    return np.asarray(worths / (worths @ demand.capacity))


def _sizes(worths: FloatArray, efficiency: FloatArray) -> FloatArray:
    """(n,) least worth that a job's work takes."""
    with np.errstate(divide="ignore"):  # a type on which a job cannot run costs it infinitely much
        return np.asarray((worths / efficiency).min(axis=1))


@jit
def _run(submitted: FloatArray, size: FloatArray, static: bool) -> tuple[FloatArray, FloatArray]:
    """(n,) completion and (n,) mean busy time of each job on a preemptive machine of speed 1.

    The job with the least size goes first: its whole size if `static`, else what remains of it.
    """
    n = submitted.size
    order = np.argsort(submitted)
    left = size.copy()
    ends, means = np.zeros(n), np.zeros(n)
    queue = [(0.0, 0)]  # says of what type an empty list is
    queue.pop()
    now, arrived = 0.0, 0
    while arrived < n or queue:
        if not queue:
            now = max(now, submitted[order[arrived]])
        while arrived < n and submitted[order[arrived]] <= now:
            job = order[arrived]
            heapq.heappush(queue, (size[job], job))
            arrived += 1
        _, job = heapq.heappop(queue)
        until = submitted[order[arrived]] if arrived < n else np.inf
        done = min(left[job], until - now)
        means[job] += (now + done / 2) * done / size[job]
        left[job] -= done
        now = until if left[job] > 0 else now + done
        if left[job] > 0:
            heapq.heappush(queue, (size[job] if static else left[job], job))
        ends[job] = now  # until it goes on
    return ends, means
