"""What a pod takes of its node, counted as the kube-scheduler and the kubelet count it.

Effective request (k8s.io/component-helpers/resource, PodRequests): the containers and sidecars together, or the
largest init container with the sidecars started before it, whichever is more; plus overhead. Pod-level requests
override where they are set.
"""

from __future__ import annotations

from msgspec import Struct

from trimtab import names
from trimtab.errors import QuantityError
from trimtab.kube.objects import Container, PodObject
from trimtab.kube.quantity import to_int, to_milli

TERMINAL = ("Succeeded", "Failed")


class PodUse(Struct, frozen=True):
    """Resources that a pod holds on its node for as long as it is not terminal."""

    gpus: int
    cpu_milli: int
    memory: int


def use(pod: PodObject) -> PodUse:
    """Effective requests of a pod. A quantity that cannot be read counts as nothing: the API server admits none."""
    gpus = sum(_effective(pod, resource) for resource in names.GPU_RESOURCES)
    return PodUse(gpus, _effective(pod, "cpu"), _effective(pod, "memory"))


def holds_resources(pod: PodObject) -> bool:
    """Whether the pod is on a node and has not ended."""
    return bool(pod.spec.node_name) and pod.status.phase not in TERMINAL


def _effective(pod: PodObject, resource: str) -> int:
    spec = pod.spec
    if resource in spec.resources.requests:
        return _amount(spec.resources.requests, resource) + _amount(spec.overhead, resource)
    running = sum(_request(container, resource) for container in spec.containers)
    sidecars = peak = 0
    for container in spec.init_containers:
        if container.restart_policy == "Always":
            sidecars += _request(container, resource)
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + _request(container, resource))
    return max(running + sidecars, peak) + _amount(spec.overhead, resource)


def _request(container: Container, resource: str) -> int:
    """Requests default to limits (the API server does this too, but not for objects made by hand in tests)."""
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
