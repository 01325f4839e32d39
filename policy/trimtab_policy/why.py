"""Why a job waits, in words a user can act on.

The checks go from what can never work (no such GPU, nothing fits in memory) to what only needs patience (all GPUs are
busy), so that the first one that applies is the real obstacle. Each answer names the blockers and what would help.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy import catalog
from trimtab_policy.candidates import Candidate, allowed_types, candidates, could_ever_fit, with_room
from trimtab_policy.capacity import ALL_TYPES, Capacity
from trimtab_policy.perf.plans import why_none
from trimtab_policy.specs import GpuSpec
from trimtab_policy.types import Bounds, Job, Pending, PendingReason, Requirements, Snapshot

MAX_HINTS = 3
"""More suggestions than this nobody reads."""


def why_pending(snapshot: Snapshot, capacity: Capacity, job: Job) -> Pending:
    """Explain why the job does not fit in what `capacity` has left."""
    if job.speeds is not None and (answer := _only_busy(capacity, job, candidates(snapshot, capacity, job))):
        return answer
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


def _only_busy(capacity: Capacity, job: Job, known: list[Candidate]) -> Pending | None:
    """The short answer for a job that brings its own speeds and could run if others did not: a simulator asks often."""
    for candidate in known:
        gpus, name = candidate.option.gpus, candidate.gpu.name
        if could_ever_fit(capacity, job, candidate) and capacity.within_quota(job.queue, name, gpus):
            free = capacity.gpus(job, name)
            reason = PendingReason.FRAGMENTED if free >= gpus else PendingReason.INSUFFICIENT_GPUS
            return Pending(job.uid, reason, f"needs {candidate.describe()}, free: {free}×{name}")
    return None


def clock(moment: float) -> str:
    """A point in time as people write it in a message: `~14:32 UTC`."""
    return datetime.fromtimestamp(moment, UTC).strftime("~%H:%M UTC")


def free_again(capacity: Capacity, now: float, gpu_type: str, gpus: int, free: int) -> float | None:
    """When `gpus` GPUs of a type are expected to be free, as running jobs finish; None if that is not in sight."""
    for finish, returned in capacity.finishes(gpu_type):
        free += returned
        if free >= gpus:
            return max(finish, now)
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

    def answer(self, reason: PendingReason, message: str, blockers: Iterable[str], *hints: str) -> Pending:
        return Pending(self.job.uid, reason, message, tuple(islice(blockers, MAX_HINTS)), hints)

    def unavailable(self) -> Iterator[str]:
        return (f"node {name}: {reason}" for name, reason in sorted(self.snapshot.unavailable.items()))

    def possible(self) -> list[Candidate]:
        """Options that the nodes could hold, were they all free."""
        return [candidate for candidate in self.known if could_ever_fit(self.capacity, self.job, candidate)]

    def within_quota(self) -> list[Candidate]:
        """Those of them that the queue's quota leaves room for."""
        left = {gpu.name: self.capacity.quota_left(self.job.queue, gpu.name) for gpu in self.types}
        return [c for c in self.possible() if (limit := left[c.gpu.name]) is None or c.option.gpus <= limit]


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
    if job.speeds is not None:
        measured = ", ".join(sorted({f"{speed.gpus}×{speed.gpu_type}" for speed in job.speeds})) or "nothing"
        message = f"its speed is known for {measured}: none of that is allowed and in the cluster"
        return case.answer(PendingReason.NO_FEASIBLE_PLAN, message, (), "allow the GPU types and counts that are known")
    size = case.capacity.node_gpus(largest.name)
    message = why_none(job.model, job.training, job.requirements, largest, size)
    if len(case.types) > 1:
        message += f"; nor does it work on the {len(case.types) - 1} other GPU types allowed here"
    hints = tuple(_would_work_if(case)) or ("use a smaller model or larger GPUs",)
    return case.answer(PendingReason.NO_FEASIBLE_PLAN, message, (), *hints)


def _cluster_too_small(case: _Case) -> Pending | None:
    if case.possible():
        return None
    smallest = case.known[0]
    option, name = smallest.option, smallest.gpu.name
    have, nodes = case.capacity.gpus(case.job, name, free=False), case.capacity.eligible_nodes(case.job, name)
    return case.answer(
        PendingReason.CLUSTER_TOO_SMALL,
        f"the smallest plan is {smallest.describe()} ({option.gpus_per_node} on each of {_nodes(option.nodes)}); "
        f"the job may use {_nodes(nodes)} with {have} {name} in all",
        case.unavailable(),
        f"add {name} nodes, or allow other GPU types or fewer GPUs",
    )


def _quota_exceeded(case: _Case) -> Pending | None:
    if case.within_quota():
        return None
    queue = case.job.queue
    smallest = min(case.possible(), key=lambda candidate: candidate.option.gpus)
    allowed = ", ".join(f"{q.gpus}×{q.gpu_type}" for q in case.snapshot.quotas if q.queue == queue)
    left = case.capacity.quota_left(queue, smallest.gpu.name) or 0
    users = (
        f"{other.namespace}/{other.name} holds {other.placement.gpus}×{other.placement.gpu_type}"
        for other in case.snapshot.jobs
        if other.placement and other.queue == queue
    )
    return case.answer(
        PendingReason.QUOTA_EXCEEDED,
        f"queue {queue} allows {allowed.replace(ALL_TYPES, 'any type')}; "
        f"the job needs at least {smallest.describe()} and {max(0, left)} are left",
        users,
        "wait for a job of the queue to finish, raise the queue's quota, or use another queue",
    )


