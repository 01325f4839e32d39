"""A decision in the making, for policies that choose nodes themselves: everything preemptible is free again, and the
jobs take their nodes one after the other.
"""

from __future__ import annotations

from trimtab_policy.placement.assign import keeps, waits
from trimtab_policy.placement.candidates import Candidate, placement
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.types import Decision, Job, NodeShare, Snapshot, Stop

Shares = tuple[NodeShare, ...]


class Draft:
    """Who has been placed where so far, and what is left."""

    def __init__(self, policy: str, snapshot: Snapshot) -> None:
        self.capacity = Capacity(snapshot)
        self._policy, self._snapshot = policy, snapshot
        self._jobs = {job.uid: job for job in snapshot.jobs if job.placement is None or job.preemptible}
        self._found: dict[str, tuple[Candidate, Shares]] = {}
        for job in self._jobs.values():
            if job.placement:
                self.capacity.give(job, job.placement.gpu_type, job.placement.shares)

    def take(self, job: Job, wish: Candidate, shares: Shares) -> None:
        """Place the job there."""
        self.capacity.take(job, wish.gpu.name, shares)
        self._found[job.uid] = wish, shares

    def decision(self) -> Decision:
        """All others wait, or are stopped."""
        changed = [
            placement(self.capacity, job, wish, shares, self._reason(wish))
            for uid, (wish, shares) in self._found.items()
            for job in (self._jobs[uid],)
            if not (job.placement and keeps(job.placement, wish) and job.placement.shares == shares)
        ]
        others = [job for uid, job in self._jobs.items() if uid not in self._found]
        stops = [Stop(job.uid, f"{self._policy} gives its GPUs to other jobs") for job in others if job.placement]
        pending = [waits(self._policy, self._snapshot, self.capacity, job) for job in others if job.placement is None]
        return Decision(self._policy, tuple(changed), tuple(pending), tuple(stops))

    def _reason(self, wish: Candidate) -> str:
        return f"{wish.describe_with_plan()}: chosen by {self._policy}"
