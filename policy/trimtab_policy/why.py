"""Why a job waits, in words a user can act on.

The checks go from what can never work (no such GPU, nothing fits in memory) to what only needs patience (all GPUs are
busy), so that the first one that applies is the real obstacle. Each answer names the blockers and what would help.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from trimtab_policy import catalog
from trimtab_policy.candidates import Candidate, allowed_types, candidates, with_room
from trimtab_policy.capacity import ALL_TYPES, Capacity
from trimtab_policy.perf.plans import why_none
from trimtab_policy.types import Bounds, GpuSpec, Job, Pending, PendingReason, Requirements, Snapshot

MAX_HINTS = 3
"""More suggestions than this nobody reads."""


def why_pending(snapshot: Snapshot, capacity: Capacity, job: Job) -> Pending:
    """Explain why the job does not fit in what `capacity` has left."""
    case = _Case(
        snapshot,
        capacity,
        job,
        allowed_types(snapshot, job.requirements),
        sorted(candidates(snapshot, capacity, job), key=lambda candidate: candidate.cost),
    )
    for check in (_no_such_gpu, _no_eligible_node, _no_feasible_plan, _cluster_too_small, _quota_exceeded):
        if answer := check(case):
            return answer
    return _no_room(case)


def clock(moment: float) -> str:
    """A point in time as people write it in a message: `~14:32 UTC`."""
    return datetime.fromtimestamp(moment, UTC).strftime("~%H:%M UTC")


def free_again(snapshot: Snapshot, gpu_type: str, gpus: int, free: int) -> float | None:
    """When `gpus` GPUs of a type are expected to be free, as running jobs finish; None if that is not in sight."""
    finishes = sorted(
        (job.expected_finish, job.placement.gpus)
        for job in snapshot.jobs
        if job.placement and job.placement.gpu_type == gpu_type and job.expected_finish is not None
    )
    for finish, returned in finishes:
        free += returned
        if free >= gpus:
            return max(finish, snapshot.time)
    return None


class _Case(Struct, frozen=True):
    """What the checks look at."""

    snapshot: Snapshot
    capacity: Capacity
    job: Job
    types: list[GpuSpec]
    """GPU types of the cluster that the job allows."""
    known: list[Candidate]
    """Its feasible options on them, cheapest first."""

    def answer(
        self, reason: PendingReason, message: str, blockers: Iterator[str] | tuple[str, ...], *hints: str
    ) -> Pending:
        return Pending(self.job.uid, reason, message, tuple(blockers), hints)

    def unavailable(self) -> tuple[str, ...]:
        nodes = sorted(self.snapshot.unavailable.items())
        return tuple(f"node {name}: {reason}" for name, reason in nodes[:MAX_HINTS])


def _no_such_gpu(case: _Case) -> Pending | None:
    if case.types:
        return None
    present = ", ".join(sorted(case.snapshot.gpu_types)) or "no GPU node that takes pods"
    wanted = case.job.requirements.gpu_types
    if not wanted:
        return case.answer(PendingReason.NO_SUCH_GPU, f"the cluster has {present}", case.unavailable())
    listed = {gpu.name for gpu in catalog.all_gpus()}
    unknown = [name for name in wanted if name not in listed]
    hint = f"; {', '.join(unknown)} is no GPU type that Trimtab knows" if unknown else ""
    return case.answer(
        PendingReason.NO_SUCH_GPU,
        f"spec.resources.gpuTypes allows only {', '.join(wanted)}; the cluster has {present}{hint}",
        case.unavailable(),
        "allow a GPU type that the cluster has, or add nodes of an allowed type",
    )


def _no_eligible_node(case: _Case) -> Pending | None:
    if any(case.capacity.eligible_nodes(case.job, gpu.name) for gpu in case.types):
        return None
    return case.answer(
        PendingReason.NO_ELIGIBLE_NODE,
        "no GPU node matches the nodeSelector, affinity and tolerations of spec.template",
        case.unavailable(),
        "relax nodeSelector or affinity, or add a toleration for the taints of the GPU nodes",
    )


def _no_feasible_plan(case: _Case) -> Pending | None:
    if case.known:
        return None
    job, largest = case.job, max(case.types, key=lambda gpu: gpu.memory_bytes)
    size = case.capacity.node_gpus(largest.name)
    message = why_none(job.model, job.training, job.requirements, largest, size)
    if len(case.types) > 1:
        message += f"; nor does it work on the {len(case.types) - 1} other GPU types allowed here"
    hints = tuple(_wider_requirements(case)) or ("use a smaller model or larger GPUs",)
    return case.answer(PendingReason.NO_FEASIBLE_PLAN, message, (), *hints)


def _cluster_too_small(case: _Case) -> Pending | None:
    capacity, job = case.capacity, case.job
    if any(capacity.could_ever_fit(job, c.gpu.name, c.option.nodes, c.option.gpus_per_node) for c in case.known):
        return None
    smallest = case.known[0]
    option, have = smallest.option, capacity.gpus(smallest.gpu.name, free=False)
    return case.answer(
        PendingReason.CLUSTER_TOO_SMALL,
        f"the smallest plan is {smallest.describe()} as {option.nodes} nodes × {option.gpus_per_node} GPUs; "
        f"the cluster has {have} {smallest.gpu.name}",
        case.unavailable(),
        f"add {smallest.gpu.name} nodes, or allow other GPU types or fewer GPUs",
    )


def _quota_exceeded(case: _Case) -> Pending | None:
    queue, capacity = case.job.queue, case.capacity
    left = {gpu.name: capacity.quota_left(queue, gpu.name) for gpu in case.types}
    limits = {name: limit for name, limit in left.items() if limit is not None}
    if any(c.gpu.name not in limits or c.option.gpus <= limits[c.gpu.name] for c in case.known):
        return None
    allowed = ", ".join(f"{q.gpus}×{q.gpu_type}" for q in case.snapshot.quotas if q.queue == queue)
    users = (
        f"{other.namespace}/{other.name} holds {other.placement.gpus}×{other.placement.gpu_type}"
        for other in case.snapshot.jobs
        if other.placement and other.queue == queue
    )
    needed = min(candidate.option.gpus for candidate in case.known)
    return case.answer(
        PendingReason.QUOTA_EXCEEDED,
        f"queue {queue} allows {allowed.replace(ALL_TYPES, 'any type')}; "
        f"the job needs {needed} GPUs and at most {max(0, *limits.values())} are left",
        tuple(users)[:MAX_HINTS],
        "wait for a job of the queue to finish, raise the queue's quota, or use another queue",
    )


def _no_room(case: _Case) -> Pending:
    capacity, smallest = case.capacity, case.known[0]
    option, gpu_type = smallest.option, smallest.gpu.name
    free = {gpu.name: capacity.gpus(gpu.name) for gpu in case.types}
    scattered = sorted({c.gpu.name for c in case.known if free[c.gpu.name] >= c.option.gpus})
    if scattered:
        name = scattered[0]
        reason = PendingReason.FRAGMENTED
        message = (
            f"{free[name]} {name} are free, but no {option.nodes} nodes have {option.gpus_per_node} each together with "
            f"the CPU and memory that the job asks for; the emptiest node has {capacity.most_free(name)}"
        )
    else:
        reason = PendingReason.INSUFFICIENT_GPUS
        message = f"needs at least {smallest.describe()}, free: " + ", ".join(f"{n}×{name}" for name, n in free.items())
        if (moment := free_again(case.snapshot, gpu_type, option.gpus, free[gpu_type])) is not None:
            message += f"; enough {gpu_type} are expected {clock(moment)}"
    return case.answer(reason, message, tuple(_holders(case)), *_starts_now_if(case))


def _holders(case: _Case) -> Iterator[str]:
    """Who holds the GPUs that the job could use, the first to finish first."""
    wanted = {candidate.gpu.name for candidate in case.known}
    holding = [job for job in case.snapshot.jobs if job.placement and job.placement.gpu_type in wanted]
    holding.sort(key=lambda job: job.expected_finish or float("inf"))
    for job in holding[:MAX_HINTS]:
        if job.placement:
            until = f" until {clock(job.expected_finish)}" if job.expected_finish else ""
            yield f"{job.namespace}/{job.name} holds {job.placement.gpus}×{job.placement.gpu_type}{until}"


def _starts_now_if(case: _Case) -> Iterator[str]:
    """Changes of the job that would let it start at once: other GPU types, or fewer GPUs."""
    need = case.job.requirements
    fastest = max(candidate.tokens_per_second for candidate in case.known)
    relaxed = {
        "with any GPU type allowed": msgspec.structs.replace(need, gpu_types=()),
        "with fewer GPUs": msgspec.structs.replace(need, gpus=Bounds(1, need.gpus.high)),
    }
    for change, requirements in relaxed.items():
        if requirements == need:
            continue
        others = [
            candidate
            for candidate in candidates(case.snapshot, case.capacity, case.job, requirements)
            if case.capacity.may_fit(candidate.gpu.name, candidate.option.nodes, candidate.option.gpus_per_node)
        ]
        others.sort(key=lambda candidate: -candidate.tokens_per_second)
        for candidate, _ in with_room(case.capacity, case.job, others):
            ratio = candidate.tokens_per_second / fastest
            yield f"{change} ({candidate.describe()}) it would start now at {ratio:.2f}× the speed"
            break


def _wider_requirements(case: _Case) -> Iterator[str]:
    """The smallest change under which some plan fits in memory at all."""
    need, low = case.job.requirements, case.job.requirements.gpus.low
    of_type = max(case.capacity.gpus(gpu.name, free=False) for gpu in case.types)
    of_any = int(case.capacity.total.sum())
    degrees_free = Requirements(
        gpus=need.gpus,
        gpu_types=need.gpu_types,
        max_nodes=need.max_nodes,
        cpu_milli_per_gpu=need.cpu_milli_per_gpu,
        memory_per_gpu=need.memory_per_gpu,
    )
    replace = msgspec.structs.replace
    changes = {
        "raising spec.resources.gpus.max": replace(need, gpus=Bounds(low, max(of_type, low)), max_nodes=None),
        "leaving spec.parallelism free": degrees_free,
        "allowing other GPU types": replace(need, gpu_types=()),
        "raising spec.resources.gpus.max and allowing other GPU types": replace(
            need, gpu_types=(), gpus=Bounds(low, max(of_any, low)), max_nodes=None
        ),
    }
    for change, requirements in changes.items():
        found = candidates(case.snapshot, case.capacity, case.job, requirements)
        if found and requirements != need:
            yield f"{change} makes it possible: {min(found, key=lambda c: c.cost).describe()} would do"
            return
