"""An installation in which all is well, for tests to break in one place; and what a check says of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace
from tests.builders import NOW, gpunode_object, job_object, node_object, priority_class, queue_object

from trimtab import __version__, names
from trimtab.api.schema import definitions
from trimtab.doctor import rbac
from trimtab.doctor.checks import admission
from trimtab.doctor.checks.queues import COUNTED
from trimtab.doctor.findings import Finding, Severity
from trimtab.doctor.inventory import (
    AccessRight,
    Crd,
    Deployment,
    InstalledPart,
    Lease,
    Pod,
    PolicyBinding,
    ResourceQuota,
    Seen,
    ValidatingAdmissionPolicy,
    Version,
)
from trimtab.settings import Settings

OWN = names.SYSTEM_NAMESPACE


def time_at(seconds: float = 0.0) -> str:
    """RFC 3339 of a moment so many seconds after NOW."""
    return datetime.fromtimestamp(NOW + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def crd(definition: Mapping[str, Any]) -> Crd:
    """A CRD as the API server has it, established."""
    told = json.loads(json.dumps(definition))
    for version in told["spec"]["versions"]:
        version["schema"] = {"openAPIV3Schema": version["schema"]["openAPIV3Schema"]}
    told["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
    return msgspec.convert(told, Crd)


def crds() -> dict[str, Crd | None]:
    """All of them, as this version has them."""
    return dict(_crds())


@cache
def _crds() -> dict[str, Crd]:
    return {name: crd(definition) for name, definition in definitions().items()}


def lease(holder: str = "host_1", renewed: float = -1.0, *, version: int = 1, **spec: Any) -> Lease:
    """A Lease of 15 s that was renewed so many seconds after NOW; `made` is when it was created, the same way."""
    made = spec.pop("made", -86_400.0)
    told = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": time_at(renewed), "leaseTransitions": 3}
    meta = {"name": spec.pop("name", "l"), "resourceVersion": str(version), "creationTimestamp": time_at(made)}
    return msgspec.convert({"metadata": meta, "spec": told | spec}, Lease)


def pod(part: str, name: str = "", *, ready: bool = True, version: str = __version__, **spec: Any) -> Pod:
    """A pod of Trimtab itself; without a version, its image is given by its digest."""
    labels = {names.LABEL_PART: f"trimtab-{part}"}
    image = "registry.test:5000/trimtab-operator" + (f":{version}" if version else "@sha256:00")
    raw = {
        "metadata": {"name": name or f"trimtab-{part}-0", "namespace": OWN, "labels": labels},
        "spec": {"containers": [{"image": image}], **spec},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }
    return msgspec.convert(raw, Pod)


def gang_pod(
    name: str = "job-1-0",
    *,
    node: str = "",
    age: float = 120.0,
    scheduled: str | None = None,
    gated: bool = False,
    extender: bool = True,
) -> Pod:
    """A pod of a gang for the second kube-scheduler; `scheduled` is what that said of it."""
    told = [] if scheduled is None else [{"type": "PodScheduled", "status": "False", "message": scheduled}]
    raw = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "creationTimestamp": time_at(-age),
            "annotations": {names.ANNOTATION_BINDING: "Extender"} if extender else {},
        },
        "spec": {
            "schedulerName": names.SCHEDULER_NAME,
            "nodeName": node,
            "schedulingGates": [{"name": names.SCHEDULING_GATE}] if gated else [],
        },
        "status": {"conditions": told},
    }
    return msgspec.convert(raw, Pod)


def deployment(version: str = __version__) -> Deployment:
    """The controller's, as the chart labels it."""
    labels = {names.LABEL_VERSION: version} if version else {}
    meta = {"name": names.CONTROLLER_ACCOUNT, "namespace": OWN, "labels": labels}
    containers = [{"image": "registry.test:5000/trimtab-operator@sha256:00"}]
    return msgspec.convert({"metadata": meta, "spec": {"template": {"spec": {"containers": containers}}}}, Deployment)


def rules(name: str, warns: str = "") -> ValidatingAdmissionPolicy:
    """An admission policy, as the API server has looked at it."""
    checked = (
        {"expressionWarnings": [{"fieldRef": "spec.validations[0].expression", "warning": warns}]} if warns else {}
    )
    limits = {"maxGpusPerJob": "1024", "openPriorityClasses": "''", "fakeAnnotations": "'Deny'", "gpus": "1"}
    told = [{"name": limit, "expression": value} for limit, value in limits.items()]
    spec = {"variables": told} if name == admission.LIMITED else {}
    return msgspec.convert(
        {"metadata": {"name": name}, "spec": spec, "status": {"typeChecking": checked}}, ValidatingAdmissionPolicy
    )


