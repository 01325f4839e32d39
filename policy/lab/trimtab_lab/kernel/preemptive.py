"""Preemptive disciplines: shortest remaining time, shortest remaining service, two-dimensional least attained service.

At every event GPUs are given out anew, in the order of the discipline, to running and waiting jobs alike; a running
job is offered what it holds first. Those that get none are stopped, keep their work and pay for the next start. The
rules are those of `queueing.preempt` and `heuristics.{srtf,srsf,las}`.

The turn of a waiting job never changes, so that a heap per shape holds the queue; running jobs only gain on waiting
ones, so that between events no decision would change anything. Of a running job only absolute times are kept, in
columns that one look goes over fast. Waiting jobs that get GPUs which are free are started at once (`_fill`); only when
one of them displaces a running job all turns are taken anew (`_redistribute`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_lab.kernel.heap import NONE, Floats, Heaps, Ints, before, insert, remove_first
from trimtab_lab.kernel.nodes import TICK, AllocationLog, KernelJobs, KernelNodes, Shapes, give, take
from trimtab_lab.numba_cache import jit

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


class ProgressColumns(NamedTuple):
    """Columns over jobs. Changed in place; sums are those at the begin of the present allocation, if there is one."""

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


class RunningColumns(NamedTuple):
    """Columns over what runs, in no order."""

    job: Ints
    since: Floats
    """Begin of the allocation."""
    resume: Floats
    """When it computes."""
    end: Floats
    """When it will be done."""
    told: Floats
    """When it would be done by what was told."""
    sink: Floats
    """When it sinks to the next level; infinite but for LAS."""
    key: Floats
    """What it is ordered by at this moment."""
    gpu_type: Ints
    gpus: Ints
    size: Ints
    """(1,) how many."""


def progress(jobs: int) -> ProgressColumns:
    """Nobody has done anything."""
    return ProgressColumns(
        done=np.zeros(jobs),
        served=np.zeros(jobs),
        paused=np.zeros(jobs),
        level=np.zeros(jobs, dtype=np.int64),
        restarts=np.zeros(jobs, dtype=np.int64),
        entry=np.full(jobs, NONE),
        option=np.full(jobs, NONE),
    )


def nothing_runs(gpus: int) -> RunningColumns:
    """An idle cluster of so many GPUs."""
    return RunningColumns(
        job=np.zeros(gpus, dtype=np.int64),
        since=np.zeros(gpus),
        resume=np.zeros(gpus),
        end=np.zeros(gpus),
        told=np.zeros(gpus),
        sink=np.zeros(gpus),
        key=np.zeros(gpus),
        gpu_type=np.zeros(gpus, dtype=np.int64),
        gpus=np.zeros(gpus, dtype=np.int64),
        size=np.zeros(1, dtype=np.int64),
    )


@jit
def run_preemptive(
    discipline: int, jobs: KernelJobs, shapes: Shapes, nodes: KernelNodes,
    waiting: Heaps, state: ProgressColumns, running: RunningColumns,
    log: AllocationLog, costs: Costs,
) -> AllocationLog:  # fmt: skip
    """Run all jobs; returns the log. `waiting` has one heap per shape."""
    count, arrived = len(jobs.submitted), 0
    total = nodes.free_of.copy()
    while arrived < count or running.size[0] > 0:
        now = _next_change(running.end, running.sink, running.size[0])
        now = min(now, jobs.submitted[arrived]) if arrived < count else now
        _finish(jobs, shapes, nodes, state, running, log, now)
        if discipline == LAS:
            _sink(state, running, costs, now)
        while arrived < count and jobs.submitted[arrived] <= now:
            insert(waiting, jobs.shape[arrived], arrived, _waiting_turn(discipline, jobs, shapes, state, arrived))
            arrived += 1
        if waiting.root.max() != NONE:
            _order(discipline, jobs, shapes, state, running, now)
            log, displaces = _fill(discipline, jobs, shapes, nodes, total, waiting, state, running, log, costs, now)
            if displaces:
                log = _redistribute(discipline, jobs, shapes, nodes, total, waiting, state, running, log, costs, now)
    return log


@jit
def _next_change(end: Floats, sink: Floats, size: int) -> float:
    """When the next running job ends or sinks."""
    event = np.inf
    for at in range(size):
        event = min(event, end[at], sink[at])
    return float(event)


@jit
def _finish(
    jobs: KernelJobs,
    shapes: Shapes,
    nodes: KernelNodes,
    state: ProgressColumns,
    running: RunningColumns,
    log: AllocationLog,
    now: float,
) -> None:
    """Those that end leave."""
    at = 0
    while at < running.size[0]:
        if running.end[at] <= now + TICK:
            _stop(jobs, shapes, nodes, state, running, log, at, now)
        else:
            at += 1


@jit
def _stop(
    jobs: KernelJobs,
    shapes: Shapes,
    nodes: KernelNodes,
    state: ProgressColumns,
    running: RunningColumns,
    log: AllocationLog,
    at: int,
    now: float,
) -> None:
    """Note what a running job did, and give back what it held. The last row takes its place."""
    job, gpus = running.job[at], running.gpus[at]
    resumed = min(now, running.resume[at])
    state.done[job] += (now - resumed) * shapes.speed[jobs.shape[job], state.option[job]]
    state.served[job] += (now - running.since[at]) * gpus
    state.paused[job] += (resumed - running.since[at]) * gpus
    state.option[job] = NONE
    give(nodes, log, state.entry[job], now)
    running.size[0] -= 1
    last = running.size[0]
    running.job[at], running.gpu_type[at], running.gpus[at] = (
        running.job[last],
        running.gpu_type[last],
        running.gpus[last],
    )
    for column in (running.since, running.resume, running.end, running.told, running.sink, running.key):
        column[at] = column[last]


@jit
def _sink(state: ProgressColumns, running: RunningColumns, costs: Costs, now: float) -> None:
    for at in range(running.size[0]):
        while running.sink[at] <= now + TICK:
            job = running.job[at]
            state.level[job] += 1
            left = costs.thresholds[state.level[job]] - state.served[job]
            running.sink[at] = running.since[at] + left / running.gpus[at]


@jit
def _waiting_turn(discipline: int, jobs: KernelJobs, shapes: Shapes, state: ProgressColumns, job: int) -> float:
    """What a waiting job is ordered by, the smallest first."""
    if discipline == LAS:
        return float(LEVEL * (state.level[job] + 0.5) + jobs.submitted[job])
    shape = jobs.shape[job]
    left = (jobs.told[job] - state.done[job]) / shapes.speed[shape, 0]
    return float(left * shapes.gpus[shape, 0] if discipline == SRSF else left)


@jit
def _order(
    discipline: int, jobs: KernelJobs, shapes: Shapes, state: ProgressColumns, running: RunningColumns, now: float
) -> None:
    """Keys of running jobs. They go by the fastest option like those of waiting jobs: to start makes no job longer."""
    for at in range(running.size[0]):
        job = running.job[at]
        if discipline == LAS:
            running.key[at] = LEVEL * state.level[job] + running.since[at]
            continue
        shape, option = jobs.shape[job], state.option[job]
        key = running.told[at] - max(now, running.resume[at])
        if option != 0:
            key *= shapes.speed[shape, option] / shapes.speed[shape, 0]
        running.key[at] = key * shapes.gpus[shape, 0] if discipline == SRSF else key


@jit
def _fill(
    discipline: int, jobs: KernelJobs, shapes: Shapes, nodes: KernelNodes,
    total: Ints, waiting: Heaps, state: ProgressColumns,
    running: RunningColumns, log: AllocationLog, costs: Costs, now: float,
) -> tuple[AllocationLog, bool]:  # fmt: skip
    """Start waiting jobs in turn for as long as they get GPUs that are free; says whether one gets those of another."""
    shut = np.zeros(len(waiting.root), dtype=np.bool_)
    while True:
        shape = _first_open(waiting.root, waiting.key, shut)
        if shape == NONE:
            return log, False
        job = waiting.root[shape]
        left = total.copy()
        _take_those_before(left, running.key, running.job, running.gpu_type, running.gpus, running.size[0],
                           waiting.key[job], job)  # fmt: skip
        option = _first_affordable(shapes.gpu_type[shape], shapes.gpus[shape], left)
        if option == NONE:
            shut[shape] = True
            continue
        if shapes.gpus[shape, option] > nodes.free_of[shapes.gpu_type[shape, option]]:
            return log, True
        key = waiting.key[job]
        remove_first(waiting, shape)
        log = _start(discipline, jobs, shapes, nodes, state, running, log, costs, job, option, -np.inf, now)
        running.key[running.size[0] - 1] = key


@jit
def _first_open(root: Ints, key: Floats, shut: NDArray[np.bool_]) -> int:
    """The heap whose first job is the first of all."""
    best = NONE
    for shape in range(len(shut)):
        if root[shape] != NONE and not shut[shape] and (best == NONE or before(key, root[shape], root[best])):
            best = shape
    return best


@jit
def _take_those_before(
    left: Ints, keys: Floats, jobs: Ints, gpu_type: Ints, gpus: Ints, size: int, key: float, job: int
) -> None:
    """Take from `left` (types,) what running jobs hold whose turn is before this one."""
    for at in range(size):
        if _first(keys[at], jobs[at], key, job):
            left[gpu_type[at]] -= gpus[at]


@jit
def _first_affordable(gpu_type: Ints, gpus: Ints, left: Ints) -> int:
    """The fastest option of a shape that there are GPUs for."""
    for option in range(len(gpus)):
        if 0 < gpus[option] <= left[gpu_type[option]]:
            return option
    return NONE


@jit
def _redistribute(
    discipline: int, jobs: KernelJobs, shapes: Shapes, nodes: KernelNodes,
    total: Ints, waiting: Heaps, state: ProgressColumns,
    running: RunningColumns, log: AllocationLog, costs: Costs, now: float,
) -> AllocationLog:  # fmt: skip
    """Take all turns anew: stop, move and start jobs so that the first of them hold the GPUs."""
    size = running.size[0]
    job, resume = running.job[:size].copy(), running.resume[:size].copy()
    wish, new, option, count = _take_turns(jobs, shapes, total.copy(), waiting, state, running)
    for at in range(size - 1, -1, -1):  # backwards: what takes the place of a row that leaves was looked at before
        if wish[at] != state.option[job[at]]:
            _stop(jobs, shapes, nodes, state, running, log, at, now)
    for at in range(size):
        if state.option[job[at]] == NONE and wish[at] == NONE:
            turn = _waiting_turn(discipline, jobs, shapes, state, job[at])
            insert(waiting, jobs.shape[job[at]], job[at], turn)
        elif state.option[job[at]] == NONE:
            log = _start(
                discipline, jobs, shapes, nodes, state, running, log, costs, job[at], wish[at], resume[at], now
            )
    for at in range(count):
        log = _start(discipline, jobs, shapes, nodes, state, running, log, costs, new[at], option[at], -np.inf, now)
    return log


@jit
def _take_turns(
    jobs: KernelJobs, shapes: Shapes, free: Ints, waiting: Heaps, state: ProgressColumns, running: RunningColumns
) -> tuple[Ints, Ints, Ints, int]:
    """Hand out `free` (types,), which is everything.

    Returns what each row of `running` shall hold; and the waiting jobs that get GPUs, taken off their heaps, what they
    get, and how many they are.
    """
    size, at, count = running.size[0], 0, 0
    by_job = np.argsort(running.job[:size])
    order = by_job[np.argsort(running.key[:size][by_job], kind="mergesort")]
    wish, shut = np.full(size, NONE), np.zeros(len(waiting.root), dtype=np.bool_)
    new, options = np.empty(free.sum(), dtype=np.int64), np.empty(free.sum(), dtype=np.int64)
    while free.max() > 0:
        heap = _first_open(waiting.root, waiting.key, shut)
        job = NONE if heap == NONE else waiting.root[heap]
        row = order[at] if at < size else NONE
        if row != NONE and (job == NONE or _first(running.key[row], running.job[row], waiting.key[job], job)):
            shape, held = jobs.shape[running.job[row]], state.option[running.job[row]]
            if running.gpus[row] > free[running.gpu_type[row]]:
                held = _first_affordable(shapes.gpu_type[shape], shapes.gpus[shape], free)
            wish[row] = held
            at += 1
        elif job != NONE:
            shape, held = jobs.shape[job], _first_affordable(shapes.gpu_type[heap], shapes.gpus[heap], free)
            if held == NONE:
                shut[heap] = True
            else:
                remove_first(waiting, heap)
                new[count], options[count] = job, held
                count += 1
        else:
            break
        if held != NONE:
            free[shapes.gpu_type[shape, held]] -= shapes.gpus[shape, held]
    return wish, new, options, count


@jit
def _first(key: float, job: int, other_key: float, other: int) -> bool:
    """Whether a job's turn is before another's."""
    return bool(key < other_key or (key == other_key and job < other))


@jit
def _start(
    discipline: int, jobs: KernelJobs, shapes: Shapes, nodes: KernelNodes,
    state: ProgressColumns, running: RunningColumns, log: AllocationLog,
    costs: Costs, job: int, option: int, resumed: float, now: float,
) -> AllocationLog:  # fmt: skip
    """Let a job run; `resumed` is when it would have computed on what it held until now, -inf if it waited."""
    shape = jobs.shape[job]
    log = take(nodes, shapes, shape, option, log, job, now)
    moves = resumed > -np.inf
    pause = costs.first if state.done[job] == 0 and not moves else costs.again
    state.restarts[job] += state.entry[job] != NONE and (pause > 0 or not moves)
    if pause == 0:
        pause = max(0.0, resumed - now)
    state.entry[job], state.option[job] = log.size[0] - 1, option
    at = running.size[0]
    running.size[0] += 1
    speed, resume = shapes.speed[shape, option], now + pause
    running.job[at], running.since[at], running.resume[at] = job, now, resume
    running.end[at] = resume + (jobs.work[job] - state.done[job]) / speed
    running.told[at] = resume + (jobs.told[job] - state.done[job]) / speed
    running.gpu_type[at], running.gpus[at] = shapes.gpu_type[shape, option], shapes.gpus[shape, option]
    running.sink[at] = np.inf
    if discipline == LAS:
        running.sink[at] = now + (costs.thresholds[state.level[job]] - state.served[job]) / running.gpus[at]
    return log
