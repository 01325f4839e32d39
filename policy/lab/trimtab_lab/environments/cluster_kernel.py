"""The dynamics of `trimtab/Cluster-v0` in machine code: many clusters side by side, a step of each at a time.

Jobs arrive, and enter slots in the order of their submission; those that find none wait in a backlog, which counts like
every job in the system. While time stands still slots are given gangs, moved, resized or stopped (`change`), one at a
time and each at most once; then time runs to the next event (`advance`): an arrival, an end, or the heartbeat. A gang
takes the nodes with the least room that suffices (best fit). It computes after a pause, at the speed of its option.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_lab.environments.cluster_jobs import ClusterEpisode, Families, Floats, Ints, Machines
from trimtab_lab.numba_cache import jit

NONE = -1
TICK = 1e-6
"""Seconds that are nothing: what ends within them ends together."""


class ClusterWorld(NamedTuple):
    """What never changes. Axes: nodes, options, families."""

    node_type: Ints
    node_gpus: Ints
    option_type: Ints
    option_nodes: Ints
    option_width: Ints
    speed: Floats
    """(families, options)"""
    start_seconds: Floats
    """(families,)"""
    restart_seconds: Floats
    """(families, options)"""
    heartbeat: float
    horizon: float
    reward_seconds: float


class KernelState(NamedTuple):
    """What changes, in place. The first axis is that of the clusters; times in seconds from the start of an episode."""

    submitted: Floats
    """(clusters, jobs), as the others of `ClusterEpisode`."""
    family: Ints
    work: Floats
    told: Floats
    deadline: Floats
    now: Floats
    beat: Floats
    """Time of the next heartbeat."""
    arrived: Ints
    """Jobs that were submitted so far."""
    entered: Ints
    """Jobs that entered a slot so far."""
    finished: Ints
    met: Ints
    """Jobs that finished by their deadline."""
    stay: Floats
    """Integral of the number of jobs in the system: the sum of completion times once all are done."""
    paused: Floats
    """GPU-seconds held without computing."""
    restarts: Ints
    gap: Floats
    """Moving average of the time between arrivals."""
    free: Ints
    """(clusters, nodes) GPUs."""
    job: Ints
    """(clusters, slots) which job is in the slot, or NONE."""
    left: Floats
    """(clusters, slots) work."""
    option: Ints
    """(clusters, slots) what it holds, or NONE."""
    pause: Floats
    """(clusters, slots) seconds until it computes."""
    served: Floats
    """(clusters, slots) GPU-seconds held."""
    waited: Floats
    """(clusters, slots) seconds without GPUs."""
    starts: Ints
    """(clusters, slots)"""
    touched: NDArray[np.bool_]
    """(clusters, slots) whether it was changed at this moment."""
    share: Ints
    """(clusters, slots, most nodes of a gang) its nodes."""


def new_state(clusters: int, slots: int, jobs: int, world: ClusterWorld) -> KernelState:
    """Arrays for so many clusters; `install` fills them."""
    nodes, widest = len(world.node_gpus), int(world.option_nodes.max())
    columns: dict[str, Any] = {
        **{name: np.zeros((clusters, jobs)) for name in ("submitted", "work", "told", "deadline")},
        "family": np.zeros((clusters, jobs), dtype=np.int64),
        **{name: np.zeros(clusters) for name in ("now", "beat", "stay", "paused", "gap")},
        **{name: np.zeros(clusters, dtype=np.int64) for name in ("arrived", "entered", "finished", "met", "restarts")},
        "free": np.zeros((clusters, nodes), dtype=np.int64),
        **{name: np.zeros((clusters, slots)) for name in ("left", "pause", "served", "waited")},
        **{name: np.zeros((clusters, slots), dtype=np.int64) for name in ("job", "option", "starts")},
        "touched": np.zeros((clusters, slots), dtype=np.bool_),
        "share": np.zeros((clusters, slots, widest), dtype=np.int64),
    }
    return KernelState(**columns)


def install(
    state: KernelState, cluster: int, episode: ClusterEpisode, world: ClusterWorld, expected_gap: float
) -> None:
    """Begin an episode: an empty cluster at time 0, and the jobs that are submitted then."""
    for column in state:
        column[cluster] = 0
    for name, values in episode._asdict().items():
        getattr(state, name)[cluster] = values
    state.free[cluster] = world.node_gpus
    state.job[cluster] = NONE
    state.option[cluster] = NONE
    state.gap[cluster] = expected_gap
    state.beat[cluster] = world.heartbeat
    admit(state, cluster)


def constants(
    gangs: Machines, families: Families, heartbeat: float, horizon: float, reward_seconds: float
) -> ClusterWorld:
    """What never changes, as one value."""
    return ClusterWorld(
        gangs.node_type,
        gangs.node_gpus,
        gangs.option_type,
        gangs.option_nodes,
        gangs.option_width,
        np.ascontiguousarray(families.speed, dtype=np.float64),
        np.ascontiguousarray(families.start_seconds, dtype=np.float64),
        np.ascontiguousarray(families.restart_seconds, dtype=np.float64),
        heartbeat,
        horizon,
        reward_seconds,
    )


@jit
def admit(state: KernelState, c: int) -> None:
    """Note the jobs that were submitted by now, and let jobs into free slots in the order of their submission."""
    jobs = state.submitted.shape[1]
    while state.arrived[c] < jobs and state.submitted[c, state.arrived[c]] <= state.now[c] + TICK:
        number = state.arrived[c]
        if number > 0:
            state.gap[c] += 0.1 * (state.submitted[c, number] - state.submitted[c, number - 1] - state.gap[c])
        state.arrived[c] += 1
    slot = 0
    while state.entered[c] < state.arrived[c] and slot < state.job.shape[1]:
        if state.job[c, slot] == NONE:
            job = state.entered[c]
            state.job[c, slot] = job
            state.left[c, slot] = state.work[c, job]
            state.option[c, slot] = NONE
            state.pause[c, slot] = state.served[c, slot] = 0.0
            state.waited[c, slot] = state.now[c] - state.submitted[c, job]
            state.starts[c, slot] = 0
            state.touched[c, slot] = False
            state.entered[c] += 1
        slot += 1


@jit
def change(state: KernelState, world: ClusterWorld, c: int, slot: int, option: int) -> None:
    """Give a slot this option (NONE: no GPUs), which must fit once its own GPUs are free."""
    release(state, world, c, slot)
    if option != NONE:
        _place(state, world, c, slot, option)
        family = state.family[c, state.job[c, slot]]
        again = state.starts[c, slot] > 0
        state.pause[c, slot] = world.restart_seconds[family, option] if again else world.start_seconds[family]
        state.starts[c, slot] += 1
        state.restarts[c] += again
    state.touched[c, slot] = True


@jit
def release(state: KernelState, world: ClusterWorld, c: int, slot: int) -> None:
    """Free what a slot holds, if anything."""
    option = state.option[c, slot]
    if option != NONE:
        for share in range(world.option_nodes[option]):
            state.free[c, state.share[c, slot, share]] += world.option_width[option]
        state.option[c, slot] = NONE
        state.pause[c, slot] = 0.0


@jit
def _place(state: KernelState, world: ClusterWorld, c: int, slot: int, option: int) -> None:
    width = world.option_width[option]
    state.option[c, slot] = option
    for share in range(world.option_nodes[option]):
        best = NONE
        for node in range(len(world.node_type)):
            room = state.free[c, node]
            if (
                world.node_type[node] == world.option_type[option]
                and room >= width
                and (best == NONE or room < state.free[c, best])
                and not _holds(state.share[c, slot], share, node)
            ):
                best = node
        state.share[c, slot, share] = best
    for share in range(world.option_nodes[option]):
        state.free[c, state.share[c, slot, share]] -= width


@jit
def _holds(shares: Ints, count: int, node: int) -> bool:
    held = False
    for share in range(count):
        held |= shares[share] == node
    return held


@jit
def advance(state: KernelState, world: ClusterWorld, c: int) -> float:
    """Live until the next event, or the horizon; returns the integral of the number of jobs in the system."""
    end = _next_event(state, world, c)
    seconds = end - state.now[c]
    area = seconds * (state.arrived[c] - state.finished[c])
    state.stay[c] += area
    state.now[c] = end
    for slot in range(state.job.shape[1]):
        if state.job[c, slot] != NONE:
            _live(state, world, c, slot, seconds)
    admit(state, c)
    state.touched[c, :] = False
    state.beat[c] = end + world.heartbeat
    return float(area)


@jit
def _next_event(state: KernelState, world: ClusterWorld, c: int) -> float:
    jobs, present = state.submitted.shape[1], state.arrived[c] - state.finished[c]
    end = min(world.horizon, state.beat[c]) if present > 0 else world.horizon
    if state.arrived[c] < jobs:
        end = min(end, state.submitted[c, state.arrived[c]])
    for slot in range(state.job.shape[1]):
        option = state.option[c, slot]
        if option != NONE:
            speed = world.speed[state.family[c, state.job[c, slot]], option]
            end = min(end, state.now[c] + state.pause[c, slot] + state.left[c, slot] / speed)
    return float(end)


@jit
def _live(state: KernelState, world: ClusterWorld, c: int, slot: int, seconds: float) -> None:
    option, job = state.option[c, slot], state.job[c, slot]
    if option == NONE:
        state.waited[c, slot] += seconds
        return
    gpus = world.option_nodes[option] * world.option_width[option]
    speed = world.speed[state.family[c, job], option]
    paused = min(seconds, state.pause[c, slot])
    state.pause[c, slot] -= paused
    state.left[c, slot] -= (seconds - paused) * speed
    state.served[c, slot] += seconds * gpus
    state.paused[c] += paused * gpus
    if state.left[c, slot] <= speed * TICK:
        state.finished[c] += 1
        state.met[c] += state.now[c] <= state.deadline[c, job] < np.inf
        release(state, world, c, slot)
        state.job[c, slot] = NONE
