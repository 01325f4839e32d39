"""Drift: when GPUs are no longer as fast as predicted, predictions are corrected, then weights, and in doubt neither.

The future work of seed 002 ("model drift correction to account for resource wear and software updates"), which says no
more than that; what is built here is the usual loop of monitoring, adaptation and safeguard (Gama et al. 2014):

    Stable --alarm--> Recalibrated --tuned--> FineTuned --not worse--> Stable
                           ^                      |
                           +------alarm------ RolledBack <--worse--+

Monitoring: every job gives its GPU type one number, ln(observed / predicted step time), whose mean is 0 while
predictions hold. Page's two-sided cumulative sums (Page 1954; two-sided with a known target, unlike Hinkley's form,
because a bias that is there from the first job is to be found, too) run over these numbers in units of their noise,
which is measured by successive differences: a step in the mean changes one of them only.

Recalibration: the mean since the change, as the sums tell it, shrunk towards no correction and bounded, becomes the
GPU type's factor at the alarm, and is refined by the jobs that follow. `slowed` applies factors to a snapshot.

Adaptation and safeguard: weights are tuned on logged decisions, within bounds (`fine_tuning`). On the decisions that
follow, old and new weights are compared in pairs. A bet that the new ones are worse (Waudby-Smith and Ramdas 2023)
grows whenever they are; at 1 / risk, which weights that are not worse reach with probability `risk` at most however
often one looks, the old ones are back. They also are if the new ones have not been better on average when the trial of
`window` decisions ends.

All of it is a value, `State`, and a pure function, `follow`: what an operator writes down survives its restart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.specs import GpuSpec, Prediction
from trimtab_policy.types import Job, Placement, Snapshot, Speed


class Phase(StrEnum):
    """Where the loop is."""

    STABLE = "Stable"
    RECALIBRATED = "Recalibrated"
    FINE_TUNED = "FineTuned"
    """Tuned weights are in force, on trial."""
    ROLLED_BACK = "RolledBack"
    """The weights of before are in force again; predictions stay corrected."""


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """How soon something is noticed, and how much is done about it."""

    noise: float = 0.15
    """Standard deviation of ln(observed / predicted), as believed before anything was observed."""
    believed: int = 10
    """Observations that this belief is worth."""
    allowance: float = 0.5
    """Deviations of the mean that are let pass, in units of the noise: k of the cumulative sums."""
    threshold: float = 10.0
    """h of the cumulative sums: a larger one means fewer false alarms and later true ones."""
    outlier: float = 3.0
    """Beyond so many units of noise an observation counts no more than this: one broken job is no drift."""
    shrinkage: float = 1.0
    """Observations of "no drift" that are mixed into the estimate of a factor."""
    refined: int = 30
    """Observations from the change on after which a factor is settled."""
    largest_factor: float = 3.0
    """Bound of a factor, and of its inverse."""
    risk: float = 0.05
    """Probability of rolling back, within the window, weights that are not worse."""
    window: int = 200
    """Decisions for which tuned weights are on trial."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        for name in ("noise", "threshold", "outlier"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number above 0, got {getattr(self, name)}")
        for name in ("allowance", "shrinkage"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")
        for name in ("believed", "refined", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 1 < self.largest_factor < math.inf:
            raise ValueError(f"largest_factor must be finite and above 1, got {self.largest_factor}")
        if not 0 < self.risk < 1:
            raise ValueError(f"risk must lie between 0 and 1, got {self.risk}")


# --- events -----------------------------------------------------------------------------------------------
class Observed(Struct, frozen=True, tag=True):
    """How long steps of one job take. One observation a job: those of one job err alike, and would count as many."""

    gpu_type: str
    seconds: float
    """Measured, of one step."""
    predicted: float
    """By the prediction that its placement carries."""
    factor: float = 1.0
    """That was in force for the GPU type when it was placed (`factors`): the prediction contains it."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        for name in ("seconds", "predicted", "factor"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number above 0, got {getattr(self, name)}")


class Tuned(Struct, frozen=True, tag=True):
    """Tuned weights take over from others, on trial."""

    weights: str
    """What names them, e.g. their SHA-256."""
    instead_of: str


class Judged(Struct, frozen=True, tag=True):
    """What one decision cost under the tuned weights and under those before: regret or prediction error, 0 or more."""

    tuned: float
    before: float

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        for name in ("tuned", "before"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")


Event = Observed | Tuned | Judged


# --- state ------------------------------------------------------------------------------------------------
class Sum(Struct, frozen=True):
    """One side of Page's test: a cumulative sum that starts again at 0, and what was seen since then."""

    height: float = 0.0
    count: int = 0
    total: float = 0.0
    """Of the observed logarithms."""


class Stream(Struct, frozen=True):
    """All that is remembered of one GPU type."""

    slower: Sum = Sum()
    faster: Sum = Sum()
    fit: Sum = Sum()
    """Observations since the change that the correction follows from."""
    correction: float = 0.0
    """ln of the factor in force."""
    last: float | None = None
    differences: int = 0
    squares: float = 0.0
    """Of successive differences, halved: each is one estimate of the variance of the noise."""
    alarms: int = 0


class Trial(Struct, frozen=True):
    """Tuned weights against those before them: a bet that they are worse."""

    weights: str
    instead_of: str
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    wealth: float = 0.0
    """ln of the stake, 0 at first."""


class State(Struct, frozen=True):
    """Where the loop is, and all that it remembers; of fixed size for each GPU type."""

    phase: Phase = Phase.STABLE
    streams: dict[str, Stream] = {}
    trial: Trial | None = None
    """The running trial, or the last one."""
    weights: str | None = None
    """The weights to use, of those that trials were about; None: nothing was ever tuned."""

    @property
    def factors(self) -> dict[str, float]:
        """GPU type -> by how much predicted step times are too short; types without a correction are absent."""
        return {name: math.exp(each.correction) for name, each in self.streams.items() if each.correction}

    def settled(self, rules: Rules) -> bool:
        """Whether weights may be tuned now: after a recalibration, when all its factors are settled."""
        corrected = [each for each in self.streams.values() if each.alarms]
        return self.phase is Phase.RECALIBRATED and all(each.fit.count >= rules.refined for each in corrected)


def follow(state: State, event: Event, rules: Rules | None = None) -> State:
    """The state after an event. Raises ValueError for one that the phase does not allow."""
    rules = rules or Rules()
    if isinstance(event, Observed):
        return _observed(state, event, rules)
    if isinstance(event, Tuned):
        if not state.settled(rules):
            raise ValueError(f"weights may be tuned in {Phase.RECALIBRATED} with settled factors, not in {state.phase}")
        trial = Trial(event.weights, event.instead_of)
        return replace(state, phase=Phase.FINE_TUNED, trial=trial, weights=trial.weights)
    if state.phase is not Phase.FINE_TUNED or state.trial is None:
        raise ValueError(f"decisions are judged in {Phase.FINE_TUNED}, not in {state.phase}")
    trial = bet(state.trial, event)
    phase = _verdict(trial, rules)
    weights = trial.instead_of if phase is Phase.ROLLED_BACK else trial.weights
    return replace(state, phase=phase, trial=trial, weights=weights)


# --- monitoring -------------------------------------------------------------------------------------------
def _observed(state: State, event: Observed, rules: Rules) -> State:
    before = state.streams.get(event.gpu_type, Stream())
    after = watch(before, math.log(event.seconds / event.predicted) + math.log(event.factor), rules)
    new = after.alarms > before.alarms and state.phase is not Phase.FINE_TUNED
    return replace(
        state,
        phase=Phase.RECALIBRATED if new else state.phase,
        streams={**state.streams, event.gpu_type: after},
    )


def watch(stream: Stream, error: float, rules: Rules) -> Stream:
    """One more observation: `error` is ln(observed / predicted without any correction). `alarms` counts changes."""
    noise = spread(stream, rules)
    residual = max(-rules.outlier, min(rules.outlier, (error - stream.correction) / noise))
    error = stream.correction + residual * noise
    slower = _accumulate(stream.slower, residual - rules.allowance, error)
    faster = _accumulate(stream.faster, -residual - rules.allowance, error)
    following = _measured(replace(stream, slower=slower, faster=faster), error)
    for side in (slower, faster):
        if side.height > rules.threshold:
            fit = replace(side, height=0.0)
            return _corrected(replace(following, slower=Sum(), faster=Sum(), alarms=stream.alarms + 1), fit, rules)
    if 0 < stream.fit.count < rules.refined:
        fit = replace(stream.fit, count=stream.fit.count + 1, total=stream.fit.total + error)
        return _corrected(following, fit, rules)
    return following


def spread(stream: Stream, rules: Rules) -> float:
    """Standard deviation of the noise: belief and successive differences (von Neumann 1941), by their numbers."""
    return math.sqrt((rules.believed * rules.noise**2 + stream.squares) / (rules.believed + stream.differences))


def _accumulate(side: Sum, step: float, error: float) -> Sum:
    height = side.height + step
    return Sum(height, side.count + 1, side.total + error) if height > 0 else Sum()


def _measured(stream: Stream, error: float) -> Stream:
    if stream.last is None:
        return replace(stream, last=error)
    square = (error - stream.last) ** 2 / 2
    return replace(stream, last=error, differences=stream.differences + 1, squares=stream.squares + square)


def _corrected(stream: Stream, fit: Sum, rules: Rules) -> Stream:
    """The factor that these observations call for: their mean, with some of "no drift" among them, bounded."""
    limit = math.log(rules.largest_factor)
    mean = fit.total / (fit.count + rules.shrinkage)
    return replace(stream, fit=fit, correction=max(-limit, min(limit, mean)))


# --- safeguard --------------------------------------------------------------------------------------------
_BOLDEST = 0.5
"""Largest part of the stake in one bet: no single decision can lose more than half of it."""


def bet(trial: Trial, event: Judged) -> Trial:
    """One more decision. What is bet on it follows from those before it only.

    The outcome is (tuned - before) / (tuned + before), in [-1, 1]; the part of the stake is mean / (variance + mean^2)
    so far, at least 0 and at most a half (Waudby-Smith and Ramdas 2023, section B.2), with a first outcome of 0 and a
    variance of 1/4 taken for seen.
    """
    both = event.tuned + event.before
    outcome = (event.tuned - event.before) / both if both > 0 else 0.0
    mean = trial.total / (trial.count + 1)
    raw_second = (0.25 + trial.squares) / (trial.count + 1)
    part = max(0.0, min(_BOLDEST, mean / raw_second))
    return replace(
        trial,
        count=trial.count + 1,
        total=trial.total + outcome,
        squares=trial.squares + outcome**2,
        wealth=trial.wealth + math.log1p(part * outcome),
    )


def _verdict(trial: Trial, rules: Rules) -> Phase:
    if trial.wealth >= -math.log(rules.risk):
        return Phase.ROLLED_BACK
    if trial.count < rules.window:
        return Phase.FINE_TUNED
    return Phase.STABLE if trial.total <= 0 else Phase.ROLLED_BACK


# --- snapshots --------------------------------------------------------------------------------------------
MIN_STEPS = 20
"""Fewer tell little: finished steps are whole numbers."""


def measured(before: Snapshot, after: Snapshot, placed: Mapping[str, float] | None = None) -> dict[str, Observed]:
    """What each job that computed on one placement from one snapshot to the next tells, by UID.

    `placed`: UID -> factor that was in force when the job was placed; absent for 1. Take each job and placement once.
    """
    earlier, seconds, factors = {job.uid: job for job in before.jobs}, after.time - before.time, placed or {}
    found: dict[str, Observed] = {}
    for job in after.jobs:
        known = earlier.get(job.uid)
        if job.placement is None or known is None or known.placement != job.placement or known.resuming > 0:
            continue
        steps, held = job.steps_done - known.steps_done, job.placement
        if steps >= MIN_STEPS and seconds > 0:
            predicted, factor = held.prediction.step_seconds, factors.get(job.uid, 1.0)
            found[job.uid] = Observed(held.gpu_type, seconds / steps, predicted, factor)
    return found


def slowed(snapshot: Snapshot, factors: Mapping[str, float], placed: Mapping[str, float] | None = None) -> Snapshot:
    """The snapshot with predictions as the factors correct them: what a policy shall be shown instead.

    What jobs bring as their `speeds` and what running jobs were predicted is corrected exactly. Where the performance
    model predicts, the facts of the GPU change, all its rates alike: a slower GPU, but not a slower host. Steps that
    launches of kernels bound get less slow than others, as they would. `placed` is as of `measured`.
    """
    if not factors:
        return snapshot
    given = tuple(sorted(factors.items()))
    types = _slower_types(tuple(snapshot.gpu_types.items()), given)
    jobs = tuple([_slower_job(job, snapshot.time, given, placed or {}) for job in snapshot.jobs])
    return replace(snapshot, gpu_types=types, jobs=jobs)


_Factors = tuple[tuple[str, float], ...]


@lru_cache(maxsize=64)
def _slower_types(types: tuple[tuple[str, GpuSpec], ...], factors: _Factors) -> dict[str, GpuSpec]:
    """Remembered, as are speeds, since `candidates` tells what it knows by identity."""
    by = dict(factors)
    return {name: _slower_gpu(gpu, by.get(name, 1.0)) for name, gpu in types}


def _slower_gpu(gpu: GpuSpec, factor: float) -> GpuSpec:
    return replace(
        gpu,
        memory_bandwidth=gpu.memory_bandwidth / factor,
        peak_flops={precision: peak / factor for precision, peak in gpu.peak_flops.items()},
        link_bandwidth=gpu.link_bandwidth / factor,
        network_bandwidth=gpu.network_bandwidth / factor,
        power_watts=gpu.power_watts / factor,  # the time model reads watts per FLOP/s, and they stay
    )


def _slower_job(job: Job, now: float, factors: _Factors, placed: Mapping[str, float]) -> Job:
    if job.speeds is not None:
        job = replace(job, speeds=_slower_speeds(job.speeds, factors))
    if job.placement is None:
        return job
    factor = dict(factors).get(job.placement.gpu_type, 1.0) / placed.get(job.uid, 1.0)
    finish = None if job.expected_finish is None else now + (job.expected_finish - now) * factor
    return replace(job, placement=_slower_placement(job.placement, factor), expected_finish=finish)


@lru_cache(maxsize=1 << 15)
def _slower_speeds(speeds: tuple[Speed, ...], factors: _Factors) -> tuple[Speed, ...]:
    by = dict(factors)
    return tuple(replace(row, steps_per_second=row.steps_per_second / by.get(row.gpu_type, 1.0)) for row in speeds)


def _slower_placement(held: Placement, factor: float) -> Placement:
    said = held.prediction
    corrected = Prediction(
        step_seconds=said.step_seconds * factor,
        tokens_per_second=said.tokens_per_second / factor,
        memory_bytes=said.memory_bytes,
        run_seconds=said.run_seconds * factor,
        uncertainty=said.uncertainty,
    )
    return replace(held, prediction=corrected)
