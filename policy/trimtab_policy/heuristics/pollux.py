"""Pollux: GPUs by genetic search for the best mean speed-up, blind to GPU types.

Qiao et al., OSDI 2021, section 4.2, in the form in which the artifact of Sia (SOSP 2023) runs it on clusters of several
GPU types. Every node is shown as virtual nodes of as many GPUs as the smallest node has, and one table says how fast a
job is on so many GPUs of so many virtual nodes, whatever their type. The speed-up of a job is its speed over that on
a fair share of the GPUs; the search (`pollux_search`) maximises the power mean of the speed-ups, p = -1, less for jobs
that would be restarted. Of an allocation that spans GPU types only the type with the most GPUs is kept, the better one
of equals; the rest stays idle.

Jobs whose speeds tell GPU types apart run too: the table then has the mean over the types, and a job takes the best
option of its type within what was found for it. The search seldom finds large gangs, which need many GPUs at once; so
such jobs start from an allocation that serves them one after the other, and those for which nothing was found, or too
little of one type, get what is left.

The last population is where the next search starts. That is memory of a search, not of the cluster: without it Pollux
finds an allocation as good, but later.
"""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
from msgspec import Struct

from trimtab_policy.heuristics.pollux_search import SharedCluster, States, search
from trimtab_policy.perf.plans import Option
from trimtab_policy.placement.candidates import ANY_NODES, Candidate, nodes_for, weight, with_room
from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.placement.draft import Draft, Shares
from trimtab_policy.placement.options import OptionMenu, market
from trimtab_policy.placement.queueing import fastest_first
from trimtab_policy.policy import Kind
from trimtab_policy.solvers.knapsack import FloatArray, IntArray
from trimtab_policy.specs import ParallelPlan, Prediction
from trimtab_policy.types import Decision, Job, Node, NodeShare, Snapshot


