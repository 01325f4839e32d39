"""Rudder: every (job, option) is scored, and the GPUs are given to whatever is worth most together.

An option is a GPU type, a number of GPUs and the fastest plan for them; to stay, to change and to wait are options, too
(`placement.options`). What an option is worth to the cluster is, before learning,

    w · ((x^q − 1) / q + κ)      x = effective speed of the option ÷ speed of the job's thriftiest option

with w = (seconds that are left at best)^−b: the sooner a job can be done, the more its GPUs are worth, as in "weighted
shortest processing time first" (Smith, "Various optimizers for single-stage production", 1956). The effective speed is
the mean over the next H seconds or until the job is done, the pause of a start or a change included; for a job that
cannot be moved later, over all its time. (x^q − 1)/q, a Box-Cox transform, makes a second GPU worth less than the
first; κ is what it is worth to run at all. The constants follow the load of the cluster. Urgency by priority, and by
what a queue is guaranteed, multiplies w.

On top of that a small network changes each worth by a factor between e^-2 and e^2. It sees the option, its job and the
cluster as a whole (means over all jobs, so that neither their number nor their order matters), and is trained, with the
constants, by evolution strategies through the simulator and this very solver (`trimtab_lab.agents.rudder`). With a
network of zeros the analytic form decides.

Then prices decide (`solvers.prices`): the assignment is proven to be within `largest_gap` of the best. A job that waits
can do so on purpose: where its owner does not allow it to move later, it is weighed against its options now what it
would gain by GPUs that come free soon.

What it does not do whatever it has learned, `guards` says. A job that is unlike all that the network was trained on is
scored by the analytic form alone, and one for which a figure is not finite by that with the constants from before any
training; the decision tells which (`Decision.doubts`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from trimtab_policy.learned import attribution, guards, store
from trimtab_policy.learned.guards import LONGEST_WAIT
from trimtab_policy.learned.worth import (
    AGE,
    BEST,
    CHANGES,
    COST,
    FEATURES,
    GPUS,
    LEFT,
    LOAD,
    MEAN_WORK,
    PATIENCE,
    PAUSE,
    PRICE,
    RANGES,
    RATE,
    RESTARTS,
    SHAPES,
    SPAN,
    SPREAD_OF_WORK,
    STAYS,
    THRIFTY,
    URGENCY,
    WORK,
    WORK_SCALE,
    Network,
    Trained,
    analytic,
    analytic_worth,
    at_least_something,
    best_later,
    change,
    features,
    learned,
    on_purpose,
    pressure,
    values,
)
from trimtab_policy.perf.restarts import SCHEDULE_SECONDS, STARTUP_SECONDS, restart_seconds
from trimtab_policy.placement.assign import fulfil, realise
from trimtab_policy.placement.candidates import Candidate, placement, weight
from trimtab_policy.placement.capacity import ALL_TYPES, Capacity
from trimtab_policy.placement.options import Market, OptionMenu, market
from trimtab_policy.placement.releases import told_releases
from trimtab_policy.placement.wording import TimedText, add, worded
from trimtab_policy.placement.wording import waits as pending_because
from trimtab_policy.policy import Kind
from trimtab_policy.solvers.prices import Bids, Deal, deal
from trimtab_policy.types import (
    Alternative,
    Awaited,
    Decision,
    Doubt,
    DoubtReason,
    Job,
    Pending,
    PendingReason,
    Placement,
    Snapshot,
    Wording,
)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

SCHEMA = "options/2"
"""What the weights take as input: the columns below, and the features of `values`; since 2 with their ranges."""
PER_PRIORITY = 8.0
"""Factor of the worth for each level of priority that some job of the snapshot has."""
MOST_LEVELS = 4
ENTITLED = 2.0
"""Factor of the worth for jobs whose queue holds less than it is guaranteed."""
ATTEMPTS = 4
"""Assignments that are tried until all of one find nodes ..."""
MATTERS = 0.005
"""... or those that do not are worth less than this part of all: of a thousand jobs always some find none."""
MAX_ALTERNATIVES = 5
MOST_NAMED = 2
"""Jobs that are next."""


class Rudder:
    """The policy."""

    name = "rudder"
    kind = Kind.LEARNED
    source = "Trimtab"
    rescales = True
    schema = SCHEMA

    def __init__(self, weights: str | Path | Trained | Network = "rudder") -> None:
        """`weights`: a file, or the name of shipped ones (`store.load`), read at the first decision; or what such a
        file holds; or a network that is asked about everything."""
        self._source = weights
        self.largest_gap = 0.0
        """Largest proven relative distance from the best assignment so far."""

    @cached_property
    def _trained(self) -> Trained:
        if isinstance(self._source, Trained):
            return self._source
        if isinstance(self._source, Network):
            return Trained(self._source, guards.unbounded(FEATURES))
        return trained(store.load(self._source, SCHEMA, (*SHAPES, RANGES)).arrays)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Give every job the option of the best assignment; jobs without one wait, or are stopped if they may be.

        Raises ValueError for a job whose figures come to no finite worth.
        """
        snapshot = guards.rested(snapshot)
        capacity = Capacity(snapshot)
        offered = market(snapshot, capacity)
        stuck = {menu.job.uid for menu in offered.menus if menu.job.placement and menu.current < 0}
        if stuck := stuck | guards.above_limits(snapshot):  # these could not have back what they hold
            snapshot = guards.left_alone(snapshot, stuck)
            capacity = Capacity(snapshot)
            offered = market(snapshot, capacity)
        menus = [menu for menu in offered.menus if menu.options]
        if not menus:
            return realise(self.name, snapshot, {}, capacity=capacity)
        case = _Scored(snapshot, capacity, offered, menus, self._trained)
        self.largest_gap = max(self.largest_gap, case.deal.gap)
        return case.decision(self.name)

    def weigh(self, snapshot: Snapshot, job: str, gpu_type: str, gpus: int) -> str | None:
        """As of `policy.Weighs`."""
        snapshot = guards.rested(snapshot)
        capacity = Capacity(snapshot)
        offered = market(snapshot, capacity)
        menus = [menu for menu in offered.menus if menu.options]
        if not any(menu.job.uid == job for menu in menus):
            return None
        return _Scored(snapshot, capacity, offered, menus, self._trained).weighed(job, gpu_type, gpus)


