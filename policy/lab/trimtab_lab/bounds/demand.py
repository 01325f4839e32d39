"""What a bound must know of a workload: when each job came, and how fast it is on what.

A job is a set of configurations: rows of GPU type, number of GPUs and rate. A rigid job has one, an elastic one has
many, and on heterogeneous clusters it has them on several types. Rates must be what the job can reach at most: a bound
is only as certain as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trimtab_policy.sim.job import SimJob
from trimtab_policy.types import Snapshot

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class InvalidDemand(ValueError):
    """Arrays that are no workload: NaN, a negative time, a job that cannot run on any GPUs of the cluster."""


class BoundsDemand(NamedTuple):
    """n jobs, m configurations in the order of their jobs, K GPU types. Built by `demand` or `of_jobs`."""

    submitted: FloatArray
    """(n,) seconds."""
    first: IntArray
    """(n + 1,): job j has the configurations `first[j]` to `first[j + 1] - 1`."""
    kind: IntArray
    """(m,) index of the GPU type."""
    gpus: FloatArray
    """(m,)"""
    rate: FloatArray
    """(m,) part of the job's whole work done per second."""
    capacity: FloatArray
    """(K,) GPUs of each type."""

    @property
    def alone(self) -> FloatArray:
        """(n,) seconds that each job takes on the best GPUs for it, alone."""
        return np.asarray(1 / np.maximum.reduceat(self.rate, self.first[:-1]))

    def efficiency(self) -> FloatArray:
        """(n, K) greatest part of its work that a job does per GPU-second of a type; 0 where it cannot run."""
        owner = np.repeat(np.arange(self.submitted.size), np.diff(self.first))
        best = np.zeros((self.submitted.size, self.capacity.size))
        np.maximum.at(best, (owner, self.kind), self.rate / self.gpus)
        return best

    def select(self, mask: NDArray[np.bool_]) -> BoundsDemand:
        """The jobs of `mask` (n,) alone: without the others they can only be faster, so bounds stay bounds."""
        rows = np.repeat(mask, np.diff(self.first))
        first = np.concatenate(([0], np.cumsum(np.diff(self.first)[mask])))
        return BoundsDemand(
            self.submitted[mask], first, self.kind[rows], self.gpus[rows], self.rate[rows], self.capacity
        )


def demand(
    submitted: ArrayLike,
    work: ArrayLike,
    job: ArrayLike,
    kind: ArrayLike,
    gpus: ArrayLike,
    rate: ArrayLike,
    capacity: ArrayLike,
) -> BoundsDemand:
    """A workload from plain arrays.

    `submitted` (n,) in seconds, `work` (n,) in any unit; the configurations `job`, `kind` (indices), `gpus` and `rate`
    in work per second, all (m,) in any order; `capacity` (K,) in GPUs. Rigid jobs are `work` = seconds, `job` =
    arange(n), `rate` = 1. Configurations that exceed the capacity of their type are left out.
    Raises InvalidDemand where a value is not finite and positive (`submitted`: not negative), or no configuration fits.
    """
    times, works, limits = _floats(submitted), _floats(work), _floats(capacity)
    owner, kinds = np.asarray(job, dtype=np.int64), np.asarray(kind, dtype=np.int64)
    sizes, rates = _floats(gpus), _floats(rate)
    _check_values(times, {"work": works, "gpus": sizes, "rate": rates, "capacity": limits})
    _check_indices({"job": (owner, times.size), "kind": (kinds, limits.size)})
    fits = np.flatnonzero(sizes <= limits[kinds])
    rows = fits[np.argsort(owner[fits], kind="stable")]
    counts = np.bincount(owner[rows], minlength=times.size)
    if not counts.all():
        raise InvalidDemand(f"job {int(np.argmin(counts))} cannot run: no configuration of it fits the cluster")
    first = np.concatenate(([0], np.cumsum(counts)))
    return BoundsDemand(times, first, kinds[rows], sizes[rows], rates[rows] / works[owner[rows]], limits)


def of_jobs(jobs: Sequence[SimJob], cluster: Snapshot) -> BoundsDemand:
    """The workload of simulated jobs, as they truly are, on an empty cluster.

    Where a job's rate changes as it proceeds, the greatest counts (`Alone.best_rate`): certain, but loose.
    Raises InvalidDemand for a job that cannot run on the cluster.
    """
    types = {name: k for k, name in enumerate(sorted({node.gpu_type for node in cluster.nodes}))}
    capacity = np.zeros(len(types))
    for node in cluster.nodes:
        capacity[types[node.gpu_type]] += node.gpus
    rows = [
        (index, kind, gpus, alone.best_rate)
        for index, job in enumerate(jobs)
        for name, kind in types.items()
        for gpus, alone in job.alone(name).items()
    ]
    owner, kinds, gpus, rates = zip(*rows, strict=True) if rows else ((), (), (), ())
    return demand([job.submitted for job in jobs], np.ones(len(jobs)), owner, kinds, gpus, rates, capacity)


def _floats(values: ArrayLike) -> FloatArray:
    return np.atleast_1d(np.asarray(values, dtype=np.float64))


def _check_values(submitted: FloatArray, positive: dict[str, FloatArray]) -> None:
    if not submitted.size:
        raise InvalidDemand("no jobs: there is nothing to bound")
    if positive["work"].size != submitted.size:
        raise InvalidDemand(f"submitted has {submitted.size} jobs, work has {positive['work'].size}")
    _refuse("submitted", submitted, ~(np.isfinite(submitted) & (submitted >= 0)))
    for name, values in positive.items():
        _refuse(name, values, ~(np.isfinite(values) & (values > 0)))


def _refuse(name: str, values: FloatArray, bad: NDArray[np.bool_]) -> None:
    if bad.any():
        at = int(np.argmax(bad))
        raise InvalidDemand(f"{name}[{at}] is {values[at]:g}: must be finite and positive")


def _check_indices(indices: dict[str, tuple[IntArray, int]]) -> None:
    for name, (values, size) in indices.items():
        if values.size and (values.min() < 0 or values.max() >= size):
            raise InvalidDemand(f"{name} must index {size} of them, it goes from {values.min()} to {values.max()}")
