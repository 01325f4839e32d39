"""What gangs do with the GPUs that they hold, by what agents report: used, idle, or not known. Pure.

Which GPUs of a node a gang has, the kubelet says through the agent. Where it does not, a gang that has a node for
itself has all of them; of any other nobody knows. A report that is overdue says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from trimtab import names
from trimtab.api import conditions
from trimtab.observe.snapshot import Observation
from trimtab.observe.telemetry import NodeTelemetry
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


def use_of(job: Job, placement: Placement, telemetry: Mapping[str, NodeTelemetry], least: float) -> GpuUse:
    """What the gang does with its GPUs. `telemetry` holds fresh reports by node; a GPU is used where kernels run for
    the part `least` of the time or more."""
    found, key = GpuUse(), f"{job.namespace}/{job.name}"
    for share in placement.shares:
        told = telemetry.get(share.node)
        found = found.plus(_on_node(told, share.gpus, key, least) if told else GpuUse(unknown=share.gpus))
    return found


def _on_node(told: NodeTelemetry, held: int, job: str, least: float) -> GpuUse:
    own = [gpu for gpu in told.gpus if any(_is_of(pod, job) for pod in gpu.pods or ())]
    if not own and held == len(told.gpus) and all(gpu.pods is None for gpu in told.gpus):
        own = list(told.gpus)
    own = own[:held]
    used = sum(gpu.utilization >= least for gpu in own)
    idle = sum(gpu.utilization < least for gpu in own)  # NaN, where it is not known, is neither
    return GpuUse(used, idle, held - used - idle)


def _is_of(pod: str, job: str) -> bool:
    """Whether the pod `namespace/name` is called like one of the job's: `JOB-EPOCH-RANK`."""
    owner, _, rank = pod.rpartition("-")
    owner, _, epoch = owner.rpartition("-")
    return owner == job and epoch.isdecimal() and rank.isdecimal()
