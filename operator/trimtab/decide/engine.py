"""Run a policy as if it could do anything wrong: not load, be late, raise, or answer nonsense.

A policy gets a deadline. When it misses it, raises, computes what is no number or leaves out a job, the fallback policy
answers instead, and the outcome says so for an event and a metric; should that fail too, the jobs wait and say why. So
it goes with a policy that cannot be loaded (weights that are missing, a library that is not installed), which is tried
again in every round. A thread cannot be killed, so a policy that is still at work after its deadline is not asked again
until it has returned. The shield has the last word in every case.

Nor can a job that makes a policy, or a stage, fail stop the others: it is found and set aside (`isolation`), and of
jobs without number as many are considered as can be in time (`intake`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from trimtab.decide.trial import trial
from trimtab.errors import PolicyError
from trimtab_policy.policy import Policy, load
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.eta_cache import Times
from trimtab_policy.scheduling.intake import Intake, IntakeLimits, Taken
from trimtab_policy.scheduling.isolation import Isolated, Isolation
from trimtab_policy.scheduling.pipeline import Pipeline
from trimtab_policy.scheduling.results import Fallback, Outcome
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.types import Decision, Pending, PendingReason, Snapshot

LOAD_SECONDS = 30.0
"""Time for a policy's module to be loaded, once: not part of any deadline."""
TRIAL_SECONDS = 5.0
"""Time for its first decision, with which weights are read and much is computed for the first time."""
DECISION = "decision"
"""Name of what holds policies and stages together, where it fails."""
LATE = frozenset({"deadline", "busy"})
"""Reasons of fallbacks that fewer jobs would help against ..."""
FAULTS = frozenset({"error", "invalid", "nan"})
"""... and those that may be the fault of a job."""

T = TypeVar("T")


class Decided(NamedTuple):
    """What can be carried out, and what is still to be told about it."""

    outcome: Outcome
    """Why others wait is said, but not what would help them, nor until when they do."""
    explained: Callable[[], Outcome]
    """The same with all of that; blocks as `Engine.decide`. To be asked once."""


