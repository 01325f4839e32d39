"""Run a policy as if it could do anything wrong: late, raise, or answer nonsense.

A policy gets a deadline. When it misses it, raises, or leaves out a job, the fallback policy answers instead, and the
outcome says so for an event and a metric. A thread cannot be killed, so a policy that is still running after its
deadline is not asked again until it has returned. The shield has the last word in every case.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as DeadlineExceeded

import msgspec
from msgspec import Struct

from trimtab.decide.shield import Refusal, check
from trimtab.errors import PolicyError
from trimtab_policy.policy import Policy, load
from trimtab_policy.types import Decision, Job, Node, Pending, PendingReason, Placement, Snapshot


class Fallback(Struct, frozen=True):
    """The configured policy failed and another one answered."""

    policy: str
    reason: str
    """`deadline`, `error`, `invalid` or `busy`: a metric label."""
    message: str


class Outcome(Struct, frozen=True):
    """A decision that has passed the shield, and how it came about."""

    policies: dict[str, str]
    """Job UID -> name of the policy that answered for it."""
    placements: tuple[Placement, ...]
    pending: tuple[Pending, ...]
    refused: tuple[Refusal, ...]
    fallbacks: tuple[Fallback, ...]
    seconds: dict[str, float]
    """Policy -> time it took."""


class Engine:
    """Asks policies by name; holds their instances and worker threads, nothing else."""

    def __init__(self, default: str, fallback: str, deadline: float) -> None:
        self._default = default
        self._fallback = load(fallback)
        self._deadline = deadline
        self._policies: dict[str, Policy] = {default: load(default)}
        self._workers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="policy")
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
            decision, fallback = self._ask(name, view)
            seconds[decision.policy] = time.perf_counter() - began
            verdict = check(view, decision)
            placements += verdict.accepted
            refused += verdict.refused
            pending += _reasons(decision, verdict.refused)
            fallbacks += [fallback] if fallback else []
            policies |= dict.fromkeys((job.uid for job in jobs), decision.policy)
        return Outcome(policies, tuple(placements), tuple(pending), tuple(refused), tuple(fallbacks), seconds)

    def close(self) -> None:
        """Let go of the worker threads; a policy that hangs does not keep the process."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _by_policy(self, snapshot: Snapshot) -> dict[str, list[Job]]:
        groups: dict[str, list[Job]] = {}
        for job in snapshot.waiting():
            groups.setdefault(job.policy or self._default, []).append(job)
        return groups

    def _ask(self, name: str, snapshot: Snapshot) -> tuple[Decision, Fallback | None]:
        try:
            return self._run(name, snapshot), None
        except PolicyError as failure:
            decision = self._fallback.decide(snapshot)
            reason, _, message = str(failure).partition(": ")
            return decision, Fallback(name, reason, message)

    def _run(self, name: str, snapshot: Snapshot) -> Decision:
        running = self._running.get(name)
        if running and not running.done():
            raise PolicyError(f"busy: {name} is still working on an earlier snapshot")
        try:
            policy = self._policies.setdefault(name, load(name)) if name not in self._policies else self._policies[name]
            future = self._workers.submit(policy.decide, snapshot)
            self._running[name] = future
            decision = future.result(timeout=self._deadline)
        except DeadlineExceeded:
            raise PolicyError(f"deadline: {name} took longer than {self._deadline:g} s") from None
        except Exception as failure:  # noqa: BLE001 - a policy is foreign code: whatever it raises, the round goes on
            raise PolicyError(f"error: {name} raised {type(failure).__name__}: {failure}") from failure
        return _complete(name, snapshot, decision)


def _complete(name: str, snapshot: Snapshot, decision: object) -> Decision:
    """A decision must be one, and answer for every waiting job."""
    if not isinstance(decision, Decision):
        raise PolicyError(f"invalid: {name} returned a {type(decision).__name__}, not a Decision")
    answered = {item.job for item in (*decision.placements, *decision.pending)}
    missing = [job.name for job in snapshot.waiting() if job.uid not in answered]
    if missing:
        raise PolicyError(f"invalid: {name} gave no answer for {', '.join(missing[:3])}")
    return decision


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


def _reasons(decision: Decision, refused: tuple[Refusal, ...]) -> list[Pending]:
    placed = {placement.job for placement in decision.placements}
    why = [pending for pending in decision.pending if pending.job not in placed]
    why += [
        Pending(refusal.job, PendingReason.DECISION_REFUSED, f"{decision.policy} broke rule {refusal.rule}: {refusal.message}")
        for refusal in refused
    ]
    return why
