"""What rudder does not do whatever it has learned: bounds of waiting, moving and idling, and of what it believes.

- *Waiting*: once a job has waited for `LONGEST_WAIT`, or for as long as all of it takes alone on the best GPUs for it,
  if that is more, it comes before all that are not more urgent, those first who have waited longest, namespaces in
  turns; and it is not stopped for them before it has run for `TURN`. Six hours are much to a job of one hour and little
  to one of two days: with the same bound for both, the long ones stopped the others again and again, and nobody was
  done sooner, the slowest of all included. It waits on purpose, for GPUs that come free or because what there is now is
  worth nothing to it, for `LONGEST_WAIT` at most; or, if it cannot be moved later, until it has waited for as long as
  it would take on what there is: so it has ended in twice that time at the latest, and does not spend days on the worst
  GPUs because it has waited for hours (as whoever rents skis buys them once the rent has come to their price: Karlin et
  al., "Competitive snoopy caching", 1988).
- *Moving*: a job is moved, resized or stopped `FREE_CHANGES` times as the worth has it, which knows the pause of a
  change. From then on its gang is left alone for `LEAST_RUN` seconds after each start; and for `LONG_RUN` seconds if it
  has been restarted more often than once in so long of its life. So in no hour are there more than `MOST_PER_HOUR`, and
  in a day hardly more than a hundred. What users ask for besides (`minRuntimeSeconds`) is the pipeline's to keep.
- *Idling*: what no other job gets goes to jobs that can start on it at once, unless they wait on purpose. A job that
  nothing is worth anything to, for it is over sooner than it begins, starts on that, too (`worth.at_least_something`).
- *Believing*: of what the network has never seen the like in its training, it says nothing; and one job's extremes make
  nobody else's case strange. Who has held GPUs for longer than it said is not believed to be about to end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from trimtab_policy.placement.candidates import Candidate, candidates, nodes_for
from trimtab_policy.placement.capacity import ALL_TYPES, Capacity
from trimtab_policy.placement.options import OptionMenu
from trimtab_policy.types import Decision, Job, NodeShare, Snapshot

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

LONGEST_WAIT = 6 * 3600.0
"""Seconds that a job waits before it comes before others, unless it takes longer than that itself."""
WAITS_IN_ANY_CASE = 48 * 3600.0
"""Seconds after which it does however long it takes."""
TURN = 1800.0
"""Seconds that it then has the GPUs at least."""
MOST_OVERDUE = 4
"""Waiting jobs that come before others at a time."""
FREE_CHANGES = 6
"""Restarts of a job before its gangs are left alone for a while."""
LEAST_RUN = 300.0
"""Seconds for which they are from then on ..."""
LONG_RUN = 900.0
"""... and those for which they are if there was more than one in so many seconds since the job was submitted."""
MOST_PER_HOUR = FREE_CHANGES + math.ceil(3600.0 / LEAST_RUN)
"""Restarts of a job that rudder causes in any hour, at most."""
OVERRUN = 2.0
"""Times the work that a job states (predictions are off, restarts cost) before what it has held says how long it is."""
FURTHER = 0.25
"""Of what it states, what a job has left at least that has made more than all of that. Of jobs whose sizes are told
with a lognormal error of .3 to .5, half of those that come so far have .22 to .40 of it left, or more."""
FURTHER_EACH = 10.0
"""Steps that are expected for each step beyond, up to that part: a trainer that makes a step or two more than it was
told, or counts from 1, is about to end."""
MARGIN, LEAST_MARGIN = 0.1, 0.05
"""How far a feature may lie outside of its range in training: a part of the range's width, and in any case."""


# --- moving -----------------------------------------------------------------------------------------------------------
def rested(snapshot: Snapshot) -> Snapshot:
    """The snapshot in which those gangs must not be touched that were restarted often, and have just been again."""
    kept = {job.uid for job in snapshot.jobs if job.placement and job.preemptible and _just_restarted(snapshot, job)}
    return left_alone(snapshot, kept) if kept else snapshot


def left_alone(snapshot: Snapshot, kept: Collection[str]) -> Snapshot:
    """The snapshot in which these jobs, by UID, must not be touched."""
    return replace(
        snapshot, jobs=tuple(replace(job, preemptible=False) if job.uid in kept else job for job in snapshot.jobs)
    )


def above_limits(snapshot: Snapshot) -> set[str]:
    """UIDs of jobs that may be touched, and whose queue holds more than its limits by now: theirs were lowered. Who
    stops for it is not this policy's to say (`scheduling.preemption`)."""
    limits = {(quota.queue, quota.gpu_type): quota.gpus for quota in snapshot.quotas}
    if not limits:
        return set()
    held: Counter[tuple[str, str]] = Counter()
    for job in snapshot.jobs:
        if job.placement:
            held[job.queue, job.placement.gpu_type] += job.placement.gpus
            held[job.queue, ALL_TYPES] += job.placement.gpus
    above = {key for key, limit in limits.items() if held[key] > limit}
    return {
        job.uid
        for job in snapshot.jobs
        if job.placement and job.preemptible
        if above & {(job.queue, job.placement.gpu_type), (job.queue, ALL_TYPES)}
    }


