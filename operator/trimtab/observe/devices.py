"""Which GPUs the drivers of dynamic resource allocation offer, and who holds them: ResourceSlices and ResourceClaims of
`resource.k8s.io/v1` -> the terms of `gpus`, and GPUs per node and pod.

What the drivers publish (attributes and capacity of each device, read in the sources of their kubelet plugins):

    gpu.nvidia.com   type `gpu` (others: mig, vfio), productName, uuid, cudaComputeCapability; memory
    gpu.amd.com      type `amdgpu` (others: amdgpu-partition), productName, pciAddr; memory

Devices that are parts of one GPU, or the GPU itself for virtual machines, consume the same counter set or have the same
UUID or PCI address: whoever holds one of them holds the whole GPU. The NVLink domain is no attribute: NVIDIA's driver
writes it as the same label of the node that GPU Feature Discovery wrote (`nodes.CLIQUE_LABEL`).

As kube-scheduler does, slices are put together by driver and pool, those of the newest generation only, and a pool
counts when all its slices are there and no name appears twice. They are put together per node: what one node's driver
publishes under another one's pool changes nothing there.

A taint keeps pods away from a device, whether its driver publishes it or a DeviceTaintRule puts it there.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain

from msgspec import Struct

from trimtab import names
from trimtab.errors import QuantityError
from trimtab.kube.objects import (
    AllocatedDevice,
    DeviceClassObject,
    DeviceTaint,
    DeviceTaintRuleObject,
    ResourceClaimObject,
    ResourceSliceObject,
    SliceDevice,
)
from trimtab.kube.quantity import to_int
from trimtab.observe.device_selectors import Undecided, chooses, class_asked_by
from trimtab.observe.facts_memo import FactsMemo
from trimtab.observe.gpus import MOST_GPUS, MOST_MEMORY, GpuDescription, NodeGpus, Obstacle, identify_gpus
from trimtab.telemetry.isolation import isolated

OF_ONE_GPU = ("uuid", "parentUUID", "resource.kubernetes.io/pciBusID", "pciAddr", "parentPciAddr")
"""Attributes whose value the parts of a GPU have in common, with one another or with the GPU."""
MOST_TEXT = 64
"""Characters of an attribute; the API server takes no more."""
MOST_DEVICES = 4096
"""Of one node: 72 GPUs that can be parted in 40 ways each are 2,952."""
MOST_SHARED = 8
"""GPUs that a device may be a part of. Real ones are part of one; 4,096 of 1,024 each took seconds in every round."""
MOST_NAMED = 3
"""Devices that a message names."""
_CAPABILITY = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})(\..*)?")

DeviceKey = tuple[str, str, str]
"""Driver, pool and name of a device."""


class DeviceDriver(Struct, frozen=True):
    """A driver that offers GPUs."""

    name: str
    """Its chart has a DeviceClass of the same name."""
    vendor: str
    whole: str
    """Attribute `type` of a whole GPU."""

    @property
    def resource(self) -> str:
        """Extended resource by which pods ask for the vendor's GPUs."""
        return names.VENDOR_RESOURCES[self.name]

    @property
    def class_resource(self) -> str:
        """Its DeviceClass, in Kubernetes' notation for a resource."""
        return names.DEVICE_CLASS_RESOURCE + self.name


DRIVERS: Mapping[str, DeviceDriver] = {
    driver.name: driver
    for driver in (
        DeviceDriver(names.NVIDIA_DRIVER, "NVIDIA", "gpu"),
        DeviceDriver(names.AMD_DRIVER, "AMD", "amdgpu"),
    )
}


class GpuDevice(Struct, frozen=True):
    """A whole GPU as its driver describes it."""

    pool: str
    name: str
    product: str
    memory: int | None
    """Bytes; None where the driver does not say, or nothing that could be."""
    capability: tuple[int, int] | None
    """CUDA compute capability."""
    uuid: str
    taint: str
    """The first taint that keeps pods away from it; empty where none does."""
    published: SliceDevice
    """As its driver says it, for the selectors of classes."""

    @property
    def told(self) -> str:
        """`gpu-3 (GPU-4404041a)`."""
        return f"{self.name} ({self.uuid})" if self.uuid else self.name


