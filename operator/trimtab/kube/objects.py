"""The few fields of each kind that Trimtab looks at, as msgspec structs.

What is not declared here is not decoded: that is 100 times faster than the typed client, and it defines what a change
is. Two objects are equal when nothing that we look at differs, whatever their resourceVersions; a node's heartbeat
(`lastHeartbeatTime`) or a pod's `managedFields` are therefore no news.

Attribute names are the API's in snake_case (`node_name` is `nodeName`). Points in time stay RFC 3339 strings.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from msgspec import Raw, Struct, field
from msgspec.structs import force_setattr

from trimtab.names import ANNOTATIONS_READ, GROUP, JOB_KIND, LABEL_JOB, LABEL_JOB_UID, LABEL_MANAGED


class Identity(NamedTuple):
    """Which job: neither a name, which another job may have later, nor a UID, which anybody may write anywhere."""

    key: str
    """`namespace/name`."""
    uid: str

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that say which job it is to who knows it, and give nobody its UID."""
        return _digest(self)


POD_GROUP: Final = ("scheduling.k8s.io", "PodGroup")
"""API group and kind of what pods name as their group."""


class Controlling(NamedTuple):
    """The object that controls another one, by all that an owner reference says of it: whoever writes an object may
    name any UID in it. Owners are of the same namespace."""

    group: str
    """API group, whatever its version."""
    kind: str
    key: str
    """`namespace/name`."""
    uid: str


@lru_cache(maxsize=1 << 16)
def _digest(identity: Identity) -> str:
    return hashlib.sha256("/".join(identity).encode()).hexdigest()[:32]


class OwnerReference(Struct, frozen=True, rename="camel"):
    """metav1.OwnerReference."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class Meta(Struct, frozen=True, rename="camel", eq=False, dict=True):
    """metav1.ObjectMeta. Equality leaves `resource_version` out."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    """What whoever deleted it gave it to end, which `deletion_timestamp` counts in."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    """Only those that anything depends on: users have 256 KiB for theirs, on each object."""
    owner_references: tuple[OwnerReference, ...] = ()

    def __post_init__(self) -> None:
        if self.annotations and not ANNOTATIONS_READ.issuperset(self.annotations):
            known = {name: value for name, value in self.annotations.items() if name in ANNOTATIONS_READ}
            force_setattr(self, "annotations", known)

    @property
    def key(self) -> str:
        """`namespace/name`, or the name alone of a cluster-scoped object."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def version(self) -> int:
        """The resourceVersion as the number that it is: comparable since KEP-5504 (Kubernetes 1.35). 0 when unset."""
        return int(self.resource_version) if self.resource_version.isdecimal() else 0

    @cached_property
    def identity(self) -> Identity:
        """Of the object itself. Kept: each round asks it of each job once per pod."""
        return Identity(self.key, self.uid)

    @property
    def job(self) -> Identity | None:
        """The LLMTrainingJob that controls it; it is of the same namespace, since owners are. None where none does:
        whoever writes an object may name any owner in it, so group and kind count as the UID does.

        The pods of a job of another kind are controlled by that; which job of ours they are of, labels say that nobody
        else may write.
        """
        if self.labels.get(LABEL_MANAGED) == "true":
            name, uid = self.labels.get(LABEL_JOB), self.labels.get(LABEL_JOB_UID)
            return Identity(f"{self.namespace}/{name}", uid) if name and uid else None
        for owner in self.owner_references:
            if owner.controller and owner.kind == JOB_KIND and owner.api_version.partition("/")[0] == GROUP:
                return Identity(f"{self.namespace}/{owner.name}", owner.uid)
        return None

    @property
    def controller(self) -> Controlling | None:
        """What controls it, of whatever kind; None where nothing does."""
        for owner in self.owner_references:
            if owner.controller:
                group = owner.api_version.rpartition("/")[0]
                return Controlling(group, owner.kind, f"{self.namespace}/{owner.name}", owner.uid)
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Meta) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self.uid)

    def _compared(self) -> tuple[object, ...]:
        return (
            self.uid,
            self.name,
            self.namespace,
            self.generation,
            self.creation_timestamp,
            self.deletion_timestamp,
            self.deletion_grace_period_seconds,
            self.labels,
            self.annotations,
            self.owner_references,
        )


class NodeCondition(Struct, frozen=True, rename="camel"):
    """A condition of a node. Heartbeat times are left out on purpose."""

    type: str
    status: str
    reason: str = ""
    last_transition_time: str | None = None


class PodCondition(NodeCondition, frozen=True, eq=False):
    """A condition of a pod. Equality leaves `message` out: kube-scheduler words it anew with every attempt."""

    message: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PodCondition) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple[object, ...]:
        return self.type, self.status, self.reason, self.last_transition_time


class AnyObject(Struct, frozen=True):
    """What all kinds have in common."""

    metadata: Meta


