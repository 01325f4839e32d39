"""What is free, and where a gang fits: the one place that searches nodes.

A gang of `nodes` pods with `gpus_per_node` GPUs each goes where its collectives travel the shortest way (`nearness`).
Slow nodes (`Node.speed`) are a last resort: a gang goes where its slowest node is as fast as can be, and only among
such places does the way of its collectives count. A caller may also say how fast all its nodes have to be at least.

Jobs that bring their own speeds, as in traces, may take unequal parts (`GangDemand.spread`): they lie on the fewest
nodes that hold them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trimtab_policy.perf.plan_space import ANYHOW, Linkage
from trimtab_policy.placement.node_columns import GangColumns, column, columns
from trimtab_policy.placement.topology import holds, tightest
from trimtab_policy.types import Job, Node, NodeShare, Placement, Requirements, Snapshot

IntArray = NDArray[np.int64]
T = TypeVar("T")

ALL_TYPES = "*"
NO_NODES = column(())
MOST_SPEEDS = 4
"""Speeds of slow nodes that options are offered for: each is all options of the type once more."""


class GangDemand(Struct, frozen=True):
    """The nodes that a gang asks for."""

    gpu_type: str
    gpus: int
    """On all nodes together."""
    nodes: int
    """Over which it lies in equal parts."""
    spread: int = 0
    """Nodes that it may be spread over in unequal parts, at most; 0: none but equal parts."""
    least_speed: float = 0.0
    """`Node.speed` that each of them has at least."""
    linkage: Linkage = ANYHOW
    """How equal parts have to lie in link domains."""

    @property
    def gpus_per_node(self) -> int:
        """GPUs of each of the equal parts, the largest of nearly equal ones."""
        return -(-self.gpus // self.nodes)


class Capacity:
    """Free resources of a snapshot as arrays over its nodes; `take` is how a policy spends them while it decides."""

    def __init__(self, snapshot: Snapshot) -> None:
        known = self._columns = columns(snapshot.nodes)
        self.nodes = snapshot.nodes
        self.names, self.index = known.names, known.index
        self.total, self.speed = known.total, known.speed
        self.free, self.cpu = known.free.copy(), known.cpu.copy()
        self.memory, self.pods = known.memory.copy(), known.pods.copy()
        self._overdrawn = dict(known.overdrawn)
        self.slow = known.slow
        """Whether any node is slow; where none is, nothing below looks at speeds."""
        self._members = {name: known.members.get(name, NO_NODES) for name in snapshot.gpu_types} | known.members
        self._free_of_type = self._by_type(self.free)
        self._total_of_type = self._by_type(self.total)
        self._largest = {name: int(self.total[rows].max(initial=0)) for name, rows in self._members.items()}
        self._pods_suffice = bool((self.pods >= self.total).all())
        self._eligible: dict[tuple[str, tuple[str, ...]], IntArray] = {}
        self._quota_left = _quota_left(snapshot)
        self._large_enough: dict[tuple[str, Hashable, float], int] = {}
        self._known_fitting: dict[str, dict[Hashable, IntArray]] = {}
        """GPU type -> what pods ask for -> nodes with room for one."""
        self._ever_linked: dict[tuple[str, int, int, Linkage], bool] = {}
        self._known_links: dict[str, dict[Hashable, list[int]]] = {}
        """GPU type -> what pods ask for -> how many of those nodes each link domain has."""
        self._largest_links: dict[tuple[str, Hashable, float], list[int]] = {}
        self._remembered: dict[Hashable, Any] = {}
        self._lasting: dict[Hashable, Any] = {}
        self.tried = 0
        """Jobs for which other wishes than theirs were tried, to tell them what would help."""

    def remember(self, key: Hashable, compute: Callable[[], T], *, lasting: bool = False) -> T:
        """What follows from what is free, computed once until something is taken or given back; `lasting`: what follows
        from the snapshot alone, once for this capacity and all its copies."""
        known = self._lasting if lasting else self._remembered
        if key not in known:
            known[key] = compute()
        found: T = known[key]
        return found

    def node_gpus(self, gpu_type: str) -> int:
        """GPUs of the largest node of this type; 0 when there is none."""
        return self._largest.get(gpu_type, 0)

    def gpus(self, job: Job, gpu_type: str, *, free: bool = True) -> int:
        """Free (or all) GPUs of a type on the nodes that the job's selectors admit."""
        if free and job.eligible is None:
            return self._free_of_type[gpu_type]
        return int((self.free if free else self.total)[self.eligible(job, gpu_type)].sum())

    def free_gpus(self, gpu_type: str) -> int:
        """Free GPUs of a type, whoever may use them."""
        return self._free_of_type.get(gpu_type, 0)

    def most_free(self, job: Job, gpu_type: str) -> int:
        """Free GPUs on the emptiest of these nodes."""
        return int(self.free[self.eligible(job, gpu_type)].max(initial=0))

    def quota_left(self, queue: str, gpu_type: str) -> int | None:
        """GPUs that the queue may still take of this type; None when it has no limit."""
        if not self._quota_left:
            return None
        limits = [self._quota_left[key] for key in ((queue, gpu_type), (queue, ALL_TYPES)) if key in self._quota_left]
        return min(limits) if limits else None

    def within_quota(self, queue: str, gpu_type: str, gpus: int) -> bool:
        """Whether the queue may take so many more."""
        left = self.quota_left(queue, gpu_type)
        return left is None or gpus <= left

    def find(self, job: Job, gang: GangDemand) -> tuple[NodeShare, ...] | None:
        """Nodes for the gang in rank order, or None when it does not fit at this moment (quota included).

        An uneven gang lies at best on `gang.nodes`: on nodes with 4 GPUs one of 6 gets 4 and 2.
        """
        if gang.spread:
            return self._gather(job, gang)
        if not self.fits(job, gang):
            return None
        width = gang.gpus_per_node
        fitting = self._fitting(job, gang.gpu_type, width)
        if self.slow:
            fitting = self._fastest(fitting, gang.nodes, gang.linkage)
        left = self.free[fitting] - width
        chosen = tightest(left, [codes[fitting] for codes in self._levels], gang.nodes, gang.linkage)
        return tuple(NodeShare(self.names[i], width) for i in fitting[chosen])

    def fits(self, job: Job, gang: GangDemand) -> bool:
        """Whether `find` would find nodes, without choosing them."""
        if gang.spread:
            return self._gathers(job, gang)
        if self._quota_left and not self.within_quota(job.queue, gang.gpu_type, gang.gpus):
            return False
        nodes, linkage, width = gang.nodes, gang.linkage, gang.gpus_per_node
        fitting = self._fitting(job, gang.gpu_type, width)
        if self.slow:
            fitting = self._as_fast(fitting, gang.least_speed)
        if linkage is ANYHOW or len(fitting) < nodes:
            return len(fitting) >= nodes
        links, key = self._known_links.setdefault(gang.gpu_type, {}), (_of_pod(job, width), gang.least_speed)
        if key not in links:
            links[key] = self._link_sizes(fitting)
        return holds(links[key], nodes, linkage)

    def could_ever_fit(self, job: Job, gang: GangDemand) -> bool:
        """Whether the gang would fit if the present nodes were empty, whatever its queue may take."""
        if gang.spread:
            return self._could_ever_gather(job, gang)
        nodes, linkage, width = gang.nodes, gang.linkage, gang.gpus_per_node
        key = gang.gpu_type, _of_pod(job, width), gang.least_speed
        if key not in self._large_enough:
            self._large_enough[key] = len(self._large(job, gang))
        if self._large_enough[key] < nodes or linkage is ANYHOW:
            return self._large_enough[key] >= nodes
        if key not in self._largest_links:
            self._largest_links[key] = self._link_sizes(self._large(job, gang))
        return holds(self._largest_links[key], nodes, linkage)

    def fits_on(self, job: Job, gpu_type: str, shares: Sequence[NodeShare]) -> bool:
        """Whether the job may use just these nodes, each named once, and they have what it takes (quota included)."""
        rows = column([self.index.get(share.node, -1) for share in shares])
        gpus = column([share.gpus for share in shares])
        if not (np.isin(rows, self.eligible(job, gpu_type)).all() and (self._usable(job, rows) >= gpus).all()):
            return False
        return self.within_quota(job.queue, gpu_type, int(gpus.sum()))

    def speed_of(self, shares: Sequence[NodeShare]) -> float:
        """Rate of the slowest of these nodes, 1 for those that are not here: what a gang on them is slowed to."""
        if not self.slow:
            return 1.0
        rows = [self.index[share.node] for share in shares if share.node in self.index]
        return float(self.speed[rows].min(initial=1.0))

    def lower_speeds(self, gpu_type: str) -> tuple[float, ...]:
        """Speeds of the slow nodes of a type, the highest first; of many some, the lowest among them."""
        if not self.slow or gpu_type not in self._members:
            return ()
        found = sorted(set(self.speed[self._members[gpu_type]].tolist()) - {1.0}, reverse=True)
        return tuple(found[:: -max(1, -(-len(found) // MOST_SPEEDS))][::-1])

    def ever_links(self, gpu_type: str, nodes: int, gpus_per_node: int, linkage: Linkage) -> bool:
        """Whether the link domains of the type, were all their nodes free, hold the gang so: whoever asks."""
        key = gpu_type, nodes, gpus_per_node, linkage
        if key not in self._ever_linked:
            rows = self._members[gpu_type]
            sizes = self._link_sizes(rows[self.total[rows] >= gpus_per_node])
            self._ever_linked[key] = holds(sizes, nodes, linkage)
        return self._ever_linked[key]

    @property
    def by_name(self) -> dict[str, Node]:
        """The nodes by their names."""
        return self._columns.by_name

    def take(self, job: Job, gpu_type: str, shares: Sequence[NodeShare]) -> None:
        """Spend the resources of a placement."""
        self._spend(job, gpu_type, shares, 1)

    def take_back(self, job: Job, gpu_type: str, shares: Sequence[NodeShare]) -> None:
        """Undo `take`: the placement is none. Unlike what a gang gives, that pays for nothing that a node owes: it was
        not held, and so is no part of what was handed out twice."""
        self._spend(job, gpu_type, shares, -1)

    def _spend(self, job: Job, gpu_type: str, shares: Sequence[NodeShare], sign: int) -> None:
        gpus = sign * sum(share.gpus for share in shares)
        rows = [self.index[share.node] for share in shares]
        for i, share in zip(rows, shares, strict=True):
            self.free[i] -= sign * share.gpus
            self._spend_host(job, i, share.gpus, pods=sign)
        self._count(job, gpu_type, rows, free=-gpus, quota=-gpus)

    def give(self, job: Job, gpu_type: str, shares: Sequence[NodeShare]) -> None:
        """Return what a placement holds, as if its job were stopped. Shares of nodes that are gone stay gone."""
        back, rows = 0, []
        for share in shares:
            if (i := self.index.get(share.node)) is None:
                continue
            rows.append(i)
            owed = min(share.gpus, self._overdrawn.get(i, 0))
            if owed:
                self._overdrawn[i] -= owed
            self.free[i] += share.gpus - owed
            back += share.gpus - owed
            self._spend_host(job, i, share.gpus, pods=-1)
        self._count(job, gpu_type, rows, free=back, quota=sum(share.gpus for share in shares))

    def give_all(self, gangs: GangColumns, first: int, last: int) -> None:
        """`give` for each of these gangs, from the `first` one to that before the `last`, at once."""
        shares = slice(int(gangs.begin[first]), int(gangs.begin[last]))
        rows, gpus = gangs.rows[shares], self._beyond_owed(gangs.rows[shares], gangs.gpus[shares])
        np.add.at(self.free, rows, gpus)
        np.add.at(self.pods, rows, 1)
        if gangs.host:
            np.add.at(self.cpu, rows, gangs.host[0][shares])
            np.add.at(self.memory, rows, gangs.host[1][shares])
        back = np.bincount(gangs.line_of_share[shares], gpus, len(gangs.lines)).tolist()
        quota = np.bincount(gangs.line[first:last], gangs.whole[first:last], len(gangs.lines)).tolist()
        for (queue, gpu_type), free, raised in zip(gangs.lines, back, quota, strict=True):
            self._free_of_type[gpu_type] = self._free_of_type.get(gpu_type, 0) + int(free)
            self._raise_quota(queue, gpu_type, int(raised))
        self._known_fitting.clear()
        self._known_links.clear()
        self._remembered.clear()

    def _beyond_owed(self, rows: IntArray, gpus: IntArray) -> IntArray:
        """What is left of these GPUs when nodes have got back what they owe, share after share."""
        owing = [row for row, owed in self._overdrawn.items() if owed]
        if not owing:
            return gpus
        left = gpus.copy()
        for share in np.flatnonzero(np.isin(rows, owing)).tolist():
            row = int(rows[share])
            paid = min(int(left[share]), self._overdrawn[row])
            self._overdrawn[row] -= paid
            left[share] -= paid
        return left

    def copy(self) -> Capacity:
        """The same, to be spent without spending this one."""
        other = copy.copy(self)
        other.free, other.cpu = self.free.copy(), self.cpu.copy()
        other.memory, other.pods = self.memory.copy(), self.pods.copy()
        other._overdrawn, other._free_of_type = dict(self._overdrawn), dict(self._free_of_type)
        other._quota_left, other._remembered = dict(self._quota_left), {}
        other._known_fitting = {gpu_type: dict(known) for gpu_type, known in self._known_fitting.items()}
        other._known_links = {gpu_type: dict(known) for gpu_type, known in self._known_links.items()}
        return other

    def expect(self, ending: Mapping[str, int], held: GangColumns) -> None:
        """Count each GPU once in the short while in which a gang's pods end one after the other.

        Those whose pods are just ending (`Snapshot.ending`) count as free: else whoever looks in that moment takes them
        from under a large gang. Those that gangs are still to give back (`held`) do not, though their pods have ended.
        """
        balance, most = self.free.copy(), self.remember("most", self._own_gpus, lasting=True).copy()
        for row, gpus in self._overdrawn.items():
            balance[row] -= gpus
        for name, gpus in ending.items():
            if name in self.index:
                balance[self.index[name]] += gpus
        np.subtract.at(most, held.rows, held.gpus)
        balance = np.minimum(balance, most)
        self._overdrawn = {row: -int(balance[row]) for row in np.flatnonzero(balance < 0).tolist()}
        self.free = np.maximum(0, balance)
        self._free_of_type = self._by_type(self.free)
        self._forget(range(len(self.nodes)))

    def hide(self, shares: Iterable[NodeShare]) -> None:
        """Leave these GPUs to others, as far as they are free. What is given back there later is free again."""
        for share in shares:
            if (i := self.index.get(share.node)) is not None:
                self._change(i, -min(share.gpus, max(0, int(self.free[i]))))

    def withhold(self, job: Job, placement: Placement) -> None:
        """Leave to others what a job has given back: GPUs, as far as they are free, and its part of the quota."""
        self.hide(placement.shares)
        _charge(self._quota_left, job.queue, placement)

    def owed(self, row: int) -> int:
        """GPUs of an over-allocated node that have to be given back before any is free."""
        return self._overdrawn.get(row, 0)

    def eligible_nodes(self, job: Job, gpu_type: str) -> int:
        """Nodes of the type that the job's selectors admit, whatever they hold."""
        return len(self.eligible(job, gpu_type))

    def eligible(self, job: Job, gpu_type: str, least_speed: float = 0.0) -> IntArray:
        """Which nodes these are, by index; only those that are fast enough."""
        rows = self._members[gpu_type]
        if job.eligible is not None:
            key = gpu_type, job.eligible
            if key not in self._eligible:
                admitted = [self.index[name] for name in job.eligible if name in self.index]
                self._eligible[key] = np.intersect1d(rows, column(admitted))
            rows = self._eligible[key]
        return self._as_fast(rows, least_speed) if self.slow else rows

    def _gather(self, job: Job, gang: GangDemand) -> tuple[NodeShare, ...] | None:
        if not self._enough(job, gang):
            return None
        for speed in self._speeds(gang.gpu_type, gang.least_speed):
            rows = self.eligible(job, gang.gpu_type, speed)
            if parts := uneven(self._usable(job, rows), gang.gpus, gang.nodes, gang.spread):
                each = zip(rows[parts[0]].tolist(), parts[1], strict=True)
                return tuple(NodeShare(self.names[i], part) for i, part in each)
        return None

    def _gathers(self, job: Job, gang: GangDemand) -> bool:
        """Where nothing but GPUs can run out that is a look at their number."""
        if not self._enough(job, gang):
            return False
        if self._anywhere(job, gang) and self._pods_suffice and not job.requirements.asks_host:
            return True
        rows = self.eligible(job, gang.gpu_type, gang.least_speed)
        return uneven(self._usable(job, rows), gang.gpus, gang.nodes, gang.spread) is not None

    def _could_ever_gather(self, job: Job, gang: GangDemand) -> bool:
        if self._anywhere(job, gang) and not job.requirements.asks_host:
            return gang.gpus <= self._total_of_type.get(gang.gpu_type, 0)
        rows = self.eligible(job, gang.gpu_type, gang.least_speed)
        usable = self.total[rows]
        if job.requirements.asks_host:
            cpu, memory = self._whole_host
            usable = _beside(usable, job.requirements, cpu[rows], memory[rows])
        return uneven(usable, gang.gpus, gang.nodes, gang.spread) is not None

    def _large(self, job: Job, gang: GangDemand) -> IntArray:
        """Nodes that one pod of the gang would fit on if they were empty, by index."""
        need, width = job.requirements, gang.gpus_per_node
        rows = self.eligible(job, gang.gpu_type, gang.least_speed)
        room = self.total[rows] >= width
        if need.asks_host:
            cpu, memory = self._whole_host
            room &= (cpu[rows] >= need.cpu_milli(width)) & (memory[rows] >= need.memory(width))
        return rows[room]

    @cached_property
    def _whole_host(self) -> tuple[IntArray, IntArray]:
        """(nodes,) millicores and bytes of memory that the nodes have in all."""
        return column([node.cpu_milli for node in self.nodes]), column([node.memory for node in self.nodes])

    def _enough(self, job: Job, gang: GangDemand) -> bool:
        """Whether there are so many GPUs, wherever they are, and the queue may take them."""
        enough = gang.gpus <= self._free_of_type.get(gang.gpu_type, 0)
        return enough and self.within_quota(job.queue, gang.gpu_type, gang.gpus)

    def _anywhere(self, job: Job, gang: GangDemand) -> bool:
        """Whether a gang may lie on all nodes of its type, however many it takes."""
        return gang.spread >= len(self.names) and job.eligible is None and not self.slow

    @property
    def _levels(self) -> list[IntArray]:
        return self._columns.levels

    def _as_fast(self, rows: IntArray, least_speed: float) -> IntArray:
        """Those of the nodes that are fast enough."""
        return rows[self.speed[rows] >= least_speed] if least_speed > 0 else rows

    def _fastest(self, fitting: IntArray, nodes: int, linkage: Linkage) -> IntArray:
        """Those of the nodes that are as fast as the slowest of the gang can be at best."""
        speeds = self.speed[fitting]
        least = np.sort(speeds)[-nodes]
        if linkage is not ANYHOW:
            tried = (speed for speed in np.unique(speeds)[::-1] if speed <= least)
            least = next(s for s in tried if holds(self._link_sizes(fitting[speeds >= s]), nodes, linkage))
        fast: IntArray = fitting[speeds >= least]
        return fast

    def _link_sizes(self, rows: IntArray) -> list[int]:
        """How many of these nodes each link domain has, the largest first."""
        sizes = np.bincount(self._levels[-1][rows])
        found: list[int] = np.sort(sizes[sizes > 0])[::-1].tolist()
        return found

    def _speeds(self, gpu_type: str, least: float) -> Sequence[float]:
        """Limits on the speed of a gang's nodes to try one after the other."""
        if not self.slow:
            return (0.0,)
        found = set(self.speed[self._members[gpu_type]].tolist())
        return sorted((speed for speed in found if speed >= least), reverse=True)

    def _spend_host(self, job: Job, i: int, gpus: int, pods: int) -> None:
        """Take what a pod with so many GPUs needs beside them (`pods` 1), or give it back (-1)."""
        need = job.requirements
        if need.asks_host:
            self.cpu[i] -= pods * need.cpu_milli(gpus)
            self.memory[i] -= pods * need.memory(gpus)
        self.pods[i] -= pods

    def _own_gpus(self) -> IntArray:
        """(nodes,) all but those that processes use which no pod asked for."""
        return self.total - column([node.foreign_gpus for node in self.nodes])

    def _by_type(self, gpus: IntArray) -> dict[str, int]:
        """Sums of (nodes,) by GPU type."""
        return {name: int(gpus[rows].sum()) for name, rows in self._members.items()}

    def _forget(self, rows: Iterable[int]) -> None:
        """What follows from what is free on these nodes is to be worked out anew."""
        for gpu_type in {self.nodes[i].gpu_type for i in rows}:
            self._known_fitting.pop(gpu_type, None)
            self._known_links.pop(gpu_type, None)
        self._remembered.clear()

    def _change(self, i: int, gpus: int) -> None:
        self.free[i] += gpus
        self._free_of_type[self.nodes[i].gpu_type] += gpus
        self._forget((i,))

    def _count(self, job: Job, gpu_type: str, rows: Iterable[int], *, free: int, quota: int) -> None:
        self._forget(rows)
        self._free_of_type[gpu_type] = self._free_of_type.get(gpu_type, 0) + free
        self._raise_quota(job.queue, gpu_type, quota)

    def _raise_quota(self, queue: str, gpu_type: str, gpus: int) -> None:
        for key in ((queue, gpu_type), (queue, ALL_TYPES)) if self._quota_left else ():
            if key in self._quota_left:
                self._quota_left[key] += gpus

    def _fitting(self, job: Job, gpu_type: str, gpus: int) -> IntArray:
        """Nodes with room for one pod. Remembered until something of the type is taken: jobs have hundreds of options,
        and most jobs ask for the same."""
        known, key = self._known_fitting.setdefault(gpu_type, {}), _of_pod(job, gpus)
        if key not in known:
            known[key] = self._look_up(job, gpu_type, gpus)
        return known[key]

    def _look_up(self, job: Job, gpu_type: str, gpus: int) -> IntArray:
        need, rows = job.requirements, self.eligible(job, gpu_type)
        room = (self.free[rows] >= gpus) & (self.pods[rows] >= 1)
        if cpu := need.cpu_milli(gpus):
            room &= self.cpu[rows] >= cpu
        if memory := need.memory(gpus):
            room &= self.memory[rows] >= memory
        return rows[room]

    def _usable(self, job: Job, rows: IntArray) -> IntArray:
        """GPUs that the job could take of each of these nodes: those that are free and have enough beside them."""
        usable, need = self.free[rows], job.requirements
        if not self._pods_suffice:
            usable = np.where(self.pods[rows] >= 1, usable, 0)
        return _beside(usable, need, self.cpu[rows], self.memory[rows])


def _beside(gpus: IntArray, need: Requirements, cpu: IntArray, memory: IntArray) -> IntArray:
    """(n,) of so many GPUs of each node those for which it has the CPU and memory that pods ask for beside them."""
    for free, of_pod, of_gpu in (
        (cpu, need.cpu_milli_per_pod, need.cpu_milli_per_gpu),
        (memory, need.memory_per_pod, need.memory_per_gpu),
    ):
        if of_pod or of_gpu:
            left = free - of_pod
            gpus = np.where(left < 0, 0, np.minimum(gpus, left // of_gpu) if of_gpu else gpus)
    return gpus


def _of_pod(job: Job, gpus: int) -> Hashable:
    """What tells on which nodes a pod of the job with so many GPUs has room."""
    need = job.requirements
    return None if job.eligible is None else job.uid, gpus, need.cpu_milli(gpus), need.memory(gpus)


def uneven(usable: IntArray, gpus: int, nodes: int, spread: int) -> tuple[IntArray, list[int]] | None:
    """Positions and parts of a gang over at most `spread` nodes with so many `usable` (n,) GPUs; None if none hold it.

    The fewest nodes that hold it, the fullest parts first; where that is fewer than `nodes`, equal parts over these.
    """
    order = np.argsort(-usable, kind="stable")
    most = np.cumsum(usable[order])
    fewest = int(np.searchsorted(most, gpus)) + 1
    if fewest > min(spread, len(usable)):
        return None
    if fewest < nodes and (balanced := _best_fit(usable, _equal_parts(gpus, nodes))):
        return balanced
    whole = order[: fewest - 1]
    parts: list[int] = usable[whole].tolist()
    rest = gpus - sum(parts)
    others = np.where(usable >= rest, usable, _NEVER)
    others[whole] = _NEVER
    return np.append(whole, others.argmin()), [*parts, rest]


_NEVER = np.iinfo(np.int64).max


def _equal_parts(gpus: int, nodes: int) -> list[int]:
    """As equal as can be, larger ones first."""
    part, larger = divmod(gpus, nodes)
    return [part + 1] * larger + [part] * (nodes - larger)


def _best_fit(usable: IntArray, parts: Sequence[int]) -> tuple[IntArray, list[int]] | None:
    """A node of its own for each part, largest parts first, with the least left over."""
    free, chosen = usable.copy(), []
    for part in parts:
        fitting = np.where(free >= part, free, _NEVER)
        best = int(fitting.argmin()) if len(fitting) else 0
        if part < 1 or not len(fitting) or fitting[best] == _NEVER:
            return None
        chosen.append(best)
        free[best] = -1
    return column(chosen), list(parts)


def _quota_left(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    left = {(quota.queue, quota.gpu_type): quota.gpus for quota in snapshot.quotas}
    for job in snapshot.jobs if left else ():
        if job.placement is not None:
            _charge(left, job.queue, job.placement)
    return left


def _charge(left: dict[tuple[str, str], int], queue: str, placement: Placement) -> None:
    for key in ((queue, placement.gpu_type), (queue, ALL_TYPES)):
        if key in left:
            left[key] -= placement.gpus