def trained(arrays: Mapping[str, NDArray[Any]]) -> Trained:
    """From the arrays of a file. Raises WeightsError for other shapes."""
    for name, shape in {**SHAPES, RANGES: (2, FEATURES)}.items():
        if arrays[name].shape != shape:
            raise store.WeightsError(f"{name}: shape {arrays[name].shape}, expected {shape}; these are other weights")
    network = Network(*(np.array(arrays[name], dtype=np.float64) for name in SHAPES))
    return Trained(network, np.array(arrays[RANGES], dtype=np.float64))


class _Columns(NamedTuple):
    jobs: FloatArray
    options: FloatArray
    owner: IntArray


class _Judged(NamedTuple):
    worth: FloatArray
    """(options,)"""
    doubts: dict[int, tuple[DoubtReason, str]]
    """Number of a job about which the network is not believed -> why."""
    seen: FloatArray | None
    """What the network has seen of each option, (17, options); None where there is none."""


class _Scored:
    """One decision: what everything is worth, and who gets what."""

    def __init__(
        self, snapshot: Snapshot, capacity: Capacity, offered: Market, menus: Sequence[OptionMenu], trained: Trained
    ) -> None:
        self.snapshot, self.menus = snapshot, menus
        self._capacity, self._trained = capacity, trained
        self._columns = columns(snapshot, offered, menus)
        self._first = np.cumsum([0, *(len(menu.options) for menu in menus)])
        self._numbers = {menu.job.uid: number for number, menu in enumerate(menus)}
        judged = _judged(trained, self._columns, self._first, menus)
        self._worth = at_least_something(self._first, judged.worth)
        self._doubts, self._seen = judged.doubts, judged.seen
        self._unruled = self._worth.copy()
        """The same whatever found no nodes in one of the attempts: it may in what is left."""
        self._pools = _Pools(snapshot, offered, menus)
        self._waited = self._waited_so_far()
        best = np.maximum.reduceat(self._worth, self._first[:-1])
        self._lift = guards.lift(menus, self._waited, best, self._pools.possible())
        self._unbeaten = float(np.maximum(best, 0.0).sum() + self._lift.sum()) + 1.0
        """More than all others are worth together."""
        self._waits_of = self._waits_for()
        self._later, self._later_choice = self._worth_later()
        self._good = guards.good_enough(*self._columns, self._waited)
        self._left_over: dict[int, int] = {}
        """Number of a job that gets what nobody else has -> its option."""
        self._following: dict[str, list[tuple[float, int]]] | None = None
        """GPU type -> what those that get nothing would gain by one of its GPUs, and their numbers."""
        self.deal = self._solve()

    def decision(self, name: str) -> Decision:
        """Nodes for all of it; what finds none is ruled out, and the rest is decided anew."""
        for attempt in range(ATTEMPTS):
            found = fulfil(self.snapshot, self._wanted(), capacity=self._capacity.copy())
            placed = {job.uid for job in found.changed()}
            stopped = {job.uid for job in found.stopped()}
            failed = [
                number
                for number, menu in enumerate(self.menus)
                if self.deal.chosen[number] >= 0
                and menu.job.uid not in placed
                and (menu.job.placement is None or menu.job.uid in stopped)
            ]
            urgent = self._stopped_for_less(placed)
            if attempt == ATTEMPTS - 1 or not (urgent or self._matters(failed)):
                break
            for number in failed:
                self._worth[self._first[number] + self.deal.chosen[number]] = -np.inf
            for number in urgent:
                self._pin(number)
            self.deal, self._following = self._solve(), None
        decision = found.decision(name, self._waits, self._describe)
        decision = replace(decision, pending=tuple(self._with_awaited(each) for each in decision.pending))
        return replace(self._doubted(self._filled(decision)), line=self._line())

    def _matters(self, failed: Sequence[int]) -> bool:
        """Whether jobs that found no nodes are worth deciding all anew. Else they take what is left (`_filled`): not
        those that run, which would be stopped for it, nor those that have waited for long."""
        if any(self._lift[number] > 0 or self.menus[number].job.placement for number in failed):
            return True
        lost = sum(float(self._worth[self._first[number] + self.deal.chosen[number]]) for number in failed)
        return lost > MATTERS * self.deal.value

    def _line(self) -> tuple[str, ...]:
        """Waiting jobs that GPUs are kept for: those that have waited for too long, for nobody may be stopped for them
        that cannot be moved; behind them those that cannot be moved later, who makes most of what it takes first. The
        others begin with whatever is left."""
        best = np.maximum.reduceat(self._unruled / self._columns.options[:, PRICE], self._first[:-1])
        waiting = [number for number, menu in enumerate(self.menus) if menu.job.placement is None]
        late = guards.overdue(self.menus, self._waited, waiting)
        fixed = sorted((n for n in waiting if self._columns.jobs[n, SPAN]), key=lambda n: -best[n])
        return tuple(self.menus[number].job.uid for number in dict.fromkeys((*late, *fixed)))

    def weighed(self, job: str, gpu_type: str, gpus: int) -> str | None:
        """What an option is worth to a job beside what it gets, and what its GPUs are worth to others, in words."""
        number = self._numbers[job]
        menu, first = self.menus[number], int(self._first[number])
        same = [k for k, each in enumerate(menu.options) if (each.gpu.name, each.option.gpus) == (gpu_type, gpus)]
        if not same:
            return None
        worth = self._unruled[first : first + len(menu.options)]
        k, chosen = max(same, key=lambda each: float(worth[each])), int(self.deal.chosen[number])
        price = self._pools.cost(self.deal.prices, number, menu)
        if worth[k] <= 0:
            return "worth nothing to it: so slow that it had rather wait"
        if chosen == k:
            return "worth most to it, all things considered"
        if chosen >= 0 and worth[chosen] > 0:
            mine = float(worth[chosen])
            return _why_not(float(worth[k]) / mine, float(price[k] - price[chosen]) / mine)
        if self._later[number] > worth[k]:
            return f"worth {worth[k] / self._later[number]:.2f} as much as what comes free soon, which it waits for"
        return f"others would pay {float(price[k] / worth[k]):.0%} of what these are worth to it"

    def _filled(self, decision: Decision) -> Decision:
        """The same without GPUs that are idle beside somebody who could use them."""
        more: list[Placement] = []
        idle = guards.idle(self.snapshot, self._capacity, decision, self.menus, self._liked)
        for number, k, wish, shares, free in idle:
            self._left_over[number], job = k, self.menus[number].job
            more.append(placement(free, job, wish, shares, *self._describe(job, wish)))
        filled = {each.job for each in more}
        pending = tuple(each for each in decision.pending if each.job not in filled)
        return replace(decision, placements=(*decision.placements, *more), pending=pending) if more else decision

    def _liked(self, number: int) -> list[int]:
        """Options of a job by what they are worth, the best first; only those that it would rather have than wait."""
        first, last = int(self._first[number]), int(self._first[number + 1])
        mine = self._unruled[first:last]
        taken = (mine > self._later[number]) | (self._good[first:last] & (self._waited[number] >= LONGEST_WAIT))
        return [k for k in np.argsort(-mine, kind="stable").tolist() if taken[k]]

    def _doubted(self, decision: Decision) -> Decision:
        """The same with what is to be told of jobs about which the network was not believed."""
        if not self._doubts:
            return decision
        said = {self.menus[number].job.uid: doubt for number, doubt in self._doubts.items()}
        groups: dict[tuple[DoubtReason, str], list[str]] = {}
        for uid, doubt in said.items():
            groups.setdefault(doubt, []).append(uid)
        return replace(
            decision,
            placements=tuple(
                replace(each, reason=f"{each.reason}; {said[each.job][1]}") if each.job in said else each
                for each in decision.placements
            ),
            pending=tuple(
                add(each, TimedText(said[each.job][1], Wording(said[each.job][1]))) if each.job in said else each
                for each in decision.pending
            ),
            doubts=tuple(Doubt(reason, words, tuple(uids)) for (reason, words), uids in groups.items()),
        )

    def _solve(self) -> Deal:
        owner = self._columns.owner
        lift = np.where(self._good, self._lift[owner], 0.0)
        return deal(self._pools.bids(self._worth + lift - self._later[owner]))

    def _wanted(self) -> dict[str, Candidate]:
        pairs = zip(self.menus, self.deal.chosen.tolist(), strict=True)
        return {menu.job.uid: menu.options[choice] for menu, choice in pairs if choice >= 0}

    def _waited_so_far(self) -> FloatArray:
        """Seconds that each job has waited in all, (jobs,), as `guards.waited` has it."""
        return np.array([guards.waited(self.snapshot, menu.job) for menu in self.menus])

    def _stopped_for_less(self, placed: set[str]) -> list[int]:
        """Running jobs that would be stopped though nobody gets GPUs, or while a less urgent one does: nobody may do
        that; nor may an equally urgent one be the reason while it is their turn."""
        starting = [menu.job.priority for menu in self.menus if menu.job.uid in placed]
        return [
            number
            for number, menu in enumerate(self.menus)
            if menu.job.placement and self.deal.chosen[number] < 0 and menu.current >= 0
            if not starting
            or menu.job.priority > min(starting)
            or (menu.job.priority == min(starting) and guards.has_turn(self.snapshot, menu))
        ]

    def _pin(self, number: int) -> None:
        """Let a running job keep what it has."""
        first, menu = int(self._first[number]), self.menus[number]
        mine = self._worth[first : first + len(menu.options)]
        mine[:] = -np.inf
        mine[menu.current] = self._unbeaten

    def _waits_for(self) -> FloatArray:
        """Seconds until there are GPUs for each option, as `values_later` takes them, (options,)."""
        waits = np.zeros(len(self._worth))
        capacity = self._capacity
        releases = told_releases(self.snapshot)
        for number in np.flatnonzero(self._columns.jobs[:, SPAN]).tolist():
            menu, first = self.menus[number], int(self._first[number])
            if menu.job.placement:
                continue
            free = {name: capacity.gpus(menu.job, name) for name in {option.gpu.name for option in menu.options}}
            for k, option in enumerate(menu.options):
                name, gpus = option.gpu.name, option.option.gpus
                if gpus > free[name]:
                    found = releases.enough(name, gpus, free[name], self.snapshot.time)
                    seconds = (found[0] - self.snapshot.time) * self.snapshot.speedup if found else math.inf
                    waits[first + k] = max(1.0, seconds)
        return waits

    def _worth_later(self) -> tuple[FloatArray, IntArray]:
        jobs, options, owner = self._columns
        asked = on_purpose(jobs, options, owner, self._waits_of, self._waited)
        if not asked.any():
            return np.zeros(len(jobs)), np.full(len(jobs), -1)
        then = options.copy()
        then[asked, PAUSE] += self._waits_of[asked]
        worth = _judged(self._trained, _Columns(jobs, then, owner), self._first, self.menus).worth
        return best_later(float(self._trained.network.constants[PATIENCE]), len(jobs), owner, asked, worth)

    def _describe(self, job: Job, wish: Candidate) -> tuple[str, tuple[Alternative, ...]]:
        """Why a job gets this, in words, and the best options of other sizes and types that lost."""
        number = self._numbers[job.uid]
        menu, first = self.menus[number], int(self._first[number])
        worth = self._worth[first : first + len(menu.options)]
        chosen = self._left_over.get(number, int(self.deal.chosen[number]))
        mine, option = max(float(worth[chosen]), 1e-9), wish.option
        price = self._pools.cost(self.deal.prices, number, menu)
        alternatives: list[Alternative] = []
        for k in np.argsort(-worth, kind="stable").tolist():
            if k == chosen or worth[k] <= 0 or len(alternatives) == MAX_ALTERNATIVES:
                continue
            other = menu.options[k]
            beside, dearer = float(worth[k]) / mine, float(price[k] - price[chosen]) / mine
            alternatives.append(
                Alternative(
                    other.gpu.name,
                    other.option.gpus,
                    other.option.plan,
                    other.option.prediction,
                    _why_not(beside, dearer),
                    worth=beside,
                    price=float(price[k]) / mine,
                )
            )
        seconds = max(0, job.training.steps - job.steps_done) * option.prediction.step_seconds
        text = f"{wish.describe()}, {option.plan.describe()}: {_duration(seconds)} to go"
        cost = float(price[chosen]) / mine
        text += f"; others would pay {cost:.0%} of what that is worth to this job" if cost >= 0.005 else ""
        if following := self._next_for(wish.gpu.name):
            text += f"; next for these GPUs: {', '.join(following)}"
        if self._lift[number] > 0:
            text += f"; it has waited for {_duration(float(self._waited[number]))} and comes before others"
        if job.placement:
            text += f"; instead of {job.placement.gpus}×{job.placement.gpu_type}"
            if 0 <= menu.current != chosen:
                text += f", worth {max(0.0, float(self._unruled[first + menu.current])) / mine:.2f} as much"
        if said := self._learned(number, first + chosen):
            text += f"; {said}"
        return text, tuple(alternatives)

    def _next_for(self, gpu_type: str) -> list[str]:
        """Jobs that get nothing and would rather have GPUs of this type than others, those first that make most of
        each: whom it costs something that another one has them."""
        if self._following is None:
            self._following = {}
            chosen, gpus = self.deal.chosen, self._columns.options[:, GPUS]
            for number in np.flatnonzero(chosen < 0).tolist():
                menu, first, last = self.menus[number], int(self._first[number]), int(self._first[number + 1])
                best = first + int(np.argmax(self._unruled[first:last]))
                gain = float(self._unruled[best] - self._later[number])
                if menu.job.placement is None and number not in self._left_over and gain > 0:
                    name = menu.options[best - first].gpu.name
                    self._following.setdefault(name, []).append((gain / float(gpus[best]), number))
        most = heapq.nlargest(MOST_NAMED, self._following.get(gpu_type, ()))
        jobs = [self.menus[number].job for _, number in most]
        return [f"{job.namespace}/{job.name}" for job in jobs]

    def _learned(self, number: int, at: int) -> str:
        """What the network has made of an option of a job, in words; empty for nothing."""
        if self._seen is None or number in self._doubts:
            return ""
        trained = self._trained
        found = attribution.contributions(trained.network, self._seen[:, at], attribution.usual(trained.ranges))
        return attribution.by_network(*found)

    def _waits(self, job: Job) -> Pending | None:
        """Why a job waits on purpose; None for one that could have nothing sooner than what it waits for."""
        number, choice, option = self._awaited_by(job.uid)
        if option is None or not (self._waits_of_job(number) < self._waits_of[choice]).any():
            return None
        when = self.snapshot.time + float(self._waits_of[choice]) / self.snapshot.speedup
        text = worded(
            self.snapshot.time,
            f"it may not move later, and {option.describe()}, expected to be free at ",
            when,
            f", is worth more to it than {self._could_have(number)}",
        )
        return pending_because(job.uid, PendingReason.WAITING_FOR_BETTER, text)

    def _with_awaited(self, pending: Pending) -> Pending:
        """With what the job waits for, where there is something in particular."""
        *_, option = self._awaited_by(pending.job)
        if option is None or pending.reason not in (PendingReason.WAITING_FOR_BETTER, PendingReason.INSUFFICIENT_GPUS):
            return pending
        awaited = Awaited(option.gpu.name, option.option.gpus, option.option.prediction.step_seconds)
        return replace(pending, awaited=awaited)

    def _awaited_by(self, uid: str) -> tuple[int, int, Candidate | None]:
        """Numbers of a job and of the option that it waits for, and this option; None where it waits for nothing in
        particular."""
        number = self._numbers.get(uid, -1)
        choice = int(self._later_choice[number]) if number >= 0 else -1
        return number, choice, self.menus[number].options[choice - int(self._first[number])] if choice >= 0 else None

    def _could_have(self, number: int) -> str:
        now = self._waits_of_job(number) <= 0.0
        return "what it could have now" if now.any() else "what comes free before that"

    def _waits_of_job(self, number: int) -> FloatArray:
        """Seconds until there are GPUs for each option of a job."""
        return self._waits_of[self._first[number] : self._first[number + 1]]


