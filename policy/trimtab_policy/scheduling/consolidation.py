"""Where those who give way go on: elsewhere, divided otherwise, or with fewer GPUs, so that nobody has to stop.

A gang for which GPUs enough are free, but scattered, needs others to move together. Who moves keeps its type, its plan
and its number of GPUs, or, if it is elastic, takes what lets it go on fastest and is worth no more than what it held:
tp8 becomes tp4×pp2 on two half nodes, or on GPUs of another type. Where its checkpoint cannot be resharded its
requirements are narrowed to the degrees that it has (`Requirements`), so that there is nothing to choose from.

Nobody moves without a job that starts because of it: fragmentation that nobody suffers from is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.placement.assign import keeps
from trimtab_policy.placement.candidates import Candidate, Fitting, candidates, holding, nodes_for, placement
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.queueing import seconds_left
from trimtab_policy.scheduling.victims import Victim, choose, without
from trimtab_policy.types import Job, NodeShare, Placement, Snapshot

ATTEMPTS = 3
"""Sets of jobs to move that are tried for one gang."""
_SAME = 1e-9


class ConsolidationMove(Struct, frozen=True):
    """A running job that goes on elsewhere, or with less."""

    victim: Victim
    wish: Candidate
    shares: tuple[NodeShare, ...]
    cost: float
    """GPU-seconds times weight: what the restart loses, and that it goes on with less."""


class ConsolidationMoves(Struct, frozen=True):
    """A gang fits after these."""

    shares: tuple[NodeShare, ...]
    """Nodes of the gang."""
    moves: tuple[ConsolidationMove, ...]

    @property
    def cost(self) -> float:
        return sum(move.cost for move in self.moves)


def consolidate(
    snapshot: Snapshot,
    capacity: Capacity,
    job: Job,
    wish: Candidate,
    movable: Sequence[Victim],
    most: int,
    budget: float = math.inf,
) -> ConsolidationMoves | None:
    """Let the gang fit by moving at most so many of the jobs, none of which ends up without GPUs; None if that fails.

    A job that finds no other place is left out, and the others are asked once more. What moves cost, in GPU-seconds
    times weight, must not exceed the `budget`.
    """
    if wish.option.gpus > _most_gpus(snapshot, capacity, wish, movable):
        return None
    allowed = list(movable)
    for _ in range(ATTEMPTS):
        chosen = choose(capacity, job, wish, allowed, most)
        if not chosen or sum(victim.cost for victim in chosen) > budget:
            return None
        free = without(capacity, chosen)
        shares = nodes_for(free, job, wish)
        if shares is None:
            return None
        free.take(job, wish.gpu.name, shares)
        moves, stranded = settle(snapshot, free, chosen, seconds_left(job, wish))
        if not stranded:
            found = ConsolidationMoves(shares, tuple(moves))
            return found if found.moves and found.cost <= budget else None
        uids = {victim.job.uid for victim in stranded}
        allowed = [victim for victim in allowed if victim.job.uid not in uids]
    return None


def could_move(capacity: Capacity, snapshot: Snapshot, job: Job) -> bool:
    """Whether a running job could go on elsewhere or, if it is elastic, with fewer GPUs, as far as one look tells."""
    held = job.placement
    if held is None:
        return False
    if job.preemptible and job.requirements.gpus.low < held.gpus:
        return True
    return elsewhere(snapshot, capacity, job) is not None


def _most_gpus(snapshot: Snapshot, capacity: Capacity, wish: Candidate, movable: Sequence[Victim]) -> int:
    """GPUs that the gang's type has at most once the others have moved together: no more can come of it."""
    gpus = capacity.free_gpus(wish.gpu.name)
    others = any(capacity.free_gpus(name) for name in snapshot.gpu_types if name != wish.gpu.name)
    for victim in movable:
        held = victim.job.placement
        if held and victim.job.preemptible and held.gpu_type == wish.gpu.name:
            gpus += held.gpus if others else max(0, held.gpus - victim.job.requirements.gpus.low)
    return gpus


