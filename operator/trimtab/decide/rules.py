"""What a decision does besides asking policies, as the settings say it."""

from __future__ import annotations

from trimtab.settings import Settings
from trimtab_policy.scheduling.intake import IntakeLimits
from trimtab_policy.scheduling.preemption import PreemptionRules
from trimtab_policy.scheduling.resize import ResizeRules
from trimtab_policy.scheduling.rules import Rules
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
