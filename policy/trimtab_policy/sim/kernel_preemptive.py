"""Preemptive disciplines: shortest remaining time, shortest remaining service, two-dimensional least attained service.

At every event GPUs are given out anew, in the order of the discipline, to running and waiting jobs alike; a running
job is offered what it holds first. Those that get none are stopped, keep their work and pay for the next start. The
turn of a waiting job never changes, so that heaps per shape hold the queue; of a running one only absolute times are
kept, so that an event costs a few nanoseconds for each running job, and O(log waiting). Running jobs only gain on
waiting ones, so that between events no decision would change anything. The rules are those of `queueing.preempt` and
`heuristics.{srtf,srsf,las}`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.sim.kernel_heaps import NONE, Floats, Heaps, Ints, before, insert, remove_first
from trimtab_policy.sim.kernel_jit import jit
from trimtab_policy.sim.kernel_nodes import TICK, Jobs, Log, Nodes, Shapes, give, take

SRTF, SRSF, LAS = 0, 1, 2
LEVEL = 1e10
"""Seconds (300 years) between the keys of two levels of LAS, half of them for what runs and half for what waits."""


class Costs(NamedTuple):
    """Seconds that starts take, and what LAS knows."""

    first: float
    """Of a job that has done nothing yet."""
    again: float
    thresholds: Floats
    """GPU-seconds at which a job sinks to the next level; the last one is infinite."""


class Progress(NamedTuple):
    """Per job. Changed in place; sums are those at the begin of the present allocation, if there is one."""

    done: Floats
    """Work."""
    served: Floats
    """GPU-seconds held."""
    paused: Floats
    """GPU-seconds held without computing."""
    level: Ints
    """Of LAS."""
    restarts: Ints
    """Starts after the first; moves that cost nothing are none."""
    entry: Ints
    """Last one in the log; NONE for a job that has never run."""
    option: Ints
    """What it holds, or NONE."""
    wish: Ints
    """What it shall hold, or NONE."""
    since: Floats
    """Begin of the present allocation."""
    resume: Floats
    """When it computes."""
    end: Floats
    """When it will be done."""
    told: Floats
    """When it would be done by what was told."""
    sink: Floats
    """When it sinks to the next level; infinite but for LAS."""
    key: Floats
    """What it is ordered by, while it runs."""
    order: Ints
    """(2 x GPUs,) running jobs, by key when they were last ordered."""
    size: Ints
    """(1,) how many."""


def progress(jobs: int, gpus: int) -> Progress:
    """Nobody has done anything on a cluster with so many GPUs."""
    return Progress(
        done=np.zeros(jobs),
        served=np.zeros(jobs),
        paused=np.zeros(jobs),
        level=np.zeros(jobs, dtype=np.int64),
        restarts=np.zeros(jobs, dtype=np.int64),
        entry=np.full(jobs, NONE),
        option=np.full(jobs, NONE),
        wish=np.full(jobs, NONE),
        since=np.zeros(jobs),
        resume=np.zeros(jobs),
        end=np.zeros(jobs),
        told=np.zeros(jobs),
        sink=np.full(jobs, np.inf),
        key=np.zeros(jobs),
        order=np.zeros(2 * gpus, dtype=np.int64),
        size=np.zeros(1, dtype=np.int64),
    )


@jit
def run_preemptive(
    discipline: int, jobs: Jobs, shapes: Shapes, nodes: Nodes, waiting: Heaps, state: Progress, log: Log, costs: Costs
) -> Log:
    """Run all jobs; returns the log. `waiting` has one heap per shape."""
    count, arrived = len(jobs.submitted), 0
    total = nodes.free_of.copy()
    while arrived < count or state.size[0] > 0:
        now = _next_change(state)
        now = min(now, jobs.submitted[arrived]) if arrived < count else now
        _finish(jobs, shapes, nodes, state, log, now)
        if discipline == LAS:
            _sink(jobs, shapes, state, costs, now)
        while arrived < count and jobs.submitted[arrived] <= now:
            insert(waiting, jobs.shape[arrived], arrived, _waiting_turn(discipline, jobs, shapes, state, arrived))
            arrived += 1
        if waiting.root.max() != NONE:
            _sort(discipline, jobs, shapes, state, now)
            running = state.size[0]
            _choose(jobs, shapes, total.copy(), waiting, state)
            log = _change(discipline, jobs, shapes, nodes, waiting, state, log, costs, running, now)
    return log


@jit
def _next_change(state: Progress) -> float:
    """When the next running job ends or sinks."""
    event = np.inf
    for at in range(state.size[0]):
        job = state.order[at]
        event = min(event, state.end[job], state.sink[job])
    return float(event)


@jit
def _finish(jobs: Jobs, shapes: Shapes, nodes: Nodes, state: Progress, log: Log, now: float) -> None:
    """Those that end leave."""
    left = 0
    for at in range(state.size[0]):
        job = state.order[at]
        if state.end[job] <= now + TICK:
            _stop(jobs, shapes, nodes, state, log, job, now)
        else:
            state.order[left] = job
            left += 1
    state.size[0] = left


@jit
def _stop(jobs: Jobs, shapes: Shapes, nodes: Nodes, state: Progress, log: Log, job: int, now: float) -> None:
    """Give back what a job holds and note what it did with it."""
    shape, option = jobs.shape[job], state.option[job]
    gpus, resumed = shapes.gpus[shape, option], min(now, state.resume[job])
    state.done[job] += (now - resumed) * shapes.speed[shape, option]
    state.served[job] += (now - state.since[job]) * gpus
    state.paused[job] += (resumed - state.since[job]) * gpus
    state.option[job] = NONE
    give(nodes, log, state.entry[job], now)


@jit
def _sink(jobs: Jobs, shapes: Shapes, state: Progress, costs: Costs, now: float) -> None:
    for at in range(state.size[0]):
        job = state.order[at]
        while state.sink[job] <= now + TICK:
            state.level[job] += 1
            state.sink[job] = _sinks_at(jobs, shapes, state, costs, job)


@jit
def _sinks_at(jobs: Jobs, shapes: Shapes, state: Progress, costs: Costs, job: int) -> float:
    left = costs.thresholds[state.level[job]] - state.served[job]
    return float(state.since[job] + left / shapes.gpus[jobs.shape[job], state.option[job]])


@jit
def _waiting_turn(discipline: int, jobs: Jobs, shapes: Shapes, state: Progress, job: int) -> float:
    """What a waiting job is ordered by, the smallest first."""
    if discipline == LAS:
        return float(LEVEL * (state.level[job] + 0.5) + jobs.submitted[job])
    shape = jobs.shape[job]
    left = (jobs.told[job] - state.done[job]) / shapes.speed[shape, 0]
    return float(left * shapes.gpus[shape, 0] if discipline == SRSF else left)


@jit
def _sort(discipline: int, jobs: Jobs, shapes: Shapes, state: Progress, now: float) -> None:
    """Order running jobs by key, then index; nothing is wished for them yet.

    Keys go by the fastest option like those of waiting jobs: to be started makes no job longer. The jobs are nearly
    sorted: insertion sort.
    """
    order = state.order
    for at in range(state.size[0]):
        job = order[at]
        shape, option = jobs.shape[job], state.option[job]
        key = state.told[job] - max(now, state.resume[job])
        if option != 0:
            key *= shapes.speed[shape, option] / shapes.speed[shape, 0]
        if discipline == SRSF:
            key *= shapes.gpus[shape, 0]
        elif discipline == LAS:
            key = LEVEL * state.level[job] + state.since[job]
        state.key[job] = key
        state.wish[job] = NONE
        to = at
        while to > 0 and before(state.key, job, order[to - 1]):
            order[to] = order[to - 1]
            to -= 1
        order[to] = job


@jit
def _choose(jobs: Jobs, shapes: Shapes, free: Ints, waiting: Heaps, state: Progress) -> None:
    """Wishes of all jobs, in turn, for as long as GPUs (types,) are free. Waiting ones that get any are appended."""
    at, running = 0, state.size[0]
    shut = np.zeros(len(waiting.root), dtype=np.bool_)
    shape = _first_open(waiting, shut)
    while free.max() > 0:
        job = NONE if shape == NONE else waiting.root[shape]
        if at < running and (job == NONE or _runs_first(state.key, waiting.key, state.order[at], job)):
            _wish(jobs, shapes, free, state, state.order[at])
            at += 1
            continue
        if job == NONE:
            break
        if _wish(jobs, shapes, free, state, job):
            remove_first(waiting, shape)
            state.order[state.size[0]] = job
            state.size[0] += 1
        else:
            shut[shape] = True
        shape = _first_open(waiting, shut)


@jit
def _first_open(waiting: Heaps, shut: NDArray[np.bool_]) -> int:
    """The heap whose first job is the first of all."""
    best = NONE
    for shape in range(len(shut)):
        job = waiting.root[shape]
        if job != NONE and not shut[shape] and (best == NONE or before(waiting.key, job, waiting.root[best])):
            best = shape
    return best


@jit
def _runs_first(running_key: Floats, waiting_key: Floats, running: int, other: int) -> bool:
    mine, others = running_key[running], waiting_key[other]
    return bool(mine < others or (mine == others and running < other))


@jit
def _wish(jobs: Jobs, shapes: Shapes, free: Ints, state: Progress, job: int) -> bool:
    """What it holds, else the fastest option that there are GPUs for; returns whether there is one."""
    shape, wish = jobs.shape[job], state.option[job]
    if wish == NONE or shapes.gpus[shape, wish] > free[shapes.gpu_type[shape, wish]]:
        wish = NONE
        for option in range(shapes.gpus.shape[1]):
            if 0 < shapes.gpus[shape, option] <= free[shapes.gpu_type[shape, option]]:
                wish = option
                break
    state.wish[job] = wish
    if wish == NONE:
        return False
    free[shapes.gpu_type[shape, wish]] -= shapes.gpus[shape, wish]
    return True


@jit
def _change(
    discipline: int, jobs: Jobs, shapes: Shapes, nodes: Nodes, waiting: Heaps, state: Progress, log: Log, costs: Costs,
    running: int, now: float,
) -> Log:  # fmt: skip
    """Stop, move and start jobs as wished, the first `running` of which run: all is given back before any is taken."""
    left = 0
    for at in range(running):
        job = state.order[at]
        if state.wish[job] != state.option[job]:
            _stop(jobs, shapes, nodes, state, log, job, now)
    for at in range(state.size[0]):
        job = state.order[at]
        if state.wish[job] == NONE:
            insert(waiting, jobs.shape[job], job, _waiting_turn(discipline, jobs, shapes, state, job))
            continue
        if state.option[job] == NONE:
            log = _start(discipline, jobs, shapes, nodes, state, log, costs, job, at < running, now)
        state.order[left] = job
        left += 1
    state.size[0] = left
    return log


@jit
def _start(
    discipline: int, jobs: Jobs, shapes: Shapes, nodes: Nodes, state: Progress, log: Log, costs: Costs, job: int,
    moves: bool, now: float,
) -> Log:  # fmt: skip
    """Let a job run as wished; `moves` says that it ran on something else until now."""
    shape, option = jobs.shape[job], state.wish[job]
    log = take(nodes, shapes, shape, option, log, job, now)
    pause = costs.first if state.done[job] == 0 and not moves else costs.again
    state.restarts[job] += state.entry[job] != NONE and (pause > 0 or not moves)
    if moves and pause == 0:
        pause = max(0.0, state.resume[job] - now)
    speed = shapes.speed[shape, option]
    state.entry[job], state.option[job], state.since[job] = log.size[0] - 1, option, now
    state.resume[job] = now + pause
    state.end[job] = now + pause + (jobs.work[job] - state.done[job]) / speed
    state.told[job] = now + pause + (jobs.told[job] - state.done[job]) / speed
    if discipline == LAS:
        state.sink[job] = _sinks_at(jobs, shapes, state, costs, job)
    return log
