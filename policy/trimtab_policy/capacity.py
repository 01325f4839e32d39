"""What is free, and where a gang fits: the one place that searches nodes.

A gang of `nodes` pods with `gpus_per_node` GPUs each goes where its collectives travel the shortest way: into the
nearest topology domain (NVLink domain, then rack, block, zone) that holds all of it, and over as few of the domains
inside as possible. Among several such domains the fullest one is taken, and in it the nodes with the least left over
(best fit), so that whole nodes and whole racks stay free for larger gangs. The arrays are built once per decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.types import Job, Node, NodeShare, Placement, Snapshot

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

ALL_TYPES = "*"


class Capacity:
    """Free resources of a snapshot as arrays over its nodes; `take` is how a policy spends them while it decides."""

    def __init__(self, snapshot: Snapshot) -> None:
        nodes = snapshot.nodes
        self.names = [node.name for node in nodes]
        self.index = {name: i for i, name in enumerate(self.names)}
        self.topology = [node.topology for node in nodes]
        self.total = np.array([node.gpus for node in nodes], dtype=np.int64)
        self.free = np.array([max(0, node.free_gpus) for node in nodes], dtype=np.int64)
        self._cpu = np.array([node.free_cpu_milli for node in nodes], dtype=np.int64)
        self._memory = np.array([node.free_memory for node in nodes], dtype=np.int64)
        self._pods = np.array([node.free_pods for node in nodes], dtype=np.int64)
        self._levels = _domain_codes(nodes)
        types = np.array([node.gpu_type for node in nodes], dtype=object)
        self._of_type: dict[str, BoolArray] = {name: types == name for name in snapshot.gpu_types}
        self._largest = {name: int(self.total[mask].max(initial=0)) for name, mask in self._of_type.items()}
        self._eligible: dict[tuple[str, ...], BoolArray] = {}
        self._quota_left = _quota_left(snapshot)
        self._finishes = _finishes(snapshot)
        self._large_enough: dict[tuple[str, str, int], int] = {}
        self._known_fitting: dict[tuple[str, str, int], IntArray] = {}

    def node_gpus(self, gpu_type: str) -> int:
        """GPUs of the largest node of this type; 0 when there is none."""
        return self._largest.get(gpu_type, 0)

    def gpus(self, job: Job, gpu_type: str, *, free: bool = True) -> int:
        """Free (or all) GPUs of a type on the nodes that the job's selectors admit."""
        return int((self.free if free else self.total)[self._allowed(job, gpu_type)].sum())

    def finishes(self, gpu_type: str) -> list[tuple[float, int]]:
        """When running jobs are expected to give GPUs of a type back, and how many, in order of time."""
        return self._finishes.get(gpu_type, [])

    def most_free(self, job: Job, gpu_type: str) -> int:
        """Free GPUs on the emptiest of these nodes."""
        return int(self.free[self._allowed(job, gpu_type)].max(initial=0))

    def quota_left(self, queue: str, gpu_type: str) -> int | None:
        """GPUs that the queue may still take of this type; None when it has no limit."""
        limits = [self._quota_left[key] for key in ((queue, gpu_type), (queue, ALL_TYPES)) if key in self._quota_left]
        return min(limits) if limits else None

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
        quota = self.quota_left(job.queue, gpu_type)
        if quota is not None and nodes * gpus_per_node > quota:
            return False
        return len(self._fitting(job, gpu_type, gpus_per_node)) >= nodes

    def could_ever_fit(self, job: Job, gpu_type: str, nodes: int, gpus_per_node: int) -> bool:
        """Whether the gang would fit if every GPU of the present nodes were free."""
        key = job.uid, gpu_type, gpus_per_node
        if key not in self._large_enough:
            mask = self._allowed(job, gpu_type) & (self.total >= gpus_per_node)
            self._large_enough[key] = int(mask.sum())
        return self._large_enough[key] >= nodes

    def take(self, job: Job, gpu_type: str, shares: Sequence[NodeShare]) -> None:
        """Spend the resources of a placement."""
        need = job.requirements
        self._known_fitting.clear()
        for share in shares:
            i = self.index[share.node]
            self.free[i] -= share.gpus
            self._cpu[i] -= need.cpu_milli(share.gpus)
            self._memory[i] -= need.memory(share.gpus)
            self._pods[i] -= 1
        gpus = sum(share.gpus for share in shares)
        for key in ((job.queue, gpu_type), (job.queue, ALL_TYPES)):
            if key in self._quota_left:
                self._quota_left[key] -= gpus

    def eligible_nodes(self, job: Job, gpu_type: str) -> int:
        """Nodes of the type that the job's selectors admit, whatever they hold."""
        return int(self._allowed(job, gpu_type).sum())

    def _allowed(self, job: Job, gpu_type: str) -> BoolArray:
        mask = self._of_type[gpu_type]
        if job.eligible is None:
            return mask
        if job.eligible not in self._eligible:
            admitted = np.zeros(len(self.names), dtype=np.bool_)
            admitted[[self.index[name] for name in job.eligible if name in self.index]] = True
            self._eligible[job.eligible] = admitted
        return mask & self._eligible[job.eligible]

    def _fitting(self, job: Job, gpu_type: str, gpus: int) -> IntArray:
        """Nodes with room for one pod. Remembered until something is taken: jobs have hundreds of options."""
        key = job.uid, gpu_type, gpus
        if key not in self._known_fitting:
            self._known_fitting[key] = self._look_up(job, gpu_type, gpus)
        return self._known_fitting[key]

    def _look_up(self, job: Job, gpu_type: str, gpus: int) -> IntArray:
        need = job.requirements
        mask = self._allowed(job, gpu_type) & (self.free >= gpus) & (self._pods >= 1)
        if cpu := need.cpu_milli(gpus):
            mask &= self._cpu >= cpu
        if memory := need.memory(gpus):
            mask &= self._memory >= memory
        return np.flatnonzero(mask)


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
    for job in snapshot.jobs:
        if job.placement is not None:
            _charge(left, job.queue, job.placement)
    return left


def _charge(left: dict[tuple[str, str], int], queue: str, placement: Placement) -> None:
    for key in ((queue, placement.gpu_type), (queue, ALL_TYPES)):
        if key in left:
            left[key] -= placement.gpus
