"""What is free, and where a gang fits: the one place that searches nodes.

A gang of `nodes` pods with `gpus_per_node` GPUs each goes where its collectives travel the shortest way: into the
nearest topology domain (NVLink domain, then rack, block, zone) that holds all of it, and over as few of the domains
inside as possible. Among several such domains the fullest one is taken, and in it the nodes with the least left over
(best fit), so that whole nodes and whole racks stay free for larger gangs.

Jobs that bring their own speeds may take unequal parts of their nodes: `gather` finds the fewest nodes, whole ones
first and the best fit for the rest, as the simulators of traces do. The arrays are built once per decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.types import Job, Node, NodeShare, Placement, Requirements, Snapshot

IntArray = NDArray[np.int64]

ALL_TYPES = "*"


class Capacity:
    """Free resources of a snapshot as arrays over its nodes; `take` is how a policy spends them while it decides."""

    def __init__(self, snapshot: Snapshot) -> None:
        nodes = snapshot.nodes
        self.nodes = nodes
        self.names = [node.name for node in nodes]
        self.index = {name: i for i, name in enumerate(self.names)}
        self.total = _column([node.gpus for node in nodes])
        self.free = _column([max(0, node.free_gpus) for node in nodes])
        self.cpu = _column([node.free_cpu_milli for node in nodes])
        self.memory = _column([node.free_memory for node in nodes])
        self.pods = _column([node.free_pods for node in nodes])
        self._overdrawn = {i: -node.free_gpus for i, node in enumerate(nodes) if node.free_gpus < 0}
        self._members = _members(snapshot)
        self._free_of_type = {name: int(self.free[rows].sum()) for name, rows in self._members.items()}
        self._total_of_type = {name: int(self.total[rows].sum()) for name, rows in self._members.items()}
        self._largest = {name: int(self.total[rows].max(initial=0)) for name, rows in self._members.items()}
        self._pods_suffice = bool((self.pods >= self.total).all())
        self._eligible: dict[tuple[str, tuple[str, ...]], IntArray] = {}
        self._quota_left = _quota_left(snapshot)
        self._snapshot = snapshot
        self._large_enough: dict[tuple[str, str, int], int] = {}
        self._known_fitting: dict[tuple[str, str, int], IntArray] = {}

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

    def finishes(self, gpu_type: str) -> list[tuple[float, int]]:
        """When running jobs are expected to give GPUs of a type back, and how many, in order of time."""
        return self._finishes.get(gpu_type, [])

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

    def find(self, job: Job, gpu_type: str, nodes: int, gpus_per_node: int) -> tuple[NodeShare, ...] | None:
        """Nodes for the gang in rank order, or None when it does not fit at this moment (quota included)."""
        if not self.fits(job, gpu_type, nodes, gpus_per_node):
            return None
        fitting = self._fitting(job, gpu_type, gpus_per_node)
        left = self.free[fitting] - gpus_per_node
        chosen = _tightest(left, [codes[fitting] for codes in self._levels], nodes)
        return tuple(NodeShare(self.names[i], gpus_per_node) for i in fitting[chosen])

    def fits(self, job: Job, gpu_type: str, nodes: int, gpus_per_node: int) -> bool:
        """Whether `find` would find nodes, without choosing them."""
        if not self.within_quota(job.queue, gpu_type, nodes * gpus_per_node):
            return False
        return len(self._fitting(job, gpu_type, gpus_per_node)) >= nodes

    def gather(self, job: Job, gpu_type: str, gpus: int, nodes: int, spread: int) -> tuple[NodeShare, ...] | None:
        """Nodes for a gang that may be uneven, in rank order: at best `nodes` of them, at most `spread`.

        None when it does not fit at this moment (quota included). On nodes with 4 GPUs a gang of 6 gets 4 and 2.
        """
        if gpus > self._free_of_type.get(gpu_type, 0) or not self.within_quota(job.queue, gpu_type, gpus):
            return None
        rows = self.eligible(job, gpu_type)
        parts = uneven(self._usable(job, rows), gpus, nodes, spread)
        if parts is None:
            return None
        return tuple(NodeShare(self.names[i], part) for i, part in zip(rows[parts[0]].tolist(), parts[1], strict=True))

    def gathers(self, job: Job, gpu_type: str, gpus: int, nodes: int, spread: int) -> bool:
        """Whether `gather` would find nodes. Where nothing but GPUs can run out that is a look at their number."""
        if gpus > self._free_of_type.get(gpu_type, 0) or not self.within_quota(job.queue, gpu_type, gpus):
            return False
        need = job.requirements
        if spread >= len(self.names) and job.eligible is None and self._pods_suffice and not _asks_host(need):
            return True
        return uneven(self._usable(job, self.eligible(job, gpu_type)), gpus, nodes, spread) is not None

    def could_ever_fit(self, job: Job, gpu_type: str, nodes: int, gpus_per_node: int) -> bool:
        """Whether the gang would fit if every GPU of the present nodes were free."""
        key = job.uid, gpu_type, gpus_per_node
        if key not in self._large_enough:
            self._large_enough[key] = int((self.total[self.eligible(job, gpu_type)] >= gpus_per_node).sum())
        return self._large_enough[key] >= nodes

    def could_ever_gather(self, job: Job, gpu_type: str, gpus: int, nodes: int, spread: int) -> bool:
        """The same for a gang that may be uneven."""
        if job.eligible is None and spread >= len(self.names):
            return gpus <= self._total_of_type.get(gpu_type, 0)
        return uneven(self.total[self.eligible(job, gpu_type)], gpus, nodes, spread) is not None

    def take(self, job: Job, gpu_type: str, shares: Sequence[NodeShare]) -> None:
        """Spend the resources of a placement."""
        gpus = sum(share.gpus for share in shares)
        for share in shares:
            i = self.index[share.node]
            self.free[i] -= share.gpus
            self._spend_host(job, i, share.gpus, pods=1)
        self._count(job, gpu_type, free=-gpus, quota=-gpus)

    def give(self, job: Job, gpu_type: str, shares: Sequence[NodeShare]) -> None:
        """Return what a placement holds, as if its job were stopped. Shares of nodes that are gone stay gone."""
        back = 0
        for share in shares:
            if (i := self.index.get(share.node)) is None:
                continue
            owed = min(share.gpus, self._overdrawn.get(i, 0))
            if owed:
                self._overdrawn[i] -= owed
            self.free[i] += share.gpus - owed
            back += share.gpus - owed
            self._spend_host(job, i, share.gpus, pods=-1)
        self._count(job, gpu_type, free=back, quota=sum(share.gpus for share in shares))

    def eligible_nodes(self, job: Job, gpu_type: str) -> int:
        """Nodes of the type that the job's selectors admit, whatever they hold."""
        return len(self.eligible(job, gpu_type))

    def eligible(self, job: Job, gpu_type: str) -> IntArray:
        """Which nodes these are, by index."""
        rows = self._members[gpu_type]
        if job.eligible is None:
            return rows
        key = gpu_type, job.eligible
        if key not in self._eligible:
            admitted = [self.index[name] for name in job.eligible if name in self.index]
            self._eligible[key] = np.intersect1d(rows, _column(admitted))
        return self._eligible[key]

    @cached_property
    def _levels(self) -> list[IntArray]:
        return _domain_codes(self.nodes)

    @cached_property
    def _finishes(self) -> dict[str, list[tuple[float, int]]]:
        return _finishes(self._snapshot)

    def _spend_host(self, job: Job, i: int, gpus: int, pods: int) -> None:
        """Take what a pod with so many GPUs needs beside them (`pods` 1), or give it back (-1)."""
        need = job.requirements
        if _asks_host(need):
            self.cpu[i] -= pods * need.cpu_milli(gpus)
            self.memory[i] -= pods * need.memory(gpus)
        self.pods[i] -= pods

    def _count(self, job: Job, gpu_type: str, *, free: int, quota: int) -> None:
        self._known_fitting.clear()
        self._free_of_type[gpu_type] = self._free_of_type.get(gpu_type, 0) + free
        for key in ((job.queue, gpu_type), (job.queue, ALL_TYPES)) if self._quota_left else ():
            if key in self._quota_left:
                self._quota_left[key] += quota

    def _fitting(self, job: Job, gpu_type: str, gpus: int) -> IntArray:
        """Nodes with room for one pod. Remembered until something is taken: jobs have hundreds of options."""
        key = job.uid, gpu_type, gpus
        if key not in self._known_fitting:
            self._known_fitting[key] = self._look_up(job, gpu_type, gpus)
        return self._known_fitting[key]

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
        for free, of_pod, of_gpu in (
            (self.cpu, need.cpu_milli_per_pod, need.cpu_milli_per_gpu),
            (self.memory, need.memory_per_pod, need.memory_per_gpu),
        ):
            if of_pod or of_gpu:
                left = free[rows] - of_pod
                usable = np.where(left < 0, 0, np.minimum(usable, left // of_gpu) if of_gpu else usable)
        return usable


def _column(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def _asks_host(need: Requirements) -> bool:
    return bool(need.cpu_milli_per_gpu or need.memory_per_gpu or need.cpu_milli_per_pod or need.memory_per_pod)


def _members(snapshot: Snapshot) -> dict[str, IntArray]:
    members: dict[str, list[int]] = {name: [] for name in snapshot.gpu_types}
    for i, node in enumerate(snapshot.nodes):
        members.setdefault(node.gpu_type, []).append(i)
    return {name: _column(rows) for name, rows in members.items()}


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
    return _column(chosen), list(parts)


def _tightest(left: IntArray, levels: list[IntArray], count: int) -> IntArray:
    """Positions of `count` candidates out of n >= count, in rank order.

    `left` (n,) is what each candidate would keep free, `levels` the domain codes (n,) from widest to nearest; the
    widest holds everything.
    """
    depth = max(depth for depth, codes in enumerate(levels) if np.bincount(codes).max() >= count)
    members = _fullest(left, levels[: depth + 1], count)
    inside = [codes[members] for codes in levels[depth + 1 :]]
    chosen = members[_few_domains_first(left[members], inside)[:count]]
    return _in_rank_order(chosen, levels)


def _fullest(left: IntArray, levels: list[IntArray], count: int) -> IntArray:
    """Members of the domain at the last level that holds `count` of them with the least to spare.

    Between equals the one whose surroundings are fuller is taken, so that empty racks stay empty.
    """
    nearest = levels[-1]
    best = np.flatnonzero(np.bincount(nearest)[nearest] >= count)
    for codes in reversed(levels):
        for spare in (np.bincount(codes)[codes], np.bincount(codes, weights=left)[codes]):
            best = best[spare[best] == spare[best].min()]
    return np.flatnonzero(nearest == nearest[best[0]])


def _few_domains_first(left: IntArray, levels: list[IntArray]) -> IntArray:
    """Order in which candidates fill up one domain inside after the other, the largest first; best fit within."""
    keys: list[NDArray[Any]] = [left]
    for codes in reversed(levels):
        keys += [codes, np.bincount(codes, weights=left)[codes], -np.bincount(codes)[codes]]
    return np.lexsort(keys)


def _in_rank_order(chosen: IntArray, levels: list[IntArray]) -> IntArray:
    """Neighbours in the network become neighbours in rank: pipeline stages and rings then take short ways."""
    keys = [chosen, *(codes[chosen] for codes in reversed(levels))]
    return chosen[np.lexsort(keys)]


def _domain_codes(nodes: Sequence[Node]) -> list[IntArray]:
    """Integer codes of the enclosing domains, widest first: everything, the topology levels, the NVLink domain."""
    depth = max((len(node.topology) for node in nodes), default=0)
    levels = [[_domain(node, level) for node in nodes] for level in range(depth)]
    linked: list[tuple[str, ...]] = [(node.link_domain or node.name,) for node in nodes]
    everything: list[tuple[str, ...]] = [()] * len(nodes)
    return [_codes(keys) for keys in (everything, *levels, linked)]


def _domain(node: Node, level: int) -> tuple[str, ...]:
    """A domain is named by its whole prefix; a node that is not in any at this level stands alone there."""
    prefix = node.topology[: level + 1]
    return prefix if len(prefix) > level and prefix[level] else (*prefix, "alone", node.name)


def _codes(keys: Sequence[tuple[str, ...]]) -> IntArray:
    known: dict[tuple[str, ...], int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)


def _finishes(snapshot: Snapshot) -> dict[str, list[tuple[float, int]]]:
    finishes: dict[str, list[tuple[float, int]]] = {}
    for job in snapshot.jobs:
        if job.placement and job.expected_finish is not None:
            finishes.setdefault(job.placement.gpu_type, []).append((job.expected_finish, job.placement.gpus))
    return {gpu_type: sorted(each) for gpu_type, each in finishes.items()}


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
