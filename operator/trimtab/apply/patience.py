"""What is said of a waiting job's prospects, without a write for every change of a figure that nobody acts upon.

Times move a little with every report of a running job. What a status says about them stays as it is while that is
still about right: texts in which nothing but times has moved (`times` and `wordingHash` say so), and a start that is
expected nearly when it was. All else is written when it changes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from trimtab.api.status import PendingStatus, StartTime

PART = 0.2
"""Part of the wait that is left by which a time must have moved to be news ..."""
START_SECONDS = 120.0
"""... and seconds, at least, of the expected start ..."""
TEXT_SECONDS = 300.0
"""... and of a time that a text tells of."""


class Foretold(Struct, frozen=True):
    """How a start that was foretold came out."""

    seconds: float
    """Between the expected start and the actual one, whichever came first."""
    when: Literal["early", "within", "late"]
    """Against the interval."""


def settled(before: PendingStatus | None, after: PendingStatus, now: float) -> PendingStatus:
    """What to write: what was said before, as far as it is still about right."""
    if before is None or before.reason != after.reason:
        return after
    start = _start(before.start_time, after.start_time, now)
    words = before if _says_the_same(before, after, now) else after
    kept = words.model_copy(update={"start_time": start})
    return before if kept == before else kept


def foretold(before: PendingStatus | None, now: float) -> Foretold | None:
    """How the job's start, now, compares with what was said; None where nothing was."""
    if before is None or before.start_time is None:
        return None
    said = before.start_time
    when: Literal["early", "within", "late"] = "within"
    if now < said.earliest.timestamp():
        when = "early"
    elif now > said.latest.timestamp():
        when = "late"
    return Foretold(abs(now - said.expected.timestamp()), when)


def _start(before: StartTime | None, after: StartTime | None, now: float) -> StartTime | None:
    if before is None or after is None:
        return after
    pairs = (
        (before.earliest, after.earliest),
        (before.expected, after.expected),
        (before.latest, after.latest),
    )
    return before if all(_near(old, new, now, START_SECONDS) for old, new in pairs) else after


def _near(before: datetime, after: datetime, now: float, least: float) -> bool:
    moved = abs((after - before).total_seconds())
    return moved <= max(least, PART * max(0.0, before.timestamp() - now))


def _says_the_same(before: PendingStatus, after: PendingStatus, now: float) -> bool:
    """Whether the texts differ in nothing but times, and in these by little. Not where nobody has told what they say
    without these."""
    known = before.wording_hash is not None and before.wording_hash == after.wording_hash
    if not known or len(before.times) != len(after.times):
        return False
    return all(_near(old, new, now, TEXT_SECONDS) for old, new in zip(before.times, after.times, strict=True))