def _judged(trained: Trained, given: _Columns, first: IntArray, menus: Sequence[OptionMenu]) -> _Judged:
    """As `values`, but nothing is believed of the network about jobs that are unlike all that it was trained on, or
    where it is not finite. `first`: the first option of each job.

    Raises ValueError for a job whose worth is not finite before any training either.
    """
    network, (jobs, options, owner) = trained.network, given
    doubts: dict[int, tuple[DoubtReason, str]] = {}
    seen: FloatArray | None = None
    with np.errstate(all="ignore"):
        load, log_w = pressure(network, jobs)
        load = float(np.clip(load, *guards.bounds(trained.ranges)[:, LOAD]))  # thousands change no more than a crowd
        worth = analytic_worth(network, load, log_w, jobs, options, owner)
        if learned(network):
            seen = _plausible(features(load, log_w, jobs, options, owner), trained.ranges, first)
            strange = guards.of_each(guards.outside(seen, trained.ranges), first)
            unknown = np.atleast_1d(strange.any(axis=0))
            for number in np.flatnonzero(unknown).tolist():
                doubts[number] = attribution.unlike(strange[:, number])
            worth = worth * np.where(unknown[owner], 1.0, change(network, seen))
        unsound: BoolArray = guards.of_each(~np.isfinite(worth[None]), first)[0]
        if unsound.any():
            worth = np.where(unsound[owner], values(analytic(), jobs, options, owner), worth)
    for number in np.flatnonzero(unsound).tolist():
        mine = worth[first[number] : first[number + 1]]
        if not np.isfinite(mine).all():
            job = menus[number].job
            raise ValueError(f"{job.namespace}/{job.name}: what its options are worth is no finite number")
        doubts[number] = DoubtReason.NOT_FINITE, "what was learned comes to no finite number: scored without it"
    return _Judged(worth, doubts, seen)


