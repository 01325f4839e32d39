"""Sia: goodput-optimised GPU types and counts for all jobs at once, by an integer program every round.

Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023, section 3.4,
with the constants of its artifact. The goodput G of every option of a job is divided by that of its worst option, so
that jobs compare. Every option but the one that the job holds is worth r times less, r = (age - restarts·S) /
(age + S), the part of its life that was not and would not be lost to restarts of S seconds. Then

    minimise  sum of (r·G)^p over what is chosen + lambda for every job without GPUs,   p = -0.5, lambda = 1.1

over one option at most per job and the GPUs of each type. Jobs that are being restarted stay where they are.

The powers are rounded to two digits, as in the artifact, so many assignments cost the same, and which of them is taken
moves the average JCT by several per cent. Here that is explicit: what a job holds comes first, then the fewest GPUs,
then the order of the GPU types; or, with `tie_seed`, chance.

The program is solved exactly (`knapsack`) where it is small, else by prices or by HiGHS, whichever is cheaper
(`milp.cheapest`), to a gap that `Sia.largest_gap` remembers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab_policy.placement.assign import realise
from trimtab_policy.placement.options import OptionMenu, assignment, holding, left, market, taken
from trimtab_policy.policy import Kind
from trimtab_policy.solvers import milp
from trimtab_policy.solvers.knapsack import FloatArray
from trimtab_policy.types import Decision, Snapshot

POWER = -0.5
IDLE = 1.1
"""Cost of a job without GPUs, lambda_n. Above 1, the cost of a job at its worst option."""
LARGEST_COST = 3000.0
DIGITS = 2
"""To which costs are rounded."""
MILP_GAP = 1e-4


class Sia:
    """The policy. Without `tie_seed` it is deterministic; with it, ties are broken at random, reproducibly."""

    name = "sia"
    kind = Kind.OPTIMISER
    source = "Jayaram Subramanya et al., SOSP 2023"

    def __init__(self, tie_seed: int | None = None) -> None:
        self.tie_seed = tie_seed
        self.largest_gap = 0.0
        """Largest proven relative distance from the optimum so far; 0 for as long as all solutions were optimal."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Give every job the option of the cheapest assignment; jobs without one wait, or are stopped."""
        offered = market(snapshot)
        pinned = {menu.job.uid: holding(snapshot, menu.job) for menu in offered.menus if _restarting(menu)}
        free = [menu for menu in offered.menus if menu.job.uid not in pinned]
        cost = [costs(menu, snapshot.time) for menu in free]
        ties, weights = self._ties(snapshot.time, free), self.weights(free)
        told = [w * (c + t) for c, t, w in zip(cost, ties, weights, strict=True)]
        problem = assignment(left(offered, pinned), free, told, IDLE * weights)
        solution = milp.cheapest(problem, MILP_GAP)
        self.largest_gap = max(self.largest_gap, solution.gap)
        return realise(self.name, snapshot, pinned | taken(free, solution))

    def weights(self, menus: Sequence[OptionMenu]) -> FloatArray:
        """How much each job's costs count, (jobs,): all alike, as published."""
        return np.ones(len(menus))

    def _ties(self, now: float, free: list[OptionMenu]) -> list[FloatArray]:
        """What decides between equal costs: too little in all to outweigh the last digit of one cost."""
        most = 0.5 * 10.0**-DIGITS / (len(free) + 1)
        if self.tie_seed is None:
            return [most * _preference(menu) for menu in free]
        chance = np.random.default_rng([self.tie_seed, int(now)])
        return [most * chance.random(len(menu.options)) for menu in free]


def costs(menu: OptionMenu, now: float) -> FloatArray:
    """Cost of every option of a job, (options,): its normalised goodput to the power p."""
    if not menu.options:
        return np.zeros(0)
    smallest = menu.gpus.min()  # what the worst option is worth: 1, but for jobs that cannot run on one GPU
    worth = menu.rate * (smallest / menu.rate.min())
    if menu.job.placement:
        moved = np.arange(len(worth)) != menu.current
        worth[moved] *= max(restart_factor(menu, now), 1e-9)
    cost: FloatArray = np.minimum(np.round(worth**POWER, DIGITS), LARGEST_COST)
    return cost


def restart_factor(menu: OptionMenu, now: float) -> float:
    """r: what is left of a goodput if the job restarts once more, given how often it did so far."""
    age, delay = now - menu.job.created, menu.job.restart_seconds
    if age < delay:
        return 1.0
    return max(age - menu.job.restarts * delay, 0.0) / (age + delay) if age + delay > 0 else 1.0


def _restarting(menu: OptionMenu) -> bool:
    return menu.job.placement is not None and menu.job.resuming > 0


def _preference(menu: OptionMenu) -> FloatArray:
    """Rank of each option between 0 and 1: the current one, then by number of GPUs, then by GPU type."""
    order = np.lexsort((menu.kind, menu.gpus, np.arange(len(menu.gpus)) != menu.current))
    ranks = np.empty(len(order))
    ranks[order] = np.arange(1, len(order) + 1) / len(order)
    return ranks
