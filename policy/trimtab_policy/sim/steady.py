"""Work that goes on at a constant rate while its gang stands: the common part of rigid and LLM jobs."""

from __future__ import annotations

import math

DONE_WITHIN = 1e-6
"""Seconds of work that count as done: sums of times are not exact."""


class Steady:
    """Seconds of work left at rate 1, and what of it was saved last."""

    def __init__(self, total: float, done: float = 0.0, checkpoint_every: float = math.inf) -> None:
        """`total` and `done` in units of work; a checkpoint is saved after every so much work, in the same unit."""
        self.total = total
        self.done = done
        self.rate = 0.0
        """Units of work per second."""
        self._saved = done
        self._every = checkpoint_every

    @property
    def progress(self) -> float:
        """Part that is done."""
        return min(1.0, self.done / self.total)

    def advance(self, seconds: float) -> float:
        """Work for so long, or until done; returns how long."""
        if self.rate <= 0:
            return 0.0
        left = (self.total - self.done) / self.rate
        if left <= seconds + DONE_WITHIN:
            self.done = self.total
            return min(left, seconds)
        self.done += self.rate * seconds
        if self.done - self._saved >= self._every:
            self._saved += self._every * ((self.done - self._saved) // self._every)
        return seconds

    def finish_in(self) -> float:
        """Seconds until done; infinite at rate 0."""
        return (self.total - self.done) / self.rate if self.rate > 0 else math.inf

    def checkpoint_every(self, work: float) -> None:
        """Save after every so much work from now on."""
        self._every = work

    def save(self) -> None:
        """A checkpoint at this moment."""
        self._saved = self.done

    def fail(self) -> float:
        """Fall back to the last checkpoint; returns the seconds that the lost work took at the present rate."""
        lost, self.done = self.done - self._saved, self._saved
        return lost / self.rate if self.rate > 0 else 0.0
