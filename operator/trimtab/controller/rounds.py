"""The round: observe -> decide -> plan and apply, level-based, whenever something has changed.

Changes wake it; a short quiet time lets bursts settle (a gang's pods come one by one), a longest delay keeps a busy
cluster from postponing it for ever, and a sweep runs it without any change. A round never waits for the API server: it
decides, hands every job to its driver, and is done.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from trimtab.apply.steps import Setback
from trimtab.controller.cluster import Cluster
from trimtab.controller.decisions import Decisions
from trimtab.controller.gangs import Gangs
from trimtab.controller.recorder import Recorder
from trimtab.controller.views import Views
from trimtab.observe.jobs import JobFacts
from trimtab.observe.snapshot import Observation, Observer
from trimtab.settings import RoundSettings
from trimtab.telemetry import metrics

BREATH_SECONDS = 0.05
"""Shortest pause before a round that no change asked for: what is overdue may take its driver a while."""


class Wake:
    """Tells the round that something has changed; may be called from any thread."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.changes = 0

    def __call__(self) -> None:
        self.changes += 1
        self._event.set()

    def from_thread(self) -> None:
        """The same from another thread."""
        self._loop.call_soon_threadsafe(self)

    async def wait(self, settings: RoundSettings, deadline: float) -> None:
        """Return a quiet moment after a change, or after `deadline` seconds without any."""
        try:
            async with asyncio.timeout(max(0.0, deadline)):
                await self._event.wait()
        except TimeoutError:
            return
        latest = time.monotonic() + settings.max_debounce_seconds
        while True:
            seen = self.changes
            await asyncio.sleep(settings.debounce_seconds)
            if seen == self.changes or time.monotonic() >= latest:
                break
        self._event.clear()


class Rounds:
    """Runs round after round while this controller leads."""

    def __init__(
        self,
        cluster: Cluster,
        observer: Observer,
        decisions: Decisions,
        gangs: Gangs,
        views: Views,
        recorder: Recorder,
        settings: RoundSettings,
    ) -> None:
        self._cluster = cluster
        self._observer = observer
        self._decisions = decisions
        self._gangs = gangs
        self._views = views
        self._recorder = recorder
        self._settings = settings
        self.last_round = time.monotonic()

    def age(self) -> float:
        """Seconds since the last round ended: what liveness is judged by."""
        return time.monotonic() - self.last_round

    async def run(self, wake: Wake) -> None:
        """Round after round, until cancelled."""
        while True:
            due = await self.round()
            await wake.wait(self._settings, min(max(due, BREATH_SECONDS), self._settings.sweep_seconds))

    async def round(self) -> float:
        """One round; returns the seconds until something is due without any event."""
        choice = await self._decisions.choose()
        began = time.perf_counter()
        observation = self._observer.observe(self._cluster.caches(), time.time(), self._gangs.promised())
        observed = time.perf_counter()
        metrics.ROUND_SECONDS.labels("observe").observe(observed - began)
        for problem in observation.problems:
            self._recorder.problem(problem)
        decision = await self._decisions.decide(observation, choice)
        decided = time.perf_counter()
        metrics.ROUND_SECONDS.labels("decide").observe(decided - observed)
        grace = self._views.watch_nodes(observation.nodes)
        _relieve(observation, self._gangs)
        self._gangs.advance(observation.jobs)
        if decision:
            self._decisions.shadow(decision)
        metrics.ROUND_SECONDS.labels("apply").observe(time.perf_counter() - decided)
        _gauge(observation)
        self.last_round = time.monotonic()
        progress = self._views.next_progress(observation.jobs.values())
        return min(grace, progress, self._gangs.next_deadline(), _next_retry(observation))


def _relieve(observation: Observation, gangs: Gangs) -> None:
    """Where more GPUs are requested than a node has (somebody else's pod came in between), our youngest gang goes."""
    for node, beyond in observation.overallocated.items():
        here = [
            facts
            for uid, facts in observation.jobs.items()
            if facts.holds_gpus and facts.status.plan and node in {share.name for share in facts.status.plan.nodes}
        ]
        if here:
            youngest = max(here, key=lambda facts: facts.status.plan.created_time if facts.status.plan else 0)
            message = f"node {node} has {beyond} GPUs requested beyond what it has"
            gangs.set_back(youngest.meta.uid, Setback("NodeOverallocated", message))


def _next_retry(observation: Observation) -> float:
    """Seconds until the first job has sat out its back-off."""
    now = observation.snapshot.time
    waits = [facts.retry_at() - now for facts in observation.jobs.values() if facts.retry_at() > now]
    return min(waits, default=float("inf"))


def _gauge(observation: Observation) -> None:
    """Publish what the cluster looks like."""
    states = Counter(_state(facts) for facts in observation.jobs.values())
    metrics.replace(metrics.JOBS, {(state,): count for state, count in states.items()})
    gpus: Counter[tuple[str, ...]] = Counter()
    for node in observation.snapshot.nodes:
        gpus[node.gpu_type, "free"] += max(0, node.free_gpus)
        gpus[node.gpu_type, "used"] += node.gpus - max(0, node.free_gpus)
    for name, facts in observation.nodes.items():
        if name in observation.snapshot.unavailable:
            gpus[facts.gpu.name if facts.gpu else "unknown", "unavailable"] += facts.gpus
    metrics.replace(metrics.GPUS, gpus)
    problems: Counter[tuple[str, ...]] = Counter((problem.kind, problem.reason) for problem in observation.problems)
    metrics.replace(metrics.PROBLEMS, problems)
    waiting = [facts.status.pending for facts in observation.jobs.values() if not facts.finished]
    reasons = Counter(pending.reason.value for pending in waiting if pending)
    metrics.replace(metrics.PENDING_JOBS, {(reason,): count for reason, count in reasons.items()})


def _state(facts: JobFacts) -> str:
    """The condition that tells a job's state: the last one, if it holds."""
    told = facts.status.conditions[-1:]
    return told[0].type if told and told[0].status == "True" else "Pending"
