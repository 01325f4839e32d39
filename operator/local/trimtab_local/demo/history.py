"""What happened during the run, as a watcher saw it: when each job passed each point of its life, who held which GPUs.

The times are those of the watcher's clock. The timestamps in the jobs themselves have whole seconds only, and at a
speed-up of 1,800 a second is half an hour.
"""

from __future__ import annotations

from msgspec import Struct, field

from trimtab.api.status import PendingStatus
from trimtab.observe.jobs import JobFacts
from trimtab.observe.snapshot import Observation
from trimtab_policy.types import NEVER_STARTS


class Trail(Struct):
    """One job's way; times are seconds of the watcher's clock, None where the job has not got to."""

    facts: JobFacts
    """The job as last seen."""
    arrived: float
    planned: float | None = None
    running: float | None = None
    ended: float | None = None
    waited_for: PendingStatus | None = None
    """What kept it waiting last."""

    @property
    def name(self) -> str:
        return self.facts.meta.name

    @property
    def decided(self) -> bool:
        """Whether the job has got its first answer: a plan, or why there is none."""
        return self.planned is not None or self.waited_for is not None

    @property
    def hopeless(self) -> bool:
        """Whether waiting will not help the job."""
        pending = self.facts.status.pending
        return pending is not None and pending.reason in NEVER_STARTS

    @property
    def over(self) -> bool:
        """Whether nothing more is to be expected of the job."""
        return self.ended is not None or self.hopeless

    def note(self, facts: JobFacts, now: float) -> None:
        """See the job as it is now."""
        self.facts = facts
        self.waited_for = facts.status.pending or self.waited_for
        if facts.status.plan and self.planned is None:
            self.planned = now
        if facts.status.start_time and self.running is None:
            self.running = now
        if facts.finished and self.ended is None:
            self.ended = now

    def queued_seconds(self) -> float | None:
        """From arrival to plan."""
        return _between(self.arrived, self.planned)

    def starting_seconds(self) -> float | None:
        """From the plan to all pods running: pods created, bound, started."""
        return _between(self.planned, self.running)

    def running_seconds(self) -> float | None:
        """From all pods running to completion."""
        return _between(self.running, self.ended)

    def completion_seconds(self) -> float | None:
        """Job completion time: from arrival to completion."""
        return _between(self.arrived, self.ended)


class GpuUse(Struct):
    """GPUs of one type."""

    total: int = 0
    held: int = 0
    """Of them held by jobs now."""
    held_seconds: float = 0.0
    """Sum over all GPUs of the seconds for which a job held them."""


class History(Struct):
    """The run so far."""

    trails: dict[str, Trail] = field(default_factory=dict)
    """By name, in order of arrival."""
    gpus: dict[str, GpuUse] = field(default_factory=dict)
    """By type."""
    began: float | None = None
    """When the first job was seen."""
    now: float = 0.0
    """Time of the last note."""

    @property
    def seconds(self) -> float:
        """Length of the run."""
        return 0.0 if self.began is None else self.now - self.began

    def note(self, observation: Observation, now: float) -> None:
        """Take in one look at the cluster; `now` never decreases."""
        if self.began is None and observation.jobs:
            self.began = self.now = now
        self._charge(now)
        for facts in observation.jobs.values():
            self.trails.setdefault(facts.meta.name, Trail(facts, now)).note(facts, now)
        for use in self.gpus.values():
            use.total = use.held = 0
        for node in observation.snapshot.nodes:
            use = self.gpus.setdefault(node.gpu_type, GpuUse())
            use.total += node.gpus
            use.held += node.gpus - max(0, node.free_gpus)

    def utilisation(self, gpu_type: str) -> float:
        """Fraction of the type's GPU-seconds that jobs held, over the run."""
        use = self.gpus[gpu_type]
        return use.held_seconds / (use.total * self.seconds) if use.total and self.seconds else 0.0

    def _charge(self, now: float) -> None:
        """Charge the time since the last note to whoever held GPUs in it."""
        if self.began is not None:
            for use in self.gpus.values():
                use.held_seconds += use.held * (now - self.now)
        self.now = now


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
