"""What jobs that report teach about those that come after them, where true speeds are not as predicted.

LLM jobs in three frameworks come to a cluster of three GPU types. The truth of a step is what the performance model
says times an error that nobody knows: of the GPU type, the framework on it, the model on it, the locality of the gang
on it, or of all four together, each with a fourth of the variance. It is drawn once for each of them; a job shows it
with 10 % of its own luck. What is learned of the first jobs corrects predictions for options of others, as the
controller does it; how far these are off, and how many of them take what their 80 % interval says, is counted.

Then the simulator runs such jobs under the controller's pipeline: with predictions as they are, corrected by what jobs
that run have shown by then, and corrected by the truth, which nobody has.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
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
from trimtab_policy.perf.lessons import Key, Level, Locality, Path, State, anonymous, key_of, locality
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
EVERYTHING = "all four"
CAUSES: Mapping[str, tuple[Level, ...]] = {
    "GPU type": (Level.GPU_TYPE,),
    "framework": (Level.FRAMEWORK,),
    "model": (Level.MODEL,),
    "locality": (Level.LOCALITY,),
    EVERYTHING: (Level.GPU_TYPE, Level.FRAMEWORK, Level.MODEL, Level.LOCALITY),
}
REPORTING_STEPS = 25
"""Of a running job, after which it teaches."""
NAMESPACE = "team"
TITLE = "true speeds that are not as predicted: what predictions learn from jobs that report"
CAPTION = "mean error of predictions, and jobs within the 80 % interval; average JCT over that without corrections"
POLICY = "rudder"


class Size(Struct, frozen=True):
    """What is measured."""

    spreads: tuple[float, ...] = (0.1, 0.2, 0.4)
    """Of ln(true / predicted step time)."""
    reports: tuple[int, ...] = (0, 10, 30, 100)
    seeds: int = 8
    asked: int = 60
    """Predictions that are held against the truth, each time."""
    jobs: int = 40
    """Of a run of the simulator."""
    runs: int = 6


TINY = Size(spreads=(0.4,), reports=(0, 40), seeds=2, asked=30, jobs=12, runs=1)


class Learning(Struct):
    """Predictions after so many reports."""

    cause: str
    spread: float
    reports: int
    error: float
    """Mean of the absolute logarithm of true over predicted, the luck of the job left out."""
    covered: float
    """Part of the jobs whose time lies in the 80 % interval."""


class Loop(Struct):
    """Average JCT over that without corrections, geometric mean over runs."""

    cause: str
    spread: float
    learned: float
    known: float
    """Where the truth is known beforehand."""


class Outcome(Struct):
    """All that was measured."""

    learning: list[Learning]
    loops: list[Loop]


class Truth:
    """Errors of predictions, each drawn when it is first asked for, by its own name: equal for equal seeds."""

    def __init__(self, levels: Sequence[Level], spread: float, seed: int) -> None:
        self._levels, self._spread, self._seed = levels, spread, seed

    def of(self, key: Key) -> float:
        """ln(true / predicted step time)."""
        parts: dict[Level, Path] = {
            Level.GPU_TYPE: key.path[:1],
            Level.FRAMEWORK: key.path[:2],
            Level.MODEL: (key.gpu_type, key.model),
            Level.LOCALITY: (key.gpu_type, key.locality),
        }
        drawn = (self._drawn(f"{level} {parts[level]}") for level in self._levels)
        return math.fsum(drawn) / math.sqrt(len(self._levels))

    def _drawn(self, name: str) -> float:
        return _dice(f"{self._seed} {name}").gauss(0, self._spread)


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
        jobs = (replace(job, corrections=self._of(snapshot, job)) for job in snapshot.jobs)
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
    """Teach and ask, for every cause and spread; then run the simulator where all causes come together."""
    size = size or Size()
    pool = _pool()
    learning = [each for cause in CAUSES for spread in size.spreads for each in _learning(size, pool, cause, spread)]
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


def _learning(size: Size, pool: Sequence[Asked], cause: str, spread: float) -> Iterator[Learning]:
    errors: dict[int, list[float]] = {count: [] for count in size.reports}
    covered: dict[int, list[bool]] = {count: [] for count in size.reports}
    for seed in range(size.seeds):
        truth, dice, state = Truth(CAUSES[cause], spread, seed), _dice(seed), State()
        for count in range(max(size.reports) + 1):
            if count in errors:
                for error, inside in _answers(pool, truth, state, dice, size.asked):
                    errors[count].append(error)
                    covered[count].append(inside)
            one = dice.choice(pool)
            shown = truth.of(one.key) + dice.gauss(0, LUCK)
            state = learn(state, one.key, f"job-{count}", shown, namespace=anonymous(NAMESPACE))
    for count in size.reports:
        yield Learning(cause, spread, count, fmean(errors[count]), fmean(covered[count]))


def _answers(
    pool: Sequence[Asked], truth: Truth, state: State, dice: random.Random, asked: int
) -> Iterator[tuple[float, bool]]:
    """Of predictions: how far each is off, and whether a job that runs so takes what its interval says."""
    known = Corrections(Learned(state))
    for one in dice.choices(pool, k=asked):
        said = one.option.prediction
        told = corrected_option(one.option, one.gpu_type, replace(one.job, corrections=known.of(one.job))).prediction
        error = math.log(said.step_seconds / told.step_seconds) + truth.of(one.key)
        yield abs(error), abs(error + dice.gauss(0, LUCK)) <= math.log(told.uncertainty)


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
        truth = Truth(CAUSES[EVERYTHING], spread, run)
        plain = _mean_jct(truth, run, size.jobs, learns=False, knows=False)
        learned.append(math.log(_mean_jct(truth, run, size.jobs, learns=True, knows=False) / plain))
        known.append(math.log(_mean_jct(truth, run, size.jobs, learns=False, knows=True) / plain))
    return Loop(EVERYTHING, spread, math.exp(fmean(learned)), math.exp(fmean(known)))


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
        if each.reports:
            what = f"{each.cause} off by {100 * each.spread:.0f} %, {each.reports} reports: in the 80 % interval, %"
            yield what, 100 * each.covered, 75, True
            yield what, 100 * each.covered, 88, False


def table(found: Outcome) -> Table:
    """Errors and intervals by reports, and what the simulator makes of them."""
    counts = sorted({each.reports for each in found.learning})
    heads = [f"{count} REPORTS" for count in counts]
    made = Table("OFF", "BY", *heads, "JCT LEARNED", "JCT KNOWN", title=TITLE, caption=CAPTION,
                 title_justify="left", caption_justify="left", box=None, pad_edge=False)  # fmt: skip
    loops = {(each.cause, each.spread): each for each in found.loops}
    cells: dict[tuple[str, float], list[Learning]] = {}
    for each in found.learning:
        cells.setdefault((each.cause, each.spread), []).append(each)
    for (cause, spread), row in cells.items():
        figures = (f"{100 * each.error:.1f} %, {100 * each.covered:.0f} %" for each in row)
        loop = loops.get((cause, spread))
        ends = (f"{loop.learned:.3f}", f"{loop.known:.3f}") if loop else ("", "")
        made.add_row(cause, f"{100 * spread:.0f} %", *figures, *ends)
    return made
