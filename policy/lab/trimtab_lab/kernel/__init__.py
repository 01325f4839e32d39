"""The fast path: rigid jobs under classic disciplines, on arrays and in machine code.

The engine asks a policy at every event and shows it every job; a million jobs would take it days. Here the same rules
run in O(log n) per event: a million jobs take seconds, also in overload. What it covers, and must answer exactly as the
engine with the policy of the same name does (a test holds it to that, job by job):

- rigid jobs (`sim.rigid`) with their rules, on clusters without quotas, failures or stragglers;
- jobs of different shapes: a shape is what a job can run on, the fastest option first. A job takes the fastest option
  that has room. Several counts in a shape make its jobs moldable;
- gangs may be spread over any nodes, as rigid jobs are as fast on scattered GPUs;
- jobs that are equal in what a discipline orders by are served in the order of their submission.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from trimtab_lab.kernel.heap import Floats, Ints, heaps
from trimtab_lab.kernel.nodes import AllocationLog, KernelJobs, KernelNodes, Shapes, empty_log
from trimtab_lab.kernel.preemptive import LAS, SRSF, SRTF, Costs, nothing_runs, progress, run_preemptive
from trimtab_lab.kernel.queues import EASY, FCFS, SJF, queue, run_to_end
from trimtab_lab.rigid import RigidRules
from trimtab_lab.workloads.trace import Trace
from trimtab_policy.heuristics.las import THRESHOLDS
from trimtab_policy.placement.candidates import weight
from trimtab_policy.types import Snapshot


class Discipline(StrEnum):
    """What the kernel can do; the names are those of the policies."""

    FCFS = "fcfs"
    EASY_BACKFILL = "easy_backfill"
    SJF = "sjf"
    SRTF = "srtf"
    SRSF = "srsf"
    LAS = "las"
    """Without promotion of the starved, and at the very moment when a job sinks to the next level."""


class NotCovered(ValueError):
    """The kernel does not simulate this; the engine does."""


class KernelWorkload(NamedTuple):
    """Jobs for one cluster, in the order of their submission."""

    jobs: KernelJobs
    shapes: Shapes
    row: Ints
    """(jobs,) where each one stands in what it was made from."""


class KernelOption(NamedTuple):
    """One way for a job to run."""

    gpu_type: int
    gpus: int
    speed: float


class Spans(NamedTuple):
    """Every allocation, in the order of their begin; the parts of i are `[first[i], first[i + 1])` of node and gpus."""

    job: Ints
    """Row of the trace."""
    gpu_type: Ints
    begin: Floats
    end: Floats
    first: Ints
    node: Ints
    gpus: Ints


class KernelResult(Struct, frozen=True, eq=False):
    """What came out, as columns over jobs in the order of the trace; times in seconds."""

    started: Floats
    """First time that it held GPUs."""
    finished: Floats
    gpu_seconds: Floats
    """Time that its GPUs were held."""
    productive_gpu_seconds: Floats
    """Without restarts."""
    restarts: Ints
    """Starts after the first; moves that cost nothing are none."""
    spans: Spans
    cpu_seconds: float


class KernelRules(Struct, frozen=True):
    """How a run is carried out; the defaults are those of the engine and of rigid jobs."""

    first_pause: float = 0.0
    """Seconds that the first start of a job costs."""
    restart_pause: float = 0.0
    """Seconds that every other start costs."""
    heartbeat: float = 300.0
    """Longest time between two decisions."""
    thresholds: tuple[float, ...] = THRESHOLDS
    """GPU-seconds at which a job sinks to the next level of LAS."""


def simulate(
    discipline: Discipline, given: KernelWorkload, nodes: KernelNodes, rules: KernelRules | None = None
) -> KernelResult:
    """Run all jobs on an empty cluster, which is left as it is. Raises ValueError for a job that cannot run on it."""
    _check(given, nodes)
    began = time.process_time()
    rules = rules or KernelRules()
    empty = KernelNodes(nodes.gpu_type, nodes.free.copy(), nodes.free_of.copy())
    if discipline in _TO_END:
        log, restarts, paused = _run_to_end(_TO_END[discipline], given, empty, rules)
    else:
        log, restarts, paused = _run_preemptive(_PREEMPTIVE[discipline], given, empty, rules)
    return _outcome(given, _trimmed(log), restarts, paused, time.process_time() - began)


_TO_END = {Discipline.FCFS: FCFS, Discipline.EASY_BACKFILL: EASY, Discipline.SJF: SJF}
_PREEMPTIVE = {Discipline.SRTF: SRTF, Discipline.SRSF: SRSF, Discipline.LAS: LAS}


def _run_to_end(
    discipline: int, given: KernelWorkload, nodes: KernelNodes, rules: KernelRules
) -> tuple[AllocationLog, Ints, Floats]:
    """The log, restarts, and GPU-seconds held without computing."""
    jobs, shapes, count = given.jobs, given.shapes, len(given.row)
    line = queue(discipline, jobs, len(shapes.gpus))
    # Between two events a decision changes something only where jobs end later than it was expected of them.
    late = discipline == EASY and (rules.first_pause > 0 or bool((jobs.told < jobs.work).any()))
    beat = rules.heartbeat if late else np.inf
    log = run_to_end(discipline, jobs, shapes, nodes, line, empty_log(count, count), rules.first_pause, beat)
    size = log.size[0]
    paused = np.zeros(count)
    paused[log.job[:size]] = rules.first_pause * shapes.gpus[jobs.shape[log.job[:size]], log.option[:size]]
    return log, np.zeros(count, dtype=np.int64), paused


def _run_preemptive(
    discipline: int, given: KernelWorkload, nodes: KernelNodes, rules: KernelRules
) -> tuple[AllocationLog, Ints, Floats]:
    jobs, shapes, count = given.jobs, given.shapes, len(given.row)
    state, running = progress(count), nothing_runs(int(nodes.free.sum()))
    costs = Costs(rules.first_pause, rules.restart_pause, np.array([*rules.thresholds, np.inf]))
    waiting, log = heaps(count, len(shapes.gpus)), empty_log(count, count)
    log = run_preemptive(discipline, jobs, shapes, nodes, waiting, state, running, log, costs)
    return log, state.restarts, state.paused


def _outcome(given: KernelWorkload, log: AllocationLog, restarts: Ints, paused: Floats, cpu: float) -> KernelResult:
    """Columns in the order of the trace. Entries of the log are in the order of their begin."""
    row, count = given.row, len(given.row)
    gpus = given.shapes.gpus[given.jobs.shape[log.job], log.option]
    held = np.bincount(log.job, weights=(log.end - log.begin) * gpus, minlength=count).astype(np.float64)
    started, finished = np.full(count, np.nan), np.full(count, np.nan)
    started[log.job[::-1]] = log.begin[::-1]
    finished[log.job] = log.end
    back = np.empty(count, dtype=np.int64)
    back[row] = np.arange(count)
    types = given.shapes.gpu_type[given.jobs.shape[log.job], log.option]
    spans = Spans(row[log.job], types, log.begin, log.end, log.first, log.node, log.gpus)
    return KernelResult(
        started=started[back],
        finished=finished[back],
        gpu_seconds=held[back],
        productive_gpu_seconds=(held - paused)[back],
        restarts=restarts[back],
        spans=spans,
        cpu_seconds=cpu,
    )


def pools(cluster: Snapshot) -> KernelNodes:
    """An empty cluster as arrays; GPU types by name."""
    types = sorted(cluster.gpu_types)
    kinds = np.array([types.index(node.gpu_type) for node in cluster.nodes], dtype=np.int64)
    return _nodes(kinds, np.array([node.gpus for node in cluster.nodes], dtype=np.int64), len(types))


def _nodes(kinds: Ints, gpus: Ints, types: int) -> KernelNodes:
    return KernelNodes(kinds, gpus, np.bincount(kinds, weights=gpus, minlength=types).astype(np.int64))


def workload(
    submitted: Floats, work: Floats, shape: Ints, options: Sequence[Sequence[KernelOption]], told: Floats | None = None
) -> KernelWorkload:
    """Jobs as columns, in any order; ties stay in it. `shape` (jobs,) indexes `options`, which are sorted by speed.

    `work` in seconds at speed 1; `told` is what policies believe it to be.
    """
    row = np.argsort(submitted, kind="stable")
    believed = work if told is None else told
    jobs = KernelJobs(submitted[row], work[row], believed[row], shape.astype(np.int64)[row])
    return KernelWorkload(jobs, _shapes(options), row)


def rigid(discipline: Discipline, trace: Trace, cluster: Snapshot, rules: RigidRules | None = None) -> KernelWorkload:
    """The jobs of a trace for a cluster, as `sim.rigid.jobs` makes them and the policy of that name orders them.

    Raises ValueError for a job that fits no GPU type of the cluster, NotCovered for a trace without run times, and for
    random errors of the estimates.
    """
    rules = rules or RigidRules()
    if rules.estimate_sigma:
        raise NotCovered(f"estimate_sigma={rules.estimate_sigma}: errors of estimates are drawn by `sim.rigid`")
    if np.isnan(trace.seconds).any():
        raise NotCovered("the trace has jobs without a run time: such workloads need --profiles")
    width = 1 + int(trace.gpus.max(initial=0))
    kinds, shape = np.unique(trace.gpu_types.codes * width + trace.gpus, return_inverse=True)
    options = [
        _options(cluster, trace.gpu_types.values[kind // width], kind % width, rules.type_speeds)
        for kind in kinds.tolist()
    ]
    told = np.where(trace.estimate > 0, trace.estimate, trace.seconds)
    found = workload(trace.submitted, trace.seconds, shape, options, told)
    return _untied(discipline, found, trace)


def _options(cluster: Snapshot, allowed: tuple[str, ...], gpus: int, speeds: Mapping[str, float]) -> list[KernelOption]:
    """One per allowed GPU type, fastest first; of equally fast ones the cheaper type, then by name."""
    types = sorted(cluster.gpu_types)
    found = [
        KernelOption(number, gpus, speeds.get(name, 1.0))
        for number, name in enumerate(types)
        if not allowed or name in allowed
    ]
    return sorted(found, key=lambda option: (-option.speed, weight(cluster.gpu_types[types[option.gpu_type]])))


def _untied(discipline: Discipline, found: KernelWorkload, trace: Trace) -> KernelWorkload:
    """Jobs that were submitted together come in the order in which the policies see them."""
    jobs, row = found.jobs, found.row
    if not (np.diff(jobs.submitted) == 0).any():
        return found
    keys = [trace.name[row]]
    if discipline in _TO_END:  # `Snapshot.waiting` is sorted by queue before name, `queueing.preempt` by name alone
        keys.append(np.array([queue or "default" for queue in trace.queue.values])[trace.queue.codes[row]])
    order = np.lexsort([*keys, jobs.submitted])
    columns = KernelJobs(jobs.submitted[order], jobs.work[order], jobs.told[order], jobs.shape[order])
    return KernelWorkload(columns, found.shapes, row[order])


def _shapes(options: Sequence[Sequence[KernelOption]]) -> Shapes:
    columns = np.zeros((3, len(options), max(map(len, options), default=0)))
    for shape, of_shape in enumerate(options):
        for number, option in enumerate(sorted(of_shape, key=lambda each: -each.speed)):
            columns[:, shape, number] = option
    return Shapes(columns[0].astype(np.int64), columns[1].astype(np.int64), columns[2].copy())


def _check(given: KernelWorkload, nodes: KernelNodes) -> None:
    work, submitted = given.jobs.work, given.jobs.submitted
    bad = ~(np.isfinite(work) & (work > 0) & np.isfinite(submitted) & (submitted >= 0))
    if bad.any():
        at = int(bad.argmax())
        raise ValueError(f"job {given.row[at]}: submitted at {submitted[at]} with {work[at]} s of work: not possible")
    fits = (given.shapes.gpus > 0) & (given.shapes.gpus <= nodes.free_of[given.shapes.gpu_type])
    stuck = np.logical_not(fits.any(axis=1))[given.jobs.shape]
    if stuck.any():
        at = int(stuck.argmax())
        asked = given.shapes.gpus[given.jobs.shape[at], 0]
        raise ValueError(f"job {given.row[at]}: asks for {asked} GPUs, more than any type that it may use has")


def _trimmed(log: AllocationLog) -> AllocationLog:
    size = int(log.size[0])
    shares = int(log.first[size])
    columns = (log.job[:size], log.option[:size], log.begin[:size], log.end[:size], log.first[: size + 1])
    return AllocationLog(*columns, log.node[:shares], log.gpus[:shares], log.size)
