"""First come, first served: strict arrival order, the fastest plan that fits now, and nobody overtakes.

The classic baseline of batch scheduling: when the job at the head does not fit, all others wait behind it. Within a
priority class the order is that of creation.
"""

from __future__ import annotations

from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.queueing import fastest, serve
from trimtab_policy.policy import Kind
from trimtab_policy.types import Decision, Snapshot


class Fcfs:
    """First come, first served with head-of-line blocking."""

    name = "fcfs"
    kind = Kind.RULE
    source = "queueing theory"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Place jobs in order until the first one that has to wait."""
        return serve(self.name, snapshot, Capacity(snapshot), snapshot.waiting(), fastest, lane=lambda _: "all")
