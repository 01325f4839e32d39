"""Best fit: an equal share of what is free for every waiting job, spent where the marginal throughput is best.

Jobs are taken by priority and age. For each one all feasible plans (GPU type, count, degrees, micro-batch, ZeRO stage,
recomputation) with room for them are ranked by cost, that is GPUs weighted by their peak FLOP/s. The job's budget is
its equal share of the free GPUs; from its cheapest plan it climbs to faster ones within the budget for as long as a
step pays: the marginal throughput per cost must reach `MARGINAL_RETURN` of the throughput per cost that the job has
already. Where the gang goes is best fit by topology (`placement.capacity`). Smaller jobs may pass a job that does
not fit. Nothing is random, so the same snapshot always gives the same decision.
"""

from __future__ import annotations

from itertools import takewhile

from msgspec import Struct

from trimtab_policy.placement.candidates import (
    Candidate,
    Fitting,
    allowed_types,
    candidates,
    could_ever_fit,
    has_room,
    on_nodes,
    placement,
    weight,
    with_room,
)
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.pending_reasons import why_pending
from trimtab_policy.placement.releases import told_releases
from trimtab_policy.placement.wording import clock
from trimtab_policy.policy import Kind
from trimtab_policy.types import Alternative, Decision, Job, NodeShare, Pending, Placement, Snapshot

MARGINAL_RETURN = 0.5
"""A step up must bring at least this part of the throughput per cost that the plan below it has."""
SAME = 1.05
"""A ratio of speeds below this is told as none."""
MAX_ALTERNATIVES = 5