def _plausible(z: FloatArray, ranges: FloatArray, first: IntArray) -> FloatArray:
    """The features, where no job counts in the mean and spread of all with more or less work than any of the training:
    else one job of centuries makes everybody's case strange, and the network is silent for the whole cluster."""
    work = np.clip(z[WORK, first[:-1]], *guards.bounds(ranges)[:, WORK])
    found = z.copy()
    found[MEAN_WORK], found[SPREAD_OF_WORK] = work.mean(), (WORK_SCALE * work).std() - 1.0
    return found


class _Pools:
    """What is limited: the GPUs of each type, and what a queue may have."""

    def __init__(self, snapshot: Snapshot, offered: Market, menus: Sequence[OptionMenu]) -> None:
        self._types, self._menus = offered.types, menus
        limits = {(quota.queue, quota.gpu_type): float(quota.gpus) for quota in snapshot.quotas}
        decided = {menu.job.uid for menu in menus}
        for job in snapshot.jobs:
            if job.placement and job.uid not in decided:
                for key in ((job.queue, job.placement.gpu_type), (job.queue, ALL_TYPES)):
                    if key in limits:
                        limits[key] = max(0.0, limits[key] - job.placement.gpus)
        self._row = {key: len(offered.types) + number for number, key in enumerate(limits)}
        self._capacity = np.concatenate([offered.capacity.astype(np.float64), list(limits.values())])
        most = max(len(menu.options) for menu in menus)
        self._real = np.arange(most) < np.array([len(menu.options) for menu in menus])[:, None]
        self._gpus = np.ones(self._real.shape)
        self._gpus[self._real] = np.concatenate([menu.gpus for menu in menus])
        self._pools = np.full((*self._real.shape, 3 if limits else 1), len(self._capacity), dtype=np.int64)
        self._pools[self._real, 0] = np.concatenate([menu.kind for menu in menus])
        if limits:
            for number, menu in enumerate(menus):
                for k, kind in enumerate(menu.kind.tolist()):
                    for place, key in enumerate((self._types[kind], ALL_TYPES), start=1):
                        self._pools[number, k, place] = self._row.get((menu.job.queue, key), len(self._capacity))

    def possible(self) -> BoolArray:
        """Whether each job could have any of its options if nobody else wanted anything, (jobs,)."""
        fits = self._gpus[..., None] <= np.append(self._capacity, np.inf)[self._pools]
        found: BoolArray = np.logical_or.reduce(self._real & fits.all(axis=2), axis=1)
        return found

    def bids(self, worth: FloatArray) -> Bids:
        """The problem with these values, (options,)."""
        value = np.zeros(self._real.shape)
        value[self._real] = worth
        return Bids(self._capacity, value, self._gpus, self._pools)

    def cost(self, prices: FloatArray, number: int, menu: OptionMenu) -> FloatArray:
        """What the options of a job cost at these prices, (options,)."""
        of_pool = np.append(prices, 0.0)[self._pools[number, : len(menu.options)]].sum(axis=1)
        found: FloatArray = of_pool * menu.gpus
        return found


