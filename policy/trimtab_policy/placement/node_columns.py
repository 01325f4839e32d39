"""The nodes of a snapshot as columns, worked out once for all who ask about the same nodes.

One decision looks at its nodes in half a dozen places, and most decisions are made about nodes of which nothing has
changed since the last one: the snapshot then has the very same tuple of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.placement.last_asked import LastAsked
from trimtab_policy.placement.topology import domain_codes
from trimtab_policy.types import Node

IntArray = NDArray[np.int64]
Amounts = tuple[int, int, int, int]
"""GPUs, CPU millicores, bytes of memory, pods."""
KEPT = 8


class NodeColumns:
    """Facts of these nodes in their order. Nothing of it is to be changed: arrays refuse that."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes

    @cached_property
    def names(self) -> list[str]:
        """(nodes,)."""
        return [node.name for node in self.nodes]

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Name -> node."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def index(self) -> dict[str, int]:
        """Name -> place in all columns."""
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def amounts(self) -> dict[str, Amounts]:
        """Name -> what is free, less than nothing where more was given out than there is."""
        return {
            node.name: (node.free_gpus, node.free_cpu_milli, node.free_memory, node.free_pods) for node in self.nodes
        }

    @cached_property
    def total(self) -> IntArray:
        """(nodes,) GPUs."""
        return column([node.gpus for node in self.nodes])

    @cached_property
    def free(self) -> IntArray:
        """(nodes,) free GPUs."""
        return column([max(0, node.free_gpus) for node in self.nodes])

    @cached_property
    def cpu(self) -> IntArray:
        """(nodes,) free CPU, in millicores."""
        return column([node.free_cpu_milli for node in self.nodes])

    @cached_property
    def memory(self) -> IntArray:
        """(nodes,) free memory, in bytes."""
        return column([node.free_memory for node in self.nodes])

    @cached_property
    def pods(self) -> IntArray:
        """(nodes,) pods for which there is a place."""
        return column([node.free_pods for node in self.nodes])

    @cached_property
    def overdrawn(self) -> dict[int, int]:
        """Place of a node -> GPUs that it has given out beyond its own."""
        return {i: -node.free_gpus for i, node in enumerate(self.nodes) if node.free_gpus < 0}

    @cached_property
    def speed(self) -> NDArray[np.float64]:
        """(nodes,) `Node.speed`."""
        speeds = np.array([node.speed for node in self.nodes], dtype=np.float64)
        speeds.setflags(write=False)
        return speeds

    @cached_property
    def slow(self) -> bool:
        """Whether any node is slow."""
        return bool((self.speed != 1.0).any())

    @cached_property
    def members(self) -> dict[str, IntArray]:
        """GPU type -> places of its nodes."""
        members: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            members.setdefault(node.gpu_type, []).append(i)
        return {name: column(rows) for name, rows in members.items()}

    @cached_property
    def gpus_of_type(self) -> dict[str, int]:
        """GPU type -> GPUs of its nodes."""
        return {name: int(self.total[rows].sum()) for name, rows in self.members.items()}

    @cached_property
    def offers(self) -> tuple[tuple[str, int], ...]:
        """GPU types and GPUs of nodes that there are, ascending."""
        return tuple(sorted({(node.gpu_type, node.gpus) for node in self.nodes}))

    @cached_property
    def levels(self) -> list[IntArray]:
        """Of `domain_codes`."""
        return domain_codes(self.nodes)


def column(values: Sequence[int]) -> IntArray:
    """An array that is not to be changed."""
    found = np.array(values, dtype=np.int64)
    found.setflags(write=False)
    return found


_known: LastAsked[tuple[Node, ...], NodeColumns] = LastAsked(NodeColumns, KEPT)


def columns(nodes: tuple[Node, ...]) -> NodeColumns:
    """The columns of these very nodes."""
    return _known.of(nodes)
