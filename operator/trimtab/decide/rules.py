"""What a decision does besides asking policies, as the settings say it."""

from __future__ import annotations

from msgspec.structs import replace

from trimtab.settings import MonitorSettings, Settings
from trimtab_policy.scheduling.intake import IntakeLimits
from trimtab_policy.scheduling.preemption import PreemptionRules
from trimtab_policy.scheduling.resize import ResizeRules
from trimtab_policy.scheduling.rules import Rules
from trimtab_policy.sim.controller import ControllerRules
from trimtab_policy.sim.monitor import MonitorRules
from trimtab_policy.types import MOST_LEAVING

SEARCH_PART = 0.25
"""Of the deadline, for plans of jobs that are new."""


def rules_of(settings: Settings, stopping: int = 0, *, resize: bool = False, live: bool = False) -> Rules:
    """What a decision does while so many gangs are being stopped already. `live`: others wait for it, so that it looks
    at no more jobs than it can in time; whoever asks for an explanation has more patience."""
    queues, preemption, elasticity = settings.queues, settings.preemption, settings.elasticity
    allowed = PreemptionRules(preemption.enabled, preemption.reclaim, preemption.consolidation)
    return Rules(
        reservations=queues.reservations,
        starvation_seconds=queues.starvation_seconds if queues.reservations else 0.0,
        preemption=allowed if allowed.preempt or allowed.reclaim or allowed.consolidate else None,
        resize=ResizeRules(elasticity.gain) if resize and elasticity.enabled else None,
        at_once=max(0, min(preemption.at_once, MOST_LEAVING) - stopping),
        limits=IntakeLimits(queues.considered, SEARCH_PART) if live else IntakeLimits(),
    )


def simulated(settings: Settings, *, rigid: bool = False) -> ControllerRules:
    """How a simulated controller with these settings decides. `rigid`: nobody gives way for others, or is resized."""
    rules = replace(rules_of(settings, resize=True), times=False)
    return ControllerRules(
        rules=replace(rules, preemption=None, resize=None) if rigid else rules,
        resize_seconds=settings.elasticity.interval_seconds,
        per_job_per_hour=settings.preemption.per_job_per_hour,
    )


def monitor_rules(settings: MonitorSettings) -> MonitorRules:
    """When a policy counts as worse than its fallback."""
    return MonitorRules(settings.margin, settings.least_jobs, returns_after=settings.returns_after)
