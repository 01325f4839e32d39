"""By how much predictions are to be corrected, from how long steps of running jobs were seen to take.

A job that has run long enough gives one number, ln(observed / predicted step time), the prediction taken without any
correction. It belongs to a key: the model, the GPU type, and the class of its plan, which is what the performance
model's error depends on most: the software, the number format, the mode, and what ZeRO shards (nothing, states,
parameters). What is known of a key is a posterior (normal, two levels; Gelman et al., Bayesian Data Analysis, 5.4):

    error of a GPU type     t ~ N(0, prior^2)           shared by all that runs on it: clocks, drivers, the network
    error of a key          k ~ N(t, within^2)
    what one job shows      x ~ N(k, noise^2)

so that one job moves a prediction a little, many jobs all the way, and a key that no job has run under takes what is
known of its GPU type. It is the simplest form that has these three properties, and its answer does not depend on the
order in which jobs came. One job that went wrong must not spoil its key, nor one odd model its GPU type: numbers count
no more than `outlier` deviations from the median of their kind, in which "no error" has one vote.

Only the latest jobs of a key count, and when a GPU type changes for all that runs on it (a driver, a cable, wear),
those from before the change no more. Such a change is what cumulative sums (`drift.watch`) find in the differences
between what jobs show and what was expected of them by then: a model that was always off is none, nor is another mix
of models. What a job shows early is believed for predictions until its figure has settled, and only settled figures can
be such a change.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy import drift
from trimtab_policy.perf.plans import Option
from trimtab_policy.specs import ModelSpec, ParallelPlan, Precision, Prediction
from trimtab_policy.types import Correction, Job

VERSION = 1
Z80 = 1.2815515655446004
"""Standard deviations on either side of the mean that four fifths of a normal distribution lie within."""
_LARGEST_ERROR = math.log(1000)
"""Whatever is beyond it is a mistake of somebody, and still finite."""
_LARGEST_COUNT = 1 << 53


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """How much is believed of what is seen. Deviations are of logarithms: 0.15 is about 15 %."""

    prior: float = 0.08
    """Of a GPU type's error, before anything was seen: several models must agree before all of a type is in doubt."""
    within: float = 0.15
    """Of the keys' errors of one GPU type."""
    noise: float = 0.15
    """Of the jobs of one key."""
    outlier: float = 3.0
    """In units of the noise."""
    largest_factor: float = 3.0
    """Bound of a correction, and of its inverse."""
    window: int = 24
    """Jobs of a key that count: the latest."""
    keys: int = 512
    """Keys that are remembered: those last seen."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        for name in ("prior", "within", "noise", "outlier"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number above 0, got {getattr(self, name)}")
        if not 1 < self.largest_factor < math.inf:
            raise ValueError(f"largest_factor must be finite and above 1, got {self.largest_factor}")
        if self.window < 1 or self.keys < 1:
            raise ValueError(f"window and keys must be at least 1, got {self.window} and {self.keys}")


class Key(Struct, frozen=True, order=True):
    """What predictions are corrected by."""

    model: str
    gpu_type: str
    plan: str


class Seen(Struct, frozen=True, array_like=True):
    """What one job showed."""

    job: str
    number: int
    """Of the lesson, over all keys: a job has a new one when its figure settles."""
    error: float
    settled: bool = True
    """Whether its figure moves no more, and was held against what was expected of it."""


class Known(Struct, frozen=True):
    """The jobs of one key, the latest last."""

    key: Key
    seen: tuple[Seen, ...]


class State(Struct, frozen=True):
    """All that was learned: a value that is written down as JSON."""

    version: int = VERSION
    count: int = 0
    """Lessons so far: one when a job is first seen, and one when an early figure has settled."""
    known: tuple[Known, ...] = ()
    """The key seen last comes last."""
    streams: dict[str, drift.Stream] = {}
    """GPU type -> whether all that runs on it changes: jobs against what earlier ones of their kind had shown."""
    changed: dict[str, float] = {}
    """GPU type -> ln of the factor by which step times last changed for all that runs on it."""

    def __post_init__(self) -> None:
        """Raise ValueError for what nobody could have written: figures that are none."""
        if self.version != VERSION:
            raise ValueError(f"version {self.version} is not {VERSION}, the one that is understood here")
        if not 0 <= self.count <= _LARGEST_COUNT:
            raise ValueError(f"count must lie between 0 and {_LARGEST_COUNT}, got {self.count}")
        if not all(known.seen for known in self.known):
            raise ValueError("seen must not be empty: a key that no job has run under is left out")
        errors = [seen.error for known in self.known for seen in known.seen]
        if not all(abs(error) <= _LARGEST_ERROR for error in (*errors, *self.changed.values())):
            raise ValueError(f"errors must be finite, and at most {_LARGEST_ERROR:.2f} from 0")
        for gpu_type, stream in self.streams.items():
            if not _is_sound(stream):
                raise ValueError(f"streams: that of {gpu_type} holds what no jobs could have shown")


class Estimate(Struct, frozen=True):
    """By how much steps take longer than predicted, as far as is known."""

    mean: float
    """Of ln(observed / predicted)."""
    deviation: float
    jobs: int
    """That were seen of the very key; 0: what is known of its GPU type."""
    largest_factor: float

    @property
    def factor(self) -> float:
        """Observed over predicted, bounded."""
        return self._bounded(self.mean)

    @property
    def low(self) -> float:
        """Lower end of the 80 % interval of the factor."""
        return self._bounded(self.mean - Z80 * self.deviation)

    @property
    def high(self) -> float:
        return self._bounded(self.mean + Z80 * self.deviation)

    def _bounded(self, error: float) -> float:
        return min(self.largest_factor, max(1 / self.largest_factor, math.exp(error)))


class Estimates(Struct, frozen=True):
    """What a state comes to."""

    keys: dict[Key, Estimate] = {}
    types: dict[str, Estimate] = {}
    """GPU type -> for keys of it that nothing was seen of."""
    noise: float = Rules().noise

    def of(self, key: Key) -> Estimate | None:
        """None where nothing is known even of the GPU type."""
        return self.keys.get(key) or self.types.get(key.gpu_type)


# --- keys -------------------------------------------------------------------------------------------------------------
def model_name(model: ModelSpec) -> str:
    """The preset's name, or one made of the shape: models of equal shape are one."""
    if model.name != "custom":
        return model.name
    return f"custom-{hashlib.sha256(msgspec.json.encode(model)).hexdigest()[:10]}"


