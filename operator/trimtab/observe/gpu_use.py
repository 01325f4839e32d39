"""What gangs do with the GPUs that they hold, by what agents report: used, idle, or not known. Pure.

Which GPUs of a node a gang has, the kubelet says through the agent. Where it does not, a gang that has a node for
itself has all of them; of any other nobody knows. A report that is overdue says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from trimtab import names
from trimtab.api import conditions
from trimtab.observe.snapshot import Observation
from trimtab.observe.telemetry import GpuFacts, NodeTelemetry
from trimtab_policy.types import Job, Placement


class GpuUse(Struct, frozen=True, gc=False):
    """GPUs by what is known of them."""

    used: int = 0
    idle: int = 0
    unknown: int = 0

    def plus(self, other: GpuUse) -> GpuUse:
        """Both together."""
        return GpuUse(self.used + other.used, self.idle + other.idle, self.unknown + other.unknown)

    @property
    def verdict(self) -> bool | None:
        """Whether all of them are idle; None where that is not known of some, and none is seen to be used."""
        if self.used:
            return False
        return None if self.unknown or not self.idle else True


def gangs(seen: Observation) -> Iterator[tuple[Job, Placement]]:
    """Everything that holds GPUs now: gangs whose plan stands, and pods that are left of those whose plan is no more.

    No GPU is held twice: a gang whose plan waits for others holds nothing before all its pods are bound, and one that
    is promised a place holds nothing before its plan is written.
    """
    for job in seen.snapshot.jobs:
        if job.placement is None:
            continue
        facts = seen.jobs.get(job.uid)
        if facts is not None:
            plan, told = facts.status.plan, facts.status.conditions
            if plan is None or (plan.waits_for and not conditions.holds(told, names.GANG_SCHEDULED)):
                continue
        yield job, job.placement


def use_of(
    job: Job,
    placement: Placement,
    telemetry: Mapping[str, NodeTelemetry],
    least: float,
    job_of_pod: Callable[[str], str],
) -> GpuUse:
    """What the gang does with its GPUs. `telemetry` holds fresh reports by node; a GPU is used where kernels run for
    the part `least` of the time or more. `job_of_pod` says of which job (`namespace/name`) a pod (the same) is."""
    found, key = GpuUse(), f"{job.namespace}/{job.name}"
    for share in placement.shares:
        told = telemetry.get(share.node)
        if told is None:
            found = found.plus(GpuUse(unknown=share.gpus))
            continue
        own = [gpu for gpu in told.gpus if any(job_of_pod(pod) == key for pod in gpu.pods or ())]
        found = found.plus(_on_node(told, own, share.gpus, least))
    return found


def _on_node(told: NodeTelemetry, own: list[GpuFacts], held: int, least: float) -> GpuUse:
    if not own and held == len(told.gpus) and all(gpu.pods is None for gpu in told.gpus):
        own = list(told.gpus)
    own = own[:held]
    used = sum(gpu.utilization >= least for gpu in own)
    idle = sum(gpu.utilization < least for gpu in own)  # NaN, where it is not known, is neither
    return GpuUse(used, idle, held - used - idle)
