"""First come, first served: strict arrival order, the fastest plan that fits now, and nobody overtakes.

The classic baseline of batch scheduling: when the job at the head does not fit, all others wait behind it. Within a
priority class the order is that of creation.
"""

from __future__ import annotations

from trimtab_policy.candidates import candidates, placement, with_room
from trimtab_policy.capacity import Capacity
from trimtab_policy.types import Decision, Job, Pending, PendingReason, Placement, Snapshot
from trimtab_policy.why import why_pending

OUT_OF_LINE = (
    PendingReason.NO_SUCH_GPU,
    PendingReason.NO_ELIGIBLE_NODE,
    PendingReason.NO_FEASIBLE_PLAN,
    PendingReason.CLUSTER_TOO_SMALL,
    PendingReason.QUOTA_EXCEEDED,
)
"""A job that no freed GPU would help (the last one: because of its own queue) must not block everybody else."""


class Fcfs:
    """First come, first served with head-of-line blocking."""

    name = "fcfs"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Place jobs in order until the first one that has to wait."""
        capacity = Capacity(snapshot)
        placements: list[Placement] = []
        pending: list[Pending] = []
        head: Job | None = None
        for job in snapshot.waiting():
            if head:
                pending.append(_behind(head, job))
            elif chosen := _fastest(snapshot, capacity, job):
                capacity.take(job, chosen.gpu_type, chosen.shares)
                placements.append(chosen)
            else:
                answer = why_pending(snapshot, capacity, job)
                pending.append(answer)
                head = job if answer.reason not in OUT_OF_LINE else None
        return Decision(self.name, tuple(placements), tuple(pending))


def _behind(head: Job, job: Job) -> Pending:
    first = f"{head.namespace}/{head.name}"
    return Pending(job.uid, PendingReason.BEHIND_OTHERS, f"{first} came first and does not fit yet", (first,))


def _fastest(snapshot: Snapshot, capacity: Capacity, job: Job) -> Placement | None:
    fastest_first = sorted(candidates(snapshot, capacity, job), key=lambda c: (-c.tokens_per_second, c.cost))
    for candidate, shares in with_room(capacity, job, fastest_first):
        what = f"{candidate.describe()}, {candidate.option.plan.describe()}"
        reason = f"{what}: {candidate.tokens_per_second:,.0f} tokens/s, the fastest that fits now"
        return placement(job, candidate, shares, reason)
    return None
