"""Which nodes are cleared for a gang of equal parts, given what it costs that each of those on them leaves.

A part fits on a node whose GPUs, CPU, memory and pod slots suffice; a job that leaves frees all that its pod holds. Of
the jobs on a node the cheapest set that frees enough is looked for among all sets, or of many jobs among the cheapest
for their GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations

import numpy as np

from trimtab_policy.placement.candidates import Candidate
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.node_columns import Amounts
from trimtab_policy.scheduling.accounts import needs
from trimtab_policy.types import Job

EXACT = 6
"""Jobs on a node up to which all sets of them are looked at."""


class Clearing:
    """The nodes that a gang of equal parts could take, and who would have to leave them. `holders` are running jobs."""

    def __init__(self, capacity: Capacity, job: Job, wish: Candidate, holders: Sequence[Job]) -> None:
        self._lacking, ready = _lacking(capacity, job, wish, holders)
        self._count = wish.option.nodes - ready
        self._gives: list[dict[int, Amounts]] = [dict(self._given(capacity, holder)) for holder in holders]
        self._here: dict[int, list[int]] = {}
        for number, gives in enumerate(self._gives):
            for row in gives:
                self._here.setdefault(row, []).append(number)

    @property
    def helps(self) -> list[int]:
        """On how many of the nodes that are needed each holder's leaving would help."""
        return [min(self._count, len(gives)) for gives in self._gives]

    def buy(self, prices: Sequence[float], gone: set[int]) -> set[int] | None:
        """Holders (by number) that have to leave, with the `gone` ones; None if that is not enough.

        Nodes are bought one after the other, each time the one whose holders cost least, those gone already nothing. A
        holder of infinite price stays.
        """
        offers = [offer for row in self._here if (offer := self._offer(row, gone, prices))]
        heapify(offers)
        current = {row: cost for cost, row, _ in offers}
        taken: set[int] = set()
        while offers and len(taken) < self._count:
            cost, row, numbers = heappop(offers)
            if row in taken or current[row] != cost:
                continue
            taken.add(row)
            fresh = [number for number in numbers if number not in gone]
            gone.update(fresh)
            for other in {each for number in fresh for each in self._gives[number]} - taken:
                if offer := self._offer(other, gone, prices):
                    current[other] = offer[0]
                    heappush(offers, offer)
        return gone if len(taken) >= self._count else None

    def _given(self, capacity: Capacity, holder: Job) -> Iterator[tuple[int, Amounts]]:
        """Rows on which the holder's leaving helps, and what it leaves there."""
        for share in holder.placement.shares if holder.placement else ():
            row = capacity.index.get(share.node)
            if row is not None and row in self._lacking:
                yield row, needs(holder, share.gpus)

    def _offer(
        self, row: int, gone: Collection[int], prices: Sequence[float]
    ) -> tuple[float, int, tuple[int, ...]] | None:
        """What it costs to clear a node, and who has to leave it for that; None where that cannot be done."""
        here = self._here.get(row, ())
        lacking = self._lacking[row]
        for number in here:
            if number in gone:
                lacking = _less(lacking, self._gives[number][row])
        if _nothing(lacking):
            return 0.0, row, ()
        others = [number for number in here if number not in gone and prices[number] < math.inf]
        found = self._all_sets(row, lacking, others, prices) if len(others) <= EXACT else None
        found = found or self._greedy(row, lacking, others, prices)
        return None if found is None else (sum(prices[number] for number in found), row, found)

    def _all_sets(
        self, row: int, lacking: Amounts, others: Sequence[int], prices: Sequence[float]
    ) -> tuple[int, ...] | None:
        if len(others) == 1:
            return tuple(others) if _nothing(_less(lacking, self._gives[others[0]][row])) else None
        sets = (each for size in range(1, len(others) + 1) for each in combinations(others, size))
        enough = (each for each in sets if _nothing(_less(lacking, *(self._gives[number][row] for number in each))))
        return min(enough, key=lambda each: sum(prices[number] for number in each), default=None)

    def _greedy(
        self, row: int, lacking: Amounts, others: Sequence[int], prices: Sequence[float]
    ) -> tuple[int, ...] | None:
        found: list[int] = []
        for number in sorted(others, key=lambda one: prices[one] / self._gives[one][row][0]):
            if _nothing(lacking):
                break
            lacking = _less(lacking, self._gives[number][row])
            found.append(number)
        return tuple(found) if _nothing(lacking) else None


def _lacking(capacity: Capacity, job: Job, wish: Candidate, holders: Sequence[Job]) -> tuple[dict[int, Amounts], int]:
    """What each node of the holders lacks for a part of the gang, by row, and how many nodes of all lack nothing."""
    width, need = wish.option.gpus_per_node, job.requirements
    rows = capacity.eligible(job, wish.gpu.name, wish.speed)
    rows = rows[capacity.total[rows] >= width]
    cpu, memory = need.cpu_milli(width), need.memory(width)
    lacks = np.stack(
        [
            width - capacity.free[rows],
            cpu - capacity.cpu[rows] if cpu else np.zeros_like(rows),
            memory - capacity.memory[rows] if memory else np.zeros_like(rows),
            1 - capacity.pods[rows],
        ]
    )
    short = (lacks > 0).any(axis=0)
    theirs = {
        capacity.index.get(share.node) for holder in holders if holder.placement for share in holder.placement.shares
    }
    columns = [column for column in np.flatnonzero(short).tolist() if int(rows[column]) in theirs]
    found: dict[int, Amounts] = {}
    for column in columns:
        row, (gpus, cpus, bytes_, pods) = int(rows[column]), lacks[:, column].tolist()
        found[row] = gpus + capacity.owed(row), cpus, bytes_, pods
    return found, int((~short).sum())


def _less(lacking: Amounts, *given: Amounts) -> Amounts:
    gpus, cpu, memory, pods = lacking
    for each in given:
        gpus, cpu, memory, pods = gpus - each[0], cpu - each[1], memory - each[2], pods - each[3]
    return gpus, cpu, memory, pods


def _nothing(lacking: Amounts) -> bool:
    return max(lacking) <= 0
