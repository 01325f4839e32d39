"""How often jobs start when they were expected to: expected starts held against what the simulator then saw happen.

Jobs come as they come, and predictions are in error, as in life: what is known when a start is foretold is neither who
comes later nor how long jobs really take. A waiting job is asked about at most once in `EVERY` seconds, so that one
that waits for long counts for more than one that hardly waits at all: as users do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy import policy as registry
from trimtab_policy.policy import Policy
from trimtab_policy.scheduling.etas import expected_starts
from trimtab_policy.sim import llm
from trimtab_policy.sim.engine import SimRules, simulate
from trimtab_policy.sim.llm import LlmRules
from trimtab_policy.sim.node_accounts import NodeAccounts
from trimtab_policy.types import Decision, Eta, Job, Snapshot

EVERY = 1800.0


class Told(Struct, frozen=True):
    """What was foretold of a job at one time, and what came of it."""

    time: float
    eta: Eta
    started: float


class Punctuality(Struct, frozen=True):
    """How good expected starts were."""

    told: int
    covered: float
    """Part of the starts that lay within their interval."""
    early: float
    """Part that came before it ..."""
    late: float
    """... and after it."""
    median_ratio: float
    """Of the foretold wait over the wait that was left."""
    spread: float
    """Factor between the ends of the interval, as seen from now: median of high wait / low wait."""
    unseen: float
    """Part of the questions to which there was no answer."""


class _Witness:
    """A policy that writes down, beside its decisions, when the jobs that it lets wait will start."""

    def __init__(self, inner: Policy) -> None:
        self.name = inner.name
        self._inner = inner
        self._asked: dict[str, float] = {}
        self.said: list[tuple[str, float, Eta]] = []
        self.unanswered = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = self._inner.decide(snapshot)
        due = {p.job for p in decision.pending if snapshot.time - self._asked.get(p.job, -EVERY) >= EVERY}
        if due:
            etas = expected_starts(_after(snapshot, decision), decision.pending, reserve=False, order=decision.line)
            self.said += [(uid, snapshot.time, etas[uid]) for uid in sorted(due & etas.keys())]
            self.unanswered += len(due - etas.keys())
            self._asked |= dict.fromkeys(due, snapshot.time)
        return decision


def witness(
    policy: str, jobs: Sequence[Job], cluster: Snapshot, error_sigma: float, seed: int = 0
) -> tuple[list[Told], int]:
    """What was foretold during one simulated run; and how often nothing could be."""
    watching = _Witness(registry.load(policy))
    rules = LlmRules(preemptible=False, error_sigma=error_sigma)
    run = simulate(watching, llm.jobs(jobs, cluster, rules, seed), cluster, SimRules())
    started = {record.uid: record.started for record in run.jobs if record.started is not None}
    told = [Told(time, eta, started[uid]) for uid, time, eta in watching.said if uid in started]
    return told, watching.unanswered


def punctuality(told: Sequence[Told], unanswered: int = 0) -> Punctuality:
    """Figures of what was foretold. Raises ValueError when nothing was."""
    if not told:
        raise ValueError("no job had to wait: nothing was foretold")
    early = sum(each.started < each.eta.low - 1 for each in told) / len(told)
    late = sum(each.started > each.eta.high + 1 for each in told) / len(told)
    waits = [max(1.0, each.started - each.time) for each in told]
    ratios = [max(1.0, each.eta.expected - each.time) / wait for each, wait in zip(told, waits, strict=True)]
    spreads = [(each.eta.high - each.time + 1) / (each.eta.low - each.time + 1) for each in told]
    return Punctuality(
        told=len(told),
        covered=1 - early - late,
        early=early,
        late=late,
        median_ratio=float(np.median(ratios)),
        spread=float(np.median(spreads)),
        unseen=unanswered / (len(told) + unanswered),
    )


def _after(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """The snapshot with what was just decided."""
    books, placed = (
        NodeAccounts(snapshot, snapshot.quotas),
        {placement.job: placement for placement in decision.placements},
    )
    for job in snapshot.jobs:
        if job.uid in placed:
            books.take(job, placed[job.uid])
    jobs = tuple(
        replace(job, placement=placed[job.uid], started=snapshot.time) if job.uid in placed else job
        for job in snapshot.jobs
    )
    return replace(snapshot, nodes=books.nodes, jobs=jobs)
