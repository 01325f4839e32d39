"""Who gets what, by prices: an assignment of thousands of jobs in milliseconds, with proof of how good it is.

Every job takes one of its options or none; each option uses GPUs of some limited pools (a GPU type, a queue's quota).
A price for each pool turns the problem into one that every job solves by itself: its best option after prices. Whatever
the prices, what the jobs gain then and what the pools earn are together at least as much as any assignment is worth
(Lagrangian duality; Fisher, "The Lagrangian relaxation method for solving integer programming problems", Management
Science 1981). So the least such bound proves how far an assignment is from the best at most.

Prices are moved by subgradients with Polyak's step. An assignment is made from them by serving the jobs that gain most
first, and by giving what is left to whoever gains most from it. Where the proof is not good enough, options that cannot
be part of anything better are left out, and what remains is solved exactly if it has become small (`knapsack`).
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from trimtab_policy.solvers import knapsack
from trimtab_policy.solvers.knapsack import Assignment, FloatArray, IntArray, Solution, total

ROUNDS = 120
"""Price changes at most."""
TRIED = 12
"""After so many of them an assignment is made."""
CLOSE = 1e-4
"""Relative gap at which the search ends."""
PASSES = 12
"""Times that what is left is offered to all, at most."""
MAX_CELLS = 4_000_000
"""Table entries times options that an exact solution may cost: some 10 ms."""


class Bids(Struct, frozen=True):
    """The problem, a row for each job; every job has at least one option, and shorter rows are filled up."""

    capacity: FloatArray
    """GPUs of each pool, (pools,)."""
    value: FloatArray
    """What an option is worth more than none, (jobs, options); what is not above 0 is never taken."""
    gpus: FloatArray
    """(jobs, options)"""
    pools: IntArray
    """Pools that an option uses its GPUs of, (jobs, options, some); filled up with `len(capacity)`, which is
    unlimited. The first is that of its GPU type."""


class Deal(Struct, frozen=True):
    """An assignment, and what it tells about the market."""

    chosen: IntArray
    """Option of each job, or -1 for none, (jobs,)."""
    value: float
    bound: float
    """No assignment is worth more."""
    prices: FloatArray
    """Of one GPU of each pool, (pools,)."""

    @property
    def gap(self) -> float:
        """Proven relative distance of `value` from the most that is possible."""
        return max(0.0, (self.bound - self.value) / self.bound) if self.bound > 0 else 0.0


def deal(bids: Bids) -> Deal:
    """The best assignment that can be found, and the proof."""
    jobs = len(bids.value)
    if not jobs:
        return Deal(np.zeros(0, dtype=np.int64), 0.0, 0.0, np.zeros(len(bids.capacity)))
    search = _Search(bids)
    search.descend()
    if search.gap() > CLOSE:
        search.solve_rest()
    return Deal(search.chosen, search.value, max(search.bound, search.value), search.prices[:-1])


def cheap(problem: Assignment) -> Solution:
    """The same of costs: what an option is worth more than none is what it saves over idling."""
    sizes = np.diff(problem.first)
    if not len(problem.cost):
        idle = np.full(problem.jobs, -1, dtype=np.int64)
        return Solution(idle, total(problem, idle), 0.0)
    real = np.arange(sizes.max()) < sizes[:, None]
    value, gpus = np.zeros(real.shape), np.ones(real.shape)
    pools = np.full((*real.shape, 1), len(problem.capacity), dtype=np.int64)
    value[real] = np.repeat(problem.idle, sizes) - problem.cost
    gpus[real], pools[real, 0] = problem.gpus, problem.kind
    found = deal(Bids(problem.capacity.astype(np.float64), value, gpus, pools))
    chosen = np.where(found.chosen >= 0, problem.first[:-1] + found.chosen, -1)
    cost = total(problem, chosen)
    least = float(problem.idle.sum()) - found.bound
    return Solution(chosen, cost, max(0.0, (cost - least) / abs(cost)) if cost else 0.0)


class _Search:
    """The best prices and the best assignment so far."""

    def __init__(self, bids: Bids) -> None:
        self._bids = bids
        pools = len(bids.capacity)
        self._capacity = np.append(bids.capacity, np.inf)
        self._need = np.zeros((*bids.gpus.shape, pools + 1))
        for k in range(bids.pools.shape[2]):
            np.put_along_axis(self._need, bids.pools[:, :, k : k + 1], bids.gpus[:, :, None], axis=2)
        self._need[:, :, -1] = 0.0
        within = (self._need <= self._capacity).all(axis=2)
        self._value = np.where(within & (bids.value > 0), bids.value, -np.inf)
        self._rows = np.arange(len(bids.value))
        self._fewest = np.where(self._value > 0, bids.gpus, np.inf).min(axis=1)
        self.prices = np.zeros(pools + 1)
        self.bound, self.value = np.inf, -1.0
        self.chosen = np.full(len(bids.value), -1, dtype=np.int64)

    def gap(self) -> float:
        return (self.bound - self.value) / self.bound if self.bound > 0 else 0.0

    def descend(self) -> None:
        """Move the prices until the bound is close to the value, or the rounds are over."""
        capacity, prices = self._capacity[:-1], self.prices.copy()
        eager, stale = 1.0, 0
        for number in range(ROUNDS):
            net, best = self._answers(prices)
            gains = np.maximum(net[self._rows, best], 0.0)
            taking = gains > 0
            bound = float(gains.sum() + prices[:-1] @ capacity)
            if bound < self.bound - 1e-12:
                stale = stale if bound > self.bound * (1 - 1e-5) else 0
                self.bound, self.prices = bound, prices.copy()
            stale += 1
            if number % TRIED == 0 or stale == TRIED:
                self._keep(self._made(prices, best, gains))
                if self.gap() <= CLOSE:
                    break
            if stale > TRIED:
                prices, eager, stale = self.prices.copy(), eager / 2, 0
                if eager < 1e-3:
                    break
                continue
            used = self._need[self._rows[taking], best[taking], :-1].sum(axis=0)
            slope = capacity - used
            slope = np.where((prices[:-1] <= 0) & (slope > 0), 0.0, slope)
            steep = float(slope @ slope)
            if steep == 0:
                self._keep(self._made(prices, best, gains))
                break
            step = eager * max(bound - max(self.value, 0.0), 1e-9 * bound) / steep
            prices = np.maximum(prices - step * np.append(slope, 0.0), 0.0)
        net, best = self._answers(self.prices)
        self._keep(self._made(self.prices, best, np.maximum(net[self._rows, best], 0.0)))

    def _answers(self, prices: FloatArray) -> tuple[FloatArray, IntArray]:
        """What each option is worth after prices, and the best of each job."""
        net: FloatArray = self._value - self._bids.gpus * prices[self._bids.pools].sum(axis=2)
        return net, net.argmax(axis=1)

    def _keep(self, chosen: IntArray) -> None:
        value = self._worth(chosen)
        if value > self.value:
            self.value, self.chosen = value, chosen

    def _worth(self, chosen: IntArray) -> float:
        taken = chosen >= 0
        return float(self._value[self._rows[taken], chosen[taken]].sum())

    def _made(self, prices: FloatArray, best: IntArray, gains: FloatArray) -> IntArray:
        """An assignment by these prices: who gains most is served first, what is left goes to whoever gains by it."""
        chosen = np.full(len(gains), -1, dtype=np.int64)
        left = self._capacity.copy()
        order = np.argsort(-gains, kind="stable")
        for job in order[: int((gains > 0).sum())].tolist():
            option = int(best[job])
            if not self._fits(left, job, option):
                option = self._next_best(left, prices, job)
            if option >= 0:
                chosen[job] = option
                left[self._bids.pools[job, option]] -= self._bids.gpus[job, option]
        return self._upgraded(chosen, left)

    def _fits(self, left: FloatArray, job: int, option: int) -> bool:
        gpus = self._bids.gpus[job, option]
        return all(left[pool] >= gpus for pool in self._bids.pools[job, option].tolist())

    def _next_best(self, left: FloatArray, prices: FloatArray, job: int) -> int:
        """The option of a job that is worth most after prices, of those that there are GPUs for; -1 for none."""
        if left[:-1].max() < self._fewest[job]:
            return -1
        pools, gpus = self._bids.pools[job], self._bids.gpus[job]
        able = (left[pools] >= gpus[:, None]).all(axis=1)
        net = np.where(able, self._value[job] - gpus * prices[pools].sum(axis=1), -np.inf)
        option = int(net.argmax())
        return option if net[option] > -np.inf else -1

    def _upgraded(self, chosen: IntArray, left: FloatArray) -> IntArray:
        """Whoever gains most by what is left takes it, one after the other, until nobody gains any more."""
        pools, gpus = self._bids.pools, self._bids.gpus
        held = np.zeros((len(chosen), len(left)))
        taken = np.flatnonzero(chosen >= 0)
        for place in range(pools.shape[2]):
            held[taken, pools[taken, chosen[taken], place]] = gpus[taken, chosen[taken]]
        has = np.where(chosen >= 0, self._value[self._rows, chosen], 0.0)
        for _ in range(PASSES):
            mine = np.take_along_axis(held, pools.reshape(len(chosen), -1), axis=1).reshape(pools.shape)
            able = (left[pools] + mine >= gpus[:, :, None]).all(axis=2)
            gain = np.where(able, self._value - has[:, None], -np.inf)
            option = gain.argmax(axis=1)
            most = gain[self._rows, option]
            gaining = np.flatnonzero(most > 1e-12)
            if not len(gaining):
                break
            for job in gaining[np.argsort(-most[gaining], kind="stable")].tolist():
                new, need = int(option[job]), gpus[job, option[job]]
                after = left + held[job]
                if all(after[pool] >= need for pool in pools[job, new].tolist()):
                    held[job] = 0.0
                    held[job, pools[job, new]] = need
                    left = after - held[job]
                    chosen[job], has[job] = new, self._value[job, new]
        return chosen

    def solve_rest(self) -> None:
        """Leave out what cannot be part of anything better, and solve what remains exactly, if it is small.

        An option that its job would lose more by, at these prices, than bound and value are apart is in no better
        assignment. Only for pools that no option shares: a table of quotas would be too large anyway.
        """
        bids = self._bids
        if (bids.pools[:, :, 1:] < len(bids.capacity)).any():
            return
        net, best = self._answers(self.prices)
        gains = np.maximum(net[self._rows, best], 0.0)
        slack = self.bound - self.value
        open_ = (gains[:, None] - net <= slack) & (self._value > 0)
        idle = gains <= slack
        counts = open_.sum(axis=1)
        sure = (counts == 1) & ~idle
        chosen = np.where(sure, open_.argmax(axis=1), -1)
        rest = np.flatnonzero((counts > 0) & ~sure)
        left = bids.capacity - self._need[self._rows[sure], chosen[sure], :-1].sum(axis=0)
        if not len(rest) or (left < 0).any():
            return
        at, option = np.nonzero(open_[rest])
        job = rest[at]
        forbidden = 2.0 * float(self._value[np.isfinite(self._value)].sum())
        problem = Assignment(
            capacity=left.astype(np.int64),
            first=np.concatenate([[0], np.cumsum(counts[rest])]),
            kind=bids.pools[job, option, 0],
            gpus=bids.gpus[job, option].astype(np.int64),
            cost=-self._value[job, option],
            idle=np.where(idle[rest], 0.0, forbidden),
        )
        if not knapsack.fits(problem, MAX_CELLS):
            return
        found = knapsack.solve(problem)
        taken = found.chosen >= 0
        chosen[rest[taken]] = option[found.chosen[taken]]
        self._keep(chosen)
        self.bound = self.value
