"""What a pod takes of its node, counted as the kube-scheduler and the kubelet count it.

Effective request (k8s.io/component-helpers/resource, PodRequests): the containers and sidecars together, or the
largest init container with the sidecars started before it, whichever is more; plus overhead. Pod-level requests
override where they are set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from trimtab import names
from trimtab.errors import QuantityError
from trimtab.kube.objects import Container, Identity, Meta, PodObject, PodSpec
from trimtab.kube.quantity import to_int, to_milli

TERMINAL = ("Succeeded", "Failed")
OVERSTAY_SECONDS = 120.0
"""A pod that is still there so long after its time was over is not waited for: its node cannot end it, or a finalizer
keeps it. Kubelets that are busy take some ten seconds."""
ENDING_SECONDS = 60.0
"""A pod that is to have ended so soon is worth waiting for. It may have hours, where its spec says so."""
_QUANTITIES = ("requests", "limits", "overhead")


class PodUse(Struct, frozen=True):
    """Resources that a pod holds on its node for as long as it is not terminal."""

    gpus: int
    cpu_milli: int
    memory: int


Seat = tuple[str, str, str]
"""UID of a job, epoch of its plan, node rank."""


class PodFacts(Struct, frozen=True):
    """A pod and what it takes of its node."""

    node: str
    """Where it holds resources; empty when it holds none."""
    use: PodUse
    seat: Seat | None
    """Whose part of which plan it has brought to a node."""
    job: Identity | None = None
    """The job whose gang it is of, by its owner; None where it is of none. Whoever looks at the seat has seen that it
    is this very job, and not one of another name or namespace."""
    queue: str = ""
    """That it counts against, as it was made; empty where it was made without saying so."""
    ends: float | None = None
    """POSIX time by which it is to have ended, where it has been deleted and holds its resources until then."""
    uid: str = ""
    claims: bool = False
    """Whether it has devices by claims, of which its requests say nothing."""
    member: Seat | None = None
    """Whose part of which plan it is, on a node or not."""


def facts(pod: PodObject) -> PodFacts:
    """What has to be known about a pod to account for it."""
    node = pod.spec.node_name if holds_resources(pod) else ""
    ends = pod.ends if node else None
    member = _seat(pod)
    return PodFacts(
        node,
        use(pod),
        member if pod.spec.node_name else None,
        pod.metadata.job,
        pod.metadata.annotations.get(names.ANNOTATION_QUEUE, ""),
        ends,
        pod.metadata.uid,
        bool(pod.spec.resource_claims),
        member,
    )


def broken(pod: PodObject, error: Exception) -> PodFacts:
    """A pod that nothing can be made of: it is on its node, and what it takes there nobody knows."""
    return PodFacts(pod.spec.node_name if holds_resources(pod) else "", PodUse(0, 0, 0), None, uid=pod.metadata.uid)


def use(pod: PodObject) -> PodUse:
    """Effective requests of a pod. A quantity that cannot be read counts as nothing: the API server admits none."""
    gpus = sum(request(pod, resource) for resource in names.GPU_RESOURCES)
    return PodUse(gpus, request(pod, "cpu"), request(pod, "memory"))


def holds_resources(pod: PodObject) -> bool:
    """Whether the pod is on a node and has not ended."""
    return bool(pod.spec.node_name) and pod.status.phase not in TERMINAL


def _seat(pod: PodObject) -> Seat | None:
    labels = pod.metadata.labels
    job = pod.metadata.job
    return (job.uid, labels.get(names.LABEL_EPOCH, ""), labels.get(names.LABEL_RANK, "")) if job else None


def epoch_of(pod: PodObject) -> int:
    """Epoch of the plan that the pod was made for; 0 where its label says none."""
    told = pod.metadata.labels.get(names.LABEL_EPOCH, "")
    return int(told) if told.isdecimal() else 0


def from_template(pod_spec: Mapping[str, Any]) -> PodObject:
    """The pod that a template stands for, read as if it came from the API server.

    Raises msgspec.ValidationError for a field of the wrong type.
    """
    return PodObject(Meta(name="template"), msgspec.convert(_as_stored(pod_spec), PodSpec))


def request(pod: PodObject, resource: str) -> int:
    """Effective request of one resource: millicores for cpu, whole units for all others."""
    spec = pod.spec
    if resource in spec.resources.requests:
        return _amount(spec.resources.requests, resource) + _amount(spec.overhead, resource)
    running = sum(_of_container(container, resource) for container in spec.containers)
    sidecars = peak = 0
    for container in spec.init_containers:
        if container.restart_policy == "Always":
            sidecars += _of_container(container, resource)
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + _of_container(container, resource))
    return max(running + sidecars, peak) + _amount(spec.overhead, resource)


def _of_container(container: Container, resource: str) -> int:
    """Requests default to limits: the API server fills them in, a template does not have them yet."""
    chosen = container.resources.requests if resource in container.resources.requests else container.resources.limits
    return _amount(chosen, resource)


def _amount(quantities: dict[str, str], resource: str) -> int:
    quantity = quantities.get(resource)
    if quantity is None:
        return 0
    try:
        return to_milli(quantity) if resource == "cpu" else to_int(quantity)
    except QuantityError:
        return 0


def _as_stored(value: Any) -> Any:
    """Quantities may be written as numbers, and empty parts as null; the API server stores neither."""
    if isinstance(value, Mapping):
        present = {key: part for key, part in value.items() if part is not None}
        return {key: _texts(part) if key in _QUANTITIES else _as_stored(part) for key, part in present.items()}
    return [_as_stored(item) for item in value] if isinstance(value, list) else value


def _texts(table: Any) -> Any:
    return {name: str(amount) for name, amount in table.items()} if isinstance(table, Mapping) else table
