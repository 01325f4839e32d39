"""How long a running job keeps its GPUs: when its end is due, and from when on others may have them."""

from __future__ import annotations

from trimtab_policy.types import Job, Snapshot

OVERDUE = 0.05
"""A gang that should have ended takes so much longer, as part of the time it has run."""


def due(job: Job, now: float) -> float | None:
    """When a running job is to be expected to end, as a POSIX time; None where nobody has said so.

    Of one that should have ended already nobody knows: it is slower than predicted, or hangs. The longer it has run,
    the longer it may take yet; it never counts as one that is just about to end, or all would wait for it for ever.
    """
    if job.expected_finish is None or job.expected_finish > now:
        return job.expected_finish
    began = now if job.started is None else job.started
    return now + OVERDUE * (now - began)


def may_be_touched(snapshot: Snapshot, job: Job) -> bool:
    """Whether a running job may be stopped, moved or resized at all, whoever gains by it.

    Not one that ends by itself sooner than it would have restarted.
    """
    if job.started is None or job.resuming > 0 or job.movable_from > snapshot.time:
        return False
    return _worth_it(snapshot, job)


def may_be_stopped(snapshot: Snapshot, job: Job) -> bool:
    """Whether a job may be stopped for those who are entitled to its GPUs: also one that should run and does not."""
    overdue = job.stoppable_from is not None and job.stoppable_from <= snapshot.time
    return may_be_touched(snapshot, job) or (overdue and _worth_it(snapshot, job))


def _worth_it(snapshot: Snapshot, job: Job) -> bool:
    if job.placement is None or job.placement.gpu_type not in snapshot.gpu_types:
        return False
    end = due(job, snapshot.time)
    return end is None or end > snapshot.time + job.restart_seconds / snapshot.speedup
