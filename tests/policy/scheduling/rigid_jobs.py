"""Jobs of equal parts that take a given time, the clusters that they wait for, and what is kept for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace
from tests.builders import A100, NOW, job, node, placement, running, snapshot

from trimtab_policy.scheduling.reservations import Reservation, ReservationGuard, reserve
from trimtab_policy.specs import Prediction
from trimtab_policy.types import Job, Pending, PendingReason, Placement, Snapshot, Speed

HOUR = 3600.0
STEPS = 3600
"""Of every job here: at one step a second it runs for an hour."""


def rigid(
    name: str, nodes: int, per_node: int = 8, seconds: float = HOUR, gpu_type: str = A100, **changes: object
) -> Job:
    """A job of equal parts on so many nodes that runs for so long."""
    gpus = nodes * per_node
    speeds = (Speed(gpu_type, gpus, nodes, STEPS / seconds),)
    return job(name, gpus=(gpus, gpus), speeds=speeds, steps=STEPS, max_nodes=nodes, **changes)


def started(waiting: Job, nodes: dict[str, int], seconds: float = HOUR, uncertainty: float = 1.0) -> Placement:
    """The placement of such a job."""
    figures = Prediction(seconds / STEPS, 1.0, 1, seconds, uncertainty)
    return placement(waiting.uid, nodes, prediction=figures)


def busy(name: str, nodes: dict[str, int], until: float, uncertainty: float = 1.0) -> Job:
    """A job that runs for so many seconds more."""
    held = running(name, nodes, finish=NOW + until)
    assert held.placement
    figures = replace(held.placement.prediction, uncertainty=uncertainty)
    return replace(held, placement=replace(held.placement, prediction=figures))


def cluster(nodes: int, jobs: Iterable[Job], **changes: object) -> Snapshot:
    """Nodes n0, n1, ... of 8 A100s, less what the jobs hold."""
    taken: dict[str, int] = {}
    everybody = list(jobs)
    for each in everybody:
        for share in each.placement.shares if each.placement else ():
            taken[share.node] = taken.get(share.node, 0) + share.gpus
    present = [node(f"n{i}", free=8 - taken.get(f"n{i}", 0)) for i in range(nodes)]
    return snapshot(present, everybody, **changes)


def no_room(*jobs: Job, reason: PendingReason = PendingReason.INSUFFICIENT_GPUS) -> list[Pending]:
    return [Pending(each.uid, reason, "no room") for each in jobs]


def reserved(seen: Snapshot, *jobs: Job, count: int = 1, starvation: float = 1e9) -> tuple[Reservation, ...]:
    return reserve(seen, no_room(*jobs), count, starvation)


def delayed_by(now: Snapshot, kept: Sequence[Reservation], placed: Placement) -> Reservation | None:
    """The reservation that a single placement would delay."""
    return ReservationGuard(now, kept).delayed_by(placed)


LARGE = rigid("large", 2, created=NOW - 100)
LATER = rigid("later", 1, 4)
AHEAD = [busy("a", {"n0": 8}, 1 * HOUR), busy("b", {"n1": 8}, 3 * HOUR)]
