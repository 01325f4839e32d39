"""What learned policies see: a job on offer, what it could run on, the GPUs and the queue, as numbers in [0, 1].

These are the features of seed 002 (ADLRO, section 3.1) that all learned policies decide by. The scales are those of
`normalise`, which has further features (readings of GPUs, submissions) that no weights were trained on.

The policies decide by one protocol: jobs that wait are offered one at a time, in the order of the queue, and only when
something that they could run on has room. The answer is one option (GPU type, count, parallelism), or to let the job
wait.

`OfferFacts` are the raw figures of n such offers, whoever gathered them: the operator from a snapshot (`OfferScene`), a
training environment from its arrays. `encode` turns them into `OfferBatch`. There is no second way, so that what was
learned in an environment means the same in a cluster. No feature depends on the number of nodes, GPU types or options
but by ratios and logarithms: weights serve clusters of any size.

Job (12): 0 run time left on its fastest option; 1 work left, in GPU-seconds of its most frugal option; 2 age; 3 age /
(age + 0's time); 4 has a deadline; 5 slack to it, s / (s + age + 0's time), 0 when late; 6 rank by length among the
waiting jobs (0 shortest); 7 rank by age (0 oldest); 8, 9 smallest and largest gang; 10 scaling exponent between these
on its best GPU type; 11 part of its options that have room.
Cluster (4): 0 jobs in the system; 1 waiting w / (w + 16); 2 free share of the GPUs; 3 jobs p / (p + GPUs).
Pools (types, 11): 0 speed of one GPU for this job over that of the best type; 1 GPUs; 2 GPUs of a node; 3 free share;
4 share of all GPUs; 5 to 9 share of the nodes with 0, 1, 2-3, 4-7, 8 or more free GPUs; 10 fragmentation: share of the
free GPUs on nodes with too few of them, mean over gangs of 1, 2, 4, ... on one node (after FGD, ATC 2023).
Options (o, 8): 0 speed over that of the fastest; 1 speed per GPU over the best; 2 GPUs; 3 GPUs over the free ones of
the pool, 1 without room; 4 run time on it; 5 to 7 data, model, hybrid parallel.

Durations and work enter as ln(1 + s) / ln(1 + 30 days), counts as log2(1 + n) / 10 (12 for a pool's GPUs, 4 for a
node's), all cut to [0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.observation.features import DURATION, GPUS, JOBS, NODE_GPUS, POOL_GPUS, WAITING, columns
from trimtab_policy.placement.candidates import Candidate, candidates, has_room
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.specs import Mode
from trimtab_policy.types import Job, Snapshot

SCHEMA = "offers/1"
"""Goes up when features change: weights of another schema are refused."""
JOB, CLUSTER, POOL, OPTION = 12, 4, 11, 8
"""Numbers of features."""
MODES = (Mode.DATA, Mode.MODEL, Mode.HYBRID)
OCCUPANCY = slice(5, 10)
"""Where the nodes by free GPUs stand among the features of a pool: the utilisation matrix of a cluster."""
_EDGES = (1, 2, 4, 8)

Single = NDArray[np.float32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class OfferBatch(NamedTuple):
    """n jobs on offer, each with what it could have; features as of the module. An offer's answer is an option's
    index, or the number of options: to wait."""

    job: Single
    """(n, 12)"""
    cluster: Single
    """(n, 4)"""
    pools: Single
    """(n, types, 11)"""
    options: Single
    """(n, options, 8)"""
    kind: Ints
    """(n, options) pool of each option."""
    gpus: Ints
    """(n, options)"""
    mode: Ints
    """(n, options) index into MODES."""
    mask: Bools
    """(n, options + 1) what may be answered; the last one is to wait."""

    @property
    def wait(self) -> int:
        """The answer that lets a job wait."""
        return int(self.mask.shape[1]) - 1


class OfferFacts(NamedTuple):
    """The raw figures of n offers."""

    fastest_seconds: Floats
    """(n,) run time left on the fastest option, as users believe."""
    age: Floats
    """(n,) seconds."""
    slack: Floats
    """(n,) seconds to the deadline; infinite for none."""
    shorter: Ints
    """(n,) waiting jobs that are shorter."""
    older: Ints
    """(n,) waiting jobs that are older."""
    waiting: Ints
    """(n,) jobs without GPUs, this one among them."""
    present: Ints
    """(n,) jobs in the system."""
    speed: Floats
    """(n, options) steps per second in any unit; 0 where it cannot run."""
    kind: Ints
    """(n, options)"""
    gpus: Ints
    """(n, options)"""
    mode: Ints
    """(n, options)"""
    room: Bools
    """(n, options) whether it could start now."""
    total: Ints
    """(n, types) GPUs."""
    node_gpus: Ints
    """(n, types) of the largest node."""
    by_free: Ints
    """(n, types, 1 + most GPUs of a node) how many nodes have 0, 1, 2, ... free GPUs."""


def encode(facts: OfferFacts) -> OfferBatch:
    """The features of n offers."""
    able = facts.speed > 0
    relative = facts.speed / facts.speed.max(axis=1, keepdims=True)
    per_gpu = facts.speed / facts.gpus
    frugal = per_gpu / per_gpu.max(axis=1, keepdims=True)
    free = facts.by_free @ np.arange(facts.by_free.shape[2])
    return OfferBatch(
        job=_job(facts, able, relative, frugal),
        cluster=_cluster(facts, free),
        pools=_pools(facts, per_gpu, free),
        options=_options(facts, able, relative, frugal, free),
        kind=facts.kind,
        gpus=facts.gpus,
        mode=facts.mode,
        mask=np.concatenate([facts.room & able, (facts.present > facts.waiting)[:, None]], axis=1),
    )


def _job(facts: OfferFacts, able: Bools, relative: Floats, frugal: Floats) -> Single:
    rows = np.arange(len(able))
    best = relative.argmax(axis=1)
    least_work = facts.fastest_seconds * facts.gpus[rows, best] * frugal[rows, best]
    on_best = able & (facts.kind == facts.kind[rows, best][:, None])
    few = np.where(on_best, facts.gpus, np.iinfo(np.int64).max).argmin(axis=1)
    many = np.where(on_best, facts.gpus, 0).argmax(axis=1)
    wider = np.log(facts.gpus[rows, many] / facts.gpus[rows, few])
    gain = np.log(relative[rows, many] / relative[rows, few])
    exponent = np.divide(gain, wider, out=np.zeros(len(rows)), where=wider > 0)
    others = np.maximum(1, facts.waiting - 1)
    past, late = facts.age + facts.fastest_seconds, np.maximum(facts.slack, 0.0)
    hurried = np.isfinite(facts.slack)
    slack = np.divide(late, late + past, out=np.ones(len(rows)), where=hurried & (late + past > 0))
    return columns(
        DURATION(facts.fastest_seconds),
        DURATION(least_work),
        DURATION(facts.age),
        facts.age / np.maximum(past, 1e-9),
        hurried,
        slack * hurried,
        facts.shorter / others,
        facts.older / others,
        GPUS(np.where(able, facts.gpus, np.iinfo(np.int64).max).min(axis=1)),
        GPUS(np.where(able, facts.gpus, 0).max(axis=1)),
        exponent,
        (facts.room & able).sum(axis=1) / able.sum(axis=1),
    )


def _cluster(facts: OfferFacts, free: Ints) -> Single:
    gpus = facts.total.sum(axis=1)
    return columns(
        JOBS(facts.present),
        WAITING(facts.waiting),
        free.sum(axis=1) / gpus,
        facts.present / (facts.present + gpus),
    )


def _pools(facts: OfferFacts, per_gpu: Floats, free: Ints) -> Single:
    types = np.arange(facts.total.shape[1])
    of_type = np.where(facts.kind[:, None, :] == types[:, None], per_gpu[:, None, :], 0.0).max(axis=2)
    nodes = np.maximum(1, facts.by_free.sum(axis=2))
    bands = np.add.reduceat(facts.by_free, _bands(facts.by_free.shape[2]), axis=2)
    bands = np.pad(bands, ((0, 0), (0, 0), (0, 5 - bands.shape[2])))
    return columns(
        of_type / of_type.max(axis=1, keepdims=True),
        POOL_GPUS(facts.total),
        NODE_GPUS(facts.node_gpus),
        free / np.maximum(1, facts.total),
        facts.total / facts.total.sum(axis=1, keepdims=True),
        *np.moveaxis(bands / nodes[:, :, None], 2, 0),
        _fragmentation(facts, free),
    )


def _bands(columns: int) -> list[int]:
    return [0, *(edge for edge in _EDGES if edge < columns)]


def _fragmentation(facts: OfferFacts, free: Ints) -> Floats:
    """(n, types) share of the free GPUs that gangs of 1, 2, 4, ... up to a node cannot use, on average."""
    columns = facts.by_free.shape[2]
    held_by = facts.by_free * np.arange(columns)
    stranded, widths = np.zeros(free.shape), np.zeros(free.shape)
    width = 1
    while width < columns:
        usual = width <= facts.node_gpus
        stranded += usual * held_by[:, :, :width].sum(axis=2)
        widths += usual
        width *= 2
    share: Floats = stranded / np.maximum(1, widths * free)
    return share


def _options(facts: OfferFacts, able: Bools, relative: Floats, frugal: Floats, free: Ints) -> Single:
    pool = np.take_along_axis(free, facts.kind, axis=1)
    seconds = np.divide(facts.fastest_seconds[:, None], relative, out=np.zeros(relative.shape), where=able)
    return columns(
        relative,
        frugal,
        GPUS(facts.gpus) * able,
        np.where(facts.room, facts.gpus / np.maximum(1, pool), 1.0) * able,
        DURATION(seconds),
        *((facts.mode == mode) & able for mode in range(len(MODES))),
    )


class CandidateMenu(NamedTuple):
    """What one job could run on, as arrays over its candidates: by GPU type and count, the fastest of each first."""

    options: tuple[Candidate, ...]
    seconds: Floats
    """(options,) of one step."""
    kind: Ints
    gpus: Ints
    mode: Ints
    first: Bools
    """(options,) whether it is the fastest of its GPU type and count."""


class OfferScene:
    """A snapshot as the offers of its waiting jobs see it, while they are answered one after the other."""

    def __init__(self, snapshot: Snapshot, capacity: Capacity) -> None:
        self._snapshot, self._capacity = snapshot, capacity
        self._types = tuple(name for name in snapshot.gpu_types if capacity.node_gpus(name))
        index = {name: kind for kind, name in enumerate(self._types)}
        self._kind_of_node = np.array([index[node.gpu_type] for node in snapshot.nodes], dtype=np.int64)
        self._node_gpus = np.array([capacity.node_gpus(name) for name in self._types], dtype=np.int64)
        self._total = np.zeros(len(self._types), dtype=np.int64)
        np.add.at(self._total, self._kind_of_node, capacity.total)
        waiting = snapshot.waiting()
        found = {job.uid: _menu(index, candidates(snapshot, capacity, job)) for job in waiting}
        able = [job for job in waiting if found[job.uid].options]
        self._menus = {job.uid: found[job.uid] for job in able}
        self._number = {job.uid: number for number, job in enumerate(able)}
        lengths = [_left(job, found[job.uid].seconds[None]) for job in able]
        self._seconds = np.concatenate([np.zeros(0), *lengths])
        self._created = np.array([job.created for job in able], dtype=np.float64)
        self._waits = np.ones(len(able), dtype=np.bool_)
        self._present = len(snapshot.jobs) - len(waiting) + len(able)

    def offer(self, job: Job) -> tuple[OfferBatch, tuple[Candidate, ...]] | None:
        """The offer of one waiting job and its options; None where nothing that it could run on has room."""
        menu = self._menus.get(job.uid)
        room = self._room(job, menu) if menu else np.zeros(0, dtype=np.bool_)
        if menu is None or not room.any():
            return None
        rows = _best_of_each(menu, room)
        number, snapshot = self._number[job.uid], self._snapshot
        facts = OfferFacts(
            fastest_seconds=_left(job, menu.seconds[None, rows]),
            age=np.array([snapshot.time - job.created]),
            slack=np.array([np.inf if job.deadline is None else job.deadline - snapshot.time]),
            shorter=np.array([int((self._waits & (self._seconds < self._seconds[number])).sum())]),
            older=np.array([int((self._waits & (self._created < job.created)).sum())]),
            waiting=np.array([int(self._waits.sum())]),
            present=np.array([self._present]),
            speed=1 / menu.seconds[None, rows],
            kind=menu.kind[None, rows],
            gpus=menu.gpus[None, rows],
            mode=menu.mode[None, rows],
            room=room[None, rows],
            total=self._total[None],
            node_gpus=self._node_gpus[None],
            by_free=self._by_free()[None],
        )
        return encode(facts), tuple(menu.options[row] for row in rows.tolist())

    def started(self, job: Job) -> None:
        """The job has been given GPUs: it no longer waits."""
        self._waits[self._number[job.uid]] = False

    def _room(self, job: Job, menu: CandidateMenu) -> Bools:
        capacity = self._capacity
        return np.array(
            [
                each.option.gpus <= capacity.free_gpus(each.gpu.name) and has_room(capacity, job, each)
                for each in menu[0]
            ],
            dtype=np.bool_,
        )

    def _by_free(self) -> Ints:
        """(types, 1 + most GPUs of a node)"""
        columns = 1 + int(self._node_gpus.max(initial=0))
        cells = self._kind_of_node * columns + np.minimum(self._capacity.free, columns - 1)
        return np.bincount(cells, minlength=len(self._types) * columns).reshape(len(self._types), columns)


def _menu(index: dict[str, int], found: Sequence[Candidate]) -> CandidateMenu:
    kind = [index[each.gpu.name] for each in found]
    order = sorted(range(len(found)), key=lambda row: (kind[row], found[row].option.gpus, _seconds(found[row])))
    options = tuple(found[row] for row in order)
    pools = np.array([kind[row] for row in order], dtype=np.int64)
    gpus = np.array([each.option.gpus for each in options], dtype=np.int64)
    return CandidateMenu(
        options,
        np.array([_seconds(each) for each in options]),
        pools,
        gpus,
        np.array([MODES.index(each.option.plan.mode) for each in options], dtype=np.int64),
        np.append(np.ones(min(1, len(options)), dtype=np.bool_), (np.diff(pools) != 0) | (np.diff(gpus) != 0)),
    )


def _best_of_each(menu: CandidateMenu, room: Bools) -> Ints:
    """(types x counts that there are,) the fastest option with room of each GPU type and count, else the fastest."""
    group = np.cumsum(menu.first) - 1
    order = np.lexsort((np.arange(len(group)), ~room, group))
    rows: Ints = order[np.flatnonzero(menu.first)]
    return rows


def _seconds(candidate: Candidate) -> float:
    return candidate.option.prediction.step_seconds


def _left(job: Job, step_seconds: Floats) -> Floats:
    """(n,) run time left on the fastest of options (n, options)."""
    fastest: Floats = (job.training.steps - job.steps_done) * step_seconds.min(axis=1)
    return fastest
