"""Disciplines that let jobs run to their end: first come first served, EASY backfill, shortest job first.

One loop over events for all of them. What waits is kept so that the next job is found in O(log n), however long the
queue is: jobs of one shape have room or have none together, so that one heap or tree per shape is looked at, and not
every job. The rules are those of `heuristics.{fcfs,easy_backfill,sjf}`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trimtab_lab.kernel.heap import (
    NONE,
    Floats,
    Heaps,
    Ints,
    before,
    heaps,
    insert,
    pop,
    push,
    remove_first,
    tree_first,
    tree_set,
)
from trimtab_lab.kernel.nodes import TICK, AllocationLog, KernelJobs, KernelNodes, Shapes, find, give, take
from trimtab_lab.numba_cache import jit

FCFS, SJF, EASY = 0, 1, 2
ANY = 1e300
"""Longer than any job, and less than what stands in a tree for no job."""


class WaitingQueue(NamedTuple):
    """The waiting jobs: in heaps, or for backfilling in trees of told work over the jobs of a shape as they arrive."""

    heaps: Heaps
    """One for all (FCFS), or one per shape."""
    tree: Floats
    first: Ints
    """(shapes,) where the tree of a shape begins in `tree`."""
    leaves: Ints
    """(shapes,)"""
    member: Ints
    """(jobs,) by shape, in the order of submission."""
    begin: Ints
    """(shapes,) where the jobs of a shape begin in `member`."""
    place: Ints
    """(jobs,) position among the jobs of its shape."""


class RunningHeap(NamedTuple):
    """What runs, as a binary heap over its ends."""

    ends: Floats
    entry: Ints
    """Of the log."""
    size: Ints
    """(1,)"""
    expected: Floats
    """(jobs,) when a job will end by what was told, once it runs."""


class KernelReservation(NamedTuple):
    """What is promised to the first job that waits."""

    gpu_type: int
    start: float
    spare: int
    """GPUs of the type that it will leave free when it starts."""


def queue(discipline: int, jobs: KernelJobs, shapes: int) -> WaitingQueue:
    """An empty queue."""
    count = len(jobs.shape)
    if discipline != EASY:
        none = np.zeros(0, dtype=np.int64)
        return WaitingQueue(heaps(count, 1 if discipline == FCFS else shapes), np.zeros(0), *[none] * 5)
    sizes = np.bincount(jobs.shape, minlength=shapes)
    leaves = np.array([1 << int(size - 1).bit_length() if size else 1 for size in sizes], dtype=np.int64)
    member = np.argsort(jobs.shape, kind="stable")
    begin = np.cumsum(sizes) - sizes
    place = np.empty(count, dtype=np.int64)
    place[member] = np.arange(count) - begin[jobs.shape[member]]
    tree = np.full(2 * int(leaves.sum()), np.inf)
    return WaitingQueue(heaps(0, 0), tree, 2 * (np.cumsum(leaves) - leaves), leaves, member, begin, place)


@jit
def run_to_end(
    discipline: int,
    jobs: KernelJobs,
    shapes: Shapes,
    nodes: KernelNodes,
    waiting: WaitingQueue,
    log: AllocationLog,
    pause: float,
    heartbeat: float,
) -> AllocationLog:
    """Run all jobs; returns the log. `pause` is what a start costs; a decision is made at least every `heartbeat`."""
    count, most = len(jobs.submitted), nodes.free.sum()
    running = RunningHeap(
        np.empty(most), np.empty(most, dtype=np.int64), np.zeros(1, dtype=np.int64), np.full(count, np.inf)
    )
    arrived, beat = 0, np.inf
    while arrived < count or running.size[0] > 0:
        now = min(beat, jobs.submitted[arrived]) if arrived < count else beat
        if running.size[0] > 0:
            now = min(now, running.ends[0])
        while running.size[0] > 0 and running.ends[0] <= now + TICK:
            give(nodes, log, running.entry[0], now)
            running.size[0] = pop(running.ends, running.entry, running.size[0])
        while arrived < count and jobs.submitted[arrived] <= now:
            _enqueue(discipline, jobs, shapes, waiting, arrived)
            arrived += 1
        if discipline == EASY:
            log = _backfill(jobs, shapes, nodes, waiting, running, log, now, pause)
        else:
            log = _serve(jobs, shapes, nodes, waiting.heaps, running, log, now, pause)
        beat = now + heartbeat if running.size[0] > 0 else np.inf
    return log


@jit
def _enqueue(discipline: int, jobs: KernelJobs, shapes: Shapes, waiting: WaitingQueue, job: int) -> None:
    shape = jobs.shape[job]
    if discipline == EASY:
        first, leaves = waiting.first[shape], waiting.leaves[shape]
        tree_set(waiting.tree[first : first + 2 * leaves], leaves, waiting.place[job], jobs.told[job])
    elif discipline == SJF:
        insert(waiting.heaps, shape, job, jobs.told[job] / shapes.speed[shape, 0])
    else:
        insert(waiting.heaps, 0, job, 0.0)


@jit
def _start(
    jobs: KernelJobs,
    shapes: Shapes,
    nodes: KernelNodes,
    running: RunningHeap,
    log: AllocationLog,
    job: int,
    option: int,
    now: float,
    pause: float,
) -> AllocationLog:
    shape = jobs.shape[job]
    log = take(nodes, shapes, shape, option, log, job, now)
    speed = shapes.speed[shape, option]
    end = now + pause + jobs.work[job] / speed
    running.size[0] = push(running.ends, running.entry, running.size[0], end, log.size[0] - 1)
    running.expected[job] = now + pause + jobs.told[job] / speed
    return log


@jit
def _serve(
    jobs: KernelJobs,
    shapes: Shapes,
    nodes: KernelNodes,
    waiting: Heaps,
    running: RunningHeap,
    log: AllocationLog,
    now: float,
    pause: float,
) -> AllocationLog:
    """Start the first job of all heaps that has room, again and again."""
    while nodes.free_of.max() > 0:
        best, chosen = NONE, NONE
        for heap in range(len(waiting.root)):
            job = waiting.root[heap]
            if job != NONE and (best == NONE or before(waiting.key, job, waiting.root[best])):
                option = find(nodes, shapes, jobs.shape[job])
                if option != NONE:
                    best, chosen = heap, option
        if best == NONE:
            break
        job = waiting.root[best]
        remove_first(waiting, best)
        log = _start(jobs, shapes, nodes, running, log, job, chosen, now, pause)
    return log


@jit
def _backfill(
    jobs: KernelJobs,
    shapes: Shapes,
    nodes: KernelNodes,
    waiting: WaitingQueue,
    running: RunningHeap,
    log: AllocationLog,
    now: float,
    pause: float,
) -> AllocationLog:
    """Start jobs in turn for as long as they have room; then those behind that do not delay the first that has none."""
    head = _first(waiting, np.full(len(waiting.leaves), ANY))
    while head != NONE:
        option = find(nodes, shapes, jobs.shape[head])
        if option == NONE:
            break
        _dequeue(jobs, waiting, head)
        log = _start(jobs, shapes, nodes, running, log, head, option, now, pause)
        head = _first(waiting, np.full(len(waiting.leaves), ANY))
    if head == NONE or nodes.free_of.max() == 0:
        return log
    promise = _reserve(jobs, shapes, nodes, running, log, head, now, pause)
    while True:
        job = _first(waiting, _longest(shapes, nodes, promise, now))
        if job == NONE:
            return log
        option = _harmless(jobs, shapes, nodes, promise, job, now)
        _dequeue(jobs, waiting, job)
        log = _start(jobs, shapes, nodes, running, log, job, option, now, pause)
        shape = jobs.shape[job]
        late = now + jobs.told[job] / shapes.speed[shape, option] > promise.start + TICK
        if late and shapes.gpu_type[shape, option] == promise.gpu_type:
            promise = KernelReservation(promise.gpu_type, promise.start, promise.spare - shapes.gpus[shape, option])


@jit
def _first(waiting: WaitingQueue, most: Floats) -> int:
    """The first waiting job whose told work is at most `most` (shapes,) of its shape, or NONE."""
    best = NONE
    for shape in range(len(most)):
        first, leaves = waiting.first[shape], waiting.leaves[shape]
        leaf = tree_first(waiting.tree[first : first + 2 * leaves], leaves, most[shape])
        if leaf != NONE:
            job = waiting.member[waiting.begin[shape] + leaf]
            best = job if best == NONE else min(best, job)
    return best


@jit
def _dequeue(jobs: KernelJobs, waiting: WaitingQueue, job: int) -> None:
    shape = jobs.shape[job]
    first, leaves = waiting.first[shape], waiting.leaves[shape]
    tree_set(waiting.tree[first : first + 2 * leaves], leaves, waiting.place[job], np.inf)


@jit
def _reserve(
    jobs: KernelJobs,
    shapes: Shapes,
    nodes: KernelNodes,
    running: RunningHeap,
    log: AllocationLog,
    head: int,
    now: float,
    pause: float,
) -> KernelReservation:
    """The earliest start of the head by what was told; of options that start together the fastest."""
    best = KernelReservation(NONE, np.inf, 0)
    shape = jobs.shape[head]
    for option in range(shapes.gpus.shape[1]):
        gpus, gpu_type = shapes.gpus[shape, option], shapes.gpu_type[shape, option]
        if gpus > 0:
            start, free = _when_free(jobs, shapes, nodes, running, log, gpu_type, gpus, now, pause)
            if start < best.start:
                best = KernelReservation(gpu_type, start, free - gpus)
    return best


@jit
def _when_free(
    jobs: KernelJobs,
    shapes: Shapes,
    nodes: KernelNodes,
    running: RunningHeap,
    log: AllocationLog,
    gpu_type: int,
    gpus: int,
    now: float,
    pause: float,
) -> tuple[float, int]:
    """When so many GPUs of a type will be free by what was told, and how many are free then; (inf, 0) for never."""
    ends, held, size = np.empty(running.size[0]), np.empty(running.size[0], dtype=np.int64), 0
    for at in range(running.size[0]):
        job, option = log.job[running.entry[at]], log.option[running.entry[at]]
        if shapes.gpu_type[jobs.shape[job], option] == gpu_type:
            # What starts in this very decision is expected to end as if it need not start up.
            early = pause if log.begin[running.entry[at]] == now else 0.0
            end = max(now, running.expected[job] - early)
            size = push(ends, held, size, end, shapes.gpus[jobs.shape[job], option])
    start, free = now, nodes.free_of[gpu_type]
    while size > 0 and (free < gpus or ends[0] <= start):
        start, free = max(start, ends[0]), free + held[0]
        size = pop(ends, held, size)
    return (start, free) if free >= gpus else (np.inf, 0)


@jit
def _longest(shapes: Shapes, nodes: KernelNodes, promise: KernelReservation, now: float) -> Floats:
    """(shapes,) the most work with which a job may start now; negative for none."""
    most = np.full(len(shapes.gpus), -1.0)
    for shape in range(len(most)):
        for option in range(shapes.gpus.shape[1]):
            gpus, gpu_type = shapes.gpus[shape, option], shapes.gpu_type[shape, option]
            if 0 < gpus <= nodes.free_of[gpu_type]:
                free = gpu_type != promise.gpu_type or gpus <= promise.spare
                within = (promise.start - now + TICK) * shapes.speed[shape, option]
                most[shape] = max(most[shape], ANY if free else within)
    return most


@jit
def _harmless(
    jobs: KernelJobs, shapes: Shapes, nodes: KernelNodes, promise: KernelReservation, job: int, now: float
) -> int:
    """The fastest option with room that does not delay the head."""
    shape = jobs.shape[job]
    for option in range(shapes.gpus.shape[1]):
        gpus, gpu_type = shapes.gpus[shape, option], shapes.gpu_type[shape, option]
        if 0 < gpus <= nodes.free_of[gpu_type]:
            within = (promise.start - now + TICK) * shapes.speed[shape, option]
            if gpu_type != promise.gpu_type or gpus <= promise.spare or jobs.told[job] <= within:
                return option
    return NONE