def columns(snapshot: Snapshot, offered: Market, menus: Sequence[OptionMenu]) -> _Columns:
    """What `values` takes, of jobs that have options."""
    worth = np.array([weight(_spec(snapshot, menus, name)) for name in offered.types])
    everything = float((worth * offered.total).sum()) or 1.0
    sizes = [len(menu.options) for menu in menus]
    owner = np.repeat(np.arange(len(menus)), sizes)
    first = np.cumsum([0, *sizes])[:-1]
    options = np.zeros((len(owner), 6))
    options[:, RATE] = np.concatenate([menu.rate for menu in menus])
    options[:, GPUS] = np.concatenate([menu.gpus for menu in menus])
    options[:, PRICE] = options[:, GPUS] * worth[np.concatenate([menu.kind for menu in menus])] / everything
    options[:, PAUSE] = np.concatenate([_pauses(snapshot, menu) for menu in menus])
    held = [menu.job.placement is not None for menu in menus]
    for at, menu in zip(first.tolist(), menus, strict=True):
        if menu.current >= 0:
            options[at + menu.current, STAYS] = 1.0
    options[:, CHANGES] = np.repeat(held, sizes) * (1.0 - options[:, STAYS])
    unit = options[:, PRICE] / options[:, RATE]
    thriftiest = np.array([at + int(np.argmin(unit[at : at + n])) for at, n in zip(first, sizes, strict=True)])
    jobs = np.zeros((len(menus), 8))
    jobs[:, LEFT] = [guards.steps_left(menu) for menu in menus]
    jobs[:, BEST] = np.maximum.reduceat(options[:, RATE], first)
    jobs[:, THRIFTY], jobs[:, COST] = options[thriftiest, RATE], unit[thriftiest]
    jobs[:, AGE] = [max(0.0, (snapshot.time - menu.job.created) * snapshot.speedup) for menu in menus]
    jobs[:, RESTARTS] = [menu.job.restarts for menu in menus]
    jobs[:, URGENCY] = _urgency([menu.job for menu in menus])
    movable = np.array([menu.job.elastic or menu.job.preemptible for menu in menus])
    jobs[:, SPAN] = np.where(movable, 0.0, 1e12)
    return _Columns(jobs, options, owner)


