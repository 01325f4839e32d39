"""Gavel: shares of time on every GPU type by a linear program, kept to by rounds.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020. The program
finds X, the part of the time that each job should spend on each GPU type, for one of five objectives (section 4); the
jobs keep the number of GPUs that they ask for. The round mechanism (section 5) then serves those that are furthest
behind their share: the priority of a job on a type is X over the part of that type's time that it has received, and
jobs take their GPUs in order of priority for as long as there are enough of the type. Jobs that have not yet computed
since they were started come before all others and stay where they are, as in Sia: where a restart takes a round or
longer, jobs that take turns would else never compute at all. Restarts that end within their round change nothing.

Where many X are optimal the one in the middle is taken (`milp.linear`), so that equal jobs get equal shares. Jobs that
could use several counts of GPUs ask for the largest that still brings half of what linear scaling from their smallest
would: the "tuned jobs" with which rigid schedulers are compared in Sia's evaluation (SOSP 2023, section 4.2).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection
from itertools import groupby

import numpy as np
from msgspec import Struct

from trimtab_policy.heuristics.gavel_finish import fastest_finish, least_unfair
from trimtab_policy.heuristics.gavel_programs import (
    DIGITS,
    GavelDemand,
    largest_minimum,
    largest_sum,
)
from trimtab_policy.placement.assign import keeps
from trimtab_policy.placement.candidates import Candidate, nodes_for
from trimtab_policy.placement.draft import Draft, Shares
from trimtab_policy.placement.options import Market, OptionMenu, holding, left, market
from trimtab_policy.policy import Kind
from trimtab_policy.solvers.knapsack import FloatArray, IntArray
from trimtab_policy.types import Decision, Job, NodeShare, Snapshot

EFFICIENT = 0.5
"""Part of linear scaling that a tuned job must reach."""


class Gavel(ABC):
    """The round mechanism; subclasses say how the time is to be shared."""

    name: str
    kind = Kind.OPTIMISER
    source = "Narayanan et al., OSDI 2020"
    fills_up = True
    """Whether GPUs that are left over go to jobs whose share of their type is nothing."""

    def __init__(self, round_seconds: float = 360.0) -> None:
        self.round_seconds = round_seconds
        self._seconds: dict[str, dict[str, float]] = {}
        """Of each GPU type, what each job had received when it was last seen. All that is remembered of the past."""
        self._gone: dict[str, float] = {}
        """Of each GPU type, what the jobs had received that are gone."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Run the jobs that have received too little of their share; stop the others."""
        offered = market(snapshot)
        able = [menu for menu in offered.menus if (menu.gpus <= offered.capacity[menu.kind]).any()]
        held = {menu.job.uid: holding(snapshot, menu.job) for menu in able if menu.job.placement}
        kept = {menu.job.uid: held[menu.job.uid] for menu in able if _starts(menu.job, snapshot.time)}
        wanted: dict[str, Candidate] = {}
        if able:
            asked = _requests(able, offered.capacity)
            shares = self.shares(_demand(snapshot, offered, able, asked, self.round_seconds))
            priority = np.round(shares, DIGITS) / self._received(offered, able, asked)
            wanted = self._admit(offered, able, asked, priority, kept)
            if self.fills_up:
                wanted = _held_on_to(offered, wanted, held)
        return _place(self.name, snapshot, {menu.job.uid: menu.job for menu in able}, wanted, kept)

    @abstractmethod
    def shares(self, demand: GavelDemand) -> FloatArray:
        """Part of the time that each job should spend on each GPU type, (jobs, types)."""

    def _received(self, offered: Market, able: list[OptionMenu], asked: _Requests) -> FloatArray:
        """Part of the time given out on each type that each job has received; half a round counts for a new one."""
        types = offered.types
        served = [[menu.job.served.get(name, 0.0) for name in types] for menu in able]
        seconds = np.array(served) / np.maximum(asked.gpus, 1) + self.round_seconds / 2
        now = {
            menu.job.uid: dict(zip(types, row, strict=True)) for menu, row in zip(able, seconds.tolist(), strict=True)
        }
        for uid in self._seconds.keys() - {menu.job.uid for menu in offered.menus}:
            for name, amount in self._seconds.pop(uid).items():
                self._gone[name] = self._gone.get(name, 0.0) + amount
        self._seconds |= now
        received: FloatArray = seconds / (seconds.sum(axis=0) + [self._gone.get(name, 0.0) for name in types])
        return received

    def _admit(
        self,
        offered: Market,
        able: list[OptionMenu],
        asked: _Requests,
        priority: FloatArray,
        kept: dict[str, Candidate],
    ) -> dict[str, Candidate]:
        """Fill what `kept` leaves of the cluster in order of priority; a job that does not fit is passed over."""
        remaining, wanted = left(offered, kept), dict(kept)
        for place in _by_priority(priority):
            job, kind = divmod(int(place), len(offered.types))
            option, gpus = int(asked.option[job, kind]), asked.gpus[job, kind]
            if option < 0 or gpus > remaining[kind] or able[job].job.uid in wanted:
                continue
            if priority[job, kind] > 0 or self.fills_up:
                wanted[able[job].job.uid] = able[job].options[option]
                remaining[kind] -= gpus
        return wanted


