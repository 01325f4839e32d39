"""What a decision may do to running jobs: who may be stopped for whom, who may be moved.

A policy has its way with elastic jobs only, and not at the cost of more urgent ones. Preemption
(`preemption`) may touch every job, each for a reason: lower priority, or borrowed GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from msgspec import Struct

from trimtab_policy.placement.limits import Violation
from trimtab_policy.scheduling.accounts import Accounts
from trimtab_policy.types import Job, Placement, Stop, StopCause

UNBOUNDED = 1 << 20


class Permissions(Struct, frozen=True):
    """What the author of a decision may do."""

    for_others: bool = False
    """It preempts: it may stop and move every job that may be moved at all, and only for other jobs."""
    elastic: bool = True
    """It may stop, move and resize elastic jobs."""
    about: frozenset[str] | None = None
    """UIDs of the waiting jobs that it was asked about; None: all."""
    at_once: int = UNBOUNDED
    """Once so many gangs are stopped or moved, nobody else is helped."""
    borrowed: Mapping[str, int] = {}
    """UID -> GPUs that a job holds beyond what its queue is guaranteed."""


def not_stopped(accounts: Accounts, stop: Stop, permissions: Permissions) -> Violation | None:
    """Why a job must not be stopped."""
    job = accounts.jobs.get(stop.job)
    if job is None:
        return "unknown_job", f"no job has UID {stop.job}"
    if job.placement is None:
        return "not_running", "the job holds no GPUs that a stop could free"
    comes = job.stoppable_from if permissions.for_others else None
    since = job.movable_from if comes is None else comes
    return _untouchable(accounts, job, permissions, "stopped", since) or _no_reason(accounts, job, stop, permissions)


def not_moved(accounts: Accounts, job: Job, placement: Placement, permissions: Permissions) -> Violation | None:
    """Why a running job must not have this placement instead of the one that it has."""
    if broken := _untouchable(accounts, job, permissions, "moved or resized", job.movable_from):
        return broken
    held = job.placement
    if held and placement.gpus != held.gpus and not job.preemptible:
        return "not_elastic", f"the job runs on {held.gpus} GPUs, and their number must not change while it does"
    return None


def no_gain(accounts: Accounts, stop: Stop, starting: Set[str], permissions: Permissions) -> Violation | None:
    """Why a stop is not worth it, or not right, once it is clear who starts."""
    if stop.beneficiary and stop.beneficiary not in starting:
        return "beneficiary_refused", "the job that it would be stopped for does not start"
    waiting = accounts.awaited().get(stop.job)
    if not waiting:
        return "nobody_gains", "it would be stopped, and no gang starts because of it"
    least = min(accounts.jobs[uid].priority for uid in waiting)
    if least < accounts.jobs[stop.job].priority:
        return "not_more_urgent", f"it would give way to a job of priority {least}, its own is higher"
    return None


def _untouchable(accounts: Accounts, job: Job, permissions: Permissions, what: str, since: float) -> Violation | None:
    if job.uid in accounts.left:
        return "already_stopped", "it was stopped or moved by the same decision before"
    if not permissions.for_others and not (permissions.elastic and job.preemptible):
        return "not_preemptible", f"the job runs and is not preemptible: it must not be {what}"
    if since > accounts.snapshot.time:
        return "too_soon", f"the job has not run for long enough, or gave way too often, to be {what} now"
    return None


def _no_reason(accounts: Accounts, job: Job, stop: Stop, permissions: Permissions) -> Violation | None:
    if not permissions.for_others:
        return None
    gains = accounts.jobs.get(stop.beneficiary)
    if stop.cause is StopCause.RECLAIMED:
        lent = permissions.borrowed.get(job.uid, 0) > 0
        if gains is None or not (gains.entitled and lent and gains.priority >= job.priority):
            return "not_borrowed", "it holds nothing that the other's queue is guaranteed, or is more urgent"
    elif stop.cause is not StopCause.PREEMPTED or gains is None or gains.priority <= job.priority:
        return "not_more_urgent", "only a job of higher priority may take its GPUs"
    return None
