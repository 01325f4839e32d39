"""Ending a gang on request: it is asked, given time to save its state, heard, and only then stopped. Pure.

    StopOrder -> status.stop with a deadline -> every living pod is told
              -> it has acknowledged (which is noted), has ended, or is out of time
              -> one write takes the plan away, or puts its successor there -> the old pods are strays

What is wanted stands in the status, so that a controller which dies in between goes on where it was; orders are only
needed until then. A gang that does not run as a whole has nothing to save and is stopped at once. Whatever else ends
the gang meanwhile (`trimtab.apply.gang_failures`) is treated as ever, and the request is forgotten with the plan.

The time counts once all living pods have been told. Where that is late (the controller was killed between the two
writes, or away), the gang is given its time anew, once.

A request on behalf of others that is no longer wanted is taken back while nobody has acted on it: the annotation of
the pods is emptied. So is one for the gang's own good whose next plan cannot be carried out any more. That it
is there still says that the gang had been asked, for a trainer may just be on its way out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from trimtab import names
from trimtab.api import conditions
from trimtab.api.base import LONG_TEXT, TEXT
from trimtab.api.history import StopRecord
from trimtab.api.status import JobStatus, PendingStatus, Plan, StopRequest
from trimtab.apply import idleness, restart_timing, transitions
from trimtab.apply.change import changed, moment, say
from trimtab.apply.gang_failures import FAILED, SUCCEEDED
from trimtab.apply.transitions import GangReport, JobEvent
from trimtab.kube.objects import Meta, PodObject
from trimtab_policy.types import PendingReason, StopCause

MAX_RECORDS = 16
LATE_PART = 0.25
"""A gang whose pods are told when so much of its time is over ..."""
LATE_SECONDS = 2.0
"""... and so many seconds at least, is given all of it anew."""
GAVE_WAY = (StopCause.PREEMPTED, StopCause.RECLAIMED, StopCause.YIELDED)

Result = Literal["acknowledged", "deadline", "ended", "withdrawn", "unready"]


class StopOrder(Struct, frozen=True, kw_only=True):
    """The standing plan is to end: the gang is asked to save a checkpoint first."""

    epoch: int
    """The plan that is meant; the order is void once another one stands."""
    cause: StopCause
    message: str
    beneficiary: str = ""
    """Job (`namespace/name`) that gets the GPUs; empty where there is none in particular. Only a request on behalf of
    somebody can be taken back."""
    successor: Plan | None = None
    """How the job goes on at once (its epoch is the next one); None: it waits for another decision."""


class StopResult(Struct, frozen=True):
    """How a request to stop has come out, for the metrics."""

    cause: StopCause
    result: Result
    seconds: float
    """Since it was asked."""
    lost_gpu_seconds: float = 0.0
    """Work that has to be done again, times GPUs."""


class StatusChange(Struct, frozen=True):
    """A status to write, and what it means to people."""

    status: JobStatus
    happening: JobEvent | None = None
    outcome: StopResult | None = None


class PlannedGang(Struct, frozen=True):
    """A planned gang, as far as it matters for stopping it."""

    meta: Meta
    status: JobStatus
    plan: Plan
    pods: Mapping[int, PodObject]
    """By node rank."""
    now: float
    """POSIX seconds."""
    grace_seconds: float
    """What the gang is given to save its state."""
    suspended: bool = False
    order: StopOrder | None = None
    unwanted: bool = False
    """Nobody wants the gang to stop any more."""
    unfit: str = ""
    """Why the plan that is to follow cannot be carried out, where one is."""
    row_seconds: float = math.inf
    """A gang that has run for so long begins a new row of setbacks."""
    report: GangReport | None = None


def ended_on_request(pod: PodObject) -> bool:
    """Whether the training in this pod has ended as it should once it was asked to stop.

    Exit code 143, and no other that means failure. Whether it was asked, the caller knows.
    """
    if pod.status.phase != FAILED or pod.status.reason or pod.metadata.deletion_timestamp:
        return False
    ends = (container.state.terminated for container in pod.status.container_statuses)
    return {ended.exit_code for ended in ends if ended} - {0} == {names.EXIT_CHECKPOINTED}


def was_asked(status: JobStatus, pod: PodObject) -> bool:
    """Whether the pod of the standing plan has been asked to save its state, even where that was taken back."""
    return status.stop is not None or names.ANNOTATION_CHECKPOINT in pod.metadata.annotations


def steps_left(status: JobStatus, plan: Plan, report: GangReport | None) -> bool:
    """Whether a training that has ended without an error is not done. Its last word may be one step old, or count
    from 0. Of one that says nothing while it is asked to end nobody knows: it is begun once more, and soon ends if it
    was done.
    """
    if report is not None:
        return report.step + 1 < report.steps
    if status.stop and status.stop.acknowledged_time:
        return True  # it saved its state: nothing is lost by going on from there
    observed, told = status.observed, status.trainer_status
    known = observed is not None and observed.epoch == plan.epoch and told is not None
    done = told.progress_percentage if known and told else None
    return status.stop is not None if done is None else done < 100


def answered(status: JobStatus, report: GangReport | None) -> bool:
    """Whether the gang has said that it saved its state: however its pods end from here on, they have not failed."""
    return status.stop is not None and (
        status.stop.acknowledged_time is not None or (report is not None and report.acknowledged)
    )


def hung(strays: Iterable[PodObject], now: float) -> tuple[str, ...]:
    """Pods of an earlier gang that are still there though the time that they have to end is over, in words."""
    return tuple(
        f"pod {pod.metadata.name} of its earlier gang on node {pod.spec.node_name or '(none)'}"
        for pod in strays
        if pod.ends is not None and now > pod.ends
    )


def hangs_at(strays: Iterable[PodObject], after: float) -> float:
    """POSIX time at which the time of another one of them to end is over; infinite where none is ending."""
    return min((pod.ends for pod in strays if pod.ends is not None and pod.ends > after), default=math.inf)


def next_change(gang: PlannedGang) -> StatusChange | None:
    """The status to write now, if the gang is to be asked, stopped, or left alone again."""
    stop = gang.status.stop
    if stop is None:
        return _begin(gang)
    if stop.acknowledged_time:
        return _end(gang, stop, "acknowledged")
    if answered(gang.status, gang.report):
        return StatusChange(acknowledged(gang.status, stop, gang.report, gang.now))
    if len(gang.pods) == len(gang.plan.nodes) and all(pod.status.phase == SUCCEEDED for pod in gang.pods.values()):
        return _end(gang, stop, "ended")
    if _better_stays(gang, stop):
        return _take_back(gang, stop, f"its next plan cannot be carried out ({gang.unfit})")
    told = stop.renewed_time is not None or not untold(gang.status, gang.pods.values())
    if told and gang.now >= stop.deadline_time.timestamp():
        return _end(gang, stop, "deadline")
    if gang.unwanted and stop.beneficiary:
        return _take_back(gang, stop, f"{stop.beneficiary} does not need its GPUs any more")
    return None if told or gang.now - stop.requested_time.timestamp() < _patience(stop) else _renew(gang, stop)


def outcome(before: JobStatus, after: JobStatus, now: float) -> StopResult | None:
    """What became of a request where the gang came to an end for another reason."""
    stop = before.stop
    if stop is None or after.stop:
        return None
    return StopResult(stop.cause, "ended", max(0.0, now - stop.requested_time.timestamp()))


def untold(status: JobStatus, pods: Iterable[PodObject]) -> dict[str, str]:
    """Pod UID -> what its annotation has to say and does not."""
    deadline = _rfc3339(status.stop) if status.stop else ""
    return {
        pod.metadata.uid: deadline
        for pod in pods
        if not _has_ended(pod) and pod.metadata.annotations.get(names.ANNOTATION_CHECKPOINT, "") != deadline
    }


def _begin(gang: PlannedGang) -> StatusChange | None:
    order = gang.order
    if gang.suspended:
        why = "spec.suspend is true"
        order = StopOrder(epoch=gang.plan.epoch, cause=StopCause.SUSPENDED, message=why)
    if order is None or order.epoch != gang.plan.epoch:
        return None
    status = requested(gang.status, gang.meta, order, gang.grace_seconds, gang.now)
    stop = status.stop
    if stop is None:
        return None
    asked = replace(gang, status=status)
    if not conditions.holds(gang.status.conditions, names.PODS_READY):
        return _end(asked, stop, "unready")
    if not gang.grace_seconds:
        return _end(asked, stop, "deadline")
    message = f"{stop.message}; it has {gang.grace_seconds:g} s to save its state"
    happening = JobEvent("Normal", names.CHECKPOINT_REQUESTED, f"{stop.cause.value}: {message}", gang.plan.epoch)
    return StatusChange(status, happening)


def _better_stays(gang: PlannedGang, stop: StopRequest) -> bool:
    """Whether it was to go on elsewhere for its own good, and cannot, while no part of it has acted on the request."""
    own = stop.successor is not None and not stop.beneficiary and not gang.suspended
    return bool(own and gang.unfit) and not any(_has_ended(pod) for pod in gang.pods.values())


def _patience(stop: StopRequest) -> float:
    """Seconds after its request within which a gang must have been told, or its time counts from then on."""
    return max(LATE_SECONDS, LATE_PART * (stop.deadline_time - stop.requested_time).total_seconds())


def _renew(gang: PlannedGang, stop: StopRequest) -> StatusChange:
    """It was not told while its time ran: it has all of it, from now on."""
    time = stop.deadline_time - stop.requested_time
    again = stop.model_copy(update={"renewed_time": moment(gang.now), "deadline_time": moment(gang.now) + time})
    late = gang.now - stop.requested_time.timestamp()
    why = f"{stop.cause.value}: its pods are told only now, {late:.0f} s after it was to be asked"
    message = f"{why}: it has {time.total_seconds():g} s from now on"
    happening = JobEvent("Warning", names.CHECKPOINT_REQUESTED, message, gang.plan.epoch)
    return StatusChange(changed(gang.status, stop=again), happening)


def _end(gang: PlannedGang, stop: StopRequest, result: Result) -> StatusChange:
    lost = _lost_seconds(gang, result)
    seconds = max(0.0, gang.now - stop.requested_time.timestamp())
    message = f"{stop.message}; {_told(gang, result, seconds, lost)}"[:LONG_TEXT]
    void = f"; it is planned anew, for its next plan cannot be carried out ({gang.unfit})" if gang.unfit else ""
    successor = None if gang.suspended or void else stop.successor
    before = transitions.has_saved(gang.status) if result == "ended" else gang.status
    if result in ("acknowledged", "ended"):
        before = restart_timing.saved(before, stop, gang.now)
    before = changed(before, setbacks=transitions.in_a_row(before, gang.now, gang.row_seconds))
    status = stopped(before, gang.meta, stop, message, gang.report, gang.now, successor=successor)
    if gang.suspended:
        status = transitions.suspended(status, gang.meta, gang.now)
    onwards = f"; it goes on as {successor.gpus}×{successor.gpu_type} {successor.summary}" if successor else void
    happening = JobEvent("Warning" if lost >= 1 else "Normal", stop.cause.value, message + onwards, gang.plan.epoch)
    return StatusChange(status, happening, StopResult(stop.cause, result, seconds, lost * gang.plan.gpus))


def _take_back(gang: PlannedGang, stop: StopRequest, why: str) -> StatusChange:
    seconds = max(0.0, gang.now - stop.requested_time.timestamp())
    happening = JobEvent("Normal", "CheckpointWithdrawn", f"{why}: the gang goes on", gang.plan.epoch)
    return StatusChange(
        withdrawn(gang.status, gang.meta, why, gang.now), happening, StopResult(stop.cause, "withdrawn", seconds)
    )


def requested(status: JobStatus, meta: Meta, order: StopOrder, grace_seconds: float, now: float) -> JobStatus:
    """The gang is asked to save its state."""
    plan = status.plan
    if plan is None:
        return status
    beneficiary = order.beneficiary[:TEXT] or None
    follows = order.successor is not None and order.successor.epoch == (status.last_epoch or 0) + 1
    stop = StopRequest(
        epoch=plan.epoch,
        cause=order.cause,
        message=order.message[: LONG_TEXT // 2],
        requested_time=moment(now),
        deadline_time=moment(now + grace_seconds),
        beneficiary=beneficiary,
        successor=order.successor if follows else None,
    )
    record = StopRecord(time=stop.requested_time, epoch=plan.epoch, cause=order.cause, beneficiary=beneficiary)
    status = changed(status, stop=stop, stops=(*status.stops, record)[-MAX_RECORDS:])
    message = f"{stop.cause.value}: {stop.message}"
    return say(status, meta, now, names.CHECKPOINT_REQUESTED, True, names.REASON_STOPPING, message)


def acknowledged(status: JobStatus, stop: StopRequest, report: GangReport | None, now: float) -> JobStatus:
    """The gang has saved its state."""
    noted = stop.model_copy(update={"acknowledged_time": moment(now)})
    return changed(transitions.has_saved(transitions.heard(status, report)), stop=noted)


def stopped(
    status: JobStatus,
    meta: Meta,
    stop: StopRequest,
    message: str,
    report: GangReport | None,
    now: float,
    *,
    successor: Plan | None,
) -> JobStatus:
    """The plan has ended as it was asked to. This counts neither against the job's restarts nor as a setback."""
    status = transitions.may_have_saved(transitions.heard(status, report), now)
    status = transitions.halted(status, meta, now, stop.cause.value)
    if successor:
        return transitions.planned(status, meta, successor, now)
    status = changed(status, plan=None, pending=None, shadow=None, retry_time=None)
    for kind in (names.PODS_READY, names.GANG_SCHEDULED, names.PLANNED):
        status = say(status, meta, now, kind, False, stop.cause.value, message)
    if stop.cause is StopCause.IDLE:
        return _paused(status, message, now)
    if stop.cause in GAVE_WAY:
        status = say(status, meta, now, names.PREEMPTED, True, stop.cause.value, message)
    return status


