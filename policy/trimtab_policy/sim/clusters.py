"""Clusters to simulate: empty snapshots from presets, from what somebody types, or from lists of nodes.

Everything is free, and the time is 0. CPU, host memory and pods are plenty unless a list of nodes says what there is.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from trimtab_policy.sim import gputypes
from trimtab_policy.sim.gputypes import NodeGroup
from trimtab_policy.sim.textfile import FileError, open_text
from trimtab_policy.specs import GpuSpec
from trimtab_policy.types import Node, Snapshot

PER_NODE = 8
"""GPUs of a node where nothing else is said."""
PLENTY = 1 << 60
"""CPU, host memory and pods: GPUs are what is asked about."""
_PART = re.compile(r"([^=]+)=([1-9]\d{0,5})(?:x([1-9]\d?))?")
_OPENB = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_SPOT = ("gpu_model", "gpu_capacity_num", "cpu_num", "node_name")


class ClusterError(ValueError):
    """A text or file that describes no cluster."""


def cluster(text: str) -> Snapshot:
    """The cluster that a text names: a preset, a file with a list of nodes, or `TYPE=COUNT`s.

    Raises ClusterError (a ValueError) that lists what can be written, FileError for a bad file.
    """
    if "=" in text:
        return typed(text)
    if text in preset_names():
        return preset(text)
    if text.casefold().endswith((".csv", ".csv.gz")) or Path(text).exists():
        return read_nodes(text)
    known = ", ".join(preset_names())
    raise ClusterError(f"unknown cluster {text!r}: write {known}, TYPE=COUNT[xPER_NODE] or a CSV file of nodes")


def preset_names() -> list[str]:
    """Names of all presets."""
    return sorted(gputypes.presets().clusters)


def preset(name: str) -> Snapshot:
    """The preset cluster of this name. Raises ClusterError with the known names."""
    groups = gputypes.presets().clusters.get(name)
    if groups is None:
        raise ClusterError(f"unknown cluster {name!r}, known are {', '.join(preset_names())}")
    return _empty(node for group in groups for node in _group(group))


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
        gpu = _gpu(found[1].strip())
        if gpu.name in nodes:
            raise ClusterError(f"{part}: {gpu.name} is there twice")
        nodes[gpu.name] = list(_nodes(gpu, int(found[2]), int(found[3] or PER_NODE)))
    if not nodes:
        raise ClusterError("names no GPUs: write TYPE=COUNT, such as H100-SXM5-80GB=64")
    return _empty(node for of_type in nodes.values() for node in of_type)


def read_nodes(path: str | Path) -> Snapshot:
    """The cluster of a list of nodes as Alibaba publishes them: of openb (2023) or of the spot-GPU trace (2026).

    Columns `sn,cpu_milli,memory_mib,gpu,model` or `gpu_model,gpu_capacity_num,cpu_num,node_name`, in any order, plain
    or gzip. Nodes without GPUs are left out. Raises FileError with file and row.
    """
    with open_text(path) as lines:
        table = csv.DictReader(lines)
        header = set(table.fieldnames or ())
        convert = next(
            (one for names, one in ((_OPENB, _openb_node), (_SPOT, _spot_node)) if header >= set(names)), None
        )
        if convert is None:
            raise FileError(
                path, 1, "header", f"no list of nodes: columns {','.join(_OPENB)} or {','.join(_SPOT)} needed"
            )
        nodes = [convert(path, row, line) for row, line in enumerate(table, start=2)]
    if not any(node.gpus for node in nodes):
        raise FileError(path, len(nodes) + 1, "gpu", "no node has a GPU")
    return _empty(_named_once(path, [(row, node) for row, node in enumerate(nodes, start=2) if node.gpus]))


def scale(snapshot: Snapshot, factor: float) -> Snapshot:
    """A cluster with `factor` times the nodes of every kind, at least one each.

    Whole copies get racks, blocks and link domains of their own. Raises ClusterError unless factor > 0.
    """
    if not 0 < factor < 1e6:
        raise ClusterError(f"factor: must be above 0, got {factor}")
    kinds: dict[tuple[str, int], list[Node]] = {}
    for node in snapshot.nodes:
        kinds.setdefault((node.gpu_type, node.gpus), []).append(node)
    nodes = [
        _copy(alike[number % len(alike)], number // len(alike))
        for alike in kinds.values()
        for number in range(max(1, round(len(alike) * factor)))
    ]
    return msgspec.structs.replace(snapshot, nodes=tuple(nodes))


def gpus_by_type(snapshot: Snapshot) -> dict[str, int]:
    """GPUs of the whole cluster, by type."""
    total = dict.fromkeys(snapshot.gpu_types, 0)
    for node in snapshot.nodes:
        total[node.gpu_type] += node.gpus
    return total


def _empty(nodes: Iterable[Node]) -> Snapshot:
    members = tuple(nodes)
    types = {name: gputypes.resolve(name) for name in dict.fromkeys(node.gpu_type for node in members)}
    return Snapshot(time=0.0, nodes=members, jobs=(), gpu_types=types)


def _gpu(name: str) -> GpuSpec:
    try:
        return gputypes.resolve(name)
    except gputypes.UnknownGpu as error:
        raise ClusterError(f"{name}: {error}") from error


def _nodes(gpu: GpuSpec, count: int, per_node: int) -> Iterator[Node]:
    """Nodes of one type; those that share an NVLink domain wider than a node say so."""
    for number, begun in enumerate(range(0, count, per_node)):
        domain = f"{gpu.name.lower()}-link-{begun // gpu.link_domain}" if gpu.link_domain else ""
        yield _node(f"{gpu.name.lower()}-{number}", gpu.name, min(per_node, count - begun), link_domain=domain)


def _group(group: NodeGroup) -> Iterator[Node]:
    gpu = _gpu(group.gpu)
    for number, node in enumerate(_nodes(gpu, group.nodes * group.gpus, group.gpus)):
        if not group.rack:
            yield node
            continue
        rack = number // group.rack
        block = rack // group.block if group.block else 0
        kind = gpu.name.lower()
        yield msgspec.structs.replace(node, topology=("zone", f"{kind}-block-{block}", f"{kind}-rack-{rack}"))


def _node(name: str, gpu_type: str, gpus: int, cpu: int = PLENTY, memory: int = PLENTY, link_domain: str = "") -> Node:
    return Node(name, gpu_type, gpus, gpus, cpu, memory, free_pods=PLENTY, link_domain=link_domain)


def _copy(node: Node, number: int) -> Node:
    if not number:
        return node
    suffix = f"-x{number + 1}"
    return msgspec.structs.replace(
        node,
        name=node.name + suffix,
        topology=(*node.topology[:1], *(domain + suffix for domain in node.topology[1:])),
        link_domain=node.link_domain and node.link_domain + suffix,
    )


def _openb_node(path: str | Path, row: int, line: Mapping[str, str | None]) -> Node:
    gpus = _whole(path, row, line, "gpu")
    cpu, memory = _whole(path, row, line, "cpu_milli"), _whole(path, row, line, "memory_mib") << 20
    return _node(_text(path, row, line, "sn"), _type(path, row, line, "model") if gpus else "", gpus, cpu, memory)


def _spot_node(path: str | Path, row: int, line: Mapping[str, str | None]) -> Node:
    gpus, cpu = _whole(path, row, line, "gpu_capacity_num"), 1000 * _whole(path, row, line, "cpu_num")
    name = f"node-{_text(path, row, line, 'node_name')}"
    return _node(name, _type(path, row, line, "gpu_model") if gpus else "", gpus, cpu)


def _text(path: str | Path, row: int, line: Mapping[str, str | None], field: str) -> str:
    value = line.get(field)
    if not value:
        raise FileError(path, row, field, "is missing: the file may be truncated, fetch it again")
    return value


def _whole(path: str | Path, row: int, line: Mapping[str, str | None], field: str) -> int:
    value = _text(path, row, line, field)
    if not value.isascii() or not value.isdigit():
        raise FileError(path, row, field, f"{value!r} is no whole number >= 0")
    return int(value)


def _type(path: str | Path, row: int, line: Mapping[str, str | None], field: str) -> str:
    try:
        return gputypes.resolve(_text(path, row, line, field)).name
    except gputypes.UnknownGpu as error:
        raise FileError(path, row, field, str(error)) from error


def _named_once(path: str | Path, nodes: list[tuple[int, Node]]) -> Iterator[Node]:
    seen: set[str] = set()
    for row, node in nodes:
        if node.name in seen:
            raise FileError(path, row, "name", f"{node.name} is there twice: remove one")
        seen.add(node.name)
        yield node
