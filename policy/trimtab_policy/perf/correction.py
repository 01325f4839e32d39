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

What a job shows, its owner says. So every namespace has a book of its own, and predictions for its jobs go by that;
what it says wrong, it is told itself. What others have seen counts where several of them agree: each namespace has a
vote about a key and about a GPU type, and those near the median of all are believed (`_believed`), nobody for much more
than the others. Who shows something else than all others wherever they can be compared counts for nobody (`_doubted`).
One namespace alone thus moves nobody else's predictions, however many jobs it has and whatever it says; and a cluster
of one namespace learns as if nobody ever lied.

Only the latest jobs of a key count, and when a GPU type changes for all that runs on it (a driver, a cable, wear),
those from before the change no more. Such a change is what cumulative sums (`drift.watch`) find in the differences
between what jobs show and what was expected of them by then: a model that was always off is none, nor is another mix
of models. What a job shows early is believed for predictions until its figure has settled, and only settled figures can
be such a change. It is found in each namespace's own book; that it concerns all (`alarm`) needs two of them.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from statistics import median

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from trimtab_policy.perf import drift
from trimtab_policy.perf.plans import Option
from trimtab_policy.perf.votes import consensus
from trimtab_policy.specs import ModelSpec, ParallelPlan, Prediction, TrainingSpec
from trimtab_policy.types import Correction, Job

VERSION = 2
READABLE = (1, VERSION)
"""The first had one book for all namespaces: what stands in it is that of a namespace without a name."""
Z80 = 1.2815515655446004
"""Standard deviations on either side of the mean that four fifths of a normal distribution lie within."""
_LARGEST_ERROR = math.log(1000)
"""Whatever is beyond it is a mistake of somebody, and still finite."""
_LARGEST_COUNT = 1 << 53
AGREE = 2.0
"""Deviations from the median within which a vote agrees with it ..."""
ODD = 2.5
"""... and those beyond which all that a namespace shows is no chance."""
SMALL = 0.02
"""Differences of 2 % are none."""
MEDIAN_VARIANCE = math.pi / 2
"""Of a median of many numbers, over that of their mean."""
AT_ONE_TIME = 96
"""Lessons of all namespaces within which changes that several of them have seen are one change."""


class CorrectionRules(Struct, frozen=True, forbid_unknown_fields=True):
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
    """Keys that are remembered, of all namespaces together: those last seen. Who has most gives way first."""

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


class JobEvidence(Struct, frozen=True, array_like=True):
    """What one job showed."""

    job: str
    number: int
    """Of the lesson, over all keys: a job has a new one when its figure settles."""
    error: float
    settled: bool = True
    """Whether its figure moves no more, and was held against what was expected of it."""


class NamespaceEvidence(Struct, frozen=True):
    """The jobs of one key and one namespace, the latest last."""

    key: Key
    seen: tuple[JobEvidence, ...]
    namespace: str = ""
    """As `anonymous` calls it."""


class ShiftWatch(Struct, frozen=True):
    """Whether all that one namespace runs on a GPU type changes: jobs, and what earlier ones of their kind showed."""

    namespace: str
    gpu_type: str
    stream: drift.Stream = drift.Stream()
    changed: float = 0.0
    """ln of the factor by which step times last changed."""
    at: int = 0
    """Number of the lesson that told so; 0 for none."""
    several: bool = False
    """Whether jobs of several models have, or of the only one that is run."""


