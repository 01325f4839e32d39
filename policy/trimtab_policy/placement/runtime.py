"""How long a running job keeps its GPUs: when its end is due, and what is left of it where nothing else is known."""

from __future__ import annotations

import math

from msgspec.structs import replace

from trimtab_policy import catalog
from trimtab_policy.specs import ParallelPlan, Prediction, TrainingSpec
from trimtab_policy.types import Bounds, Grant, Job, NodeShare, Placement, Requirements

OVERDUE = 0.05
"""A gang that should have ended takes so much longer, as part of the time it has run."""
LONGEST = 100 * 365 * 86_400.0
"""Seconds that anything is looked ahead, a century: a billion slow steps take longer than the calendar lasts. What is
said to come later counts as coming then, so that no date, no sum and no interval of it can overflow."""


LAST = 1 << 62
"""Order of a grant that is no more: after all others."""


def within_reach(moment: float, now: float) -> float:
    """A point in time, as POSIX seconds, brought to within `LONGEST` of now: whatever a job or its training says of its
    end. What is no number is as far away as can be."""
    return max(now - LONGEST, min(now + LONGEST, moment)) if moment == moment else now + LONGEST


def due(job: Job, now: float) -> float | None:
    """When a running job is to be expected to end, as a POSIX time; None where nobody has said so.

    Of one that should have ended already nobody knows: it is slower than predicted, or hangs. The longer it has run,
    the longer it may take yet; it never counts as one that is just about to end, or all would wait for it for ever.
    """
    if job.expected_finish is None or job.expected_finish > now:
        return None if job.expected_finish is None else within_reach(job.expected_finish, now)
    began = now if job.started is None else job.started
    return within_reach(now + OVERDUE * (now - began), now)


def holder(uid: str, namespace: str, name: str, *, queue: str, gpu_type: str, shares: tuple[NodeShare, ...]) -> Job:
    """A job of which nothing is known, or believed, but what it holds: it counts against its queue, nobody touches it,
    and nobody knows when it ends. A guarantee covers all others before it. Its model is the smallest there is, so that
    every formula has an answer."""
    gpus = sum(share.gpus for share in shares)
    unknown = Prediction(step_seconds=1.0, tokens_per_second=1.0, memory_bytes=1, run_seconds=1.0)
    return Job(
        uid=uid,
        namespace=namespace,
        name=name,
        model=catalog.model("gpt2"),
        training=TrainingSpec(sequence_length=1024, global_batch_size=gpus, steps=1),
        requirements=Requirements(gpus=Bounds(gpus, gpus), gpu_types=(gpu_type,)),
        created=0.0,
        queue=queue,
        placement=Placement(uid, gpu_type, shares, ParallelPlan(data=gpus), unknown, reason="it holds these GPUs"),
        grants=(Grant(gpus, LAST, LAST),),
        movable_from=math.inf,
    )


def quiet(job: Job) -> Job:
    """A running job as a `holder`: what it holds stays, all that it says of itself is left out."""
    held = job.placement
    if held is None:
        raise ValueError(f"{job.namespace}/{job.name} holds no GPUs")
    bare = holder(job.uid, job.namespace, job.name, queue=job.queue, gpu_type=held.gpu_type, shares=held.shares)
    return replace(bare, priority=job.priority, created=job.created, started=job.started, grants=job.grants)
