"""Which gangs do nothing with their GPUs, and which of them are to stop for that.

What has been promised stands in the status: since when the gang is idle, and until when it may be. A controller that
starts anew goes on from there, but looks for a while itself before it stops anybody. Stops go the usual way: the gang
is asked to save its state. They keep the limits of stops for others: no gang before its time (`minRuntimeSeconds`) or
too often, and no more at once (`preemption`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from trimtab.api.status import IdleStatus, Plan
from trimtab.apply.idleness import IdleGang
from trimtab.apply.stops import StopOrder
from trimtab.controller.loop.accounting import SWEEPS
from trimtab.observe import idleness
from trimtab.observe.gpu_use import GpuUse
from trimtab.observe.idleness import Watched
from trimtab.observe.jobs import JobFacts
from trimtab.observe.queues import Queues
from trimtab.observe.snapshot import Observation
from trimtab.settings import Settings
from trimtab.telemetry import metrics
from trimtab_policy.types import StopCause

SURE_SECONDS = 120.0
"""A controller has looked at a gang for so long before it stops it, or for the time of its notice where that is less:
the first reports that it reads may be old."""
LOOK_SECONDS = 5.0
"""Gangs are looked at so often at most: rounds may follow each other within milliseconds ..."""
LOOKS = 4.0
"""... and so often at least until one is said to be idle."""


class IdleJobs:
    """Watches gangs while this controller leads. `heard` says when the gang of a job (UID, epoch of its plan) was last
    heard of, as a POSIX time."""

    def __init__(self, settings: Settings, heard: Callable[[str, int], float | None]) -> None:
        self._rules = settings.idle
        self._at_once = settings.preemption.at_once
        self._apart = SWEEPS * settings.round.sweep_seconds
        self._notice = settings.idle.notice_seconds if settings.idle.stop == "AfterNotice" else None
        self._heard = heard
        self._watched: dict[str, Watched] = {}
        self._due, self._next = math.inf, 0.0
        """POSIX times at which something is to be said or done though nothing else happens, and of the next look."""

    def see(self, seen: Observation, uses: Mapping[str, GpuUse]) -> dict[str, StopOrder]:
        """Look at all gangs, if it is time. `uses` is what they do with their GPUs, by UID of their jobs. Returns those
        that are to stop."""
        now, before = seen.snapshot.time, self._watched
        pause = min(LOOK_SECONDS, self._rules.after_seconds / LOOKS)
        if self._next - pause <= now < self._next:
            return {}
        self._watched, self._next = {}, now + pause
        for uid, facts in seen.jobs.items():
            plan, told, use = facts.status.plan, facts.status.idle, uses.get(uid)
            if plan is None or use is None:
                continue
            known = before.get(uid)
            if known is None or known.epoch != plan.epoch:
                known = idleness.begin(plan.epoch, told.since_time.timestamp() if told else None, now)
            idle, active = use.verdict, 0.0
            if idle:  # of the many others nothing more needs to be known
                idle = idleness.may_be_idle(facts)
                active = idleness.active_at(facts, self._heard(uid, plan.epoch))
            self._watched[uid] = idleness.step(known, idle, active, now, self._apart)
        _gauge(seen)
        self._due = min((at for at in self._dues(seen) if at > now), default=math.inf)
        return self._orders(seen)

    def found(self, uid: str, facts: JobFacts) -> IdleGang | None:
        """The gang of the job's standing plan, if it has done nothing for long enough to say so."""
        watched, plan = self._watched.get(uid), facts.status.plan
        if watched is None or plan is None or watched.epoch != plan.epoch or watched.since is None:
            return None
        if not watched.idle_for(self._rules.after_seconds):
            return None
        return IdleGang(plan.gpus, watched.since, self._notice)

    @property
    def suspects(self) -> list[str]:
        """UIDs of the jobs whose gangs did nothing at the last look: soon there may be something to say of them."""
        return [uid for uid, watched in self._watched.items() if watched.since is not None]

    def next_deadline(self, now: float) -> float:
        """Seconds from the POSIX time `now` until something is to be said or done."""
        return max(0.0, self._due - now, self._next - now) if self._due < math.inf else math.inf

    def _orders(self, seen: Observation) -> dict[str, StopOrder]:
        if self._notice is None:
            return {}
        room = self._at_once - sum(_gives_way(facts) for facts in seen.jobs.values())
        movable = {job.uid: job.movable_from for job in seen.snapshot.jobs}
        now = seen.snapshot.time
        found = [
            (idle.stop_time, uid, _order(plan, idle))
            for uid, facts in seen.jobs.items()
            if (plan := facts.status.plan) and (idle := facts.status.idle) and self.found(uid, facts)
            if idle.stop_time and max(self._may_stop(uid, idle.stop_time), movable.get(uid, math.inf)) <= now
        ]
        found.sort(key=lambda each: each[:2])
        return {uid: order for _, uid, order in found[: max(0, room)]}

    def _may_stop(self, uid: str, promised: datetime) -> float:
        """From when on this controller may stop a gang that it watches, as a POSIX time."""
        return max(promised.timestamp(), self._watched[uid].first + min(SURE_SECONDS, self._notice or 0.0))

    def _dues(self, seen: Observation) -> Iterator[float]:
        for uid, watched in self._watched.items():
            told = seen.jobs[uid].status.idle
            if watched.since is not None and not told:
                yield watched.since + self._rules.after_seconds
            if told and told.stop_time:
                yield self._may_stop(uid, told.stop_time)


def _gives_way(facts: JobFacts) -> bool:
    stop = facts.status.stop
    return stop is not None and bool(stop.beneficiary or stop.cause is StopCause.IDLE)


def _order(plan: Plan, told: IdleStatus) -> StopOrder:
    since = f"{told.since_time:%Y-%m-%dT%H:%M:%SZ}"
    message = f"its {plan.gpus} GPUs have done nothing since {since}, and it reported no step: its notice is over"
    return StopOrder(epoch=plan.epoch, cause=StopCause.IDLE, message=message)


def _gauge(seen: Observation) -> None:
    lines, idle = Queues(seen.queues.values()), Counter[tuple[str, ...]]()
    for facts in seen.jobs.values():
        if facts.status.idle and facts.status.plan:
            queue = name if (name := lines.of(facts)) in seen.queues else ""
            idle[metrics.QUEUE_VALUES.of(queue), facts.status.plan.gpu_type] += facts.status.plan.gpus
    metrics.replace(metrics.IDLE_GPUS, idle)
