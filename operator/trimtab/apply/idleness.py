"""A gang that holds GPUs and does nothing: what its status says of that, from when on, and until when. Pure.

nothing                  its GPUs compute, it reports steps, or nobody knows
condition Idle           all of its GPUs have done nothing for long; `status.idle` says since when
`status.idle.stopTime`   ... and that it is asked to save its state and stopped then: a promise that every later
                         controller keeps, unless the gang does something again, or nobody knows any more
"""

from __future__ import annotations

from msgspec import Struct

from trimtab import names
from trimtab.api import conditions
from trimtab.api.history import StopRecord
from trimtab.api.status import IdleStatus, JobStatus
from trimtab.apply.change import changed, moment, say
from trimtab.kube.objects import Meta
from trimtab_policy.types import StopCause

PAUSE_SECONDS = 600.0
"""A job that was stopped because it was idle is not started again before; twice as long each further time ..."""
MOST_PAUSE_SECONDS = 86_400.0
"""... up to this: a training that hung goes on soon, and who only holds GPUs holds them ever more seldom."""
ACTIVE = "it computes or reports steps again, or an agent of its nodes is silent"


class IdleGang(Struct, frozen=True):
    """A running gang that does nothing."""

    gpus: int
    since: float
    """POSIX seconds."""
    notice_seconds: float | None = None
    """From when it is told until it is stopped; None: it never is."""


def judged(status: JobStatus, meta: Meta, found: IdleGang | None, now: float) -> JobStatus:
    """Say that the gang is idle, since when, and until when it may be; or that it is not."""
    if found is None:
        return over(status, meta, now, names.REASON_ACTIVE, ACTIVE)
    known = status.idle or IdleStatus(since_time=moment(found.since))
    until = None if found.notice_seconds is None else known.stop_time or moment(now + found.notice_seconds)
    status = changed(status, idle=known.model_copy(update={"stop_time": until}))
    message = (
        f"its {found.gpus} GPUs have done nothing since {known.since_time:%Y-%m-%dT%H:%M:%SZ}, as the agents of its"
        " nodes say, and it has reported no step since"
    )
    if until:
        message += f": it is asked to save its state and stopped at {until:%Y-%m-%dT%H:%M:%SZ}, unless it goes on"
    return say(status, meta, now, names.IDLE, True, names.REASON_IDLE, message)


def over(status: JobStatus, meta: Meta, now: float, reason: str, message: str) -> JobStatus:
    """The gang is not idle, or is no more."""
    status = changed(status, idle=None)
    if not conditions.holds(status.conditions, names.IDLE):
        return status
    return say(status, meta, now, names.IDLE, False, reason, message)


def is_news(before: JobStatus, after: JobStatus) -> bool:
    """Whether people are to hear of it: it has become idle, or is to be stopped now that it is."""
    if after.idle is None:
        return False
    promised = before.idle.stop_time if before.idle else None
    return before.idle is None or (after.idle.stop_time is not None and promised is None)


def pause(stops: tuple[StopRecord, ...]) -> float:
    """Seconds until a job is started again that has just been stopped because it was idle; `stops` has that already."""
    often = sum(stop.cause is StopCause.IDLE for stop in stops)
    return min(MOST_PAUSE_SECONDS, PAUSE_SECONDS * 2.0 ** max(0, often - 1))
