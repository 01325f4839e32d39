"""Clusters to evaluate on: presets, what somebody types, or lists of nodes, as snapshots in which nothing runs yet.

CPU, host memory and pods are plenty unless a list of nodes says what there is.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from trimtab_lab.workloads.textfile import FileError, open_text
from trimtab_policy.sim import gputypes
from trimtab_policy.sim.gputypes import NodeGroup
from trimtab_policy.sim.typed_cluster import ClusterError, empty_cluster, find_gpu, make_node, make_nodes, typed
from trimtab_policy.types import Node, Snapshot

_OPENB = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_SPOT = ("gpu_model", "gpu_capacity_num", "cpu_num", "node_name")


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
    return empty_cluster(node for group in groups for node in _group(group))


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
    return empty_cluster(_named_once(path, [(row, node) for row, node in enumerate(nodes, start=2) if node.gpus]))


def gpus_by_type(snapshot: Snapshot) -> dict[str, int]:
    """GPUs of the whole cluster, by type."""
    total = dict.fromkeys(snapshot.gpu_types, 0)
    for node in snapshot.nodes:
        total[node.gpu_type] += node.gpus
    return total


def _group(group: NodeGroup) -> Iterator[Node]:
    gpu = find_gpu(group.gpu)
    for number, node in enumerate(make_nodes(gpu, group.nodes * group.gpus, group.gpus)):
        if not group.rack:
            yield node
            continue
        rack = number // group.rack
        block = rack // group.block if group.block else 0
        kind = gpu.name.lower()
        yield msgspec.structs.replace(node, topology=("zone", f"{kind}-block-{block}", f"{kind}-rack-{rack}"))


def _openb_node(path: str | Path, row: int, line: Mapping[str, str | None]) -> Node:
    gpus = _whole(path, row, line, "gpu")
    cpu, memory = _whole(path, row, line, "cpu_milli"), _whole(path, row, line, "memory_mib") << 20
    return make_node(_text(path, row, line, "sn"), _type(path, row, line, "model") if gpus else "", gpus, cpu, memory)


def _spot_node(path: str | Path, row: int, line: Mapping[str, str | None]) -> Node:
    gpus, cpu = _whole(path, row, line, "gpu_capacity_num"), 1000 * _whole(path, row, line, "cpu_num")
    name = f"node-{_text(path, row, line, 'node_name')}"
    return make_node(name, _type(path, row, line, "gpu_model") if gpus else "", gpus, cpu)


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