def in_force(name: str, action: str = "Deny") -> PolicyBinding:
    """The binding of an admission policy."""
    spec = {"policyName": name, "validationActions": [action]}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, PolicyBinding)


def quota(namespace: str, *counted: str) -> ResourceQuota:
    """A ResourceQuota of 200 of each."""
    meta = {"name": "jobs", "namespace": namespace}
    return msgspec.convert({"metadata": meta, "spec": {"hard": dict.fromkeys(counted, "200")}}, ResourceQuota)


def granted(wanted: tuple[rbac.Need, ...], *, without: str = "") -> tuple[AccessRight, ...]:
    """All rights of these needs but the one told so."""
    rights = [(need, right) for need in wanted for right in need.rights(OWN)]
    return tuple(AccessRight(need, right, right.told() != without) for need, right in rights)


def part(title: str, wanted: tuple[rbac.Need, ...], **changes: Any) -> InstalledPart:
    made = InstalledPart(
        title, OWN, f"trimtab-{title}", True, True, granted(wanted, without=changes.pop("without", ""))
    )
    return replace(made, **changes)


def healthy(**changes: Any) -> Seen:
    """An installation with Extender binding, agents and a job; nothing is wrong with it."""
    seen = Seen(
        settings=Settings(),
        namespace=OWN,
        version=Version("1", "36", "v1.36.3"),
        server="https://10.0.0.1:6443",
        now=NOW,
        own=granted(rbac.OF_USER),
        parts=(
            part("controller", rbac.OF_CONTROLLER),
            part("extender", rbac.OF_EXTENDER),
            part("agent", rbac.OF_AGENT),
        ),
        crds=crds(),
        rules=tuple(rules(name) for name in (*admission.POLICIES, admission.OF_AGENTS)),
        in_force=tuple(in_force(name) for name in (*admission.POLICIES, admission.OF_AGENTS)),
        deployment=deployment(),
        lease=(lease("trimtab-controller-0_ab12", -3.0), lease("trimtab-controller-0_ab12", -1.0, version=2)),
        scheduler_lease=lease("trimtab-scheduler-0_cd34"),
        pods=(
            pod("controller", version=""),
            pod("extender"),
            pod("agent", nodeName="n1"),
            pod("scheduler", version="v1.36.3"),
        ),
        nodes=(node_object("n1", labels={"nvidia.com/gpu.count": "8"}),),
        node_leases=(lease("n1", -8.0, name="n1", leaseDurationSeconds=40),),
        jobs=(job_object(creation_timestamp=time_at(-5)),),
        queues=(queue_object("research", {"gpuType": "A100-SXM4-80GB", "gpus": 8}),),
        quotas=(quota("default", COUNTED),),
        classes=(priority_class("high", 1000),),
        reports=(gpunode_object("n1", observedTime=time_at(-20)),),
        policy={"policy": "fcfs"},
        scheduler={"scheduler.yaml": scheduler_yaml()},
        kueue=("v1beta1", "v1beta2"),
    )
    return replace(seen, **changes)


def scheduler_yaml(edit: Callable[[dict[str, Any]], None] = lambda told: None) -> str:
    """The configuration of manifests/scheduler.yaml, edited."""
    from tests.extender.test_manifests import SCHEDULER, the

    told = yaml.safe_load(the("ConfigMap", SCHEDULER)["data"]["scheduler.yaml"])
    edit(told)
    return yaml.safe_dump(told)


def say(look: Callable[[Seen], Iterator[Finding]], seen: Seen) -> list[Finding]:
    return list(look(seen))


def wrong(look: Callable[[Seen], Iterator[Finding]], seen: Seen) -> list[Finding]:
    """What the check complains of; each complaint has a reason and a remedy."""
    found = [each for each in look(seen) if each.level in (Severity.WARNING, Severity.ERROR)]
    assert all(each.reason and each.fix for each in found)
    return found


def only(look: Callable[[Seen], Iterator[Finding]], seen: Seen) -> Finding:
    """The one thing that the check says."""
    (finding,) = look(seen)
    return finding
