"""The nodes of a snapshot, and what gangs hold of them, as columns, worked out once for all who ask about the same.

One decision looks at its nodes in half a dozen places, and most decisions are made about nodes of which nothing has
changed since the last one: the snapshot then has the very same tuple of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import eq

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trimtab_policy.placement.last_asked import LastAlike, LastAsked
from trimtab_policy.placement.topology import domain_codes
from trimtab_policy.types import Job, Node, NodeShare

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
        """Name -> place in all columns. The very same for nodes of the same names, whatever else has changed."""
        return _index.of(self.names)

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
    def foreign(self) -> list[Node]:
        """Those with GPUs that are busy with what no pod asked for."""
        return [node for node in self.nodes if node.foreign_gpus]

    @cached_property
    def offers(self) -> tuple[tuple[str, int], ...]:
        """GPU types and GPUs of nodes that there are, ascending."""
        return tuple(sorted({(node.gpu_type, node.gpus) for node in self.nodes}))

    @cached_property
    def levels(self) -> list[IntArray]:
        """Of `domain_codes`."""
        return domain_codes(self.nodes)


_index: LastAlike[list[str], dict[str, int]] = LastAlike(eq, lambda names, _: {n: i for i, n in enumerate(names)}, KEPT)


class GangColumns(Struct, frozen=True):
    """What gangs hold of these nodes, share after share, gang after gang. Nothing of it is to be changed."""

    begin: IntArray
    """(gangs + 1,) where each gang's shares begin, and the last ones end."""
    rows: IntArray
    """(shares,) places of their nodes; shares of nodes that are gone are left out."""
    gpus: IntArray
    """(shares,)."""
    host: tuple[IntArray, IntArray] | None
    """(shares,) CPU in millicores and (shares,) bytes of memory beside the GPUs; None where no gang asks for any."""
    lines: tuple[tuple[str, str], ...]
    """Queues and GPU types that there are."""
    line: IntArray
    """(gangs,) place of its queue and type among these."""
    line_of_share: IntArray
    """(shares,) the same."""
    whole: IntArray
    """(gangs,) GPUs on all nodes, those that are gone, too."""

    @classmethod
    def of(cls, gangs: Iterable[tuple[Job, str, Sequence[NodeShare]]], index: Mapping[str, int]) -> GangColumns:
        """Of (job, GPU type, shares) each, the nodes' places being told by name."""
        known = list(gangs)
        shares = [share for _, _, held in known for share in held]
        there = np.array([index.get(share.node, -1) for share in shares], dtype=np.int64)
        gpus = np.array([share.gpus for share in shares], dtype=np.int64)
        places: dict[tuple[str, str], int] = {}
        line = column([places.setdefault((job.queue, gpu_type), len(places)) for job, gpu_type, _ in known])
        sizes = np.array([len(held) for _, _, held in known], dtype=np.int64)
        ends, here = np.cumsum(sizes), there >= 0
        whole = np.diff(np.concatenate(([0], np.cumsum(gpus)))[ends], prepend=0)
        beside = [job.requirements if job.requirements.asks_host else None for job, _, _ in known]
        host = None
        if any(beside):
            needs = [(need, share.gpus) for need, (*_, held) in zip(beside, known, strict=True) for share in held]
            host = (
                column([need.cpu_milli(part) if need else 0 for need, part in needs])[here],
                column([need.memory(part) if need else 0 for need, part in needs])[here],
            )
        return cls(
            begin=np.concatenate(([0], np.concatenate(([0], np.cumsum(here)))[ends])),
            rows=there[here],
            gpus=gpus[here],
            host=host,
            lines=tuple(places),
            line=line,
            line_of_share=np.repeat(line, sizes)[here],
            whole=whole,
        )

    def joined(self, others: GangColumns) -> GangColumns:
        """These gangs, and the others of the same nodes behind them."""
        lines = {line: place for place, line in enumerate((*dict.fromkeys((*self.lines, *others.lines)),))}
        to = np.array([lines[line] for line in others.lines], dtype=np.int64)
        host = None
        if self.host or others.host:
            mine, theirs = self._host(), others._host()
            host = np.concatenate((mine[0], theirs[0])), np.concatenate((mine[1], theirs[1]))
        return GangColumns(
            begin=np.concatenate((self.begin, self.begin[-1] + others.begin[1:])),
            rows=np.concatenate((self.rows, others.rows)),
            gpus=np.concatenate((self.gpus, others.gpus)),
            host=host,
            lines=tuple(lines),
            line=np.concatenate((self.line, to[others.line])),
            line_of_share=np.concatenate((self.line_of_share, to[others.line_of_share])),
            whole=np.concatenate((self.whole, others.whole)),
        )

    def _host(self) -> tuple[IntArray, IntArray]:
        none = np.zeros(len(self.rows), dtype=np.int64)
        return self.host or (none, none)

    def in_order(self, order: Sequence[int] | IntArray) -> GangColumns:
        """The same gangs, the one at this place first; those that are left out are not there."""
        to = np.asarray(order, dtype=np.int64)
        lines, line, line_of_share = self.lines, self.line[to], self.line_of_share
        if (len(lines) > 1 or not len(line)) and len(used := np.unique(line)) < len(lines):
            lines = tuple(lines[place] for place in used.tolist())
            line, line_of_share = np.searchsorted(used, line), np.searchsorted(used, line_of_share)
        sizes = np.diff(self.begin)[to]
        begin = np.concatenate(([0], np.cumsum(sizes)))
        shares = np.arange(begin[-1]) + np.repeat(self.begin[:-1][to] - begin[:-1], sizes)
        return GangColumns(
            begin=begin,
            rows=self.rows[shares],
            gpus=self.gpus[shares],
            host=(self.host[0][shares], self.host[1][shares]) if self.host else None,
            lines=lines,
            line=line,
            line_of_share=line_of_share[shares],
            whole=self.whole[to],
        )


def column(values: Sequence[int]) -> IntArray:
    """An array that is not to be changed."""
    found = np.array(values, dtype=np.int64)
    found.setflags(write=False)
    return found


_known: LastAsked[tuple[Node, ...], NodeColumns] = LastAsked(NodeColumns, KEPT)


def columns(nodes: tuple[Node, ...]) -> NodeColumns:
    """The columns of these very nodes."""
    return _known.of(nodes)
