"""Elastic jobs under `rudder`, compiled: the engine's world without its nodes, for thousands of episodes a minute.

GPUs are counted by type. A job runs at the speed of its menu (`placement.options.market`), which the truth may differ
from; a start and a change cost what they cost in `sim.llm`; decisions are made when a job comes or ends, and every
`heartbeat` seconds. What is decided says the policy's own code (`learned.rudder`), compiled, and an exact
solution of its assignment: a multiple-choice knapsack over the GPUs of each type that are to be given out. What nodes
add (a gang that finds no place although there are GPUs enough), and what `learned.guards` keeps the policy from beside
waiting on purpose, is all that the engine knows besides; a test holds both together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_lab.numba_cache import jit
from trimtab_policy.learned import guards
from trimtab_policy.learned import worth as plain
from trimtab_policy.learned.worth import Network

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

MOST_CELLS = 60_000
"""Entries of the table over GPUs of each type: larger clusters are not simulated here."""
MOST_DECISIONS = 400
"""For each job, on average: a policy that takes more leads nowhere."""

pressure = jit(plain.pressure)
analytic_worth = jit(plain.analytic_worth)
learned = jit(plain.learned)
features = jit(plain.features)
change = jit(plain.change)
on_purpose = jit(plain.on_purpose)
best_later = jit(plain.best_later)
at_least_something = jit(plain.at_least_something)
still_left = jit(guards.still_left)


class ElasticWindow(NamedTuple):
    """The jobs of an episode, n of them in the order in which they come, with m options of K GPU types in all."""

    capacity: IntArray
    """GPUs of each type, (K,)."""
    submitted: FloatArray
    """Seconds, (n,)."""
    steps: FloatArray
    """True ones, (n,)."""
    told: FloatArray
    """What the policy is told of them before a job has made any, as a factor, (n,)."""
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


def nothing_seen() -> FloatArray:
    """Ranges of features before the first one, as `run_window` takes them."""
    return np.array([[np.inf], [-np.inf]]) * np.ones(plain.FEATURES)


def run_window(network: Network, window: ElasticWindow, seen: FloatArray | None = None) -> ElasticRun:
    """Simulate an episode. Raises ValueError for a cluster that is too large.

    `seen` (2, 17), lowest and highest value of each feature, is widened by what the network sees.
    """
    cells = int(np.prod(window.capacity + 1))
    if cells > MOST_CELLS:
        raise ValueError(f"{cells} combinations of free GPUs are more than {MOST_CELLS}: take a smaller cluster")
    return ElasticRun(*_simulate(network, window, np.empty((2, 0)) if seen is None else seen))


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


class _World(NamedTuple):
    """The state of an episode, n jobs; arrays that change."""

    left: FloatArray
    """Steps."""
    done: FloatArray
    held: IntArray
    """Option, -1 for none."""
    resuming: FloatArray
    """Seconds until a job computes."""
    planned: FloatArray
    """When it was given what it holds; minus infinity for a job that was never given anything."""
    here: BoolArray
    jct: FloatArray
    gpu_seconds: FloatArray
    restarts: FloatArray


class _Asked(NamedTuple):
    """What is decided about at one moment: k jobs, their options and the GPUs that are to be given out."""

    ids: IntArray
    """(k,)"""
    first: IntArray
    """(k + 1,)"""
    jobs: FloatArray
    """(k, 8)"""
    options: FloatArray
    kind: IntArray
    owner: IntArray
    source: IntArray
    """Number of each option in the window."""
    capacity: IntArray
    """GPUs of each type that may be given out."""
    waits: FloatArray
    """Seconds until there are GPUs for each option, as of `worth.on_purpose`."""


@jit
def values(network: Network, jobs: FloatArray, options: FloatArray, owner: IntArray) -> FloatArray:
    """`worth.values`, compiled."""
    load, log_w = pressure(network, jobs)
    worth = analytic_worth(network, load, log_w, jobs, options, owner)
    if learned(network):
        worth = worth * change(network, features(load, log_w, jobs, options, owner))
    return worth


@jit
def _next(window: ElasticWindow, world: _World, now: float, coming: int) -> float:
    """Time of the next decision: somebody comes or ends, or the heartbeat."""
    then = np.inf
    if coming < len(window.submitted):
        then = window.submitted[coming]
    for j in range(coming):
        if world.here[j]:
            then = min(then, now + window.heartbeat)
            if world.held[j] >= 0:
                then = min(then, now + world.resuming[j] + world.left[j] / window.truth[world.held[j]])
    return max(then, now + 1e-6)


@jit
def _advance(window: ElasticWindow, world: _World, now: float, then: float, coming: int) -> None:
    """Jobs compute until `then`; who is done leaves."""
    for j in range(coming):
        o = world.held[j]
        if not world.here[j] or o < 0:
            continue
        world.gpu_seconds[j] += (then - now) * window.options[o, 5]
        pause = min(world.resuming[j], then - now)
        world.resuming[j] -= pause
        computed = (then - now - pause) * window.truth[o]
        if computed >= world.left[j] * (1.0 - 1e-12) - 1e-9:
            world.jct[j] = then - window.submitted[j]
            world.here[j], world.held[j], world.left[j] = False, -1, 0.0
        else:
            world.left[j] -= computed
            world.done[j] += computed


@jit
def _ask(window: ElasticWindow, world: _World, now: float, coming: int) -> _Asked:
    """Whoever waits, and who runs and may be moved."""
    capacity, free = window.capacity.copy(), window.capacity.copy()
    ids, count = np.zeros(coming, np.int64), 0
    ends, end_kind, end_gpus = np.full(coming, np.inf), np.zeros(coming, np.int64), np.zeros(coming, np.int64)
    first = np.zeros(coming + 1, np.int64)
    for j in range(coming):
        if not world.here[j]:
            continue
        o = world.held[j]
        if o >= 0:
            gpus = int(window.options[o, 5])
            free[window.kind[o]] -= gpus
            told = max(0.0, _stated(window, j) - world.done[j])  # as `sim.running_job` tells `expected_finish`
            ends[j] = now + world.resuming[j] + told / window.options[o, 0]
            end_kind[j], end_gpus[j] = window.kind[o], gpus
            if not window.movable[j] or now - world.planned[j] < window.min_run:
                capacity[window.kind[o]] -= gpus
                continue
        ids[count] = j
        first[count + 1] = first[count] + window.first[j + 1] - window.first[j]
        count += 1
    ids, first = ids[:count], first[: count + 1]
    jobs, options = np.zeros((count, 8)), np.zeros((first[count], 6))
    owner, kind, source = (
        np.zeros(first[count], np.int64),
        np.zeros(first[count], np.int64),
        np.zeros(first[count], np.int64),
    )
    for k in range(count):
        _fill(window, world, now, ids[k], jobs[k], options[first[k] : first[k + 1]])
        owner[first[k] : first[k + 1]] = k
        kind[first[k] : first[k + 1]] = window.kind[window.first[ids[k]] : window.first[ids[k] + 1]]
        source[first[k] : first[k + 1]] = np.arange(window.first[ids[k]], window.first[ids[k] + 1])
    waits = _waits(now, jobs[:, 7] > 0.0, first, kind, options[:, 5], free, ends, end_kind, end_gpus)
    return _Asked(ids, first, jobs, options, kind, owner, source, capacity, waits)


@jit
def _stated(window: ElasticWindow, j: int) -> float:
    return float(max(1.0, np.rint(window.steps[j] * window.told[j])))


@jit
def _expected(window: ElasticWindow, world: _World, j: int) -> float:
    """Steps that the policy thinks a job has left, by what it is told and what the job has made."""
    stated = _stated(window, j)
    slowest = np.inf
    for o in range(window.first[j], window.first[j + 1]):
        slowest = min(slowest, window.options[o, 0] / window.options[o, 5])
    made = world.done[j]
    return still_left(stated, min(made, stated), max(0.0, made - stated), world.gpu_seconds[j] * slowest)


@jit
def _fill(window: ElasticWindow, world: _World, now: float, j: int, job: FloatArray, options: FloatArray) -> None:
    """The columns of a job (8,) and of its options."""
    job[:] = window.jobs[j]
    job[0] = _expected(window, world, j)
    job[4], job[5] = now - window.submitted[j], world.restarts[j]
    if not window.movable[j]:
        job[7] = 1e12
    options[:] = window.options[window.first[j] : window.first[j + 1]]
    if world.held[j] >= 0:
        options[:, 4] = 1.0
        mine = world.held[j] - window.first[j]
        options[mine, 2], options[mine, 3], options[mine, 4] = world.resuming[j], 1.0, 0.0
    elif world.done[j] <= 0.0:
        options[:, 2] = window.launch


@jit
def _note(network: Network, jobs: FloatArray, options: FloatArray, owner: IntArray, seen: FloatArray) -> None:
    """Widen the ranges by what the network sees of these options."""
    load, log_w = pressure(network, jobs)
    z = features(load, log_w, jobs, options, owner)
    for k in range(len(z)):
        seen[0, k], seen[1, k] = min(seen[0, k], z[k].min()), max(seen[1, k], z[k].max())


@jit
def _decide(network: Network, asked: _Asked, seen: FloatArray) -> IntArray:
    """Option of the window for each job, -1 for none, (k,); `seen` is widened, if it holds any features."""
    if seen.shape[1]:
        _note(network, asked.jobs, asked.options, asked.owner, seen)
    worth = at_least_something(asked.first, values(network, asked.jobs, asked.options, asked.owner))
    purpose = on_purpose(asked.jobs, asked.options, asked.owner, asked.waits, asked.jobs[:, 4])
    if purpose.any():
        then = asked.options.copy()
        then[:, 2] += np.where(purpose, asked.waits, 0.0)
        worth_then = values(network, asked.jobs, then, asked.owner)
        if seen.shape[1]:
            _note(network, asked.jobs, then, asked.owner, seen)
        later, _ = best_later(network.constants[13], len(asked.jobs), asked.owner, purpose, worth_then)
        worth = worth - later[asked.owner]
    chosen = _assign(asked.capacity, asked.first, asked.kind, asked.options[:, 5], worth)
    for k in range(len(chosen)):
        if chosen[k] >= 0:
            chosen[k] = asked.source[chosen[k]]
    return chosen


@jit
def _carry_out(window: ElasticWindow, world: _World, now: float, ids: IntArray, chosen: IntArray) -> None:
    for k in range(len(ids)):
        j, o = ids[k], chosen[k]
        if o == world.held[j]:
            continue
        world.resuming[j] = 0.0
        if o >= 0:
            fresh = world.held[j] < 0 and world.done[j] <= 0.0
            world.resuming[j] = window.launch if fresh else window.options[o, 2]
            world.restarts[j] += 0.0 if world.planned[j] == -np.inf else 1.0
            world.planned[j] = now
        world.held[j] = o


@jit
def _simulate(network: Network, window: ElasticWindow, seen: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    n = len(window.submitted)
    world = _World(
        window.steps.copy(), np.zeros(n), np.full(n, -1, np.int64), np.zeros(n), np.full(n, -np.inf),
        np.zeros(n, np.bool_), np.full(n, np.inf), np.zeros(n), np.zeros(n),
    )  # fmt: skip
    now, coming = 0.0, 0
    for _ in range(MOST_DECISIONS * n):
        if coming == n and not world.here.any():
            break
        then = _next(window, world, now, coming)
        _advance(window, world, now, then, coming)
        now = then
        while coming < n and window.submitted[coming] <= now:
            world.here[coming] = True
            coming += 1
        asked = _ask(window, world, now, coming)
        if len(asked.ids):
            _carry_out(window, world, now, asked.ids, _decide(network, asked, seen))
    return world.jct, world.gpu_seconds, world.restarts