def _just_restarted(snapshot: Snapshot, job: Job) -> bool:
    further = job.restarts - FREE_CHANGES
    if further < 0:
        return False
    often = further * LONG_RUN > (snapshot.time - job.created) * snapshot.speedup
    left_for = LONG_RUN if often else LEAST_RUN
    return job.started is None or (snapshot.time - job.started) * snapshot.speedup < left_for


# --- waiting ----------------------------------------------------------------------------------------------------------
def waited(snapshot: Snapshot, job: Job) -> float:
    """Seconds that a job has waited (again); 0 for one that runs."""
    since = job.created if job.waits_since is None else job.waits_since
    return max(0.0, (snapshot.time - since) * snapshot.speedup) if job.placement is None else 0.0


def longest_wait(menu: OptionMenu) -> float:
    """Seconds that a job waits before it comes before others: as long as all of it takes alone on the best GPUs for it,
    within bounds."""
    return min(max(LONGEST_WAIT, menu.job.training.steps / float(menu.rate.max())), WAITS_IN_ANY_CASE)


def has_turn(snapshot: Snapshot, menu: OptionMenu) -> bool:
    """Whether a running job may have waited for too long before it started, and has not run for `TURN` yet."""
    job = menu.job
    if job.placement is None:
        return False
    started = snapshot.time if job.started is None else job.started
    overdue = (started - job.created) * snapshot.speedup >= longest_wait(menu)
    return overdue and (snapshot.time - started) * snapshot.speedup < TURN


def overdue(menus: Sequence[OptionMenu], waits: FloatArray, asked: Sequence[int]) -> list[int]:
    """Of the jobs `asked`, by number, those that have waited for too long: who has waited longest first, namespaces in
    turns. `waits`: seconds, as of `waited`, (jobs,)."""
    long = waits >= LONGEST_WAIT
    late = [number for number in asked if long[number] and waits[number] >= longest_wait(menus[number])]
    return _in_turns(menus, sorted(late, key=lambda number: -waits[number]))


def lift(menus: Sequence[OptionMenu], waits: FloatArray, best: FloatArray, possible: BoolArray) -> FloatArray:
    """What is added to the worth of all options of those that have waited for too long, (jobs,): more than all jobs
    that are not more urgent are worth together. Nobody overtakes a more urgent job that waits.

    `waits`: seconds, as of `waited`; `best`: what the best option of each job is worth, (jobs,); `possible`: whether a
    job could have any of its options if it were alone, (jobs,). Who could not would only take the place of others.
    """
    found = np.zeros(len(menus))
    priority = np.array([menu.job.priority for menu in menus])
    asked = [number for number, menu in enumerate(menus) if menu.job.placement is None and possible[number]]
    highest = priority[asked].max() if asked else 0
    if first := overdue(menus, waits, [number for number in asked if priority[number] == highest]):
        found[first[:MOST_OVERDUE]] = np.maximum(best[priority <= highest], 0.0).sum() + 1.0
    return found


def good_enough(jobs: FloatArray, options: FloatArray, owner: IntArray, waits: FloatArray) -> BoolArray:
    """What a job takes that has waited for too long, (options,): all, if it can be moved later; else what it runs on
    for no longer than it has waited and would take at best, together.

    `jobs`, `options`, `owner` as of `worth.values`; `waits`: seconds, (jobs,).
    """
    seconds, best = jobs[owner, 0] / options[:, 0], jobs[:, 0] / jobs[:, 1]
    found: BoolArray = (jobs[owner, 7] == 0.0) | (seconds <= (waits + best)[owner])
    return found


def _in_turns(menus: Sequence[OptionMenu], line: Sequence[int]) -> list[int]:
    """The first of each namespace, then the second of each, and so on: one tenant's many are in nobody's way."""
    before: Counter[str] = Counter()
    turns: dict[int, int] = {}
    for number in line:
        namespace = menus[number].job.namespace
        turns[number] = before[namespace]
        before[namespace] += 1
    return sorted(line, key=turns.__getitem__)


