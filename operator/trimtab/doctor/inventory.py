"""Everything that the checks look at, as one value. What could not be looked at is `Unknown`, and says why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Struct

from trimtab import names
from trimtab.doctor.rbac import Need, Right
from trimtab.kube.objects import (
    DeviceClassObject,
    DeviceTaintRuleObject,
    GpuNodeObject,
    JobObject,
    Meta,
    NodeObject,
    PriorityClassObject,
    QueueObject,
    ResourceSliceObject,
)
from trimtab.settings import Settings

T = TypeVar("T")


class Unknown(Struct, frozen=True):
    """Could not be looked at."""

    why: str
    """A sentence."""
    fix: str = ""
    """What would let it be looked at, mostly a right."""


class NotSeen(Exception):
    """A check needs what is Unknown."""

    def __init__(self, unknown: Unknown) -> None:
        super().__init__(unknown.why)
        self.unknown = unknown


def known(value: T | Unknown) -> T:
    """The value. Raises NotSeen where it is Unknown: the check that asks is then told of as not made."""
    if isinstance(value, Unknown):
        raise NotSeen(value)
    return value


def posix(timestamp: str | None) -> float | None:
    """POSIX seconds of an RFC 3339 time; None where there is none, or none that makes sense."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else None
    except ValueError:
        return None


# --- kinds of which only the doctor looks at these fields -----------------------------------------------------------
class LeaseSpec(Struct, frozen=True, rename="camel"):
    """coordination.k8s.io/v1 LeaseSpec."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Struct, frozen=True):
    """coordination.k8s.io/v1 Lease."""

    metadata: Meta
    spec: LeaseSpec = LeaseSpec()

    @property
    def holder(self) -> str:
        return self.spec.holder_identity or ""

    @property
    def seconds(self) -> float:
        """How long it is good for after it was renewed."""
        return float(self.spec.lease_duration_seconds or 0)

    def age(self, now: float) -> float | None:
        """Seconds since it was renewed, as its holder's clock has it; None where it never was."""
        renewed = posix(self.spec.renew_time)
        return None if renewed is None else now - renewed


class Variable(Struct, frozen=True):
    """v1.EnvVar, where it has a value of its own."""

    name: str
    value: str = ""


class InstalledContainer(Struct, frozen=True):
    """v1.Container."""

    image: str = ""
    env: tuple[Variable, ...] = ()


class Gate(Struct, frozen=True):
    """v1.PodSchedulingGate."""

    name: str


class PodSpec(Struct, frozen=True, rename="camel"):
    """v1.PodSpec."""

    node_name: str = ""
    scheduler_name: str = ""
    service_account_name: str = ""
    scheduling_gates: tuple[Gate, ...] = ()
    containers: tuple[InstalledContainer, ...] = ()


class ObjectCondition(Struct, frozen=True, rename="camel"):
    """A condition of a pod or a CustomResourceDefinition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class PodStatus(Struct, frozen=True):
    """v1.PodStatus."""

    phase: str = ""
    conditions: tuple[ObjectCondition, ...] = ()


class Pod(Struct, frozen=True):
    """v1.Pod, of Trimtab itself or of a gang."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def part(self) -> str:
        """Which part of Trimtab it is: `controller`, `extender`, `agent`, `scheduler`; empty for a pod of a gang."""
        labels = self.metadata.labels
        _, _, suffix = labels.get(names.LABEL_PART, "").partition("trimtab-")
        return suffix or labels.get(names.LABEL_COMPONENT, "")

    @property
    def ready(self) -> bool:
        return any(told.type == "Ready" and told.status == "True" for told in self.status.conditions)

    @property
    def version(self) -> str:
        """As its label says, else the tag of its image; empty where neither does (`latest` is no version)."""
        return _version(self.metadata, self.spec)

    def variable(self, name: str) -> str:
        """Value of an environment variable of its containers; empty where none has it."""
        return next((each.value for program in self.spec.containers for each in program.env if each.name == name), "")


class Template(Struct, frozen=True):
    """v1.PodTemplateSpec."""

    spec: PodSpec = PodSpec()


