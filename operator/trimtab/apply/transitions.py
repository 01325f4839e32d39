"""Status -> status: every change of a job's status, one function each. Pure, and the identity when nothing changes.

A status is written whole. What a write means to people (event) and dashboards (metric) is a `JobEvent`.
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from trimtab import names
from trimtab.api import conditions
from trimtab.api.base import LONG_TEXT
from trimtab.api.history import FailureRecord
from trimtab.api.status import JobStatus, Metric, Observed, PendingStatus, Plan, Shadow, TrainerStatus
from trimtab.apply import idleness, restart_timing
from trimtab.apply.change import changed, moment, say
from trimtab.apply.gang_failures import FAILURES_KEPT, PAYS, GangFailure
from trimtab.apply.patience import settled
from trimtab.kube.objects import Meta
from trimtab_policy.types import PendingReason

_MAX_DOUBLINGS = 30
"""Of the pause between setbacks: any sensible upper limit is reached long before."""
REPORT_SECONDS = 30.0
"""What a training reports is written at most so often ..."""
QUIET_SECONDS = 300.0
"""... and only so often while it goes on as it did: a job that runs for a week must not write to etcd all the time."""
SILENT_SECONDS = 600.0
"""A gang that does not tell of its checkpoints has probably saved one after so long."""
CHECKPOINTED = "Checkpointed"
"""Reason of a setback: it had been asked to save its state, has, and ended, though it need not any more."""
MOST_NAMED = 4
"""Pods that a message lists."""
_MOVED = 0.05
"""Part by which a step time must have changed to be news."""


class JobEvent(Struct, frozen=True):
    """Something that a user would ask about."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    epoch: int


class GangReport(Struct, frozen=True):
    """What the gang of one epoch has said of itself last, checked."""

    epoch: int
    step: int
    steps: int
    """Of the whole training."""
    received: float
    """POSIX seconds."""
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    checkpoint_step: int | None = None
    checkpoint_time: float | None = None
    """When it was first told."""
    metrics: tuple[tuple[str, str], ...] = ()
    ratio: float | None = None
    """Observed step time over the predicted one; None until it was measured long enough."""
    acknowledged: bool = False
    """It has saved what it needs, as it was asked to."""
    drift_factor: float = 1.25
    """From this ratio on, and from its inverse down, the prediction is said to be wrong."""


def planned(status: JobStatus, meta: Meta, plan: Plan, now: float) -> JobStatus:
    """Write a plan down: the promise that everything after it keeps."""
    status = changed(
        status, plan=plan, last_epoch=plan.epoch, pending=None, shadow=None, retry_time=None, trainer_status=None
    )
    status = _over(_resumed(status, meta, now), meta, now, names.PREEMPTED, "Planned", "it has a plan again")
    status = say(status, meta, now, names.GANG_SCHEDULED, False, "Binding", f"binding {len(plan.nodes)} pods")
    status = say(status, meta, now, names.PODS_READY, False, "NotStarted", "its pods have not started")
    return standing(status, meta, plan, now)


def standing(
    status: JobStatus, meta: Meta, plan: Plan, now: float, leaving: tuple[str, ...] = (), outdated: str = ""
) -> JobStatus:
    """Say that the plan stands, and what is not as it should be: whose GPUs it waits for, where it breaks the spec."""
    message = "; ".join(filter(None, (outdated, f"{plan.policy}: {plan.reason}")))
    if leaving:
        message = f"waits for GPUs that {', '.join(sorted(leaving))} still hold; {message}"
    bound = names.REASON_BOUND if is_scheduled(status) else names.REASON_BINDING
    reason = names.REASON_MAKING_ROOM if leaving else bound
    return say(status, meta, now, names.PLANNED, True, reason, message[:LONG_TEXT])


