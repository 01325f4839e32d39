"""First come, first served with EASY backfilling: later jobs may pass the head of the queue if they do not delay it.

Lifka, "The ANL/IBM SP scheduling system", 1995. The first job that does not fit gets a reservation: the earliest time
at which enough GPUs of a type that it can use will be free, as running jobs are expected to finish. Another job may
start before it where it takes GPUs of another type, is expected to be done by then, or takes no more than the GPUs that
the head will leave over. Only the head has a reservation.

A job that is started in between takes as long to start as a restart takes, while the end of jobs that have just been
started is counted without: so the head is not delayed by either.

GPUs are counted, whichever nodes they are on; so a gang that needs whole nodes can be delayed by scattered ones. Where
the end of what runs is not in sight nobody may take a type that the head waits for.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.placement.candidates import Candidate, could_ever_fit, placement, with_room
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.pending_reasons import why_pending
from trimtab_policy.placement.queueing import OUT_OF_LINE, behind, fastest, fastest_first, seconds_left, start_up
from trimtab_policy.placement.releases import Release, told_releases
from trimtab_policy.policy import Kind
from trimtab_policy.types import Decision, Job, Pending, Placement, Snapshot


class EasyBackfill:
    """FCFS with EASY backfilling."""

    name = "easy_backfill"
    kind = Kind.RULE
    source = "Lifka, JSSPP 1995"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Place jobs in order; behind the first that has to wait only those that do not delay it."""
        round_ = _Round(snapshot)
        for job in snapshot.waiting():
            if round_.head is None:
                round_.start_or_reserve(job)
            else:
                round_.backfill(job, round_.head)
        return Decision(self.name, tuple(round_.placements), tuple(round_.pending))


class _Reservation(Struct, frozen=True):
    """What is promised to the head of the queue."""

    job: Job
    gpu_types: frozenset[str]
    start: float
    spare: int
    """GPUs of the type that the head will leave free when it starts."""


class _Round:
    """One decision in the making."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.capacity = Capacity(snapshot)
        self.head: _Reservation | None = None
        self.placements: list[Placement] = []
        self.pending: list[Pending] = []
        self._started: list[Release] = []
        """What jobs that start now will give back."""

    def start_or_reserve(self, job: Job) -> None:
        """Serve a job that nobody is waiting before."""
        if chosen := fastest(self.snapshot, self.capacity, job):
            self._take(job, chosen)
            return
        answer = why_pending(self.snapshot, self.capacity, job)
        self.pending.append(answer)
        if answer.reason not in OUT_OF_LINE:
            self.head = self._reservation(job)

    def backfill(self, job: Job, head: _Reservation) -> None:
        """Start a job on the fastest candidate that does not delay the head."""
        harmless = [found for found in fastest_first(self.snapshot, self.capacity, job) if self._harmless(job, found)]
        for candidate, shares in with_room(self.capacity, job, harmless):
            what = candidate.describe_with_plan()
            reason = f"{what}: does not delay {head.job.namespace}/{head.job.name}, which came first"
            self._take(job, placement(self.capacity, job, candidate, shares, reason))
            if candidate.gpu.name in head.gpu_types and self._end(job, candidate) > head.start:
                self.head = replace(head, spare=head.spare - candidate.option.gpus)
            return
        self.pending.append(behind(head.job, job))

    def _harmless(self, job: Job, candidate: Candidate) -> bool:
        head = self.head
        return (
            head is None
            or candidate.gpu.name not in head.gpu_types
            or candidate.option.gpus <= head.spare
            or self._end(job, candidate) <= head.start
        )

    def _end(self, job: Job, candidate: Candidate) -> float:
        """When the job is done at the latest."""
        return self.snapshot.time + start_up(job) + seconds_left(job, candidate)

    def _take(self, job: Job, chosen: Placement) -> None:
        self.capacity.take(job, chosen.gpu_type, chosen.shares)
        self.placements.append(chosen)
        # At the earliest: were the head promised a later start, others could be let in before it for too long.
        left = (job.training.steps - job.steps_done) * chosen.prediction.step_seconds
        self._started.append(Release(self.snapshot.time + left, chosen.gpu_type, chosen.gpus))

    def _reservation(self, job: Job) -> _Reservation:
        """The earliest start, on the fastest candidate that allows it."""
        able = [
            found
            for found in fastest_first(self.snapshot, self.capacity, job)
            if could_ever_fit(self.capacity, job, found)
        ]
        releases, now = told_releases(self.snapshot).plus(self._started), self.snapshot.time
        starts = [
            releases.enough(name := found.gpu.name, found.option.gpus, self.capacity.gpus(job, name), now)
            for found in able
        ]
        if not any(starts):
            return _Reservation(job, frozenset(found.gpu.name for found in able), self.snapshot.time, 0)
        (start, spare), first = min(
            ((start, found) for start, found in zip(starts, able, strict=True) if start), key=lambda each: each[0][0]
        )
        return _Reservation(job, frozenset({first.gpu.name}), start, spare)
