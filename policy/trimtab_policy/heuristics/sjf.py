"""Shortest job first: of the waiting jobs the one that will take the least time; what runs is left alone.

The order that minimises the mean waiting time of one machine that is not preempted (Smith, "Various optimizers for
single-stage production", 1956). Gangs differ in width, too: one that does not fit lets longer ones pass, so that no GPU
idles for it. How long a job takes is what it asks for (a trace's estimate) or what the performance model predicts, on
the fastest candidate that it has. Long and wide jobs may starve; that is the nature of the rule.
"""

from __future__ import annotations

from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.queueing import fastest, serve, work_left
from trimtab_policy.policy import Kind
from trimtab_policy.types import Decision, Job, Snapshot


class Sjf:
    """Shortest job first, not preemptive."""

    name = "sjf"
    kind = Kind.RULE
    source = "queueing theory"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Start waiting jobs by priority and length."""
        capacity = Capacity(snapshot)

        def length(job: Job) -> tuple[int, float]:
            return -job.priority, work_left(snapshot, capacity, job)[0]

        return serve(self.name, snapshot, capacity, sorted(snapshot.waiting(), key=length), fastest)