def plan_class(software: str, precision: Precision, plan: ParallelPlan) -> str:
    """E.g. `megatron-core/BF16/Hybrid/zero1`; stages 1 and 2 move the same data."""
    return f"{_launched(software, precision)}{plan.mode}/zero{(0, 1, 1, 3)[plan.zero_stage]}"


def key_of(job: Job, gpu_type: str, plan: ParallelPlan) -> Key:
    """What a plan of the job is corrected by."""
    return Key(model_name(job.model), gpu_type, plan_class(job.requirements.software, job.training.precision, plan))


def _launched(software: str, precision: Precision) -> str:
    return f"{software}/{precision}/"


# --- learning ---------------------------------------------------------------------------------------------------------
def learn(state: State, key: Key, job: str, error: float, rules: Rules | None = None, *, settled: bool = True) -> State:
    """The state after a job was seen, or seen again, which replaces what it had shown: one job counts once.

    `error` is ln(observed / predicted without correction). A figure that has not `settled` never replaces one that has.
    Raises ValueError unless the error is finite.
    """
    rules = rules or Rules()
    if not math.isfinite(error):
        raise ValueError(f"error must be a finite number, got {error}")
    error = max(-_LARGEST_ERROR, min(_LARGEST_ERROR, error))
    others = [known for known in state.known if known.key != key]
    before = next((known.seen for known in state.known if known.key == key), ())
    earlier = next((seen for seen in before if seen.job == job), None)
    if earlier and (earlier.settled or not settled):
        if earlier.settled and not settled:
            return state
        again = tuple(replace(seen, error=error) if seen is earlier else seen for seen in before)
        return replace(state, known=(*others, Known(key, again)))
    count = state.count + 1
    mine = (*(seen for seen in before if seen is not earlier), Seen(job, count, error, settled))[-rules.window :]
    known = (*others, Known(key, mine))[-rules.keys :]
    if not settled:
        return replace(state, count=count, known=known)
    return _watched(replace(state, count=count, known=known), key, error, _settled(state), rules)