def _held_on_to(offered: Market, wanted: dict[str, Candidate], held: dict[str, Candidate]) -> dict[str, Candidate]:
    """What is wanted; and jobs that would be stopped for nobody go on with the GPUs that they have.

    Of jobs that ask for as many as they hold, as the paper's do, there are none. Here one may run on fewer than it asks
    for, because more were not free.
    """
    wanted = dict(wanted)
    for uid, candidate in held.items():
        if (
            uid not in wanted
            and candidate.option.gpus <= left(offered, wanted)[offered.types.index(candidate.gpu.name)]
        ):
            wanted[uid] = candidate
    return wanted


def _starts(job: Job, now: float) -> bool:
    """Whether a job has not yet computed since it was started.

    A restart may be over just now: then nothing tells it from the time that the job has held its GPUs.
    """
    return job.placement is not None and (job.resuming > 0 or _held(job, now) <= job.restart_seconds)


def _held(job: Job, now: float) -> float:
    """Seconds since the job was placed where it is; infinite if nobody knows."""
    return math.inf if job.started is None else now - job.started


class MaxSumThroughput(Gavel):
    """Most steps per second of all jobs together: what the artifact of Sia runs as Gavel."""

    name = "gavel"

    def shares(self, demand: GavelDemand) -> FloatArray:
        return largest_sum(demand)


class MaxMinFairness(Gavel):
    """Largest minimum of the jobs' throughputs, relative to an equal share of the cluster (section 4.1)."""

    name = "gavel_max_min"

    def shares(self, demand: GavelDemand) -> FloatArray:
        return largest_minimum(demand)


class MinJct(Gavel):
    """Least sum of the times in which the jobs would finish at their throughputs."""

    name = "gavel_min_jct"

    def shares(self, demand: GavelDemand) -> FloatArray:
        return fastest_finish(demand)


class FinishTimeFairness(Gavel):
    """Least maximum of the jobs' finish times, relative to those in an equal share of the cluster (section 4.2)."""

    name = "gavel_ftf"

    def shares(self, demand: GavelDemand) -> FloatArray:
        return least_unfair(demand)


class Fifo(Gavel):
    """First in, first out on the fastest type with enough GPUs (section 4.2); the first that has to wait stops all."""

    name = "gavel_fifo"
    fills_up = False

    def shares(self, demand: GavelDemand) -> FloatArray:
        shares, left = np.zeros_like(demand.rate), demand.capacity.copy()
        for job in np.lexsort((np.arange(len(demand.age)), -demand.age)):
            able = (demand.rate[job] > 0) & (demand.gpus[job] <= left)
            if not able.any():
                break
            kind = int(np.argmax(np.where(able, demand.rate[job], -1.0)))
            shares[job, kind] = 1.0
            left[kind] -= demand.gpus[job, kind]
        return shares


