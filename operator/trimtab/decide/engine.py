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
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from trimtab.decide.choice import Choice
from trimtab.decide.shield import Refusal, Verdict, check
from trimtab.decide.trial import trial
from trimtab.errors import PolicyError
from trimtab_policy.policy import Policy, load
from trimtab_policy.types import Decision, Job, Node, Pending, PendingReason, Placement, Snapshot

LOAD_SECONDS = 30.0
"""Time for a policy's module to be loaded, once: not part of any deadline."""
TRIAL_SECONDS = 5.0
"""Time for its first decision, with which weights are read and much is computed for the first time."""

T = TypeVar("T")


class Fallback(Struct, frozen=True):
    """A policy failed and another one was asked."""

    policy: str
    reason: str
    """`unloadable`, `deadline`, `busy`, `error`, `invalid` or `nan`: a metric label."""
    message: str
    jobs: tuple[str, ...]
    """UIDs of the jobs that it was asked about."""


class Outcome(Struct, frozen=True):
    """A decision that has passed the shield, and how it came about."""

    policies: dict[str, str]
    """Job UID -> name of the policy that answered for it."""
    placements: tuple[Placement, ...]
    pending: tuple[Pending, ...]
    """Exactly one for every waiting job that has no placement."""
    refused: tuple[Refusal, ...]
    fallbacks: tuple[Fallback, ...]
    seconds: dict[str, float]
    """Policy -> time it took."""


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

    def decide(self, snapshot: Snapshot, choice: Choice) -> Outcome:
        """Decide for all waiting jobs of the snapshot; blocks for at most the deadline per policy asked."""
        placements: list[Placement] = []
        pending: list[Pending] = []
        refused: list[Refusal] = []
        fallbacks: list[Fallback] = []
        policies: dict[str, str] = {}
        seconds: dict[str, float] = {}
        for name, jobs in _by_policy(snapshot, choice.policy).items():
            view = _with_waiting(snapshot, jobs, placements)
            began = time.perf_counter()
            answered, decision, failures = self._ask(name, view, choice)
            seconds[answered] = time.perf_counter() - began
            verdict = check(view, decision)
            placements += verdict.accepted
            pending += _reasons(jobs, answered, decision, verdict)
            refused += verdict.refused
            fallbacks += failures
            policies |= dict.fromkeys((job.uid for job in jobs), answered)
        return Outcome(policies, tuple(placements), tuple(pending), tuple(refused), tuple(fallbacks), seconds)

    def _ask(self, name: str, snapshot: Snapshot, choice: Choice) -> tuple[str, Decision, list[Fallback]]:
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

    def _run(self, name: str, snapshot: Snapshot, deadline: float) -> Decision:
        """Raise PolicyError as `reason: message`."""
        policy = self._loaded(name)
        future = self._begin(name, lambda: policy.decide(snapshot))
        try:
            failure = future.exception(deadline)
        except TimeoutError:
            raise PolicyError(f"deadline: {name} took longer than {deadline:g} s") from None
        if failure:
            raise PolicyError(f"error: {name} raised {type(failure).__name__}: {failure}") from failure
        return _complete(name, snapshot, future.result())

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


def _by_policy(snapshot: Snapshot, default: str) -> dict[str, list[Job]]:
    groups: dict[str, list[Job]] = {}
    for job in snapshot.waiting():
        groups.setdefault(job.policy or default, []).append(job)
    return groups


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


def _with_waiting(snapshot: Snapshot, jobs: list[Job], placed: list[Placement]) -> Snapshot:
    """The snapshot as one policy may see it: only its own jobs wait, and what others were just given is taken."""
    mine = {job.uid for job in jobs}
    given = {placement.job: placement for placement in placed}
    seen = [
        msgspec.structs.replace(job, placement=given.get(job.uid, job.placement))
        for job in snapshot.jobs
        if job.placement or job.uid in mine or job.uid in given
    ]
    taken: dict[str, list[tuple[int, Job]]] = {}
    for job in seen:
        if job.uid in given:
            for share in given[job.uid].shares:
                taken.setdefault(share.node, []).append((share.gpus, job))
    nodes = tuple(_charged(node, taken[node.name]) if node.name in taken else node for node in snapshot.nodes)
    return msgspec.structs.replace(snapshot, jobs=tuple(seen), nodes=nodes)


def _charged(node: Node, taken: list[tuple[int, Job]]) -> Node:
    return msgspec.structs.replace(
        node,
        free_gpus=node.free_gpus - sum(gpus for gpus, _ in taken),
        free_cpu_milli=node.free_cpu_milli - sum(job.requirements.cpu_milli(gpus) for gpus, job in taken),
        free_memory=node.free_memory - sum(job.requirements.memory(gpus) for gpus, job in taken),
        free_pods=node.free_pods - len(taken),
    )


def _reasons(jobs: list[Job], policy: str, decision: Decision, verdict: Verdict) -> list[Pending]:
    """Why each job that has no placement waits: the rule that its placement broke, or what the policy says."""
    placed = {placement.job for placement in verdict.accepted}
    said = {pending.job: pending for pending in decision.pending}
    broken = {refusal.job: f"{policy} broke rule {refusal.rule}: {refusal.message}" for refusal in verdict.refused}
    refused = {uid: Pending(uid, PendingReason.DECISION_REFUSED, message) for uid, message in broken.items()}
    return [(said | refused)[job.uid] for job in jobs if job.uid not in placed]
