"""Elastic jobs under `rudder`, compiled: the engine's world without its nodes, for thousands of episodes a minute.

GPUs are counted by type. A job runs at the speed of its menu (`placement.options.market`), which the truth may differ
from; a start and a change cost what they cost in `sim.llm`; decisions are made when a job comes or ends, and every
`heartbeat` seconds. What is decided says the policy's own code (`learned.rudder.values`), compiled, and an exact
solution of its assignment: a multiple-choice knapsack over the GPUs of each type that are to be given out. What nodes
add (a gang that finds no place although there are GPUs enough) is the only thing that the engine knows besides; a test
holds both together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_lab.numba_cache import jit
from trimtab_policy.learned import rudder
from trimtab_policy.learned.rudder import Network

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

MOST_CELLS = 60_000
"""Entries of the table over GPUs of each type: larger clusters are not simulated here."""
MOST_DECISIONS = 400
"""For each job, on average: a policy that takes more leads nowhere."""

values = jit(rudder.values)
on_purpose = jit(rudder.on_purpose)
best_later = jit(rudder.best_later)


class ElasticWindow(NamedTuple):
    """The jobs of an episode, n of them in the order in which they come, with m options of K GPU types in all."""

    capacity: IntArray
    """GPUs of each type, (K,)."""
    submitted: FloatArray
    """Seconds, (n,)."""
    steps: FloatArray
    """True ones, (n,)."""
    told: FloatArray
    """What the policy is told of them, as a factor, (n,)."""
    movable: BoolArray
    """(n,)"""
    jobs: FloatArray
    """Columns of `rudder` that do not change, (n, 8)."""
    first: IntArray
    """Options of job j are those from first[j] to first[j + 1], (n + 1,)."""
    kind: IntArray
    """(m,)"""
    options: FloatArray
    """Columns of `rudder`; the pause is that of a restart, (m, 6)."""
    truth: FloatArray
    """True steps/s, (m,)."""
    launch: float
    """Seconds of a first start."""
    min_run: float
    """Seconds that a gang is left where it is."""
    heartbeat: float


class ElasticRun(NamedTuple):
    """What became of the jobs, (n,) each."""

    jct: FloatArray
    """Seconds; infinite for jobs that did not end."""
    gpu_seconds: FloatArray
    restarts: FloatArray


def run_window(network: Network, window: ElasticWindow) -> ElasticRun:
    """Simulate an episode. Raises ValueError for a cluster that is too large."""
    cells = int(np.prod(window.capacity + 1))
    if cells > MOST_CELLS:
        raise ValueError(f"{cells} combinations of free GPUs are more than {MOST_CELLS}: take a smaller cluster")
    return ElasticRun(*_simulate(network, window))


@jit
def _needed(capacity: IntArray, first: IntArray, kind: IntArray, gpus: FloatArray, worth: FloatArray) -> IntArray:
    """GPUs of each type that all jobs together could use."""
    needed = np.zeros(len(capacity), np.int64)
    most = np.zeros(len(capacity), np.int64)
    for j in range(len(first) - 1):
        most[:] = 0
        for o in range(first[j], first[j + 1]):
            if worth[o] > 0.0:
                most[kind[o]] = max(most[kind[o]], int(gpus[o]))
        needed += most
    return np.minimum(needed, capacity)


@jit
def _raise(before: FloatArray, after: FloatArray, taken: NDArray[np.int32], worth: float, option: np.int32) -> None:
    """Take the option wherever that is better; without branches, so that it is done for several cells at a time."""
    for i in range(len(before)):
        x, y, o = before[i] + worth, after[i], taken[i]
        better = x > y
        after[i] = x if better else y
        taken[i] = option if better else o


@jit
def _assign(capacity: IntArray, first: IntArray, kind: IntArray, gpus: FloatArray, worth: FloatArray) -> IntArray:
    """The best assignment: option of each job, or -1, (jobs,)."""
    n = len(first) - 1
    chosen = np.full(n, -1, np.int64)
    used = np.zeros(len(capacity), np.int64)
    for j in range(n):
        best = 0.0
        for o in range(first[j], first[j + 1]):
            if worth[o] > best and gpus[o] <= capacity[kind[o]]:
                best, chosen[j] = worth[o], o
        if chosen[j] >= 0:
            used[kind[chosen[j]]] += int(gpus[chosen[j]])
    if (used <= capacity).all():  # all have what they like best
        return chosen
    sizes = _needed(capacity, first, kind, gpus, worth) + 1
    stride = np.ones(len(sizes), np.int64)
    for t in range(1, len(sizes)):
        stride[t] = stride[t - 1] * sizes[t - 1]
    cells = stride[-1] * sizes[-1]
    before, after = np.zeros(cells), np.zeros(cells)
    taken = np.full((n, cells), -1, np.int32)
    for j in range(n):
        after[:] = before
        for o in range(first[j], first[j + 1]):
            t, g, v = kind[o], int(gpus[o]), worth[o]
            if v <= 0.0 or g >= sizes[t]:
                continue
            dominated = False
            for p in range(first[j], first[j + 1]):
                if (
                    p != o
                    and kind[p] == t
                    and gpus[p] <= g
                    and (worth[p] > v or (worth[p] == v and (gpus[p] < g or p < o)))
                ):
                    dominated = True
            if dominated:
                continue
            low, block = g * stride[t], stride[t] * sizes[t]
            for base in range(0, cells, block):
                _raise(before[base : base + block - low], after[base + low : base + block],
                       taken[j, base + low : base + block], v, np.int32(o))  # fmt: skip
        before, after = after, before
    cell = cells - 1
    for j in range(n - 1, -1, -1):
        o = taken[j, cell]
        chosen[j] = o
        if o >= 0:
            cell -= int(gpus[o]) * stride[kind[o]]
    return chosen


@jit
def _waits(
    now: float, fixed: BoolArray, first: IntArray, kind: IntArray, gpus: FloatArray, free: IntArray,
    ends: FloatArray, end_kind: IntArray, end_gpus: IntArray,
) -> FloatArray:  # fmt: skip
    """Seconds until there are GPUs for each option, as `rudder.values_later` takes them, (options,)."""
    waits = np.zeros(len(kind))
    order = np.argsort(ends)
    for j in range(len(fixed)):
        if not fixed[j]:
            continue
        for o in range(first[j], first[j + 1]):
            have = free[kind[o]]
            if gpus[o] <= have:
                continue
            waits[o] = np.inf
            for e in order:
                if end_kind[e] == kind[o]:
                    have += end_gpus[e]
                    if have >= gpus[o]:
                        waits[o] = max(1.0, ends[e] - now)
                        break
    return waits


@jit
def _simulate(network: Network, window: ElasticWindow) -> tuple[FloatArray, FloatArray, FloatArray]:
    n = len(window.submitted)
    jct, gpu_seconds, restarts = np.full(n, np.inf), np.zeros(n), np.zeros(n)
    left, done = window.steps.copy(), np.zeros(n)
    held, resuming, planned = np.full(n, -1, np.int64), np.zeros(n), np.full(n, -np.inf)
    here = np.zeros(n, np.bool_)
    gpus = window.options[:, 5]
    now, coming, there, decisions = 0.0, 0, 0, 0
    while coming < n or there > 0:
        # the next event
        then = now + window.heartbeat if there > 0 else np.inf
        if coming < n:
            then = min(then, window.submitted[coming])
        for j in range(coming):
            if here[j] and held[j] >= 0:
                then = min(then, now + resuming[j] + left[j] / window.truth[held[j]])
        then = max(then, now + 1e-6)
        span = then - now
        for j in range(coming):
            o = held[j]
            if not here[j] or o < 0:
                continue
            gpu_seconds[j] += span * gpus[o]
            pause = min(resuming[j], span)
            resuming[j] -= pause
            computed = (span - pause) * window.truth[o]
            if computed >= left[j] * (1.0 - 1e-12) - 1e-9:
                jct[j] = then - window.submitted[j]
                here[j], held[j], left[j] = False, -1, 0.0
                there -= 1
            else:
                left[j] -= computed
                done[j] += computed
        now = then
        while coming < n and window.submitted[coming] <= now:
            here[coming] = True
            there += 1
            coming += 1
        if there == 0:
            continue
        decisions += 1
        if decisions > MOST_DECISIONS * n:
            break

        # who is decided about
        capacity, free = window.capacity.copy(), window.capacity.copy()
        ids = np.zeros(there, np.int64)
        ends, end_kind, end_gpus = np.zeros(there), np.zeros(there, np.int64), np.zeros(there, np.int64)
        count, running, size = 0, 0, 0
        for j in range(coming):
            if not here[j]:
                continue
            o = held[j]
            if o >= 0:
                free[window.kind[o]] -= int(gpus[o])
                ends[running] = now + resuming[j] + left[j] * window.told[j] / window.options[o, 0]
                end_kind[running], end_gpus[running] = window.kind[o], int(gpus[o])
                running += 1
                if not window.movable[j] or now - planned[j] < window.min_run:
                    capacity[window.kind[o]] -= int(gpus[o])
                    continue
            ids[count] = j
            count += 1
            size += window.first[j + 1] - window.first[j]
        if count == 0:
            continue
        jobs, options = np.zeros((count, 8)), np.zeros((size, 6))
        owner, kind, source = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64)
        first, fixed = np.zeros(count + 1, np.int64), np.zeros(count, np.bool_)
        at = 0
        for k in range(count):
            j = ids[k]
            jobs[k] = window.jobs[j]
            jobs[k, 0] = max(1.0, left[j] * window.told[j])
            jobs[k, 4], jobs[k, 5] = now - window.submitted[j], restarts[j]
            fixed[k] = not window.movable[j]
            if fixed[k]:
                jobs[k, 7] = 1e12
            for o in range(window.first[j], window.first[j + 1]):
                options[at] = window.options[o]
                owner[at], kind[at], source[at] = k, window.kind[o], o
                if o == held[j]:
                    options[at, 2], options[at, 3] = resuming[j], 1.0
                elif held[j] >= 0:
                    options[at, 4] = 1.0
                elif done[j] <= 0.0:
                    options[at, 2] = window.launch
                at += 1
            first[k + 1] = at
        worth = values(network, jobs, options, owner)
        if fixed.any():
            waits = _waits(
                now, fixed, first, kind, options[:, 5], free, ends[:running], end_kind[:running], end_gpus[:running]
            )
            asked = on_purpose(jobs, owner, waits)
            if asked.any():
                options[:, 2] += np.where(asked, waits, 0.0)
                then_worth = values(network, jobs, options, owner)
                later, _ = best_later(network.constants[13], count, owner, asked, then_worth)
                worth = worth - later[owner]
        chosen = _assign(capacity, first, kind, options[:, 5], worth)
        for k in range(count):
            j = ids[k]
            o = source[chosen[k]] if chosen[k] >= 0 else -1
            if o == held[j]:
                continue
            if o >= 0:
                fresh = held[j] < 0 and done[j] <= 0.0
                resuming[j] = window.launch if fresh else window.options[o, 2]
                restarts[j] += 0.0 if planned[j] == -np.inf else 1.0
                planned[j] = now
            else:
                resuming[j] = 0.0
            held[j] = o
    return jct, gpu_seconds, restarts