class TaintRules:
    """DeviceTaintRules by the pool that they are about."""

    def __init__(self, rules: Iterable[DeviceTaintRuleObject] = ()) -> None:
        self._by_pool: dict[str | None, list[DeviceTaintRuleObject]] = defaultdict(list)
        for each in rules:
            if each.spec.device_selector:
                self._by_pool[each.spec.device_selector.pool].append(each)

    def of(self, driver: str, pool: str, device: str) -> Iterator[tuple[DeviceTaint, str]]:
        """Taints of a device, each with the name of its rule."""
        for each in (*self._by_pool.get(pool, ()), *self._by_pool.get(None, ())):
            chosen = each.spec.device_selector
            if chosen and chosen.driver in (None, driver) and chosen.device in (None, device):
                yield each.spec.taint, each.metadata.name


class NodeDevices(Struct, frozen=True):
    """What one driver offers on one node."""

    driver: DeviceDriver
    gpus: tuple[GpuDevice, ...]
    parts: Mapping[DeviceKey, tuple[DeviceKey, ...]]
    """Every device -> the whole GPUs that whoever holds it holds."""
    partitions: int = 0
    """Devices that are a part of a GPU."""
    trouble: str = ""
    """Why none of it counts now; empty where it does."""


class PodHolding(Struct, frozen=True):
    """GPUs that claims hold on a node, for the same pods."""

    node: str
    gpus: int
    consumers: frozenset[str]
    """UIDs of the pods that they are reserved for; none where an allocated claim has no user."""


class HeldByClaim(Struct, frozen=True):
    """What one claim holds, and for whom."""

    gpus: tuple[tuple[str, DeviceKey], ...] = ()
    """Nodes and whole GPUs."""
    consumers: frozenset[str] = frozenset()
    """UIDs of pods."""


class DeviceInventory:
    """Devices of all nodes at one moment. Nothing of a node is computed before it is asked for, nor again where
    nothing of it has changed since `before`."""

    def __init__(
        self,
        slices: Iterable[ResourceSliceObject] = (),
        classes: Iterable[DeviceClassObject] = (),
        before: DeviceInventory | None = None,
        rules: Iterable[DeviceTaintRuleObject] = (),
    ) -> None:
        self._rules = tuple(rules)
        self._taints = TaintRules(self._rules)
        self._slices: dict[str, list[ResourceSliceObject]] = defaultdict(list)
        self._pools: dict[tuple[str, str], set[str]] = defaultdict(set)
        for each in slices:
            if each.spec.driver in DRIVERS and each.spec.node_name:
                self._slices[each.spec.node_name].append(each)
                self._pools[each.spec.driver, each.spec.pool.name].add(each.spec.node_name)
        self._classes = tuple(classes)
        self._claims: FactsMemo[ResourceClaimObject, HeldByClaim] = FactsMemo(
            "claims", self._held, lambda claim, error: HeldByClaim()
        )
        self._read: dict[str, tuple[NodeDevices, ...]] = {}
        self._described: dict[str, NodeGpus | None] = {}
        if before and self._rules == before._rules:
            same = [name for name, found in self._slices.items() if before._slices.get(name) == found]
            self._read = {name: before._read[name] for name in same if name in before._read}
            if self._classes == before._classes:
                self._described = {name: before._described[name] for name in same if name in before._described}

    def __contains__(self, node: str) -> bool:
        """Whether any driver says anything of a node."""
        return node in self._slices

    def devices(self, node: str) -> tuple[NodeDevices, ...]:
        """What each driver offers on a node."""
        if node in self._slices and node not in self._read:
            self._read[node] = tuple(read_devices(self._slices[node], node, self._taints))
        return self._read.get(node, ())

    def gpus(self, node: str) -> NodeGpus | None:
        """The GPUs that a node has by dynamic resource allocation; None where it has none so."""
        if node in self._slices and node not in self._described:
            self._described[node] = isolated("devices", lambda: self._describe(node), _incomprehensible, node)
        return self._described.get(node)

    def _describe(self, node: str) -> NodeGpus | None:
        found = [each for each in self.devices(node) if each.gpus or each.partitions or each.trouble]
        chosen = next((each for each in found if each.gpus and not each.trouble), found[0] if found else None)
        if chosen is None:
            return None
        asked = class_asked_by(chosen.driver.resource, chosen.driver.name, self._classes)
        return describe_gpus(chosen, asked)

    def holdings(self, claims: Iterable[ResourceClaimObject]) -> tuple[PodHolding, ...]:
        """Every GPU that claims hold, once. A GPU whose parts several claims hold has the consumers of all."""
        held: dict[tuple[str, DeviceKey], frozenset[str]] = {}
        for _, claim in self._claims.all(claims):
            for gpu in claim.gpus:
                held[gpu] = held.get(gpu, frozenset()) | claim.consumers
        alike = Counter((node, consumers) for (node, _), consumers in held.items())
        return tuple(PodHolding(node, gpus, consumers) for (node, consumers), gpus in alike.items())

    def _held(self, claim: ResourceClaimObject) -> HeldByClaim:
        if claim.status.allocation is None:
            return HeldByClaim()
        gpus = [gpu for result in claim.status.allocation.devices.results for gpu in self._whole(result)]
        return HeldByClaim(tuple(gpus), frozenset(_consumers(claim)))

    def _whole(self, result: AllocatedDevice) -> Iterator[tuple[str, DeviceKey]]:
        """Nodes and GPUs of an allocated device. Pools of one name on several nodes are all charged: kube-scheduler
        cannot tell them apart either."""
        if result.admin_access:
            return
        key = (result.driver, result.pool, result.device)
        for node in self._pools.get((result.driver, result.pool), ()):
            for devices in self.devices(node):
                for gpu in devices.parts.get(key, ()):
                    yield node, gpu


