"""Preemptive disciplines: shortest remaining time, shortest remaining service, two-dimensional least attained service.

At every event GPUs are given out anew, in the order of the discipline, to running and waiting jobs alike; a running
job is offered what it holds first. Those that get none are stopped, keep their work and pay for the next start. The
turn of a waiting job never changes, so that heaps per shape hold the queue, and an event costs O(running + log
waiting). The rules are those of `queueing.preempt` and `heuristics.{srtf,srsf,las}`.
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
    heartbeat: float
    """Longest time between two decisions."""
    thresholds: Floats
    """GPU-seconds at which a job sinks to the next level."""


class Progress(NamedTuple):
    """Per job. Changed in place."""

    done: Floats
    """Work."""
    pause: Floats
    """Seconds until it computes."""
    served: Floats
    """GPU-seconds held."""
    paused: Floats
    """GPU-seconds held without computing."""
    since: Floats
    """Begin of the present allocation."""
    key: Floats
    """What a running job is ordered by."""
    restarts: Ints
    """Starts after the first; moves that cost nothing are none."""
    entry: Ints
    """Last one in the log; NONE for a job that has never run."""
    option: Ints
    """What it holds, or NONE."""
    wish: Ints
    """What it shall hold, or NONE."""
    order: Ints
    """(2 x GPUs,) running jobs, by key."""
    size: Ints
    """(1,) how many."""


def progress(jobs: int, gpus: int) -> Progress:
    """Nobody has done anything on a cluster with so many GPUs."""
    return Progress(
        done=np.zeros(jobs),
        pause=np.zeros(jobs),
        served=np.zeros(jobs),
        paused=np.zeros(jobs),
        since=np.zeros(jobs),
        key=np.zeros(jobs),
        restarts=np.zeros(jobs, dtype=np.int64),
        entry=np.full(jobs, NONE),
        option=np.full(jobs, NONE),
        wish=np.full(jobs, NONE),
        order=np.zeros(2 * gpus, dtype=np.int64),
        size=np.zeros(1, dtype=np.int64),
    )


@jit
def run_preemptive(
    discipline: int, jobs: Jobs, shapes: Shapes, nodes: Nodes, waiting: Heaps, state: Progress, log: Log, costs: Costs
) -> Log:
    """Run all jobs; returns the log. `waiting` has one heap per shape."""
    count, arrived, now = len(jobs.submitted), 0, 0.0
    total = nodes.free_of.copy()
    while arrived < count or state.size[0] > 0:
        event = now + costs.heartbeat if state.size[0] > 0 else np.inf
        event = min(event, jobs.submitted[arrived]) if arrived < count else event
        for at in range(state.size[0]):
            event = min(event, now + _next_change(discipline, jobs, shapes, state, state.order[at], costs))
        _live(jobs, shapes, nodes, state, log, event, event - now)
        now = event
        while arrived < count and jobs.submitted[arrived] <= now:
            insert(waiting, jobs.shape[arrived], arrived, _turn(discipline, jobs, shapes, state, arrived, costs))
            arrived += 1
        _sort(discipline, jobs, shapes, state, costs)
        running = state.size[0]
        _choose(jobs, shapes, total.copy(), waiting, state)
        log = _change(discipline, jobs, shapes, nodes, waiting, state, log, costs, running, now)
    return log


@jit
def _next_change(discipline: int, jobs: Jobs, shapes: Shapes, state: Progress, job: int, costs: Costs) -> float:
    """Seconds until a running job ends, or sinks to the next level."""
    shape, option = jobs.shape[job], state.option[job]
    end = state.pause[job] + (jobs.work[job] - state.done[job]) / shapes.speed[shape, option]
    if discipline == LAS:
        level = _level(state, job, costs)
        if level < len(costs.thresholds):
            end = min(end, (costs.thresholds[level] - state.served[job]) / shapes.gpus[shape, option])
    return float(max(end, 0.0))


@jit
def _live(jobs: Jobs, shapes: Shapes, nodes: Nodes, state: Progress, log: Log, now: float, seconds: float) -> None:
    """Let running jobs run until `now`; those that end leave."""
    left = 0
    for at in range(state.size[0]):
        job = state.order[at]
        shape, option = jobs.shape[job], state.option[job]
        gpus, speed = shapes.gpus[shape, option], shapes.speed[shape, option]
        waited = min(state.pause[job], seconds)
        state.pause[job] -= waited
        state.paused[job] += waited * gpus
        state.served[job] += seconds * gpus
        state.done[job] += (seconds - waited) * speed
        if jobs.work[job] - state.done[job] <= TICK * speed and state.pause[job] <= 0:
            give(nodes, log, state.entry[job], now)
            state.option[job] = NONE
        else:
            state.order[left] = job
            left += 1
    state.size[0] = left


@jit
def _level(state: Progress, job: int, costs: Costs) -> int:
    level = 0
    while level < len(costs.thresholds) and costs.thresholds[level] <= state.served[job] + TICK:
        level += 1
    return level


@jit
def _turn(discipline: int, jobs: Jobs, shapes: Shapes, state: Progress, job: int, costs: Costs) -> float:
    """What jobs are ordered by, the smallest first."""
    shape, held = jobs.shape[job], state.option[job]
    if discipline == LAS:
        since = LEVEL / 2 + jobs.submitted[job] if held == NONE else state.since[job]
        return float(LEVEL * _level(state, job, costs) + since)
    option = 0 if held == NONE else held
    left = (jobs.told[job] - state.done[job]) / shapes.speed[shape, option]
    if held != NONE:
        left += state.pause[job]
    return float(left * shapes.gpus[shape, option] if discipline == SRSF else left)


@jit
def _sort(discipline: int, jobs: Jobs, shapes: Shapes, state: Progress, costs: Costs) -> None:
    """Running jobs by key, then index. They are nearly sorted: insertion sort."""
    order = state.order
    for at in range(state.size[0]):
        job = order[at]
        key = state.key[job] = _turn(discipline, jobs, shapes, state, job, costs)
        state.wish[job] = NONE
        to = at
        while to > 0 and (key < state.key[order[to - 1]] or (key == state.key[order[to - 1]] and job < order[to - 1])):
            order[to] = order[to - 1]
            to -= 1
        order[to] = job


@jit
def _choose(jobs: Jobs, shapes: Shapes, free: Ints, waiting: Heaps, state: Progress) -> None:
    """Wishes of all jobs, in turn, for as long as GPUs (types,) are free. Waiting ones that get any are appended."""
    at, running = 0, state.size[0]
    shut = np.zeros(len(waiting.root), dtype=np.bool_)
    while free.max() > 0:
        shape = _first_open(waiting, shut)
        job = NONE if shape == NONE else waiting.root[shape]
        if at < running and (job == NONE or _running_first(waiting, state, state.order[at], job)):
            _wish(jobs, shapes, free, state, state.order[at])
            at += 1
        elif job == NONE:
            break
        elif _wish(jobs, shapes, free, state, job):
            remove_first(waiting, shape)
            state.order[state.size[0]] = job
            state.size[0] += 1
        else:
            shut[shape] = True


@jit
def _first_open(waiting: Heaps, shut: NDArray[np.bool_]) -> int:
    best = NONE
    for shape in range(len(shut)):
        job = waiting.root[shape]
        if job == NONE or shut[shape]:
            continue
        if best == NONE or before(waiting.key, job, waiting.root[best]):
            best = shape
    return best


@jit
def _running_first(waiting: Heaps, state: Progress, running: int, other: int) -> bool:
    return bool(
        state.key[running] < waiting.key[other] or (state.key[running] == waiting.key[other] and running < other)
    )


@jit
def _wish(jobs: Jobs, shapes: Shapes, free: Ints, state: Progress, job: int) -> bool:
    """What it holds, else the fastest option that there are GPUs for; returns whether there is one."""
    shape, held = jobs.shape[job], state.option[job]
    if held != NONE and shapes.gpus[shape, held] <= free[shapes.gpu_type[shape, held]]:
        state.wish[job] = held
    else:
        state.wish[job] = NONE
        for option in range(shapes.gpus.shape[1]):
            if 0 < shapes.gpus[shape, option] <= free[shapes.gpu_type[shape, option]]:
                state.wish[job] = option
                break
    if state.wish[job] == NONE:
        return False
    free[shapes.gpu_type[shape, state.wish[job]]] -= shapes.gpus[shape, state.wish[job]]
    return True


@jit
def _change(
    discipline: int, jobs: Jobs, shapes: Shapes, nodes: Nodes, waiting: Heaps, state: Progress, log: Log, costs: Costs,
    running: int, now: float,
) -> Log:  # fmt: skip
    """Stop, move and start jobs as wished: first everything is given back, then taken."""
    for at in range(running):
        job = state.order[at]
        if state.wish[job] != state.option[job]:
            give(nodes, log, state.entry[job], now)
    left = 0
    for at in range(state.size[0]):
        job = state.order[at]
        held, wish = state.option[job], state.wish[job]
        if wish == NONE:
            state.option[job], state.pause[job] = NONE, 0.0
            insert(waiting, jobs.shape[job], job, _turn(discipline, jobs, shapes, state, job, costs))
            continue
        if wish != held:
            log = take(nodes, shapes, jobs.shape[job], wish, log, job, now)
            fresh = held == NONE and state.done[job] == 0
            pause = costs.first if fresh else costs.again
            state.pause[job] = pause if pause > 0 or held == NONE else state.pause[job]
            state.restarts[job] += state.entry[job] != NONE and (held == NONE or pause > 0)
            state.entry[job], state.since[job], state.option[job] = log.size[0] - 1, now, wish
        state.order[left] = job
        left += 1
    state.size[0] = left
    return log
