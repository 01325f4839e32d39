"""Elastic jobs get more, fewer, other or better GPUs, or another plan, where that pays for the restart it takes.

A change pays if the time that it saves over the work that is left is `gain` times what it costs:

    left × (step - step') >= gain × (lost + restart)        left in steps, the rest in seconds

Both step times are today's predictions for the job, corrected alike, so that a prediction that has changed is no
reason to move. Since the time must become shorter by more than a restart, the way back never pays by the same rule:
there is no going back and forth. More GPUs have to bring half their share of throughput besides, as in `best_fit`: idle
GPUs cost nothing today, and who comes tomorrow would have to take them away again.

Who waits comes first: GPUs that a waiting job could use are left to it, however long it has to wait for more of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from trimtab_policy.placement.candidates import Candidate, candidates, nodes_for, on_nodes, placement
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.running_columns import running_columns
from trimtab_policy.scheduling.consolidation import as_is
from trimtab_policy.scheduling.shapes import MARGINAL_RETURN, possible
from trimtab_policy.types import Job, NodeShare, Placement, Snapshot


class ResizeRules(Struct, frozen=True):
    """When a change pays."""

    gain: float = 1.5
    """The time that a job saves must be so many times what the change costs: save, schedule, load, lost work."""
    at_once: int = 4
    """Gangs that are changed by one decision, at most."""
    looked_at: int = 64
    """Running jobs, those with most to do first, that a better placement is looked for."""


class _Change(Struct, frozen=True):
    """A better placement for one job."""

    job: Job
    wish: Candidate
    shares: tuple[NodeShare, ...]
    saved: float
    """Seconds, the cost of the change taken off."""


def resizes(snapshot: Snapshot, rules: ResizeRules) -> tuple[Placement, ...]:
    """New placements of running elastic jobs, each of which may take what is free and what the job itself holds.

    None of them takes what a job that waits in the snapshot could use.
    """
    running = running_columns(snapshot)
    touchable = np.flatnonzero(running.may_be_touched(snapshot)).tolist()
    elastic = [job for row in touchable if (job := running.jobs[row]).preemptible]
    if not elastic or rules.at_once < 1:
        return ()
    elastic.sort(key=lambda job: (-_seconds_left(job), job.uid))
    free = Capacity(snapshot)
    _leave_to_those_who_wait(snapshot, free)
    pending = elastic[: rules.looked_at]
    found: list[Placement] = []
    while pending and len(found) < rules.at_once:
        changes = [change for job in pending if (change := _best(snapshot, free, job, rules.gain))]
        if not changes:
            break
        best = max(changes, key=lambda change: (change.saved * change.wish.cost, change.job.uid))
        found.append(_carried_out(free, best))
        able = {change.job.uid for change in changes} - {best.job.uid}
        pending = [job for job in pending if job.uid in able]
    return tuple(found)


def _seconds_left(job: Job) -> float:
    step = job.placement.prediction.step_seconds if job.placement else 0.0
    return max(0, job.training.steps - job.steps_done) * step


def _leave_to_those_who_wait(snapshot: Snapshot, free: Capacity) -> None:
    """Take what a waiting job could use out of what is free.

    Not for one that is too large for the cluster, or for what its queue is still allowed: GPUs that are free would not
    help it, however many.
    """
    asked: set[object] = set()
    blocked: set[str] = set()
    for job in snapshot.line():
        if blocked >= set(snapshot.gpu_types):
            break
        kind = job.model, job.training, job.requirements, job.eligible, job.queue, id(job.speeds)
        if kind in asked:
            continue
        asked.add(kind)
        able = (each for each in possible(snapshot, free, job) if _within_quota(free, job, each))
        for name in {wish.gpu.name for wish in able} - blocked:
            rows = free.eligible(job, name).tolist()
            free.hide(NodeShare(free.names[row], int(free.free[row])) for row in rows if free.free[row] > 0)
            if job.eligible is None:
                blocked.add(name)


def _within_quota(free: Capacity, job: Job, wish: Candidate) -> bool:
    return free.within_quota(job.queue, wish.gpu.name, wish.option.gpus)


def _best(snapshot: Snapshot, free: Capacity, job: Job, gain: float) -> _Change | None:
    """The change of a job that saves most, if any pays."""
    held = job.placement
    if held is None:
        return None
    mine = free.copy()
    mine.give(job, held.gpu_type, held.shares)
    known = candidates(snapshot, mine, job)
    now = as_is(snapshot, known, job, held)
    left = max(0, job.training.steps - job.steps_done)
    cost = job.lost_seconds * snapshot.speedup + job.restart_seconds
    for wish in sorted(_faster(known, now), key=lambda each: each.option.prediction.step_seconds):
        saved = left * (now.option.prediction.step_seconds - wish.option.prediction.step_seconds)
        if saved < gain * cost or saved <= 0:
            return None  # those that follow save less
        if shares := nodes_for(mine, job, wish):
            there = on_nodes(mine, job, wish, shares)
            saved = left * (now.option.prediction.step_seconds - there.option.prediction.step_seconds)
            return _Change(job, there, shares, saved - cost)
    return None


def _faster(known: Sequence[Candidate], now: Candidate) -> Iterator[Candidate]:
    """Those that bring enough for what they take."""
    for wish in known:
        rate = wish.tokens_per_second / now.tokens_per_second - 1
        if rate > 0 and rate >= MARGINAL_RETURN * (wish.cost / now.cost - 1):
            yield wish


def _carried_out(free: Capacity, change: _Change) -> Placement:
    job, wish = change.job, change.wish
    if held := job.placement:
        free.give(job, held.gpu_type, held.shares)
    free.take(job, wish.gpu.name, change.shares)
    reason = f"{wish.describe_with_plan()}: done {change.saved / 60:.0f} min sooner"
    return placement(free, job, wish, change.shares, reason)