# --- nodes -----------------------------------------------------------------------------------------------------------
class Taint(Struct, frozen=True):
    """v1.Taint."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(Struct, frozen=True):
    """v1.NodeSpec."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(Struct, frozen=True):
    """v1.NodeStatus. `allocatable` and `capacity` map resource names to quantities (`"8"`, `"1510Gi"`)."""

    allocatable: dict[str, str] = {}
    capacity: dict[str, str] = {}
    conditions: tuple[NodeCondition, ...] = ()


class NodeObject(Struct, frozen=True):
    """v1.Node."""

    metadata: Meta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# --- pods ------------------------------------------------------------------------------------------------------------
class ResourceRequirements(Struct, frozen=True):
    """v1.ResourceRequirements: resource names to quantities."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Hook(Struct, frozen=True):
    """v1.LifecycleHandler, none of it."""


class Lifecycle(Struct, frozen=True, rename="camel"):
    """v1.Lifecycle, as far as it keeps a pod from running: what a hook does is not looked at."""

    post_start: Hook | None = None


class Container(Struct, frozen=True, rename="camel"):
    """v1.Container. `restart_policy` is `Always` for a sidecar among the init containers."""

    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str = ""
    lifecycle: Lifecycle = Lifecycle()


class Toleration(Struct, frozen=True, rename="camel"):
    """v1.Toleration."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodClaim(Struct, frozen=True):
    """v1.PodResourceClaim, its name only: whose devices a pod has, the claims say."""

    name: str


class SchedulingGate(Struct, frozen=True):
    """v1.PodSchedulingGate."""

    name: str


class SchedulingGroup(Struct, frozen=True, rename="camel"):
    """v1.PodSchedulingGroup: the PodGroup that a pod is of, which need not be there."""

    pod_group_name: str = ""