class DeploymentSpec(Struct, frozen=True):
    """apps/v1 DeploymentSpec."""

    template: Template = Template()


class Deployment(Struct, frozen=True):
    """apps/v1 Deployment."""

    metadata: Meta
    spec: DeploymentSpec = DeploymentSpec()

    @property
    def version(self) -> str:
        """As that of a pod."""
        return _version(self.metadata, self.spec.template.spec)


def _version(meta: Meta, spec: PodSpec) -> str:
    image = spec.containers[0].image.partition("@")[0] if spec.containers else ""
    _, _, tag = image.rpartition("/")[2].partition(":")
    told = meta.labels.get(names.LABEL_VERSION) or (tag if re.match(r"v?\d+\.\d", tag) else "")
    return told.removeprefix("v")


class ImexDaemon(Struct, frozen=True):
    """resource.nvidia.com/v1beta1 ComputeDomainNode: the daemon of a domain on one node."""

    name: str
    """Of the node."""
    status: str = ""


class ComputeDomainStatus(Struct, frozen=True):
    """resource.nvidia.com/v1beta1 ComputeDomainStatus."""

    nodes: tuple[ImexDaemon, ...] = ()


class ComputeDomain(Struct, frozen=True):
    """resource.nvidia.com/v1beta1 ComputeDomain."""

    metadata: Meta
    status: ComputeDomainStatus = ComputeDomainStatus()


class ExpressionWarning(Struct, frozen=True, rename="camel"):
    """admissionregistration.k8s.io/v1 ExpressionWarning."""

    field_ref: str
    warning: str


class Checked(Struct, frozen=True, rename="camel"):
    """admissionregistration.k8s.io/v1 TypeChecking."""

    expression_warnings: tuple[ExpressionWarning, ...] = ()


class RulesStatus(Struct, frozen=True, rename="camel"):
    """admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyStatus."""

    type_checking: Checked | None = None


class PolicyVariable(Struct, frozen=True):
    """admissionregistration.k8s.io/v1 Variable."""

    name: str
    expression: str = ""


class RulesSpec(Struct, frozen=True):
    """admissionregistration.k8s.io/v1 ValidatingAdmissionPolicySpec."""

    variables: tuple[PolicyVariable, ...] = ()


class ValidatingAdmissionPolicy(Struct, frozen=True):
    """admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy."""

    metadata: Meta
    spec: RulesSpec = RulesSpec()
    status: RulesStatus = RulesStatus()


class InForceSpec(Struct, frozen=True, rename="camel"):
    """admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBindingSpec."""

    policy_name: str = ""
    validation_actions: tuple[str, ...] = ()


class PolicyBinding(Struct, frozen=True):
    """admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding."""

    metadata: Meta
    spec: InForceSpec = InForceSpec()


class QuotaSpec(Struct, frozen=True):
    """v1.ResourceQuotaSpec."""

    hard: dict[str, Any] = {}


class ResourceQuota(Struct, frozen=True):
    """v1.ResourceQuota."""

    metadata: Meta
    spec: QuotaSpec = QuotaSpec()


class CrdVersion(Struct, frozen=True):
    """apiextensions.k8s.io/v1 CustomResourceDefinitionVersion."""

    name: str
    served: bool = False
    schema: dict[str, Any] = {}
    subresources: dict[str, Any] = {}


class CrdSpec(Struct, frozen=True):
    """apiextensions.k8s.io/v1 CustomResourceDefinitionSpec."""

    scope: str = ""
    versions: tuple[CrdVersion, ...] = ()


class CrdStatus(Struct, frozen=True):
    """apiextensions.k8s.io/v1 CustomResourceDefinitionStatus."""

    conditions: tuple[ObjectCondition, ...] = ()


class Crd(Struct, frozen=True):
    """apiextensions.k8s.io/v1 CustomResourceDefinition."""

    metadata: Meta
    spec: CrdSpec = CrdSpec()
    status: CrdStatus = CrdStatus()


