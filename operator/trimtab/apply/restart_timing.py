"""For how long trainings that were stopped on request were away: measured, so that no move is judged by a guess. Pure.

    request -> saved              `saveSeconds`, where the gang has said that it saved its state, or has ended by itself
    next plan -> it computes      `startSeconds`, where that plan waited for nobody: pods, processes, checkpoint

Both stand in the record of the stop (`status.stops`). What a training computed before its first report is taken off,
at the rate that it reports.
"""

from __future__ import annotations

import math

from trimtab.api.history import StopRecord
from trimtab.api.status import JobStatus, Plan, StopRequest
from trimtab.apply.change import changed


def saved(status: JobStatus, stop: StopRequest, now: float) -> JobStatus:
    """The gang of the standing plan has ended as it was asked to, with its state saved."""
    end = stop.acknowledged_time.timestamp() if stop.acknowledged_time else now
    return _noted(status, stop.epoch, save_seconds=_whole(end - stop.requested_time.timestamp()))


def started(status: JobStatus, plan: Plan, now: float) -> JobStatus:
    """All pods of the plan run."""
    record = _record(status, plan.epoch - 1)
    if record is None or record.start_seconds is not None or plan.waits_for:
        return status
    return _noted(status, record.epoch, start_seconds=_whole(now - plan.created_time.timestamp()))


def computes(status: JobStatus, plan: Plan, steps: int, step_seconds: float | None, now: float) -> JobStatus:
    """The first report of the plan's gang is there, so many steps after those that it began with."""
    record = _record(status, plan.epoch - 1)
    if record is None or record.start_seconds is None:
        return status
    seconds = now - plan.created_time.timestamp() - steps * (step_seconds or 0.0)
    return _noted(status, record.epoch, start_seconds=max(record.start_seconds, _whole(seconds)))


def _record(status: JobStatus, epoch: int) -> StopRecord | None:
    return next((record for record in reversed(status.stops) if record.epoch == epoch), None)


def _noted(status: JobStatus, epoch: int, **seconds: int) -> JobStatus:
    last = _record(status, epoch)
    if last is None:
        return status
    stops = (record.model_copy(update=seconds) if record is last else record for record in status.stops)
    return changed(status, stops=tuple(stops))


def _whole(seconds: float) -> int:
    return max(0, math.ceil(seconds))
