"""How predictions are corrected by what jobs were seen to take: lessons in, corrected options out.

A lesson is ln(observed / predicted step time) of one job, the prediction taken without any correction (`lessons`); what
all of them say of a prediction, and how surely, is found in `hierarchy`. Only the latest jobs of a key count, and when
a GPU type changes for all that runs on it (a driver, a cable, wear), those from before the change no more. Such a
change is what cumulative sums (`drift.watch`) find in the differences between what jobs show and what was expected of
them by then: a model that was always off is none, nor is another mix of models. What a job shows early is believed for
predictions until its figure has settled, and only settled figures can be such a change. It is found in each namespace's
own book; that it concerns all (`alarm`) needs two of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import median

from msgspec.structs import replace

from trimtab_policy.perf import drift
from trimtab_policy.perf.hierarchy import CorrectionEstimates, Estimate, Learned
from trimtab_policy.perf.lessons import (
    DEPTH,
    LARGEST_COUNT,
    LARGEST_ERROR,
    VERSION,
    CorrectionRules,
    JobEvidence,
    Key,
    Locality,
    NamespaceEvidence,
    Path,
    ShiftWatch,
    State,
    launched,
    locality,
    model_name,
    plan_class,
)
from trimtab_policy.perf.plans import Option
from trimtab_policy.specs import ModelSpec, Prediction
from trimtab_policy.types import Correction, Job

AT_ONE_TIME = 96
"""Lessons of all namespaces within which changes that several of them have seen are one change."""


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
    error = max(-LARGEST_ERROR, min(LARGEST_ERROR, error))
    mine = next((known for known in state.known if (known.key, known.namespace) == (key, namespace)), None)
    others = [known for known in state.known if known is not mine]
    before = mine.seen if mine else ()
    earlier = next((seen for seen in before if seen.job == job), None)
    if earlier and (earlier.settled or not settled):
        if earlier.settled and not settled:
            return state
        again = tuple(replace(seen, error=error) if seen is earlier else seen for seen in before)
        return replace(state, version=VERSION, known=(*others, NamespaceEvidence(key, again, namespace)))
    count = min(state.count + 1, LARGEST_COUNT)
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
        changed = max(-LARGEST_ERROR, min(LARGEST_ERROR, mean))
        run, shown = (_models(each, namespace, key.gpu_type) for each in (before.known, known))
        several = len(shown) >= min(2, len(run))
        watch = ShiftWatch(namespace, key.gpu_type, stream, changed, state.count, several)
    here = {(each.namespace, each.key.gpu_type) for each in known}
    others = (each for each in state.watches if each is not was and (each.namespace, each.gpu_type) in here)
    return replace(state, known=known, watches=(*others, watch))


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
        source = job.namespace, job.model, launched(job.requirements.software, job.training)
        found = self._found.get(source)
        if found is None:
            found = self._found[source] = tuple(self._rows(*source))
        return found

    def _rows(self, namespace: str, model: ModelSpec, software: str) -> Iterator[Correction]:
        """Factors have three digits: less is nothing to decide anew for."""
        name, known = model_name(model), self.known.of(namespace)
        for gpu_type in ("", *sorted({path[0] for path in known.groups if path})):
            near: Path = (gpu_type, software.rstrip("/"), name) if gpu_type else ()
            if found := known.near(near):
                yield _correction(gpu_type, "", Locality.UNKNOWN, found, known)
        for path, found in sorted(known.groups.items()):
            if len(path) == DEPTH - 1 and path[2] == name and path[3].startswith(software):
                yield _correction(path[0], path[3], Locality.UNKNOWN, found, known)
        for key, found in sorted(known.keys.items()):
            if key.model == name and key.plan.startswith(software) and key.locality is not Locality.UNKNOWN:
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
