"""The clock of the simulator: moves jobs, asks the policy, does what it says, and records who held what.

Decisions are made either at events (a job arrives or ends, a node fails or comes back, at the latest every
`heartbeat`), as the live controller does, or in rounds of fixed length, as Sia, Pollux and Gavel do. In rounds a job
that arrives is first seen at the next round, and one that ends keeps its GPUs to the end of its round. Between two
decisions each job lives by its own model (`sim.job`). Nothing here is random.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.placement.grants import granted, highest
from trimtab_policy.policy import Policy
from trimtab_policy.sim.failures import FailureEvent, FailureKind, FailureModel, events
from trimtab_policy.sim.job import SimJob
from trimtab_policy.sim.node_accounts import BrokenDecision, NodeAccounts
from trimtab_policy.sim.result import Run, Span
from trimtab_policy.sim.running_job import Active, since
from trimtab_policy.types import Decision, Grant, Placement, Quota, Snapshot

Watch = Callable[[int, float], None]
"""Told the number of finished jobs and the simulated time, after every decision."""


TICK = 1e-6
"""Seconds that are nothing: no two decisions are nearer to each other."""
PATIENCE = 1000
"""Decisions in a row between which nothing is computed though there are jobs: a policy may wait for a better moment."""


class Stuck(ValueError):
    """Jobs wait on an idle cluster or restart for ever, and nobody computes."""


class SimRules(Struct, frozen=True):
    """How a run is carried out."""

    round_seconds: float | None = None
    """Length of a round; None: decide at events."""
    heartbeat: float = 300.0
    """Longest time between two decisions at events."""
    min_gap: float = 0.0
    """Shortest time between two decisions at events: what happens within it is decided together."""
    misfortunes: FailureModel = FailureModel()
    quotas: tuple[Quota, ...] = ()
    seed: int = 0
    until: float = math.inf
    """When to cut the run off."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        for name in ("round_seconds", "heartbeat", "until"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}")
        if not 0 <= self.min_gap < math.inf:
            raise ValueError(f"min_gap must be finite and not negative, got {self.min_gap}")


def simulate(
    policy: Policy, jobs: Sequence[SimJob], cluster: Snapshot, rules: SimRules | None = None, watch: Watch | None = None
) -> Run:
    """Run a workload under a policy until every job is done, or until it is cut off.

    `cluster` may hold running jobs (a live snapshot): those among `jobs`, by UID, go on where they are; what others
    hold stays held to the end, and the policy sees these jobs as the snapshot tells of them. Raises BrokenDecision when
    the policy asks for what is not there or not allowed, Stuck when nobody computes any more, ValueError for two jobs
    of one UID.
    """
    return _Simulation(policy, jobs, cluster, rules or SimRules()).run(watch)