def waiting(status: JobStatus, meta: Meta, pending: PendingStatus, now: float) -> JobStatus:
    """Say why there is no plan, and what would help."""
    pending = settled(status.pending, pending, now)
    status = changed(status, pending=pending)
    status = _resumed(status, meta, now)
    return say(status, meta, now, names.PLANNED, False, pending.reason.value, pending.message)


def held_up(
    status: JobStatus, meta: Meta, late: tuple[str, ...], forced: float, now: float
) -> tuple[JobStatus, JobEvent]:
    """Say that the job waits for pods which should have ended: their nodes do not answer, or a finalizer keeps them.

    `forced`: POSIX time at which they are deleted by force, or infinite.
    """
    until = f" until {moment(forced):%H:%M:%S} UTC" if math.isfinite(forced) else ""
    message = (
        f"waits for {', '.join(late[:MOST_NAMED])} to end{until}: two gangs of a job never run at once. Of a node that "
        f"is off for good, say so: `kubectl taint node NODE {names.TAINT_OUT_OF_SERVICE}=nodeshutdown:NoExecute`, or "
        "delete it"
    )
    pending = PendingStatus(reason=PendingReason.BACKING_OFF, message=message, blockers=late[:MOST_NAMED])
    status = changed(status, pending=pending)
    said = JobEvent("Warning", names.REASON_HELD_UP, message, status.last_epoch or 0)
    return say(status, meta, now, names.PLANNED, False, names.REASON_HELD_UP, message), said


def scheduled(status: JobStatus, meta: Meta, now: float, *, all_running: bool) -> JobStatus:
    """The whole gang is bound; and, a little later, running."""
    bound = "all pods of the gang are bound"
    status = say(status, meta, now, names.GANG_SCHEDULED, True, names.REASON_STARTING, bound)
    told = conditions.find(status.conditions, names.PLANNED)
    if told and told.reason == names.REASON_BINDING:
        status = say(status, meta, now, names.PLANNED, True, names.REASON_BOUND, told.message)
    if all_running:
        status = restart_timing.started(status, status.plan, now) if status.plan else status
        status = changed(status, start_time=status.start_time or moment(now))
        status = say(status, meta, now, names.PODS_READY, True, names.REASON_RUNNING, "all pods of the gang run")
    return status


def progressed(status: JobStatus, percentage: int | None, now: float) -> JobStatus:
    """Note the progress when it has moved."""
    known = status.trainer_status.progress_percentage if status.trainer_status else None
    plan, observed = status.plan, status.observed
    if percentage is None or percentage == known or (plan and observed and observed.epoch == plan.epoch):
        return status  # what the training has said itself counts more
    remaining = max(0, int(plan.predicted.finish_time.timestamp() - now)) if plan else None
    report = TrainerStatus(
        progress_percentage=percentage, estimated_remaining_seconds=remaining, last_updated_time=moment(now)
    )
    return changed(status, trainer_status=report)


def reported(status: JobStatus, meta: Meta, report: GangReport, now: float) -> JobStatus:
    """Note what the running gang says of itself, when it is news or a while ago."""
    plan = status.plan
    if plan is None or report.epoch != plan.epoch:
        return status
    judged = _judged(status, meta, report, now)
    if judged is status and not _is_news(status, report, now):
        return status
    if plan.epoch > 1 and (status.observed is None or status.observed.epoch != plan.epoch):
        began = status.observed.steps_done if status.observed else 0
        judged = restart_timing.computes(
            judged, plan, max(0, report.step - began), report.step_seconds, report.received
        )
    seconds = report.step_seconds
    remaining = None if seconds is None else int(seconds * max(0, report.steps - report.step))
    trainer = TrainerStatus(
        progress_percentage=_percentage(report),
        estimated_remaining_seconds=remaining,
        metrics=tuple(Metric(name=name, value=value) for name, value in report.metrics),
        last_updated_time=moment(now),
    )
    return changed(heard(judged, report), trainer_status=trainer)


