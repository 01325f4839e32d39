"""A job of another kind as a question to the policy that decides: the same `Job` value as ours, in the same snapshot.

The snapshot that a round has decided on gets one more job, as if it were submitted now; what the answer says of the
others is thrown away. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from trimtab.errors import UsageError
from trimtab.foreign.in_cluster import own_spec
from trimtab.foreign.kinds import Json
from trimtab.kube.objects import JobObject, Meta
from trimtab.observe import jobs
from trimtab.observe.jobs import JobFacts
from trimtab_policy.inputs.changes import freed
from trimtab_policy.scheduling.results import Outcome
from trimtab_policy.types import Job, Placement, Snapshot


def facts_of(documents: Sequence[Json]) -> tuple[JobFacts, tuple[str, ...]]:
    """The first of these objects, with those beside it, as the facts of a job of ours, and what there is to note.

    Raises UsageError naming what it does not say, or what contradicts what.
    """
    meta = documents[0]["metadata"]
    name = f"{documents[0]['kind']} {meta['name']}"
    spec, notes, _ = own_spec(documents)
    known = Meta(name=meta["name"], namespace=meta["namespace"], uid=meta["uid"])
    facts = jobs.facts(JobObject(known, msgspec.Raw(msgspec.json.encode(spec))))
    if facts.error:
        raise UsageError(f"{name}: {facts.error}")
    return facts, notes


def beside(snapshot: Snapshot, job: Job) -> Snapshot:
    """The snapshot with this job as the last in line."""
    return replace(snapshot, jobs=(*snapshot.jobs, job))


def alone(snapshot: Snapshot, job: Job) -> Snapshot:
    """The snapshot with this job only, on nodes that no gang of ours has any part of: what it gets when its turn comes
    and the GPUs that suit it best are free. What is foreign stays, and nodes that gave out too much have no more."""
    nodes = {node.name: node for node in snapshot.nodes}
    for other in snapshot.jobs:
        for share in other.placement.shares if other.placement else ():
            if share.node in nodes:
                nodes[share.node] = freed(nodes[share.node], share.gpus, other.requirements)
    whole = (replace(node, free_gpus=min(node.free_gpus, node.gpus - node.foreign_gpus)) for node in nodes.values())
    return replace(snapshot, jobs=(job,), nodes=tuple(whole))


def with_room_made(placed: Placement, outcome: Outcome) -> Placement:
    """The placement, its reason with how many others would have to make room for it."""
    stops = sum(stop.beneficiary == placed.job for stop in outcome.stops)
    moves = sum(move.beneficiary == placed.job for move in outcome.moves)
    both = ((stops, "stopped"), (moves, "moved"))
    asked = [f"{count} running {'job' if count == 1 else 'jobs'} would be {what}" for count, what in both if count]
    return replace(placed, reason=f"{placed.reason}; {' and '.join(asked)} for it") if asked else placed
