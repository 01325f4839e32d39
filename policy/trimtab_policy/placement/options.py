"""What may be decided now: the GPUs that can be given out, and what each job could do with them, as arrays.

Policies that look at all jobs at once (Sia, Gavel, Pollux, Themis) decide about the jobs that wait and about those
that run and may be preempted; what the others hold is not theirs to give. Each such job has a menu: for every GPU type
and number of GPUs its fastest option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct

from trimtab_policy.perf.plan_space import ANYHOW
from trimtab_policy.perf.plans import Option
from trimtab_policy.placement.assign import keeps
from trimtab_policy.placement.candidates import Candidate, candidates, could_ever_fit, held_links, type_of, weight
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.solvers.knapsack import Assignment, FloatArray, IntArray, Solution
from trimtab_policy.types import Job, Snapshot


class OptionMenu(Struct, frozen=True, dict=True):
    """The options of one job, by GPU type and number of GPUs."""

    job: Job
    options: tuple[Candidate, ...]
    kind: IntArray
    """Index into `Market.types`, (options,)."""
    gpus: IntArray
    """(options,)"""
    current: int
    """The option that it holds; -1 for none, or for one that it would not be offered again."""

    @cached_property
    def rate(self) -> FloatArray:
        """Steps per second, (options,)."""
        return np.array([1.0 / option.option.prediction.step_seconds for option in self.options])


class Market(Struct, frozen=True):
    """All that may be decided about."""

    types: tuple[str, ...]
    """In the order of the snapshot's nodes."""
    capacity: IntArray
    """GPUs of each type that are free or held by jobs that may be preempted, (types,)."""
    total: IntArray
    """GPUs of each type that there are, (types,)."""
    menus: tuple[OptionMenu, ...]
    """In the order of the snapshot."""


def market(snapshot: Snapshot, capacity: Capacity | None = None) -> Market:
    """Find the menus; `capacity` is that of the snapshot, if it is at hand."""
    capacity = capacity or Capacity(snapshot)
    types = tuple(dict.fromkeys([*(node.gpu_type for node in snapshot.nodes), *snapshot.gpu_types]))
    index = {name: kind for kind, name in enumerate(types)}
    movable = [job for job in snapshot.jobs if job.placement is None or job.preemptible]
    kind_of = {node.name: index[node.gpu_type] for node in snapshot.nodes}
    free, total = (np.zeros(len(types), dtype=np.int64) for _ in range(2))
    for node in snapshot.nodes:
        free[index[node.gpu_type]] += max(0, node.free_gpus)
        total[index[node.gpu_type]] += node.gpus
    for job in movable:
        for share in job.placement.shares if job.placement else ():
            if share.node in kind_of:
                free[kind_of[share.node]] += share.gpus
    return Market(types, free, total, tuple(_menu(snapshot, capacity, index, job) for job in movable))


def _menu(snapshot: Snapshot, capacity: Capacity, index: dict[str, int], job: Job) -> OptionMenu:
    fastest: dict[tuple[str, int], Candidate] = {}
    for each in candidates(snapshot, capacity, job):
        key = each.gpu.name, each.option.gpus
        known = fastest.get(key)
        if known and known.option.prediction.step_seconds <= each.option.prediction.step_seconds:
            continue
        if could_ever_fit(capacity, job, each):
            fastest[key] = each
    options, current = _with_held(snapshot, job, list(fastest.values()))
    return OptionMenu(
        job,
        tuple(options),
        np.array([index[each.gpu.name] for each in options], dtype=np.int64),
        np.array([each.option.gpus for each in options], dtype=np.int64),
        current,
    )


def _with_held(snapshot: Snapshot, job: Job, options: list[Candidate]) -> tuple[list[Candidate], int]:
    """The options, and which of them the job holds.

    A job that runs as many GPUs by another plan holds an option more: to change the plan is a restart as well.
    """
    held = job.placement
    if held is None:
        return options, -1
    alike = [k for k, each in enumerate(options) if (each.gpu.name, each.option.gpus) == (held.gpu_type, held.gpus)]
    if not alike or keeps(held, options[alike[0]]):
        return options, alike[0] if alike else -1
    return [*options, holding(snapshot, job)], len(options)


def holding(snapshot: Snapshot, job: Job) -> Candidate:
    """What a running job has, as the option to stay with. Raises ValueError for one that waits."""
    placement = job.placement
    if placement is None:
        raise ValueError(f"{job.namespace}/{job.name} holds no GPUs")
    nodes, gpu = len(placement.shares), type_of(snapshot, placement)
    largest = max(share.gpus for share in placement.shares)
    linked, lies = held_links(snapshot, placement, gpu) if job.speeds is None else (0, ANYHOW)
    option = Option(placement.gpus, nodes, largest, placement.plan, placement.prediction, linked, lies)
    rate, cost = placement.prediction.tokens_per_second, placement.gpus * weight(gpu)
    return Candidate(gpu, option, rate, cost, nodes, placement.speed)


def left(offered: Market, kept: Mapping[str, Candidate]) -> IntArray:
    """GPUs of each type that remain to be given out when `kept` is settled, (types,)."""
    remaining = offered.capacity.copy()
    for candidate in kept.values():
        remaining[offered.types.index(candidate.gpu.name)] -= candidate.option.gpus
    return np.maximum(remaining, 0)


def assignment(
    capacity: IntArray, menus: Sequence[OptionMenu], costs: Sequence[FloatArray], idle: FloatArray | float
) -> Assignment:
    """The assignment problem of these jobs, with the cost of every option and of giving a job nothing."""
    none = np.zeros(0, dtype=np.int64)
    return Assignment(
        capacity=capacity,
        first=np.cumsum([0, *(len(menu.options) for menu in menus)]),
        kind=np.concatenate([none, *(menu.kind for menu in menus)]),
        gpus=np.concatenate([none, *(menu.gpus for menu in menus)]),
        cost=np.concatenate([np.zeros(0), *costs]),
        idle=np.broadcast_to(idle, len(menus)),
    )


def taken(menus: Sequence[OptionMenu], solution: Solution) -> dict[str, Candidate]:
    """What each job gets, of those that get anything."""
    options = [option for menu in menus for option in menu.options]
    pairs = zip(menus, solution.chosen, strict=True)
    return {menu.job.uid: options[chosen] for menu, chosen in pairs if chosen >= 0}
