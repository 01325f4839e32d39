"""The smallest changes of a status: a field, a condition. Each is the identity where nothing changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from trimtab.api import conditions
from trimtab.api.status import Condition, JobStatus
from trimtab.kube.objects import Meta
from trimtab.printable import printable


def say(status: JobStatus, meta: Meta, now: float, kind: str, value: bool, reason: str, message: str) -> JobStatus:
    """Set a condition, in words fit to print; `lastTransitionTime` moves only with its status."""
    message = printable(message, lines=True)
    told: Literal["True", "False"] = "True" if value else "False"
    says = told, reason, message, meta.generation
    said = conditions.find(status.conditions, kind)
    repeats = said and (said.status, said.reason, said.message, said.observed_generation) == says
    if repeats and status.observed_generation == meta.generation:
        return status
    condition = Condition(
        type=kind,
        status=told,
        reason=reason,
        message=message,
        observed_generation=meta.generation,
        last_transition_time=moment(now),
    )
    known = status.conditions or conditions.initial(meta.generation, moment(now))
    return changed(status, conditions=conditions.merge(known, [condition]), observed_generation=meta.generation)


def changed(status: JobStatus, **changes: Any) -> JobStatus:
    """Set fields of the status."""
    if all(getattr(status, name) == value for name, value in changes.items()):
        return status
    return status.model_copy(update=changes)


def moment(now: float) -> datetime:
    """POSIX seconds as the API tells times: in UTC, to the second."""
    return datetime.fromtimestamp(int(now), UTC)
