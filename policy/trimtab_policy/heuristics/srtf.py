"""Shortest remaining time first: the jobs that will be done soonest hold the GPUs, whoever held them before.

Schrage, "A proof of the optimality of the shortest remaining processing time discipline", 1968: the least mean time in
system of one preemptive machine. For gangs it is a heuristic; `srsf` also weighs how wide they are. A job that does not
fit lets longer ones pass. What a stop and a restart cost does not count, as in the original.
"""

from __future__ import annotations

from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.queueing import preempt, work_left
from trimtab_policy.policy import Kind
from trimtab_policy.types import Decision, Job, Snapshot


class Srtf:
    """Shortest remaining time first, preemptive."""

    name = "srtf"
    kind = Kind.RULE
    source = "queueing theory"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Serve all jobs by priority and remaining time."""
        capacity = Capacity(snapshot)

        def left(job: Job) -> tuple[int, float, float, str]:
            return -job.priority, work_left(snapshot, capacity, job)[0], job.created, job.uid

        return preempt(self.name, snapshot, capacity, sorted(snapshot.jobs, key=left))
