"""Who gets how many GPUs of which type, at the least cost: the assignment problem of Sia, and its exact solution.

Every job takes one of its options (so many GPUs of one type, at a cost) or none (at its cost of idling); the GPUs of
each type are limited. That is a multiple-choice knapsack with one dimension per GPU type. Clusters have few types and
jobs come one after the other, so dynamic programming over the GPUs that are left of each type solves it exactly:
`best[j][left]` is the least cost of the first j jobs when they may use `left` GPUs. With 24 + 24 + 16 GPUs that is a
table of 10,625 entries per job, filled by whole-array minima. Where the table would be too large, `milp.assign` solves
the same problem with HiGHS.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

MAX_CELLS = 12_000_000
"""Table entries times options of a job: what dynamic programming may cost before the MILP is the faster way."""


class Assignment(Struct, frozen=True):
    """The problem. Options are listed job by job; job j has those from `first[j]` to `first[j + 1]`."""

    capacity: IntArray
    """GPUs of each type, (types,)."""
    first: IntArray
    """(jobs + 1,)"""
    kind: IntArray
    """GPU type of each option, (options,)."""
    gpus: IntArray
    """At least 1 each, (options,)."""
    cost: FloatArray
    """(options,)"""
    idle: FloatArray
    """Cost of giving a job nothing, (jobs,)."""

    @property
    def jobs(self) -> int:
        return len(self.idle)


class Solution(Struct, frozen=True):
    """An assignment and how good it is known to be."""

    chosen: IntArray
    """Option of each job, or -1 for none, (jobs,)."""
    cost: float
    gap: float
    """Proven relative distance of `cost` from the least possible; 0 when it is the least."""


def total(problem: Assignment, chosen: IntArray) -> float:
    """Cost of a choice."""
    taken = chosen >= 0
    return float(problem.cost[chosen[taken]].sum() + problem.idle[~taken].sum())


def fits(problem: Assignment, cells: int = MAX_CELLS) -> bool:
    """Whether dynamic programming is the way to solve it: with a table of at most so many entries times options."""
    states = math.prod(int(limit) + 1 for limit in _needed(problem))
    return states * max(1, len(problem.cost)) <= cells


def solve(problem: Assignment) -> Solution:
    """The cheapest assignment. Of equally cheap ones, idling comes first, then the option listed first."""
    sizes = tuple(int(limit) + 1 for limit in _needed(problem))
    options = [_worthwhile(problem, job, sizes) for job in range(problem.jobs)]
    tables = [np.zeros(sizes)]
    for job in range(problem.jobs):
        tables.append(_extend(tables[-1], problem, job, options[job]))
    chosen = _trace(tables, problem, options)
    return Solution(chosen, total(problem, chosen), 0.0)


def _needed(problem: Assignment) -> IntArray:
    """GPUs of each type that all jobs together could use: the table needs no more."""
    most = np.zeros((problem.jobs, len(problem.capacity)), dtype=np.int64)
    owner = np.repeat(np.arange(problem.jobs), np.diff(problem.first))
    np.maximum.at(most, (owner, problem.kind), problem.gpus)
    needed: IntArray = np.minimum(problem.capacity, most.sum(axis=0))
    return needed


def _worthwhile(problem: Assignment, job: int, sizes: tuple[int, ...]) -> list[int]:
    """Options that can be in the cheapest assignment: one that costs no less than fewer GPUs of its type cannot."""
    within = range(int(problem.first[job]), int(problem.first[job + 1]))
    cheapest = [float(problem.idle[job])] * len(sizes)
    kept = []
    for option in sorted(within, key=lambda each: (problem.gpus[each], problem.cost[each], each)):
        kind, cost = problem.kind[option], problem.cost[option]
        if cost < cheapest[kind] and problem.gpus[option] < sizes[kind]:
            cheapest[kind] = cost
            kept.append(option)
    return sorted(kept)


def _extend(before: FloatArray, problem: Assignment, job: int, options: list[int]) -> FloatArray:
    """The table with one job more."""
    after: FloatArray = before + problem.idle[job]
    for option in options:
        gpus, axis = int(problem.gpus[option]), int(problem.kind[option])
        enough = _from(after, gpus, axis)
        np.minimum(enough, _until(before, gpus, axis) + problem.cost[option], out=enough)
    return after


def _from(table: FloatArray, gpus: int, axis: int) -> FloatArray:
    """View of the entries with at least so many GPUs left."""
    return table[(slice(None),) * axis + (slice(gpus, None),)]


def _until(table: FloatArray, gpus: int, axis: int) -> FloatArray:
    """View of the entries that these become when the GPUs are taken."""
    return table[(slice(None),) * axis + (slice(None, -gpus),)]


def _trace(tables: list[FloatArray], problem: Assignment, options: list[list[int]]) -> IntArray:
    """Walk back from the full cluster. Sums were made in the same order, so equality is exact."""
    chosen = np.full(problem.jobs, -1, dtype=np.int64)
    left = [size - 1 for size in tables[0].shape]
    for job in reversed(range(problem.jobs)):
        before, value = tables[job], tables[job + 1][tuple(left)]
        if before[tuple(left)] + problem.idle[job] == value:
            continue
        for option in options[job]:
            rest = list(left)
            rest[problem.kind[option]] -= problem.gpus[option]
            if min(rest) >= 0 and before[tuple(rest)] + problem.cost[option] == value:
                chosen[job], left = option, rest
                break
    return chosen
