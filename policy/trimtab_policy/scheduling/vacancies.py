"""The GPUs of a forecast: which gangs a job could be, and how many nodes have room for one.

Nodes are counted by pool (the nodes that a template admits), GPU type and free GPUs, so that whether a gang fits is one
look into a table, for thousands of gangs at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from functools import lru_cache

import numpy as np
from msgspec import Struct

from trimtab_policy.perf.plans import Offer, options_by_type
from trimtab_policy.placement.candidates import candidates
from trimtab_policy.placement.capacity import NO_NODES, Capacity, GangDemand, IntArray
from trimtab_policy.placement.node_columns import column, columns
from trimtab_policy.specs import ModelSpec, TrainingSpec
from trimtab_policy.types import Job, Requirements, Snapshot

MOST_POOLS = 32
"""Different sets of nodes that jobs' templates admit; jobs with further ones get no forecast."""


class GangShape(Struct, frozen=True):
    """A gang that a job could be: what `forecast` needs to know of an option."""

    gpu_type: str
    gpus: int
    nodes: int
    per_node: int
    """0: any GPUs of the type, however they lie (`Job.speeds`)."""
    step_seconds: float
    uncertainty: float


def shapes_of(snapshot: Snapshot, capacity: Capacity, job: Job) -> tuple[GangShape, ...]:
    """What the job could run on, the fastest first. Of CPU and memory beside GPUs only what the nodes have in all
    counts, not what is free."""
    if job.speeds is not None:
        known = candidates(snapshot, capacity, job)
        found = [
            GangShape(c.gpu.name, c.option.gpus, c.option.nodes, 0, c.option.prediction.step_seconds, 1.0)
            for c in known
        ]
        return tuple(sorted(found, key=lambda shape: shape.step_seconds))
    allowed = job.requirements.gpu_types
    offers = tuple(
        Offer(gpu, size)
        for name, gpu in sorted(snapshot.gpu_types.items())
        if (not allowed or name in allowed) and (size := capacity.node_gpus(name))
    )
    shapes = _searched(job.model, job.training, job.requirements, offers)
    if not job.requirements.asks_host:
        return shapes
    able = tuple(
        shape for shape in shapes if capacity.could_ever_fit(job, GangDemand(shape.gpu_type, shape.gpus, shape.nodes))
    )
    return shapes if len(able) == len(shapes) else able


@lru_cache(maxsize=4096)
def _searched(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, offers: tuple[Offer, ...]
) -> tuple[GangShape, ...]:
    found = options_by_type(model, training, requirements, offers)
    shapes = (
        GangShape(
            offer.gpu.name,
            option.gpus,
            option.nodes,
            option.gpus_per_node,
            option.prediction.step_seconds,
            option.prediction.uncertainty,
        )
        for offer, of_type in zip(offers, found, strict=True)
        for option in of_type
    )
    ordered = sorted(shapes, key=lambda shape: (shape.step_seconds, shape.gpus))
    # How nodes will be linked that have become free nobody knows: the best of each shape speaks for it.
    first = {(shape.gpu_type, shape.nodes, shape.per_node): shape for shape in reversed(ordered)}
    return tuple(shape for shape in ordered if first[shape.gpu_type, shape.nodes, shape.per_node] is shape)


def needs(shape: GangShape) -> int:
    """What there has to be for it: nodes with so many free GPUs, or GPUs wherever they are."""
    return shape.nodes if shape.per_node else shape.gpus


@lru_cache(maxsize=4096)
def smallest(shapes: tuple[GangShape, ...]) -> tuple[GangShape, ...]:
    """For each GPU type and size of node the one with the fewest nodes."""
    found: dict[tuple[str, int], GangShape] = {}
    for shape in shapes:
        key = shape.gpu_type, shape.per_node
        if key not in found or (shape.nodes, shape.gpus) < (found[key].nodes, found[key].gpus):
            found[key] = shape
    return tuple(found.values())