def read_devices(slices: Iterable[ResourceSliceObject], node: str, taints: TaintRules) -> Iterator[NodeDevices]:
    """What each driver says in the slices of one node. Where nothing can be made of it, none of it counts."""
    pools: dict[str, dict[str, list[ResourceSliceObject]]] = defaultdict(lambda: defaultdict(list))
    for each in slices:
        pools[each.spec.driver][each.spec.pool.name].append(each)
    for driver in DRIVERS.values():
        if driver.name in pools:
            yield isolated(
                "devices",
                partial(_of_driver, driver, pools[driver.name], taints),
                partial(_unreadable, driver),
                node,
            )


def _unreadable(driver: DeviceDriver, error: Exception) -> NodeDevices:
    return NodeDevices(driver, (), {}, trouble=f"it cannot be understood ({type(error).__name__}), a bug of Trimtab")


def _incomprehensible(error: Exception) -> NodeGpus:
    why = f"what drivers say of its GPUs cannot be understood ({type(error).__name__}): this is a bug of Trimtab"
    return NodeGpus(None, "", 0, why, Obstacle.UNREADABLE)


def _of_driver(driver: DeviceDriver, pools: Mapping[str, list[ResourceSliceObject]], taints: TaintRules) -> NodeDevices:
    troubles: list[str] = []
    offered: list[tuple[str, SliceDevice]] = []
    for pool, slices in sorted(pools.items()):
        newest = max(each.spec.pool.generation for each in slices)
        current = [each for each in slices if each.spec.pool.generation == newest]
        devices = [device for each in current for device in each.spec.devices]
        if trouble := _incomplete(pool, current) or _repeated(pool, devices):
            troubles.append(trouble)
        offered += [(pool, device) for device in devices]
    if len(offered) > MOST_DEVICES:
        troubles.append(f"it has {len(offered)} devices, more than any machine")
    if troubles:
        return NodeDevices(driver, (), {}, trouble="; ".join(troubles))
    whole = [(pool, device) for pool, device in offered if _text(device, "type") == driver.whole]
    if len(whole) > MOST_GPUS:
        return NodeDevices(driver, (), {}, trouble=f"it has {len(whole)} GPUs, and no machine more than {MOST_GPUS}")
    gpus = tuple(_gpu(pool, device, taints.of(driver.name, pool, device.name)) for pool, device in whole)
    if twice := [uuid for uuid, times in Counter(gpu.uuid for gpu in gpus if gpu.uuid).items() if times > 1]:
        return NodeDevices(driver, (), {}, trouble=f"it has several GPUs of the UUID {twice[0]}")
    parts = _parts(driver, offered, whole)
    if isinstance(parts, str):
        return NodeDevices(driver, (), {}, trouble=parts)
    return NodeDevices(driver, gpus, parts, len(offered) - len(whole))


def _incomplete(pool: str, current: list[ResourceSliceObject]) -> str:
    wanted = {each.spec.pool.resource_slice_count for each in current}
    if wanted == {len(current)}:
        return ""
    of = "/".join(map(str, sorted(wanted)))
    return f"of its pool {pool!r} {len(current)} of {of} ResourceSlices are there: is the driver writing them?"


