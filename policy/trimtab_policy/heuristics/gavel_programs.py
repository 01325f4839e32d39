"""The linear programs of Gavel: how the time of a cluster should be shared.

All share the constraints of Narayanan et al., OSDI 2020, section 3.1: no job gets more than all of its time, and no GPU
type gives more GPU-time than it has. Throughput is linear in the shares, so its largest sum and its largest minimum are
linear programs; those about finish times are not (`gavel_finish`).
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from trimtab_policy.solvers import milp
from trimtab_policy.solvers.knapsack import FloatArray, IntArray
from trimtab_policy.solvers.milp import MixedIntegerProgram, by_column

DIGITS = 5
"""To which shares are rounded: what an interior-point solver leaves below is nothing."""


class GavelDemand(Struct, frozen=True):
    """What there is to share, and what each job asks for. Every job can run on some type."""

    rate: FloatArray
    """Steps per second on each GPU type, (jobs, types); 0 where a job cannot run."""
    gpus: IntArray
    """(jobs, types); 0 where a job cannot run."""
    capacity: IntArray
    """GPUs of each type, (types,)."""
    steps: FloatArray
    """(jobs,)"""
    remaining: FloatArray
    """Steps to go, at least 1, (jobs,)."""
    age: FloatArray
    """Seconds since submission, (jobs,)."""
    start: FloatArray
    """Seconds before it could have run even alone: to the next round, and to start, (jobs,)."""


def largest_sum(demand: GavelDemand) -> FloatArray:
    """Shares (jobs, types) with the most steps per second of all jobs together."""
    return _solve(demand, [], -demand.rate.ravel()).reshape(demand.rate.shape)


def largest_minimum(demand: GavelDemand) -> FloatArray:
    """Shares (jobs, types) under which the worst job is best off, by throughput over that of an equal share.

    A job on k GPUs counts k-fold, so that of two equal ones it gets a k-th of the time (section 4.1).
    """
    return _worst_is_best(demand, demand.rate * demand.gpus / equal_share(demand)[:, None])


def equal_share(demand: GavelDemand) -> FloatArray:
    """Steps per second of each job with an n-th of the GPUs of every type, for no more than all of its time."""
    part = np.where(demand.rate > 0, demand.capacity / len(demand.rate) / np.maximum(demand.gpus, 1), 0.0)
    part /= np.maximum(part.sum(axis=1, keepdims=True), 1.0)
    together: FloatArray = (demand.rate * part).sum(axis=1)
    return together


class _ConstraintRows(Struct, frozen=True):
    """Constraints low <= sum of value·x[column]: one a job, (jobs, entries) each."""

    column: IntArray
    value: FloatArray
    low: FloatArray


def _worst_is_best(demand: GavelDemand, value: FloatArray) -> FloatArray:
    """Shares with the largest minimum over jobs of sum(value·share), by one more variable, which is that minimum."""
    jobs, last = len(value), np.full((len(value), 1), demand.rate.size)
    rows = _ConstraintRows(
        np.hstack([_shares_of(demand), last]), np.hstack([value, np.full((jobs, 1), -1.0)]), np.zeros(jobs)
    )
    cost = np.zeros(demand.rate.size + 1)
    cost[-1] = -1.0
    return _solve(demand, [rows], cost)[:-1].reshape(value.shape)


def _shares_of(demand: GavelDemand) -> IntArray:
    """Columns of the shares of each job, (jobs, types)."""
    return np.arange(demand.rate.size).reshape(demand.rate.shape)


def _solve(demand: GavelDemand, more: list[_ConstraintRows], cost: FloatArray) -> FloatArray:
    """Minimise under the constraints that all share and `more`; x is the shares row by row, then further variables."""
    jobs, types = demand.rate.shape
    shares = _shares_of(demand).ravel()
    column = [shares, shares]
    row = [np.repeat(np.arange(jobs), types), jobs + np.tile(np.arange(types), jobs)]
    value = [np.ones(len(shares)), demand.gpus.ravel().astype(np.float64)]
    for k, rows in enumerate(more):
        column.append(rows.column.ravel())
        row.append(np.repeat(jobs + types + k * jobs + np.arange(jobs), rows.column.shape[1]))
        value.append(rows.value.ravel())
    limit = np.full(len(cost), np.inf)
    limit[shares] = np.where(demand.rate > 0, 1.0, 0.0).ravel()
    return milp.linear(
        MixedIntegerProgram(
            cost=cost,
            limit=limit,
            low=np.concatenate([np.full(jobs + types, -np.inf), *(rows.low for rows in more)]),
            high=np.concatenate([np.ones(jobs), demand.capacity, np.full(jobs * len(more), np.inf)]),
            matrix=by_column(np.concatenate(column), np.concatenate(row), np.concatenate(value), len(cost)),
        )
    )