def _no_room(case: _Case) -> Pending:
    """All that is left is to wait: for GPUs, or for GPUs that lie together."""
    able, capacity, job = case.within_quota(), case.capacity, case.job
    free = {name: capacity.gpus(job, name) for name in sorted({candidate.gpu.name for candidate in able})}
    scattered = next((c for c in able if free[c.gpu.name] >= c.option.gpus), None)
    if scattered:
        return case.answer(
            PendingReason.FRAGMENTED,
            _scattered(case, scattered, free),
            _holders(case, able),
            *_starts_now_if(case, able),
        )
    smallest = able[0]
    message = f"needs at least {smallest.describe()}, free: " + ", ".join(f"{n}×{name}" for name, n in free.items())
    name, now = smallest.gpu.name, case.snapshot.time
    moment = free_again(capacity, now, name, smallest.option.gpus, free[name])
    if moment is not None:
        message += f"; enough {smallest.gpu.name} are expected {clock(moment)}"
    return case.answer(PendingReason.INSUFFICIENT_GPUS, message, _holders(case, able), *_starts_now_if(case, able))


def _scattered(case: _Case, candidate: Candidate, free: dict[str, int]) -> str:
    option, name = candidate.option, candidate.gpu.name
    together = "together with the CPU and memory that the job asks for"
    return (
        f"{free[name]} {name} are free, but not {option.gpus_per_node} on each of {_nodes(option.nodes)} {together}; "
        f"the emptiest node has {case.capacity.most_free(case.job, name)}"
    )


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _holders(case: _Case, able: list[Candidate]) -> Iterator[str]:
    """Who holds the GPUs that the job could use, the first to finish first."""
    wanted = {candidate.gpu.name for candidate in able}
    holding = [(job, job.placement) for job in case.snapshot.jobs if job.placement and job.placement.gpu_type in wanted]
    holding.sort(key=lambda held: held[0].expected_finish or float("inf"))
    for job, placement in holding:
        until = f" until {clock(job.expected_finish)}" if job.expected_finish else ""
        yield f"{job.namespace}/{job.name} holds {placement.gpus}×{placement.gpu_type}{until}"


def _starts_now_if(case: _Case, able: list[Candidate]) -> Iterator[str]:
    """Changes of the job that would let it start at once: other GPU types, or fewer GPUs."""
    need = case.job.requirements
    fastest = max(candidate.tokens_per_second for candidate in able)
    relaxed = {
        "with any GPU type allowed": replace(need, gpu_types=()),
        "with fewer GPUs": replace(need, gpus=Bounds(1, need.gpus.high)),
    }
    for change, requirements in relaxed.items():
        if requirements == need:
            continue
        found = candidates(case.snapshot, case.capacity, replace(case.job, requirements=requirements))
        found.sort(key=lambda candidate: -candidate.tokens_per_second)
        for candidate, _ in islice(with_room(case.capacity, case.job, found), 1):
            ratio = candidate.tokens_per_second / fastest
            yield f"{change} ({candidate.describe()}) it would start now at {ratio:.2f}× the speed"


def _would_work_if(case: _Case) -> Iterator[str]:
    """The smallest change under which there is a plan at all."""
    for change, job in _wider(case).items():
        found = candidates(case.snapshot, case.capacity, job) if job != case.job else []
        if found:
            yield f"{change} makes it possible: {min(found, key=lambda c: c.cost).describe()} would do"
            return


def _wider(case: _Case) -> dict[str, Job]:
    """The job with more freedom, the smallest changes first."""
    job, need = case.job, case.job.requirements
    low, high = need.gpus.low, need.gpus.high
    of_type = max(case.capacity.gpus(job, gpu.name, free=False) for gpu in case.types)
    more_of_type, more_of_any = Bounds(low, max(of_type, high)), Bounds(low, max(int(case.capacity.total.sum()), high))
    any_degrees = Requirements(gpus=need.gpus, gpu_types=need.gpu_types, max_nodes=need.max_nodes)
    requirements = {
        "leaving spec.parallelism free": any_degrees,
        "raising spec.resources.maxNodes": replace(need, max_nodes=None),
        "raising spec.resources.gpus.max": replace(need, gpus=more_of_type, max_nodes=None),
        "allowing other GPU types": replace(need, gpu_types=()),
        "raising spec.resources.gpus.max and allowing other GPU types": replace(
            need, gpu_types=(), gpus=more_of_any, max_nodes=None
        ),
    }
    wider = {change: replace(job, requirements=wide) for change, wide in requirements.items()}
    formats = {precision for gpu in case.types for precision in gpu.peak_flops} - {job.training.precision}
    for precision in sorted(formats):
        wider[f"training in {precision} (spec.training.precision)"] = replace(
            job, training=replace(job.training, precision=precision)
        )
    return wider
