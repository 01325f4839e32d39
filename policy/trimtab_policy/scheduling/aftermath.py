"""The snapshot as it will be once a decision has been carried out: what the next question is asked about."""

from __future__ import annotations

import math
from collections import defaultdict

from msgspec.structs import replace

from trimtab_policy.placement.grants import granted, highest
from trimtab_policy.types import Decision, Job, Node, Placement, Snapshot


def after(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """All placements made, all stops over. Jobs that start, move or stop are not movable: they are being started."""
    placed = {each.job: each for each in decision.placements}
    stopped = {stop.job for stop in decision.stops}
    if not placed and not stopped:
        return snapshot
    given = granted(snapshot, placed.values())
    spent: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    jobs = []
    for job in snapshot.jobs:
        if job.uid not in placed and job.uid not in stopped:
            jobs.append(job)
            continue
        _spend(spent, job, job.placement, -1)
        _spend(spent, job, placed.get(job.uid), 1)
        jobs.append(replace(_changed(snapshot, job, placed.get(job.uid)), grants=given.get(job.uid, ())))
    nodes = tuple(_less(node, spent[node.name]) if node.name in spent else node for node in snapshot.nodes)
    return replace(snapshot, nodes=nodes, jobs=tuple(jobs), granted=highest(snapshot.granted, given.values()))


def _changed(snapshot: Snapshot, job: Job, placement: Placement | None) -> Job:
    if placement is None:
        waits = {"placement": None, "started": None, "expected_finish": None, "stoppable_from": None}
        return replace(job, movable_from=0.0, lost_seconds=0.0, **waits)
    left = max(0, job.training.steps - job.steps_done) * placement.prediction.step_seconds
    finish = snapshot.time + (job.restart_seconds + left) / snapshot.speedup
    return replace(
        job,
        placement=placement,
        started=snapshot.time,
        expected_finish=finish,
        movable_from=math.inf,
        stoppable_from=None,
        lost_seconds=0.0,
    )


def _spend(spent: defaultdict[str, list[int]], job: Job, placement: Placement | None, pods: int) -> None:
    """`pods`: 1 for what is taken, -1 for what is given back."""
    need = job.requirements
    for share in placement.shares if placement else ():
        of_pod = share.gpus, need.cpu_milli(share.gpus), need.memory(share.gpus), 1
        spent[share.node] = [had + pods * each for had, each in zip(spent[share.node], of_pod, strict=True)]


def _less(node: Node, taken: list[int]) -> Node:
    gpus, cpu, memory, pods = taken
    return replace(
        node,
        free_gpus=node.free_gpus - gpus,
        free_cpu_milli=node.free_cpu_milli - cpu,
        free_memory=node.free_memory - memory,
        free_pods=node.free_pods - pods,
    )