def forget(state: State, job: str) -> State:
    """The state without what a job has shown: it told of something else than its key."""
    if not any(seen.job == job for known in state.known for seen in known.seen):
        return state
    return replace(state, known=_only(state.known, lambda seen: seen.job != job))


def _settled(state: State) -> State:
    return replace(state, known=_only(state.known, lambda seen: seen.settled))


def _only(known: Iterable[Known], which: Callable[[Seen], bool]) -> tuple[Known, ...]:
    kept = (Known(each.key, tuple(seen for seen in each.seen if which(seen))) for each in known)
    return tuple(each for each in kept if each.seen)


def _watched(state: State, key: Key, error: float, before: State, rules: Rules) -> State:
    """The state after a settled figure was held against what the settled ones before it had made expect."""
    expected = estimates(before, rules).of(key)
    was = state.streams.get(key.gpu_type, drift.Stream())
    stream = drift.watch(was, error - (expected.mean if expected else 0.0), drift.Rules(noise=rules.noise))
    known, changed = state.known, state.changed
    if stream.alarms > was.alarms:
        known = _since(known, key.gpu_type, stream.fit.count)
        mean = stream.fit.total / stream.fit.count
        changed = {**changed, key.gpu_type: max(-_LARGEST_ERROR, min(_LARGEST_ERROR, mean))}
        # What is expected follows by itself, from the jobs that are left: the stream has nothing to correct.
        stream = replace(stream, correction=0.0, fit=drift.Sum(), last=None)
    return State(VERSION, state.count, known, {**state.streams, key.gpu_type: stream}, changed)


def _is_sound(stream: drift.Stream) -> bool:
    sums = stream.slower, stream.faster, stream.fit
    counts = (*(each.count for each in sums), stream.differences, stream.alarms)
    figures = (*(each.height for each in sums), stream.squares, *(abs(each.total) for each in sums))
    return (
        all(0 <= count <= _LARGEST_COUNT for count in counts)
        and all(0 <= figure <= _LARGEST_COUNT for figure in figures)
        and max(abs(stream.correction), abs(stream.last or 0.0)) <= 2 * _LARGEST_ERROR
    )


def _since(known: Iterable[Known], gpu_type: str, jobs: int) -> tuple[Known, ...]:
    """Only the latest so many jobs of the GPU type: those before showed how it was before it changed."""
    known = tuple(known)
    of_type = [seen for each in known if each.key.gpu_type == gpu_type for seen in each.seen]
    numbers = sorted(seen.number for seen in of_type if seen.settled)
    first = numbers[-jobs:][0] if numbers else 0
    latest = (
        _only([each], lambda seen: seen.number >= first) if each.key.gpu_type == gpu_type else (each,) for each in known
    )
    return tuple(each for kept in latest for each in kept)


# --- estimates --------------------------------------------------------------------------------------------------------
def estimates(state: State, rules: Rules | None = None) -> Estimates:
    """What is known of every key and every GPU type."""
    rules = rules or Rules()
    by_type: dict[str, list[tuple[Key, int, float]]] = {}
    for known in state.known:
        errors = _robust([seen.error for seen in known.seen], rules.outlier * rules.noise)
        row = known.key, len(known.seen), math.fsum(errors) / len(errors)
        by_type.setdefault(known.key.gpu_type, []).append(row)
    keys: dict[Key, Estimate] = {}
    types: dict[str, Estimate] = {}
    for gpu_type, rows in sorted(by_type.items()):
        mean, variance = _of_type(rows, rules)
        spread = math.sqrt(variance + rules.within**2)
        types[gpu_type] = Estimate(mean, spread, 0, rules.largest_factor)
        for key, jobs, seen in rows:
            keys[key] = _of_key(mean, variance, jobs, seen, rules)
    return Estimates(keys, types, rules.noise)