class Version(Struct, frozen=True, rename="camel"):
    """version.Info of apimachinery, the part that is looked at."""

    major: str = "0"
    minor: str = "0"
    """With a `+` behind it in the clouds of some vendors."""
    git_version: str = ""


# --- answers of the API server --------------------------------------------------------------------------------------
class AccessRight(Struct, frozen=True):
    """Whether somebody has a right."""

    need: Need
    right: Right
    allowed: bool


class InstalledPart(Struct, frozen=True):
    """A service account, and what it may do."""

    title: str
    namespace: str
    account: str
    runs: bool
    """There are pods of it."""
    exists: bool | Unknown
    grants: tuple[AccessRight, ...] | Unknown = ()

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.account}"


class Seen(Struct, frozen=True):
    """One look at an installation."""

    settings: Settings
    """As this command has them; the controller may have others."""
    namespace: str
    """The controller's."""
    version: Version | Unknown
    """The API server's."""
    server: str = ""
    """Its URL."""
    ahead: float = 0.0
    """Seconds that this machine's clock is ahead of the API server's; 0 where they may agree."""
    now: float = 0.0
    """When it was looked, in POSIX seconds by the API server's clock."""
    own: tuple[AccessRight, ...] | Unknown = ()
    """What whoever asks may do."""
    parts: tuple[InstalledPart, ...] | Unknown = ()
    crds: Mapping[str, Crd | None] | Unknown = {}
    """By name; None where there is none."""
    rules: tuple[ValidatingAdmissionPolicy, ...] | Unknown = ()
    """Admission policies, of whomever."""
    in_force: tuple[PolicyBinding, ...] | Unknown = ()
    """Their bindings."""
    deployment: Deployment | Unknown | None = None
    """The controller's, where it is one."""
    lease: tuple[Lease, ...] | Unknown = ()
    """The controller's, as often as it was found changed; empty where there is none."""
    scheduler_lease: Lease | Unknown | None = None
    pods: tuple[Pod, ...] | Unknown = ()
    """Of Trimtab itself."""
    gang_pods: tuple[Pod, ...] | Unknown = ()
    nodes: tuple[NodeObject, ...] | Unknown = ()
    slices: tuple[ResourceSliceObject, ...] | Unknown = ()
    """What drivers of dynamic resource allocation offer; none where that is not served."""
    device_classes: tuple[DeviceClassObject, ...] | Unknown = ()
    taint_rules: tuple[DeviceTaintRuleObject, ...] | Unknown = ()
    """Taints that others than the drivers put on devices."""
    compute_domains: tuple[ComputeDomain, ...] | Unknown = ()
    """Of whomever; none where NVIDIA's driver is not installed."""
    device_plugins: tuple[Pod, ...] | Unknown = ()
    """Pods of NVIDIA's device plugin."""
    unreadable: tuple[str, ...] = ()
    """Objects that are there and cannot be read, as `resourceslices n1`: they count nowhere."""
    node_leases: tuple[Lease, ...] | Unknown = ()
    jobs: tuple[JobObject, ...] | Unknown = ()
    queues: tuple[QueueObject, ...] | Unknown = ()
    quotas: tuple[ResourceQuota, ...] | Unknown = ()
    """ResourceQuotas of all namespaces."""
    classes: tuple[PriorityClassObject, ...] | Unknown = ()
    reports: tuple[GpuNodeObject, ...] | Unknown = ()
    policy: Mapping[str, str] | Unknown | None = None
    standing: Mapping[str, str] | Unknown | None = None
    """Data of the ConfigMap; None where there is none."""
    scheduler: Mapping[str, str] | Unknown | None = None
    """The same of the second kube-scheduler's."""
    certificates: Mapping[str, bytes] | Unknown = {}
    """Secret -> its certificate in PEM."""
    kueue: tuple[str, ...] | Unknown = ()
    """Versions of its API that are served; none where it is not installed."""

    def of(self, part: str) -> list[Pod]:
        """Pods of one part of Trimtab. Raises NotSeen."""
        return [pod for pod in known(self.pods) if pod.part == part]
