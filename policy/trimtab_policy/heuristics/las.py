"""Two-dimensional least attained service, without any knowledge of durations (Tiresias).

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, section 3.2: the less service a
job has attained, in GPUs times time, the earlier its turn. Continuous priorities would preempt all the time; so they
are discretised (2D-LAS with the multi-level feedback queues of section 3.2.3): a job sinks to the next queue when it
has attained a threshold, and within a queue running jobs stay in front, in the order of their start, then come the
waiting ones by arrival. Two queues suffice (section 5.3); the threshold is the one of the evaluations of Pollux and
Lucid.

A job that has waited `promote` times as long as it ran rises to the first queue, against starvation, until it has
attained the first threshold anew. The paper counts the waiting since the last stop; a snapshot tells only all of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.queueing import attained, preempt
from trimtab_policy.policy import Kind
from trimtab_policy.types import Decision, Job, Snapshot

THRESHOLDS = (18000.0,)
"""GPU-seconds at which a job sinks to the next queue."""
PROMOTE = 8.0


class Las:
    """2D-LAS, discretised, preemptive."""

    name = "las"
    kind = Kind.RULE
    source = "Gu et al. (Tiresias), NSDI 2019"

    def __init__(self, thresholds: Sequence[float] = THRESHOLDS, promote: float = PROMOTE) -> None:
        """Raise ValueError for thresholds that do not rise from above 0. `promote` inf: never."""
        if not thresholds or list(thresholds) != sorted({*thresholds}) or thresholds[0] <= 0:
            raise ValueError(f"thresholds must rise from above 0, got {list(thresholds)}")
        self.thresholds = tuple(thresholds)
        self.promote = promote

    def decide(self, snapshot: Snapshot) -> Decision:
        """Serve all jobs queue by queue."""

        def turn(job: Job) -> tuple[int, int, bool, float, str]:
            since = job.created if job.started is None or job.placement is None else job.started
            return -job.priority, self.queue(snapshot.time, job), job.placement is None, since, job.uid

        return preempt(self.name, snapshot, Capacity(snapshot), sorted(snapshot.jobs, key=turn))

    def queue(self, now: float, job: Job) -> int:
        """The queue that a job is in; 0 is served first."""
        level = bisect_right(self.thresholds, attained(job))
        return 0 if level and self._starved(now, job) else level

    def _starved(self, now: float, job: Job) -> bool:
        """Whether it had waited too long before its present run, if any, and has not had its fill since."""
        held, gpus, total = 0.0, 1, attained(job)
        if job.placement and job.started is not None:
            held, gpus = now - job.started, job.placement.gpus
        if held * gpus >= self.thresholds[0]:
            return False
        ran = max(0.0, total - held * gpus) / _width(job)
        return now - held - job.created - ran >= self.promote * ran > 0


def _width(job: Job) -> int:
    """GPUs that its service is divided by to get the time that it ran."""
    return job.placement.gpus if job.placement else job.requirements.gpus.low