def settle(
    snapshot: Snapshot, free: Capacity, victims: Iterable[Victim], away: float
) -> tuple[list[ConsolidationMove], list[Victim]]:
    """Other places for victims, those of the highest priority first, and the victims that fit nowhere. Spends `free`.

    A victim whose own GPUs were not needed after all keeps them: it neither moves nor stops. `away`: seconds for which
    their GPUs are lent, that is until the gang that has them is done.
    """
    moves: list[ConsolidationMove] = []
    stranded: list[Victim] = []
    for victim in sorted(victims, key=_turn):
        mine, held = not_above(free, victim.job, stranded), victim.job.placement
        if held and mine.fits_on(victim.job, held.gpu_type, held.shares):
            free.take(victim.job, held.gpu_type, held.shares)
            continue
        found = elsewhere(snapshot, mine, victim.job)
        if found is None:
            stranded.append(victim)
            continue
        wish, shares = found
        free.take(victim.job, wish.gpu.name, shares)
        if held:
            cost = victim.cost + _less(snapshot, free, victim.job, held, wish, away)
            moves.append(ConsolidationMove(victim, wish, shares, cost))
    return moves, stranded


def not_above(free: Capacity, job: Job, stopped: Iterable[Victim]) -> Capacity:
    """What is free for the job: not what was taken from somebody who is more urgent than it, and waits now."""
    above = [victim for victim in stopped if victim.job.priority > job.priority]
    if not above:
        return free
    left = free.copy()
    for victim in above:
        if held := victim.job.placement:
            left.withhold(victim.job, held)
    return left


def elsewhere(snapshot: Snapshot, free: Capacity, job: Job) -> Fitting | None:
    """Where a running job could go on with what it holds; an elastic one also otherwise, as fast as can be."""
    held = job.placement
    if held is None:
        return None
    same = holding(snapshot, job, held)
    options = [same]
    if job.preemptible:
        most = same.cost * (1 + _SAME)
        options += [each for each in candidates(snapshot, free, job) if each.cost <= most]
        options.sort(key=lambda each: (-each.tokens_per_second, each.cost))
    for wish in options:
        if shares := nodes_for(free, job, wish, scatter=False):
            return wish, shares
    return None


def as_is(snapshot: Snapshot, known: Iterable[Candidate], job: Job, held: Placement) -> Candidate:
    """What a job has as one of its `known` candidates, so that all are measured by the predictions of today."""
    for wish in known:
        if wish.speed == held.speed and keeps(held, wish):
            return wish
    return holding(snapshot, job, held)


def moved(capacity: Capacity, move: ConsolidationMove, beneficiary: Job) -> Placement:
    """The placement that carries a move out. `capacity` knows the speeds of its nodes."""
    job, wish = move.victim.job, move.wish
    held = job.placement
    fewer = held is not None and wish.option.gpus < held.gpus
    what = "gives GPUs to" if fewer else "makes room for"
    reason = f"{wish.describe_with_plan()}: {what} {beneficiary.namespace}/{beneficiary.name}"
    return placement(capacity, job, wish, move.shares, reason)


def spent(capacity: Capacity, moves: Collection[ConsolidationMove], stopped: Collection[Victim]) -> Capacity:
    """What is free once all of these have left where they were, and those that move hold their new places."""
    left = without(capacity, [*(move.victim for move in moves), *stopped])
    for move in moves:
        left.take(move.victim.job, move.wish.gpu.name, move.shares)
    return left


def _turn(victim: Victim) -> tuple[int, int, str]:
    held = victim.job.placement
    return -victim.job.priority, -held.gpus if held else 0, victim.job.uid


def _less(snapshot: Snapshot, free: Capacity, job: Job, held: Placement, wish: Candidate, away: float) -> float:
    """What is lost while a job goes on with less than it had: throughput, as GPU-seconds of what it held, weighted."""
    if not job.preemptible:
        return 0.0
    now = as_is(snapshot, candidates(snapshot, free, job), job, held)
    slower = max(0.0, 1.0 - wish.tokens_per_second / now.tokens_per_second)
    return now.cost * slower * max(0.0, min(away, seconds_left(job, now)))


def mobile(victim: Victim) -> Victim:
    """The victim as one that moves: its tier says nothing then, because nobody loses its GPUs."""
    return replace(victim, tier=(0, True))