class Vacancies:
    """Free GPUs of every node; and for every pool of nodes and GPU type, how many nodes have at least so many free."""

    def __init__(self, snapshot: Snapshot, jobs: Iterable[Job]) -> None:
        self.types = {name: number for number, name in enumerate(sorted(snapshot.gpu_types))}
        known = columns(snapshot.nodes)
        self.index, self._names = known.index, known.names
        self._free = known.free.copy()
        self._width = 1 + int(known.total.max(initial=0))
        everywhere = [known.members.get(name, NO_NODES) for name in self.types]
        eligible = dict.fromkeys(job.eligible for job in jobs if job.eligible is not None)
        self._pools: dict[tuple[str, ...] | None, int] = {None: 0}
        self._pools |= {names: number for number, names in enumerate(eligible, start=1) if number < MOST_POOLS}
        self._members: list[list[IntArray]] = []
        """By pool and type: which nodes."""
        for names in self._pools:
            if names is None:
                self._members.append(everywhere)
            else:
                admitted = column([self.index[name] for name in names if name in self.index])
                self._members.append([rows[np.isin(rows, admitted)] for rows in everywhere])
        self.counts: IntArray = np.zeros((len(self._pools), len(self.types), self._width), dtype=np.int64)
        for kind in self.types.values():
            self._count(kind)

    def copy(self) -> Vacancies:
        """One that can be spent."""
        made = copy(self)
        made._free, made.counts = self._free.copy(), self.counts.copy()
        return made

    def knows(self, job: Job) -> bool:
        """Whether the nodes that the job's template admits are among the pools."""
        return job.eligible in self._pools

    def pool_of(self, job: Job) -> int:
        """Number of the set of nodes that the job may use."""
        return self._pools[job.eligible]

    def named(self, rows: IntArray) -> tuple[str, ...]:
        """The names of these nodes."""
        return tuple([self._names[row] for row in rows.tolist()])

    def cell(self, pool: int, shape: GangShape) -> int:
        """Index into the flat `counts` of what the shape needs."""
        return (pool * len(self.types) + self.types[shape.gpu_type]) * self._width + shape.per_node

    def fits(self, pool: int, shape: GangShape) -> bool:
        """Whether there are nodes for it."""
        return bool(self.counts[pool, self.types[shape.gpu_type], shape.per_node] >= needs(shape))

    def free_gpus(self, pool: int, gpu_type: str | None = None) -> int:
        """GPUs that are free in a pool, of one type or of all."""
        of_type = slice(None) if gpu_type is None else self.types[gpu_type]
        return int(self.counts[pool, of_type, 0].sum())

    def take(self, pool: int, shape: GangShape) -> tuple[IntArray, IntArray]:
        """Hold the tightest nodes that fit, or where they may be uneven the emptiest: rows, and GPUs of each."""
        kind = self.types[shape.gpu_type]
        members = self._members[pool][kind]
        free = self._free[members]
        if shape.per_node:
            fitting = np.flatnonzero(free >= shape.per_node)
            rows = members[fitting[np.argsort(free[fitting], kind="stable")[: shape.nodes]]]
            parts = np.full(len(rows), shape.per_node, dtype=np.int64)
        else:
            order = np.argsort(-free, kind="stable")
            before = np.cumsum(free[order]) - free[order]
            taken = np.clip(shape.gpus - before, 0, free[order])
            rows, parts = members[order[taken > 0]], taken[taken > 0]
        self._free[rows] -= parts
        self._count(kind)
        return rows, parts

    def give(self, rows: IntArray, parts: IntArray, kinds: Iterable[int]) -> None:
        """Let go of so many GPUs on each of these nodes, whose GPU types have these numbers."""
        np.add.at(self._free, rows, parts)
        np.minimum(self._free, self._width - 1, out=self._free)
        for kind in kinds:
            self._count(kind)

    def _count(self, kind: int) -> None:
        for pool, members in enumerate(self._members):
            having = np.bincount(self._free[members[kind]], minlength=self._width)
            self.counts[pool, kind] = having[::-1].cumsum()[::-1]
            self.counts[pool, kind, 0] = self._free[members[kind]].sum()
