"""What jobs that report teach about those that come after them, where true speeds are not as predicted.

LLM jobs in three frameworks come to a cluster of three GPU types. The truth of a step is what the performance model
says times an error that nobody knows: the sum of one of the GPU type, of the framework on it, of the model on it and of
the locality of the gang on it, each with a fourth of the variance. Each is drawn once; a job shows their sum with 10 %
of its own luck. What is learned of the first jobs corrects predictions for options of others, as the controller does
it. One GPU type and a third of the models never teach. How far predictions are off, before and after, and how many jobs
take what the 80 % interval says, is counted by how far what is asked about is from all that was seen (`Distance`).

Then the simulator runs such jobs under the controller's pipeline: with predictions as they are, corrected by what jobs
that run have shown by then, and corrected by the truth, which nobody has.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from statistics import fmean
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace
from rich.table import Table

from trimtab_lab.workloads import clusters
from trimtab_lab.workloads.generator import llm_jobs
from trimtab_policy import policy as registry
from trimtab_policy.perf.correction import Corrections, corrected_option, learn
from trimtab_policy.perf.hierarchy import Learned
from trimtab_policy.perf.lessons import Key, Locality, State, anonymous, key_of, locality
from trimtab_policy.perf.plans import Option
from trimtab_policy.placement import topology
from trimtab_policy.placement.candidates import candidates
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.sim import llm
from trimtab_policy.sim.controller import SimulatedController
from trimtab_policy.sim.engine import simulate
from trimtab_policy.types import Correction, Decision, Job, Placement, Snapshot

CLUSTER = "H100-SXM5-80GB=8x8,A100-SXM4-80GB=8x8,L40S=8x8"
TRACE = "llm"
LOAD = 1.0
FRAMEWORKS = ("megatron-core", "torchtitan", "deepspeed")
LUCK = 0.1
"""Deviation of the logarithm of what a job shows, around its truth."""
CAUSES = 4
"""Errors that add up: of the GPU type, the framework, the model and the locality."""
SILENT_MODELS = 3
"""One of so many models never teaches."""
RESAMPLES = 2000
"""Of the runs, for the interval of a ratio of JCTs."""
REPORTING_STEPS = 25
"""Of a running job, after which it teaches."""
NAMESPACE = "team"
TITLE = "true speeds that are not as predicted: what predictions learn from jobs that report"
CAPTION = "without → with correction: mean error, jobs in the 80 % interval; average JCT with its 95 % interval"
POLICY = "rudder"


class Distance(StrEnum):
    """Of what is asked about from the nearest that has taught."""

    SAME = "same model, type and locality"
    LOCALITY = "same model and type, other locality"
    MODEL = "same type, other model"
    TYPE = "new type"


class Size(Struct, frozen=True):
    """What is measured."""

    spreads: tuple[float, ...] = (0.1, 0.2, 0.4)
    """Of ln(true / predicted step time)."""
    reports: tuple[int, ...] = (10, 30, 100)
    seeds: int = 10
    asked: int = 40
    """Predictions of each distance that are held against the truth, each time."""
    jobs: int = 30
    """Of a run of the simulator."""
    runs: int = 6


TINY = Size(spreads=(0.4,), reports=(40,), seeds=3, asked=30, jobs=12, runs=2)


class Learning(Struct):
    """Predictions after so many reports."""

    distance: Distance
    spread: float
    reports: int
    before: float
    """Mean of the absolute logarithm of true over predicted, uncorrected, the luck of the job left out."""
    after: float
    """The same, corrected."""
    covered_before: float
    """Part of the jobs whose time lies in the 80 % interval, uncorrected."""
    covered: float
    """The same, corrected."""


class Ratio(Struct):
    """Average JCT over that without corrections: geometric mean over runs, and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


class Loop(Struct):
    """What the simulator makes of it."""

    spread: float
    learned: Ratio
    known: Ratio
    """Where the truth is known beforehand."""


class Outcome(Struct):
    """All that was measured."""

    learning: list[Learning]
    loops: list[Loop]


class Truth:
    """Errors of predictions, each drawn when it is first asked for, by its own name: equal for equal seeds."""

    def __init__(self, spread: float, seed: int) -> None:
        self._spread, self._seed = spread / math.sqrt(CAUSES), seed

    def of(self, key: Key) -> float:
        """ln(true / predicted step time)."""
        gpu_type, framework = key.path[:2]
        parts = (f"type {gpu_type}", f"framework {gpu_type} {framework}", f"model {gpu_type} {key.model}",
                 f"locality {gpu_type} {key.locality}")  # fmt: skip
        return math.fsum(_dice(f"{self._seed} {name}").gauss(0, self._spread) for name in parts)


class Asked(NamedTuple):
    """A prediction that may be asked for."""

    job: Job
    gpu_type: str
    option: Option
    key: Key


