"""The round: observe -> decide -> plan and apply, level-based, whenever something has changed.

Changes wake it; a short quiet time lets bursts settle (a gang's pods come one by one), a longest delay keeps a busy
cluster from postponing it for ever, and a sweep runs it without any change. A round never waits for the API server: it
decides, hands every job to its driver, and is done.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from operator import is_not

from trimtab.apply.gang_failures import GangFailure
from trimtab.controller.advice.advisor import Advisor
from trimtab.controller.cluster import Cluster
from trimtab.controller.event_recorder import EventRecorder
from trimtab.controller.jobs.gangs import Gangs
from trimtab.controller.jobs.idle import IdleJobs
from trimtab.controller.jobs.queues import QueueStatusWriter
from trimtab.controller.jobs.screening import Screening
from trimtab.controller.kueue.admission import Kueue, Verdicts
from trimtab.controller.loop.accounting import Accounting
from trimtab.controller.loop.decisions import Decisions, RoundDecision
from trimtab.controller.nodes.health import Health
from trimtab.controller.nodes.stragglers import StragglerMoves
from trimtab.controller.views import Views
from trimtab.observe.jobs import JobFacts
from trimtab.observe.kept import Each, Kept
from trimtab.observe.snapshot import ClusterObserver, Observation
from trimtab.settings import RoundSettings
from trimtab.telemetry import metrics
from trimtab.telemetry.isolation import isolated, isolated_wait
from trimtab_policy.types import Node, Pending, PendingReason

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
        observer: ClusterObserver,
        decisions: Decisions,
        gangs: Gangs,
        views: Views,
        recorder: EventRecorder,
        settings: RoundSettings,
        health: Health | None = None,
        moves: StragglerMoves | None = None,
        kueue: Kueue | None = None,
        queues: QueueStatusWriter | None = None,
        wall: Callable[[], float] = time.time,
        advisor: Advisor | None = None,
        accounting: Accounting | None = None,
        idle: IdleJobs | None = None,
        looking: Sequence[Screening] = (),
    ) -> None:
        """`looking` say of jobs that wait what keeps them from being planned, beside Kueue."""
        self._cluster = cluster
        self._accounting = accounting
        self._looking = looking
        self._idle = idle
        self._advisor = advisor
        self._observer = observer
        self._decisions = decisions
        self._gangs = gangs
        self._views = views
        self._recorder = recorder
        self._settings = settings
        self._health = health
        self._moves = moves
        self._kueue = kueue
        self._queues = queues
        self._wall = wall
        self._states: Each[str] = Each()
        self._reasons: Each[PendingReason] = Each()
        self._retries: Each[float] = Each()
        self._gauged: Kept[None] = Kept()
        self._gauged_gpus: Kept[None] = Kept()
        self._gpus = GpuFigures()
        self._says = Verdicts()
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
        says = self._says = isolated("kueue", self._kueue.look, lambda _: self._says) if self._kueue else Verdicts()
        promised, refused = self._decisions.promised(), self._gangs.refused()
        observation = self._observer.observe(
            self._cluster.caches(), self._wall(), promised, refused, says.held_back | self._lacking(), says.limited
        )
        observed = time.perf_counter()
        metrics.ROUND_SECONDS.labels("observe").observe(observed - began)
        for problem in observation.problems:
            self._recorder.problem(problem)
        if self._advisor:
            self._advisor.see(observation, choice)
        decision = await isolated_wait("decide", self._decisions.decide(observation, choice))
        decided = time.perf_counter()
        metrics.ROUND_SECONDS.labels("decide").observe(decided - observed)
        grace = self._views.mass_failures.watch(observation.nodes, observation.jobs)
        for part, work in self._parts(observation, decision):
            isolated(part, work, lambda _: None)
        if decision:
            await isolated_wait("explain", self._decisions.explain(decision))
        for part, work in self._last_parts(observation, decision):
            isolated(part, work, lambda _: None)
        metrics.ROUND_SECONDS.labels("apply").observe(time.perf_counter() - decided)
        isolated("figures", partial(self._gauge, observation), lambda _: None)
        self.last_round = time.monotonic()
        progress = self._views.next_progress(observation.jobs.values())
        judged = self._health.next_deadline() if self._health else float("inf")
        slow = self._observer.next_deadline(observation.snapshot.time)
        asked = self._kueue.next_deadline() if self._kueue else float("inf")
        anew = self._decisions.next_deadline(observation.snapshot)
        idle = self._idle.next_deadline(observation.snapshot.time) if self._idle else float("inf")
        due = min(grace, progress, judged, slow, asked, anew, idle)
        return min(due, self._gangs.next_deadline(), self._next_retry(observation))

    def _lacking(self) -> dict[str, Pending | None]:
        """Jobs that are not planned because of their template, or of what it refers to."""
        held: dict[str, Pending | None] = {}
        for each in self._looking:
            held |= isolated("lacking", each.look, lambda _: {})
        return held

    def _parts(
        self, observation: Observation, decision: RoundDecision | None
    ) -> Iterator[tuple[str, Callable[[], object]]]:
        """What is done after a decision, in order. None of it may keep the others from being done."""
        if self._accounting:
            yield "accounting", partial(self._accounting.see, observation)
        if self._accounting and self._idle:
            yield "idle", partial(_watch, observation, self._accounting, self._idle, self._gangs)
        if self._health:
            yield "health", partial(self._health.tell, observation)
        if self._queues:
            yield "queues", partial(self._queues.tell, observation)
        yield "relieve", partial(_relieve, observation, self._gangs, self._views)
        yield "leave_stragglers", partial(self._leave_stragglers, observation, decision)
        yield "carry_out", partial(self._decisions.carry_out, observation)
        if self._kueue:
            yield "kueue", self._kueue.advance
        yield "see", partial(self._gangs.see, observation.nodes, observation.queues)
        yield "advance", partial(self._gangs.advance, (*observation.jobs, *observation.deleted))

    def _last_parts(
        self, observation: Observation, decision: RoundDecision | None
    ) -> Iterator[tuple[str, Callable[[], object]]]:
        """What nobody waits for."""
        if decision:
            yield "shadow", partial(self._decisions.shadow, decision)
        yield "monitor", partial(self._decisions.watch, observation)

    def _gauge(self, observation: Observation) -> None:
        seen, snapshot = observation, observation.snapshot
        states, reasons = self._states.of(seen.jobs, _state), self._reasons.of(seen.jobs, _reason)
        about = states, reasons, seen.held, *seen.stragglers, *seen.problems
        self._gauged.of(about, lambda: _gauge(observation, states.values(), reasons.values()))
        self._gauged_gpus.of((snapshot.nodes, snapshot.unavailable), lambda: self._gpus.publish(observation))

    def _next_retry(self, observation: Observation) -> float:
        """Seconds until the first job has sat out its back-off."""
        now, moments = observation.snapshot.time, self._retries.of(observation.jobs, lambda job: job.retry_at() or None)
        return min((moment - now for moment in moments.values() if moment > now), default=float("inf"))

    def _leave_stragglers(self, observation: Observation, decided: RoundDecision | None) -> None:
        """Where a gang is well worth moving off a slow GPU, it is stopped, and goes on elsewhere."""
        outcome = decided.outcome if decided else None
        placed = (*outcome.placements, *(move.placement for move in outcome.moves)) if outcome else ()
        if self._moves and (move := self._moves.next(observation, placed, self._decisions.reserved)):
            self._decisions.move(observation, move.order())
            metrics.MOVES.labels("straggler").inc()


def _watch(observation: Observation, accounting: Accounting, idle: IdleJobs, gangs: Gangs) -> None:
    """Where gangs have done nothing for so long that their notice is over, they are stopped."""
    for uid, order in idle.see(observation, accounting.uses).items():
        gangs.order_stop(uid, order)
    for uid in idle.suspects:
        gangs.attend(uid)


def _relieve(observation: Observation, gangs: Gangs, views: Views) -> None:
    """Where more GPUs are requested than a node has, one of our gangs goes.

    When a device plugin has taken a broken GPU away, the one that has it; the youngest where somebody else's pod came
    in between.
    """
    for node, beyond in observation.overallocated.items():
        here = [
            facts
            for uid, facts in observation.jobs.items()
            if facts.holds_gpus and facts.status.plan and node in {share.name for share in facts.status.plan.nodes}
        ]
        if here:
            here = [facts for facts in here if views.suffers(facts, node)] or here
            youngest = max(here, key=lambda facts: facts.status.plan.created_time if facts.status.plan else 0)
            message = f"node {node} has {beyond} GPUs requested beyond what it has"
            gangs.set_back(youngest.meta.uid, GangFailure("NodeOverallocated", message))


class GpuFigures:
    """Who has the GPUs, as it is published: of thousands of nodes only those count anew that have changed."""

    def __init__(self) -> None:
        self._nodes: tuple[Node, ...] = ()
        self._gpus: Counter[tuple[str, ...]] = Counter()
        """GPU type and state of those of `_nodes`."""

    def publish(self, observation: Observation) -> None:
        """To be called with every look that shows others."""
        before, nodes = self._nodes, observation.snapshot.nodes
        others = list(map(is_not, before, nodes))
        gone, come = list(compress(before, others)), list(compress(nodes, others))
        if len(before) != len(nodes) or any(was.gpu_type != now.gpu_type for was, now in zip(gone, come, strict=True)):
            self._gpus, gone, come = Counter(), [], list(nodes)  # a type that is no more is not told as 0
        for node in gone:
            self._gpus.subtract(_by_state(node))
        for node in come:
            self._gpus.update(_by_state(node))
        self._nodes = nodes
        gpus = Counter({key: count for key, count in self._gpus.items() if count or key[1] != "foreign"})
        for name in observation.snapshot.unavailable:
            facts = observation.nodes[name]
            gpus[facts.gpu.name if facts.gpu else "unknown", "unavailable"] += facts.gpus
        metrics.replace(metrics.GPUS, gpus)


def _by_state(node: Node) -> dict[tuple[str, ...], int]:
    free, kind = max(0, node.free_gpus), node.gpu_type
    used = node.gpus - free - node.foreign_gpus
    return {(kind, "free"): free, (kind, "used"): used, (kind, "foreign"): node.foreign_gpus}


def _gauge(observation: Observation, states: Iterable[str], reasons: Iterable[PendingReason]) -> None:
    """Publish what the cluster looks like, `states` being those of all jobs, and `reasons` why some wait."""
    metrics.replace(metrics.JOBS, {(state,): count for state, count in Counter(states).items()})
    metrics.BAD_NODES.set(len(observation.held.bad))
    kept = Counter(observation.held.spares.values())
    metrics.replace(metrics.SPARE_NODES, {(gpu_type,): count for gpu_type, count in kept.items()})
    slow = Counter(card.gpu_type for card in observation.stragglers)
    metrics.replace(metrics.STRAGGLERS, {(gpu_type,): count for gpu_type, count in slow.items()})
    problems: Counter[tuple[str, ...]] = Counter((problem.kind, problem.reason) for problem in observation.problems)
    metrics.replace(metrics.PROBLEMS, problems)
    metrics.replace(metrics.PENDING_JOBS, {(reason.value,): count for reason, count in Counter(reasons).items()})


def _reason(facts: JobFacts) -> PendingReason | None:
    """Why it waits, if it does."""
    return facts.status.pending.reason if facts.status.pending and not facts.finished else None


def _state(facts: JobFacts) -> str:
    """The condition that tells a job's state: the last one, if it holds."""
    told = facts.status.conditions[-1:]
    return told[0].type if told and told[0].status == "True" else "Pending"
