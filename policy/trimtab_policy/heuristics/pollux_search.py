"""Pollux's genetic search for allocations: which job gets how many GPUs of which node.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021, section 4.2, with
the operators of its implementation (AdaptDL, `pollux.py`) under NSGA-II (Deb et al. 2002). An allocation is a matrix
(jobs, nodes) of GPUs; a population of them is evolved by crossover over jobs, mutation, and repair of what breaks a
limit. Two objectives are minimised: the negative power mean of the jobs' speed-ups, and the negative utility of the
nodes in use; the survivors are the best fronts, and of the last front those that are far apart.

All steps work on the whole population at once.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from msgspec import Struct
from numpy.random import Generator
from numpy.typing import NDArray

from trimtab_policy.solvers.knapsack import FloatArray, IntArray

States = NDArray[np.int16]
"""Allocations, (population, jobs, nodes)."""

POPULATION = 100
GENERATIONS = 100
POWER = -1.0
"""Exponent of the mean over jobs: the harmonic one."""
CROSSED = 0.9
"""Part of the pairs that do, as by default in pymoo."""
RATE = 0.1
"""Of each kind of mutation."""
FLOOR = 1e-3
"""Added to speed-ups, so that a job without GPUs does not outweigh all others."""


class SharedCluster(Struct, frozen=True):
    """What is to be shared, and what the jobs make of it."""

    gpus: IntArray
    """GPUs of each node, (nodes,)."""
    least: IntArray
    """GPUs that each job needs, (jobs,)."""
    most: IntArray
    """GPUs that each job may have, (jobs,)."""
    speedup: FloatArray
    """(jobs, nodes + 1, GPUs + 1) by how many nodes and GPUs in all; 0 without GPUs."""
    factor: FloatArray
    """What remains of a speed-up when the job is restarted, (jobs,)."""
    present: States
    """What the jobs have now, (jobs, nodes)."""


class Found(Struct, frozen=True):
    """The first front of the last generation."""

    states: States
    costs: FloatArray
    """(states, 2): negative mean speed-up, negative utility."""

    def best(self) -> States:
        """The allocation of the largest mean speed-up, (jobs, nodes)."""
        best: States = self.states[self.costs[:, 0].argmin()]
        return best


def search(cluster: SharedCluster, start: States, chance: Generator, generations: int = GENERATIONS) -> Found:
    """Evolve the allocations `start` (at least one)."""
    states = _repaired(cluster, start.copy(), chance)
    costs = evaluate(cluster, states)
    ranks, spread = _ranked(costs)
    for _ in range(generations):
        children = _children(cluster, states, ranks, spread, chance)
        states = np.concatenate([states, children])
        costs = np.concatenate([costs, evaluate(cluster, children)])
        ranks, spread = _ranked(costs)
        survivors = np.lexsort((-spread, ranks))[:POPULATION]
        states, costs, ranks, spread = states[survivors], costs[survivors], ranks[survivors], spread[survivors]
    first = ranks == 0
    return Found(states[first], costs[first])


def evaluate(cluster: SharedCluster, states: States) -> FloatArray:
    """Both objectives of each state, (states, 2)."""
    gpus, nodes = states.sum(axis=2, dtype=np.int16), (states > 0).sum(axis=2, dtype=np.int16)
    speedup = cluster.speedup[np.arange(states.shape[1]), nodes, gpus]
    used = np.any(states, axis=1) @ cluster.gpus
    utility = np.divide(speedup.sum(axis=1), used, out=np.zeros(len(states)), where=used > 0)
    moved = np.any(states != cluster.present, axis=2)
    scaled = speedup * np.where(moved, cluster.factor, 1.0) * (len(cluster.gpus) / cluster.gpus.sum())
    mean = np.mean((scaled + FLOOR) ** POWER, axis=1) ** (1 / POWER)
    return np.column_stack([-mean, -utility])


def _children(cluster: SharedCluster, states: States, ranks: IntArray, spread: FloatArray, chance: Generator) -> States:
    """`POPULATION` new allocations at most, none of which is there already."""
    parents = _selected(ranks, spread, chance)
    children = _crossed(states[parents], chance)
    children = _repaired(cluster, _mutated(cluster, children, chance), chance)
    everybody = np.concatenate([states, children]).reshape(len(states) + len(children), -1)
    rows = np.ascontiguousarray(everybody).view(np.dtype((np.void, everybody.shape[1] * everybody.itemsize))).ravel()
    _, first = np.unique(rows, return_index=True)
    new = np.sort(first[first >= len(states)]) - len(states)
    fresh: States = children[new]
    return fresh


def _selected(ranks: IntArray, spread: FloatArray, chance: Generator) -> IntArray:
    """Parents by binary tournament: the better front wins, then the emptier neighbourhood."""
    rounds = -(-2 * POPULATION // len(ranks)) * 2
    entrants = np.concatenate([chance.permutation(len(ranks)) for _ in range(rounds)])[: 2 * POPULATION]
    left, right = entrants.reshape(2, POPULATION)
    wins = (ranks[left] < ranks[right]) | ((ranks[left] == ranks[right]) & (spread[left] >= spread[right]))
    winners: IntArray = np.where(wins, left, right)
    return winners


def _crossed(parents: States, chance: Generator) -> States:
    """Most pairs of parents exchange the jobs up to a random one."""
    half = len(parents) // 2
    mothers, fathers = parents[:half], parents[half:]
    exchanged = np.arange(parents.shape[1]) < chance.integers(parents.shape[1], size=(half, 1))
    exchanged &= chance.random((half, 1)) < CROSSED
    mask = exchanged[:, :, None]
    return np.concatenate([np.where(mask, fathers, mothers), np.where(mask, mothers, fathers)])


def _mutated(cluster: SharedCluster, states: States, chance: Generator) -> States:
    """Some jobs get back what they have, some lose GPUs, and free GPUs are taken."""
    back = chance.random(states.shape[:2]) < RATE
    states = np.where(back[:, :, None], cluster.present, states)
    losing = np.nonzero(chance.random(states.shape[:2]) < RATE)
    kept = chance.random((len(losing[0]), states.shape[2])) >= RATE
    states[losing] *= kept
    free = (cluster.gpus > states.sum(axis=1, dtype=np.int16))[:, None, :]
    anywhere = free / np.float32(states.shape[1])
    more = (states > 0) & free
    here = more / np.maximum(more.sum(axis=1, keepdims=True), 1).astype(np.float32)
    growing = chance.random(states.shape, dtype=np.float32) < anywhere + here - anywhere * here
    upto = np.broadcast_to(cluster.gpus, states.shape)[growing]
    states[growing] = chance.integers(states[growing], upto + 1)
    return states


def _repaired(cluster: SharedCluster, states: States, chance: Generator) -> States:
    """Keep the limits: one job over several nodes per node, GPUs per job, GPUs per node; earlier jobs go first.

    As in the implementation, a second job over several nodes loses a node together with all jobs that come after it. A
    job that is left with fewer GPUs than it needs gets none.
    """
    used = states > 0
    spread = (used.sum(axis=2, dtype=np.int16) > 1)[:, :, None] & used
    states[spread.cumsum(axis=1, dtype=np.int16) > 1] = 0
    greedy = np.nonzero(states.sum(axis=2, dtype=np.int16) > cluster.most)
    if len(greedy[0]):
        states[greedy] = _cut(states[greedy], cluster.most[greedy[1]], chance)
    taken: States = np.minimum(states.cumsum(axis=1, dtype=np.int16), cluster.gpus.astype(np.int16))
    taken[:, 1:] -= taken[:, :-1].copy()
    taken[taken.sum(axis=2, dtype=np.int16) < cluster.least] = 0
    return taken


def _cut(rows: States, most: IntArray, chance: Generator) -> States:
    """GPUs of single jobs (n, nodes) beyond what they may have are taken from random nodes."""
    order = np.argsort(chance.random(rows.shape), axis=1)
    kept = np.minimum(np.take_along_axis(rows, order, axis=1).cumsum(axis=1), most[:, None])
    cut = np.empty_like(rows)
    np.put_along_axis(cut, order, np.diff(kept, axis=1, prepend=0).astype(rows.dtype), axis=1)
    return cut


def _ranked(costs: FloatArray) -> tuple[IntArray, FloatArray]:
    """Front of each state, from 0, (n,); and how far apart its neighbours in the front are (n,), infinite at the ends.

    In order of the first objective a state belongs to the first front all of whose second ones so far are larger.
    """
    order = np.lexsort((costs[:, 1], costs[:, 0]))
    smallest: list[float] = []
    ranks, before, rank = [], None, 0
    for state in costs[order].tolist():
        if state != before:  # equal states do not dominate each other
            rank, before = bisect_right(smallest, state[1]), state
            smallest[rank : rank + 1] = [state[1]]
        ranks.append(rank)
    of_state = np.empty(len(costs), dtype=np.int64)
    of_state[order] = ranks
    return of_state, _crowding(costs, of_state)


def _crowding(costs: FloatArray, ranks: IntArray) -> FloatArray:
    """Sum over both objectives of the distance between a state's neighbours, relative to the extent of its front."""
    distance = np.zeros(len(costs))
    for objective in costs.T:
        order = np.lexsort((objective, ranks))
        values, front = objective[order], ranks[order]
        first = np.flatnonzero(np.diff(front, prepend=-1))
        last = np.append(first[1:], len(front)) - 1
        extent = (values[last] - values[first])[front]
        around = np.roll(values, -1) - np.roll(values, 1)
        apart = np.divide(around, extent, out=np.zeros(len(values)), where=extent > 0)
        apart[first] = apart[last] = np.inf
        distance[order] += apart
    return distance
