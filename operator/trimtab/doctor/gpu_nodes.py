"""Facts of the GPU nodes of an installation, as its controller has them."""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.doctor.inventory import Pod, Seen, known
from trimtab.doctor.rbac import BINDING_MODE
from trimtab.observe.node_devices import DeviceFacts
from trimtab.observe.nodes import NodeFacts, facts


def gpu_nodes(seen: Seen) -> dict[str, NodeFacts | None]:
    """Facts of every node, by name; None of one without GPUs. Raises NotSeen where nodes are Unknown."""
    levels = seen.settings.topology.levels
    devices = DeviceFacts(levels, allocates=not binds_directly(seen.pods if isinstance(seen.pods, tuple) else ()))
    if isinstance(seen.slices, tuple) and isinstance(seen.device_classes, tuple):
        rules = seen.taint_rules if isinstance(seen.taint_rules, tuple) else ()
        devices.look(seen.slices, seen.device_classes, rules)
    return {node.metadata.name: devices.of(node) or facts(node, levels) for node in known(seen.nodes)}


def binds_directly(pods: Iterable[Pod]) -> bool:
    """Whether pods of the controller say that it binds gangs itself."""
    return "Direct" in {pod.variable(BINDING_MODE) for pod in pods if pod.part == "controller"}
