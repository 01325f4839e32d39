"""Which shape of its gang a job gets when others are preempted for it: few are looked at, and one that pays is taken.

Up to its equal share of the cluster a job climbs from its cheapest shape to faster ones for as long as a step pays, as
`best_fit` does when nobody has to give way. What others lose counts as GPUs that the gang would hold while it runs:
`cost = GPUs × weight + lost / run time`. So a job that runs for minutes takes what is easily had.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from trimtab_policy.placement.candidates import Candidate, candidates, could_ever_fit, has_room, weight
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.queueing import seconds_left
from trimtab_policy.scheduling.consolidation import ConsolidationMove
from trimtab_policy.scheduling.victims import Victim
from trimtab_policy.types import Job, NodeShare, Snapshot

MOST_SHAPES = 4
MARGINAL_RETURN = 0.5
"""As in `best_fit`: a step up must bring this part of the throughput per cost that there is without it."""


class Way(Struct, frozen=True):
    """How a waiting job gets one of its shapes: who moves, or who stops."""

    wish: Candidate
    shares: tuple[NodeShare, ...]
    cost: float
    """What others lose, in GPU-seconds times weight."""
    moves: tuple[ConsolidationMove, ...] = ()
    stops: tuple[Victim, ...] = ()

    @property
    def victims(self) -> tuple[Victim, ...]:
        """All that are touched."""
        return (*(move.victim for move in self.moves), *self.stops)


def possible(snapshot: Snapshot, capacity: Capacity, job: Job) -> list[Candidate]:
    """What a job could run on, were all the present nodes free."""
    return [wish for wish in candidates(snapshot, capacity, job) if could_ever_fit(capacity, job, wish)]


def shortlist(snapshot: Snapshot, most: Capacity, job: Job, known: Sequence[Candidate]) -> list[Candidate]:
    """A few shapes to look at, cheapest first: those that would fit in `most`, within an equal share of the cluster.

    The cheapest is among them in any case, then others at even distances.
    """
    able = sorted((wish for wish in known if has_room(most, job, wish)), key=_by_cost)
    if not able:
        return []
    there = sum(node.gpus * weight(snapshot.gpu_types[node.gpu_type]) for node in snapshot.nodes)
    share = there / max(1, len(snapshot.jobs))
    within = [wish for wish in able if wish.cost <= max(share, able[0].cost)]
    if len(within) <= MOST_SHAPES:
        return within
    step = (len(within) - 1) / (MOST_SHAPES - 1)
    return [within[round(number * step)] for number in range(MOST_SHAPES)]


def chosen(job: Job, ways: Sequence[Way]) -> Way:
    """The way to take: from the cheapest on, faster ones for as long as that pays."""
    ordered = sorted(ways, key=lambda way: (_cost(job, way), -way.wish.tokens_per_second))
    best = ordered[0]
    for way in ordered[1:]:
        gain = way.wish.tokens_per_second - best.wish.tokens_per_second
        extra = _cost(job, way) - _cost(job, best)
        if gain > 0 and gain * _cost(job, best) >= MARGINAL_RETURN * best.wish.tokens_per_second * extra:
            best = way
    return best


def _cost(job: Job, way: Way) -> float:
    """GPUs times weight, with what others lose spread over its run."""
    return way.wish.cost + way.cost / max(1.0, seconds_left(job, way.wish))


def _by_cost(wish: Candidate) -> tuple[float, float]:
    return wish.cost, -wish.tokens_per_second
