"""Status -> status: every change of a job's status, one function each. Pure, and the identity when nothing changes.

A status is written whole. What a write means to people (event) and dashboards (metric) is a `Happening`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import Struct

from trimtab import names
from trimtab.api import conditions
from trimtab.api.status import Condition, JobStatus, Pending, Plan, Shadow, TrainerStatus
from trimtab.kube.objects import Meta
from trimtab_policy.types import PendingReason

_MAX_DOUBLINGS = 30
"""Of the pause between setbacks: any sensible upper limit is reached long before."""


class Happening(Struct, frozen=True):
    """Something that a user would ask about."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    epoch: int


def planned(status: JobStatus, meta: Meta, plan: Plan, now: float) -> JobStatus:
    """Write a plan down: the promise that everything after it keeps."""
    status = _update(
        status, plan=plan, last_epoch=plan.epoch, pending=None, shadow=None, retry_time=None, trainer_status=None
    )
    status = _resumed(status, meta, now)
    status = _set(status, meta, now, names.PLANNED, True, names.REASON_BINDING, f"{plan.policy}: {plan.reason}")
    status = _set(status, meta, now, names.GANG_SCHEDULED, False, "Binding", f"binding {len(plan.nodes)} pods")
    return _set(status, meta, now, names.PODS_READY, False, "NotStarted", "")


def waiting(status: JobStatus, meta: Meta, pending: Pending, now: float) -> JobStatus:
    """Say why there is no plan, and what would help."""
    status = _update(status, pending=pending)
    status = _resumed(status, meta, now)
    return _set(status, meta, now, names.PLANNED, False, pending.reason.value, pending.message)


def scheduled(status: JobStatus, meta: Meta, now: float, *, all_running: bool) -> JobStatus:
    """The whole gang is bound; and, a little later, running."""
    bound = "all pods of the gang are bound"
    status = _set(status, meta, now, names.GANG_SCHEDULED, True, names.REASON_STARTING, bound)
    if all_running:
        status = _update(status, start_time=status.start_time or _moment(now), setbacks=0)
        status = _set(status, meta, now, names.PODS_READY, True, names.REASON_RUNNING, "all pods of the gang run")
    return status


def progressed(status: JobStatus, percentage: int | None, now: float) -> JobStatus:
    """Note the progress when it has moved."""
    known = status.trainer_status.progress_percentage if status.trainer_status else None
    if percentage is None or percentage == known:
        return status
    plan = status.plan
    remaining = max(0, int(plan.predicted.finish_time.timestamp() - now)) if plan else None
    report = TrainerStatus(
        progress_percentage=percentage, estimated_remaining_seconds=remaining, last_updated_time=_moment(now)
    )
    return _update(status, trainer_status=report)


def shadowed(status: JobStatus, shadow: Shadow | None) -> JobStatus:
    """Note what the shadow policy would have done, unless it has said the same before."""
    if shadow is None or (status.shadow and status.shadow.says() == shadow.says()):
        return status
    return _update(status, shadow=shadow)


def completed(status: JobStatus, meta: Meta, now: float) -> JobStatus:
    """All pods of the gang have succeeded."""
    status = scheduled(status, meta, now, all_running=True)
    done = TrainerStatus(progress_percentage=100, estimated_remaining_seconds=0, last_updated_time=_moment(now))
    status = _update(status, completion_time=_moment(now), trainer_status=done)
    status = _set(status, meta, now, names.PODS_READY, False, "Ended", "all pods of the gang have ended")
    return _set(status, meta, now, names.COMPLETE, True, names.REASON_COMPLETED, "all pods of the gang have succeeded")


def failed(status: JobStatus, meta: Meta, reason: str, message: str, now: float) -> JobStatus:
    """The gang has failed more often than `spec.maxRestarts` allows."""
    status = _update(status, completion_time=_moment(now))
    status = _set(status, meta, now, names.PODS_READY, False, reason, message)
    why = f"{reason}: {message}; no restarts are left"
    return _set(status, meta, now, names.FAILED, True, names.REASON_FAILED, why)


