"""A snapshot as it would be after a change: nodes that come, go or take no more pods, jobs and queues edited.

Pure, for whoever wants to know what would become of a cluster (`trimtab whatif`). A job that loses a node waits again
with the steps that it has done; so does one whose GPUs, or division over them, an edit no longer allows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from trimtab_policy import catalog
from trimtab_policy.placement.limits import user_limits
from trimtab_policy.specs import TrainingSpec
from trimtab_policy.types import UNBOUNDED, Job, Node, Quota, Requirements, Snapshot


def with_nodes(snapshot: Snapshot, gpu_type: str, count: int, gpus: int) -> Snapshot:
    """So many empty nodes more, of a type or of what a short name means. Raises UnknownGpu (`catalog.one_of`)."""
    spec = catalog.one_of(gpu_type, snapshot.gpu_types)
    taken = {node.name for node in snapshot.nodes}
    names = (f"added-{spec.name.lower()}-{number}" for number in range(len(taken) + count))
    free = [name for name in names if name not in taken][:count]
    template = Node("", spec.name, gpus, gpus, UNBOUNDED, UNBOUNDED, UNBOUNDED)
    nodes = tuple(replace(template, name=name) for name in free)
    return replace(snapshot, nodes=snapshot.nodes + nodes, gpu_types=snapshot.gpu_types | {spec.name: spec})


def without_nodes(snapshot: Snapshot, names: Collection[str]) -> Snapshot:
    """These nodes are gone; the jobs that had a part there wait."""
    for job in snapshot.jobs:
        if job.placement and any(share.node in names for share in job.placement.shares):
            snapshot = stopped(snapshot, job.uid)
    return replace(snapshot, nodes=tuple(node for node in snapshot.nodes if node.name not in names))


def cordoned(snapshot: Snapshot, names: Collection[str]) -> Snapshot:
    """These nodes take no new pods; the jobs on them go on, and what they give back is nobody's."""
    return replace(
        snapshot,
        nodes=tuple(
            replace(node, gpus=0, free_gpus=min(0, node.free_gpus) - _held(snapshot, node.name))
            if node.name in names
            else node
            for node in snapshot.nodes
        ),
    )


def _held(snapshot: Snapshot, name: str) -> int:
    placements = (job.placement for job in snapshot.jobs if job.placement)
    return sum(share.gpus for held in placements for share in held.shares if share.node == name)


def stopped(snapshot: Snapshot, uid: str) -> Snapshot:
    """The job holds nothing and waits."""
    job = next(job for job in snapshot.jobs if job.uid == uid)
    if job.placement is None:
        return snapshot
    parts = {share.node: share.gpus for share in job.placement.shares}
    need = job.requirements
    nodes = tuple(freed(node, parts[node.name], need) if node.name in parts else node for node in snapshot.nodes)
    waits = replace(job, placement=None, started=None, expected_finish=None, resuming=0.0, restarts=job.restarts + 1)
    waits = replace(waits, grants=(), movable_from=0.0, stoppable_from=None, waits_since=snapshot.time)
    return with_job(replace(snapshot, nodes=nodes), waits)


def freed(node: Node, gpus: int, need: Requirements | None) -> Node:
    """The node once a pod with so many GPUs is gone; `need` is what its job asks for, None where nobody knows."""
    return replace(
        node,
        free_gpus=node.free_gpus + gpus,
        free_cpu_milli=node.free_cpu_milli + (need.cpu_milli(gpus) if need else 0),
        free_memory=node.free_memory + (need.memory(gpus) if need else 0),
        free_pods=node.free_pods + 1,
    )


def without_job(snapshot: Snapshot, uid: str) -> Snapshot:
    """The job is suspended, or gone."""
    left = stopped(snapshot, uid)
    return replace(left, jobs=tuple(job for job in left.jobs if job.uid != uid))


def with_job(snapshot: Snapshot, job: Job) -> Snapshot:
    """The job as it is now, in the place of the one with its UID; at the end where there is none."""
    if not any(other.uid == job.uid for other in snapshot.jobs):
        return replace(snapshot, jobs=(*snapshot.jobs, job))
    return replace(snapshot, jobs=tuple(job if other.uid == job.uid else other for other in snapshot.jobs))


def with_limits(snapshot: Snapshot, job: Job, limits: Requirements, training: TrainingSpec) -> Snapshot:
    """The job has other limits, or trains otherwise. One that runs as that does not allow waits."""
    changed, held = with_job(snapshot, replace(job, requirements=limits, training=training)), job.placement
    if held is None or (training == job.training and not any(user_limits(limits, held))):
        return changed
    return stopped(changed, job.uid)


def with_queues(snapshot: Snapshot, quotas: Mapping[str, Iterable[Quota]], weights: Mapping[str, float]) -> Snapshot:
    """Queues with these limits and guarantees in the place of theirs, and these weights."""
    kept = tuple(quota for quota in snapshot.quotas if quota.queue not in quotas)
    new = tuple(quota for of_queue in quotas.values() for quota in of_queue)
    return replace(snapshot, quotas=kept + new, weights=snapshot.weights | dict(weights))
