"""Which GPUs a node has: the one reader of vendor labels and extended resources. What drivers of dynamic resource
allocation say instead, `devices` reads, in the same terms.

Sources, per vendor: the extended resource of the device plugin gives the count; the labels of NVIDIA GPU Feature
Discovery, the AMD node labeller or Intel's NFD rules give product and memory; cloud labels fill in where these are
absent. Slices (MIG with the single strategy, time-slicing, MPS) look like many small GPUs; a training gang must not be
put on them, so such nodes are set aside with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from msgspec import Struct

from trimtab import names
from trimtab.errors import QuantityError
from trimtab.kube.quantity import to_int
from trimtab_policy import catalog
from trimtab_policy.specs import GpuSpec

_CLOUD_PRODUCT = ("cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name", "gpu.nvidia.com/model")
_CLOUD_MEMORY = ("karpenter.k8s.aws/instance-gpu-memory",)
MOST_GPUS = 1024
"""Of one node. The largest machines have 16, a rack that shows as one node 72."""
MOST_MEMORY = 1 << 44
"""Bytes of one GPU: 16 TiB. What a label says beyond is a mistake of somebody."""


class Obstacle(Enum):
    """Why the GPUs of a node cannot be used."""

    NO_DEVICE_PLUGIN = auto()
    """Labels speak of GPUs, and nothing offers them."""
    NONE_ALLOCATABLE = auto()
    """The device plugin offers none of them."""
    SLICED = auto()
    """They are partitioned or shared on purpose: nothing is to be mended."""
    NO_PRODUCT = auto()
    """Neither a label nor the driver names the product."""
    UNKNOWN_PRODUCT = auto()
    """The catalogue does not have the product, and no label tells of its memory."""
    UNREADABLE = auto()
    """What the node, or the driver, says of them makes no sense."""
    MIXED = auto()
    """They are of several products."""
    NO_DEVICE_CLASS = auto()
    """A driver of dynamic resource allocation offers them, and no DeviceClass lets pods ask for them."""
    NEEDS_SCHEDULER = auto()
    """Only kube-scheduler allocates them, and it is not asked to: `binding.mode` is Direct."""


class NodeGpus(Struct, frozen=True):
    """The GPUs of one node."""

    spec: GpuSpec | None
    """None when they cannot be used; `unusable` says why."""
    resource: str
    count: int
    unusable: str = ""
    obstacle: Obstacle | None = None
    """What `unusable` tells of; None where the GPUs can be used."""
    remarks: tuple[tuple[str, str], ...] = ()
    """(reason, message) of what is wrong or missing but could be made up for."""
    withdrawn: int = 0
    """GPUs that the driver of dynamic resource allocation has, and that take no pods."""


class GpuDescription(Struct, frozen=True):
    """What one vendor's labels, or its driver, say of a node's GPUs, still as text."""

    vendor: str
    product: str
    memory: str
    """Of one GPU; empty where nobody says."""
    memory_source: str
    """Who should say: a label, or the capacity of a device."""
    memory_unit: int
    """Bytes that `memory` counts in."""
    compute_capability: tuple[int, int] | None = None


def read_gpus(labels: Mapping[str, str], allocatable: Mapping[str, str]) -> NodeGpus | None:
    """GPUs that the labels and allocatable resources of a node speak of; None for a node without any."""
    offered = [name for name in names.GPU_RESOURCES if name in allocatable]
    if not offered:
        return _promised_but_absent(labels)
    resource = next((name for name in offered if allocatable[name] != "0"), offered[0])
    try:
        count = to_int(allocatable[resource])
    except QuantityError as error:
        return NodeGpus(None, resource, 0, f"allocatable {resource}: {error}", Obstacle.UNREADABLE)
    if count == 0:
        return _none_allocatable(resource, allocatable)
    if count > MOST_GPUS:
        why = f"allocatable {resource} is {count}: no machine has more than {MOST_GPUS}, is its device plugin sound?"
        return NodeGpus(None, resource, MOST_GPUS, why, Obstacle.UNREADABLE)
    said = _vendor_labels(resource, labels)
    if sliced := _slices(labels, said.product):
        return NodeGpus(None, resource, count, sliced, Obstacle.SLICED)
    return identify_gpus(resource, count, said)


def identify_gpus(resource: str, count: int, said: GpuDescription) -> NodeGpus:
    """So many GPUs of the type that is described, for pods that ask for them by this resource."""
    memory, remark = _memory(said)
    remarks = (remark,) if remark else ()
    if not said.product:
        why = f"no label names the GPU product: is the {said.vendor} labeller running?"
        return NodeGpus(None, resource, count, why, Obstacle.NO_PRODUCT)
    if known := catalog.by_product(said.product, memory):
        return NodeGpus(known, resource, count, remarks=remarks)
    if memory is None:
        why = f"unknown GPU product {said.product!r} and no usable {said.memory_source}: its memory is not known"
        return NodeGpus(None, resource, count, why, Obstacle.UNKNOWN_PRODUCT, remarks)
    spec = catalog.estimate(said.product, memory, said.compute_capability, said.vendor)
    unknown = ("UnknownGpuProduct", f"unknown GPU product {said.product!r}: its speed is estimated from its labels")
    return NodeGpus(spec, resource, count, remarks=(*remarks, unknown))


def _memory(said: GpuDescription) -> tuple[int | None, tuple[str, str] | None]:
    """Bytes per GPU, and a remark when the label does not say."""
    source = said.memory_source
    if not said.memory:
        return None, ("NoMemoryLabel", f"{source} is missing: the datasheet value is used if there is one")
    try:
        memory = to_int(said.memory) * said.memory_unit
    except QuantityError:
        memory = 0
    if not 0 < memory <= MOST_MEMORY:
        return None, ("MalformedLabel", f"{source}={said.memory!r} is no amount of memory: it is ignored")
    return memory, None


def _vendor_labels(resource: str, labels: Mapping[str, str]) -> GpuDescription:
    if resource == names.NVIDIA_GPU:
        return _nvidia(labels)
    return _amd(labels) if resource == names.AMD_GPU else _intel(labels)


def _nvidia(labels: Mapping[str, str]) -> GpuDescription:
    product = labels.get("nvidia.com/gpu.product", "") or _first(labels, _CLOUD_PRODUCT)
    major, minor = labels.get("nvidia.com/gpu.compute.major", ""), labels.get("nvidia.com/gpu.compute.minor", "")
    capability = (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
    source = "nvidia.com/gpu.memory"
    memory = labels.get(source, "") or _first(labels, _CLOUD_MEMORY)  # both in MiB
    return GpuDescription("NVIDIA", product, memory, f"label {source}", 1 << 20, capability)


def _amd(labels: Mapping[str, str]) -> GpuDescription:
    """The stable keys exist only where all cards of a node are equal; older labellers put the value into the key."""
    product = labels.get("amd.com/gpu.product-name", "") or _value_in_key(labels, "beta.amd.com/gpu.product-name.")
    product = product or labels.get("amd.com/gpu.device-id", "")  # the PCI device id: all that old labellers say
    memory = labels.get("amd.com/gpu.vram", "") or _value_in_key(labels, "beta.amd.com/gpu.vram.")
    as_binary = f"{memory}i" if memory and memory[-1] in "MGT" else memory  # the labeller writes GiB as `64G`
    return GpuDescription("AMD", product, as_binary, "label amd.com/gpu.vram", 1)


def _intel(labels: Mapping[str, str]) -> GpuDescription:
    source = "gpu.intel.com/memory.max"
    product, memory = labels.get("gpu.intel.com/product", ""), labels.get(source, "")
    return GpuDescription("Intel", product, memory, f"label {source}", 1)


def _slices(labels: Mapping[str, str], product: str) -> str:
    parsed = catalog.parse_product(product)
    if parsed.mig_profile:
        return f"its GPUs are partitioned (MIG {parsed.mig_profile}): gangs need whole GPUs"
    if parsed.shared:
        return "its GPUs are shared (time-slicing or MPS): gangs need whole GPUs"
    replicas = labels.get("nvidia.com/gpu.replicas", "1")
    if replicas not in ("", "0", "1"):
        return f"its GPUs are time-sliced ({replicas} replicas): gangs need whole GPUs"
    return ""


def _none_allocatable(resource: str, allocatable: Mapping[str, str]) -> NodeGpus:
    partitions = sorted(name for name in allocatable if name.startswith("nvidia.com/mig-"))
    if partitions:
        why, obstacle = f"its GPUs are partitioned ({', '.join(partitions)}), gangs need whole GPUs", Obstacle.SLICED
    else:
        why, obstacle = "all its GPUs are unhealthy or taken away", Obstacle.NONE_ALLOCATABLE
    return NodeGpus(None, resource, 0, f"allocatable {resource} is 0: {why}", obstacle)


def _promised_but_absent(labels: Mapping[str, str]) -> NodeGpus | None:
    """Labels that speak of GPUs on a node that offers none: a device plugin, or driver, that does not run."""
    if labels.get("nvidia.com/gpu.present") == "true":
        why = (
            f"labelled with GPUs, but no {names.NVIDIA_GPU} is allocatable and no ResourceSlice has one: is the device"
            " plugin, or the driver, running?"
        )
        return NodeGpus(None, names.NVIDIA_GPU, 0, why, Obstacle.NO_DEVICE_PLUGIN)
    return None


def _first(labels: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


def _value_in_key(labels: Mapping[str, str], prefix: str) -> str:
    values = [key.removeprefix(prefix) for key in labels if key.startswith(prefix)]
    return values[0] if len(values) == 1 else ""
