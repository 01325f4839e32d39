"""Clusters as somebody types them: `TYPE=COUNTxPER_NODE`, as snapshots in which nothing runs yet.

Everything is free, and the time is 0. CPU, host memory and pods are plenty unless somebody says what there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trimtab_policy.sim import gputypes
from trimtab_policy.specs import GpuSpec
from trimtab_policy.types import UNBOUNDED, Node, Snapshot

PER_NODE = 8
"""GPUs of a node where nothing else is said."""
_PART = re.compile(r"([^=]+)=([1-9]\d{0,5})(?:x([1-9]\d?))?")


class ClusterError(ValueError):
    """A text that describes no cluster."""


def typed(text: str) -> Snapshot:
    """The cluster of `TYPE=COUNT` or `TYPE=COUNTxPER_NODE`, separated by commas.

    A count that is no multiple of a node makes one smaller node. Raises ClusterError for what cannot be read, and for a
    type that nobody knows.
    """
    nodes: dict[str, list[Node]] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        found = _PART.fullmatch(part)
        if not found:
            raise ClusterError(f"{part}: write TYPE=COUNT or TYPE=COUNTxPER_NODE, such as A100-SXM4-80GB=32x8")
        gpu = find_gpu(found[1].strip())
        if gpu.name in nodes:
            raise ClusterError(f"{part}: {gpu.name} is there twice")
        nodes[gpu.name] = list(make_nodes(gpu, int(found[2]), int(found[3] or PER_NODE)))
    if not nodes:
        raise ClusterError("names no GPUs: write TYPE=COUNT, such as H100-SXM5-80GB=64")
    return empty_cluster(node for of_type in nodes.values() for node in of_type)


def empty_cluster(nodes: Iterable[Node]) -> Snapshot:
    """A snapshot at time 0 with these nodes, and the facts of their GPU types."""
    members = tuple(nodes)
    types = {name: gputypes.resolve(name) for name in dict.fromkeys(node.gpu_type for node in members)}
    return Snapshot(time=0.0, nodes=members, jobs=(), gpu_types=types)


def find_gpu(name: str) -> GpuSpec:
    """The facts of a GPU type. Raises ClusterError for one that nobody knows."""
    try:
        return gputypes.resolve(name)
    except gputypes.UnknownGpu as error:
        raise ClusterError(f"{name}: {error}") from error


def make_nodes(gpu: GpuSpec, count: int, per_node: int) -> Iterator[Node]:
    """Nodes of one type with `count` GPUs together, the last one perhaps smaller.

    Those that share an NVLink domain wider than a node say so.
    """
    for number, begun in enumerate(range(0, count, per_node)):
        domain = f"{gpu.name.lower()}-link-{begun // gpu.link_domain}" if gpu.link_domain else ""
        yield make_node(f"{gpu.name.lower()}-{number}", gpu.name, min(per_node, count - begun), link_domain=domain)


def make_node(
    name: str, gpu_type: str, gpus: int, cpu: int = UNBOUNDED, memory: int = UNBOUNDED, link_domain: str = ""
) -> Node:
    """A node that is all free: CPU in millicores, memory in bytes."""
    return Node(
        name,
        gpu_type,
        gpus,
        gpus,
        cpu,
        memory,
        free_pods=UNBOUNDED,
        link_domain=link_domain,
        cpu_milli=cpu,
        memory=memory,
    )
