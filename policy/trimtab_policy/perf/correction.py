"""By how much predictions are to be corrected, from how long steps of running jobs were seen to take.

A job that has run long enough gives one number, ln(observed / predicted step time), the prediction taken without any
correction. It belongs to a key: the GPU type, the framework with its number format, the model, the class of its plan
(the mode, and what ZeRO shards), and how the gang lies in link domains (`Locality`). Errors are shared from the whole
to its parts, as a tree of normal distributions (Gelman et al., Bayesian Data Analysis, 5.4): what is off in

    the cluster                 ~ N(0, cluster^2)                drivers, the network, how it is run
    a GPU type in it            ~ N(the cluster's, gpu_type^2)   clocks, memory, links
    a framework on that         ~ N(the type's, framework^2)     releases, kernels, settings
    a model with that           ~ N(the framework's, model^2)
    a class of plans of that    ~ N(the model's, plan^2)
    a locality of that          ~ N(the class's, locality^2)     links and network that are not as the data sheet says
    what one job shows          ~ N(the locality's, noise^2)

so that one job moves a prediction a little, many jobs all the way, and a key that no job has run under takes what is
known of the nearest thing that one has. The answer does not depend on the order in which jobs came, and comes with its
variance: what is unknown of each level, and the noise of a job, are the interval of a corrected prediction. By how much
things of one level differ is believed beforehand and learned like all else (`Spreads`; empirical Bayes by expectation
maximisation, Dempster, Laird and Rubin 1977): where models are all alike one speaks for the others, where they differ
it does not, and the interval says so. One job that went wrong must not spoil its key, nor one odd model its GPU type:
numbers count no more than `outlier` deviations from the median of their kind, in which "no error" has one vote.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from enum import StrEnum
from statistics import median
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from trimtab_policy.perf import drift
from trimtab_policy.perf.plans import Option
from trimtab_policy.perf.votes import consensus
from trimtab_policy.specs import ModelSpec, ParallelPlan, Prediction, TrainingSpec
from trimtab_policy.types import Correction, Job

VERSION = 3
READABLE = (1, 2, VERSION)
"""The first had one book for all namespaces: what stands in it is that of a namespace without a name. The second did
not tell how gangs lay: their locality is unknown."""
Z80 = 1.2815515655446004
"""Standard deviations on either side of the mean that four fifths of a normal distribution lie within."""
_LARGEST_ERROR = math.log(1000)
"""Whatever is beyond it is a mistake of somebody, and still finite."""
_LARGEST_COUNT = 1 << 53
AGREE = 2.0
"""Deviations from the median within which a vote agrees with it ..."""
PAIR = 0.5
"""... and of the difference of two within which they agree, where there is no third: their median is half a lie."""
ODD = 2.5
"""Deviations beyond which all that a namespace shows is no chance."""
SMALL = 0.02
"""Differences of 2 % are none."""
MEDIAN_VARIANCE = math.pi / 2
"""Of a median of many numbers, over that of their mean."""
AT_ONE_TIME = 96
"""Lessons of all namespaces within which changes that several of them have seen are one change."""


class Locality(StrEnum):
    """How a gang lies in link domains."""

    UNKNOWN = ""
    """Nobody has said: what was learned before it was told apart."""
    LINKED = "linked"
    """All of its GPUs share a link: those of one node, or of one link domain of several nodes."""
    PARTS = "parts"
    """Equal parts of several nodes in each of several link domains."""
    SCATTERED = "scattered"
    """Some node shares a link with no other."""


class Level(StrEnum):
    """What an error is shared by, from the whole to its parts; each is one of a part of the one before."""

    CLUSTER = "cluster"
    GPU_TYPE = "gpu_type"
    FRAMEWORK = "framework"
    MODEL = "model"
    PLAN = "plan"
    LOCALITY = "locality"


LEVELS = tuple(Level)
DEPTH = len(LEVELS) - 1
"""Of a key: parts of its path."""
Path = tuple[str, ...]
"""GPU type, framework, model, class of plans, locality; or the first few of them: a level's."""