def _paused(status: JobStatus, message: str, now: float) -> JobStatus:
    """It is started again, but not at once: it would do nothing as before."""
    seconds = idleness.pause(status.stops)
    said = f"{message}; it is started again in {seconds:g} s at the earliest"
    pending = PendingStatus(reason=PendingReason.BACKING_OFF, message=said[:LONG_TEXT])
    return changed(status, pending=pending, retry_time=moment(now + seconds))


def withdrawn(status: JobStatus, meta: Meta, why: str, now: float) -> JobStatus:
    """Nobody wants the gang to stop any more: it goes on."""
    status = changed(status, stop=None)
    return say(status, meta, now, names.CHECKPOINT_REQUESTED, False, "Withdrawn", why)


def _lost_seconds(gang: PlannedGang, result: Result) -> float:
    """Work since the last checkpoint that is known of. A gang that answered or left by itself has saved what else it
    did; of one that did not, all work of this plan is lost where no checkpoint is known."""
    report, observed = gang.report, gang.status.observed
    if result not in ("acknowledged", "deadline"):
        return 0.0
    if report and report.step_seconds is not None and report.checkpoint_step is not None:
        return max(0, report.step - report.checkpoint_step) * report.step_seconds
    if result == "acknowledged":
        return 0.0
    ready = conditions.find(gang.status.conditions, names.PODS_READY)
    began = ready.last_transition_time.timestamp() if ready else gang.now
    saved = observed.last_checkpoint_time if observed and observed.epoch == gang.plan.epoch else None
    return max(0.0, gang.now - max(began, saved.timestamp() if saved else began))


def _told(gang: PlannedGang, result: Result, seconds: float, lost: float) -> str:
    """How it ended, with figures."""
    if result == "unready":
        return "it did not run yet"
    if result == "deadline":
        return (
            f"it had not saved its state after {seconds:.0f} s: {lost:.0f} s of work on {gang.plan.gpus} GPUs is lost"
        )
    observed = transitions.heard(gang.status, gang.report).observed
    saved = observed.last_checkpoint_step if observed and observed.epoch == gang.plan.epoch else None
    at = "it ended by itself"
    if result == "acknowledged":
        at = "it saved its state" if saved is None else f"it saved step {saved}"
    return f"{at}, {seconds:.0f} s after it was asked"


def _has_ended(pod: PodObject) -> bool:
    return pod.status.phase in (SUCCEEDED, FAILED)


def _rfc3339(stop: StopRequest) -> str:
    return stop.deadline_time.strftime("%Y-%m-%dT%H:%M:%SZ")
