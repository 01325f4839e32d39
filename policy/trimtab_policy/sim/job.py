"""What a simulated job is to the engine: the truth about it, and what policies may know of that.

Three kinds exist, one file each: `rigid` (a trace says how long it ran on how many GPUs), `llm` (the performance model
says how fast each plan is) and `goodput` (measured throughput and statistical efficiency, as in the Sia artifact).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from trimtab_policy.types import Job, Placement


class Alone(NamedTuple):
    """A job by itself on so many GPUs."""

    seconds: float
    """Of the whole work."""
    best_rate: float
    """Greatest part of the work that it ever does in a second there; 1 / seconds at a constant rate."""


class SimJob(Protocol):
    """A job as it really is. The engine moves it through time; policies see `seen`."""

    @property
    def uid(self) -> str: ...

    @property
    def submitted(self) -> float:
        """Seconds from the start of the simulation."""
        ...

    @property
    def application(self) -> str:
        """Kind of job, to group results by."""
        ...

    @property
    def progress(self) -> float:
        """Part of the whole work that is done, from 0 to 1."""
        ...

    def seen(self) -> Job:
        """What policies may know now, without what the engine adds.

        The engine adds placement, started, expected_finish, restarts, resuming and served. Returns the same object
        for as long as nothing has changed but progress by steady work.
        """
        ...

    def steps_done(self) -> int:
        """In the unit of `seen().training.steps`."""
        ...

    def pause(self, before: Placement | None, after: Placement) -> float:
        """Seconds without progress that the change costs; 0 when it is none, or a free one."""
        ...

    def place(self, placement: Placement | None, speed: float = 1.0) -> None:
        """Run as placed from now on, or stop (None). `speed` < 1 when the slowest of its nodes is a straggler."""
        ...

    def advance(self, seconds: float) -> float:
        """Compute for so long, or until done; returns the seconds that it took. Raises nothing for a stopped job: 0."""
        ...

    def finish_in(self) -> float:
        """Seconds of computing until it is done if nothing changes; infinite for a stopped job."""
        ...

    def fail(self) -> float:
        """Lose what was not saved since the last checkpoint; returns the seconds of computing that are lost."""
        ...

    def alone(self, gpu_type: str) -> Mapping[int, Alone]:
        """The truth, for finish-time fairness and lower bounds: GPUs of one type -> what it makes of so many.

        Undisturbed, without restarts, on the best nodes; empty where it cannot run.
        """
        ...
