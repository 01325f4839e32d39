"""Since when a gang has done nothing: one step of a watch over it, from look to look. Pure.

It does nothing while every look finds all of its GPUs idle, and it reports no step. One look that finds a GPU used, or
cannot tell, ends that; so do looks that are too far apart. What the gang says of itself can only speak for it.
"""

from __future__ import annotations

from msgspec import Struct

from trimtab import names
from trimtab.api import conditions
from trimtab.observe.jobs import JobFacts


class Watched(Struct, frozen=True):
    """What is known of the gang of one plan."""

    epoch: int
    first: float
    """POSIX time of the first look at it ..."""
    last: float
    """... and of the last one."""
    since: float | None = None
    """From when on it has done nothing; None: it does something, or nobody knows."""

    def idle_for(self, seconds: float) -> bool:
        """Whether it has done nothing for so long."""
        return self.since is not None and self.last - self.since >= seconds


def begin(epoch: int, told: float | None, now: float) -> Watched:
    """A gang at first sight; `told` is since when it has done nothing, as its status says (a POSIX time)."""
    return Watched(epoch, now, now, told)


def step(before: Watched, idle: bool | None, active: float, now: float, apart: float) -> Watched:
    """The gang after a look at `now`.

    `idle` is whether all of its GPUs are, None where nobody knows; `active` when it is last known to have done
    something, or to have begun; looks that are more than `apart` seconds apart do not belong together.
    """
    since: float | None = None
    if idle:
        joined = before.since is not None and 0 <= now - before.last <= apart
        since = max(before.since if joined and before.since is not None else now, active)
    return Watched(before.epoch, before.first, now, since)


def active_at(facts: JobFacts, heard: float | None) -> float:
    """When the gang of the standing plan began to run as a whole, or last reported, as far as its status says; `heard`
    is when it was heard of last by this controller."""
    ready, plan = conditions.find(facts.status.conditions, names.PODS_READY), facts.status.plan
    moments = [ready.last_transition_time.timestamp() if ready else 0.0, heard or 0.0]
    observed, told = facts.status.observed, facts.status.trainer_status
    if observed and told and plan and observed.epoch == plan.epoch:
        moments.append(told.last_updated_time.timestamp())
    return max(moments)


def may_be_idle(facts: JobFacts) -> bool:
    """Whether the job has a gang that runs as a whole and that nobody has asked to stop."""
    status = facts.status
    ready = facts.holds_gpus and conditions.holds(status.conditions, names.PODS_READY)
    return ready and status.stop is None and not facts.suspended