def heard(status: JobStatus, report: GangReport | None) -> JobStatus:
    """Note the steps that the gang of the standing plan tells of, however lately it did so before."""
    before, plan = status.observed, status.plan
    if report is None or plan is None or report.epoch != plan.epoch:
        return status
    seconds, saved, at = report.step_seconds, report.checkpoint_step, report.checkpoint_time
    observed = Observed(
        epoch=report.epoch,
        step_milliseconds=None if seconds is None else max(1, round(seconds * 1000)),
        tokens_per_second=None if report.tokens_per_second is None else round(report.tokens_per_second),
        steps_done=report.step,
        last_checkpoint_step=saved if saved is not None or before is None else before.last_checkpoint_step,
        last_checkpoint_time=moment(at) if at is not None else before.last_checkpoint_time if before else None,
    )
    known = before.last_checkpoint_step if before else None
    return changed(has_saved(status) if (saved or 0) > (known or 0) else status, observed=observed)


def has_saved(status: JobStatus) -> JobStatus:
    """The gang of the standing plan has saved its state: whoever loads that needs its degrees."""
    return changed(status, degrees=status.plan.parallelism) if status.plan else status


def may_have_saved(status: JobStatus, now: float) -> JobStatus:
    """The gang ends, and never said whether it saves its state: one that ran for a while is taken to have done so.

    One that soon ended may have found that it cannot load what an earlier gang had saved, with other degrees.
    """
    observed, ran = status.observed, seconds_of(status, names.PODS_READY, now)
    tells = observed is not None and observed.last_checkpoint_step is not None
    return status if tells or ran is None or ran < SILENT_SECONDS else has_saved(status)


def in_a_row(status: JobStatus, now: float, cap: float) -> int:
    """Setbacks in a row before the end of this gang: one that has run for as long as the longest pause, `cap`, begins a
    new row."""
    ran = seconds_of(status, names.PODS_READY, now)
    return 0 if ran is not None and ran >= cap else status.setbacks


