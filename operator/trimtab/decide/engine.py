"""Run a policy as if it could do anything wrong: not load, be late, raise, or answer nonsense.

A policy gets a deadline. When it misses it, raises, computes what is no number or leaves out a job, the fallback policy
answers instead, and the outcome says so for an event and a metric; should that fail too, the jobs wait and say why. So
it goes with a policy that cannot be loaded (weights that are missing, a library that is not installed), which is tried
again in every round. A thread cannot be killed, so a policy that is still at work after its deadline is not asked again
until it has returned. The shield has the last word in every case.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from trimtab.decide.choice import Choice
from trimtab.decide.deliberation import Deliberation
from trimtab.decide.outcome import Fallback, Outcome
from trimtab.decide.rules import Rules
from trimtab.decide.trial import trial
from trimtab.errors import PolicyError
from trimtab_policy.policy import Policy, load
from trimtab_policy.types import Decision, Pending, PendingReason, Snapshot

LOAD_SECONDS = 30.0
"""Time for a policy's module to be loaded, once: not part of any deadline."""
TRIAL_SECONDS = 5.0
"""Time for its first decision, with which weights are read and much is computed for the first time."""

T = TypeVar("T")


class Engine:
    """Asks policies by name; holds their instances and what they are busy with, nothing else."""

    def __init__(self, find: Callable[[str], Policy] = load) -> None:
        self._find = find
        self._policies: dict[str, Policy] = {}
        self._running: dict[str, Future[Any]] = {}

    def prepare(self, names: Iterable[str]) -> dict[str, str]:
        """Load these policies and try them, so that no round has to; for each that fails, why."""
        failures: dict[str, str] = {}
        for name in names:
            try:
                self._run(name, trial(), TRIAL_SECONDS)
            except PolicyError as failure:
                failures[name] = _parts(failure)[1]
        return failures

    def decide(self, snapshot: Snapshot, choice: Choice, rules: Rules | None = None) -> Outcome:
        """Decide for all waiting jobs of the snapshot, and what `rules` say besides; blocks for at most the deadline
        per policy asked, and per stage after that."""
        return Deliberation(snapshot, choice, rules or Rules(), self).run()

    def ask(self, name: str, snapshot: Snapshot, choice: Choice) -> tuple[str, Decision, list[Fallback]]:
        """The name of the policy that answered in the end, its decision, and the failures on the way."""
        waiting = tuple(job.uid for job in snapshot.waiting())
        failures: list[Fallback] = []
        for candidate in dict.fromkeys((name, choice.fallback)):
            try:
                return candidate, self._run(candidate, snapshot, choice.deadline_seconds), failures
            except PolicyError as failure:
                failures.append(Fallback(candidate, *_parts(failure), waiting))
        why = "; ".join(failure.message for failure in failures)
        pending = tuple(Pending(uid, PendingReason.DECISION_REFUSED, f"no policy answered: {why}") for uid in waiting)
        return choice.fallback, Decision(choice.fallback, pending=pending), failures

    def timed(self, name: str, work: Callable[[], T], deadline: float) -> T:
        """Do something in a thread, for as long as the deadline allows. Raises PolicyError as `reason: message`."""
        future = self._begin(name, work)
        try:
            failure = future.exception(deadline)
        except TimeoutError:
            raise PolicyError(f"deadline: {name} took longer than {deadline:g} s") from None
        if failure:
            raise PolicyError(f"error: {name} raised {type(failure).__name__}: {failure}") from failure
        return future.result()

    def _run(self, name: str, snapshot: Snapshot, deadline: float) -> Decision:
        """Raise PolicyError as `reason: message`."""
        policy = self._loaded(name)
        return _complete(name, snapshot, self.timed(name, lambda: policy.decide(snapshot), deadline))

    def _loaded(self, name: str) -> Policy:
        """Raise PolicyError as `reason: message`."""
        if name not in self._policies:
            future = self._begin(name, lambda: self._find(name))
            try:
                failure = future.exception(LOAD_SECONDS)
            except TimeoutError:
                raise PolicyError(f"unloadable: {name} was not loaded after {LOAD_SECONDS:g} s") from None
            if failure:
                raise PolicyError(f"unloadable: {name} cannot be loaded: {failure}") from failure
            self._policies[name] = future.result()
        return self._policies[name]

    def _begin(self, name: str, work: Callable[[], T]) -> Future[T]:
        """Work in a thread, unless the policy still has one at work. Raises PolicyError as `reason: message`."""
        running = self._running.get(name)
        if running and not running.done():
            raise PolicyError(f"busy: {name} is still working on an earlier snapshot")
        future = _in_thread(name, work)
        self._running[name] = future
        return future


def _parts(failure: PolicyError) -> tuple[str, str]:
    """Reason and message."""
    reason, _, message = str(failure).partition(": ")
    return reason, message


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
        raise PolicyError(f"invalid: {name} returned a {kind} that is no Decision: {error}") from error
    for placement in sound.placements:
        if any(map(math.isnan, msgspec.structs.astuple(placement.prediction))):
            raise PolicyError(f"nan: {name} predicted what is no number (NaN) for {placement.job}")
    answered = {placement.job for placement in sound.placements} | {pending.job for pending in sound.pending}
    missing = [job.name for job in snapshot.waiting() if job.uid not in answered]
    if missing:
        raise PolicyError(f"invalid: {name} gave no answer for {missing[0]}")  # of all: events that vary are many
    return sound
