"""How long a job has waited for its GPUs, and taken in all: figures for metrics, when a status is written. Pure."""

from __future__ import annotations

from trimtab import names
from trimtab.api import conditions
from trimtab.api.status import Condition, JobStatus
from trimtab.apply import transitions


def waited(before: JobStatus, after: JobStatus, created: float, now: float) -> float | None:
    """Seconds for which the job waited until all pods of its gang were bound; None where this write does not say that
    they are, or where the gang has taken the place of another one at once.

    It waits from its creation (a POSIX time, as `now`), or since it has wanted GPUs again after it was suspended. One
    that has run before waits since its last gang was given up.
    """
    if transitions.is_scheduled(before) or not transitions.is_scheduled(after):
        return None
    unbound, planned = (_turned(before, kind) for kind in (names.GANG_SCHEDULED, names.PLANNED))
    since = [created, _turned(before, names.SUSPENDED)]
    if before.start_time is not None:
        if planned < unbound:  # it had a plan all the time: it was moved
            return None
        since.append(unbound)
    return max(0.0, now - max(since))


def took(before: JobStatus, after: JobStatus, created: float, now: float) -> float | None:
    """Seconds from the job's creation to its completion; None where this write does not say that it is complete."""
    if conditions.holds(before.conditions, names.COMPLETE) or not conditions.holds(after.conditions, names.COMPLETE):
        return None
    return max(0.0, now - created)


def _turned(status: JobStatus, kind: str) -> float:
    """When a condition changed, as a POSIX time; 0 where it is as it was at first."""
    told: Condition | None = conditions.find(status.conditions, kind)
    if told is None or told.reason == conditions.AT_FIRST[kind][0]:
        return 0.0
    return told.last_transition_time.timestamp()