class CorrectionRules(Struct, frozen=True, forbid_unknown_fields=True):
    """How much is believed of what is seen. Deviations are of logarithms: 0.15 is about 15 %."""

    cluster: float = 0.05
    """Of what is off in all of a cluster, before anything was seen: several GPU types must agree on it."""
    gpu_type: float = 0.08
    """Of the GPU types of a cluster: several models must agree before all of a type is in doubt."""
    framework: float = 0.05
    """Of the frameworks and number formats on one GPU type."""
    model: float = 0.08
    """Of the models that one framework trains there."""
    plan: float = 0.11
    """Of the classes of plans of one model."""
    locality: float = 0.05
    """Of the ways to lie in link domains that gangs of one class have."""
    noise: float = 0.15
    """Of the jobs of one key."""
    believed: float = 4.0
    """Jobs that the belief about the noise is worth, and members of a level that the belief about their spread is."""
    wider: float = 4.0
    """Bound of what is learned of a spread, as a factor of its belief, and its inverse."""
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
        for name in (*(level.value for level in Level), "noise", "outlier", "believed"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number above 0, got {getattr(self, name)}")
        for name in ("wider", "largest_factor"):
            if not 1 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and above 1, got {getattr(self, name)}")
        if self.window < 1 or self.keys < 1:
            raise ValueError(f"window and keys must be at least 1, got {self.window} and {self.keys}")


class Key(Struct, frozen=True, order=True):
    """What predictions are corrected by."""

    model: str
    gpu_type: str
    plan: str
    """The class of plans (`plan_class`), which begins with framework and number format."""
    locality: Locality = Locality.UNKNOWN

    @property
    def path(self) -> Path:
        """From the GPU type to the locality."""
        return self.gpu_type, _framework(self.plan), self.model, self.plan, self.locality


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
    """Of what is asked about; what single jobs differ by comes on top of it (`CorrectionEstimates.noise`)."""
    level: Level
    """The nearest level that anything was seen of: `LOCALITY` where jobs of the very key were."""
    jobs: int
    """That were seen of it."""
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
    groups: dict[Path, Estimate] = {}
    """Of each level above: for keys of it that nothing was seen of."""
    noise: float = CorrectionRules().noise
    """What jobs of one key differ by, as far as is known."""
    measured: float = 0.0
    """How much of the spreads that deviations follow from was seen here, and not believed beforehand: 0 to 1."""

    def of(self, key: Key) -> Estimate | None:
        """Of the nearest level that anything is known of; None where nothing is known even of the cluster."""
        return self.keys.get(key) or self.near(key.path[:-1])

    def next(self, estimate: Estimate) -> tuple[float, float]:
        """The 80 % interval of what the next such job shows: observed over predicted, without any correction."""
        width = self.unsure(estimate)
        return estimate.factor / width, estimate.factor * width

    def unsure(self, estimate: Estimate) -> float:
        """Factor of the 80 % interval of what the next such job shows."""
        return math.exp(Z80 * math.hypot(estimate.deviation, self.noise))

    def near(self, path: Path) -> Estimate | None:
        """The same of a level's path."""
        found = (self.groups.get(path[:length]) for length in range(len(path), -1, -1))
        return next((each for each in found if each), None)


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


def key_of(job: Job, gpu_type: str, plan: ParallelPlan, lies: Locality = Locality.UNKNOWN) -> Key:
    """What a plan of the job is corrected by, on a gang that lies so."""
    return Key(model_name(job.model), gpu_type, plan_class(job.requirements.software, job.training, plan), lies)


def locality(gpus: int, nodes: int, linked: int) -> Locality:
    """How a gang lies of whose GPUs so many share a link at least (`Option.linked`); 0: links end at the node."""
    if nodes == 1 or linked >= gpus:
        return Locality.LINKED
    return Locality.PARTS if linked > gpus // nodes else Locality.SCATTERED


def _framework(plan: str) -> str:
    """What a class of plans has in common with others of its framework and number format."""
    return plan.rsplit("/", 2)[0]


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
class _Vote(NamedTuple):
    """What one namespace has seen of one thing."""

    mean: float
    """Of ln(observed / predicted)."""
    weight: float
    """One over the variance of that."""
    jobs: float
    """That have shown it."""


class Spreads(NamedTuple):
    """By how much things of one kind differ: variances of ln(observed / predicted)."""

    levels: tuple[float, ...]
    """Of each level, from the cluster on, around the one above."""
    noise: float
    """Of the jobs of one key."""
    scale: float = 1.0
    """Over what is believed: of keys, from what others of their kind make expect of them."""


_NOBODY = "-"
"""A namespace that has taught nothing; no state calls one so."""
_ROUNDS = 3
"""Of expectation and maximisation: a fourth one changes spreads by less than 2 %."""
_Leaves = dict[Path, _Vote]
"""Of one namespace: what it has seen of each key."""


class Learned:
    """What a state comes to, for each namespace; found when it is asked for, and remembered."""

    def __init__(self, state: State | None = None, rules: CorrectionRules | None = None) -> None:
        self._rules = rules or CorrectionRules()
        self._belief = Spreads(tuple(getattr(self._rules, level.value) ** 2 for level in LEVELS), self._rules.noise**2)
        self._errors: dict[str, dict[Path, list[float]]] = {}
        """Namespace -> key -> what its jobs show."""
        self._keys: dict[Path, Key] = {}
        for known in (state or State()).known:
            path = known.key.path
            self._keys[path] = known.key
            self._errors.setdefault(known.namespace, {})[path] = [seen.error for seen in known.seen]
        self._leaves = {name: self._seen_of(errors, self._belief) for name, errors in self._errors.items()}
        self._votes: dict[str, _Leaves] = {}
        self._shown = {name: self._differences(errors) for name, errors in self._errors.items()}
        """What each namespace has seen of the spreads: of keys over their belief, of the noise, and of each level from
        the GPU type on."""
        self._doubted = _doubted(self._leaves.keys(), _by_path(self._leaves))
        self._found: dict[str, CorrectionEstimates] = {}

    def __bool__(self) -> bool:
        """Whether anything was learned at all."""
        return bool(self._leaves)

    def of(self, namespace: str) -> CorrectionEstimates:
        """For jobs of this namespace, by its own name."""
        return self.by(anonymous(namespace))

    def by(self, namespace: str) -> CorrectionEstimates:
        """The same by the name that it has in the state. All that have taught nothing are told the same."""
        name = namespace if namespace in self._leaves else _NOBODY
        if name not in self._found:
            self._found[name] = self._for(name)
        return self._found[name]

    def spreads(self, namespace: str) -> Spreads:
        """By how much things differ as a namespace is told, by its name in the state: what it has seen itself, and what
        others have, where several agree."""
        shown, others = self._shown.get(namespace), self._others(namespace)

        def seen(place: int) -> list[_Vote]:
            theirs = [vote for name in others if (vote := self._shown[name][place])]
            return _believed(shown[place] if shown else None, theirs)

        spreads = Spreads(self._belief.levels, self._learned(self._belief.noise, seen(1)), self._learned(1.0, seen(0)))
        return self._with_levels(spreads, [seen(place) for place in range(2, 2 + DEPTH)])

    def factors(self) -> dict[Key, float]:
        """Key without locality -> the factor that is used for it: of the namespaces that have seen it, the median."""
        seen: dict[Path, list[float]] = {}
        for namespace, leaves in self._leaves.items():
            groups = self.by(namespace).groups
            for path in {leaf[:-1] for leaf in leaves}:
                seen.setdefault(path, []).append(groups[path].factor)
        return {Key(path[2], path[0], path[3]): median(said) for path, said in seen.items()}

    def _others(self, namespace: str) -> list[str]:
        """Who counts for others than themselves."""
        return [name for name in self._leaves if name not in (namespace, *self._doubted)]

    def _for(self, namespace: str) -> CorrectionEstimates:
        spreads, others = self.spreads(namespace), self._others(namespace)
        votes, seen = {name: self._for_others(name) for name in others}, dict[Path, list[_Vote]]()
        own = self._upwards(self._seen_of(self._errors.get(namespace, {}), spreads), spreads)
        for path, said in _by_path(votes).items():
            seen[path] = _believed(own.get(path), list(said.values()), alone=len(path) >= DEPTH - 1)
        seen |= {path: [vote] for path, vote in own.items() if path not in seen}
        keys: dict[Key, Estimate] = {}
        groups: dict[Path, Estimate] = {}
        for path, (mean, variance) in _downwards(seen, spreads, spreads.noise / self._belief.noise).items():
            if not seen[path]:
                continue
            below, jobs = math.fsum(spreads.levels[len(path) + 1 :]), round(math.fsum(vote.jobs for vote in seen[path]))
            found = Estimate(mean, math.sqrt(variance + below), LEVELS[len(path)], jobs, self._rules.largest_factor)
            if len(path) == DEPTH:
                keys[self._keys[path]] = found
            else:
                groups[path] = found
        jobs = groups[()].jobs if () in groups else 0
        return CorrectionEstimates(keys, groups, math.sqrt(spreads.noise), jobs / (jobs + self._rules.believed))

    def _for_others(self, namespace: str) -> _Leaves:
        """What one namespace has seen of its keys and of all that they are part of, as others may believe it."""
        if namespace not in self._votes:
            self._votes[namespace] = self._upwards(self._leaves[namespace], self._belief)
        return self._votes[namespace]

    def _seen_of(self, errors: Mapping[Path, list[float]], spreads: Spreads) -> _Leaves:
        """What one namespace has seen of each key; where keys are far apart, single jobs may be, too."""
        reach = self._rules.outlier * self._rules.noise * max(1.0, math.sqrt(spreads.scale))
        found = {}
        for path, shown in errors.items():
            near = _robust(shown, reach)
            found[path] = _Vote(math.fsum(near) / len(near), len(near) / self._belief.noise, len(near))
        return found

    def _differences(self, errors: Mapping[Path, list[float]]) -> tuple[_Vote | None, ...]:
        """What one namespace has seen of each spread: the logarithm of a mean square, from so many differences.

        The scale is that of keys, each held against what the others make expect of it. Then expectation and
        maximisation: what is learned of the levels tells how far apart things are, and the other way.
        """
        most = 2 * self._rules.outlier * self._rules.noise
        counted = [_squares(shown, most) for shown in errors.values()]
        noise = _spread_vote(sum(n for n, _ in counted), math.fsum(s for _, s in counted), self._belief.noise)
        believed = self._belief._replace(noise=self._learned(self._belief.noise, [noise] if noise else []))
        leaves = self._seen_of(errors, believed)
        expected = _expected(self._upwards(leaves, believed), believed)
        squares = sorted(
            (math.fsum(shown) / len(shown) - mean) ** 2 / (variance + believed.noise / len(shown))
            for path, shown in errors.items()
            for mean, variance in (expected[path],)
        )[:-1]  # one odd key, or one broken job, is no reason to expect it of all
        capped = math.fsum(min(self._rules.outlier**2, square) for square in squares)
        scale = _spread_vote(len(squares), capped, 1.0)
        spreads = believed._replace(scale=self._learned(1.0, [scale] if scale else []))
        spreads, found = self._with_levels(spreads, [[]] * DEPTH), list[_Vote | None]()
        leaves = self._seen_of(errors, spreads)
        for _ in range(_ROUNDS):
            apart = _apart_by_level(self._upwards(leaves, spreads), spreads, self._rules.outlier)
            found = [
                _spread_vote(count, total, belief)
                for (count, total), belief in zip(apart, self._belief.levels[1:], strict=True)
            ]
            spreads = self._with_levels(spreads, [[vote] if vote else [] for vote in found])
        return scale, noise, *found

    def _with_levels(self, spreads: Spreads, seen: Sequence[Sequence[_Vote]]) -> Spreads:
        """The spreads with levels as they are believed to be at this scale, and as they were seen."""
        levels = (
            self._learned(belief * spreads.scale, votes)
            for belief, votes in zip(self._belief.levels, ((), *seen), strict=True)
        )
        return spreads._replace(levels=tuple(levels))

    def _upwards(self, leaves: _Leaves, spreads: Spreads) -> dict[Path, _Vote]:
        """What one namespace has seen of its keys and of all that they are part of, by what they show alone.

        Parts are brought to within reach of their median first: by as much as things so far apart are believed to
        differ.
        """
        level, found = leaves, dict(leaves)
        for depth in range(DEPTH, 0, -1):
            parts: dict[Path, list[_Vote]] = {}
            for path, vote in level.items():
                parts.setdefault(path[:-1], []).append(vote)
            apart = math.fsum(self._belief.levels[1 : depth + 1]) * max(1.0, spreads.scale)
            reach = self._rules.outlier * math.sqrt(apart)
            level = {path: _whole(votes, spreads.levels[depth], reach) for path, votes in parts.items()}
            found |= level
        return found

    def _learned(self, belief: float, seen: Sequence[_Vote]) -> float:
        """A variance: that which was believed, and what was seen, by their numbers; bounded."""
        count, rules = math.fsum(vote.jobs for vote in seen), self._rules
        total = math.fsum(vote.jobs * math.exp(vote.mean) for vote in seen)
        found = (rules.believed * belief + total) / (rules.believed + count)
        return min(belief * rules.wider**2, max(belief / rules.wider**2, found))


def _by_path(votes: Mapping[str, _Leaves]) -> dict[Path, dict[str, _Vote]]:
    """Votes of namespaces by what they are about."""
    found: dict[Path, dict[str, _Vote]] = {}
    for name, of_name in votes.items():
        for path, vote in of_name.items():
            found.setdefault(path, {})[name] = vote
    return found


def _squares(errors: list[float], reach: float) -> tuple[int, float]:
    """Degrees of freedom, and the sum of squares of differences between jobs of one key."""
    errors = _robust(errors, reach)
    mean = math.fsum(errors) / len(errors)
    return len(errors) - 1, math.fsum((error - mean) ** 2 for error in errors)


def _spread_vote(count: float, total: float, belief: float) -> _Vote | None:
    """What so many squared differences of this sum say of a variance. The logarithm of their mean has a variance of
    about 2 / count; that none differ at all is not believed of so few."""
    return _Vote(math.log(max(total / count, belief / 64)), count / 2, count) if count else None


def _whole(parts: Sequence[_Vote], variance: float, reach: float) -> _Vote:
    """What parts that differ by this variance say of the whole."""
    weights = [1 / (variance + 1 / part.weight) for part in parts]
    means = _robust([part.mean for part in parts], reach)
    weight = math.fsum(weights)
    mean = math.fsum(w * m for w, m in zip(weights, means, strict=True)) / weight
    return _Vote(mean, weight, math.fsum(part.jobs for part in parts))


def _downwards(
    seen: Mapping[Path, Sequence[_Vote]], spreads: Spreads, noisier: float = 1.0
) -> dict[Path, tuple[float, float]]:
    """Posterior mean and variance of every error: given that of the whole a part is normal, and over the posterior of
    the whole it is again. Every path's beginnings are there, too.

    `noisier` is the variance of the noise over that which was believed. Means go by the latter, so that a job that
    shows more never makes a factor smaller by making all jobs less sure; variances are those of these means.
    """
    found: dict[Path, tuple[float, float]] = {}
    for path in sorted(seen, key=len):
        whole, of_whole = found[path[:-1]] if path else (0.0, 0.0)
        apart, own = spreads.levels[len(path)], math.fsum(vote.weight for vote in seen[path])
        shown = math.fsum(vote.weight * vote.mean for vote in seen[path])
        share = 1 / (1 + apart * own)
        of_shown = share * (1 - share) * apart * (noisier if len(path) == DEPTH else 1.0)
        found[path] = share * (whole + apart * shown), share**2 * (apart + of_whole) + of_shown
    return found


def _expected(votes: Mapping[Path, _Vote], spreads: Spreads) -> dict[Path, tuple[float, float]]:
    """Mean and variance of every error as all else makes expect it, what was seen of it itself left out."""
    found: dict[Path, tuple[float, float]] = {(): (0.0, spreads.levels[0])}
    parts: dict[Path, list[tuple[Path, float, float]]] = {}
    for path, vote in votes.items():
        if path:
            parts.setdefault(path[:-1], []).append((path, 1 / (spreads.levels[len(path)] + 1 / vote.weight), vote.mean))
    for whole in sorted(parts, key=len):
        mean, variance = found[whole]
        weight = 1 / variance + math.fsum(w for _, w, _ in parts[whole])
        total = mean / variance + math.fsum(w * m for _, w, m in parts[whole])
        for path, w, m in parts[whole]:
            left = max(weight - w, 1 / variance)
            found[path] = (total - w * m) / left, 1 / left + spreads.levels[len(path)]
    return found


def _apart_by_level(votes: Mapping[Path, _Vote], spreads: Spreads, outlier: float) -> list[tuple[int, float]]:
    """Of each level from the GPU type on: how many things there are, and the expected sum of squares of what they
    differ from their whole by. A single one counts no more than an outlier does."""
    posterior, found = _downwards({path: [vote] for path, vote in votes.items()}, spreads), [(0, 0.0)] * DEPTH
    for path, (mean, _) in posterior.items():
        if not path:
            continue
        depth, (whole, of_whole) = len(path), posterior[path[:-1]]
        apart, own = spreads.levels[depth], votes[path].weight
        share = 1 / (1 + apart * own)
        most = (2 * outlier) ** 2 * apart
        square = min(most, (mean - whole) ** 2) + share * apart + (1 - share) ** 2 * of_whole
        count, total = found[depth - 1]
        found[depth - 1] = count + 1, total + square
    return found


def estimates(state: State, rules: CorrectionRules | None = None, namespace: str = "") -> CorrectionEstimates:
    """What is known of every key and every GPU type, for the jobs of a namespace as the state calls it."""
    return Learned(state, rules).by(namespace)


def _robust(errors: list[float], reach: float) -> list[float]:
    """Each of them, brought to within reach of the median."""
    middle = consensus(errors) if len(errors) > 1 else 0.0
    return [max(middle - reach, min(middle + reach, error)) for error in errors]


def _believed(own: _Vote | None, others: list[_Vote], *, alone: bool = False) -> list[_Vote]:
    """What counts of what others have seen, beside a namespace's own: votes that agree, for what they have seen, with
    the median of all; none for more than twice the median of them. Two of them at least; or one, where it may stand
    `alone` beside the namespace's own.
    """
    mine = [own] if own else []
    least = 1 if own and alone else 2
    if len(others) < least:
        return mine
    middle, usual = median(vote.mean for vote in (*others, *mine)), median(vote.weight for vote in others)
    pair = [*mine, *others]
    if len(pair) == 2:
        apart = PAIR * math.sqrt(math.fsum(1 / vote.weight for vote in pair)) + SMALL
        if abs(pair[0].mean - pair[1].mean) > apart:
            return mine
    agree = [
        vote if vote.weight <= 2 * usual else _Vote(vote.mean, 2 * usual, vote.jobs * 2 * usual / vote.weight)
        for vote in others
        if abs(vote.mean - middle) <= AGREE / math.sqrt(vote.weight) + SMALL
    ]
    return [*mine, *agree] if len(agree) >= least else mine


def _doubted(namespaces: Iterable[str], votes: Mapping[Path, Mapping[str, _Vote]]) -> frozenset[str]:
    """Namespaces that count for nobody else, because their jobs show something else than those of all others wherever
    both can be compared. Found one after the other, the oddest first: what a liar says makes the honest look odd, too.
    """
    here, out = set(namespaces), set[str]()
    while len(here) > 2:  # of two nobody can tell which one it is
        odd = {name: apart for name in here if (apart := _apart(name, here - {name}, votes)) > 1}
        if not odd:
            break
        if len(here) == 3:  # the median of two others, of which one may lie, is half a lie: who agree best stay
            odd = {name: min(_apart(name, {other}, votes) for other in here - {name}) for name in here}
        worst = max(sorted(odd), key=lambda name: odd[name])
        here.discard(worst)
        out.add(worst)
    return frozenset(out)


def _apart(name: str, beside: Set[str], votes: Mapping[Path, Mapping[str, _Vote]]) -> float:
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
        variance = 1 / vote.weight + doubt
        apart = vote.mean - median(each.mean for each in others)
        weights, total, squares = weights + 1 / variance, total + apart / variance, squares + apart**2 / variance
    if not compared:
        return 0.0
    bias = abs(total / weights) / max(SMALL, ODD / math.sqrt(weights))
    spread = squares / compared / max(ODD, 1 + 3 * math.sqrt(2 / compared))
    return max(bias, spread)


# --- use --------------------------------------------------------------------------------------------------------------
class Corrections:
    """What is to be corrected in predictions for jobs; remembered, since jobs of one kind are many."""

    def __init__(self, known: Learned) -> None:
        self.known = known
        self._found: dict[tuple[str, ModelSpec, str], tuple[Correction, ...]] = {}

    def of(self, job: Job) -> tuple[Correction, ...]:
        """Of its model and software per class of plan and locality, else per GPU type, else of all of them; nothing
        for a job with speeds of its own."""
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
        for gpu_type in ("", *sorted({path[0] for path in known.groups if path})):
            near: Path = (gpu_type, launched.rstrip("/"), name) if gpu_type else ()
            if found := known.near(near):
                yield _correction(gpu_type, "", Locality.UNKNOWN, found, known)
        for path, found in sorted(known.groups.items()):
            if len(path) == DEPTH - 1 and path[2] == name and path[3].startswith(launched):
                yield _correction(path[0], path[3], Locality.UNKNOWN, found, known)
        for key, found in sorted(known.keys.items()):
            if key.model == name and key.plan.startswith(launched) and key.locality is not Locality.UNKNOWN:
                yield _correction(key.gpu_type, key.plan, key.locality, found, known)


def _correction(gpu_type: str, plan: str, lies: Locality, estimate: Estimate, known: CorrectionEstimates) -> Correction:
    unsure, measured = round(known.unsure(estimate), 3), round(known.measured, 2)
    return Correction(gpu_type, plan, round(estimate.factor, 3), unsure, lies, measured)


def corrected(options: tuple[Option, ...], gpu_type: str, job: Job) -> tuple[Option, ...]:
    """The options of one GPU type with predictions as corrected, by GPUs, then by speed; the same ones without any.

    Which plan is the fastest on given GPUs the performance model has said before; corrections say which GPUs then are.
    """
    if not job.corrections:
        return options
    table = _table(job, gpu_type)
    if not table:
        return options
    found = [replace(each, prediction=_stretched(each.prediction, _for_option(table, job, each))) for each in options]
    return tuple(sorted(found, key=lambda each: (each.gpus, each.prediction.step_seconds)))


def corrected_option(option: Option, gpu_type: str, job: Job) -> Option:
    """The same of a single option, in place of what it was corrected by while it lay otherwise."""
    by = _for_option(_table(job, gpu_type), job, option)
    if by is None:
        return option
    bare = replace(option.prediction.at(option.prediction.correction), correction=1.0)
    return replace(option, prediction=_stretched(bare, by))


def _table(job: Job, gpu_type: str) -> dict[tuple[str, str], Correction]:
    """By class of plans and locality: of the GPU type, or of all where nothing is known of it."""
    found = [each for each in job.corrections if each.gpu_type == gpu_type]
    return {(each.plan, each.locality): each for each in found or job.corrections if each.gpu_type in (gpu_type, "")}


def _for_option(table: Mapping[tuple[str, str], Correction], job: Job, option: Option) -> Correction | None:
    plan = plan_class(job.requirements.software, job.training, option.plan)
    lies = locality(option.gpus, option.nodes, option.linked)
    return table.get((plan, lies)) or table.get((plan, "")) or table.get(("", ""))


def _stretched(said: Prediction, by: Correction | None) -> Prediction:
    if by is None:
        return said
    return replace(
        said,
        step_seconds=said.step_seconds * by.factor,
        tokens_per_second=said.tokens_per_second / by.factor,
        run_seconds=said.run_seconds * by.factor,
        uncertainty=_interval(said.uncertainty, by) if said.uncertainty > 1 else said.uncertainty,
        correction=by.factor,
    )


def _interval(said: float, by: Correction) -> float:
    """Of a corrected prediction: what was learned makes it narrower at once, and wider as far as it was seen here that
    jobs differ by more than the performance model says."""
    if by.uncertainty <= said:
        return by.uncertainty
    return float(said ** (1 - by.measured) * by.uncertainty**by.measured)
