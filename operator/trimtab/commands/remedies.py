"""What would help a job that waits, as questions to `trimtab whatif`: the changes that the hints in its status tell of.

They are looked for anew, in the cluster as it is: a status has sentences only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from trimtab.api.convert import UNLIMITED
from trimtab_policy.inputs.changes import with_nodes
from trimtab_policy.placement.candidates import Candidate, candidates, could_ever_fit, has_room
from trimtab_policy.placement.capacity import ALL_TYPES, Capacity
from trimtab_policy.placement.pending_reasons import why_pending
from trimtab_policy.types import Job, Remedy, Snapshot


class Question(Struct, frozen=True):
    """A change that would help, in short, and as the file of `trimtab whatif` has it."""

    label: str
    change: dict[str, Any]


def questions(now: Snapshot, alone: Snapshot, job: Job) -> tuple[Question, ...]:
    """What to ask about a job that waits. `now` has all that run and wait; `alone` only `job` of those that wait."""
    capacity = Capacity(alone)
    known = candidates(alone, capacity, job)
    room = any(has_room(capacity, job, each) for each in known)
    found = [*_in_line(now, job), *(() if room else _more_room(alone, capacity, job, known))]
    return tuple(Question(_label(each, job), _change(each, job, now)) for each in dict.fromkeys(found))


def _in_line(now: Snapshot, job: Job) -> Iterator[Remedy]:
    """Before whom it would have to be."""
    line = now.line()
    place = next((at for at, other in enumerate(line) if other.uid == job.uid), 0)
    highest = max((other.priority for other in line[:place]), default=job.priority - 1)
    if highest >= job.priority:
        yield Remedy(priority=highest + 1)


def _more_room(alone: Snapshot, capacity: Capacity, job: Job, known: list[Candidate]) -> Iterator[Remedy]:
    """What the hints say, and nodes enough for the smallest plan."""
    yield from why_pending(alone, capacity, job).remedies
    possible = [each for each in known if could_ever_fit(capacity, job, each)]
    within = [each for each in possible if capacity.within_quota(job.queue, each.gpu.name, each.option.gpus)]
    if not within:
        return
    best = min(within, key=lambda each: each.cost)
    name, size = best.gpu.name, max(1, capacity.node_gpus(best.gpu.name))
    missing = -(-(best.option.gpus - capacity.gpus(job, name)) // size)
    for nodes in sorted({max(1, missing), best.option.nodes}):  # as many as are missing, or all of its own
        if has_room(Capacity(with_nodes(alone, name, nodes, size)), job, best):
            yield Remedy(gpu_type=name, nodes=nodes, node_gpus=size)
            return


def _label(remedy: Remedy, job: Job) -> str:
    said = []
    if remedy.gpus is not None:
        said.append(f"{remedy.gpus} GPU{'' if remedy.gpus == 1 else 's'}")
    if remedy.gpu_types is not None:
        said.append(" or ".join(remedy.gpu_types) or "any GPU type")
    if remedy.max_nodes is not None:
        said.append(f"at most {remedy.max_nodes} nodes")
    if remedy.any_degrees:
        said.append("parallelism left free")
    if remedy.precision is not None:
        said.append(f"{remedy.precision.value} precision")
    if remedy.priority is not None:
        said.append(f"priority {remedy.priority}")
    if remedy.queue is not None:
        said.append(f"queue {remedy.queue}")
    if remedy.quota:
        said.append(f"{remedy.quota} more GPUs for queue {job.queue}")
    if remedy.nodes:
        said.append(f"{remedy.nodes} more node{'' if remedy.nodes == 1 else 's'} of {remedy.gpu_type}")
    return ", ".join(said)


def _change(remedy: Remedy, job: Job, now: Snapshot) -> dict[str, Any]:
    edit: dict[str, Any] = {}
    if remedy.gpus is not None:
        edit["gpus"] = {"min": remedy.gpus, "max": remedy.gpus}
    if remedy.gpu_types is not None:
        edit["gpuTypes"] = list(remedy.gpu_types)
    if remedy.max_nodes is not None:
        edit["maxNodes"] = remedy.max_nodes
    if remedy.any_degrees:
        edit["parallelism"] = {}
    if remedy.precision is not None:
        edit["precision"] = remedy.precision.value
    if remedy.priority is not None:
        edit["priority"] = remedy.priority
    if remedy.queue is not None:
        edit["queue"] = remedy.queue
    change: dict[str, Any] = {"jobs": {f"{job.namespace}/{job.name}": edit}} if edit else {}
    if remedy.quota:
        change["queues"] = {job.queue: _raised(remedy, job.queue, now)}
    if remedy.nodes:
        change["nodes"] = {"add": [{"type": remedy.gpu_type, "count": remedy.nodes, "gpus": remedy.node_gpus}]}
    return change


def _raised(remedy: Remedy, queue: str, now: Snapshot) -> dict[str, Any]:
    """The queue as it is, with more of what the remedy names: a change replaces all of a queue's limits."""
    quotas = []
    for quota in (each for each in now.quotas if each.queue == queue):
        more = remedy.quota if quota.gpu_type in (remedy.gpu_type, ALL_TYPES) else 0
        limit = {} if quota.gpus == UNLIMITED else {"gpus": quota.gpus + more}
        quotas.append({"gpuType": quota.gpu_type, **limit, "guaranteed": quota.guaranteed})
    return {"weight": round(now.weights.get(queue, 1)), "quotas": quotas}
