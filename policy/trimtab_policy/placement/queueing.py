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

from trimtab_policy.placement.assign import realise
from trimtab_policy.placement.candidates import Candidate, candidates, could_ever_fit, on_nodes, placement, with_room
from trimtab_policy.placement.capacity import ALL_TYPES, Capacity
from trimtab_policy.placement.pending_reasons import why_pending
from trimtab_policy.types import Decision, Job, Pending, PendingReason, Placement, Snapshot

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
    budget = _Budget(snapshot, capacity)
    keep: set[str] = set()
    wanted: dict[str, Candidate] = {}
    for job in queue:
        if budget.spent():
            break
        if job.placement and not job.preemptible:
            continue
        if job.placement and budget.take(job, job.placement.gpu_type, job.placement.gpus):
            keep.add(job.uid)
        elif chosen := _first_affordable(budget, snapshot, capacity, job):
            wanted[job.uid] = chosen
    return realise(policy, snapshot, wanted, keep=keep, scatter=True, capacity=capacity)


def behind(head: Job, job: Job) -> Pending:
    """Why a job waits whose turn has not come."""
    first = f"{head.namespace}/{head.name}"
    return Pending(job.uid, PendingReason.BEHIND_OTHERS, f"{first} came first and does not fit yet", (first,))


def fastest(snapshot: Snapshot, capacity: Capacity, job: Job) -> Placement | None:
    """The fastest candidate that fits now."""
    for candidate, shares in with_room(capacity, job, fastest_first(snapshot, capacity, job)):
        what = candidate.describe_with_plan()
        rate = on_nodes(capacity, job, candidate, shares).tokens_per_second
        reason = f"{what}: {rate:,.0f} tokens/s, the fastest that fits now"
        return placement(capacity, job, candidate, shares, reason)
    return None


def fastest_first(snapshot: Snapshot, capacity: Capacity, job: Job) -> list[Candidate]:
    """All candidates, the fastest first; of equals the cheaper one."""
    return sorted(candidates(snapshot, capacity, job), key=_fastest)


def _fastest(candidate: Candidate) -> tuple[float, float]:
    return -candidate.tokens_per_second, candidate.cost


def seconds_left(job: Job, candidate: Candidate) -> float:
    """Time that the job still has to compute on a candidate."""
    return (job.training.steps - job.steps_done) * candidate.option.prediction.step_seconds


def start_up(job: Job) -> float:
    """Seconds until the job computes, at most: as long as a restart, where a start costs anything at all.

    Jobs of a trace whose run time is all that is known have their first start included in it.
    """
    fresh = job.restarts == 0 and job.steps_done == 0
    return 0.0 if fresh and job.speeds is not None else job.restart_seconds


def work_left(snapshot: Snapshot, capacity: Capacity, job: Job) -> tuple[float, int]:
    """Seconds to compute on its fastest candidate, and the GPUs of that; infinite and 0 if it has none.

    Also for a job that runs on less or is being restarted: waiting and running jobs are measured alike. Otherwise who
    has just been started would seem longer than before, and two jobs of nearly equal length would take turns.
    """
    known = candidates(snapshot, capacity, job)
    if not known:
        return float("inf"), 0
    best = min(known, key=_fastest)
    return seconds_left(job, best), best.option.gpus


def attained(job: Job) -> float:
    """GPU-seconds that the job has held so far."""
    return sum(job.served.values())


def _first_affordable(budget: _Budget, snapshot: Snapshot, capacity: Capacity, job: Job) -> Candidate | None:
    """The fastest candidate that there are GPUs for, which it takes, and nodes that it could ever lie on."""
    for candidate in fastest_first(snapshot, capacity, job):
        gpus, name = candidate.option.gpus, candidate.gpu.name
        if budget.has(job, name, gpus) and could_ever_fit(capacity, job, candidate):
            budget.take(job, name, gpus)
            return candidate
    return None


class _Budget:
    """GPUs that can be given out anew, counted by type and by quota: those that are free or preemptible."""

    def __init__(self, snapshot: Snapshot, capacity: Capacity) -> None:
        self._free = {name: capacity.free_gpus(name) for name in snapshot.gpu_types}
        self._quota = {(quota.queue, quota.gpu_type): quota.gpus for quota in snapshot.quotas}
        for job in snapshot.jobs:
            if held := job.placement:
                if job.preemptible:
                    self._free[held.gpu_type] += sum(
                        share.gpus for share in held.shares if share.node in capacity.index
                    )
                elif self._quota:
                    self._charge(job, held.gpu_type, held.gpus)

    def spent(self) -> bool:
        """Whether nothing is left."""
        return not any(self._free.values())

    def has(self, job: Job, gpu_type: str, gpus: int) -> bool:
        """Whether so many are left, and the job's queue may have them."""
        if gpus > self._free.get(gpu_type, 0):
            return False
        return not self._quota or all(
            gpus <= self._quota.get((job.queue, kind), gpus) for kind in (gpu_type, ALL_TYPES)
        )

    def take(self, job: Job, gpu_type: str, gpus: int) -> bool:
        """Spend them if there are so many."""
        if not self.has(job, gpu_type, gpus):
            return False
        self._free[gpu_type] -= gpus
        if self._quota:
            self._charge(job, gpu_type, gpus)
        return True

    def _charge(self, job: Job, gpu_type: str, gpus: int) -> None:
        for key in ((job.queue, gpu_type), (job.queue, ALL_TYPES)):
            if key in self._quota:
                self._quota[key] -= gpus
