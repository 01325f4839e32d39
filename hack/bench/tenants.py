"""What tenants teach one another, and what a liar among them changes: `perf.hierarchy` with many namespaces.

The models are those of the shipped samples, the GPU types those of the large profile; of what could run sixteen kinds
(a model, a type, a class of plans) do, drawn by lot. Each has an error of the performance model that nobody knows: that
of its type (10 %) and its own (15 %); a job shows it with 10 % of its own luck. Jobs of all namespaces come in an order
drawn by lot, and each is predicted before it teaches. The gain is by how much that makes the error of predictions
smaller, against what one book for all namespaces would gain; the liar then comes with half as many jobs as all others
have together, a third of all.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from hack.bench.decisions import profile_of, snapshot_of
from msgspec import Struct
from msgspec.structs import replace
from rich.table import Table

from trimtab.decide.engine import Engine
from trimtab.observe.calibration import corrected
from trimtab_policy.perf.correction import Corrections, learn
from trimtab_policy.perf.hierarchy import CorrectionEstimates, Learned
from trimtab_policy.perf.lessons import Key, State, anonymous, key_of
from trimtab_policy.placement.candidates import candidates
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.types import Placement, Snapshot

OF_TYPES, OF_KEYS, OF_JOBS = 0.1, 0.15, 0.1
"""Deviations of the logarithm of what was observed over what was predicted."""
LIES = (math.log(1000), math.log(3), -math.log(10), math.log(1.3))
"""What the liar's jobs say besides the truth, as logarithms of factors."""
KINDS = 16
LIAR = "liar"
DEADLINE_SECONDS = 60.0
TITLE = "what tenants teach one another; what changes for them when a liar comes who has a third of all jobs"


class Size(Struct, frozen=True):
    """What is measured."""

    tenants: tuple[tuple[int, int], ...] = ((1, 60), (2, 20), (3, 20), (4, 20), (4, 60), (8, 40))
    """Honest namespaces, and the jobs of each."""
    seeds: int = 5
    nodes: int = 100
    pending: int = 40


TINY = Size(tenants=((1, 8), (3, 8)), seeds=1, nodes=20, pending=5)


class Gain(Struct):
    """Means of the absolute logarithm of observed over predicted, of jobs as they come."""

    namespaces: int
    jobs: int
    """Of each namespace."""
    uncorrected: float
    together: float
    """With one book for all namespaces."""
    apart: float
    """With a book and a vote for each."""

    @property
    def kept(self) -> float:
        """Of the gain that one book for all would have."""
        return (self.uncorrected - self.apart) / (self.uncorrected - self.together)


class Lie(Struct):
    """What changes for the honest when the liar comes."""

    namespaces: int
    """Honest ones."""
    factor: float
    """What the liar's jobs took longer than they did, as they say."""
    predictions: float
    """Mean change of a prediction for an honest job, as part of it."""
    placements: float
    """Part of the honest jobs that are placed otherwise: on another type, on more or fewer GPUs, divided otherwise."""
    together: tuple[float, float]
    """Both as they would be with one book for all namespaces."""


class Outcome(Struct):
    """All that was measured."""

    gains: list[Gain]
    lies: list[Lie]


Lesson = tuple[str, Key, float]
"""Namespace, what ran, and the error that it showed."""


async def measure(size: Size | None = None) -> Outcome:
    """Teach and lie, for every number of tenants."""
    size = size or Size()
    snapshot = await snapshot_of(profile_of(size.nodes), 0.5, size.pending)
    keys = sorted(_keys(snapshot))
    gains, lies = list[Gain](), list[Lie]()
    for namespaces, jobs in size.tenants:
        taught = [_lessons(_dice(seed), keys, namespaces, jobs) for seed in range(size.seeds)]
        gains.append(_gain(namespaces, jobs, taught))
        if namespaces > 1:
            lies += [_lie(snapshot, keys, namespaces, lie, taught) for lie in LIES]
    return Outcome(gains, lies)


