"""The live controller as a policy for the simulator: what is evaluated is what runs.

Every decision goes through the pipeline (`scheduling.pipeline`): line, policy, reservations, preemption,
resizes, each through the shield, by the rules that the controller's settings have by default. Left out is what needs a
clock on the wall: deadlines, how many jobs can be considered in time, and expected starts, which nobody asks for here.
What the controller reads in the status of running jobs (since when they run, how often they gave way lately) is
remembered here, so that an instance belongs to one run. Stops need no time: the simulator charges a restart for them.

A policy or a stage that raises ends the run: whoever compares policies must not be shown the fallback's figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.policy import Policy, load
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.eta_cache import Times
from trimtab_policy.scheduling.intake import IntakeLimits, Taken
from trimtab_policy.scheduling.pipeline import Pipeline
from trimtab_policy.scheduling.preemption import PreemptionRules
from trimtab_policy.scheduling.resize import ResizeRules
from trimtab_policy.scheduling.results import Fallback, Outcome
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.sim.running_job import since
from trimtab_policy.types import Decision, Job, Snapshot

HOUR = 3600.0

T = TypeVar("T")


class ControllerRules(Struct, frozen=True):
    """How a controller decides. The defaults are those of the controller's settings, which a test holds them to."""

    rules: Rules = Rules(
        reservations=1,
        starvation_seconds=6 * HOUR,
        preemption=PreemptionRules(),
        resize=ResizeRules(),
        times=False,
        at_once=16,
    )
    resize_seconds: float = 60.0
    """Resizes are considered so often."""
    min_runtime_seconds: float = 600.0
    """A gang is left where it is for so long after it was planned."""
    per_job_per_hour: int = 2
    """A job gives way at most so often in an hour."""


def is_elastic(job: Job) -> bool:
    """Whether a job says that it may be resized, or its snapshot that it may be now."""
    return job.elastic or job.preemptible


class SimulatedController:
    """One controller around a policy, for one run."""

    def __init__(
        self,
        policy: Policy,
        rules: ControllerRules | None = None,
        elastic: Callable[[Job], bool] = is_elastic,
        begin: Snapshot | None = None,
    ) -> None:
        """`elastic` tells which jobs may be resized; the others may only be stopped, or moved as they are.

        `begin` is the live snapshot that the run begins with, if any: it says from when on its gangs may be touched.
        """
        self.name = policy.name
        self._how = rules or ControllerRules()
        self._memory = _Memory(self._how, elastic, begin)
        self._executor = _InProcess(policy)
        self._choice = Choice(policy.name, policy.name)
        self._resized = -math.inf

    def decide(self, snapshot: Snapshot) -> Decision:
        """What the controller would do at this moment."""
        outcome = self.outcome(snapshot)
        moves = tuple(move.placement for move in outcome.moves)
        return Decision(self.name, (*outcome.placements, *moves), outcome.pending, outcome.stops)

    def outcome(self, snapshot: Snapshot) -> Outcome:
        """The same, with all that is known of how it came about."""
        rules = self._how.rules
        if snapshot.time < self._resized + self._how.resize_seconds:
            rules = replace(rules, resize=None)
        else:
            self._resized = snapshot.time
        outcome = Pipeline(self._memory.seen(snapshot), self._choice, rules, self._executor).run()
        self._memory.remember(snapshot.time, outcome)
        return outcome


class _Memory:
    """What the controller would read in the status of running jobs: since when they run, how often they gave way."""

    def __init__(self, how: ControllerRules, elastic: Callable[[Job], bool], begin: Snapshot | None) -> None:
        self._how, self._elastic = how, elastic
        self._told = {job.uid: since(job, begin.time) for job in begin.jobs if job.placement} if begin else {}
        """UID -> a job of the first snapshot, for as long as its gang stands."""
        self._gave_way: dict[str, list[float]] = {}
        """Job UID -> when it was stopped, moved or shrunk for another."""

    def seen(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot as the controller would show it to policies."""
        return replace(snapshot, jobs=tuple([self._mobility(job, snapshot.time) for job in snapshot.jobs]))

    def remember(self, now: float, outcome: Outcome) -> None:
        """Note who gives way. What a job gains by itself costs nobody anything, and does not count."""
        for uid in (*(s.job for s in outcome.stops), *(m.placement.job for m in outcome.moves if m.beneficiary)):
            self._gave_way.setdefault(uid, []).append(now)

    def _mobility(self, job: Job, now: float) -> Job:
        if job.placement is None:
            return replace(job, preemptible=False, elastic=self._elastic(job))
        told = self._told.get(job.uid)
        if told and told.placement == job.placement and (told.started is not None or job.started is None):
            elastic = self._elastic(job) and told.movable_from <= now
            return replace(job, movable_from=told.movable_from, stoppable_from=told.stoppable_from, preemptible=elastic)
        if job.started is None:
            return replace(job, preemptible=False, elastic=self._elastic(job))
        movable = job.started + self._how.min_runtime_seconds if job.resuming <= 0 else math.inf
        movable = max(movable, self._again(job.uid))
        return replace(job, movable_from=movable, preemptible=self._elastic(job) and movable <= now)

    def _again(self, uid: str) -> float:
        """From when on it may give way again."""
        most, moments = self._how.per_job_per_hour, self._gave_way.get(uid, [])
        if len(moments) < most:
            return -math.inf
        return moments[-most] + HOUR if most else math.inf


class _InProcess:
    """An executor without threads, deadlines and fallbacks."""

    def __init__(self, policy: Policy) -> None:
        self._policies = {policy.name: policy}
        self.times = Times()

    def ask(self, name: str, snapshot: Snapshot, choice: Choice) -> tuple[str, Decision, list[Fallback]]:
        """A job may name a policy of its own. Raises UnknownPolicy, and whatever the policy raises."""
        if name not in self._policies:
            self._policies[name] = load(name)
        return name, self._policies[name].decide(snapshot), []

    def timed(self, name: str, work: Callable[[], T], deadline: float) -> T:
        """At once, for as long as it takes."""
        return work()

    def take(self, snapshot: Snapshot, limits: IntakeLimits, deadline: float) -> Taken:
        """All of it."""
        return Taken(snapshot)
