"""When waiting jobs are expected to start, with an interval: what people ask first.

Three forecasts (`forecast`) with running and waiting jobs that end early, as expected, and late. How far apart early
and late are follows from the intervals of the predictions; a job behind many others has theirs to fear, too, and the
jobs that are yet to come. What no running job's end brings nearer has no time: it is not in sight.

How good these intervals are is measured in the simulator (`tests/policy/scheduling/test_etas.py`, `hack/bench etas`):
about four of five jobs start within them, under policies that go by the line (`best_fit`, `fcfs`) and under `rudder`,
whose intervals are several times as wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.releases import Ends, expected_ends
from trimtab_policy.placement.running_columns import FloatArray
from trimtab_policy.scheduling.forecast import MOST_JOBS, Line, Start
from trimtab_policy.scheduling.reservations import jobs_in_line
from trimtab_policy.scheduling.vacancies import GangShape, shapes_of
from trimtab_policy.types import NEVER_STARTS, Awaited, Eta, Pending, PendingReason, Snapshot

UNCERTAINTY = 1.3
"""Factor of the 80 % interval of a run time whose prediction says nothing about that: the performance model's own."""
WITNESSES = 32
"""Running jobs from which it is concluded how many GPUs the policy gives."""
SOONER = 1.35
"""Jobs start sooner than any of the forecasts says, by such a factor of their wait: some end much earlier than told."""
LATER = 1.1
"""They start later ..."""
OVERTAKEN = 1.6
"""... and by this factor more where others have higher priority: further ones of these will come."""
OWN_LINE = 5.0, 0.8, 1.8
"""Factors by which they start still sooner, of what is expected, and by which they start later, where the policy has a
line of its own: it orders the jobs anew in every round by what they are worth then, and whoever comes tomorrow may be
worth more. Fitted on LLM jobs under `rudder`, none of which could be moved (seeds 10 to 13), and held against others by
the same test."""
OUT_OF_SIGHT = NEVER_STARTS | {PendingReason.WAITING_FOR_ADMISSION}
"""Reasons that no finished job removes. Those that are admitted may be, but when that is another system's to say."""


def expected_starts(
    snapshot: Snapshot, pending: Iterable[Pending], *, reserve: bool = True, order: Sequence[str] | None = None
) -> dict[str, Eta]:
    """UID -> when the job is expected to start, for those of `pending` whose start is in sight.

    `snapshot` holds what is decided already. `reserve`: the first in line has a reservation. `order`: UIDs of who comes
    first, for a policy with a line of its own; those whom it leaves out come after these.
    """
    return intervals(snapshot, forecasts(snapshot, pending, reserve=reserve, order=order), own_line=order is not None)


def intervals(
    snapshot: Snapshot, starts: Mapping[str, tuple[Start, Start, Start]], *, own_line: bool = False
) -> dict[str, Eta]:
    """UID -> when the job is expected to start, of `forecasts`. `own_line`: they were in an order of the policy's."""
    now, highest = snapshot.time, max((job.priority for job in snapshot.jobs), default=0)
    priorities = {job.uid: job.priority for job in snapshot.jobs}
    sooner, usual, longer = OWN_LINE if own_line else (1.0, 1.0, 1.0)
    etas = {}
    for uid, (early, expected, late) in starts.items():
        later = longer * LATER * (OVERTAKEN if priorities[uid] < highest else 1.0)
        wait, soonest, latest = expected.time - now, early.time - now, late.time - now
        low, high = min(wait, soonest) / (SOONER * sooner), max(wait, latest) * later
        etas[uid] = Eta(now + low, now + usual * wait, now + high)
    return etas


def forecasts(
    snapshot: Snapshot, pending: Iterable[Pending], *, reserve: bool = True, order: Sequence[str] | None = None
) -> dict[str, tuple[Start, Start, Start]]:
    """UID -> its start if all jobs end early, as expected, and late; in the order of the line."""
    line = _line(snapshot, {each.job: each for each in pending}, reserve=reserve, order=order)
    running = expected_ends(snapshot)
    typical = _typical(line)
    early, expected, late = (
        line.forecast(times, running.held, typical ** (side - 1) / snapshot.speedup)
        for side, times in enumerate(_spread(running, snapshot.time))
    )
    return {uid: (early.get(uid, start), start, late.get(uid, start)) for uid, start in expected.items()}


def _line(snapshot: Snapshot, pending: dict[str, Pending], *, reserve: bool, order: Sequence[str] | None) -> Line:
    capacity = Capacity(snapshot)
    in_sight = {uid for uid, each in pending.items() if each.reason not in OUT_OF_SIGHT}
    jobs = [
        job for job in (snapshot.waiting() if order is None else jobs_in_line(snapshot, order)) if job.uid in in_sight
    ]
    known = [(job, _awaited(pending[job.uid].awaited, shapes_of(snapshot, capacity, job))) for job in jobs[:MOST_JOBS]]
    found = [(job, shapes) for job, shapes in known if shapes]
    blocked = frozenset(uid for uid, each in pending.items() if each.reason is PendingReason.BEHIND_OTHERS)
    return Line(
        snapshot,
        [job for job, _ in found],
        [shapes for _, shapes in found],
        blocked,
        reserve=reserve,
        generous=_generous(snapshot, capacity),
    )


def _awaited(awaited: Awaited | None, shapes: tuple[GangShape, ...]) -> tuple[GangShape, ...]:
    """Of what a job could run on, the fastest first, what it will start on: it may wait for GPUs on purpose."""
    numbers = (
        n
        for n, each in enumerate(shapes, 1)
        if awaited and (each.gpu_type, each.gpus) == (awaited.gpu_type, awaited.gpus)
    )
    return shapes[: next(numbers, None)]


def _generous(snapshot: Snapshot, capacity: Capacity) -> bool:
    """Whether jobs get as many GPUs as make them fastest though others wait: most of those did that had the choice."""
    since = min((job.created for job in snapshot.jobs if job.placement is None), default=snapshot.time)
    latest = [job for job in snapshot.jobs if job.placement and since <= (job.started or since - 1) < snapshot.time]
    votes = []
    for job in sorted(latest, key=lambda job: -(job.started or 0.0))[:WITNESSES]:
        sizes = [shape.gpus for shape in shapes_of(snapshot, capacity, job)]
        if job.placement and sizes and min(sizes) < max(sizes):
            votes.append(job.placement.gpus >= sizes[0])
    return 2 * sum(votes) > len(votes)


def _typical(line: Line) -> float:
    """Factor of the interval of the run times in the line: their mean, for single errors cancel out."""
    known = [math.log(max(shapes[0].uncertainty, 1.0)) or math.log(UNCERTAINTY) for shapes in line.shapes]
    return math.exp(sum(known) / len(known)) if known else UNCERTAINTY


def _spread(running: Ends, now: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """When running jobs return their GPUs, (jobs,) each: early, as expected, and late. All of its run is uncertain
    where nothing is known of its progress."""
    factor = np.where(running.uncertainty > 1, running.uncertainty, UNCERTAINTY)
    since = np.where(np.isnan(running.unproven), now, running.unproven)
    whole = running.times - since
    return np.maximum(now, since + whole / factor), running.times, since + whole * factor
