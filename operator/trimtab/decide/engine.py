"""Run a policy as if it could do anything wrong: late, raise, or answer nonsense.

A policy gets a deadline. When it misses it, raises, or leaves out a job, the fallback policy answers instead, and the
outcome says so for an event and a metric; should that fail too, the jobs wait and say why. A thread cannot be killed,
so a policy that is still running after its deadline is not asked again until it has returned. The shield has the last
word in every case.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import msgspec
from msgspec import Struct

from trimtab.decide.shield import Refusal, Verdict, check
from trimtab.errors import PolicyError
from trimtab_policy.policy import Policy, load
from trimtab_policy.types import Decision, Job, Node, Pending, PendingReason, Placement, Snapshot


class Fallback(Struct, frozen=True):
    """A policy failed and another one was asked."""

    policy: str
    reason: str
    """`deadline`, `error`, `invalid` or `busy`: a metric label."""
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

    def __init__(self, default: str, fallback: str, deadline: float, find: Callable[[str], Policy] = load) -> None:
        """Raise UnknownPolicy when `find` knows no policy of the name `default` or `fallback`."""
        self._default = default
        self._fallback = fallback
        self._deadline = deadline
        self._find = find
        self._policies = {name: find(name) for name in (default, fallback)}
        self._running: dict[str, Future[Decision]] = {}

    def decide(self, snapshot: Snapshot) -> Outcome:
        """Decide for all waiting jobs of the snapshot; blocks for at most the deadline per policy asked."""
        placements: list[Placement] = []
        pending: list[Pending] = []
        refused: list[Refusal] = []
        fallbacks: list[Fallback] = []
        policies: dict[str, str] = {}
        seconds: dict[str, float] = {}
        for name, jobs in self._by_policy(snapshot).items():
            view = _with_waiting(snapshot, jobs, placements)
            began = time.perf_counter()
            answered, decision, failures = self._ask(name, view)
            seconds[answered] = time.perf_counter() - began
            verdict = check(view, decision)
            placements += verdict.accepted
            pending += _reasons(jobs, answered, decision, verdict)
            refused += verdict.refused
            fallbacks += failures
            policies |= dict.fromkeys((job.uid for job in jobs), answered)
        return Outcome(policies, tuple(placements), tuple(pending), tuple(refused), tuple(fallbacks), seconds)

    def _by_policy(self, snapshot: Snapshot) -> dict[str, list[Job]]:
        groups: dict[str, list[Job]] = {}
        for job in snapshot.waiting():
            groups.setdefault(job.policy or self._default, []).append(job)
        return groups

    def _ask(self, name: str, snapshot: Snapshot) -> tuple[str, Decision, list[Fallback]]:
        """The name of the policy that answered in the end, its decision, and the failures on the way."""
        waiting = tuple(job.uid for job in snapshot.waiting())
        failures: list[Fallback] = []
        for candidate in dict.fromkeys((name, self._fallback)):
            try:
                return candidate, self._run(candidate, snapshot), failures
            except PolicyError as failure:
                reason, _, message = str(failure).partition(": ")
                failures.append(Fallback(candidate, reason, message, waiting))
        why = "; ".join(failure.message for failure in failures)
        pending = tuple(Pending(uid, PendingReason.DECISION_REFUSED, f"no policy answered: {why}") for uid in waiting)
        return self._fallback, Decision(self._fallback, pending=pending), failures

    def _run(self, name: str, snapshot: Snapshot) -> Decision:
        """Raise PolicyError as `reason: message`."""
        running = self._running.get(name)
        if running and not running.done():
            raise PolicyError(f"busy: {name} is still working on an earlier snapshot")
        try:
            if name not in self._policies:
                self._policies[name] = self._find(name)
            future = self._running[name] = _in_thread(self._policies[name], snapshot)
            return _complete(name, snapshot, future.result(timeout=self._deadline))
        except PolicyError:
            raise
        except TimeoutError:
            raise PolicyError(f"deadline: {name} took longer than {self._deadline:g} s") from None
        except Exception as failure:
            raise PolicyError(f"error: {name} raised {type(failure).__name__}: {failure}") from failure


def _in_thread(policy: Policy, snapshot: Snapshot) -> Future[Decision]:
    """Ask a policy in a thread that does not keep the process alive, as those of a pool would."""
    future: Future[Decision] = Future()

    def work() -> None:
        try:
            future.set_result(policy.decide(snapshot))
        except BaseException as failure:  # noqa: BLE001 - carried over to the waiting thread, like a pool does
            future.set_exception(failure)

    threading.Thread(target=work, name=f"policy {policy.name}", daemon=True).start()
    return future


def _complete(name: str, snapshot: Snapshot, decision: object) -> Decision:
    """A decision must be one through and through, and answer for every waiting job."""
    try:
        sound = msgspec.msgpack.decode(msgspec.msgpack.encode(decision), type=Decision)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        kind = type(decision).__name__
        raise PolicyError(f"invalid: {name} returned a {kind} that is no Decision: {error}") from error
    answered = {placement.job for placement in sound.placements} | {pending.job for pending in sound.pending}
    missing = [job.name for job in snapshot.waiting() if job.uid not in answered]
    if missing:
        raise PolicyError(f"invalid: {name} gave no answer for {', '.join(missing[:3])}")
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
