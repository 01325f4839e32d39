"""GPU nodes: are they labelled, or described by their drivers, so that Trimtab knows what they have, and do labels and
device plugins say the same?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from trimtab import names
from trimtab.doctor.findings import Finding, Reason, count, error, listed, not_checked, some, warning, well
from trimtab.doctor.gpu_nodes import gpu_nodes
from trimtab.doctor.inventory import Seen, Unknown, known
from trimtab.errors import QuantityError
from trimtab.kube.objects import NodeObject
from trimtab.kube.quantity import to_int
from trimtab.observe.gpus import Obstacle
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.resources import set_aside

PROMISES = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "amd.com/gpu.device-id", "gpu.intel.com/product")
"""Labels that only a node with GPUs has."""
COUNTS = (("nvidia.com/gpu.count", names.NVIDIA_GPU),)
LABELLER = (
    "install the labeller of the vendor: GPU Feature Discovery (with NVIDIA's GPU operator), the AMD node labeller"
)
LABEL = "kubectl label node NAME nvidia.com/gpu.product=PRODUCT nvidia.com/gpu.memory=MIB"
FIXES = {
    Reason.UNLABELLED: f"{LABELLER}; or `{LABEL}`",
    Reason.UNKNOWN_PRODUCT: "let the labeller write the memory as well (nvidia.com/gpu.memory), or upgrade Trimtab",
    Reason.NO_DEVICE_PLUGIN: "install the vendor's device plugin, or its driver of dynamic resource allocation (then"
    " the node has ResourceSlices), and see the logs of its pod on the node",
    Reason.GPUS_WITHDRAWN: "see the logs of the device plugin, or driver, there, and `nvidia-smi`: GPUs are unhealthy",
    Reason.COUNTS_DISAGREE: "restart the labeller on the node, and see `nvidia-smi -L` there: a GPU may be gone",
    Reason.BAD_LABEL: f"correct the label, or {LABELLER}",
    Reason.NO_DEVICE_CLASS: "install the DeviceClass of the driver's chart: `kubectl get deviceclasses`",
    Reason.DEVICE_CLASS_CHOOSES: "let the DeviceClass choose all whole GPUs of the driver, by comparisons that all have"
    " to hold (`kubectl get deviceclasses -o yaml`), and give GPUs that are kept for others a taint",
    Reason.DEVICES_NOT_ALLOCATED: "let kube-scheduler bind: `binding.mode: Extender` in the values of the chart",
    Reason.RESOURCES_MIXED: "let all nodes of a type offer their GPUs alike: give the DeviceClass the extended"
    " resource of the device plugin (spec.extendedResourceName)",
    Reason.UNUSABLE: "`trimtab get nodes` and the events of the node say more",
}
REMARKS = {
    "UnknownGpuProduct": Reason.UNKNOWN_PRODUCT,
    "NoMemoryLabel": Reason.BAD_LABEL,
    "MalformedLabel": Reason.BAD_LABEL,
    "TaintedDevice": Reason.GPUS_WITHDRAWN,
    "OutsideDeviceClass": Reason.DEVICE_CLASS_CHOOSES,
    "DeviceClassNotUnderstood": Reason.DEVICE_CLASS_CHOOSES,
}
"""What `observe` says of labels that it could make up for."""


def labels(seen: Seen) -> Iterator[Finding]:
    """What is wrong with each kind of node, told once for all nodes of which the same is said."""
    said: dict[tuple[Reason, str], list[str]] = defaultdict(list)
    usable = sliced = total = 0
    understood = gpu_nodes(seen)
    others = set_aside(facts for facts in understood.values() if facts)
    for node in known(seen.nodes):
        facts = understood[node.metadata.name]
        if facts is None and not _promised(node):
            continue
        total += 1
        usable += facts is not None and facts.gpu is not None
        sliced += facts is not None and facts.obstacle is Obstacle.SLICED
        for reason, message in _wrong(node, facts):
            said[reason, message].append(node.metadata.name)
        if why := others.get(node.metadata.name):
            said[Reason.RESOURCES_MIXED, why].append(node.metadata.name)
    if total and not usable:
        yield error(Reason.NO_USABLE_NODES, f"of {count(total, 'GPU node')} Trimtab can use none", "mend what follows")
    for (reason, message), about in said.items():
        told = f"{listed(about)}: {message}"
        yield warning(reason, told, FIXES[reason], [f"Node/{name}" for name in sorted(about)])
    for unseen in (seen.slices, seen.device_classes, seen.taint_rules):
        if isinstance(unseen, Unknown):
            yield not_checked(f"GPUs that come by dynamic resource allocation: {unseen.why}", unseen.fix)
    if seen.unreadable:
        message = f"{some(seen.unreadable)} cannot be read: as if they were not there"
        yield warning(
            Reason.UNUSABLE, message, "see whether who writes them is of a version that is too new, or too old"
        )
    if not total:
        message = "no node has GPUs: neither labels, device plugins nor ResourceSlices speak of any"
        yield warning(Reason.NO_GPU_NODES, message, f"{LABELLER}; or try it with `trimtab fake-nodes apply`")
    elif not said:
        aside = f", {sliced} more are partitioned or shared and left alone" if sliced else ""
        yield well(f"{count(usable, 'GPU node')} understood{aside}")


def _wrong(node: NodeObject, facts: NodeFacts | None) -> Iterator[tuple[Reason, str]]:
    if facts is None:
        yield Reason.NO_DEVICE_PLUGIN, "labelled with GPUs, but its device plugin offers none"
        return
    if facts.gpu is None:
        if facts.obstacle is not Obstacle.SLICED:
            yield _unusable(facts), _message(facts)
        return
    for problem in facts.problems:
        if problem.reason in REMARKS:
            yield REMARKS[problem.reason], problem.message
    if facts.withdrawn and not any(problem.reason == "TaintedDevice" for problem in facts.problems):
        taken = f"{facts.withdrawn} of {facts.gpus + facts.withdrawn} GPUs are in its capacity and not allocatable"
        yield Reason.GPUS_WITHDRAWN, taken
    yield from _disagreement(node, facts)


def _disagreement(node: NodeObject, facts: NodeFacts) -> Iterator[tuple[Reason, str]]:
    for label, resource in COUNTS:
        told = node.metadata.labels.get(label, "")
        there = facts.gpus + facts.withdrawn
        if resource == facts.resource and told.isdecimal() and int(told) != there:
            yield Reason.COUNTS_DISAGREE, f"label {label}={told}, and its capacity has {there} {resource}"


def _unusable(facts: NodeFacts) -> Reason:
    """Which reason a node without known GPUs has."""
    match facts.obstacle:
        case Obstacle.NONE_ALLOCATABLE if facts.withdrawn:
            return Reason.GPUS_WITHDRAWN
        case Obstacle.NONE_ALLOCATABLE | Obstacle.NO_DEVICE_PLUGIN:
            return Reason.NO_DEVICE_PLUGIN
        case Obstacle.NO_DEVICE_CLASS:
            return Reason.NO_DEVICE_CLASS
        case Obstacle.NEEDS_SCHEDULER:
            return Reason.DEVICES_NOT_ALLOCATED
        case Obstacle.NO_PRODUCT:
            return Reason.UNLABELLED
        case Obstacle.UNKNOWN_PRODUCT:
            return Reason.UNKNOWN_PRODUCT
        case _:
            return Reason.UNUSABLE


def _message(facts: NodeFacts) -> str:
    return next((each.message for each in facts.problems if each.reason == "UnusableGpus"), facts.unavailable)


def _promised(node: NodeObject) -> bool:
    """Labels speak of GPUs. (Capacity without allocatable is what a device plugin leaves that has died.)"""
    return any(node.metadata.labels.get(label) for label in PROMISES) or any(
        _amount(node.status.capacity.get(resource)) for resource in names.GPU_RESOURCES
    )


def _amount(quantity: str | None) -> int:
    try:
        return to_int(quantity) if quantity else 0
    except QuantityError:
        return 0