def _robust(errors: list[float], reach: float) -> list[float]:
    """Each of them, brought to within reach of the median."""
    voters = sorted([*errors, 0.0])
    low, high = voters[(len(voters) - 1) // 2], voters[len(voters) // 2]
    middle = min(max(0.0, low), high)
    return [max(middle - reach, min(middle + reach, error)) for error in errors]


def _of_type(rows: list[tuple[Key, int, float]], rules: Rules) -> tuple[float, float]:
    """Posterior mean and variance of a GPU type's error."""
    weights = [1 / (rules.within**2 + rules.noise**2 / jobs) for _, jobs, _ in rows]
    means = _robust([mean for _, _, mean in rows], rules.outlier * rules.within)
    precision = 1 / rules.prior**2 + math.fsum(weights)
    total = math.fsum(weight * mean for weight, mean in zip(weights, means, strict=True))
    return total / precision, 1 / precision


def _of_key(mean: float, variance: float, jobs: int, seen: float, rules: Rules) -> Estimate:
    """Posterior of a key: given the type's error it is normal; over the type's own posterior it is again."""
    above, own = 1 / rules.within**2, jobs / rules.noise**2
    share = above / (above + own)
    deviation = math.sqrt(1 / (above + own) + share**2 * variance)
    return Estimate(share * mean + (1 - share) * seen, deviation, jobs, rules.largest_factor)


# --- use --------------------------------------------------------------------------------------------------------------
class Corrections:
    """What is to be corrected in predictions for jobs; remembered, since jobs of one kind are many."""

    def __init__(self, known: Estimates) -> None:
        self.known = known
        self._found: dict[tuple[ModelSpec, str, Precision], tuple[Correction, ...]] = {}

    def of(self, job: Job) -> tuple[Correction, ...]:
        """Of its model and software per class of plan, else per GPU type; nothing for a job with speeds of its own."""
        if job.speeds is not None or not self.known.types:
            return ()
        source = job.model, job.requirements.software, job.training.precision
        found = self._found.get(source)
        if found is None:
            found = self._found[source] = tuple(self._rows(*source))
        return found

    def _rows(self, model: ModelSpec, software: str, precision: Precision) -> Iterator[Correction]:
        """Factors have three digits: less is nothing to decide anew for."""
        name, launched = model_name(model), _launched(software, precision)
        for gpu_type, each in self.known.types.items():
            yield _correction(gpu_type, "", each, self.known.noise)
        for key, each in sorted(self.known.keys.items()):
            if key.model == name and key.plan.startswith(launched):
                yield _correction(key.gpu_type, key.plan, each, self.known.noise)


def _correction(gpu_type: str, plan: str, estimate: Estimate, noise: float) -> Correction:
    of_next = math.hypot(estimate.deviation, noise)
    return Correction(gpu_type, plan, round(estimate.factor, 3), round(math.exp(Z80 * of_next), 3))


def corrected(options: tuple[Option, ...], gpu_type: str, job: Job) -> tuple[Option, ...]:
    """The options of one GPU type with predictions as corrected, by GPUs, then by speed; the same ones without any.

    Which plan is the fastest on given GPUs the performance model has said before; corrections say which GPUs then are.
    """
    if not job.corrections:
        return options
    table = {each.plan: each for each in job.corrections if each.gpu_type == gpu_type}
    if not table:
        return options
    found = [
        replace(each, prediction=_stretched(each.prediction, _for_plan(table, job, each.plan))) for each in options
    ]
    return tuple(sorted(found, key=lambda each: (each.gpus, each.prediction.step_seconds)))


def _for_plan(table: Mapping[str, Correction], job: Job, plan: ParallelPlan) -> Correction | None:
    return table.get(plan_class(job.requirements.software, job.training.precision, plan)) or table.get("")


def _stretched(said: Prediction, by: Correction | None) -> Prediction:
    if by is None:
        return said
    return replace(
        said,
        step_seconds=said.step_seconds * by.factor,
        tokens_per_second=said.tokens_per_second / by.factor,
        run_seconds=said.run_seconds * by.factor,
        uncertainty=min(said.uncertainty, by.uncertainty) if said.uncertainty > 1 else said.uncertainty,
        correction=by.factor,
    )
