"""Fragmentation gradient descent: every pod goes where the GPUs that nobody could use any more grow least.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", ATC 2023.
What is free on node n is a fragment for task m where m cannot run there, because of its GPUs, CPU, memory or the GPU
type that it demands (section 3.1). With p_m the popularity of tasks, here of the pods of all jobs in the snapshot, the
expected fragmentation of the node is (equation 2, for whole GPUs)

    F_n(M) = sum over m of p_m · (free GPUs of n if m cannot run on n, else 0)

and a pod is put on the node where F_n grows least or shrinks most (section 4.1, algorithm 1); of equals on the one with
the fewest free GPUs. The pods of a gang follow each other. Jobs are served as they come, and one that does not fit lets
the others pass, as with the default scheduler of Kubernetes. Of a job's candidates the fastest that has room is taken;
where GPU types are equally fast the gradient decides between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.perf.plan_space import ANYHOW
from trimtab_policy.placement.candidates import Candidate, has_room, nodes_for, placement
from trimtab_policy.placement.capacity import Capacity, IntArray
from trimtab_policy.placement.queueing import fastest_first, serve
from trimtab_policy.policy import Kind
from trimtab_policy.types import Decision, Job, NodeShare, Placement, Snapshot

FloatArray = NDArray[np.float64]


class PodNeeds(NamedTuple):
    """What a pod needs of a node."""

    gpu_types: frozenset[str]
    gpus: int
    cpu_milli: int
    memory: int


class Tasks(NamedTuple):
    """The typical tasks, as columns (m,)."""

    popularity: FloatArray
    gpus: IntArray
    cpu_milli: IntArray
    memory: IntArray
    fits_type: NDArray[np.bool_]
    """(m, nodes)"""


class FreeColumns(NamedTuple):
    """What is free on nodes, as columns (n,)."""

    gpus: IntArray
    cpu_milli: IntArray
    memory: IntArray


class Fgd:
    """Fragmentation gradient descent."""

    name = "fgd"
    kind = Kind.RULE
    source = "Weng et al., ATC 2023"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Place waiting jobs in the order of arrival, where they fragment the cluster least."""
        capacity = Capacity(snapshot)
        tasks = typical(snapshot, capacity)

        def choose(snapshot: Snapshot, capacity: Capacity, job: Job) -> Placement | None:
            by_speed = groupby(fastest_first(snapshot, capacity, job), key=lambda found: found.tokens_per_second)
            for _, equally_fast in by_speed:
                able = [found for found in equally_fast if has_room(capacity, job, found)]
                if able:
                    growth, shares, candidate = min(
                        (_descend(capacity, tasks, job, found) for found in able), key=lambda way: way[0]
                    )
                    return placement(capacity, job, candidate, shares, _reason(candidate, growth))
            return None

        return serve(self.name, snapshot, capacity, snapshot.waiting(), choose)


def _reason(candidate: Candidate, growth: float) -> str:
    what = candidate.describe_with_plan()
    if growth == np.inf:
        return f"{what}: wherever there is room"
    return f"{what}: expected fragmentation {growth:+.2f} GPUs"


def typical(snapshot: Snapshot, capacity: Capacity) -> Tasks:
    """The pods of the jobs in the snapshot: what they hold, or what their fastest candidate needs."""
    pods: Counter[PodNeeds] = Counter()
    for job in snapshot.jobs:
        pods.update(_pods(snapshot, capacity, job))
    total = sum(pods.values())
    types = [node.gpu_type for node in snapshot.nodes]
    fits = np.array([[kind in task.gpu_types for kind in types] for task in pods], dtype=np.bool_)
    return Tasks(
        popularity=np.array([count / total for count in pods.values()]),
        gpus=_column(task.gpus for task in pods),
        cpu_milli=_column(task.cpu_milli for task in pods),
        memory=_column(task.memory for task in pods),
        fits_type=fits.reshape(len(pods), len(types)),
    )


def _column(values: Iterable[int]) -> IntArray:
    return np.array(list(values), dtype=np.int64)


def fragmentation(tasks: Tasks, nodes: FreeColumns, which: IntArray) -> FloatArray:
    """F_n(M), expected fragments in GPUs, of nodes (n,) that are `which` of the cluster's."""
    runs = (
        tasks.fits_type[:, which]
        & (nodes.gpus >= tasks.gpus[:, None])
        & (nodes.cpu_milli >= tasks.cpu_milli[:, None])
        & (nodes.memory >= tasks.memory[:, None])
    )
    unusable: FloatArray = tasks.popularity @ ~runs
    return unusable * nodes.gpus


def _pods(snapshot: Snapshot, capacity: Capacity, job: Job) -> Iterator[PodNeeds]:
    """One task for each node of the job's gang."""
    need = job.requirements
    able = snapshot.gpu_types if job.speeds is None else {row.gpu_type for row in job.speeds}
    types = frozenset(name for name in able if not need.gpu_types or name in need.gpu_types)
    if job.placement:
        parts = [share.gpus for share in job.placement.shares]
    else:
        fastest = fastest_first(snapshot, capacity, job)[:1]
        parts = [part for found in fastest for part in _parts(capacity, found)]
    for part in parts:
        yield PodNeeds(types, part, need.cpu_milli(part), need.memory(part))


def _parts(capacity: Capacity, candidate: Candidate) -> list[int]:
    """GPUs of each pod: equal ones, or whole nodes and a rest."""
    option = candidate.option
    width = capacity.node_gpus(candidate.gpu.name) if candidate.spread else option.gpus_per_node
    whole, rest = divmod(option.gpus, max(1, min(width, option.gpus)))
    return [min(width, option.gpus)] * whole + [rest] * (rest > 0)


def _descend(
    capacity: Capacity, tasks: Tasks, job: Job, candidate: Candidate
) -> tuple[float, tuple[NodeShare, ...], Candidate]:
    """Growth of the expected fragmentation, the nodes, and the candidate, which must have room.

    One pod after the other goes down the gradient; an uneven gang that does not fit so is spread wherever it does. One
    whose nodes have to be linked goes where they are, whatever that fragments.
    """
    linked = None if candidate.option.linkage is ANYHOW else nodes_for(capacity, job, candidate)
    rows = capacity.eligible(job, candidate.gpu.name, candidate.speed)
    if linked:
        rows = np.array([capacity.index[share.node] for share in linked], dtype=np.int64)
    free = FreeColumns(capacity.free[rows], capacity.cpu[rows], capacity.memory[rows])
    before = fragmentation(tasks, free, rows)
    vacant, growth = capacity.pods[rows] >= 1, 0.0
    chosen: list[tuple[int, int]] = []
    for part in _parts(capacity, candidate):
        left = _less(free, job, part)
        able = vacant & (left.gpus >= 0) & (left.cpu_milli >= 0) & (left.memory >= 0)
        if not able.any():
            return np.inf, nodes_for(capacity, job, candidate) or (), candidate
        gradient = np.where(able, fragmentation(tasks, left, rows) - before, np.inf).round(9)
        node = int(np.lexsort((free.gpus, gradient))[0])
        vacant[node] = False
        growth += float(gradient[node])
        chosen.append((int(rows[node]), part))
    chosen.sort(key=lambda share: (-share[1], share[0]))
    return growth, linked or tuple(NodeShare(capacity.names[row], part) for row, part in chosen), candidate


def _less(free: FreeColumns, job: Job, gpus: int) -> FreeColumns:
    """What would be left of each node with one more pod of the job on it."""
    need = job.requirements
    return FreeColumns(free.gpus - gpus, free.cpu_milli - need.cpu_milli(gpus), free.memory - need.memory(gpus))
