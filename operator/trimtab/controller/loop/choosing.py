"""Which policies decide from this round on: those that the controller was started with, or what the ConfigMap says.

Level-based like everything else: before each round the ConfigMap is looked at as it is now, so that a change counts
from the next round on, never in the middle of one, and a successor comes to the same choice. What is not understood
changes nothing: a controller that starts while it is there decides as it was started. A policy that fails on trial is
replaced by the fallback round by round until it works. Both are told.
"""

from __future__ import annotations

import asyncio

import structlog

from trimtab.apply.transitions import JobEvent
from trimtab.controller.cluster import Cluster
from trimtab.controller.event_recorder import EventRecorder
from trimtab.decide.choice import read_choice
from trimtab.decide.engine import Engine
from trimtab.errors import PolicyError
from trimtab.kube.objects import ConfigMapObject, Meta
from trimtab.telemetry import metrics
from trimtab_policy.scheduling.choice import Choice

log = structlog.get_logger(__name__)


class Choosing:
    """Keeps the choice that is in force. Raises UnknownPolicy for one to start with that names no registered policy."""

    def __init__(self, started: Choice, cluster: Cluster, engine: Engine, recorder: EventRecorder) -> None:
        started.check()
        self.choice = started
        self._started = started
        self._cluster = cluster
        self._engine = engine
        self._recorder = recorder
        self._seen: ConfigMapObject | None = None
        self._first = True

    async def look(self) -> Choice:
        """The choice for the next round. For the leader only: it tells what has changed."""
        found = self._cluster.policy()
        if self._first or found != self._seen:
            latest = found or self._seen
            about = latest.metadata if latest else None
            wanted = self._read(found, about)
            if self._first or wanted != self.choice:
                await self._adopt(wanted, about)
            self._seen, self._first = found, False
        return self.choice

    @property
    def told_on(self) -> Meta | None:
        """The ConfigMap that what is told of policies is told on; None where there never was one."""
        return self._seen.metadata if self._seen else None

    def _read(self, found: ConfigMapObject | None, about: Meta | None) -> Choice:
        """What the ConfigMap says; the choice in force where that is not understood."""
        try:
            return read_choice(found.data, self._started) if found else self._started
        except PolicyError as error:
            metrics.POLICY_CHANGES.labels("refused").inc()
            self._tell(about, "PolicyNotUnderstood", f"{error}; as before, {self.choice.describe()}", warns=True)
            return self.choice

    async def _adopt(self, wanted: Choice, about: Meta | None) -> None:
        if wanted != self.choice:
            metrics.POLICY_CHANGES.labels("applied").inc()
            self._tell(about, "PolicyChanged", f"{wanted.describe()} (before: {self.choice.describe()})")
        self.choice = wanted
        metrics.replace(metrics.POLICY_INFO, {(name, role): 1 for role, name in wanted.roles().items()})
        needed = dict.fromkeys((wanted.policy, wanted.fallback))
        for name, why in (await asyncio.to_thread(self._engine.prepare, needed)).items():
            message = f"{why}; {wanted.fallback} decides instead, {name} is tried again in every round"
            self._tell(about, "PolicyUnavailable", message, warns=True)

    def _tell(self, about: Meta | None, reason: str, message: str, *, warns: bool = False) -> None:
        (log.warning if warns else log.info)(reason, message=message)
        if about:
            happening = JobEvent("Warning" if warns else "Normal", reason, message, about.version)
            self._recorder.choice(about, happening)
