"""In which order GPUs were given to gangs: a number that is counted on, and never a time.

Whoever lends GPUs gets those back that were given last (`scheduling.fair_share`). Times cannot say which these are:
they are told to the second, by clocks that differ; and a gang that starts within the same second as another one, that
is planned and does not run yet, or that was stopped and comes back, would change places with those that had their GPUs
before it. So each decision numbers the GPUs that it hands out, in line, above all that are held. The numbers stand in
the plan: they outlive the controller, and are compared with one another only.

A gang that grows is given only what it did not have. One that shrinks gives back what it was given last. One that goes
on elsewhere is given nothing; with GPUs of another type it is, as far as these are counted by type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from trimtab_policy.types import Grant, Job, Placement, Snapshot, in_turn

MOST = 16
"""Grants of one gang: of one that has grown more often the latest count as one."""


def held(job: Job) -> tuple[Grant, ...]:
    """What a running job was given; in one piece and before all others where nobody knows."""
    gpus = job.placement.gpus if job.placement else 0
    known = sum(grant.gpus for grant in job.grants) == gpus
    return job.grants if known else (Grant(gpus, 0, 0),)


def granted(snapshot: Snapshot, placements: Iterable[Placement]) -> dict[str, tuple[Grant, ...]]:
    """Job UID -> what it will have been given, of jobs that get these placements by one decision: those that wait come
    first, in line, then those that run."""
    placed = {placement.job: placement for placement in placements}
    jobs = [job for job in snapshot.jobs if job.uid in placed]
    waiting = sorted((job for job in jobs if job.placement is None), key=in_turn)
    ordered = (*waiting, *(job for job in jobs if job.placement))
    return {
        job.uid: _given(job, placed[job.uid], order) for order, job in enumerate(ordered, start=snapshot.granted + 1)
    }


def highest(before: int, given: Iterable[Sequence[Grant]]) -> int:
    """`Snapshot.granted` once these stand as well."""
    return max([before, *(max(one.order, one.type_order) for grants in given for one in grants)])


def _given(job: Job, placement: Placement, order: int) -> tuple[Grant, ...]:
    left, kept = placement.gpus, list[Grant]()
    same_type = job.placement is not None and job.placement.gpu_type == placement.gpu_type
    for grant in held(job) if job.placement else ():
        if gpus := min(grant.gpus, left):
            kept.append(Grant(gpus, grant.order, grant.type_order if same_type else order))
            left -= gpus
    if left:
        kept.append(Grant(left, order, order))
    first, rest = kept[: MOST - 1], kept[MOST - 1 :]
    return (*first, replace(rest[-1], gpus=sum(grant.gpus for grant in rest))) if rest else tuple(first)
