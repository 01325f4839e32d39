"""The rights that each part of Trimtab needs, and what for. tests/doctor holds them equal to those of manifests/: the
installed package has no manifests, and a right that is missing is to be told with what it is missing for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from msgspec import Struct

from trimtab import names

NODE_LEASES = "kube-node-lease"
"""Namespace in which kubelets renew a Lease each."""
READ = ("get", "list", "watch")
_TRIMTAB, _SCHEDULING, _KUEUE, _COORDINATION = (
    names.GROUP,
    "scheduling.k8s.io",
    names.KUEUE_GROUP,
    "coordination.k8s.io",
)


BINDING_MODE = "TRIMTAB_BINDING__MODE"
"""Variable of the controller; like others it tells what the controller does, and so what it needs."""
_WITH_KUEUE = ("TRIMTAB_INTEROP__KUEUE", "Auto")
_WITH_OTHER_KINDS = ("TRIMTAB_INTEROP__OTHER_KINDS", "Advise")
_WITH_PLACE = ("TRIMTAB_INTEROP__PLACE", "Labelled")
_WITH_REPORTS = ("TRIMTAB_REPORTS__ENABLED", "true")
_WITH_REFERENCES = ("TRIMTAB_GANG__CHECK_REFERENCES", "true")
_WITH_REVIEWS = ("TRIMTAB_METRICS__AUTHENTICATION", "Kubernetes")


class Right(Struct, frozen=True):
    """One verb on one resource, as RBAC has it."""

    verb: str
    group: str
    """API group; empty for the core."""
    resource: str
    """Plural, with the subresource behind a slash."""
    name: str = ""
    """Only the object of this name; empty for all."""
    namespace: str = ""
    """Only in this namespace; empty for everywhere."""

    def told(self) -> str:
        """`list nodes`, `get leases.coordination.k8s.io/trimtab-controller in trimtab-system`."""
        kind, _, sub = self.resource.partition("/")
        resource = (f"{kind}.{self.group}" if self.group else kind) + (f"/{sub}" if sub else "")
        named = f" {self.name!r}" if self.name else ""
        return f"{self.verb} {resource}{named}" + (f" in {self.namespace}" if self.namespace else "")


class Need(Struct, frozen=True):
    """A rule of RBAC with what it is for."""

    why: str
    """What does not work without it."""
    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    own: bool = False
    """Only in the namespace of the controller."""
    optional: bool = False
    """Only with something that is not always there."""
    setting: tuple[str, str] = ("", "")
    """Only where this variable of the part's pods has this value."""
    unless_said: bool = True
    """Whether it is used by pods that say nothing in that variable."""
    role: str = ""
    """ClusterRole of the chart that gives it, where it is not that of the part itself."""

    def used(self, said: Collection[str]) -> bool:
        """Whether a part makes such calls whose pods say this in that variable."""
        return self.setting[1] in said if said else self.unless_said

    def rights(self, namespace: str) -> Iterator[Right]:
        """One by one; `namespace` is the controller's own."""
        where = namespace if self.own else ""
        for resource in self.resources:
            for verb in self.verbs:
                for name in self.names or ("",):
                    yield Right(verb, self.group, resource, name, where)

    def rule(self) -> dict[str, Any]:
        """As a rule of a Role or ClusterRole."""
        named = {"resourceNames": list(self.names)} if self.names else {}
        return {"apiGroups": [self.group], "resources": list(self.resources), **named, "verbs": list(self.verbs)}


