"""One node's facts: its GPUs, its room, where it stands, and whether it takes new pods."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from trimtab.errors import QuantityError
from trimtab.kube.objects import NodeCondition, NodeObject, Taint
from trimtab.kube.quantity import to_int, to_milli
from trimtab.names import ANNOTATION_REPAIRED
from trimtab.observe import gpus
from trimtab.observe.gpus import Obstacle
from trimtab.observe.problems import Problem
from trimtab_policy.specs import GpuSpec

CLIQUE_LABEL = "nvidia.com/gpu.clique"
"""`<cluster UUID>.<clique id>`: nodes of equal value share one NVLink fabric (GB200 NVL72)."""


class NodeFacts(Struct, frozen=True):
    """A GPU node as far as it is known without its pods."""

    name: str
    uid: str
    gpu: GpuSpec | None
    resource: str
    gpus: int
    cpu_milli: int
    memory: int
    pods: int
    allocatable: dict[str, str]
    """Everything that the node offers, for templates that ask for more than the above (RDMA devices, hugepages)."""
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    topology: tuple[str, ...]
    link_domain: str
    ready: bool
    unavailable: str
    """Why it takes no new pods; empty when it does."""
    barred: str
    """The same, whether it is ready or not."""
    problems: tuple[Problem, ...]
    obstacle: Obstacle | None = None
    """Why its GPUs cannot be used, where that is known; None where they can be."""
    withdrawn: int = 0
    """GPUs that its device plugin has taken away, those of the capacity that are not allocatable; or that its driver
    has tainted."""
    turned: float = 0.0
    """When it last became Ready, or ceased to be, as a POSIX time; 0 where nobody says."""
    silent: bool = False
    """Whether Kubernetes has heard nothing of it for a while: not even that it is not ready."""
    renewed: float = 0.0
    """When its object was made, or somebody said that it is repaired: what was before counts no more. A POSIX time."""


NOT_OFFERED = (Obstacle.NO_DEVICE_PLUGIN, Obstacle.NONE_ALLOCATABLE)
"""Where no device plugin offers a GPU, that of the driver's devices counts."""


def facts(node: NodeObject, levels: Sequence[Sequence[str]], devices: gpus.NodeGpus | None = None) -> NodeFacts | None:
    """Facts of a node, or None if it has no GPUs. `levels` are topology label keys from widest to nearest; `devices` is
    what drivers of dynamic resource allocation offer there, which counts where no device plugin offers any."""
    found = gpus.read_gpus(node.metadata.labels, node.status.allocatable)
    if devices and (found is None or found.obstacle in NOT_OFFERED):
        found = devices
    return _facts(node, levels, found) if found else None


def without_gpus(node: NodeObject, levels: Sequence[Sequence[str]]) -> NodeFacts:
    """Facts of a node that offers no GPUs, though plans may lie there: its device plugin is gone, or its driver is
    being replaced. It takes no pods, and what runs there goes on."""
    return _facts(node, levels, _NO_GPUS)


_NO_GPUS = gpus.NodeGpus(None, "", 0, "offers no GPUs (any more)", Obstacle.NONE_ALLOCATABLE)


def _facts(node: NodeObject, levels: Sequence[Sequence[str]], found: gpus.NodeGpus) -> NodeFacts:
    labels, allocatable = node.metadata.labels, node.status.allocatable
    room, unreadable = _room(allocatable)
    told, barred = _readiness(node), _barred(node) or found.unusable or unreadable
    return NodeFacts(
        name=node.metadata.name,
        uid=node.metadata.uid,
        gpu=found.spec,
        resource=found.resource,
        gpus=found.count,
        cpu_milli=room[0],
        memory=room[1],
        pods=room[2],
        allocatable=allocatable,
        labels=labels,
        taints=node.spec.taints,
        topology=_topology(labels, levels),
        link_domain=labels.get(CLIQUE_LABEL, ""),
        ready=told is not None and told.status == "True",
        unavailable=closed(node) or barred,
        barred=barred,
        problems=tuple(_problems(node, found, unreadable)),
        obstacle=found.obstacle,
        withdrawn=found.withdrawn or _withdrawn(node.status.capacity.get(found.resource), found.count),
        turned=_posix(told.last_transition_time) if told else 0.0,
        silent=told is not None and told.status == "Unknown",
        renewed=max(
            _posix(node.metadata.creation_timestamp), _posix(node.metadata.annotations.get(ANNOTATION_REPAIRED))
        ),
    )


def broken(node: NodeObject, error: Exception) -> NodeFacts | None:
    """A node that nothing can be made of: it takes no pods, and what runs there goes on."""
    why = f"its labels or resources cannot be understood ({type(error).__name__}): this is a bug of Trimtab"
    told = _readiness(node)
    meta = node.metadata
    return NodeFacts(
        name=meta.name,
        uid=meta.uid,
        gpu=None,
        resource="",
        gpus=0,
        cpu_milli=0,
        memory=0,
        pods=0,
        allocatable={},
        labels={},
        taints=(),
        topology=(),
        link_domain="",
        ready=told is not None and told.status == "True",
        unavailable=why,
        barred=why,
        problems=(Problem("Node", "", meta.name, meta.uid, "CannotBeUnderstood", why),),
    )


def _posix(timestamp: str | None) -> float:
    """RFC 3339 -> POSIX seconds; 0 for none, or for nonsense that somebody wrote into an annotation."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
    except ValueError:
        return 0.0


def _withdrawn(capacity: str | None, allocatable: int) -> int:
    try:
        return max(0, to_int(capacity) - allocatable) if capacity else 0
    except QuantityError:
        return 0


def _room(allocatable: dict[str, str]) -> tuple[tuple[int, int, int], str]:
    try:
        cpu = to_milli(allocatable.get("cpu", "0"))
        memory = to_int(allocatable.get("memory", "0"))
        pods = to_int(allocatable.get("pods", "110"))  # the kubelet's default, for nodes that do not say
    except QuantityError as error:
        return (0, 0, 0), f"status.allocatable: {error}"
    return (cpu, memory, pods), ""


def _topology(labels: dict[str, str], levels: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Values of the configured levels, empty where the node lacks one: it stands alone there, next to no other."""
    values = [next((labels[key] for key in keys if labels.get(key)), "") for keys in levels]
    while values and not values[-1]:
        values.pop()
    return tuple(values)


def closed(node: NodeObject) -> str:
    """Why the node takes no pods, whatever it has; empty when it does."""
    told = _readiness(node)
    return _barred(node) or ("" if told and told.status == "True" else "NotReady")


def _barred(node: NodeObject) -> str:
    if node.metadata.deletion_timestamp:
        return "being deleted"
    return "cordoned" if node.spec.unschedulable else ""


def _readiness(node: NodeObject) -> NodeCondition | None:
    return next((c for c in node.status.conditions if c.type == "Ready"), None)


def _problems(node: NodeObject, found: gpus.NodeGpus, unreadable: str) -> list[Problem]:
    said = list(found.remarks)
    said += [("UnusableGpus", found.unusable)] if found.unusable else []
    said += [("MalformedAllocatable", unreadable)] if unreadable else []
    meta = node.metadata
    return [Problem("Node", "", meta.name, meta.uid, reason, message) for reason, message in said]
