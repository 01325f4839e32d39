"""Shortest remaining service first: the least remaining GPU-seconds hold the GPUs, whoever held them before.

The two-dimensional form of `srtf` for gangs, as Tiresias names it (Gu et al., NSDI 2019, section 3.2.1: remaining time
times GPUs): a wide job must be that much shorter. With true durations it comes within a few per cent of the lower
bounds of rigid workloads.
"""

from __future__ import annotations

from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.queueing import preempt, work_left
from trimtab_policy.policy import Kind
from trimtab_policy.types import Decision, Job, Snapshot


class Srsf:
    """Shortest remaining service first, preemptive."""

    name = "srsf"
    kind = Kind.RULE
    source = "Gu et al. (Tiresias), NSDI 2019"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Serve all jobs by priority and remaining GPU-seconds."""
        capacity = Capacity(snapshot)

        def left(job: Job) -> tuple[int, float, float, str]:
            seconds, gpus = work_left(snapshot, capacity, job)
            return -job.priority, seconds * max(1, gpus), job.created, job.uid

        return preempt(self.name, snapshot, capacity, sorted(snapshot.jobs, key=left))
