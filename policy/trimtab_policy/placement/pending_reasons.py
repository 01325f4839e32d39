"""Why a job waits, in words a user can act on.

The checks go from what can never work (no such GPU, nothing fits in memory) to what only needs patience (all GPUs are
busy), so that the first one that applies is the real obstacle. Each answer names the blockers and what would help.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from trimtab_policy import catalog
from trimtab_policy.inputs.nearest import did_you_mean
from trimtab_policy.perf.plan_space import ANYHOW
from trimtab_policy.perf.plans import why_none
from trimtab_policy.placement.candidates import Candidate, allowed_types, candidates, could_ever_fit
from trimtab_policy.placement.capacity import ALL_TYPES, Capacity
from trimtab_policy.placement.hints import (
    MAX_HINTS,
    WaitingCase,
    count_of,
    more_quota,
    starts_now_if,
    with_room,
    would_work_if,
)
from trimtab_policy.placement.host_limits import host_shortage
from trimtab_policy.placement.node_columns import columns
from trimtab_policy.placement.releases import told_releases
from trimtab_policy.placement.running_columns import running_columns
from trimtab_policy.placement.wording import Hint, TimedText, worded
from trimtab_policy.types import Job, Pending, PendingReason, Remedy, Snapshot

ANOTHER_TYPE = "allow a GPU type that the cluster has, or add nodes of an allowed type"


def why_pending(snapshot: Snapshot, capacity: Capacity, job: Job) -> Pending:
    """Explain why the job does not fit in what `capacity` has left. Jobs that ask for the same share the answer."""
    if job.speeds is not None and (answer := _only_busy(capacity, job, candidates(snapshot, capacity, job))):
        return answer
    asked = (
        "why", job.model, job.training, job.requirements, job.speeds, job.eligible, job.corrections, job.queue,
        job.priority, bool(job.steps_done), bool(job.restarts),
    )  # fmt: skip
    return replace(capacity.remember(asked, lambda: _explain(snapshot, capacity, job)), job=job.uid)


def search(snapshot: Snapshot, capacity: Capacity, job: Job) -> None:
    """Do at once what takes long about a job that nobody has decided about yet, and is remembered: find its plans, or,
    where it has none, what keeps it from them and what would help."""
    if not candidates(snapshot, capacity, job):
        _explain(snapshot, capacity, job)


def _explain(snapshot: Snapshot, capacity: Capacity, job: Job) -> Pending:
    case = WaitingCase(
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


def _no_such_gpu(case: WaitingCase) -> Pending | None:
    if case.types:
        return None
    present = ", ".join(sorted(case.snapshot.gpu_types)) or "no GPU node that takes pods"
    wanted = case.job.requirements.gpu_types
    if not wanted:
        return case.answer(PendingReason.NO_SUCH_GPU, f"the cluster has {present}", case.unavailable())
    listed = [gpu.name for gpu in catalog.all_gpus()]
    unknown = [name for name in wanted if name not in listed]
    hint = "".join(f"; {name} is no GPU type that Trimtab knows{did_you_mean(name, listed)}" for name in unknown)
    return case.answer(
        PendingReason.NO_SUCH_GPU,
        f"spec.resources.gpuTypes allows only {', '.join(wanted)}; the cluster has {present}{hint}",
        case.unavailable(),
        Hint(ANOTHER_TYPE, Remedy(gpu_types=())) if _fits_another_type(case) else ANOTHER_TYPE,
    )


def _fits_another_type(case: WaitingCase) -> bool:
    job = case.job
    wider = replace(job, requirements=replace(job.requirements, gpu_types=()))
    return bool(candidates(case.snapshot, case.capacity, wider))


def _no_eligible_node(case: WaitingCase) -> Pending | None:
    if any(case.capacity.eligible_nodes(case.job, gpu.name) for gpu in case.types):
        return None
    return case.answer(
        PendingReason.NO_ELIGIBLE_NODE,
        "no GPU node matches the nodeSelector, affinity and tolerations of spec.template",
        case.unavailable(),
        "relax nodeSelector or affinity, or add a toleration for the taints of the GPU nodes",
    )


def _no_feasible_plan(case: WaitingCase) -> Pending | None:
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
    hints = would_work_if(case) or ("use a smaller model or larger GPUs",)
    return case.answer(PendingReason.NO_FEASIBLE_PLAN, message, (), *hints)


def _cluster_too_small(case: WaitingCase) -> Pending | None:
    if case.possible():
        return None
    if shortage := _host_too_small(case):
        return shortage
    smallest = case.known[0]
    option, name = smallest.option, smallest.gpu.name
    have, nodes = case.capacity.gpus(case.job, name, free=False), case.capacity.eligible_nodes(case.job, name)
    hint = f"add {name} nodes, or allow other GPU types or fewer GPUs"
    return case.answer(
        PendingReason.CLUSTER_TOO_SMALL,
        f"the smallest plan is {smallest.describe()} ({option.gpus_per_node} on each of {count_of(option.nodes)}); "
        f"the job may use {count_of(nodes)} with {have} {name} in all{_asks(case.job, option.gpus)}",
        case.unavailable(),
        Hint(hint, with_room(case, smallest)),
    )


def _asks(job: Job, gpus: int) -> str:
    """Where the job itself asks for so many GPUs at least."""
    least = job.requirements.gpus.low
    return f", and spec.resources.gpus asks for {least} at least" if 1 < least == gpus else ""


def _host_too_small(case: WaitingCase) -> Pending | None:
    """For a job that has enough GPUs, and no node to hold what its pods ask for beside them."""
    short = ((each, host_shortage(case.capacity, case.job, each.demand())) for each in case.known)
    smallest, why = next(((each, why) for each, why in short if why), (None, ""))
    if smallest is None:
        return None
    return case.answer(
        PendingReason.CLUSTER_TOO_SMALL,
        f"no node can hold a pod of the smallest plan, {smallest.describe()}: {why}",
        case.unavailable(),
        Hint(
            "ask for less CPU or memory in spec.template or spec.resources, or add larger nodes",
            with_room(case, smallest, new=True),
        ),
    )


def _quota_exceeded(case: WaitingCase) -> Pending | None:
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
        *more_quota(case, smallest, max(0, left)),
    )


def _no_room(case: WaitingCase) -> Pending:
    """All that is left is to wait: for GPUs, or for GPUs that lie together."""
    able, capacity, job = case.within_quota(), case.capacity, case.job
    free = {name: capacity.gpus(job, name) for name in sorted({candidate.gpu.name for candidate in able})}
    scattered = next((c for c in able if free[c.gpu.name] >= c.option.gpus), None)
    if scattered:
        return case.answer(
            PendingReason.FRAGMENTED,
            _scattered(case, scattered, free),
            _holders(case, able),
            *starts_now_if(case, able),
        )
    needs = f"needs at least {able[0].describe()}, free: {_listed(free)}"
    message = worded(case.snapshot.time, needs, *_expected(case, able, free))
    return case.answer(PendingReason.INSUFFICIENT_GPUS, message, _holders(case, able), *starts_now_if(case, able))


def _listed(free: dict[str, int]) -> str:
    """`4×A100-SXM4-80GB, 0×T4`; of many types those that have any."""
    some = {name: count for name, count in free.items() if count or len(free) <= MAX_HINTS}
    told = [f"{count}×{name}" for name, count in some.items()]
    others = f"none of the {len(free) - len(some)} {'other types' if some else 'types that it could use'}"
    return ", ".join([*told, *([others] if len(some) < len(free) else [])])


def _expected(case: WaitingCase, able: list[Candidate], free: dict[str, int]) -> tuple[str | float, ...]:
    """When the first of the GPU types will have enough free GPUs, as running jobs finish."""
    now, least = case.snapshot.time, dict[str, int]()
    for candidate in able:
        name, gpus = candidate.gpu.name, candidate.option.gpus
        least[name] = min(gpus, least.get(name, gpus))
    releases = told_releases(case.snapshot)
    found = [(releases.enough(name, gpus, free[name], now), name) for name, gpus in least.items()]
    moments = [(enough[0], name) for enough, name in found if enough and enough[0] > now]
    return (f"; enough {min(moments)[1]} are expected ", min(moments)[0]) if moments else ()


def _scattered(case: WaitingCase, candidate: Candidate, free: dict[str, int]) -> str:
    option, name = candidate.option, candidate.gpu.name
    if case.capacity.fits(case.job, replace(candidate.demand(), spread=0, linkage=ANYHOW)):
        each = option.linkage.segment
        return f"{free[name]} {name} are free, but not groups of {count_of(each)} that lie in one NVLink domain each"
    together = "together with the CPU and memory that the job asks for"
    return (
        f"{free[name]} {name} are free, but not {option.gpus_per_node} on each of {count_of(option.nodes)} {together}; "
        f"the emptiest node has {case.capacity.most_free(case.job, name)}"
    )


def _holders(case: WaitingCase, able: list[Candidate]) -> Iterator[str | TimedText]:
    """Who holds the GPUs that the job could use, the first to finish first; what no job holds, and nobody may use."""
    wanted = tuple(sorted({candidate.gpu.name for candidate in able}))
    yield from case.capacity.remember(("holders", wanted), lambda: _told(case, wanted), lasting=True)
    yield from case.unavailable()


def _told(case: WaitingCase, wanted: tuple[str, ...]) -> list[str | TimedText]:
    now = case.snapshot.time
    running = running_columns(case.snapshot)
    ends = np.where(running.told & (running.finish != 0), running.finish, np.inf)
    rows = np.flatnonzero(running.of_types(wanted))
    if len(rows) > MAX_HINTS:
        rows = rows[ends[rows] <= np.partition(ends[rows], MAX_HINTS - 1)[MAX_HINTS - 1]]
    holding = [(job, job.placement) for row in rows.tolist() if (job := running.jobs[row]).placement]
    holding.sort(key=lambda held: (held[0].expected_finish or float("inf"), held[0].namespace, held[0].name))
    told = list[str | TimedText]()
    for job, placement in holding[:MAX_HINTS]:
        until = (" until ", job.expected_finish) if job.expected_finish else ()
        told.append(worded(now, f"{job.namespace}/{job.name} holds {placement.gpus}×{placement.gpu_type}", *until))
    for node in columns(case.snapshot.nodes).foreign:
        if node.gpu_type in wanted:
            told.append(f"node {node.name}: {node.foreign_gpus} GPUs are busy with processes that no pod asked for")
    return told