class State(Struct, frozen=True):
    """All that was learned: a value that is written down as JSON."""

    version: int = VERSION
    count: int = 0
    """Lessons so far: one when a job is first seen, and one when an early figure has settled."""
    known: tuple[NamespaceEvidence, ...] = ()
    """The key seen last comes last."""
    watches: tuple[ShiftWatch, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for what nobody could have written: figures that are none."""
        if self.version not in READABLE:
            raise ValueError(f"version {self.version} is not {VERSION}, the one that is understood here")
        if not 0 <= self.count <= _LARGEST_COUNT:
            raise ValueError(f"count must lie between 0 and {_LARGEST_COUNT}, got {self.count}")
        if not all(known.seen for known in self.known):
            raise ValueError("seen must not be empty: a key that no job has run under is left out")
        errors = [seen.error for known in self.known for seen in known.seen]
        if not all(abs(error) <= _LARGEST_ERROR for error in (*errors, *(watch.changed for watch in self.watches))):
            raise ValueError(f"errors must be finite, and at most {_LARGEST_ERROR:.2f} from 0")
        for watch in self.watches:
            if not (_is_sound(watch.stream) and 0 <= watch.at <= _LARGEST_COUNT):
                raise ValueError(f"watches: that of {watch.gpu_type} holds what no jobs could have shown")


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


class CorrectionEstimates(Struct, frozen=True):
    """What a state comes to, for the jobs of one namespace."""

    keys: dict[Key, Estimate] = {}
    types: dict[str, Estimate] = {}
    """GPU type -> for keys of it that nothing was seen of."""
    noise: float = CorrectionRules().noise

    def of(self, key: Key) -> Estimate | None:
        """None where nothing is known even of the GPU type."""
        return self.keys.get(key) or self.types.get(key.gpu_type)


def anonymous(name: str) -> str:
    """What a job or a namespace is called in what was learned: short, and nobody's secret."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


# --- keys -------------------------------------------------------------------------------------------------------------
def model_name(model: ModelSpec) -> str:
    """The preset's name, or one made of the shape: models of equal shape are one."""
    if model.name != "custom":
        return model.name
    return f"custom-{hashlib.sha256(msgspec.json.encode(model)).hexdigest()[:10]}"


def plan_class(software: str, training: TrainingSpec, plan: ParallelPlan) -> str:
    """E.g. `megatron-core/BF16/Hybrid/zero1`; stages 1 and 2 move the same data.

    Fine-tunes are classes of their own, e.g. `torchtitan/BF16+LoRA-NF4+offload/Data/zero3`: what one of them teaches
    says nothing of training all weights.
    """
    return f"{_launched(software, training)}{plan.mode}/zero{(0, 1, 1, 3)[plan.zero_stage]}"


def key_of(job: Job, gpu_type: str, plan: ParallelPlan) -> Key:
    """What a plan of the job is corrected by."""
    return Key(model_name(job.model), gpu_type, plan_class(job.requirements.software, job.training, plan))


def _launched(software: str, training: TrainingSpec) -> str:
    adapters = "" if training.adapters is UNSET else f"+LoRA-{training.adapters.quantization}"
    offload = "" if training.offload is UNSET else "+offload"
    return f"{software}/{training.precision}{adapters}{offload}/"


# --- learning ---------------------------------------------------------------------------------------------------------
def learn(
    state: State,
    key: Key,
    job: str,
    error: float,
    rules: CorrectionRules | None = None,
    *,
    namespace: str = "",
    settled: bool = True,
) -> State:
    """The state after a job of a namespace was seen, or seen again, which replaces what it had shown: one job counts
    once.

    `error` is ln(observed / predicted without correction). A figure that has not `settled` never replaces one that has.
    Raises ValueError unless the error is finite.
    """
    rules = rules or CorrectionRules()
    if not math.isfinite(error):
        raise ValueError(f"error must be a finite number, got {error}")
    error = max(-_LARGEST_ERROR, min(_LARGEST_ERROR, error))
    mine = next((known for known in state.known if (known.key, known.namespace) == (key, namespace)), None)
    others = [known for known in state.known if known is not mine]
    before = mine.seen if mine else ()
    earlier = next((seen for seen in before if seen.job == job), None)
    if earlier and (earlier.settled or not settled):
        if earlier.settled and not settled:
            return state
        again = tuple(replace(seen, error=error) if seen is earlier else seen for seen in before)
        return replace(state, version=VERSION, known=(*others, NamespaceEvidence(key, again, namespace)))
    count = min(state.count + 1, _LARGEST_COUNT)
    latest = (*(seen for seen in before if seen is not earlier), JobEvidence(job, count, error, settled))[
        -rules.window :
    ]
    known = _within(rules.keys, (*others, NamespaceEvidence(key, latest, namespace)))
    after = replace(state, version=VERSION, count=count, known=known)
    return _watched(after, key, namespace, error, _settled(state), rules) if settled else after


def forget(state: State, job: str) -> State:
    """The state without what a job has shown: it told of something else than its key."""
    if not any(seen.job == job for known in state.known for seen in known.seen):
        return state
    return replace(state, known=_only(state.known, lambda seen: seen.job != job))


def alarm(before: State, after: State, gpu_type: str) -> bool:
    """Whether the last lesson has shown that steps of all jobs on a GPU type have changed (`change`)."""
    was = {watch.namespace: watch.at for watch in before.watches if watch.gpu_type == gpu_type}
    told = (watch for watch in after.watches if watch.gpu_type == gpu_type and watch.several)
    new = any(watch.at != was.get(watch.namespace, 0) for watch in told)
    return new and change(after, gpu_type) != 0


def change(state: State, gpu_type: str) -> float:
    """ln of the factor by which steps of all jobs on a GPU type took longer when they changed last, as far as that was
    seen by two namespaces, or the only one that there is, and by several models where there are several; else 0."""
    seen = [watch for watch in state.watches if watch.gpu_type == gpu_type and watch.several]
    latest = max(seen, key=lambda watch: watch.at, default=None)
    if latest is None:
        return 0.0
    agree = [
        watch for watch in seen if latest.at - watch.at <= AT_ONE_TIME and (watch.changed > 0) == (latest.changed > 0)
    ]
    namespaces = {known.namespace for known in state.known}
    return median(watch.changed for watch in agree) if len(agree) >= min(2, len(namespaces)) else 0.0


def _models(known: Iterable[NamespaceEvidence], namespace: str, gpu_type: str) -> set[str]:
    """Models of which several jobs are known: a single one may be from just before a change."""
    jobs: Counter[str] = Counter()
    for each in known:
        if (each.namespace, each.key.gpu_type) == (namespace, gpu_type):
            jobs[each.key.model] += len(each.seen)
    return {model for model, count in jobs.items() if count > 1}


def _within(most: int, known: tuple[NamespaceEvidence, ...]) -> tuple[NamespaceEvidence, ...]:
    """So many at most: of the namespace that has most, the one not seen for longest goes first. So nobody's many models
    push out what others have taught."""
    while len(known) > most:
        held = Counter(each.namespace for each in known)
        largest = max(held.values())
        gone = next(place for place, each in enumerate(known) if held[each.namespace] == largest)
        known = (*known[:gone], *known[gone + 1 :])
    return known


def _settled(state: State) -> State:
    return replace(state, known=_only(state.known, lambda seen: seen.settled))


def _only(known: Iterable[NamespaceEvidence], which: Callable[[JobEvidence], bool]) -> tuple[NamespaceEvidence, ...]:
    kept = (replace(each, seen=tuple(seen for seen in each.seen if which(seen))) for each in known)
    return tuple(each for each in kept if each.seen)


def _watched(state: State, key: Key, namespace: str, error: float, before: State, rules: CorrectionRules) -> State:
    """The state after a settled figure was held against what the settled ones before it had made expect."""
    own = replace(before, known=tuple(known for known in before.known if known.namespace == namespace))
    expected = Learned(own, rules).by(namespace).of(key)
    mine = (namespace, key.gpu_type)
    was = next((each for each in state.watches if (each.namespace, each.gpu_type) == mine), ShiftWatch(*mine))
    stream = drift.watch(was.stream, error - (expected.mean if expected else 0.0), drift.DriftRules(noise=rules.noise))
    known, watch = state.known, replace(was, stream=stream)
    if stream.alarms > was.stream.alarms:
        known = _since(known, namespace, key.gpu_type, stream.fit.count)
        mean = stream.fit.total / stream.fit.count
        # What is expected follows by itself, from the jobs that are left: the stream has nothing to correct.
        stream = replace(stream, correction=0.0, fit=drift.Sum(), last=None)
        changed = max(-_LARGEST_ERROR, min(_LARGEST_ERROR, mean))
        run, shown = (_models(each, namespace, key.gpu_type) for each in (before.known, known))
        several = len(shown) >= min(2, len(run))
        watch = ShiftWatch(namespace, key.gpu_type, stream, changed, state.count, several)
    here = {(each.namespace, each.key.gpu_type) for each in known}
    others = (each for each in state.watches if each is not was and (each.namespace, each.gpu_type) in here)
    return replace(state, known=known, watches=(*others, watch))


def _is_sound(stream: drift.Stream) -> bool:
    sums = stream.slower, stream.faster, stream.fit
    counts = (*(each.count for each in sums), stream.differences, stream.alarms)
    figures = (*(each.height for each in sums), stream.squares, *(abs(each.total) for each in sums))
    return (
        all(0 <= count <= _LARGEST_COUNT for count in counts)
        and all(0 <= figure <= _LARGEST_COUNT for figure in figures)
        and max(abs(stream.correction), abs(stream.last or 0.0)) <= 2 * _LARGEST_ERROR
    )


def _since(
    known: Iterable[NamespaceEvidence], namespace: str, gpu_type: str, jobs: int
) -> tuple[NamespaceEvidence, ...]:
    """Only the namespace's latest so many jobs of the GPU type: those before showed how it was before it changed."""
    known = tuple(known)
    mine = [each for each in known if (each.namespace, each.key.gpu_type) == (namespace, gpu_type)]
    numbers = sorted(seen.number for each in mine for seen in each.seen if seen.settled)
    first = numbers[-jobs:][0] if numbers else 0
    latest = (_only([each], lambda seen: seen.number >= first) if each in mine else (each,) for each in known)
    return tuple(each for kept in latest for each in kept)


# --- estimates --------------------------------------------------------------------------------------------------------
class _Vote(Struct, frozen=True):
    """What one namespace has seen of one thing."""

    mean: float
    """Of ln(observed / predicted)."""
    weight: float
    """One over the variance of that, or the number of jobs."""


_NOBODY = "-"
"""A namespace that has taught nothing; no state calls one so."""
_Rows = list[tuple[Key, int, float]]
"""Of one namespace and GPU type: a key, how many jobs were seen of it, and what they show."""


class Learned:
    """What a state comes to, for each namespace; found when it is asked for, and remembered."""

    def __init__(self, state: State | None = None, rules: CorrectionRules | None = None) -> None:
        self._rules = rules or CorrectionRules()
        self._rows: dict[str, dict[str, _Rows]] = {}
        """Namespace -> GPU type -> rows."""
        self._votes: dict[Key, dict[str, _Vote]] = {}
        for known in (state or State()).known:
            errors = _robust([seen.error for seen in known.seen], self._rules.outlier * self._rules.noise)
            jobs, mean = len(errors), math.fsum(errors) / len(errors)
            self._rows.setdefault(known.namespace, {}).setdefault(known.key.gpu_type, []).append(
                (known.key, jobs, mean)
            )
            self._votes.setdefault(known.key, {})[known.namespace] = _Vote(mean, jobs)
        self._doubted = _doubted(self._rows.keys(), self._votes, self._rules)
        self._found: dict[str, CorrectionEstimates] = {}

    def __bool__(self) -> bool:
        """Whether anything was learned at all."""
        return bool(self._rows)

    def of(self, namespace: str) -> CorrectionEstimates:
        """For jobs of this namespace, by its own name."""
        return self.by(anonymous(namespace))

    def by(self, namespace: str) -> CorrectionEstimates:
        """The same by the name that it has in the state. All that have taught nothing are told the same."""
        name = namespace if namespace in self._rows else _NOBODY
        if name not in self._found:
            self._found[name] = self._for(name)
        return self._found[name]

    def factors(self) -> dict[Key, float]:
        """Key -> the factor that is used for it: of the namespaces that have seen it, the median."""
        return {
            key: median(self.by(namespace).keys[key].factor for namespace in votes)
            for key, votes in self._votes.items()
        }

    def _for(self, namespace: str) -> CorrectionEstimates:
        rules = self._rules
        own = self._rows.get(namespace, {})
        others = [rows for name, rows in self._rows.items() if name not in (namespace, *self._doubted)]
        keys: dict[Key, Estimate] = {}
        types: dict[str, Estimate] = {}
        for gpu_type in sorted({name for rows in (own, *others) for name in rows}):
            mine, theirs = own.get(gpu_type, []), [rows[gpu_type] for rows in others if gpu_type in rows]
            seen = _believed(
                _of_rows(mine, rules) if mine else None, [_of_rows(rows, rules) for rows in theirs], 1.0, alone=False
            )
            if not seen:
                continue
            mean, variance = _of_type(seen, rules)
            types[gpu_type] = Estimate(mean, math.sqrt(variance + rules.within**2), 0, rules.largest_factor)
            keys |= self._of_keys(gpu_type, namespace, mean, variance)
        return CorrectionEstimates(keys, types, rules.noise)

    def _of_keys(self, gpu_type: str, namespace: str, mean: float, variance: float) -> dict[Key, Estimate]:
        """Posterior of the keys of a GPU type, whose own error has this mean and variance."""
        found: dict[Key, Estimate] = {}
        for key, votes in self._votes.items():
            if key.gpu_type != gpu_type:
                continue
            others = [vote for name, vote in votes.items() if name not in (namespace, *self._doubted)]
            seen = _believed(votes.get(namespace), others, self._rules.noise**2, alone=True)
            if seen:
                jobs = math.fsum(vote.weight for vote in seen)
                shown = math.fsum(vote.weight * vote.mean for vote in seen) / jobs
                found[key] = _of_key(mean, variance, jobs, shown, self._rules)
        return found


def estimates(state: State, rules: CorrectionRules | None = None, namespace: str = "") -> CorrectionEstimates:
    """What is known of every key and every GPU type, for the jobs of a namespace as the state calls it."""
    return Learned(state, rules).by(namespace)


def _robust(errors: list[float], reach: float) -> list[float]:
    """Each of them, brought to within reach of the median."""
    middle = consensus(errors)
    return [max(middle - reach, min(middle + reach, error)) for error in errors]


def _of_rows(rows: _Rows, rules: CorrectionRules) -> _Vote:
    """What one namespace has seen of a GPU type."""
    weights = [1 / (rules.within**2 + rules.noise**2 / jobs) for _, jobs, _ in rows]
    means = _robust([mean for _, _, mean in rows], rules.outlier * rules.within)
    return _Vote(math.fsum(w * m for w, m in zip(weights, means, strict=True)) / math.fsum(weights), math.fsum(weights))


def _believed(own: _Vote | None, others: list[_Vote], variance: float, *, alone: bool) -> list[_Vote]:
    """What counts of what others have seen, beside a namespace's own: votes that agree, for what they have seen, with
    the median of all; none for more than twice the median of them. Two of them at least; or one, where it may stand
    `alone` beside the namespace's own.

    `variance` is that of a vote of weight 1.
    """
    mine = [own] if own else []
    least = 1 if own and alone else 2
    if len(others) < least:
        return mine
    middle, usual = median(vote.mean for vote in (*others, *mine)), median(vote.weight for vote in others)
    agree = [
        replace(vote, weight=min(vote.weight, 2 * usual))
        for vote in others
        if abs(vote.mean - middle) <= AGREE * math.sqrt(variance / vote.weight) + SMALL
    ]
    return [*mine, *agree] if len(agree) >= least else mine


def _doubted(
    namespaces: Iterable[str], votes: Mapping[Key, Mapping[str, _Vote]], rules: CorrectionRules
) -> frozenset[str]:
    """Namespaces that count for nobody else, because their jobs show something else than those of all others wherever
    both can be compared. Found one after the other, the oddest first: what a liar says makes the honest look odd, too.
    """
    here, out = set(namespaces), set[str]()
    while len(here) > 2:  # of two nobody can tell which one it is
        odd = {name: apart for name in here if (apart := _apart(name, here - {name}, votes, rules)) > 1}
        if not odd:
            break
        if len(here) == 3:  # the median of two others, of which one may lie, is half a lie: who agree best stay
            odd = {name: min(_apart(name, {other}, votes, rules) for other in here - {name}) for name in here}
        worst = max(sorted(odd), key=lambda name: odd[name])
        here.discard(worst)
        out.add(worst)
    return frozenset(out)


def _apart(name: str, beside: Set[str], votes: Mapping[Key, Mapping[str, _Vote]], rules: CorrectionRules) -> float:
    """How far what a namespace shows lies from the median of these, over all keys that two of them have seen, too (or
    the one that is asked about): on average, or in its spread; over what chance would do. 0 where nothing can be
    compared."""
    least = min(2, len(beside))
    compared = 0
    weights = total = squares = 0.0
    for of_key in votes.values():
        others = [vote for other, vote in of_key.items() if other in beside]
        if name not in of_key or len(others) < least:
            continue
        vote, compared = of_key[name], compared + 1
        doubt = (MEDIAN_VARIANCE if len(others) > 1 else 1) / math.fsum(each.weight for each in others)
        variance = rules.noise**2 * (1 / vote.weight + doubt)
        apart = vote.mean - median(each.mean for each in others)
        weights, total, squares = weights + 1 / variance, total + apart / variance, squares + apart**2 / variance
    if not compared:
        return 0.0
    bias = abs(total / weights) / max(SMALL, ODD / math.sqrt(weights))
    spread = squares / compared / max(ODD, 1 + 3 * math.sqrt(2 / compared))
    return max(bias, spread)


def _of_type(seen: list[_Vote], rules: CorrectionRules) -> tuple[float, float]:
    """Posterior mean and variance of a GPU type's error."""
    precision = 1 / rules.prior**2 + math.fsum(vote.weight for vote in seen)
    return math.fsum(vote.weight * vote.mean for vote in seen) / precision, 1 / precision


def _of_key(mean: float, variance: float, jobs: float, seen: float, rules: CorrectionRules) -> Estimate:
    """Posterior of a key: given the type's error it is normal; over the type's own posterior it is again."""
    above, own = 1 / rules.within**2, jobs / rules.noise**2
    share = above / (above + own)
    deviation = math.sqrt(1 / (above + own) + share**2 * variance)
    return Estimate(share * mean + (1 - share) * seen, deviation, round(jobs), rules.largest_factor)


# --- use --------------------------------------------------------------------------------------------------------------
class Corrections:
    """What is to be corrected in predictions for jobs; remembered, since jobs of one kind are many."""

    def __init__(self, known: Learned) -> None:
        self.known = known
        self._found: dict[tuple[str, ModelSpec, str], tuple[Correction, ...]] = {}

    def of(self, job: Job) -> tuple[Correction, ...]:
        """Of its model and software per class of plan, else per GPU type; nothing for a job with speeds of its own."""
        if job.speeds is not None or not self.known:
            return ()
        source = job.namespace, job.model, _launched(job.requirements.software, job.training)
        found = self._found.get(source)
        if found is None:
            found = self._found[source] = tuple(self._rows(*source))
        return found

    def _rows(self, namespace: str, model: ModelSpec, launched: str) -> Iterator[Correction]:
        """Factors have three digits: less is nothing to decide anew for."""
        name, known = model_name(model), self.known.of(namespace)
        for gpu_type, each in known.types.items():
            yield _correction(gpu_type, "", each, known.noise)
        for key, each in sorted(known.keys.items()):
            if key.model == name and key.plan.startswith(launched):
                yield _correction(key.gpu_type, key.plan, each, known.noise)


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
    return table.get(plan_class(job.requirements.software, job.training, plan)) or table.get("")


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
