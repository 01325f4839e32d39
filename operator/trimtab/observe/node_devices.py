"""Facts of the nodes whose GPUs drivers of dynamic resource allocation offer, kept for as long as nothing changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from trimtab.kube.objects import (
    DeviceClassObject,
    DeviceTaintRuleObject,
    NodeObject,
    ResourceClaimObject,
    ResourceSliceObject,
)
from trimtab.observe import nodes
from trimtab.observe.devices import DeviceInventory, PodHolding
from trimtab.observe.gpus import NodeGpus, Obstacle
from trimtab.observe.nodes import NodeFacts
from trimtab.telemetry.isolation import isolated

NEEDS_SCHEDULER = (
    "its GPUs come by dynamic resource allocation, which only kube-scheduler does: set binding.mode to Extender"
)
"""Binding a pod ourselves gives it no devices: its kubelet would refuse it."""


class DeviceFacts:
    """`levels` are topology label keys from widest to nearest. Unless `allocates`, nobody gives devices to gangs."""

    def __init__(self, levels: Sequence[Sequence[str]], *, allocates: bool) -> None:
        self._levels = levels
        self._allocates = allocates
        self.inventory = DeviceInventory()
        self._seen: tuple[tuple[object, ...], ...] = ((), (), ())
        self._held_by: tuple[tuple[ResourceClaimObject, ...], DeviceInventory] = ((), self.inventory)
        self._held: tuple[PodHolding, ...] = ()
        self._known: dict[str, tuple[NodeObject, NodeGpus, NodeFacts | None]] = {}

    def look(
        self,
        slices: Iterable[ResourceSliceObject],
        classes: Iterable[DeviceClassObject],
        rules: Iterable[DeviceTaintRuleObject] = (),
    ) -> None:
        """Take what the cluster has now."""
        offered, asked, ruled = tuple(slices), tuple(classes), tuple(rules)
        if (offered, asked, ruled) != self._seen:
            self._seen = offered, asked, ruled
            self.inventory = DeviceInventory(offered, asked, before=self.inventory, rules=ruled)
            self._known = {name: known for name, known in self._known.items() if name in self.inventory}

    def holdings(self, claims: Iterable[ResourceClaimObject]) -> tuple[PodHolding, ...]:
        """Every GPU that claims hold, once."""
        asked = tuple(claims)
        if (asked, self.inventory) != self._held_by:
            self._held = self.inventory.holdings(asked)
            self._held_by = asked, self.inventory
        return self._held

    def of(self, node: NodeObject) -> NodeFacts | None:
        """Facts of a node; None where no driver offers GPUs there."""
        name = node.metadata.name
        if name not in self.inventory or (gpus := self.inventory.gpus(name)) is None:
            return None
        known = self._known.get(name)
        if known is None or known[0] is not node or known[1] is not gpus:
            found = isolated(
                "node",
                lambda: nodes.facts(node, self._levels, gpus if self._allocates else _unallocated(gpus)),
                lambda error: nodes.broken(node, error),
                name,
            )
            known = self._known[name] = (node, gpus, found)
        return known[2]


def _unallocated(gpus: NodeGpus) -> NodeGpus:
    """The same GPUs where nobody allocates them."""
    if gpus.spec is None:
        return gpus
    return replace(gpus, spec=None, unusable=NEEDS_SCHEDULER, obstacle=Obstacle.NEEDS_SCHEDULER)
