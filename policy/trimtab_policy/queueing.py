"""What all schedulers that serve a queue have in common; they differ in its order.

`serve` starts waiting jobs one after the other and lets running ones go on. `preempt` walks through running and waiting
jobs alike: whoever comes first gets GPUs for as long as there are any, and running jobs that get none are stopped. It
counts GPUs and leaves their nodes to `realise`, so that a running job that is served again stays where it is. Where
nothing may be preempted (the live controller) `preempt` is `serve`.

A job that could use several counts of GPUs gets the fastest that fits, and keeps it while it runs: these schedulers
come from the time of rigid jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from trimtab_policy.candidates import (
    ANY_NODES,
    Candidate,
    candidates,
    could_ever_fit,
    holding,
    placement,
    with_room,
)
from trimtab_policy.capacity import ALL_TYPES, Capacity
from trimtab_policy.realise import realise
from trimtab_policy.types import Decision, Job, Pending, PendingReason, Placement, Snapshot
from trimtab_policy.why import why_pending

OUT_OF_LINE = (
    PendingReason.NO_SUCH_GPU,
    PendingReason.NO_ELIGIBLE_NODE,
    PendingReason.NO_FEASIBLE_PLAN,
    PendingReason.CLUSTER_TOO_SMALL,
    PendingReason.QUOTA_EXCEEDED,
)
"""A job that no freed GPU would help (the last one: because of its own queue) must not block everybody else."""

Choose = Callable[[Snapshot, Capacity, Job], Placement | None]
Lane = Callable[[Job], Hashable]
Explain = Callable[[Snapshot, Capacity, Job], Pending]


def serve(
    policy: str,
    snapshot: Snapshot,
    capacity: Capacity,
    queue: Iterable[Job],
    choose: Choose,
    lane: Lane | None = None,
    explain: Explain = why_pending,
) -> Decision:
    """Start the waiting jobs of `queue`, in its order, where `choose` finds something for them.

    A job that does not fit lets the others pass, unless `lane` tells which ones must not: those of the same lane.
    `explain` says why nothing was found for a job.
    """
    placements: list[Placement] = []
    pending: list[Pending] = []
    heads: dict[Hashable, Job] = {}
    for job in queue:
        head = heads.get(lane(job)) if lane and heads else None
        if head:
            pending.append(behind(head, job))
        elif chosen := choose(snapshot, capacity, job):
            capacity.take(job, chosen.gpu_type, chosen.shares)
            placements.append(chosen)
        else:
            answer = explain(snapshot, capacity, job)
            pending.append(answer)
            if lane and answer.reason not in OUT_OF_LINE:
                heads[lane(job)] = job
    return Decision(policy, tuple(placements), tuple(pending))


def preempt(policy: str, snapshot: Snapshot, capacity: Capacity, queue: Sequence[Job]) -> Decision:
    """Give GPUs to the jobs of `queue`, running and waiting, in its order; those that get none wait or are stopped."""
    if not any(job.preemptible and job.placement for job in queue):
        return serve(policy, snapshot, capacity, (job for job in queue if job.placement is None), fastest)
    budget = _Budget(snapshot)
    wanted: dict[str, Candidate] = {}
    for job in queue:
        if budget.spent():
            break
        if job.placement is None or job.preemptible:
            chosen = budget.first_affordable(job, _options(snapshot, capacity, job))
            if chosen:
                wanted[job.uid] = chosen
    return realise(policy, snapshot, wanted, scatter=True)


def behind(head: Job, job: Job) -> Pending:
    """Why a job waits whose turn has not come."""
    first = f"{head.namespace}/{head.name}"
    return Pending(job.uid, PendingReason.BEHIND_OTHERS, f"{first} came first and does not fit yet", (first,))


def fastest(snapshot: Snapshot, capacity: Capacity, job: Job) -> Placement | None:
    """The fastest candidate that fits now."""
    for candidate, shares in with_room(capacity, job, fastest_first(snapshot, capacity, job)):
        what = f"{candidate.describe()}, {candidate.option.plan.describe()}"
        reason = f"{what}: {candidate.tokens_per_second:,.0f} tokens/s, the fastest that fits now"
        return placement(job, candidate, shares, reason)
    return None


def fastest_first(snapshot: Snapshot, capacity: Capacity, job: Job) -> list[Candidate]:
    """All candidates, the fastest first; of equals the cheaper one."""
    return sorted(candidates(snapshot, capacity, job), key=lambda found: (-found.tokens_per_second, found.cost))


def seconds_left(job: Job, candidate: Candidate) -> float:
    """Time that the job still has to compute on a candidate."""
    return (job.training.steps - job.steps_done) * candidate.option.prediction.step_seconds


def work_left(snapshot: Snapshot, capacity: Capacity, job: Job) -> tuple[float, int]:
    """Seconds until the job is done, and GPUs that it takes for that: those that it holds, else the fastest ones.

    Infinite for a job that can run nowhere.
    """
    if held := job.placement:
        left = (job.training.steps - job.steps_done) * held.prediction.step_seconds
        return job.resuming + left, held.gpus
    known = fastest_first(snapshot, capacity, job)
    return (seconds_left(job, known[0]), known[0].option.gpus) if known else (float("inf"), 0)


def attained(job: Job) -> float:
    """GPU-seconds that the job has held so far."""
    return sum(job.served.values())


def _options(snapshot: Snapshot, capacity: Capacity, job: Job) -> Iterable[Candidate]:
    """What a job has comes first: anything else would be a restart."""
    if job.placement:
        yield holding(snapshot, job, job.placement)
    yield from fastest_first(snapshot, capacity, job)


class _Budget:
    """GPUs that can be given out anew, counted by type and by quota: those that are free or preemptible."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._capacity = Capacity(snapshot)
        for job in snapshot.jobs:
            if job.placement and job.preemptible:
                self._capacity.give(job, job.placement.gpu_type, job.placement.shares)
        self._free = {name: self._capacity.free_gpus(name) for name in snapshot.gpu_types}
        self._taken: dict[tuple[str, str], int] = {}
        """By queue and type, beyond what runs on and is not preemptible."""

    def spent(self) -> bool:
        """Whether nothing is left."""
        return not any(self._free.values())

    def first_affordable(self, job: Job, options: Iterable[Candidate]) -> Candidate | None:
        """Take the first of the options that there are GPUs for."""
        for option in options:
            gpus, name = option.option.gpus, option.gpu.name
            if gpus <= self._free[name] and self._allowed(job, option):
                self._free[name] -= gpus
                for kind in (name, ALL_TYPES):
                    self._taken[job.queue, kind] = self._taken.get((job.queue, kind), 0) + gpus
                return option
        return None

    def _allowed(self, job: Job, option: Candidate) -> bool:
        """Quotas of the queue, and nodes that the gang could ever lie on."""
        for kind in (option.gpu.name, ALL_TYPES):
            if not self._capacity.within_quota(
                job.queue, kind, option.option.gpus + self._taken.get((job.queue, kind), 0)
            ):
                return False
        if option.spread >= ANY_NODES and job.eligible is None:
            return True
        return could_ever_fit(self._capacity, job, option)