def set_back(
    status: JobStatus, meta: Meta, reason: str, message: str, now: float, backoff: tuple[float, float], *, counts: bool
) -> JobStatus:
    """Give the plan up, to try again after a pause that doubles with every setback in a row.

    `counts`: the job itself failed, which uses up one of its restarts.
    """
    initial, cap = backoff
    pause = min(cap, initial * 2 ** min(status.setbacks, _MAX_DOUBLINGS))
    again = f"{message}; trying again in {pause:g} s"
    pending = Pending(reason=PendingReason.BACKING_OFF, message=again, blockers=(f"{reason}: {message}",))
    status = _update(
        status,
        plan=None,
        pending=pending,
        shadow=None,
        restarts=status.restarts + (1 if counts else 0),
        setbacks=status.setbacks + 1,
        retry_time=_moment(now + pause),
    )
    status = _set(status, meta, now, names.PODS_READY, False, reason, message)
    status = _set(status, meta, now, names.GANG_SCHEDULED, False, reason, message)
    return _set(status, meta, now, names.PLANNED, False, reason, message)


def suspended(status: JobStatus, meta: Meta, now: float) -> JobStatus:
    """The user wants the job to hold no GPUs."""
    status = _update(status, plan=None, pending=None, shadow=None, retry_time=None, setbacks=0, trainer_status=None)
    for kind in (names.PLANNED, names.GANG_SCHEDULED, names.PODS_READY):
        status = _set(status, meta, now, kind, False, names.REASON_SUSPENDED, "spec.suspend is true")
    return _set(status, meta, now, names.SUSPENDED, True, names.REASON_SUSPENDED, "spec.suspend is true")


def is_scheduled(status: JobStatus) -> bool:
    """Whether the gang of the standing plan has been bound as a whole."""
    return conditions.holds(status.conditions, names.GANG_SCHEDULED)


def what_happened(before: JobStatus, after: JobStatus) -> Happening | None:
    """The news in a change of status: the condition that became true, or a job that cannot be planned."""
    epoch = after.last_epoch or 0
    for kind in (names.FAILED, names.COMPLETE, names.SUSPENDED, names.PODS_READY, names.GANG_SCHEDULED, names.PLANNED):
        now_true = conditions.find(after.conditions, kind)
        if now_true and now_true.status == "True" and not conditions.holds(before.conditions, kind):
            tone: Literal["Normal", "Warning"] = "Warning" if kind == names.FAILED else "Normal"
            return Happening(tone, _EVENTS[kind], now_true.message, epoch)
    reason_before = before.pending.reason if before.pending else None
    if after.pending and after.pending.reason != reason_before:
        return Happening("Warning", after.pending.reason.value, after.pending.message, epoch)
    return None


def gave_up(reason: str, message: str, before: JobStatus) -> Happening:
    """The news of a gang that was taken back."""
    return Happening("Warning", reason, message, before.plan.epoch if before.plan else 0)


_EVENTS = {
    names.PLANNED: "Planned",
    names.GANG_SCHEDULED: "GangScheduled",
    names.PODS_READY: "Running",
    names.SUSPENDED: "Suspended",
    names.COMPLETE: "Completed",
    names.FAILED: "Failed",
}


def _resumed(status: JobStatus, meta: Meta, now: float) -> JobStatus:
    if conditions.holds(status.conditions, names.SUSPENDED):
        return _set(status, meta, now, names.SUSPENDED, False, "Resumed", "spec.suspend is false")
    return status


def _set(status: JobStatus, meta: Meta, now: float, kind: str, value: bool, reason: str, message: str) -> JobStatus:
    told: Literal["True", "False"] = "True" if value else "False"
    says = told, reason, message, meta.generation
    said = conditions.find(status.conditions, kind)
    repeats = said and (said.status, said.reason, said.message, said.observed_generation) == says
    if repeats and status.observed_generation == meta.generation:
        return status
    condition = Condition(
        type=kind,
        status=told,
        reason=reason,
        message=message,
        observed_generation=meta.generation,
        last_transition_time=_moment(now),
    )
    known = status.conditions or conditions.initial(meta.generation, _moment(now))
    return _update(status, conditions=conditions.merge(known, [condition]), observed_generation=meta.generation)


def _update(status: JobStatus, **changes: Any) -> JobStatus:
    if all(getattr(status, name) == value for name, value in changes.items()):
        return status
    return status.model_copy(update=changes)


def _moment(now: float) -> datetime:
    return datetime.fromtimestamp(int(now), UTC)