def _repeated(pool: str, devices: list[SliceDevice]) -> str:
    twice = [name for name, times in Counter(device.name for device in devices).items() if times > 1]
    return f"its pool {pool!r} has several devices of the name {twice[0]!r}" if twice else ""


def _parts(
    driver: DeviceDriver, offered: list[tuple[str, SliceDevice]], whole: list[tuple[str, SliceDevice]]
) -> dict[DeviceKey, tuple[DeviceKey, ...]] | str:
    """Every device -> the whole GPUs that it is of; or why that cannot be."""
    sharing: dict[tuple[str, str], set[DeviceKey]] = defaultdict(set)
    for pool, device in whole:
        for mark in _marks(device):
            sharing[pool, mark].add((driver.name, pool, device.name))
    parts: dict[DeviceKey, tuple[DeviceKey, ...]] = {}
    own = {(driver.name, pool, device.name) for pool, device in whole}
    for pool, device in offered:
        key = (driver.name, pool, device.name)
        if key in own:
            parts[key] = (key,)
            continue
        beside: set[DeviceKey] = set()
        for mark in _marks(device):
            beside |= sharing.get((pool, mark), set())
            if len(beside) > MOST_SHARED:
                return f"its device {device.name!r} is said to be a part of more than {MOST_SHARED} GPUs at once"
        parts[key] = tuple(sorted(beside))
    return parts


def _marks(device: SliceDevice) -> Iterator[str]:
    """What parts of one GPU have in common."""
    for consumed in device.consumes_counters:
        yield f"counters {consumed.counter_set}"
    for name in OF_ONE_GPU:
        if identity := _text(device, name):
            yield f"identity {identity}"


def _gpu(pool: str, device: SliceDevice, ruled: Iterable[tuple[DeviceTaint, str]]) -> GpuDevice:
    own = ((taint, "") for taint in device.taints)
    taints = (_told(taint, rule) for taint, rule in chain(own, ruled) if taint.effect != names.DEVICE_TAINT_FREE)
    capability = _CAPABILITY.fullmatch(_text(device, "cudaComputeCapability"))
    return GpuDevice(
        pool=pool,
        name=device.name,
        product=_text(device, "productName"),
        memory=_memory(device),
        capability=(int(capability[1]), int(capability[2])) if capability else None,
        uuid=_text(device, "uuid"),
        taint=next(taints, ""),
        published=device,
    )


def _told(taint: DeviceTaint, rule: str) -> str:
    """`gpu.nvidia.com/unhealthy=ecc:NoExecute`, with the rule that puts it there."""
    value = f"={taint.value}" if taint.value else ""
    by = f" by DeviceTaintRule {rule}" if rule else ""
    return f"{taint.key}{value}:{taint.effect}{by}"


def _text(device: SliceDevice, name: str) -> str:
    """An attribute, said with or without the driver's domain; empty where there is none, or one that cannot be."""
    found = device.attributes.get(name)
    if found is None:
        qualified = (f"{driver}/{name}" for driver in DRIVERS)
        found = next((device.attributes[key] for key in qualified if key in device.attributes), None)
    said = (found.string or found.version or "") if found else ""
    return said if len(said) <= MOST_TEXT else ""


def _memory(device: SliceDevice) -> int | None:
    found = device.capacity.get("memory")
    try:
        memory = to_int(found.value) if found else 0
    except QuantityError:
        return None
    return memory if 0 < memory <= MOST_MEMORY else None


def _consumers(claim: ResourceClaimObject) -> set[str]:
    """UIDs of the pods that a claim is for: whom it is reserved for, and for whom it was made."""
    reserved = {consumer.uid for consumer in claim.status.reserved_for if consumer.resource == "pods"}
    return reserved | {owner.uid for owner in claim.metadata.owner_references if owner.kind == "Pod"}