class Engine:
    """Asks policies by name; holds their instances and what they are busy with, nothing else."""

    def __init__(self, find: Callable[[str], Policy] = load) -> None:
        self._find = find
        self._policies: dict[str, Policy] = {}
        self._running: dict[str, Future[Any]] = {}
        self._intake = Intake()
        self._isolation = Isolation()
        self.times = Times()

    def prepare(self, names: Iterable[str]) -> dict[str, str]:
        """Load these policies and try them, so that no round has to; for each that fails, why."""
        failures: dict[str, str] = {}
        for name in names:
            try:
                self._run(name, trial(), TRIAL_SECONDS)
            except PolicyError as failure:
                failures[name] = str(failure)
        return failures

    def decide(self, snapshot: Snapshot, choice: Choice, rules: Rules | None = None) -> Outcome:
        """Decide for all waiting jobs of the snapshot, and what `rules` say besides, and say what would help those that
        wait on, and until when they do; blocks for at most the deadline per policy asked, and per stage after that."""
        return self.begin(snapshot, choice, rules).explained()

    def begin(self, snapshot: Snapshot, choice: Choice, rules: Rules | None = None) -> Decided:
        """The same, but what is told to those that wait is left for later: what was decided can be carried out."""
        rules = rules or Rules()
        considered, aside = self._isolation.without(snapshot)
        pipeline, outcome = self._decide(considered, choice, rules)
        if found := self._at_fault(outcome.fallbacks, considered, choice, rules):
            self._isolation.set_aside(found, snapshot.time)
            considered, aside = self._isolation.without(snapshot)
            before = _explained(outcome.fallbacks, found)
            pipeline, outcome = self._decide(considered, choice, rules)
            outcome = replace(outcome, fallbacks=(*before, *outcome.fallbacks))
        decided = _with(outcome, aside, snapshot)
        if pipeline is None:
            return Decided(decided, lambda: decided)
        return Decided(decided, partial(self._told, pipeline, decided, considered, choice, rules))

    def _told(
        self, pipeline: Pipeline, decided: Outcome, considered: Snapshot, choice: Choice, rules: Rules
    ) -> Outcome:
        """What was decided, with what is told to those that wait. A job that makes that fail is set aside from now on,
        and the others are told without it."""
        said, news = _explain(pipeline, considered)
        if found := self._at_fault(news, considered, choice, rules):
            self._isolation.set_aside(found, considered.time)
            others, _ = self._isolation.without(considered)
            said, news = self._whole(others, choice, rules), _explained(news, found)
        told = {each.job: each for each in said.pending} | {each.job: each.pending() for each in found}
        return replace(
            decided,
            pending=tuple(told.get(each.job, each) for each in decided.pending),
            fallbacks=(*decided.fallbacks, *news),
            stages=said.stages,
            isolated=(*decided.isolated, *found),
        )

    def take(self, snapshot: Snapshot, limits: IntakeLimits, deadline: float) -> Taken:
        """The snapshot with those waiting jobs that are considered."""
        return self._intake.take(snapshot, limits, deadline)

    def _decide(self, snapshot: Snapshot, choice: Choice, rules: Rules) -> tuple[Pipeline | None, Outcome]:
        """One decision, and what it teaches about how many jobs can be decided about in time."""
        began = time.perf_counter()
        pipeline, outcome = self._deliberate(snapshot, choice, rules)
        late = any(fallback.reason in LATE for fallback in outcome.fallbacks)
        jobs = sum(job.placement is None for job in snapshot.jobs)
        self._intake.learn(time.perf_counter() - began, choice.deadline_seconds, late=late, jobs=jobs)
        return pipeline, outcome

    def _deliberate(self, snapshot: Snapshot, choice: Choice, rules: Rules) -> tuple[Pipeline | None, Outcome]:
        """All stages that change who gets what; where what holds them together fails, all jobs wait."""
        try:
            pipeline = Pipeline(snapshot, choice, rules, self)
            return pipeline, pipeline.decide()
        except Exception as error:  # noqa: BLE001 - told as a fault, and searched for the job that it is due to
            waiting = tuple(job.uid for job in snapshot.waiting())
            why = f"the decision failed ({type(error).__name__})"
            return None, Outcome(
                policies=dict.fromkeys(waiting, choice.policy),
                placements=(),
                pending=tuple(Pending(uid, PendingReason.DECISION_FAILED, why) for uid in waiting),
                refused=(),
                fallbacks=(_failed(error, waiting, "all wait"),),
                seconds={},
            )

    def _whole(self, snapshot: Snapshot, choice: Choice, rules: Rules) -> Outcome:
        """All stages."""
        pipeline, outcome = self._deliberate(snapshot, choice, rules)
        if pipeline is None:
            return outcome
        said, news = _explain(pipeline, snapshot)
        return replace(said, fallbacks=(*outcome.fallbacks, *news))

    def _at_fault(
        self, failures: Iterable[Fallback], considered: Snapshot, choice: Choice, rules: Rules
    ) -> tuple[Isolated, ...]:
        """The jobs that these failures are due to, where it is jobs at all."""
        failed = _faults(failures)
        if not failed or self._fails_always(failed, choice, rules):
            return ()
        patient = replace(rules, limits=IntakeLimits())
        return self._isolation.search(considered, lambda part: _faults(self._whole(part, choice, patient).fallbacks))

    def _fails_always(self, failed: Mapping[str, str], choice: Choice, rules: Rules) -> bool:
        """Whether the same fails for a job that nothing is wrong with: then no job is at fault."""
        known_good = self._whole(trial(), choice, replace(rules, limits=IntakeLimits()))
        return bool(_faults(known_good.fallbacks).keys() & failed.keys())

    def ask(self, name: str, snapshot: Snapshot, choice: Choice) -> tuple[str, Decision, list[Fallback]]:
        """The name of the policy that answered in the end, its decision, and the failures on the way."""
        waiting = tuple(job.uid for job in snapshot.waiting())
        failures: list[Fallback] = []
        for candidate in dict.fromkeys((name, choice.fallback)):
            try:
                return candidate, self._run(candidate, snapshot, choice.deadline_seconds), failures
            except PolicyError as failure:
                failures.append(Fallback(candidate, failure.reason, str(failure), waiting, kind=failure.kind))
        why = "; ".join(failure.message for failure in failures)
        pending = tuple(Pending(uid, PendingReason.DECISION_REFUSED, f"no policy answered: {why}") for uid in waiting)
        return choice.fallback, Decision(choice.fallback, pending=pending), failures

    def timed(self, name: str, work: Callable[[], T], deadline: float) -> T:
        """Do something in a thread, for as long as the deadline allows. Raises PolicyError."""
        future = self._begin(name, work)
        try:
            failure = future.exception(deadline)
        except TimeoutError:
            raise PolicyError(f"{name} took longer than {deadline:g} s", reason="deadline") from None
        if failure:
            kind = type(failure).__name__
            raise PolicyError(f"{name} raised {kind}: {failure}", reason="error", kind=kind) from failure
        return future.result()

    def _run(self, name: str, snapshot: Snapshot, deadline: float) -> Decision:
        """Raise PolicyError."""
        policy = self._loaded(name)
        return _complete(name, snapshot, self.timed(name, lambda: policy.decide(snapshot), deadline))

    def _loaded(self, name: str) -> Policy:
        """Raise PolicyError."""
        if name not in self._policies:
            future = self._begin(name, lambda: self._find(name))
            try:
                failure = future.exception(LOAD_SECONDS)
            except TimeoutError:
                raise PolicyError(f"{name} was not loaded after {LOAD_SECONDS:g} s", reason="unloadable") from None
            if failure:
                raise PolicyError(f"{name} cannot be loaded: {failure}", reason="unloadable") from failure
            self._policies[name] = future.result()
        return self._policies[name]

    def _begin(self, name: str, work: Callable[[], T]) -> Future[T]:
        """Work in a thread, unless the policy still has one at work. Raises PolicyError."""
        running = self._running.get(name)
        if running and not running.done():
            raise PolicyError(f"{name} is still working on an earlier snapshot", reason="busy")
        future = _in_thread(name, work)
        self._running[name] = future
        return future


