"""Jobs that work at a constant rate while their gang stands: what rigid and LLM jobs have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from trimtab_policy.types import Job, Placement

DONE_WITHIN = 1e-6
"""Seconds of work that count as done: sums of times are not exact."""


class SteadyJob(ABC):
    """Most of a `sim.job.SimJob`: work in units of its own, done at a rate that follows from the placement alone."""

    def __init__(self, job: Job, submitted: float, total: float, done: float, checkpoint_seconds: float) -> None:
        """`total` and `done` in units of work. A checkpoint is saved after every so many seconds of computing."""
        self.uid = job.uid
        self.submitted = submitted
        self.application = job.model.name
        self._job = job
        self._total, self._done = total, done
        self._saved, self._unsaved_seconds = done, 0.0
        """Work that is in a checkpoint, and seconds of computing since it was saved."""
        self._rate = 0.0
        self._checkpoint_seconds = checkpoint_seconds

    @abstractmethod
    def rate(self, placement: Placement) -> float:
        """Units of work per second on these GPUs."""

    @property
    def progress(self) -> float:
        return min(1.0, self._done / self._total)

    def seen(self) -> Job:
        return self._job

    def place(self, placement: Placement | None, speed: float = 1.0) -> None:
        """A job that is stopped saves a checkpoint."""
        if placement is None:
            self._saved, self._unsaved_seconds = self._done, 0.0
        self._rate = self.rate(placement) * speed if placement else 0.0

    def advance(self, seconds: float) -> float:
        if self._rate <= 0:
            return 0.0
        left = self.finish_in()
        if left <= seconds + DONE_WITHIN:
            self._done = self._total
            return min(left, seconds)
        self._done += self._rate * seconds
        self._unsaved_seconds += seconds
        if self._unsaved_seconds >= self._checkpoint_seconds:
            self._unsaved_seconds %= self._checkpoint_seconds
            self._saved = self._done - self._rate * self._unsaved_seconds
        return seconds

    def finish_in(self) -> float:
        return (self._total - self._done) / self._rate if self._rate > 0 else math.inf

    def fail(self) -> float:
        lost, self._unsaved_seconds = self._unsaved_seconds, 0.0
        self._done = self._saved
        return lost