def describe_gpus(devices: NodeDevices, asked: DeviceClassObject | None) -> NodeGpus:
    """The GPUs of a node in the terms of `gpus`; `asked` is the DeviceClass by which pods ask for them."""
    driver = devices.driver
    asked_by = _resource(driver, asked)
    resource = asked_by or driver.resource
    if devices.trouble:
        why = f"what {driver.name} says of its GPUs does not count: {devices.trouble}"
        return NodeGpus(None, resource, 0, why, Obstacle.UNREADABLE)
    if not devices.gpus:
        why = f"{driver.name} offers only parts of its GPUs ({devices.partitions} devices): gangs need whole GPUs"
        return NodeGpus(None, resource, 0, why, Obstacle.SLICED)
    chosen, remarks = _chosen(devices.gpus, driver, asked)
    if asked and not chosen:
        why = f"DeviceClass {asked.metadata.name} chooses none of its {len(devices.gpus)} GPUs of {driver.name}"
        return NodeGpus(None, resource, 0, why, Obstacle.NO_DEVICE_CLASS)
    sound = [gpu for gpu in chosen if not gpu.taint]
    withdrawn = [gpu for gpu in chosen if gpu.taint]
    remarks = (*remarks, *_withdrawn(withdrawn))
    if not sound:
        why = f"all its GPUs of {driver.name} are tainted ({withdrawn[0].told}: {withdrawn[0].taint})"
        return NodeGpus(None, resource, 0, why, Obstacle.NONE_ALLOCATABLE, remarks, len(withdrawn))
    found = _identify(driver, resource, sound, asked_by)
    return NodeGpus(
        found.spec,
        resource,
        found.count,
        found.unusable,
        found.obstacle,
        (*found.remarks, *remarks),
        len(withdrawn),
    )


def _resource(driver: DeviceDriver, asked: DeviceClassObject | None) -> str:
    """The resource by which pods ask for the driver's GPUs; empty where no DeviceClass lets them."""
    if asked is None:
        return ""
    return driver.resource if asked.spec.extended_resource_name == driver.resource else driver.class_resource


def _chosen(
    gpus: Iterable[GpuDevice], driver: DeviceDriver, asked: DeviceClassObject | None
) -> tuple[list[GpuDevice], tuple[tuple[str, str], ...]]:
    """GPUs that the class chooses, and what is to be said of the others. Where that cannot be told, it is taken to
    choose them: kube-scheduler decides."""
    chosen: list[GpuDevice] = []
    others: list[GpuDevice] = []
    undecided = ""
    for gpu in gpus:
        try:
            taken = asked is None or chooses(asked, driver.name, gpu.published)
        except Undecided as error:
            taken, undecided = True, undecided or str(error)
        (chosen if taken else others).append(gpu)
    name = asked.metadata.name if asked else ""
    remarks: list[tuple[str, str]] = []
    if others:
        remarks.append(("OutsideDeviceClass", f"DeviceClass {name} does not choose {_named(others)}"))
    if undecided:
        told = f"whether DeviceClass {name} chooses its GPUs is left to kube-scheduler: {undecided}"
        remarks.append(("DeviceClassNotUnderstood", told))
    return chosen, tuple(remarks)


def _named(gpus: list[GpuDevice]) -> str:
    more = f" and {len(gpus) - MOST_NAMED} more" if len(gpus) > MOST_NAMED else ""
    return ", ".join(gpu.told for gpu in gpus[:MOST_NAMED]) + more


def _identify(driver: DeviceDriver, resource: str, sound: list[GpuDevice], asked_by: str) -> NodeGpus:
    products = Counter(gpu.product for gpu in sound)
    if not asked_by:
        why = f"no DeviceClass {driver.name} lets pods ask for its GPUs: is the chart of the driver installed?"
        return NodeGpus(None, resource, len(sound), why, Obstacle.NO_DEVICE_CLASS)
    if len(products) > 1:
        each = ", ".join(f"{count} × {product or 'unnamed'}" for product, count in products.most_common(MOST_NAMED))
        return NodeGpus(None, resource, len(sound), f"its GPUs differ ({each}): gangs need equal ones", Obstacle.MIXED)
    [product] = products
    if not product:
        why = f"{driver.name} does not name the product of its GPUs (attribute productName)"
        return NodeGpus(None, resource, len(sound), why, Obstacle.NO_PRODUCT)
    memory = min((gpu.memory or 0 for gpu in sound), default=0)
    described = GpuDescription(
        driver.vendor, product, str(memory) if memory else "", "capacity memory", 1, sound[0].capability
    )
    return identify_gpus(resource, len(sound), described)


def _withdrawn(gpus: list[GpuDevice]) -> tuple[tuple[str, str], ...]:
    """Which GPUs take no pods, and why."""
    if not gpus:
        return ()
    told = "; ".join(f"{gpu.told}: {gpu.taint}" for gpu in gpus[:MOST_NAMED])
    more = f" and {len(gpus) - MOST_NAMED} more" if len(gpus) > MOST_NAMED else ""
    return (("TaintedDevice", f"taints keep pods away from GPUs: {told}{more}"),)