class _Requests(Struct, frozen=True):
    """What each job asks for on each type, (jobs, types)."""

    option: IntArray
    """Index into the job's menu, or -1 where it cannot run."""
    gpus: IntArray
    rate: FloatArray
    """Steps per second."""


def _requests(able: list[OptionMenu], capacity: IntArray) -> _Requests:
    shape = len(able), len(capacity)
    asked = _Requests(np.full(shape, -1), np.zeros(shape, dtype=np.int64), np.zeros(shape))
    for job, menu in enumerate(able):
        for kind in np.unique(menu.kind[menu.gpus <= capacity[menu.kind]]):
            option = tuned(menu, int(kind), int(capacity[kind]))
            asked.option[job, kind] = option
            asked.gpus[job, kind] = menu.gpus[option]
            asked.rate[job, kind] = menu.rate[option]
    return asked


def tuned(menu: OptionMenu, kind: int, most: int) -> int:
    """The option of this type with the most GPUs, up to `most`, that scales well enough."""
    options = np.flatnonzero((menu.kind == kind) & (menu.gpus <= most))
    each = menu.rate[options] / menu.gpus[options]
    smallest = each[np.argmin(menu.gpus[options])]
    good = options[each >= EFFICIENT * smallest]
    return int(good[np.argmax(menu.gpus[good])])


def _demand(
    snapshot: Snapshot, offered: Market, able: list[OptionMenu], asked: _Requests, round_seconds: float
) -> GavelDemand:
    jobs = [menu.job for menu in able]
    steps = np.array([job.training.steps for job in jobs], dtype=np.float64)
    created = np.array([job.created for job in jobs])
    return GavelDemand(
        rate=asked.rate,
        gpus=asked.gpus,
        capacity=np.maximum(offered.capacity, 1),  # of a type without any nobody asks for one
        steps=steps,
        remaining=np.maximum(1.0, steps - [job.steps_done for job in jobs]),
        age=snapshot.time - created,
        start=round_seconds - created % round_seconds + [job.restart_seconds for job in jobs],
    )


def _by_priority(priority: FloatArray) -> IntArray:
    """Places (job, type) as flat indices, the highest priority first; between equals by type, then as they came."""
    by_type = np.arange(priority.size).reshape(priority.shape).ravel(order="F")
    return by_type[np.argsort(-priority.ravel()[by_type], kind="stable")]


def _place(
    policy: str, snapshot: Snapshot, jobs: dict[str, Job], wanted: dict[str, Candidate], kept: Collection[str]
) -> Decision:
    """Nodes for all, the largest jobs first; of equal ones first those that can stay where they are (section 5)."""
    draft = Draft(policy, snapshot)

    def turn(uid: str) -> tuple[bool, int]:
        return uid not in kept, -wanted[uid].option.gpus

    for _, group in groupby(sorted(wanted, key=turn), turn):
        moving = []
        for uid in group:
            job, wish = jobs[uid], wanted[uid]
            if (
                job.placement
                and keeps(job.placement, wish)
                and draft.capacity.fits_on(job, wish.gpu.name, job.placement.shares)
            ):
                draft.take(job, wish, job.placement.shares)
            else:
                moving.append(uid)
        for uid in moving:
            if shares := _nodes(draft, jobs[uid], wanted[uid]):
                draft.take(jobs[uid], wanted[uid], shares)
    return draft.decision()


def _nodes(draft: Draft, job: Job, wish: Candidate) -> Shares | None:
    """The first free GPUs, node by node; of gangs that need equal parts on each node the tightest nodes."""
    if wish.may_be_uneven:
        shares, lacking = [], wish.option.gpus
        for node in draft.capacity.eligible(job, wish.gpu.name).tolist():
            if taken := min(lacking, int(draft.capacity.free[node])):
                shares.append(NodeShare(draft.capacity.names[node], taken))
                lacking -= taken
        if not lacking and len(shares) <= wish.spread and draft.capacity.fits_on(job, wish.gpu.name, tuple(shares)):
            return tuple(shares)
    return nodes_for(draft.capacity, job, wish, slow=True)
