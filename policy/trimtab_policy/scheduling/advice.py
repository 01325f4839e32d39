"""What would help jobs that wait, once it is known what is kept for whom, and who has been placed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.pending_reasons import why_pending
from trimtab_policy.scheduling.reservations import Reservation, ReservationGuard, hidden
from trimtab_policy.types import Pending, PendingReason, Snapshot

TRIED = (PendingReason.INSUFFICIENT_GPUS, PendingReason.FRAGMENTED, PendingReason.QUOTA_EXCEEDED)
"""Reasons whose hints have been tried on what is free."""


def advice(
    snapshot: Snapshot,
    pending: Iterable[Pending],
    reservations: Sequence[Reservation],
    order: Sequence[str] | None = None,
) -> dict[str, Pending]:
    """UID -> why it waits, with the hints that still hold in `snapshot`, which has all that was decided.

    Who takes a hint must not be told then that the GPUs are kept for another: what a job has to leave to those before
    it is out of sight. `order` as of `reservations.reserve`.
    """
    guard, jobs = ReservationGuard(snapshot, reservations, order), {job.uid: job for job in snapshot.jobs}
    seen: dict[tuple[Reservation, ...], tuple[Snapshot, Capacity]] = {}
    found = {}
    for each in pending:
        if each.reason in TRIED and each.alternatives:
            kept = guard.before(jobs[each.job])
            if kept not in seen:
                shown = hidden(snapshot, kept)
                seen[kept] = shown, Capacity(shown)
            found[each.job] = why_pending(*seen[kept], jobs[each.job])
    return found
