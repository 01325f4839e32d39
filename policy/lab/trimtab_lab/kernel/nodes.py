"""Nodes as arrays: what has room, who holds what, and the log of all allocations.

Rigid jobs are as fast on scattered GPUs as on one node, so that a gang has room where its type has enough free GPUs.
Which nodes it gets is the rule of `trimtab_policy.placement.capacity` (`gather`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_lab.kernel.heap import NONE, Floats, Ints
from trimtab_lab.numba_cache import jit

TICK = 1e-6
"""Seconds that are nothing: what ends within them ends together."""


class KernelNodes(NamedTuple):
    """The cluster. Changed in place."""

    gpu_type: Ints
    """(nodes,)"""
    free: Ints
    """(nodes,) GPUs."""
    free_of: Ints
    """(types,) GPUs, summed over the nodes of a type."""


class KernelJobs(NamedTuple):
    """Columns over jobs in the order of their submission."""

    submitted: Floats
    work: Floats
    """Seconds at speed 1."""
    told: Floats
    """What policies believe that to be."""
    shape: Ints
    """Index into `Shapes`."""


class Shapes(NamedTuple):
    """What jobs of one kind can run on: options (shapes, options), the fastest first. 0 GPUs: no further option."""

    gpu_type: Ints
    gpus: Ints
    speed: Floats
    """Work per second."""


class AllocationLog(NamedTuple):
    """Allocations in the order of their begin; the shares of entry i are `[first[i], first[i + 1])`. Grows."""

    job: Ints
    option: Ints
    begin: Floats
    end: Floats
    first: Ints
    node: Ints
    gpus: Ints
    size: Ints
    """(1,) entries in use."""


def empty_log(entries: int, shares: int) -> AllocationLog:
    """A log with room for so much."""
    return AllocationLog(
        job=np.empty(entries, dtype=np.int64),
        option=np.empty(entries, dtype=np.int64),
        begin=np.empty(entries),
        end=np.full(entries, np.nan),
        first=np.zeros(entries + 1, dtype=np.int64),
        node=np.empty(shares, dtype=np.int64),
        gpus=np.empty(shares, dtype=np.int64),
        size=np.zeros(1, dtype=np.int64),
    )


@jit
def _with_room(log: AllocationLog, shares: int) -> AllocationLog:
    """The log, made larger where one more entry with so many shares would not fit."""
    size, used = log.size[0], log.first[log.size[0]]
    if size < len(log.job) and used + shares <= len(log.node):
        return log
    entries, held = 2 * len(log.job) + 1, 2 * len(log.node) + shares
    return AllocationLog(
        _grown(log.job, entries),
        _grown(log.option, entries),
        _grown(log.begin, entries),
        _grown(log.end, entries),
        _grown(log.first, entries + 1),
        _grown(log.node, held),
        _grown(log.gpus, held),
        log.size,
    )


@jit
def _grown(array: NDArray[Any], length: int) -> NDArray[Any]:
    larger = np.empty(length, dtype=array.dtype)
    larger[: len(array)] = array
    return larger


@jit
def find(nodes: KernelNodes, shapes: Shapes, shape: int) -> int:
    """The fastest option that has room now, or NONE."""
    for option in range(shapes.gpus.shape[1]):
        gpus = shapes.gpus[shape, option]
        if gpus == 0:
            return NONE
        if gpus <= nodes.free_of[shapes.gpu_type[shape, option]]:
            return option
    return NONE


@jit
def take(
    nodes: KernelNodes, shapes: Shapes, shape: int, option: int, log: AllocationLog, job: int, now: float
) -> AllocationLog:
    """Allocate an option that has room; returns the log with one entry more.

    The fewest nodes that hold the gang: the emptiest ones whole, and for the rest the node with the least left over;
    the first one between equals.
    """
    gpu_type, left = shapes.gpu_type[shape, option], shapes.gpus[shape, option]
    nodes.free_of[gpu_type] -= left
    log = _with_room(log, min(left, len(nodes.free)))
    entry = log.size[0]
    share = log.first[entry]
    while left > 0:
        node = _next_node(nodes, gpu_type, left)
        part = min(left, nodes.free[node])
        nodes.free[node] -= part
        left -= part
        log.node[share], log.gpus[share] = node, part
        share += 1
    log.job[entry], log.option[entry], log.begin[entry], log.end[entry] = job, option, now, np.nan
    log.first[entry + 1] = share
    log.size[0] = entry + 1
    return log


@jit
def _next_node(nodes: KernelNodes, gpu_type: int, gpus: int) -> int:
    """The fullest node that holds so many, or else the emptiest one."""
    emptiest, tightest = NONE, NONE
    for node in range(len(nodes.free)):
        free = nodes.free[node]
        if nodes.gpu_type[node] == gpu_type:
            if emptiest == NONE or free > nodes.free[emptiest]:
                emptiest = node
            if free >= gpus and (tightest == NONE or free < nodes.free[tightest]):
                tightest = node
    return emptiest if tightest == NONE else tightest


@jit
def give(nodes: KernelNodes, log: AllocationLog, entry: int, now: float) -> None:
    """End an allocation."""
    log.end[entry] = now
    for share in range(log.first[entry], log.first[entry + 1]):
        node = log.node[share]
        nodes.free[node] += log.gpus[share]
        nodes.free_of[nodes.gpu_type[node]] += log.gpus[share]