def _spec(snapshot: Snapshot, menus: Iterable[OptionMenu], name: str) -> Any:
    if name in snapshot.gpu_types:
        return snapshot.gpu_types[name]
    return next(option.gpu for menu in menus for option in menu.options if option.gpu.name == name)


def _pauses(snapshot: Snapshot, menu: OptionMenu) -> FloatArray:
    """Seconds until the job computes on each of its options, (options,)."""
    job = menu.job
    if job.speeds is not None:
        fresh = job.placement is None and job.restarts == 0 and job.steps_done == 0
        pause = np.full(len(menu.options), 0.0 if fresh else job.restart_seconds)
    elif job.placement is None and job.steps_done == 0:
        pause = np.full(len(menu.options), SCHEDULE_SECONDS + STARTUP_SECONDS)
    else:
        usual = restart_seconds(job.model, job.training, 1)
        slower = max(1.0, job.restart_seconds / usual)  # than the slowest that is expected, as it was measured
        each = {option.option.nodes for option in menu.options}
        known = {nodes: slower * restart_seconds(job.model, job.training, nodes) for nodes in each}
        pause = np.array([known[option.option.nodes] for option in menu.options])
    if job.placement:
        pause = pause + job.lost_seconds * snapshot.speedup
        if menu.current >= 0:
            pause[menu.current] = job.resuming
    return pause


def _urgency(jobs: Sequence[Job]) -> FloatArray:
    """Factor of the worth of each job, (jobs,): by its level of priority, from the lowest up, and by guarantees."""
    levels = {priority: level for level, priority in enumerate(sorted({job.priority for job in jobs}))}
    return np.array(
        [PER_PRIORITY ** min(levels[job.priority], MOST_LEVELS) * (ENTITLED if job.entitled else 1.0) for job in jobs]
    )


def _why_not(worth: float, cost: float) -> str:
    """Why an option lost that is worth so much of the winner, and costs so much more, as a part of that worth."""
    if worth <= 1:
        return f"worth {worth:.2f} as much to this job"
    if cost > 0:
        return f"worth {worth:.2f} as much to this job, but its GPUs are worth more to others by {cost:.0%} of that"
    return f"worth {worth:.2f} as much to this job, but its GPUs are taken by others who gain more"


def _duration(seconds: float) -> str:
    if seconds < 5400:
        return f"{max(1, round(seconds / 60))} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