def _dice(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - reproducible by its seed


def _keys(snapshot: Snapshot) -> set[Key]:
    capacity = Capacity(snapshot)
    return {
        key_of(job, each.gpu.name, each.option.plan)
        for job in snapshot.waiting()
        for each in candidates(snapshot, capacity, job)
    }


def _truth(dice: random.Random, all_keys: Sequence[Key]) -> dict[Key, float]:
    """The errors of the kinds that run."""
    keys = dice.sample(all_keys, min(KINDS, len(all_keys)))
    types = {name: dice.gauss(0, OF_TYPES) for name in sorted({key.gpu_type for key in keys})}
    return {key: types[key.gpu_type] + dice.gauss(0, OF_KEYS) for key in keys}


def _lessons(dice: random.Random, keys: Sequence[Key], namespaces: int, jobs: int) -> list[Lesson]:
    truth = _truth(dice, keys)
    found = [
        (f"team-{number}", key, dice.gauss(truth[key], OF_JOBS))
        for number in range(namespaces)
        for key in dice.choices(list(truth), k=jobs)
    ]
    dice.shuffle(found)
    return found


def _gain(namespaces: int, jobs: int, taught: Sequence[Sequence[Lesson]]) -> Gain:
    none, together, apart = list[float](), list[float](), list[float]()
    for lessons in taught:
        none += [abs(error) for _, _, error in lessons]
        together += _errors([("", key, error) for _, key, error in lessons])
        apart += _errors(lessons)
    return Gain(namespaces, jobs, fmean(none), fmean(together), fmean(apart))


def _errors(lessons: Sequence[Lesson]) -> Iterator[float]:
    """Of each job's prediction, made when those before it had taught."""
    state = State()
    for number, (namespace, key, error) in enumerate(lessons):
        yield abs(error - _expected(Learned(state).of(namespace), key))
        state = learn(state, key, f"job-{number}", error, namespace=anonymous(namespace))


def _expected(known: CorrectionEstimates, key: Key) -> float:
    found = known.of(key)
    return math.log(found.factor) if found else 0.0


def _lie(snapshot: Snapshot, keys: Sequence[Key], namespaces: int, lie: float, taught: Sequence[list[Lesson]]) -> Lie:
    apart, together = list[tuple[float, float]](), list[tuple[float, float]]()
    for seed, lessons in enumerate(taught):
        dice = _dice(1000 + seed)
        truth = _truth(_dice(seed), keys)  # the first that the dice of the lessons have drawn
        lies = [
            (LIAR, key, dice.gauss(truth[key] + lie, OF_JOBS)) for key in dice.choices(list(truth), k=len(lessons) // 2)
        ]
        mixed = [*lessons, *lies]
        dice.shuffle(mixed)
        teams = [f"team-{number}" for number in range(namespaces)]
        apart.append(_changes(snapshot, list(truth), teams, lessons, mixed))
        one_book = ([("", key, error) for _, key, error in each] for each in (lessons, mixed))
        together.append(_changes(snapshot, list(truth), [""], *one_book))
    predictions, placements = (fmean(each) for each in zip(*apart, strict=True))
    shared = tuple(fmean(each) for each in zip(*together, strict=True))
    return Lie(namespaces, math.exp(lie), predictions, placements, (shared[0], shared[1]))


def _changes(
    snapshot: Snapshot, keys: Sequence[Key], teams: Sequence[str], lessons: Sequence[Lesson], mixed: Sequence[Lesson]
) -> tuple[float, float]:
    """Mean change of these namespaces' predictions, and part of their jobs that are placed otherwise."""
    before, after = Learned(_state(lessons)), Learned(_state(mixed))
    changes = [
        abs(math.expm1(_expected(after.of(team), key) - _expected(before.of(team), key)))
        for team in teams
        for key in keys
    ]
    return fmean(changes), _otherwise(_placed(snapshot, teams, before), _placed(snapshot, teams, after))


def _state(lessons: Sequence[Lesson]) -> State:
    state = State()
    for number, (namespace, key, error) in enumerate(lessons):
        state = learn(state, key, f"{namespace}-{number}", error, namespace=anonymous(namespace))
    return state


def _placed(snapshot: Snapshot, teams: Sequence[str], known: Learned) -> Mapping[str, Placement]:
    """What best_fit decides about the waiting jobs when they are the honest namespaces', in turn."""
    waiting = {job.uid: number for number, job in enumerate(snapshot.waiting())}
    jobs = (
        replace(job, namespace=teams[waiting[job.uid] % len(teams)]) if job.uid in waiting else job
        for job in snapshot.jobs
    )
    now = corrected(replace(snapshot, jobs=tuple(jobs)), Corrections(known))
    outcome = Engine().decide(now, Choice("best_fit", "fcfs", deadline_seconds=DEADLINE_SECONDS))
    return {placed.job: placed for placed in outcome.placements}


def _otherwise(before: Mapping[str, Placement], after: Mapping[str, Placement]) -> float:
    """Part of the jobs placed by either that are placed otherwise by the other."""

    def said(placed: Placement | None) -> object:
        return placed and (placed.gpu_type, placed.gpus, placed.plan)

    either = before.keys() | after.keys()
    return sum(said(before.get(uid)) != said(after.get(uid)) for uid in either) / max(1, len(either))


def goals(found: Outcome) -> Iterator[tuple[str, float, float, bool]]:
    """What was wished for: how it is called, the figure, the goal, and whether more is better."""
    for gain in found.gains:
        yield f"{gain.namespaces} namespaces of {gain.jobs} jobs: gain kept, %", 100 * gain.kept, 95, True
    for lie in found.lies:
        what = f"a liar, ×{lie.factor:.3g}, among {lie.namespaces} namespaces"
        yield f"{what}: change of others' predictions, %", 100 * lie.predictions, 2, False
        yield f"{what}: of others' placements, %", 100 * lie.placements, 2, False


def table(found: Outcome) -> Table:
    """Gains, and what a liar changes."""
    made = Table("NAMESPACES", "JOBS OF EACH", "LIE", "ERROR BEFORE", "ONE BOOK", "OURS", "GAIN KEPT",
                 "PREDICTIONS", "PLACEMENTS", title=TITLE,
                 title_justify="left", box=None, pad_edge=False)  # fmt: skip
    for gain in found.gains:
        errors = (f"{100 * error:.1f} %" for error in (gain.uncorrected, gain.together, gain.apart))
        made.add_row(str(gain.namespaces), str(gain.jobs), "", *errors, f"{gain.kept:.2f}", "", "")
    for lie in found.lies:
        changes = (f"{100 * part:.2f} %" for part in (lie.predictions, lie.placements))
        before = (f"{100 * part:.0f} %" for part in lie.together)
        made.add_row(str(lie.namespaces), "", f"×{lie.factor:.3g}", "", " and ".join(before), "", "", *changes)
    return made
