"""Round robin: everybody gets turns of one quantum, and the GPUs for the same part of the time that they are there.

Kleinrock, "Analysis of a time-shared processor", 1964, for gangs. A turn goes to the job that has been served for the
smallest part of its stay, and lasts a quantum: until then nobody takes its GPUs away. So a new job gets a turn at once,
and old ones cannot be starved by a stream of new ones, as they would be if turns were merely counted.
"""

from __future__ import annotations

from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.queueing import attained, preempt
from trimtab_policy.policy import Kind
from trimtab_policy.types import Decision, Job, Snapshot

QUANTUM = 1800.0
"""Seconds of a turn: a restart takes a minute or more, which a shorter turn would not be worth."""


class RoundRobin:
    """Preemptive, fair by time."""

    name = "round_robin"
    kind = Kind.RULE
    source = "queueing theory"

    def __init__(self, quantum: float = QUANTUM) -> None:
        """Raise ValueError for a quantum that is not above 0."""
        if not quantum > 0:
            raise ValueError(f"quantum must be above 0 seconds, got {quantum}")
        self.quantum = quantum

    def decide(self, snapshot: Snapshot) -> Decision:
        """Serve those in the middle of a turn, then the others by the part of their stay that they were served."""

        def turn(job: Job) -> tuple[int, bool, float, float, str]:
            return (
                -job.priority,
                not self._in_turn(snapshot.time, job),
                _share(snapshot.time, job),
                job.created,
                job.uid,
            )

        return preempt(self.name, snapshot, Capacity(snapshot), sorted(snapshot.jobs, key=turn))

    def _in_turn(self, now: float, job: Job) -> bool:
        return job.placement is not None and (job.started is None or now - job.started < self.quantum)


def _share(now: float, job: Job) -> float:
    """Part of its stay that a job was served; 0 for a new one."""
    width = job.placement.gpus if job.placement else job.requirements.gpus.low
    return attained(job) / width / max(1.0, now - job.created)