# --- idling -----------------------------------------------------------------------------------------------------------
def idle(
    snapshot: Snapshot, capacity: Capacity, decision: Decision, menus: Sequence[OptionMenu],
    wanted: Callable[[int], Sequence[int]],
) -> Iterator[tuple[int, int, Candidate, tuple[NodeShare, ...], Capacity]]:  # fmt: skip
    """Number of a job that waits although there is room for it, the option that it can have, as what gang, on which
    nodes, and what is free before it has them; one after the other, in the order of the menus.

    `capacity` is that of the snapshot; `wanted` says which options a job would take, by number, the best first.
    """
    free = _after(snapshot, capacity, decision)
    fruitless: set[object] = set()
    waits = {pending.job for pending in decision.pending}
    types = {option.gpu.name for menu in menus for option in menu.options}
    most = {name: free.free_gpus(name) for name in types}
    for number, menu in enumerate(menus):
        if menu.job.uid not in waits or not any(most.values()):
            continue
        job = menu.job
        gangs = ((option, wish) for option in wanted(number) for wish in _gangs(snapshot, capacity, menu, option))
        for k, wish in gangs:
            asked = wish.demand(), job.requirements, job.eligible, job.queue
            if wish.option.gpus > most[wish.gpu.name] or asked in fruitless:
                continue
            if shares := nodes_for(free, job, wish, slow=True):
                yield number, k, wish, shares, free
                free.take(job, wish.gpu.name, shares)
                most[wish.gpu.name] = free.free_gpus(wish.gpu.name)
                break
            fruitless.add(asked)


def _gangs(snapshot: Snapshot, capacity: Capacity, menu: OptionMenu, k: int) -> Iterator[Candidate]:
    """An option, and as what other gangs the job could have as many GPUs of that type, the fastest first: a menu names
    the fastest only, and two half nodes may be free where no whole one is."""
    option = menu.options[k]
    yield option
    others = [
        each
        for each in candidates(snapshot, capacity, menu.job)
        if (each.gpu.name, each.option.gpus) == (option.gpu.name, option.option.gpus) and each.option != option.option
    ]
    yield from sorted(others, key=lambda each: each.option.prediction.step_seconds)


def _after(snapshot: Snapshot, capacity: Capacity, decision: Decision) -> Capacity:
    """What is free once the decision is carried out."""
    free, jobs = capacity.copy(), {job.uid: job for job in snapshot.jobs}
    leaving = {stop.job for stop in decision.stops} | {placement.job for placement in decision.placements}
    for job in snapshot.jobs:
        if job.placement and job.uid in leaving:
            free.give(job, job.placement.gpu_type, job.placement.shares)
    for placement in decision.placements:
        free.take(jobs[placement.job], placement.gpu_type, placement.shares)
    return free


# --- believing --------------------------------------------------------------------------------------------------------
def unbounded(features: int) -> FloatArray:
    """The ranges of weights that are asked about everything, (2, features): for tests, and while they are trained."""
    return np.array([[-math.inf] * features, [math.inf] * features])


def of_each(found: BoolArray, first: IntArray) -> BoolArray:
    """What holds of options (some, options) as what holds of any option of each job, (some, jobs). `first`: the first
    option of each job, and behind them the number of all."""
    each: BoolArray = np.logical_or.reduceat(found, first[:-1], axis=1)
    return each


def steps_left(menu: OptionMenu) -> float:
    """Steps until a job ends, 1 at least: `still_left` of what it states and has made.

    What it held counts as steps by the option that makes fewest of a GPU-second, so that nobody honest seems longer.
    """
    job = menu.job
    made = sum(job.served.values()) * float((menu.rate / menu.gpus).min())
    return still_left(float(job.training.steps), float(job.steps_done), float(job.steps_beyond), made)


def still_left(stated: float, done: float, beyond: float, held_for: float) -> float:
    """Steps that a job has left, 1 at least: those that it states. Once it has made more, up to a part of them, or as
    many as it has made beyond them; with all of them made it may be writing its last checkpoint. Or those that it has
    been running for beyond `OVERRUN` times all that it stated: then it is expected to need as long again.

    All in steps: `stated`; `done`, at most these; `beyond`, made besides; `held_for`, what the GPUs that it has had
    would have made at least. The simulator of the training compiles the same function.
    """
    further = max(beyond, min(FURTHER * stated, FURTHER_EACH * beyond))
    return max(1.0, stated - done, further, held_for - OVERRUN * stated)


def bounds(ranges: FloatArray) -> FloatArray:
    """`ranges` of features in training, lowest and highest, widened by the margin; (2, features) both."""
    width = np.where(np.isfinite(ranges[1] - ranges[0]), ranges[1] - ranges[0], 0.0)
    margin = np.maximum(MARGIN * width, LEAST_MARGIN)
    return np.stack([ranges[0] - margin, ranges[1] + margin])


def outside(z: FloatArray, ranges: FloatArray) -> BoolArray:
    """Which features (features, options) lie outside of their `ranges` in training, lowest and highest, by more than
    the margin; what is no number does."""
    lowest, highest = bounds(ranges)
    found: BoolArray = ~((z >= lowest[:, None]) & (z <= highest[:, None]))
    return found
