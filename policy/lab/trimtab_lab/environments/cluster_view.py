"""What an agent sees of `trimtab/Cluster-v0`, and what it may do: features of jobs, options, pools and the cluster.

The features are those of a set encoder: nothing depends on the number of slots, nodes or GPUs but by ratios and
logarithms, so that a policy can be tried on clusters that it was not trained on. All lie within [-1, 2]. Durations (s)
enter as ln(1 + s) / ln(1 + 30 days).

Jobs (slots, 20), zeros for an empty slot: 0 there is a job; 1 it holds GPUs; 2 run time left on its fastest option;
3 work left, in GPU-seconds of its most efficient option; 4 part of the work done; 5 GPU-seconds held so far; 6 age;
7 time without GPUs; 8 time until it computes; 9 restarts; 10 has a deadline; 11 slack to it over the time of 2, from -1
to 1 for -10 to 10; 12 age over the fastest run time; 13 GPUs held; 14 their speed over that of the fastest option;
15 time that a restart costs; 16 changed at this moment; 17, 18 smallest and largest gang; 19 scaling exponent between
these on its best GPU type. What tells of work (2, 3, 4, 11, 12) follows what users believe, not the truth.

Options (slots, options, 2): 0 speed over that of the fastest option, 0 where it cannot run; 1 it holds this one.

Pools (types, 12): 0 speed of a GPU over that of the fastest type, mean over the job mix; 1 GPUs; 2 GPUs of a node;
3 nodes; 4 part that is free; 5 to 9 part of the nodes with 0, 1, 2-3, 4-7, 8 or more free GPUs; 10 fragmentation: part
of the free GPUs on nodes with too few of them, mean over gangs of 1, 2, 4, ... on one node (after FGD, ATC 2023);
11 part held by jobs that do not compute yet.

Cluster (8): 0 jobs in the system; 1 those of them without a slot; 2 part of the GPUs that is free; 3 load, estimated
from the recent arrivals, over 3; 4 time since the last arrival; 5 part of the slots changed at this moment; 6 part of
the jobs in slots that hold no GPUs; 7 time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_lab.environments.cluster_jobs import Families, Floats, Ints, Machines, saturation
from trimtab_lab.environments.cluster_kernel import NONE, ClusterWorld, KernelState
from trimtab_lab.numba_cache import jit
from trimtab_policy.observation.features import DURATION, GPU_DOUBLINGS, GPUS, JOBS_FULL, MONTH

JOB, OPTION, POOL, CLUSTER = 20, 2, 12, 8
"""Numbers of features."""
LOW, HIGH = -1.0, 2.0

Single = NDArray[np.float32]


class Sight(NamedTuple):
    """What never changes of the features."""

    best: Floats
    """(families,) speed of the fastest option."""
    relative: Floats
    """(families, options) speed over that."""
    family: Floats
    """(families, 4) time that a restart costs, smallest and largest gang, scaling exponent."""
    pool: Floats
    """(types, 4) the first pool features."""
    saturation: float
    """Jobs per second."""


class ClusterView(NamedTuple):
    """What is seen of all clusters; filled anew by `look`. The first axis is that of the clusters."""

    jobs: Single
    options: Single
    pools: Single
    cluster: Single
    mask: NDArray[np.int8]
    """(clusters, slots x (options + 1) + 1): 1 where an action is allowed. The last one of a slot is to stop, the last
    of all to advance."""


def view(clusters: int, slots: int, world: ClusterWorld, types: int) -> ClusterView:
    """Arrays for so many clusters."""
    options = len(world.option_type)
    return ClusterView(
        np.zeros((clusters, slots, JOB), dtype=np.float32),
        np.zeros((clusters, slots, options, OPTION), dtype=np.float32),
        np.zeros((clusters, types, POOL), dtype=np.float32),
        np.zeros((clusters, CLUSTER), dtype=np.float32),
        np.zeros((clusters, slots * (options + 1) + 1), dtype=np.int8),
    )


def sight(gangs: Machines, families: Families) -> Sight:
    """The constant features of these jobs on this cluster."""
    best = families.speed.max(axis=1)
    of_family = [_family(gangs, families, number) for number in range(len(best))]
    per_gpu = families.speed / gangs.option_gpus
    by_type = np.array([per_gpu[:, gangs.option_type == kind].max(axis=1) for kind in range(len(gangs.types))])
    worth = by_type @ families.share
    nodes = np.bincount(gangs.node_type)
    sizes = gangs.gpus_of / nodes
    pool = np.column_stack([worth / worth.max(), np.log2(gangs.gpus_of) / 16, np.log2(sizes) / 8, np.log2(nodes) / 16])
    relative = families.speed / best[:, None]
    return Sight(best, relative, np.array(of_family), pool, saturation(gangs, families))


def _family(gangs: Machines, families: Families, number: int) -> tuple[float, float, float, float]:
    speed, gpus = families.speed[number], gangs.option_gpus
    runs = speed > 0
    on_best = runs & (gangs.option_type == gangs.option_type[speed.argmax()])
    few, many = gpus[on_best].argmin(), gpus[on_best].argmax()
    ratio = gpus[on_best][many] / gpus[on_best][few]
    exponent = np.log(speed[on_best][many] / speed[on_best][few]) / np.log(ratio) if ratio > 1 else 0.0
    pause = DURATION(families.restart_seconds[number][runs].mean())
    low, high = GPUS(gpus[runs].min()), GPUS(gpus[runs].max())
    return float(pause), float(low), float(high), float(np.clip(exponent, LOW, HIGH))


@jit
def look(state: KernelState, world: ClusterWorld, sight: Sight, view: ClusterView, c: int) -> None:
    """Fill the features and the mask of one cluster."""
    holding = _look_at_jobs(state, world, sight, view, c)
    _look_at_pools(state, world, sight, view, c)
    _look_at_cluster(state, world, sight, view, c, holding)
    _allow(state, world, sight, view, c)


@jit
def _time(seconds: float) -> float:
    """`normalise.DURATION`, compiled."""
    return float(np.log1p(max(0.0, seconds)) / MONTH)


@jit
def _look_at_jobs(state: KernelState, world: ClusterWorld, sight: Sight, view: ClusterView, c: int) -> int:
    """Returns how many slots hold GPUs."""
    holding = 0
    for slot in range(state.job.shape[1]):
        job = state.job[c, slot]
        view.jobs[c, slot, :] = 0
        view.options[c, slot, :, :] = 0
        if job != NONE:
            family, option = state.family[c, job], state.option[c, slot]
            _look_at_job(state, sight, view.jobs[c, slot], c, slot, job, family)
            view.options[c, slot, :, 0] = sight.relative[family]
            if option != NONE:
                holding += 1
                view.options[c, slot, option, 1] = 1
                view.jobs[c, slot, 1] = 1
                gpus = world.option_nodes[option] * world.option_width[option]
                view.jobs[c, slot, 13] = np.log2(1.0 + gpus) / GPU_DOUBLINGS
                view.jobs[c, slot, 14] = sight.relative[family, option]
    return holding


@jit
def _look_at_job(state: KernelState, sight: Sight, out: Single, c: int, slot: int, job: int, family: int) -> None:
    told, now = state.told[c, job], state.now[c]
    left = max(told - (state.work[c, job] - state.left[c, slot]), 0.05 * told)
    fastest, age = left / sight.best[family], now - state.submitted[c, job]
    out[0] = 1
    out[2] = _time(fastest)
    out[3] = _time(left)
    out[4] = 1 - left / told
    out[5] = _time(state.served[c, slot])
    out[6] = _time(age)
    out[7] = _time(state.waited[c, slot])
    out[8] = _time(state.pause[c, slot])
    out[9] = min(1.0, max(0, state.starts[c, slot] - 1) / 10)
    if state.deadline[c, job] < np.inf:
        out[10] = 1
        out[11] = min(1.0, max(-1.0, (state.deadline[c, job] - now) / max(1.0, fastest) / 10))
    out[12] = min(HIGH, np.log1p(age * sight.best[family] / told) / 5)
    out[15] = sight.family[family, 0]
    out[16] = state.touched[c, slot]
    out[17:20] = sight.family[family, 1:4]


@jit
def _look_at_pools(state: KernelState, world: ClusterWorld, sight: Sight, view: ClusterView, c: int) -> None:
    pools = view.pools[c]
    pools[:, :4] = sight.pool
    pools[:, 4:] = 0
    for kind in range(len(pools)):
        total, free, nodes, size = 0, 0, 0, 0
        for node in range(len(world.node_type)):
            if world.node_type[node] == kind:
                room = state.free[c, node]
                total, free, nodes, size = total + world.node_gpus[node], free + room, nodes + 1, world.node_gpus[node]
                pools[kind, 5 + (room > 0) + (room > 1) + (room > 3) + (room > 7)] += 1
        pools[kind, 4] = free / total
        pools[kind, 5:10] /= nodes
        if free > 0:
            pools[kind, 10] = _fragmentation(state.free[c], world.node_type, kind, size) / free
        pools[kind, 11] = _pausing(state, world, c, kind) / total


@jit
def _fragmentation(free: Ints, node_type: Ints, kind: int, size: int) -> float:
    """Free GPUs on nodes with fewer than a gang needs, mean over the widths 1, 2, 4, ... up to a node."""
    stranded, widths, width = 0, 0, 1
    while width <= size:
        for node in range(len(free)):
            if node_type[node] == kind and free[node] < width:
                stranded += free[node]
        widths += 1
        width *= 2
    return stranded / widths


@jit
def _pausing(state: KernelState, world: ClusterWorld, c: int, kind: int) -> int:
    gpus = 0
    for slot in range(state.job.shape[1]):
        option = state.option[c, slot]
        if option != NONE and state.pause[c, slot] > 0 and world.option_type[option] == kind:
            gpus += world.option_nodes[option] * world.option_width[option]
    return gpus


@jit
def _look_at_cluster(
    state: KernelState, world: ClusterWorld, sight: Sight, view: ClusterView, c: int, holding: int
) -> None:
    out, slots = view.cluster[c], state.job.shape[1]
    present = state.arrived[c] - state.finished[c]
    backlog = state.arrived[c] - state.entered[c]
    last = state.submitted[c, max(0, state.arrived[c] - 1)]
    out[0] = np.log1p(present) / JOBS_FULL
    out[1] = np.log1p(backlog) / JOBS_FULL
    out[2] = state.free[c].sum() / world.node_gpus.sum()
    out[3] = min(1.0, 1 / (state.gap[c] * sight.saturation) / 3)
    out[4] = _time(state.now[c] - last)
    out[5] = state.touched[c].sum() / slots
    out[6] = (present - backlog - holding) / max(1, present - backlog)
    out[7] = _time(state.now[c])


@jit
def _allow(state: KernelState, world: ClusterWorld, sight: Sight, view: ClusterView, c: int) -> None:
    """A slot may get an option that fits once its own GPUs are free and that it does not hold; or stop, if it runs."""
    mask, options = view.mask[c], len(world.option_type)
    mask[:] = 0
    mask[-1] = 1
    nodes = np.zeros(options, dtype=np.int64)
    for option in range(options):
        for node in range(len(world.node_type)):
            fits = state.free[c, node] >= world.option_width[option]
            nodes[option] += fits and world.node_type[node] == world.option_type[option]
    for slot in range(state.job.shape[1]):
        job = state.job[c, slot]
        if job == NONE or state.touched[c, slot]:
            continue
        at, held, family = slot * (options + 1), state.option[c, slot], state.family[c, job]
        mask[at + options] = held != NONE
        for option in range(options):
            room = nodes[option]
            if held != NONE:
                room += _regained(state, world, c, slot, held, option)
            enough = room >= world.option_nodes[option]
            mask[at + option] = enough and option != held and sight.relative[family, option] > 0


@jit
def _regained(state: KernelState, world: ClusterWorld, c: int, slot: int, held: int, option: int) -> int:
    """Nodes that have room for a pod of the option only when the slot has given back what it holds."""
    regained = 0
    if world.option_type[held] == world.option_type[option]:
        for share in range(world.option_nodes[held]):
            free, width = state.free[c, state.share[c, slot, share]], world.option_width[option]
            regained += free < width <= free + world.option_width[held]
    return regained