def _percentage(report: GangReport) -> int:
    return min(100, 100 * report.step // report.steps)


def _is_news(status: JobStatus, report: GangReport, now: float) -> bool:
    before, told = status.observed, status.trainer_status
    if before is None or told is None or before.epoch != report.epoch:
        return True
    age = now - told.last_updated_time.timestamp()
    if age < REPORT_SECONDS or report.received <= told.last_updated_time.timestamp():
        return False
    milliseconds = None if report.step_seconds is None else report.step_seconds * 1000
    known = before.step_milliseconds
    moved = milliseconds is not None and (known is None or abs(milliseconds - known) > max(1, _MOVED * known))
    saved = report.checkpoint_step is not None and report.checkpoint_step != before.last_checkpoint_step
    return moved or saved or _percentage(report) != told.progress_percentage or age >= QUIET_SECONDS


def _judged(status: JobStatus, meta: Meta, report: GangReport, now: float) -> JobStatus:
    """Say whether steps take as long as predicted; once it is said otherwise, they must come clearly nearer."""
    if report.ratio is None or status.plan is None:
        return status
    said = conditions.holds(status.conditions, names.DRIFTED)
    off = max(report.ratio, 1 / report.ratio) >= report.drift_factor ** (0.6 if said else 1.0)
    if off == said:
        return status
    predicted = status.plan.predicted.step_milliseconds / 1000
    message = f"a step takes {report.step_seconds or 0:.3g} s, {report.ratio:.2f} times the predicted {predicted:.3g} s"
    reason = "AsPredicted" if not off else "SlowerThanPredicted" if report.ratio > 1 else "FasterThanPredicted"
    return say(status, meta, now, names.DRIFTED, off, reason, message)


def shadowed(status: JobStatus, shadow: Shadow | None) -> JobStatus:
    """Note what the shadow policy would have done, unless it has said the same before."""
    if shadow is None or (status.shadow and status.shadow.says() == shadow.says()):
        return status
    return changed(status, shadow=shadow)


def completed(status: JobStatus, meta: Meta, now: float) -> JobStatus:
    """All pods of the gang have succeeded."""
    status = scheduled(status, meta, now, all_running=True)
    said = status.trainer_status.metrics if status.trainer_status else ()
    done = TrainerStatus(
        progress_percentage=100, estimated_remaining_seconds=0, metrics=said, last_updated_time=moment(now)
    )
    status = _unasked(changed(status, completion_time=moment(now), trainer_status=done), meta, now, "Ended")
    status = say(status, meta, now, names.PODS_READY, False, "Ended", "all pods of the gang have ended")
    return say(status, meta, now, names.COMPLETE, True, names.REASON_COMPLETED, "all pods of the gang have succeeded")


def failed(status: JobStatus, meta: Meta, setback: GangFailure, end: str, now: float) -> JobStatus:
    """The gang has failed for good; `end` says why it is not tried again."""
    reason, message = setback.reason, setback.brief
    status = _unasked(_recorded(changed(status, completion_time=moment(now)), setback, now), meta, now, reason)
    status = spared(status, meta, "", now)
    status = say(status, meta, now, names.PODS_READY, False, reason, message)
    why = f"{reason}: {message}; {end}"
    return say(status, meta, now, names.FAILED, True, names.REASON_FAILED, why)


def set_back(
    status: JobStatus, meta: Meta, setback: GangFailure, now: float, backoff: tuple[float, float]
) -> JobStatus:
    """Give the plan up, to try again after a pause that doubles with every setback in a row.

    A gang that has run for as long as the longest pause begins a new row.
    """
    initial, cap = backoff
    reason, message = setback.reason, setback.brief
    before = in_a_row(status, now, cap)
    pause = min(cap, initial * 2 ** min(before, _MAX_DOUBLINGS))
    status = has_saved(status) if reason == CHECKPOINTED else may_have_saved(status, now)
    again = f"{message}; trying again in {pause:g} s"
    pending = PendingStatus(reason=PendingReason.BACKING_OFF, message=again, blockers=(f"{reason}: {message}",))
    status = changed(
        _recorded(status, setback, now),
        plan=None,
        pending=pending,
        shadow=None,
        restarts=status.restarts + (1 if setback.cause in PAYS else 0),
        setbacks=before + 1,
        retry_time=moment(now + pause),
    )
    status = halted(status, meta, now, reason)
    status = say(status, meta, now, names.PODS_READY, False, reason, message)
    status = say(status, meta, now, names.GANG_SCHEDULED, False, reason, message)
    return say(status, meta, now, names.PLANNED, False, reason, message)


def suspended(status: JobStatus, meta: Meta, now: float) -> JobStatus:
    """The user wants the job to hold no GPUs."""
    status = may_have_saved(status, now)
    status = changed(status, plan=None, pending=None, shadow=None, retry_time=None, setbacks=0, trainer_status=None)
    status = halted(status, meta, now, names.REASON_SUSPENDED)
    status = _over(status, meta, now, names.PREEMPTED, names.REASON_SUSPENDED, "it does not want GPUs any more")
    for kind in (names.PLANNED, names.GANG_SCHEDULED, names.PODS_READY):
        status = say(status, meta, now, kind, False, names.REASON_SUSPENDED, "spec.suspend is true")
    return say(status, meta, now, names.SUSPENDED, True, names.REASON_SUSPENDED, "spec.suspend is true")


def spared(status: JobStatus, meta: Meta, why: str, now: float) -> JobStatus:
    """Say that lost nodes are not acted on, with the figures of when that began; or that all is well again."""
    if conditions.holds(status.conditions, names.DEGRADED) == bool(why):
        return status
    if why:
        return say(status, meta, now, names.DEGRADED, True, names.REASON_MASS_FAILURE, why)
    return say(status, meta, now, names.DEGRADED, False, "Over", "no node of the gang is lost and not acted on")


def seconds_of(status: JobStatus, kind: str, now: float) -> float | None:
    """For how long a condition has held; None where it does not."""
    found = conditions.find(status.conditions, kind)
    return max(0.0, now - found.last_transition_time.timestamp()) if found and found.status == "True" else None


def is_scheduled(status: JobStatus) -> bool:
    """Whether the gang of the standing plan has been bound as a whole."""
    return conditions.holds(status.conditions, names.GANG_SCHEDULED)


def what_happened(before: JobStatus, after: JobStatus) -> JobEvent | None:
    """The news in a change of status: the condition that became true, or a job that cannot be planned."""
    epoch = after.last_epoch or 0
    if idleness.is_news(before, after) and (idle := conditions.find(after.conditions, names.IDLE)):
        return JobEvent("Warning", names.IDLE, idle.message, epoch)
    for kind in _EVENTS:
        now_true = conditions.find(after.conditions, kind)
        if now_true and now_true.status == "True" and not conditions.holds(before.conditions, kind):
            tone: Literal["Normal", "Warning"] = "Warning" if kind in _BAD_NEWS else "Normal"
            return JobEvent(tone, _EVENTS[kind], now_true.message, epoch)
    reason_before = before.pending.reason if before.pending else None
    if after.pending and after.pending.reason != reason_before:
        return JobEvent("Warning", after.pending.reason.value, after.pending.message, epoch)
    return None


def gave_up(reason: str, message: str, before: JobStatus) -> JobEvent:
    """The news of a gang that was taken back."""
    return JobEvent("Warning", reason, message, before.plan.epoch if before.plan else 0)


_EVENTS = {
    names.FAILED: "Failed",
    names.COMPLETE: "Completed",
    names.SUSPENDED: "Suspended",
    names.PODS_READY: "Running",
    names.GANG_SCHEDULED: "GangScheduled",
    names.PLANNED: "Planned",
    names.DRIFTED: "Drifted",
    names.DEGRADED: "MassFailure",
}
"""Condition that became true -> reason of the event; the most telling one first."""
_BAD_NEWS = (names.FAILED, names.DRIFTED, names.DEGRADED)


def _recorded(status: JobStatus, setback: GangFailure, now: float) -> JobStatus:
    plan = status.plan
    if plan is None:
        return status
    record = FailureRecord(
        time=moment(now),
        epoch=plan.epoch,
        generation=plan.observed_generation,
        cause=setback.cause,
        reason=setback.reason,
        node=setback.node or None,
        running=conditions.holds(status.conditions, names.PODS_READY),
    )
    return changed(status, failures=(*status.failures, record)[-FAILURES_KEPT:])


def halted(status: JobStatus, meta: Meta, now: float, reason: str) -> JobStatus:
    """The gang computes no more: of its steps those count that a checkpoint keeps. Nobody needs to ask it to stop."""
    status = spared(status, meta, "", now)
    status = _over(status, meta, now, names.DRIFTED, "Stopped", "no gang runs")
    status = _unasked(status, meta, now, reason)
    observed = status.observed
    if observed is None:
        return status
    kept = {"step_milliseconds": None, "tokens_per_second": None, "steps_done": observed.last_checkpoint_step or 0}
    return changed(status, observed=observed.model_copy(update=kept))


def _unasked(status: JobStatus, meta: Meta, now: float, reason: str) -> JobStatus:
    status = idleness.over(changed(status, stop=None), meta, now, reason, "the gang has ended")
    return _over(status, meta, now, names.CHECKPOINT_REQUESTED, reason, "the gang has ended")


def _resumed(status: JobStatus, meta: Meta, now: float) -> JobStatus:
    return _over(status, meta, now, names.SUSPENDED, "Resumed", "spec.suspend is false")


def _over(status: JobStatus, meta: Meta, now: float, kind: str, reason: str, message: str) -> JobStatus:
    """A condition holds no more, if it did."""
    return say(status, meta, now, kind, False, reason, message) if conditions.holds(status.conditions, kind) else status
