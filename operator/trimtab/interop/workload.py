"""What a Workload of Kueue says: the fields of `kueue.x-k8s.io/v1beta2` that Trimtab looks at, and what they mean.

A Workload is the ticket of a job in Kueue's queues: its spec asks for quota, its status is the answer.

    QuotaReserved  quota is set aside in a ClusterQueue; `status.admission` says how much, and on which flavors
    Admitted       and all admission checks are through: the job may start
    Evicted        the job must stop. Its owner, that is we, then gives the quota back (`interop.reply`)
    Finished       the job has ended, and the quota is free

Read off the types and the job framework of Kueue 0.19.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from trimtab import names
from trimtab.kube.objects import Meta, WorkloadObject

Json = dict[str, Any]

QUOTA_RESERVED, ADMITTED, EVICTED = "QuotaReserved", "Admitted", "Evicted"
FINISHED, PODS_READY, REQUEUED = "Finished", "PodsReady", "Requeued"
MOST_DOMAINS = 100_000
"""Of one slice, as Kueue's own schema has it."""
PODSET = "main"
"""Name of the one podset that we ask for."""


class WorkloadCondition(Struct, frozen=True, rename="camel"):
    """metav1.Condition with its message."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class Values(Struct, frozen=True):
    """Values of one topology level over the domains of a slice: the same for all, or one each."""

    universal: str | None = None
    individual: Roots | None = None

    def each(self, count: int) -> Iterator[str]:
        """The value of each of so many domains. Raises ValueError where there are more or fewer."""
        if self.individual is None:
            yield from (self.universal or "" for _ in range(count))
        else:
            given = self.individual
            if len(given.roots) != count:
                raise ValueError(f"a slice has {count} domains and {len(given.roots)} values of a level")
            yield from (f"{given.prefix or ''}{root}{given.suffix or ''}" for root in given.roots)


class Roots(Struct, frozen=True):
    """Values with what they have in common taken out."""

    roots: tuple[str, ...]
    prefix: str | None = None
    suffix: str | None = None


class Slice(Struct, frozen=True, rename="camel"):
    """Some of the domains of a topology assignment."""

    domain_count: int
    values_per_level: tuple[Values, ...]


class TopologyAssignment(Struct, frozen=True):
    """Where Kueue's topology-aware scheduling wants the pods."""

    levels: tuple[str, ...]
    """Node labels from widest to nearest."""
    slices: tuple[Slice, ...]

    def domains(self) -> Iterator[tuple[str, ...]]:
        """The values of `levels`, domain by domain. Raises ValueError where slices do not fit the levels."""
        for part in self.slices:
            if len(part.values_per_level) != len(self.levels) or not 0 < part.domain_count <= MOST_DOMAINS:
                raise ValueError(f"a slice has {len(part.values_per_level)} values for {len(self.levels)} levels")
            yield from zip(*(values.each(part.domain_count) for values in part.values_per_level), strict=True)


class PodSetAssignment(Struct, frozen=True, rename="camel"):
    """What is admitted of a podset."""

    name: str = PODSET
    flavors: dict[str, str] = {}
    """Resource -> ResourceFlavor."""
    count: int | None = None
    topology_assignment: TopologyAssignment | None = None


class Granted(Struct, frozen=True, rename="camel"):
    """`status.admission`."""

    cluster_queue: str = ""
    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class PodSetUpdate(Struct, frozen=True, rename="camel"):
    """What an admission check wants pods to have."""

    name: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: tuple[Json, ...] = ()


class AdmissionCheck(Struct, frozen=True, rename="camel"):
    """An admission check: Pending, Ready, Retry or Rejected."""

    name: str
    state: str
    message: str = ""
    pod_set_updates: tuple[PodSetUpdate, ...] = ()


class Reclaimable(Struct, frozen=True):
    """Pods of a podset that need their quota no longer."""

    name: str
    count: int


class _Resources(Struct, frozen=True):
    requests: Json | None = None


class _Container(Struct, frozen=True):
    resources: _Resources | None = None


