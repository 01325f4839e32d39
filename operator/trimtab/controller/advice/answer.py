"""What is told about a job of another kind: an advice, as annotations and as an event. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from trimtab import names
from trimtab.api.convert import to_time
from trimtab.apply.transitions import JobEvent
from trimtab.printable import printable
from trimtab_policy.types import Pending, Placement

NEAR_SECONDS, NEAR_PART = 300.0, 0.1
"""A start or an end that moves by less, or by less than this part of what is left until then, is no news."""
STANDS_SECONDS = 3600.0
"""An advice that stands is dated anew after so long, so that whoever reads it knows that it still holds."""
LONGEST = 1000
"""Characters of a text in an annotation."""


class Advice(Struct, frozen=True):
    """What Trimtab would decide about a job, were it submitted now; times are POSIX seconds."""

    at: float
    about: str
    """Digest of what the job said."""
    because: str
    placement: Placement | None = None
    """What it would get: now, or when its turn comes; None where that is not in sight."""
    start: float | None = None
    """When it is expected to start; None where that is not in sight."""
    problem: bool = False
    """`because` says what has to be corrected, or stated."""

    @property
    def end(self) -> float | None:
        """When it is expected to end."""
        if self.start is None or self.placement is None:
            return None
        return self.start + self.placement.prediction.run_seconds


def advised(at: float, about: str, placement: Placement) -> Advice:
    """It would start at once."""
    return Advice(at, about, placement.reason, placement, at)


def waits(at: float, about: str, pending: Pending, later: Placement | None) -> Advice:
    """It would wait; `later` is what it would get once the GPUs that suit it best are free."""
    because = "; ".join((f"{pending.reason}: {pending.message}", *pending.alternatives[:2]))
    return Advice(at, about, because, later, pending.eta.expected if pending.eta else None)


def as_annotations(advice: Advice) -> dict[str, str | None]:
    """All annotations of an advice; None for those that go."""
    said: dict[str, str | None] = dict.fromkeys(names.ADVICE.values())
    values = {
        "at": _time(advice.at),
        "about": advice.about,
        ("problem" if advice.problem else "because"): printable(" ".join(advice.because.split()))[:LONGEST],
    }
    if placement := advice.placement:
        values |= {
            "gpu_type": placement.gpu_type,
            "gpus": str(placement.gpus),
            "nodes": str(len(placement.shares)),
            "plan": placement.plan.describe(),
        }
    for name, moment in (("start", advice.start), ("end", advice.end)):
        if moment is not None:
            values[name] = _time(moment)
    return said | {names.ADVICE[name]: value for name, value in values.items()}


def is_news(advice: Advice, there: Mapping[str, str]) -> bool:
    """Whether the annotations that are there say something else, or are old."""
    new = as_annotations(advice)
    before, told = _moment(there, "at"), {"at", "start", "end"}
    if before is None or advice.at - before >= STANDS_SECONDS:
        return True
    if any(there.get(name) != new[name] for field, name in names.ADVICE.items() if field not in (*told, "because")):
        return True
    starts = _moment(there, "start")
    if (starts is None) != (advice.start is None) or (names.ADVICE["because"] in there) == advice.problem:
        return True
    if starts is None or advice.start is None:
        return there.get(names.ADVICE["because"]) != new[names.ADVICE["because"]]
    if (starts <= before) != (advice.start <= advice.at):
        return True
    ends = _moment(there, "end")
    if (ends is None) != (advice.end is None):
        return True
    if starts <= before:  # at once, then and now: what counts is how long it takes
        return ends is not None and advice.end is not None and _far(ends - starts, advice.end - advice.start, 0.0)
    return _far(starts, advice.start, advice.at)


def event(advice: Advice) -> JobEvent:
    """What the job's events say."""
    if advice.problem:
        return JobEvent("Warning", names.REASON_NO_ADVICE, f"nothing can be advised: {advice.because}", 0)
    when = "at once" if advice.start is not None and advice.start <= advice.at else "at a time that is not in sight"
    if advice.start is not None and advice.start > advice.at:
        when = f"at about {_time(advice.start)}"
    what = ""
    if placement := advice.placement:
        what = f" on {placement.gpus}×{placement.gpu_type} ({placement.plan.describe()})"
    ends = f", and end at about {_time(advice.end)}" if advice.end is not None else ""
    said = f"submitted to Trimtab now, it would start {when}{what}{ends}: {advice.because}"
    return JobEvent("Normal", names.REASON_ADVICE, said, 0)


def _far(before: float, now: float, origin: float) -> bool:
    return abs(now - before) > max(NEAR_SECONDS, NEAR_PART * abs(now - origin))


def _time(moment: float) -> str:
    return to_time(moment).isoformat().replace("+00:00", "Z")


def _moment(there: Mapping[str, str], field: str) -> float | None:
    try:
        return datetime.fromisoformat(there[names.ADVICE[field]]).timestamp()
    except (KeyError, ValueError, OverflowError):
        return None