OF_CONTROLLER = (
    Need("it sees no nodes", "", ("nodes",), READ),
    Need(
        "it sees no GPUs that come by dynamic resource allocation, nor who has them",
        names.DEVICE_GROUP,
        ("resourceslices", "resourceclaims", "deviceclasses"),
        READ,
        optional=True,
    ),
    Need(
        "it counts GPUs that DeviceTaintRules keep pods away from",
        names.DEVICE_GROUP,
        ("devicetaintrules",),
        READ,
        optional=True,
    ),
    Need("it knows no priorities", _SCHEDULING, ("priorityclasses",), READ),
    Need("it sees no jobs", _TRIMTAB, ("llmtrainingjobs", "queues", "gpunodes"), READ),
    Need("it cannot plan any job", _TRIMTAB, ("llmtrainingjobs/status", "queues/status"), ("patch", "update")),
    Need("it cannot say which nodes are healthy", _TRIMTAB, ("gpunodes/status",), ("patch",)),
    Need(
        "it cannot own pods where owner references are enforced", _TRIMTAB, ("llmtrainingjobs/finalizers",), ("update",)
    ),
    Need("it cannot start gangs", "", ("pods",), (*READ, "create", "delete")),
    Need("it cannot bind pods", "", ("pods/binding",), ("create",), setting=(BINDING_MODE, "Direct")),
    Need(
        "that a job names a claim or ServiceAccount that is not there shows only when its pods do not start",
        "",
        ("persistentvolumeclaims", "serviceaccounts"),
        ("get",),
        optional=True,
        setting=_WITH_REFERENCES,
    ),
    Need(
        "that a job names a Secret or ConfigMap that is not there shows only when its pods do not start",
        "",
        ("secrets", "configmaps"),
        ("create",),
        optional=True,
        setting=_WITH_REFERENCES,
    ),
    Need("pods of a gang do not find one another", "", ("services",), (*READ, "create")),
    Need("it cannot ask gangs for a checkpoint, or release them", "", ("pods",), ("patch",)),
    Need(
        "kube-scheduler does not hear of gangs",
        _SCHEDULING,
        ("podgroups",),
        (*READ, "create", "delete"),
        optional=True,
        setting=(BINDING_MODE, "Extender"),
    ),
    Need(
        "its gangs cannot claim GPUs of a DeviceClass that has no extended resource",
        names.DEVICE_GROUP,
        ("resourceclaimtemplates",),
        (*READ, "create", "delete"),
        optional=True,
        setting=(BINDING_MODE, "Extender"),
    ),
    Need(
        "its gangs get no ComputeDomains: no NVLink between nodes",
        names.COMPUTE_DOMAIN_GROUP,
        ("computedomains",),
        (*READ, "create", "delete"),
        optional=True,
        setting=(BINDING_MODE, "Extender"),
    ),
    Need(
        "it cannot ask Kueue",
        _KUEUE,
        ("workloads",),
        (*READ, "create", "patch", "delete"),
        optional=True,
        setting=_WITH_KUEUE,
    ),
    Need("it cannot answer Kueue", _KUEUE, ("workloads/status",), ("patch",), optional=True, setting=_WITH_KUEUE),
    Need("it does not know Kueue's flavors", _KUEUE, ("resourceflavors",), READ, optional=True, setting=_WITH_KUEUE),
    Need("it takes no reports", "authentication.k8s.io", ("tokenreviews",), ("create",), setting=_WITH_REPORTS),
    Need("it cannot say why it did what it did", "events.k8s.io", ("events",), ("create", "patch")),
    Need("it cannot lead", _COORDINATION, ("leases",), ("create",), own=True),
    Need("it cannot lead", _COORDINATION, ("leases",), ("get", "update"), (names.LEASE_NAME,), own=True),
    Need("policies cannot be changed while it runs", "", ("configmaps",), READ, (names.POLICY_CONFIG_MAP,), own=True),
    Need("what it learns is lost", "", ("configmaps",), ("create",), own=True),
    Need(
        "a policy that was found to be worse decides again after a restart",
        "",
        ("configmaps",),
        ("get", "patch"),
        (names.MONITOR_CONFIG_MAP,),
        own=True,
    ),
    Need(
        "what it learns is lost",
        "",
        ("configmaps",),
        ("get", "patch"),
        (names.CALIBRATION_CONFIG_MAP,),
        own=True,
        setting=_WITH_REPORTS,
    ),
)
OF_ADVISOR = tuple(
    Need(
        f"{what} hear nothing of what would be decided about them",
        group,
        resources,
        verbs,
        optional=True,
        setting=_WITH_OTHER_KINDS,
        unless_said=False,
        role="trimtab-controller-other-kinds",
    )
    for what, group, resources, verbs in (
        ("Jobs", "batch", ("jobs",), (*READ, "patch")),
        ("JobSets", "jobset.x-k8s.io", ("jobsets",), (*READ, "patch")),
        ("PyTorchJobs and MPIJobs", "kubeflow.org", ("pytorchjobs", "mpijobs"), (*READ, "patch")),
        ("TrainJobs", "trainer.kubeflow.org", ("trainjobs",), (*READ, "patch")),
        ("TrainJobs", "trainer.kubeflow.org", ("trainingruntimes", "clustertrainingruntimes"), ("get",)),
        ("RayJobs and RayClusters", "ray.io", ("rayjobs", "rayclusters"), (*READ, "patch")),
        ("Jobs of Volcano", "batch.volcano.sh", ("jobs",), (*READ, "patch")),
    )
)
OF_PLACER = tuple(
    Need(why, group, resources, verbs, setting=_WITH_PLACE, unless_said=False, role="trimtab-controller-place")
    for why, group, resources, verbs in (
        ("Jobs are not placed", "batch", ("jobs",), (*READ, "patch")),
        ("JobSets are not placed", "jobset.x-k8s.io", ("jobsets",), (*READ, "patch")),
        ("PyTorchJobs and MPIJobs are not placed", "kubeflow.org", ("pytorchjobs", "mpijobs"), (*READ, "patch")),
        ("TrainJobs are not placed", "trainer.kubeflow.org", ("trainjobs",), (*READ, "patch")),
        ("RayJobs are not placed", "ray.io", ("rayjobs",), (*READ, "patch")),
        ("the pods of RayJobs are not found", "ray.io", ("rayclusters",), READ),
        ("PodGroups are not placed", "scheduling.k8s.io", ("podgroups",), (*READ, "patch")),
        (
            "nothing stands in for jobs that are to be placed",
            _TRIMTAB,
            ("llmtrainingjobs",),
            ("create", "patch", "delete"),
        ),
    )
)
OF_REVIEWER = tuple(
    Need(
        f"it cannot ask {what}, and tells nobody metrics",
        group,
        (resource,),
        ("create",),
        setting=_WITH_REVIEWS,
        unless_said=False,
        role="trimtab-metrics-reviewer",
    )
    for what, group, resource in (
        ("whose token a scraper shows", "authentication.k8s.io", "tokenreviews"),
        ("who may read metrics", "authorization.k8s.io", "subjectaccessreviews"),
    )
)
"""Of the controller and the extender besides, where they let in only scrapers whom the API server knows."""
OF_EXTENDER = (Need("it does not know what is planned where", "", ("nodes", "pods"), ("list", "watch")),)
OF_AGENT = (
    Need("it cannot report", _TRIMTAB, ("gpunodes",), ("get", "create", "patch")),
    Need("it cannot report", _TRIMTAB, ("gpunodes/status",), ("patch",)),
    Need("its reports outlive their node", "", ("nodes",), ("get",)),
)
OF_USER = (
    Need("`trimtab get`, `plan` and `explain` cannot show the cluster", "", ("nodes", "pods"), ("list",)),
    Need("`trimtab get`, `plan` and `explain` cannot show jobs", _TRIMTAB, ("llmtrainingjobs", "queues"), ("list",)),
    Need("`trimtab get`, `plan` and `explain` do not know priorities", _SCHEDULING, ("priorityclasses",), ("list",)),
    Need("`trimtab get nodes` shows no readings", _TRIMTAB, ("gpunodes",), ("list",), optional=True),
    Need(
        "nodes whose GPUs come by dynamic resource allocation look empty",
        names.DEVICE_GROUP,
        ("resourceslices", "resourceclaims", "deviceclasses"),
        ("list",),
        optional=True,
    ),
    Need(
        "GPUs that DeviceTaintRules keep pods away from look usable",
        names.DEVICE_GROUP,
        ("devicetaintrules",),
        ("list",),
        optional=True,
    ),
)
OF_DOCTOR = (
    *OF_USER,
    Need(
        "whether the API is as this version has it",
        "apiextensions.k8s.io",
        ("customresourcedefinitions",),
        ("get",),
        tuple(f"{plural}.{names.GROUP}" for plural in (names.JOB_PLURAL, names.QUEUE_PLURAL, names.GPUNODE_PLURAL)),
    ),
    Need(
        "whether authors of jobs are held to rules",
        "admissionregistration.k8s.io",
        ("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
        ("list",),
    ),
    Need(
        "whether daemons of ComputeDomains become ready",
        names.COMPUTE_DOMAIN_GROUP,
        ("computedomains",),
        ("list",),
        optional=True,
    ),
    Need("whether the jobs of a namespace have a bound", "", ("resourcequotas",), ("list",)),
    Need("what service accounts may do", "authorization.k8s.io", ("subjectaccessreviews",), ("create",)),
    Need("whether the clocks of nodes agree", _COORDINATION, ("leases",), ("list",)),
    Need("which service accounts there are", "", ("serviceaccounts",), ("list",), own=True),
    Need("who leads", _COORDINATION, ("leases",), ("get",), (names.LEASE_NAME, names.SCHEDULER_ACCOUNT), own=True),
    Need("which version is installed", "apps", ("deployments",), ("get",), (names.CONTROLLER_ACCOUNT,), own=True),
    Need(
        "how policies and the scheduler are set",
        "",
        ("configmaps",),
        ("get",),
        (names.POLICY_CONFIG_MAP, names.MONITOR_CONFIG_MAP, names.SCHEDULER_ACCOUNT),
        own=True,
    ),
)
"""Without `--certificates`, which asks for `get` on two Secrets (`names.EXTENDER_SECRETS`) as well."""


def roles_of_doctor(namespace: str, user: str) -> list[dict[str, Any]]:
    """A ClusterRole, a Role in the controller's namespace and one where nodes have their Leases, bound to a user: all
    that the doctor reads. A service account is a user, too: `system:serviceaccount:NAMESPACE:NAME`."""
    of_nodes = [need for need in OF_DOCTOR if need.group == _COORDINATION and not need.own]
    everywhere = [need for need in OF_DOCTOR if not need.own and need not in of_nodes]
    own = [need for need in OF_DOCTOR if need.own]
    return [*_bound("", everywhere, user), *_bound(namespace, own, user), *_bound(NODE_LEASES, of_nodes, user)]


def _bound(namespace: str, needs: list[Need], user: str) -> list[dict[str, Any]]:
    """A role and its binding; no namespace: for the whole cluster."""
    group, scope = "rbac.authorization.k8s.io", "" if namespace else "Cluster"
    meta = {"name": "trimtab-doctor"} | ({"namespace": namespace} if namespace else {})
    common = {"apiVersion": f"{group}/v1", "metadata": meta}
    role = common | {"kind": f"{scope}Role", "rules": [need.rule() for need in needs]}
    reference = {"apiGroup": group, "kind": f"{scope}Role", "name": meta["name"]}
    subject = {"apiGroup": group, "kind": "User", "name": user}
    return [role, common | {"kind": f"{scope}RoleBinding", "roleRef": reference, "subjects": [subject]}]
