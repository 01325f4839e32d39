"""What a decision does besides asking policies, as one value."""

from __future__ import annotations

from msgspec import Struct

from trimtab_policy.scheduling.intake import IntakeLimits
from trimtab_policy.scheduling.permissions import UNBOUNDED
from trimtab_policy.scheduling.preemption import PreemptionRules
from trimtab_policy.scheduling.resize import ResizeRules


class Rules(Struct, frozen=True):
    """By default, nothing besides."""

    reservations: int = 0
    """Jobs first in line that GPUs are kept for ..."""
    starvation_seconds: float = 0.0
    """... and those that have waited for so long; 0: none."""
    preemption: PreemptionRules | None = None
    """What may be done to running jobs for those that wait; None: nothing."""
    resize: ResizeRules | None = None
    """How elastic jobs are resized in this decision."""
    times: bool = True
    """Whether jobs that wait are told what would help them, and when they are expected to start."""
    at_once: int = UNBOUNDED
    """Once it stops or moves so many gangs, nobody else is helped."""
    limits: IntakeLimits = IntakeLimits()
    """How many waiting jobs are considered."""