class _Simulation:
    def __init__(self, policy: Policy, jobs: Sequence[SimJob], cluster: Snapshot, rules: SimRules) -> None:
        self._policy, self._cluster, self._rules = policy, cluster, rules
        self._now = 0.0
        self._books = NodeAccounts(cluster, rules.quotas or cluster.quotas)
        self._all = [Active(index, job) for index, job in enumerate(jobs)]
        simulated = {job.model.uid for job in self._all}
        others = (job for job in cluster.jobs if job.placement and job.uid not in simulated)
        self._others = tuple(since(job, cluster.time) for job in others)
        self._coming = sorted(self._all, key=lambda job: (job.model.submitted, job.index), reverse=True)
        self._here: dict[str, Active] = {}
        self._events: Iterator[FailureEvent] = events(cluster, rules.misfortunes, rules.seed)
        self._event = next(self._events, None)
        self._speed: dict[str, float] = {}
        self._granted = cluster.granted
        self._spans: list[Span] = []
        self._decision_seconds: list[float] = []
        self._fruitless, self._computed = 0, 0.0
        """Decisions in a row between which nobody computed, and what all have computed so far."""
        [(uid, count)] = Counter(job.model.uid for job in self._all).most_common(1) or [("", 0)]
        if count > 1:
            raise ValueError(f"jobs must differ in their UIDs: {uid} is there {count} times")

    def run(self, watch: Watch | None) -> Run:
        cpu = time.process_time()
        self._resume()
        if self._here and self._rules.round_seconds is None:  # a live cluster: whoever decides there does so now
            self._move(0.0)
            self._decide()
        while (self._coming or self._here) and self._now < self._rules.until:
            self._move(self._next())
            if self._here:
                self._decide()
            if watch:
                watch(len(self._all) - len(self._coming) - len(self._here), self._now)
        return self._result(time.process_time() - cpu)

    def _resume(self) -> None:
        """Jobs that hold GPUs in the given snapshot hold them from the first moment on."""
        known = {job.uid: job for job in self._cluster.jobs}
        for job in self._all:
            if told := known.get(job.model.uid):
                job.remember(told, self._cluster.time)
            if told and told.placement:
                self._coming.remove(job)
                self._here[job.model.uid] = job
                job.resuming = told.resuming
                job.begin(told.placement, 0.0, 1.0, told.grants)

    def _next(self) -> float:
        """Time of the next decision."""
        arrival = self._coming[-1].model.submitted if self._coming else math.inf
        length = self._rules.round_seconds
        if length is not None:
            return self._next_round(length, arrival)
        misfortune = self._event.time if self._event else math.inf
        soonest = max(TICK, min((job.ends_in() for job in self._here.values()), default=math.inf))
        beat = self._now + self._rules.heartbeat if self._here else math.inf
        earliest = self._now + self._rules.min_gap
        return min(max(earliest, min(self._now + soonest, arrival, misfortune, beat)), self._rules.until)

    def _next_round(self, length: float, arrival: float) -> float:
        """Rounds in which nothing is there are skipped."""
        begun = self._now if self._here else max(self._now, length * (math.ceil(arrival / length) - 1))
        return min(length * (math.floor(begun / length + 1e-9) + 1), self._rules.until)

    def _move(self, end: float) -> None:
        """Live until `end`: jobs compute, nodes fail; then the new jobs are there and the finished ones are gone."""
        while self._event and self._event.time <= end:
            happened = self._event
            self._advance(happened.time)
            self._suffer(happened)
            self._event = next(self._events, None)
        self._advance(end)
        for job in [job for job in self._here.values() if job.finished is not None]:
            self._release(job)
            del self._here[job.model.uid]
        while self._coming and self._coming[-1].model.submitted <= end:
            job = self._coming.pop()
            job.company = 0.0
            self._here[job.model.uid] = job

    def _advance(self, end: float) -> None:
        begun, self._now = self._now, end
        if end <= begun:
            return
        here = sum(1 for job in self._here.values() if job.finished is None)
        for job in self._here.values():
            if job.finished is None:
                job.company += here * (end - begun)
                if job.placement:
                    job.advance(begun, end - begun)

    def _suffer(self, event: FailureEvent) -> None:
        if event.what is FailureKind.FAIL:
            self._books.fail(event.node, f"failed at {event.time:.0f} s")
            for job in self._on(event.node):
                job.fail()
                self._release(job)
        elif event.what is FailureKind.REPAIR:
            self._books.repair(event.node)
        else:
            self._speed[event.node] = event.speed
            for job in self._on(event.node):
                job.model.place(job.placement, self._slowest(job.placement))

    def _on(self, node: str) -> list[Active]:
        return [
            job
            for job in self._here.values()
            if job.finished is None and job.placement and any(share.node == node for share in job.placement.shares)
        ]

    def _slowest(self, placement: Placement | None) -> float:
        shares = placement.shares if placement and self._speed else ()
        return min((self._speed.get(share.node, 1.0) for share in shares), default=1.0)

    def _decide(self) -> None:
        snapshot = self._snapshot()
        began = time.perf_counter()
        decision = self._policy.decide(snapshot)
        self._decision_seconds.append(time.perf_counter() - began)
        self._apply(decision, snapshot)
        self._check_progress()

    def _check_progress(self) -> None:
        computed = sum(job.computed for job in self._here.values())
        waits = computed == self._computed and not self._books.unavailable
        self._fruitless, self._computed = self._fruitless + 1 if waits else 0, computed
        if self._fruitless > PATIENCE:
            names = ", ".join(job.model.seen().name for job in list(self._here.values())[:3])
            raise Stuck(f"{self._policy.name} lets none of {len(self._here)} jobs compute any more: {names}")

    def _snapshot(self) -> Snapshot:
        return replace(
            self._cluster,
            time=self._now,
            nodes=self._books.nodes,
            jobs=(*[job.seen(self._now) for job in self._here.values()], *self._others),
            quotas=self._rules.quotas or self._cluster.quotas,
            unavailable=self._cluster.unavailable | self._books.unavailable,
            granted=self._granted,
        )

    def _apply(self, decision: Decision, seen: Snapshot) -> None:
        """Everything that is given back is free before anything is taken."""
        for stop in decision.stops:
            self._release(self._preemptible(stop.job))
        moves = [(self._here[uid], each) for each in decision.placements if (uid := each.job) in self._here]
        if len(moves) < len(decision.placements):
            raise BrokenDecision(f"policy {decision.policy} placed a job that is not there")
        changes = [(job, after) for job, after in moves if not _same(job.placement, after)]
        given = granted(seen, [after for _, after in changes])
        self._granted = highest(self._granted, given.values())
        before = [job.placement for job, _ in changes]
        for job, _ in changes:
            if job.placement:
                self._release(self._preemptible(job.model.uid), keep_pause=True)
        for (job, after), had in zip(changes, before, strict=True):
            self._start(job, had, after, given[after.job])

    def _preemptible(self, uid: str) -> Active:
        job = self._here.get(uid)
        if job is None or job.placement is None:
            raise BrokenDecision(f"policy {self._policy.name} stops {uid}, which does not run")
        if not job.model.seen().preemptible:
            raise BrokenDecision(f"policy {self._policy.name} touches {uid}, which must not be preempted")
        return job

    def _release(self, job: Active, *, keep_pause: bool = False) -> None:
        if job.placement is None:
            return
        pause = job.resuming if keep_pause else 0.0
        self._books.give(job.model.seen(), job.placement)
        self._spans.append(job.end(self._now))
        job.resuming = pause

    def _start(self, job: Active, before: Placement | None, after: Placement, given: tuple[Grant, ...]) -> None:
        self._books.take(job.model.seen(), after)
        pause = job.model.pause(before, after)
        if job.started is not None and (before is None or pause > 0):
            job.restarts += 1
        job.resuming = pause if pause > 0 or before is None else job.resuming
        job.begin(after, self._now, self._slowest(after), given)

    def _result(self, cpu: float) -> Run:
        for job in self._here.values():
            self._release(job)
        sizes = dict.fromkeys(self._cluster.gpu_types, 0.0)
        for node in self._cluster.nodes:
            sizes[node.gpu_type] += node.gpus
        return Run(
            policy=self._policy.name,
            cluster=replace(self._cluster, jobs=()),
            jobs=tuple(job.record(sizes, self._now) for job in self._all),
            spans=tuple(self._spans),
            end=self._end(),
            decision_seconds=tuple(self._decision_seconds),
            cpu_seconds=cpu,
            lost_gpu_seconds=sum(job.lost_gpu_seconds for job in self._all),
        )

    def _end(self) -> float:
        """When the last job finished, or the run was cut off."""
        cut = bool(self._here or self._coming)
        return self._now if cut else max([job.finished or 0.0 for job in self._all], default=0.0)


def _same(before: Placement | None, after: Placement) -> bool:
    """Whether a placement changes nothing about what runs."""
    return before is not None and (before.gpu_type, before.shares, before.plan) == (
        after.gpu_type,
        after.shares,
        after.plan,
    )
