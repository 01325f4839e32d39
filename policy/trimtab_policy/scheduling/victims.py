"""Which running jobs give way to a gang, at the least cost: the whole gang must fit, and nobody is stopped for nothing.

Who has the lower tier (priority; what is borrowed before what is its queue's own) goes first, whatever that costs: the
highest tier that has to be touched is as low as can be. Up to there the sum of costs counts. A job that spans several
nodes is paid for once, so that this is a set cover, which nobody solves exactly in time: nodes are cleared one after
the other (`clearing`), each time the one that costs least with who has left already; once by full prices, once with the
price of a job divided by the nodes that it frees, once by the number of jobs. Whoever turns out not to be needed is let
off. The cheapest of the three is tried once more without each of its victims (tests hold it against all subsets).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import groupby

from msgspec import Struct

from trimtab_policy.placement.candidates import Candidate, has_room
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.scheduling.clearing import Clearing
from trimtab_policy.types import Job

RETRIES = 4
"""Victims of a choice that are forbidden in turn, to see whether it comes cheaper without."""
POOL = 16
"""Victims that are looked at together, at least."""

Tier = tuple[int, bool]
"""Priority, and whether the job holds anything that its own queue is guaranteed."""


class Victim(Struct, frozen=True):
    """A running job that may be asked to give way."""

    job: Job
    cost: float
    """What is lost if it does, in GPU-seconds times the peak FLOP/s of its GPUs (`candidates.weight`)."""
    tier: Tier = (0, True)


def price(job: Job, worth: float, idle: float = 0.0, share: float = 1.0) -> float:
    """What is lost if a running job gives way: GPU-seconds times `worth`, the weight of its GPU type.

    Its gang loses the work since its last checkpoint (it may not answer), the restart, and `idle` seconds without GPUs.
    Who had to start anew before counts for more, up to twice; so does a job of a queue that holds little: `share` is
    what its queue holds of the cluster, over what the queue that holds most does.
    """
    gpus = job.placement.gpus if job.placement else 0
    seconds = job.lost_seconds + job.restart_seconds + idle
    wear = 1.0 + job.restarts / (job.restarts + REPEATED)
    return gpus * worth * seconds * wear * (2.0 - share)


REPEATED = 4.0
"""Restarts with which a stop counts one and a half times."""


def choose(
    capacity: Capacity, job: Job, wish: Candidate, victims: Sequence[Victim], most: int
) -> tuple[Victim, ...] | None:
    """The cheapest of the victims without whom the gang fits, at most so many; None if all are not enough.

    Empty if it fits as it is. None of those chosen may stay: without any one of them the gang would not fit.
    """
    if has_room(capacity, job, wish):
        return ()
    case = _VictimSearch(capacity, job, wish, _pool(capacity, job, wish, victims, most), most)
    able = [found for price in (_full, _by_node, _each) if (found := case.cover(price))]
    if not able:
        return None
    best = min(able, key=_total)
    for victim in best[:RETRIES] if len(best) > 1 else ():
        again = case.cover(_full, forbidden=victim)
        if again and _total(again) < _total(best):
            best = again
    return best


def without(capacity: Capacity, victims: Iterable[Victim]) -> Capacity:
    """What is free once these have given way."""
    left = capacity.copy()
    for victim in victims:
        if held := victim.job.placement:
            left.give(victim.job, held.gpu_type, held.shares)
    return left


def _total(chosen: Collection[Victim]) -> tuple[float, int, list[str]]:
    return sum(each.cost for each in chosen), len(chosen), sorted(each.job.uid for each in chosen)


def _pool(capacity: Capacity, job: Job, wish: Candidate, victims: Sequence[Victim], most: int) -> list[Victim]:
    """Those to choose from: of the lowest tiers that are enough, the cheapest for what they free that are enough, and
    as many again, because the best set is not made of those alone. Empty if all are not enough, or `most` of any."""
    useful = {victim.job.uid: gpus for victim in victims if (gpus := _frees(job, wish, victim.job))}
    if capacity.gpus(job, wish.gpu.name) + sum(nlargest(most, useful.values())) < wish.option.gpus:
        return []
    ordered = sorted(
        (victim for victim in victims if victim.job.uid in useful),
        key=lambda one: (one.tier, one.cost / useful[one.job.uid], one.job.uid),
    )
    if not ordered or not has_room(without(capacity, ordered), job, wish):
        return []
    first = 0
    for _, of_tier in groupby(ordered, key=lambda one: one.tier):
        end = first + len(list(of_tier))
        for enough in _doubling(first, end):
            if enough == len(ordered) or has_room(without(capacity, ordered[:enough]), job, wish):
                return ordered[: min(enough + max(POOL, enough - first), end)]
        first = end
    return ordered


def _doubling(first: int, end: int) -> Iterator[int]:
    """Ends of longer and longer parts from `first` on, up to `end`."""
    size = POOL
    while first + size < end:
        yield first + size
        size *= 2
    yield end


def _frees(job: Job, wish: Candidate, other: Job) -> int:
    """GPUs of a running job that are of use to the gang; of the same queue, those that count against its quota, too."""
    held, option = other.placement, wish.option
    if held is None:
        return 0
    if held.gpu_type != wish.gpu.name:
        return held.gpus if other.queue == job.queue else 0
    width = option.gpus if wish.spread else option.gpus_per_node
    return min(option.gpus, sum(min(width, share.gpus) for share in held.shares))


Price = Callable[[Victim, int], float]
"""What a victim counts for while nodes are bought, given on how many nodes it would help."""


def _full(victim: Victim, nodes: int) -> float:
    return victim.cost


def _by_node(victim: Victim, nodes: int) -> float:
    return victim.cost / max(1, nodes)


def _each(victim: Victim, nodes: int) -> float:
    return 1.0


class _VictimSearch:
    """One gang, and those who may give way to it."""

    def __init__(self, capacity: Capacity, job: Job, wish: Candidate, allowed: Sequence[Victim], most: int) -> None:
        self._capacity, self._job, self._wish = capacity, job, wish
        self._allowed, self._most = allowed, most
        self._clearing = None if wish.spread else Clearing(capacity, job, wish, [victim.job for victim in allowed])

    def cover(self, price: Price, forbidden: Victim | None = None) -> tuple[Victim, ...] | None:
        """At most so many victims without whom the gang fits, none of them to spare; None if none are found."""
        first = self._for_quota(forbidden)
        if first is None:
            return None
        bought = self._cleared(price, first, forbidden) if self._clearing else self._gathered(forbidden)
        if bought is None or len(bought) > 2 * self._most:
            return None
        return self._pruned(bought) or None

    def _for_quota(self, forbidden: Victim | None) -> list[Victim] | None:
        """Jobs of the gang's own queue that make it fit into the quota, the cheapest for their GPUs first."""
        queue, gpus, name = self._job.queue, self._wish.option.gpus, self._wish.gpu.name
        if self._capacity.within_quota(queue, name, gpus):
            return []
        chosen: list[Victim] = []
        free = self._capacity
        mine = (one for one in self._allowed if one.job.queue == queue and one is not forbidden)
        for victim in sorted(mine, key=_per_gpu):
            after = without(free, [victim])
            if after.quota_left(queue, name) != free.quota_left(queue, name):
                chosen.append(victim)
                free = after
            if free.within_quota(queue, name, gpus):
                return chosen
        return None

    def _cleared(self, price: Price, first: Sequence[Victim], forbidden: Victim | None) -> list[Victim] | None:
        """Those who have to leave the nodes that are cheapest to clear, for a gang of equal parts."""
        if self._clearing is None:
            return None
        prices = [
            math.inf if victim is forbidden else price(victim, nodes)
            for victim, nodes in zip(self._allowed, self._clearing.helps, strict=True)
        ]
        gone = {number for number, victim in enumerate(self._allowed) if any(victim is one for one in first)}
        found = self._clearing.buy(prices, gone)
        return None if found is None else [self._allowed[number] for number in sorted(found)]

    def _gathered(self, forbidden: Victim | None) -> list[Victim] | None:
        """For a gang of unequal parts any GPU will do: the cheapest ones first, until it fits."""
        chosen: list[Victim] = []
        free = self._capacity.copy()
        for victim in sorted(self._allowed, key=_per_gpu):
            held = victim.job.placement
            if held and held.gpu_type == self._wish.gpu.name and victim is not forbidden:
                chosen.append(victim)
                free.give(victim.job, held.gpu_type, held.shares)
                if has_room(free, self._job, self._wish):
                    return chosen
        return None

    def _pruned(self, bought: Sequence[Victim]) -> tuple[Victim, ...] | None:
        """Let off whoever is not needed, the dearest first. None if all are not enough, or too many are needed."""
        ordered = sorted(bought, key=lambda one: (-one.cost, one.job.uid))
        free = without(self._capacity, ordered)
        if not has_room(free, self._job, self._wish):
            return None
        needed: list[Victim] = []
        for victim in ordered:
            if held := victim.job.placement:
                there = [share for share in held.shares if share.node in free.index]
                free.take(victim.job, held.gpu_type, there)
                if not has_room(free, self._job, self._wish):
                    free.give(victim.job, held.gpu_type, there)
                    needed.append(victim)
                    if len(needed) > self._most:
                        return None
        return tuple(needed)


def _per_gpu(victim: Victim) -> tuple[float, str]:
    held = victim.job.placement
    return victim.cost / held.gpus if held else math.inf, victim.job.uid