class BestFit:
    """Greedy choice by marginal throughput under equal shares."""

    name = "best_fit"
    kind = Kind.RULE
    source = "Trimtab"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Place every waiting job that fits; explain the others."""
        capacity = Capacity(snapshot)
        placements: list[Placement] = []
        pending: list[Pending] = []
        waiting = snapshot.waiting()
        known = {job.uid: _by_cost(candidates(snapshot, capacity, job)) for job in waiting}
        sharers = sum(1 for options in known.values() if options)  # a job without any plan needs no share
        for job in waiting:
            chosen = self._place(snapshot, capacity, job, known[job.uid], sharers)
            sharers -= bool(known[job.uid])
            if chosen:
                capacity.take(job, chosen.gpu_type, chosen.shares)
                placements.append(chosen)
            else:
                pending.append(why_pending(snapshot, capacity, job))
        return Decision(self.name, tuple(placements), tuple(pending))

    def _place(
        self, snapshot: Snapshot, capacity: Capacity, job: Job, known: list[Candidate], sharers: int
    ) -> Placement | None:
        if not known:
            return None
        budget = _free_weight(snapshot, capacity, job) / sharers
        fit = _best(capacity, job, known, budget)
        if not fit:
            return None
        chosen, shares = fit
        winner = on_nodes(capacity, job, chosen, shares)
        case = _Choice(snapshot, capacity, job, winner, budget)
        losers = case.losers(known)
        alternatives = tuple(case.alternative(loser) for loser in losers)
        full = next(filter(None, map(case.full, losers)), "")
        return placement(
            capacity, job, winner, shares, _reason(capacity, winner, shares, alternatives, full), alternatives
        )


def _by_cost(known: list[Candidate]) -> list[Candidate]:
    return sorted(known, key=lambda candidate: (candidate.cost, -candidate.tokens_per_second))


def _free_weight(snapshot: Snapshot, capacity: Capacity, job: Job) -> float:
    return sum(capacity.gpus(job, gpu.name) * weight(gpu) for gpu in allowed_types(snapshot, job.requirements))


def _best(capacity: Capacity, job: Job, known: list[Candidate], budget: float) -> Fitting | None:
    """The candidate to take, with its nodes. `known` is ordered by cost.

    From the cheapest that has room it follows the steps up within the budget for as long as their marginal throughput
    pays. When nothing within the budget has room the cheapest that has is taken: no job is shut out.
    """
    best: Candidate | None = None
    for candidate in known:
        if best and candidate.cost > budget:
            break
        if (best is None or _pays(best, candidate)) and has_room(capacity, job, candidate):
            best = candidate
    return next(with_room(capacity, job, [best]), None) if best else None


def _pays(best: Candidate, candidate: Candidate) -> bool:
    gain = candidate.tokens_per_second - best.tokens_per_second
    extra = candidate.cost - best.cost
    return gain > 0 and gain * best.cost >= MARGINAL_RETURN * best.tokens_per_second * extra


class _Choice(Struct, frozen=True):
    """A choice that was made, and what it was made from: enough to say why the others lost."""

    snapshot: Snapshot
    capacity: Capacity
    job: Job
    winner: Candidate
    budget: float

    def losers(self, known: list[Candidate]) -> list[Candidate]:
        """The fastest plan of each GPU type that was not taken, fastest first."""
        fastest: dict[str, Candidate] = {}
        for candidate in sorted(known, key=lambda c: (-c.tokens_per_second, c.cost)):
            if candidate.gpu.name not in fastest and self._is_alternative(candidate):
                fastest[candidate.gpu.name] = candidate
        return list(fastest.values())[:MAX_ALTERNATIVES]

    def alternative(self, loser: Candidate) -> Alternative:
        """The loser as users see it."""
        option = loser.option
        return Alternative(loser.gpu.name, option.gpus, option.plan, option.prediction, self._why_not(loser))

    def full(self, loser: Candidate) -> str:
        """Why there is no room for a loser that would be faster; empty where there is, or it would not."""
        faster = loser.tokens_per_second > self.winner.tokens_per_second
        return self._no_room(loser) if faster and not has_room(self.capacity, self.job, loser) else ""

    def _is_alternative(self, candidate: Candidate) -> bool:
        """Nobody asks about the same GPUs on more nodes, or about nodes that the cluster does not have."""
        option, winner = candidate.option, self.winner
        same = (candidate.gpu.name, option.gpus) == (winner.gpu.name, winner.option.gpus)
        return not same and could_ever_fit(self.capacity, self.job, candidate)

    def _why_not(self, loser: Candidate) -> str:
        if not has_room(self.capacity, self.job, loser):
            return self._no_room(loser)
        ratio = loser.tokens_per_second / self.winner.tokens_per_second
        if ratio <= 1:
            return f"{ratio:.2f}× the speed"
        if loser.cost > self.budget:
            return f"{ratio:.2f}× the speed, but more than an equal share of the free GPUs"
        cost = loser.cost / self.winner.cost
        return f"{ratio:.2f}× the speed for {cost:.1f}× the GPU cost, which does not pay"

    def _no_room(self, loser: Candidate) -> str:
        name, wanted = loser.gpu.name, loser.option.gpus
        quota = self.capacity.quota_left(self.job.queue, name)
        if quota is not None and quota < wanted:
            return f"{name} beyond the quota of queue {self.job.queue}"
        for speed in self.capacity.lower_speeds(name):
            if has_room(self.capacity, self.job, loser.at(speed)):
                return f"{name} has room for {wanted} only with slow GPUs, at {speed:.2f} of the rate"
        free, now = self.capacity.gpus(self.job, name), self.snapshot.time
        enough = told_releases(self.snapshot).enough(name, wanted, free, now)
        state = f"without room for {wanted}" if free else "full"
        return f"{name} {state}" + (f" until {clock(enough[0])}" if enough and enough[0] > now else "")


def _reason(
    capacity: Capacity,
    winner: Candidate,
    shares: tuple[NodeShare, ...],
    alternatives: tuple[Alternative, ...],
    full: str,
) -> str:
    """`8×A100 on rack r2, tp=8 dp=1: 41.2k tokens/s, 1.7× the next best; H100 full until ~14:32 UTC`."""
    text = f"{winner.describe()} {_where(capacity, shares)}, {winner.option.plan.describe()}: "
    text += f"{_rate(winner.tokens_per_second)} tokens/s"
    others = [a.prediction.tokens_per_second for a in alternatives if a.gpu_type != winner.gpu.name]
    slower = [rate for rate in others if rate <= winner.tokens_per_second]
    if slower:
        text += beside(winner.tokens_per_second / max(slower))
    return f"{text}; {full}" if full else text


def beside(ratio: float) -> str:
    """How much faster than the next best GPU type it is. A ratio that would be told as 1.0 is none."""
    return f", {ratio:.1f}× the next best type" if ratio >= SAME else ", about as fast as the next best type"


def _where(capacity: Capacity, shares: tuple[NodeShare, ...]) -> str:
    """The node, the nearest topology domain that holds the whole gang, or how many nodes it is spread over."""
    if len(shares) == 1:
        return f"on {shares[0].node}"
    topologies = [capacity.nodes[capacity.index[share.node]].topology for share in shares]
    shared = takewhile(lambda values: len(set(values)) == 1, zip(*topologies, strict=False))
    domains = [values[0] for values in shared if values[0]]
    return f"on {len(shares)} nodes" + (f" of {domains[-1]}" if domains else "")


def _rate(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:.2f}M"
    return f"{value / 1000:.1f}k" if value >= 10_000 else f"{value:,.0f}"
