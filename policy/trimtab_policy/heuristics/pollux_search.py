"""Pollux's genetic search for allocations: which job gets how many GPUs of which node.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021, section 4.2, with
the operators of its implementation (AdaptDL, `pollux.py`) under NSGA-II (Deb et al. 2002). An allocation is a matrix
(jobs, nodes) of GPUs; a population of them is evolved by crossover over jobs, mutation, and repair of what breaks a
limit. Two objectives are minimised: the negative power mean of the jobs' speed-ups, and the negative utility of the
nodes in use; the survivors are the best fronts, and of the last front those that are far apart.

All steps work on the whole population at once.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.random import Generator
from numpy.typing import NDArray

from trimtab_policy.knapsack import FloatArray, IntArray

States = NDArray[np.int16]
"""Allocations, (population, jobs, nodes)."""

POPULATION = 100
GENERATIONS = 100
POWER = -1.0
"""Exponent of the mean over jobs: the harmonic one."""
RATE = 0.1
"""Of each kind of mutation."""
FLOOR = 1e-3
"""Added to speed-ups, so that a job without GPUs does not outweigh all others."""


class Cluster(Struct, frozen=True):
    """What is to be shared, and what the jobs make of it."""

    gpus: IntArray
    """GPUs of each node, (nodes,)."""
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


def search(cluster: Cluster, start: States, chance: Generator, generations: int = GENERATIONS) -> Found:
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


def evaluate(cluster: Cluster, states: States) -> FloatArray:
    """Both objectives of each state, (states, 2)."""
    gpus, nodes = states.sum(axis=2), np.count_nonzero(states, axis=2)
    speedup = cluster.speedup[np.arange(states.shape[1]), nodes, gpus]
    used = np.any(states, axis=1) @ cluster.gpus
    utility = np.divide(speedup.sum(axis=1), used, out=np.zeros(len(states)), where=used > 0)
    moved = np.any(states != cluster.present, axis=2)
    scaled = speedup * np.where(moved, cluster.factor, 1.0) * (len(cluster.gpus) / cluster.gpus.sum())
    mean = np.mean((scaled + FLOOR) ** POWER, axis=1) ** (1 / POWER)
    return np.column_stack([-mean, -utility])


def _children(cluster: Cluster, states: States, ranks: IntArray, spread: FloatArray, chance: Generator) -> States:
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
    """Pairs of parents exchange the jobs up to a random one."""
    half = len(parents) // 2
    mothers, fathers = parents[:half], parents[half:]
    exchanged = np.arange(parents.shape[1]) < chance.integers(parents.shape[1], size=(half, 1))
    mask = exchanged[:, :, None]
    return np.concatenate([np.where(mask, fathers, mothers), np.where(mask, mothers, fathers)])


def _mutated(cluster: Cluster, states: States, chance: Generator) -> States:
    """Some jobs get back what they have, some lose GPUs, and free GPUs are taken."""
    back = chance.random(states.shape[:2]) < RATE
    states = np.where(back[:, :, None], cluster.present, states)
    losing = chance.random(states.shape[:2]) < RATE
    states[(chance.random(states.shape) < RATE) & losing[:, :, None]] = 0
    free = (cluster.gpus - states.sum(axis=1) >= 1)[:, None, :]
    anywhere = free / states.shape[1]
    more = (states > 0) & free
    here = more / np.maximum(more.sum(axis=1, keepdims=True), 1)
    growing = chance.random(states.shape) < anywhere + here - anywhere * here
    upto = np.broadcast_to(cluster.gpus, states.shape)[growing]
    states[growing] = chance.integers(states[growing], upto + 1)
    return states


def _repaired(cluster: Cluster, states: States, chance: Generator) -> States:
    """Keep the limits: one job over several nodes per node, GPUs per job, GPUs per node; earlier jobs go first."""
    spread = (np.count_nonzero(states, axis=2) > 1)[:, :, None] & (states > 0)
    states[spread & (spread.cumsum(axis=1) > 1)] = 0
    greedy = np.nonzero(states.sum(axis=2) > cluster.most)
    if len(greedy[0]):
        states[greedy] = _cut(states[greedy], cluster.most[greedy[1]], chance)
    taken = np.minimum(states.cumsum(axis=1), cluster.gpus)
    kept: States = np.diff(taken, axis=1, prepend=0).astype(np.int16)
    return kept


def _cut(rows: States, most: IntArray, chance: Generator) -> States:
    """GPUs of single jobs (n, nodes) beyond what they may have are taken from random nodes."""
    order = np.argsort(chance.random(rows.shape), axis=1)
    kept = np.minimum(np.take_along_axis(rows, order, axis=1).cumsum(axis=1), most[:, None])
    cut = np.empty_like(rows)
    np.put_along_axis(cut, order, np.diff(kept, axis=1, prepend=0).astype(rows.dtype), axis=1)
    return cut


def _ranked(costs: FloatArray) -> tuple[IntArray, FloatArray]:
    """Front of each state, from 0, until `POPULATION` of them have one; and how far apart it is from its neighbours."""
    ranks = np.full(len(costs), len(costs))
    spread = np.zeros(len(costs))
    rest, rank = np.lexsort((costs[:, 1], costs[:, 0])), 0
    placed = 0
    while len(rest) and placed < POPULATION:
        # in order of the first objective a state is dominated unless its second one is the smallest so far
        second = costs[rest, 1]
        smallest = np.minimum.accumulate(second)
        before = np.concatenate([[np.inf], smallest[:-1]])
        same = np.concatenate([[False], np.all(costs[rest[1:]] == costs[rest[:-1]], axis=1)])
        front = second < before
        front = _with_equals(front, same)
        members = rest[front]
        ranks[members], spread[members] = rank, _crowding(costs[members])
        placed, rank, rest = placed + len(members), rank + 1, rest[~front]
    return ranks, spread


def _with_equals(front: NDArray[np.bool_], same: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """States equal to their predecessor, which do not dominate each other, belong where it belongs."""
    leader = np.maximum.accumulate(np.where(same, -1, np.arange(len(front))))
    members: NDArray[np.bool_] = front[leader]
    return members


def _crowding(costs: FloatArray) -> FloatArray:
    """Distance between the neighbours of each state along both objectives, (n,); infinite at the ends."""
    distance = np.zeros(len(costs))
    for objective in costs.T:
        order = np.argsort(objective, kind="stable")
        values = objective[order]
        extent = values[-1] - values[0] or 1.0
        distance[order[[0, -1]]] = np.inf
        distance[order[1:-1]] += (values[2:] - values[:-2]) / extent
    return distance