class LearningController:
    """A controller that is told how long steps of running jobs take, and corrects predictions for those that wait."""

    def __init__(self, name: str, truth: Truth, *, learns: bool, knows: bool) -> None:
        self.name = name
        self._inner = SimulatedController(registry.load(name))
        self._truth, self._learns, self._knows = truth, learns, knows
        self._state, self._known = State(), Corrections(Learned())
        self._taught: set[tuple[str, Key]] = set()

    def decide(self, snapshot: Snapshot) -> Decision:
        """As of `Policy`."""
        if self._learns:
            self._listen(snapshot)
        # As `observe.calibration.corrected` does it: those that run keep what they were placed by.
        jobs = (job if job.placement else replace(job, corrections=self._of(snapshot, job)) for job in snapshot.jobs)
        return self._inner.decide(replace(snapshot, jobs=tuple(jobs)))

    def _of(self, snapshot: Snapshot, job: Job) -> tuple[Correction, ...]:
        return _known(snapshot, job, self._truth) if self._knows else self._known.of(job)

    def _listen(self, snapshot: Snapshot) -> None:
        before = self._state
        for job in snapshot.jobs:
            if job.placement and job.started is not None and not job.resuming:
                key = _key(snapshot, job, job.placement)
                since = snapshot.time - job.started
                if (job.uid, key) in self._taught or since < REPORTING_STEPS * job.placement.prediction.step_seconds:
                    continue
                self._taught.add((job.uid, key))
                error = self._truth.of(key) + _dice(f"{job.uid} {key}").gauss(0, LUCK)
                self._state = learn(self._state, key, job.uid, error, namespace=anonymous(job.namespace))
        if self._state is not before:
            self._known = Corrections(Learned(self._state))


def measure(size: Size | None = None) -> Outcome:
    """Teach and ask, for every spread; then run the simulator."""
    size = size or Size()
    pool = _pool()
    learning = [each for spread in size.spreads for each in _learning(size, pool, spread)]
    return Outcome(learning, [_loop(size, spread) for spread in size.spreads])


def _dice(seed: object) -> random.Random:
    return random.Random(str(seed))  # noqa: S311 - reproducible by its seed


def _described(window: int, jobs: int) -> tuple[Job, ...]:
    """Jobs of the workload, in turn of one of the frameworks."""
    return tuple(
        replace(
            job,
            namespace=NAMESPACE,
            preemptible=True,
            requirements=replace(job.requirements, software=FRAMEWORKS[number % len(FRAMEWORKS)]),
        )
        for number, job in enumerate(
            llm_jobs(TRACE, jobs, replace(clusters.cluster(CLUSTER), time=0.0), LOAD, seed=window)
        )
    )


def _pool() -> list[Asked]:
    cluster = clusters.cluster(CLUSTER)
    found = []
    for job in _described(0, 120):
        now = replace(cluster, time=0.0, jobs=(job,))
        for each in candidates(now, Capacity(now), job):
            option, name = each.option, each.gpu.name
            found.append(Asked(job, name, option, key_of(job, name, option.plan, _lies(option))))
    return found


def _lies(option: Option) -> Locality:
    return locality(option.gpus, option.nodes, option.linked)


def _key(snapshot: Snapshot, job: Job, held: Placement) -> Key:
    nodes = {node.name: node for node in snapshot.nodes}
    lies = topology.locality(snapshot.gpu_types[held.gpu_type], held.shares, nodes)
    return key_of(job, held.gpu_type, held.plan, lies)


def _learning(size: Size, pool: Sequence[Asked], spread: float) -> Iterator[Learning]:
    found: dict[tuple[Distance, int], list[_Answer]] = {}
    for seed in range(size.seeds):
        truth, dice, state = Truth(spread, seed), _dice(seed), State()
        teachers, taught = _teachers(pool, seed, dice), list[Key]()
        for count in range(1, max(size.reports) + 1):
            one = dice.choice(teachers)
            shown = truth.of(one.key) + dice.gauss(0, LUCK)
            state = learn(state, one.key, f"job-{count}", shown, namespace=anonymous(NAMESPACE))
            taught.append(one.key)
            if count in size.reports:
                known = Corrections(Learned(state))
                for distance, asked in _by_distance(pool, taught).items():
                    answers = (_answer(each, truth, known, dice) for each in dice.choices(asked, k=size.asked))
                    found.setdefault((distance, count), []).extend(answers)
    for (distance, count), answers in sorted(found.items(), key=lambda item: (list(Distance).index(item[0][0]), item)):
        yield Learning(distance, spread, count, *(fmean(each) for each in zip(*answers, strict=True)))


