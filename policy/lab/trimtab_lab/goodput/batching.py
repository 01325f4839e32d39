"""Which global batch a job should run, and how its GPUs share it: AdaptDL's search over goodput.

A step on K GPUs is `accumulations` micro-batches without synchronisation and one with it, `local` samples per GPU each,
so its global batch is K · local · (accumulations + 1). Goodput is progress per second: the gain of that batch over the
time of such a step. Fifty batches between the smallest and the largest are tried, in geometric steps (AdaptDL,
`goodput.py`), each divided into as few micro-batches as the memory of a GPU allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_lab.goodput.profiles import Gradient
from trimtab_lab.numba_cache import jit

Floats = NDArray[np.float64]
TOLERANCE = 1e-8
"""Of floor and ceiling, in samples."""


class Batching(NamedTuple):
    """How a step is divided."""

    local: int
    """Samples per GPU and micro-batch."""
    accumulations: int
    """Micro-batches before the one that synchronises."""

    def batch(self, gpus: int) -> int:
        """Global batch on so many GPUs."""
        return gpus * self.local * (self.accumulations + 1)


class BatchLimits(NamedTuple):
    """What batches an application may run on one GPU type."""

    init_batch: int
    max_batch: int
    min_local: int
    max_local: int


class Ways(NamedTuple):
    """All ways to divide steps on some configurations, one after another in flat arrays."""

    starts: NDArray[np.int64]
    """(configurations + 1,): where those of each configuration begin."""
    nodes: Floats
    """(configurations,)"""
    gpus: Floats
    """(configurations,)"""
    local: Floats
    """(ways,)"""
    accumulations: Floats
    """(ways,)"""

    def at(self, way: int) -> Batching:
        return Batching(int(self.local[way]), int(self.accumulations[way]))


def given(batch: int, gpus: int, limits: BatchLimits, *, always_accumulate: bool = False) -> Batching:
    """A global batch that somebody asks for, divided; rounding up may make it a little larger.

    On one GPU a batch above the initial one is accumulated at least once, because the gradient's variance cannot be
    measured from a single micro-batch; Gavel's tables assume that of every batch (`always_accumulate`).
    """
    share = math.ceil(batch / gpus - TOLERANCE)
    accumulations = math.ceil(share / limits.max_local - TOLERANCE) - 1
    if gpus == 1 and (always_accumulate or batch > limits.init_batch):
        accumulations = max(1, accumulations)
    return Batching(math.ceil(share / (accumulations + 1) - TOLERANCE), accumulations)


def ways(configurations: Iterable[tuple[int, int]], limits: BatchLimits) -> Ways:
    """All that is worth trying on each (nodes, GPUs); none for a configuration whose batches do not fit."""
    rows = list(configurations)
    found = [_ways(gpus, limits) for _, gpus in rows]
    local, accumulations = np.concatenate(found, axis=1)
    nodes, gpus = np.array(rows, dtype=np.float64).reshape(-1, 2).T.copy()
    return Ways(np.cumsum([0, *(each.shape[1] for each in found)]), nodes, gpus, local, accumulations)


def _ways(gpus: int, limits: BatchLimits) -> Floats:
    """(2, ways): samples per GPU and accumulations."""
    smallest = max(limits.init_batch, limits.min_local * gpus)
    share = np.geomspace(smallest, limits.max_batch) / gpus
    accumulations = np.ceil(share / limits.max_local - TOLERANCE) - 1
    if gpus == 1:
        beyond = share > limits.init_batch + TOLERANCE
        accumulations = np.where(beyond, np.maximum(accumulations, 1), accumulations)
    local = np.ceil(share / (accumulations + 1) - TOLERANCE)
    fits = (limits.min_local <= local) & (local <= limits.max_local)
    return np.array([local[fits], accumulations[fits]])


@jit
def best(
    parameters: Floats, gradient: Gradient, init_batch: int, count: int, options: Ways
) -> tuple[Floats, NDArray[np.int64]]:
    """Goodput in progress per second of the first `count` configurations, and the way that has it (the first such).

    By the seven parameters of `throughput_fit` and the gradient's statistics. Zero and way 0 for a configuration
    without any.
    """
    rates, chosen = np.zeros(count), np.zeros(count, dtype=np.int64)
    square, variance = gradient
    starts, nodes, gpus, local, accumulations = options
    overlap = parameters[6]
    for c in range(count):
        beyond = max(gpus[c] - 2, 1e-8)
        link = 2 if nodes[c] > 1 else 4
        network = parameters[link] + parameters[link + 1] * beyond if gpus[c] > 1 else 1e-8 + 1e-8 * beyond
        network_power = network**overlap
        for way in range(starts[c], starts[c + 1]):
            compute = parameters[0] + parameters[1] * local[way]
            step = (compute**overlap + network_power) ** (1 / overlap)
            scale = gpus[c] * local[way] * (accumulations[way] + 1) / init_batch
            rate = (variance + square) / (variance / scale + square) / (accumulations[way] * compute + step)
            if rate > rates[c]:
                rates[c], chosen[c] = rate, way
    return rates, chosen
