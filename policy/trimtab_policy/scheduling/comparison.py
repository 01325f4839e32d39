"""Two decisions about the same jobs held against each other: what a second policy would have done differently. Pure."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from trimtab_policy.scheduling.results import Outcome
from trimtab_policy.types import Pending, Placement


class Agreement(StrEnum):
    """How another answer for a job differs from the one that counts. Which nodes it takes makes no difference."""

    SAME = "same"
    OTHER_TYPE = "other_type"
    OTHER_COUNT = "other_count"
    OTHER_PLAN = "other_plan"
    WOULD_WAIT = "would_wait"
    WOULD_START = "would_start"


class Difference(Struct, frozen=True):
    """Another answer for one job."""

    job: str
    """UID."""
    agreement: Agreement
    placement: Placement | None = None
    pending: Pending | None = None
    """Exactly one of both is set."""
    starts: bool = False
    """Whether the answer that counts gives the job GPUs."""
    seconds: float | None = None
    """Predicted run time less that of the answer that counts, where both start the job: negative is faster."""


def compare(real: Outcome, other: Outcome) -> tuple[Difference, ...]:
    """The differences of `other` for every job that both outcomes answer for."""
    decided = {placement.job: placement for placement in real.placements}
    placed = {placement.job: placement for placement in other.placements}
    return tuple(
        _placed(placed[uid], decided.get(uid)) if uid in placed else _waits(uid, other, starts=uid in decided)
        for uid in real.policies
        if uid in other.policies
    )


def _placed(found: Placement, decided: Placement | None) -> Difference:
    if decided is None:
        return Difference(found.job, Agreement.WOULD_START, found)
    seconds = found.prediction.run_seconds - decided.prediction.run_seconds
    return Difference(found.job, _agreement(found, decided), found, starts=True, seconds=seconds)


def _waits(uid: str, other: Outcome, *, starts: bool) -> Difference:
    pending = next(pending for pending in other.pending if pending.job == uid)
    return Difference(uid, Agreement.WOULD_WAIT if starts else Agreement.SAME, pending=pending, starts=starts)


def _agreement(found: Placement, decided: Placement) -> Agreement:
    if found.gpu_type != decided.gpu_type:
        return Agreement.OTHER_TYPE
    if found.gpus != decided.gpus:
        return Agreement.OTHER_COUNT
    return Agreement.SAME if found.plan == decided.plan else Agreement.OTHER_PLAN
