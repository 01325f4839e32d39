"""Static affinity: every application has its GPU type, and waits for that one whatever else is free.

The second baseline of the seed "Adaptive Dynamic Load Balancing and Resource Orchestration" (its section 5: a
"pre-configured mapping of workloads to GPUs"). The mapping may be given; an application without an entry gets the type
that serves it best for what it costs: the most steps per second and peak FLOP/s. Per type it is first come, first
served.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from trimtab_policy.placement.candidates import Candidate, could_ever_fit, placement, with_room
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.pending_reasons import why_pending
from trimtab_policy.placement.queueing import fastest_first, serve
from trimtab_policy.policy import Kind
from trimtab_policy.types import Decision, Job, Pending, Placement, Snapshot


class StaticAffinity:
    """First come, first served on the type that an application is mapped to."""

    name = "static_affinity"
    kind = Kind.RULE
    source = "ADLRO, Freederia (baseline)"

    def __init__(self, mapping: Mapping[str, str] | None = None) -> None:
        """`mapping`: application (the model's name) -> GPU type."""
        self.mapping = dict(mapping or {})

    def decide(self, snapshot: Snapshot) -> Decision:
        """Start jobs in the order of arrival, each type for itself."""
        capacity = Capacity(snapshot)
        waiting = snapshot.waiting()
        home = {job.uid: self._home(snapshot, capacity, job) for job in waiting}

        def choose(snapshot: Snapshot, capacity: Capacity, job: Job) -> Placement | None:
            at_home = [found for found in fastest_first(snapshot, capacity, job) if found.gpu.name == home[job.uid]]
            for candidate, shares in with_room(capacity, job, at_home):
                what = candidate.describe_with_plan()
                reason = f"{what}: {job.model.name} belongs on {candidate.gpu.name}"
                return placement(capacity, job, candidate, shares, reason)
            return None

        def explain(snapshot: Snapshot, capacity: Capacity, job: Job) -> Pending:
            need = replace(job.requirements, gpu_types=(home[job.uid],))
            return why_pending(snapshot, capacity, replace(job, requirements=need) if home[job.uid] else job)

        return serve(self.name, snapshot, capacity, waiting, choose, lambda job: home[job.uid], explain)

    def _home(self, snapshot: Snapshot, capacity: Capacity, job: Job) -> str:
        """The type that the job waits for; empty when it can run nowhere."""
        able = [found for found in fastest_first(snapshot, capacity, job) if could_ever_fit(capacity, job, found)]
        mapped = self.mapping.get(job.model.name, "")
        if not able or any(found.gpu.name == mapped for found in able):
            return mapped
        return max(able, key=_value).gpu.name


def _value(candidate: Candidate) -> tuple[float, str]:
    return candidate.tokens_per_second / candidate.cost, candidate.gpu.name
