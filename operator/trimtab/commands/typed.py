"""A cluster as somebody types it: `H100-SXM5-80GB=64,GB200-186GB=72x4`. All GPUs are free, and nothing else runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from trimtab.errors import UsageError
from trimtab_policy import catalog
from trimtab_policy.types import GpuSpec, Node, Snapshot

PER_NODE = 8
"""GPUs of a node where nothing else is said."""
PLENTY = 1 << 60
"""CPU, host memory and pods: GPUs are what is asked about."""
_PART = re.compile(r"([^=]+)=([1-9]\d{0,5})(?:x([1-9]\d?))?")


def snapshot(text: str) -> Snapshot:
    """The cluster of `TYPE=COUNT` or `TYPE=COUNTxPER_NODE`, separated by commas.

    A count that is no multiple of a node makes one smaller node. Raises UsageError for what cannot be read, and for a
    type that the catalogue lacks.
    """
    nodes: list[Node] = []
    types: dict[str, GpuSpec] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        found = _PART.fullmatch(part)
        if not found:
            raise UsageError(f"--gpus {part}: write TYPE=COUNT or TYPE=COUNTxPER_NODE, such as A100-SXM4-80GB=32x8")
        gpu = _gpu(found[1].strip())
        if gpu.name in types:
            raise UsageError(f"--gpus {part}: {gpu.name} is there twice")
        types[gpu.name] = gpu
        nodes += _nodes(gpu, int(found[2]), int(found[3] or PER_NODE))
    if not nodes:
        raise UsageError("--gpus names no GPUs: write TYPE=COUNT, such as H100-SXM5-80GB=64")
    return Snapshot(time=time.time(), nodes=tuple(nodes), jobs=(), gpu_types=types)


def _gpu(name: str) -> GpuSpec:
    """By its name in the catalogue, or by one that nodes' labels give it."""
    try:
        return catalog.by_product(name) or catalog.gpu(name)
    except catalog.UnknownGpu as error:
        raise UsageError(f"--gpus {name}: {error}") from error


def _nodes(gpu: GpuSpec, count: int, per_node: int) -> Iterator[Node]:
    """Nodes of one type; those that share an NVLink domain wider than a node say so."""
    for number, begun in enumerate(range(0, count, per_node)):
        here = min(per_node, count - begun)
        yield Node(
            name=f"{gpu.name.lower()}-{number}",
            gpu_type=gpu.name,
            gpus=here,
            free_gpus=here,
            free_cpu_milli=PLENTY,
            free_memory=PLENTY,
            free_pods=PLENTY,
            link_domain=f"{gpu.name.lower()}-link-{begun // gpu.link_domain}" if gpu.link_domain else "",
        )