class Pollux:
    """The policy. Its search is random but reproducible; another `tie_seed` is another search."""

    name = "pollux"
    kind = Kind.OPTIMISER
    source = "Qiao et al., OSDI 2021"

    def __init__(self, tie_seed: int | None = None, generations: int = 100) -> None:
        self.tie_seed, self.generations = tie_seed, generations
        self._population: list[dict[str, dict[_Place, int]]] = []
        """Allocations of the last search: job -> place -> GPUs."""
        self._last: dict[str, tuple[Shares, dict[_Place, int]]] = {}
        """What was decided for each job, on nodes and on virtual nodes."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Search, and give every job what the best allocation has for it of one GPU type."""
        draft = Draft(self.name, snapshot)
        places = _places(snapshot, draft)
        able = [menu for menu in market(snapshot).menus if _smallest(menu) <= sum(place.gpus for place in places)]
        menus = sorted(able, key=_least_served)
        if menus:
            best = self._search(snapshot, menus, places)
            self._last = {}
            unserved = [
                menu
                for menu, row in zip(menus, best, strict=True)
                if not self._settle(snapshot, draft, menu, _majority(snapshot, places, row))
            ]
            _hand_out(snapshot, draft, [menu.job for menu in unserved if not _blind(menu.job)])
        return draft.decision()

    def _search(self, snapshot: Snapshot, menus: list[OptionMenu], places: list[_Place]) -> States:
        gpus = np.array([place.gpus for place in places])
        speed = [_table(menu, len(places), int(gpus.sum())) for menu in menus]
        fair = -(-int(gpus.sum()) // len(menus))
        present = _states([{menu.job.uid: self._present(menu.job, places) for menu in menus}], menus, places)
        start = _states(self._population, menus, places) if self._population else present
        if not all(_blind(menu.job) for menu in menus):
            start = np.concatenate([start, _in_turn(menus, places)[None]])
        found = search(
            SharedCluster(
                gpus=gpus,
                least=np.array([int(_smallest(menu)) for menu in menus]),
                most=np.array([_most(menu) for menu in menus]),
                speedup=np.array([table / (table[1, fair] or table[1].max()) for table in speed]),
                factor=np.array([_restart_factor(menu.job, snapshot.time) for menu in menus]),
                present=present[0],
            ),
            start,
            np.random.default_rng([self.tie_seed or 0, int(snapshot.time)]),
            self.generations,
        )
        self._population = [_allocation(state, menus, places) for state in found.states]
        return found.best()

    def _present(self, job: Job, places: list[_Place]) -> dict[_Place, int]:
        """What the job holds, on virtual nodes: as decided, or else packed as tightly as can be."""
        if job.placement is None:
            return {}
        shares, known = self._last.get(job.uid, ((), {}))
        if shares == job.placement.shares:
            return known
        held: dict[_Place, int] = {}
        for share in job.placement.shares:
            lacking = share.gpus
            for place in places:
                if place.node == share.node and lacking:
                    held[place] = min(lacking, place.gpus)
                    lacking -= held[place]
        return held

    def _settle(self, snapshot: Snapshot, draft: Draft, menu: OptionMenu, chosen: dict[_Place, int]) -> bool:
        """Take the nodes that were found, or as many GPUs elsewhere if they have no room; whether there are any."""
        wish = _wish(snapshot, menu, chosen)
        if wish is None:
            return False
        shares: Shares | None = _on_nodes(chosen)
        if (
            not wish.may_be_uneven
            or sum(chosen.values()) != wish.option.gpus
            or not draft.capacity.fits_on(menu.job, wish.gpu.name, shares or ())
        ):
            shares = nodes_for(draft.capacity, menu.job, wish, slow=True)
        if shares:
            draft.take(menu.job, wish, shares)
            self._last[menu.job.uid] = shares, chosen
        return bool(shares)


class _Place(Struct, frozen=True):
    """A virtual node."""

    node: str
    gpu_type: str
    number: int
    gpus: int


def _blind(job: Job) -> bool:
    """Whether its speeds do not tell GPU types apart."""
    return any(row.gpu_type == ALL_TYPES for row in job.speeds or ())


def _least_served(menu: OptionMenu) -> tuple[float, float]:
    """Who comes first where limits cut: those that have received the least, then the oldest."""
    return sum(menu.job.served.values()), menu.job.created


def _hand_out(snapshot: Snapshot, draft: Draft, unserved: list[Job]) -> None:
    """Every job in turn takes the fastest option that there is room for."""
    for job in unserved:
        if not draft.capacity.free.any():
            return
        ordered = fastest_first(snapshot, draft.capacity, job)
        for wish, shares in islice(with_room(draft.capacity, job, ordered), 1):
            draft.take(job, wish, shares)


def _places(snapshot: Snapshot, draft: Draft) -> list[_Place]:
    """Virtual nodes with the GPUs that can be given out, in the order of the nodes."""
    size = min((node.gpus for node in snapshot.nodes), default=1)
    return [
        place
        for node in snapshot.nodes
        for place in _split(node, int(draft.capacity.free[draft.capacity.index[node.name]]), size)
    ]


def _split(node: Node, free: int, size: int) -> list[_Place]:
    begins = range(0, free, max(1, size))
    return [_Place(node.name, node.gpu_type, number, min(size, free - begin)) for number, begin in enumerate(begins)]


def _smallest(menu: OptionMenu) -> float:
    """GPUs that the job needs; infinite where it cannot run."""
    return 1 if _blind(menu.job) else min(menu.gpus.tolist(), default=math.inf)


def _most(menu: OptionMenu) -> int:
    """GPUs that the job may have."""
    return menu.job.requirements.gpus.high if _blind(menu.job) else int(menu.gpus.max())


def _table(menu: OptionMenu, nodes: int, gpus: int) -> FloatArray:
    """Steps per second by virtual nodes and GPUs in all, (nodes + 1, gpus + 1)."""
    table = np.zeros((nodes + 1, gpus + 1))
    if _blind(menu.job):
        for row in menu.job.speeds or ():
            if row.nodes <= nodes and row.gpus <= gpus:
                table[row.nodes, row.gpus] = row.steps_per_second
        return table
    for count in np.unique(menu.gpus[menu.gpus <= gpus]):
        table[1:, count:] = menu.rate[menu.gpus == count].mean()
    smallest = int(menu.gpus.min())  # more than a fair share, perhaps
    table[1:, :smallest] = table[1, smallest] * np.arange(smallest) / smallest
    return table


def _restart_factor(job: Job, now: float) -> float:
    """What remains of a speed-up when the job is restarted once more."""
    age, delay = now - job.created, job.restart_seconds
    return max(age - job.restarts * delay, 0.0) / (age + delay) if age + delay > 0 else 1.0


def _states(population: list[dict[str, dict[_Place, int]]], menus: list[OptionMenu], places: list[_Place]) -> States:
    """Allocations as arrays, (allocations, jobs, places); what is gone is left out."""
    column = {place: number for number, place in enumerate(places)}
    states = np.zeros((len(population), len(menus), len(places)), dtype=np.int16)
    for state, allocation in zip(states, population, strict=True):
        for row, menu in zip(state, menus, strict=True):
            for place, gpus in allocation.get(menu.job.uid, {}).items():
                if place in column:
                    row[column[place]] = gpus
    return states


def _in_turn(menus: list[OptionMenu], places: list[_Place]) -> States:
    """An allocation that gives the jobs one after the other as few GPUs as they need, of one type each, (jobs, places).

    On one place if it can be, otherwise on places that nobody uses yet: two gangs must not share one.
    """
    state = np.zeros((len(menus), len(places)), dtype=np.int16)
    whole = np.array([place.gpus for place in places])
    free = whole.copy()
    types = np.array([place.gpu_type for place in places])
    for row, menu in zip(state, menus, strict=True):
        least = int(_smallest(menu))
        for name in _types(menu, least) or dict.fromkeys(types.tolist()):
            roomy = np.flatnonzero((types == name) & (free >= least))[:1]
            among = roomy if len(roomy) else np.flatnonzero((types == name) & (free == whole))
            ends = np.minimum(free[among].cumsum(), least)
            if least in ends:
                row[among] = np.diff(ends, prepend=0)
                free -= row
                break
    return state


def _types(menu: OptionMenu, gpus: int) -> list[str]:
    """On which the job could use just so many GPUs; none for a job that does not tell them apart."""
    return [] if _blind(menu.job) else [each.gpu.name for each in menu.options if each.option.gpus == gpus]


def _allocation(state: States, menus: list[OptionMenu], places: list[_Place]) -> dict[str, dict[_Place, int]]:
    return {menu.job.uid: _taken(row, places) for menu, row in zip(menus, state, strict=True)}


def _taken(row: IntArray | States, places: list[_Place]) -> dict[_Place, int]:
    return {places[number]: int(row[number]) for number in np.flatnonzero(row)}


def _majority(snapshot: Snapshot, places: list[_Place], row: States) -> dict[_Place, int]:
    """The part of an allocation on the GPU type of which it has the most."""
    taken = _taken(row, places)
    count: dict[str, int] = {}
    for place, gpus in taken.items():
        count[place.gpu_type] = count.get(place.gpu_type, 0) + gpus
    if not count:
        return {}
    kept = max(count, key=lambda name: (count[name], weight(snapshot.gpu_types[name])))
    return {place: gpus for place, gpus in taken.items() if place.gpu_type == kept}


def _on_nodes(chosen: dict[_Place, int]) -> Shares:
    """GPUs by real node, in the order of the nodes."""
    gpus: dict[str, int] = {}
    for place, count in chosen.items():
        gpus[place.node] = gpus.get(place.node, 0) + count
    return tuple(NodeShare(node, count) for node, count in gpus.items())


def _wish(snapshot: Snapshot, menu: OptionMenu, chosen: dict[_Place, int]) -> Candidate | None:
    """The job's option on these GPUs: with all of them, or else the fastest with fewer."""
    if not chosen:
        return None
    gpu_type, gpus = next(iter(chosen)).gpu_type, sum(chosen.values())
    if _blind(menu.job):
        return _blindly(snapshot, menu.job, gpu_type, gpus, len(chosen), len(_on_nodes(chosen)))
    able = [each for each in menu.options if each.gpu.name == gpu_type and each.option.gpus <= gpus]
    return max(able, key=lambda each: each.tokens_per_second, default=None)


def _blindly(snapshot: Snapshot, job: Job, gpu_type: str, gpus: int, virtual: int, nodes: int) -> Candidate:
    """An option by speeds that hold for any type."""
    rate = next(row.steps_per_second for row in job.speeds or () if (row.gpus, row.nodes) == (gpus, virtual))
    seconds, gpu = 1 / rate if rate > 0 else float("inf"), snapshot.gpu_types[gpu_type]
    tokens = rate * job.training.tokens_per_step
    prediction = Prediction(seconds, tokens, gpu.memory_bytes, seconds * job.training.steps)
    option = Option(gpus, nodes, -(-gpus // nodes), ParallelPlan(data=gpus), prediction)
    return Candidate(gpu, option, tokens, gpus * weight(gpu), ANY_NODES)