def _teachers(pool: Sequence[Asked], seed: int, dice: random.Random) -> list[Asked]:
    """What may run before it is asked: all but one GPU type and some of the models."""
    types, models = sorted({each.gpu_type for each in pool}), sorted({each.key.model for each in pool})
    silent = set(dice.sample(models, len(models) // SILENT_MODELS))
    return [each for each in pool if each.gpu_type != types[seed % len(types)] and each.key.model not in silent]


def _by_distance(pool: Sequence[Asked], taught: Sequence[Key]) -> dict[Distance, list[Asked]]:
    types = {key.gpu_type for key in taught}
    models = {(key.gpu_type, key.model) for key in taught}
    kinds = {(key.gpu_type, key.model, key.locality) for key in taught}
    found: dict[Distance, list[Asked]] = {}
    for each in pool:
        key = each.key
        if key.gpu_type not in types:
            distance = Distance.TYPE
        elif (key.gpu_type, key.model) not in models:
            distance = Distance.MODEL
        else:
            same = (key.gpu_type, key.model, key.locality) in kinds
            distance = Distance.SAME if same else Distance.LOCALITY
        found.setdefault(distance, []).append(each)
    return found


class _Answer(NamedTuple):
    """Errors of one prediction without and with correction, and whether a job that runs so lies in each interval."""

    before: float
    after: float
    covered_before: bool
    covered: bool


def _answer(one: Asked, truth: Truth, known: Corrections, dice: random.Random) -> _Answer:
    said, luck = one.option.prediction, dice.gauss(0, LUCK)
    told = corrected_option(one.option, one.gpu_type, replace(one.job, corrections=known.of(one.job))).prediction
    before = truth.of(one.key)
    after = math.log(said.step_seconds / told.step_seconds) + before
    inside = (abs(off + luck) <= math.log(by.uncertainty) for off, by in ((before, said), (after, told)))
    return _Answer(abs(before), abs(after), *inside)


def _known(snapshot: Snapshot, job: Job, truth: Truth) -> tuple[Correction, ...]:
    """Corrections by the truth itself."""
    found = {
        key: Correction(key.gpu_type, key.plan, math.exp(truth.of(key)), math.exp(1.2816 * LUCK), key.locality, 1.0)
        for each in candidates(snapshot, Capacity(snapshot), job)
        for key in (key_of(job, each.gpu.name, each.option.plan, _lies(each.option)),)
    }
    return tuple(found.values())


def _loop(size: Size, spread: float) -> Loop:
    learned, known = list[float](), list[float]()
    for run in range(size.runs):
        truth = Truth(spread, run)
        plain = _mean_jct(truth, run, size.jobs, learns=False, knows=False)
        learned.append(math.log(_mean_jct(truth, run, size.jobs, learns=True, knows=False) / plain))
        known.append(math.log(_mean_jct(truth, run, size.jobs, learns=False, knows=True) / plain))
    return Loop(spread, _ratio(learned), _ratio(known))


def _ratio(logs: Sequence[float]) -> Ratio:
    dice = _dice("runs")
    means = sorted(fmean(dice.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, high = (means[round(part * (RESAMPLES - 1))] for part in (0.025, 0.975))
    return Ratio(*(math.exp(each) for each in (fmean(logs), low, high)))


def _mean_jct(truth: Truth, window: int, count: int, *, learns: bool, knows: bool) -> float:
    cluster = replace(clusters.cluster(CLUSTER), time=0.0)

    def mistake(job: Job, placement: Placement) -> float:
        return math.exp(truth.of(_key(cluster, job, placement)))

    jobs = llm.jobs(_described(window, count), cluster, mistake=mistake)
    controller = LearningController(POLICY, truth, learns=learns, knows=knows)
    run = simulate(controller, jobs, cluster)
    return fmean((job.finished or run.end) - job.submitted for job in run.jobs)


def goals(found: Outcome) -> Iterator[tuple[str, float, float, bool]]:
    """What was wished for: how it is called, the figure, the goal, and whether more is better."""
    for each in found.learning:
        what = f"{each.distance}, off by {100 * each.spread:.0f} %, {each.reports} reports"
        yield f"{what}: error over that without correction", each.after / each.before, 1, False
        yield f"{what}: in the 80 % interval, %", 100 * each.covered, 70, True


def table(found: Outcome) -> Table:
    """Errors and intervals by reports, and what the simulator makes of them."""
    counts = sorted({each.reports for each in found.learning})
    heads = (f"AFTER {count} REPORTS" for count in counts)
    made = Table("OFF BY", "ASKED", *heads, title=TITLE, caption=CAPTION,
                 title_justify="left", caption_justify="left", box=None, pad_edge=False)  # fmt: skip
    cells = {(each.spread, each.distance, each.reports): each for each in found.learning}
    for spread in sorted({each.spread for each in found.learning}):
        for distance in Distance:
            row = [_cell(cells.get((spread, distance, count))) for count in counts]
            made.add_row(f"{100 * spread:.0f} %", distance, *row)
    for loop in found.loops:
        told = (f"{name}: {said.value:.3f} [{said.low:.3f}, {said.high:.3f}]".replace("[", r"\[")
                for name, said in (("learned", loop.learned), ("truth known", loop.known)))  # fmt: skip
        made.add_row(f"{100 * loop.spread:.0f} %", "average JCT, over that without", *told)
    return made


def _cell(said: Learning | None) -> str:
    if said is None:
        return ""
    errors = f"{100 * said.before:.1f} → {100 * said.after:.1f} %"
    return f"{errors}, {100 * said.covered_before:.0f} → {100 * said.covered:.0f} % inside"