class _PodSpec(Struct, frozen=True):
    containers: tuple[_Container, ...] | None = None


class _Template(Struct, frozen=True):
    spec: _PodSpec | None = None


class PodSet(Struct, frozen=True, rename="camel"):
    """How many pods of which kind are asked for."""

    template: _Template
    name: str = PODSET
    count: int = 1


class _Spec(Struct, frozen=True, rename="camel"):
    pod_sets: tuple[PodSet, ...] = ()
    queue_name: str = ""
    active: bool = True


class _WorkloadStatus(Struct, frozen=True, rename="camel"):
    conditions: tuple[WorkloadCondition, ...] = ()
    admission: Granted | None = None
    admission_checks: tuple[AdmissionCheck, ...] = ()
    reclaimable_pods: tuple[Reclaimable, ...] = ()


class Workload(Struct, frozen=True):
    """A Workload, understood."""

    meta: Meta
    queue: str
    active: bool
    count: int
    """GPUs that it asks for at most."""
    resource: str
    """What each of them is called: `nvidia.com/gpu`, or their DeviceClass in Kubernetes' notation for a resource; empty
    where it asks for none."""
    conditions: tuple[WorkloadCondition, ...]
    granted: Granted | None
    checks: tuple[AdmissionCheck, ...]
    reclaimed: int
    """Of `count`, what was given back for good while the quota is reserved."""
    status: Json
    """The whole status, for patches that must keep what others wrote."""

    def condition(self, kind: str) -> WorkloadCondition | None:
        """The condition of this type, if it is there."""
        return next((each for each in self.conditions if each.type == kind), None)

    def holds(self, kind: str) -> bool:
        """Whether the condition of this type is True."""
        return any(each.type == kind and each.status == "True" for each in self.conditions)

    @property
    def reserved(self) -> bool:
        return self.holds(QUOTA_RESERVED)

    @property
    def admitted(self) -> bool:
        """Whether its job may hold GPUs now."""
        return self.holds(ADMITTED) and self.reserved and self.granted is not None and not self.refused

    @property
    def refused(self) -> bool:
        """Whether its job must not hold GPUs: Kueue has said so, where it not only has not looked yet."""
        quota = self.condition(QUOTA_RESERVED)
        stopped = self.holds(EVICTED) or self.holds(FINISHED) or not self.active or self.meta.deletion_timestamp
        return bool(stopped) or (quota is not None and quota.status == "False")

    @property
    def assignment(self) -> PodSetAssignment | None:
        """What is admitted of our podset."""
        assigned = self.granted.pod_set_assignments if self.granted else ()
        return next((each for each in assigned if each.name == PODSET), None)

    @property
    def gpus(self) -> int:
        """GPUs that its quota is reserved for: what was admitted, less what was given back since."""
        assigned = self.assignment
        if assigned is None:
            return 0
        admitted = self.count if assigned.count is None else assigned.count
        return max(0, min(admitted, self.count - self.reclaimed))


def read_workload(obj: WorkloadObject) -> Workload:
    """Understand a Workload. Raises msgspec.DecodeError where it is none of v1beta2."""
    spec = msgspec.json.decode(obj.spec, type=_Spec)
    status = msgspec.json.decode(obj.status, type=_WorkloadStatus)
    podset = next((each for each in spec.pod_sets if each.name == PODSET), PodSet(template=_Template(), count=0))
    return Workload(
        meta=obj.metadata,
        queue=spec.queue_name,
        active=spec.active,
        count=podset.count,
        resource=_gpu_resource(podset.template),
        conditions=status.conditions,
        granted=status.admission,
        checks=status.admission_checks,
        reclaimed=sum(each.count for each in status.reclaimable_pods if each.name == PODSET),
        status=msgspec.json.decode(obj.status),
    )


def _gpu_resource(template: _Template) -> str:
    containers = (template.spec.containers if template.spec else None) or ()
    asked = [key for each in containers for key in (each.resources.requests if each.resources else None) or ()]
    return next((key for key in asked if key in names.GPU_RESOURCES + names.CLASS_RESOURCES), "")
