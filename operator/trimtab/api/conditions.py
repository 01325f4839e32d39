"""Conditions of a job: set, kept, ordered.

`lastTransitionTime` moves only when the status of a condition changes, conditions of other writers are kept, and the
order is part of the interface: `kubectl get` can only show the last condition (`.conditions[-1:]`), so the one that
tells the job's state best stands there. That is the highest of those that hold (in the order of `names.CONDITIONS`),
and while none holds, Planned, whose reason says why the job waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

from trimtab import names
from trimtab.api.status import Condition

Status = Literal["True", "False", "Unknown"]
AT_FIRST: Final = {
    names.PLANNED: ("NotDecided", "nothing has been decided about it yet"),
    names.GANG_SCHEDULED: ("NotPlanned", "it has no plan yet"),
    names.PODS_READY: ("NotPlanned", "it has no plan yet"),
    names.CHECKPOINT_REQUESTED: ("NotRequested", "nobody has asked it to save its state and stop"),
    names.SUSPENDED: ("NotSuspended", "spec.suspend is not set"),
    names.FAILED: ("NotFailed", "it has not failed for good"),
    names.COMPLETE: ("NotCompleted", "it has not completed"),
}
"""Condition -> reason and message with which a job starts: nothing of it is true yet, and why is known."""


def initial(generation: int, now: datetime) -> tuple[Condition, ...]:
    """Return every condition as False, each with a reason: what a job gets at first sight."""
    return merge(
        (),
        (
            Condition(
                type=kind,
                status="False",
                reason=reason,
                message=message,
                observed_generation=generation,
                last_transition_time=now,
            )
            for kind, (reason, message) in AT_FIRST.items()
        ),
    )


def merge(current: Iterable[Condition], changes: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return `current` with `changes` put in by type, in telling order; the result of merging twice is that of once."""
    merged = {condition.type: condition for condition in current}
    for change in changes:
        merged[change.type] = _since(merged.get(change.type), change)
    return tuple(sorted(merged.values(), key=_telling))


def find(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """Return the condition of this type, if it is there."""
    return next((condition for condition in conditions if condition.type == kind), None)


def holds(conditions: Iterable[Condition], kind: str) -> bool:
    """Return whether the condition of this type is True."""
    condition = find(conditions, kind)
    return condition is not None and condition.status == "True"


def _since(before: Condition | None, after: Condition) -> Condition:
    if before is None or before.status != after.status:
        return after
    return after.model_copy(update={"last_transition_time": before.last_transition_time})


def _telling(condition: Condition) -> tuple[bool, int, str]:
    """Sort key: foreign and idle conditions first, then what holds, by rank."""
    if condition.type not in names.CONDITIONS:
        return False, -1, condition.type
    tells = condition.status == "True" or condition.type == names.PLANNED
    return tells, names.CONDITIONS.index(condition.type), condition.type