def _explain(pipeline: Pipeline, snapshot: Snapshot) -> tuple[Outcome, tuple[Fallback, ...]]:
    """What is told to those that wait, and what has failed of that."""
    before = pipeline.outcome
    try:
        said = pipeline.explain()
    except Exception as error:  # noqa: BLE001 - a forecast that fails is counted and told; what was decided stands
        waiting = tuple(job.uid for job in snapshot.waiting())
        return before, (_failed(error, waiting, "they are not told what helps, nor until when they wait"),)
    return said, said.fallbacks[len(before.fallbacks) :]


def _failed(error: Exception, jobs: tuple[str, ...], instead: str) -> Fallback:
    kind = type(error).__name__
    return Fallback(DECISION, "error", f"raised {kind}: {error}", jobs, instead, kind)


def _faults(failures: Iterable[Fallback]) -> dict[str, str]:
    """Policies and stages that have failed in a way that jobs may be at fault for -> kind of the error."""
    return {each.policy: each.kind or each.reason for each in failures if each.reason in FAULTS}


def _explained(failures: Iterable[Fallback], found: Iterable[Isolated]) -> tuple[Fallback, ...]:
    """The failures of what was done anew without these jobs: told to them, and to nobody else."""
    uids = tuple(each.job for each in found)
    instead = "it was asked again without the jobs at fault"
    return tuple(replace(each, jobs=uids, instead=instead) for each in failures if each.reason in FAULTS)


def _with(outcome: Outcome, aside: Iterable[Isolated], snapshot: Snapshot) -> Outcome:
    """The outcome for all jobs: those that were set aside wait, and say why."""
    waiting = {job.uid for job in snapshot.waiting()}
    pending = [each.pending() for each in aside if each.job in waiting]
    if not aside:
        return outcome
    return replace(
        outcome,
        policies=outcome.policies | {each.job: "isolation" for each in pending},
        pending=(*outcome.pending, *pending),
        isolated=(*outcome.isolated, *aside),
    )


def _in_thread(name: str, work: Callable[[], T]) -> Future[T]:
    """Do something in a thread that does not keep the process alive, as those of a pool would."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as failure:  # noqa: BLE001 - told to the waiting thread, whatever it is
            future.set_exception(failure)

    threading.Thread(target=run, name=f"policy {name}", daemon=True).start()
    return future


def _complete(name: str, snapshot: Snapshot, decision: object) -> Decision:
    """A decision must be one through and through, predict numbers, and answer for every waiting job."""
    try:
        sound = msgspec.msgpack.decode(msgspec.msgpack.encode(decision), type=Decision)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        kind = type(decision).__name__
        raise PolicyError(f"{name} returned a {kind} that is no Decision: {error}", reason="invalid") from error
    for placement in sound.placements:
        if any(map(math.isnan, msgspec.structs.astuple(placement.prediction))):
            raise PolicyError(f"{name} predicted what is no number (NaN) for {placement.job}", reason="nan")
    answered = {placement.job for placement in sound.placements} | {pending.job for pending in sound.pending}
    missing = [job.name for job in snapshot.waiting() if job.uid not in answered]
    if missing:
        raise PolicyError(
            f"{name} gave no answer for {missing[0]}", reason="invalid"
        )  # of all: events that vary are many
    return sound