class PodSpec(Struct, frozen=True, rename="camel"):
    """v1.PodSpec."""

    node_name: str = ""
    scheduler_name: str = ""
    hostname: str = ""
    subdomain: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    """Pod-level requests; they override the containers' where set."""
    overhead: dict[str, str] = {}
    priority: int = 0
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    resource_claims: tuple[PodClaim, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    termination_grace_period_seconds: int = 30


class Terminated(Struct, frozen=True, rename="camel"):
    """v1.ContainerStateTerminated."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class Waiting(Struct, frozen=True):
    """v1.ContainerStateWaiting."""

    reason: str = ""
    message: str = ""


class ContainerState(Struct, frozen=True):
    """v1.ContainerState, but for `running`."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Struct, frozen=True, rename="camel"):
    """v1.ContainerStatus."""

    name: str = ""
    restart_count: int = 0
    ready: bool = False
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodStatus(Struct, frozen=True, rename="camel"):
    """v1.PodStatus."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    start_time: str | None = None


class PodObject(Struct, frozen=True):
    """v1.Pod."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def group(self) -> Controlling | None:
        """The PodGroup that it names, where others have made both; None where it names none. No UID is said."""
        ours = self.metadata.job and self.metadata.labels.get(LABEL_MANAGED) != "true"
        named = "" if ours or self.spec.scheduling_group is None else self.spec.scheduling_group.pod_group_name
        return Controlling(*POD_GROUP, f"{self.metadata.namespace}/{named}", "") if named else None

    @property
    def grace(self) -> int:
        """Seconds that it has to end once it is deleted, by its own spec. With none it would be gone before its kubelet
        has ended it."""
        return max(1, self.spec.termination_grace_period_seconds)

    @property
    def given_longer(self) -> bool:
        """Whether who deleted it gave it more time to end than its spec does: anybody who may delete a pod may give it
        any, and centuries have been seen. A second request that names less shortens it."""
        return (self.metadata.deletion_grace_period_seconds or 0) > self.grace

    @property
    def ends(self) -> float | None:
        """POSIX time by which it is to have ended, of which no more counts than its own grace; None while it is not
        deleted."""
        if self.metadata.deletion_timestamp is None:
            return None
        told = datetime.fromisoformat(self.metadata.deletion_timestamp).timestamp()
        return told - max(0, (self.metadata.deletion_grace_period_seconds or 0) - self.grace)


# --- devices (dynamic resource allocation, resource.k8s.io/v1) --------------------------------------------------------
class DeviceAttribute(Struct, frozen=True):
    """resource.k8s.io/v1 DeviceAttribute: one of these."""

    string: str | None = None
    version: str | None = None
    number: int | None = field(default=None, name="int")
    flag: bool | None = field(default=None, name="bool")


class DeviceCapacity(Struct, frozen=True):
    """resource.k8s.io/v1 DeviceCapacity: a quantity."""

    value: str = "0"


class DeviceTaint(Struct, frozen=True):
    """resource.k8s.io/v1 DeviceTaint. `effect` is None (only said), NoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = ""


class DeviceTaintSelector(Struct, frozen=True):
    """resource.k8s.io/v1beta2 DeviceTaintSelector: what is not given admits every device."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Struct, frozen=True, rename="camel"):
    """resource.k8s.io/v1beta2 DeviceTaintRuleSpec. Without a selector it is about no device."""

    taint: DeviceTaint
    device_selector: DeviceTaintSelector | None = None


class DeviceTaintRuleObject(Struct, frozen=True):
    """resource.k8s.io/v1beta2 DeviceTaintRule: a taint that an administrator, or a monitor, puts on devices."""

    metadata: Meta
    spec: DeviceTaintRuleSpec


class CounterConsumption(Struct, frozen=True, rename="camel"):
    """resource.k8s.io/v1 DeviceCounterConsumption: devices that consume one counter set are parts of one whole."""

    counter_set: str


class SliceDevice(Struct, frozen=True, rename="camel"):
    """resource.k8s.io/v1 Device. A name without a domain is of the driver's own."""

    name: str
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: tuple[CounterConsumption, ...] = ()
    taints: tuple[DeviceTaint, ...] = ()


class DevicePool(Struct, frozen=True, rename="camel"):
    """resource.k8s.io/v1 ResourcePool: only slices of its newest generation count, and only when all are there."""

    name: str
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(Struct, frozen=True, rename="camel"):
    """resource.k8s.io/v1 ResourceSliceSpec. `node_name` is empty where the devices are not of one node."""

    driver: str
    pool: DevicePool
    node_name: str = ""
    devices: tuple[SliceDevice, ...] = ()


class ResourceSliceObject(Struct, frozen=True):
    """resource.k8s.io/v1 ResourceSlice: devices that a driver offers on a node."""

    metadata: Meta
    spec: ResourceSliceSpec


class AllocatedDevice(Struct, frozen=True, rename="camel"):
    """resource.k8s.io/v1 DeviceRequestAllocationResult. Whoever has admin access takes the device from nobody."""

    driver: str
    pool: str
    device: str
    admin_access: bool = False


class DeviceAllocation(Struct, frozen=True):
    """resource.k8s.io/v1 DeviceAllocationResult."""

    results: tuple[AllocatedDevice, ...] = ()


class ClaimAllocation(Struct, frozen=True):
    """resource.k8s.io/v1 AllocationResult."""

    devices: DeviceAllocation = DeviceAllocation()


class ClaimConsumer(Struct, frozen=True):
    """resource.k8s.io/v1 ResourceClaimConsumerReference: mostly a pod."""

    resource: str
    uid: str


class ResourceClaimStatus(Struct, frozen=True, rename="camel"):
    """resource.k8s.io/v1 ResourceClaimStatus."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()


class ResourceClaimObject(Struct, frozen=True):
    """resource.k8s.io/v1 ResourceClaim: devices that pods have, or wait for."""

    metadata: Meta
    status: ResourceClaimStatus = ResourceClaimStatus()


class CelSelector(Struct, frozen=True):
    """resource.k8s.io/v1 CELDeviceSelector."""

    expression: str = ""


class DeviceSelector(Struct, frozen=True):
    """resource.k8s.io/v1 DeviceSelector."""

    cel: CelSelector | None = None


class DeviceClassSpec(Struct, frozen=True, rename="camel"):
    """resource.k8s.io/v1 DeviceClassSpec. All selectors have to choose a device."""

    extended_resource_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()


class DeviceClassObject(Struct, frozen=True):
    """resource.k8s.io/v1 DeviceClass."""

    metadata: Meta
    spec: DeviceClassSpec = DeviceClassSpec()


# --- ours, and what they refer to ------------------------------------------------------------------------------------
class CustomObject(Struct, frozen=True):
    """A custom resource whose spec and status are left as JSON, for `trimtab.api` to make sense of."""

    metadata: Meta
    spec: Raw = field(default_factory=lambda: Raw(b"{}"))
    status: Raw = field(default_factory=lambda: Raw(b"{}"))

    def __post_init__(self) -> None:
        # A decoded Raw is a view that keeps its whole list page in memory.
        force_setattr(self, "spec", self.spec.copy())
        force_setattr(self, "status", self.status.copy())


class JobObject(CustomObject, frozen=True):
    """trimtab.dev/v1alpha1 LLMTrainingJob."""


class QueueObject(CustomObject, frozen=True):
    """trimtab.dev/v1alpha1 Queue."""


class WorkloadObject(CustomObject, frozen=True):
    """kueue.x-k8s.io/v1beta2 Workload."""


class FlavorObject(CustomObject, frozen=True):
    """kueue.x-k8s.io/v1beta2 ResourceFlavor."""


class GpuNodeObject(Struct, frozen=True):
    """trimtab.dev/v1alpha1 GPUNode. The agent is the only writer of its readings."""

    metadata: Meta
    status: Raw = field(default_factory=lambda: Raw(b"{}"))

    def __post_init__(self) -> None:
        force_setattr(self, "status", self.status.copy())


class ConfigMapObject(Struct, frozen=True):
    """v1.ConfigMap, its text only."""

    metadata: Meta
    data: dict[str, str] = {}


class PriorityClassObject(Struct, frozen=True, rename="camel"):
    """scheduling.k8s.io/v1 PriorityClass."""

    metadata: Meta
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None
    """`Never`, or PreemptLowerPriority, which is the default."""
