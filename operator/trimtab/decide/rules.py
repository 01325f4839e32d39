"""What a decision does besides asking policies, as one value: the settings say it."""

from __future__ import annotations

from msgspec import Struct

from trimtab.api.status import MAX_LEAVING
from trimtab.decide.intake import Limits
from trimtab.decide.running import UNBOUNDED
from trimtab.settings import Settings
from trimtab_policy.scheduling.preemption import RoomRules
from trimtab_policy.scheduling.resize import ResizeRules

SEARCH_PART = 0.25
"""Of the deadline, for plans of jobs that are new."""


class Rules(Struct, frozen=True):
    """By default, nothing besides."""

    reservations: int = 0
    """Jobs first in line that GPUs are kept for ..."""
    starvation_seconds: float = 0.0
    """... and those that have waited for so long; 0: none."""
    room: RoomRules | None = None
    """How room is made for jobs that wait."""
    resize: ResizeRules | None = None
    """How elastic jobs are resized in this decision."""
    times: bool = True
    """Whether jobs that wait are told what would help them, and when they are expected to start."""
    at_once: int = UNBOUNDED
    """Once it stops or moves so many gangs, nobody else is helped."""
    limits: Limits = Limits()
    """How many waiting jobs are considered."""


def rules_of(settings: Settings, stopping: int = 0, *, resize: bool = False, live: bool = False) -> Rules:
    """What a decision does while so many gangs are being stopped already. `live`: others wait for it, so that it looks
    at no more jobs than it can in time; whoever asks for an explanation has more patience."""
    queues, preemption, elasticity = settings.queues, settings.preemption, settings.elasticity
    room = RoomRules(preemption.enabled, preemption.reclaim, preemption.consolidation)
    return Rules(
        reservations=queues.reservations,
        starvation_seconds=queues.starvation_seconds if queues.reservations else 0.0,
        room=room if room.preempt or room.reclaim or room.consolidate else None,
        resize=ResizeRules(elasticity.gain) if resize and elasticity.enabled else None,
        at_once=max(0, min(preemption.at_once, MAX_LEAVING) - stopping),
        limits=Limits(queues.considered, SEARCH_PART) if live else Limits(),
    )
