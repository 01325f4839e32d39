"""What is said of a waiting job's prospects, without a write for every change of a figure that nobody acts upon.

Times move a little with every report of a running job. What a status says about them stays as it is while that is
still about right: a text whose times of day alone have moved by minutes, and a start that is expected nearly when it
was. All else is written when it changes.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from trimtab.api.status import Pending, StartTime

PART = 0.2
"""Part of the wait that is left by which a start must have moved to be news ..."""
LEAST_SECONDS = 120.0
"""... and seconds, at least."""
NEAR_MINUTES = 5
FAR_MINUTES = 60
"""By how much times of day in a text may be off: those without a date, and those on another day."""
_CLOCK = re.compile(r"~(\d\d):(\d\d) UTC(?: on (\d\d \w\w\w))?")
_DAY = 24 * 60


class Foretold(Struct, frozen=True):
    """How a start that was foretold came out."""

    seconds: float
    """Between the expected start and the actual one, whichever came first."""
    when: Literal["early", "within", "late"]
    """Against the interval."""


def settled(before: Pending | None, after: Pending, now: float) -> Pending:
    """What to write: what was said before, as far as it is still about right."""
    if before is None or before.reason != after.reason:
        return after
    start = _start(before.start_time, after.start_time, now)
    words = before if _says_the_same(before, after) else after
    kept = words.model_copy(update={"start_time": start})
    return before if kept == before else kept


def foretold(before: Pending | None, now: float) -> Foretold | None:
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
    return before if all(_near(old.timestamp(), new.timestamp(), now) for old, new in pairs) else after


def _near(before: float, after: float, now: float) -> bool:
    return abs(after - before) <= max(LEAST_SECONDS, PART * max(0.0, before - now))


def _says_the_same(before: Pending, after: Pending) -> bool:
    """Whether the texts differ in nothing but times, and in these by little."""
    old = (before.message, *before.blockers, *before.alternatives)
    new = (after.message, *after.blockers, *after.alternatives)
    shape = [len(before.blockers), len(before.alternatives)] == [len(after.blockers), len(after.alternatives)]
    return shape and all(a == b or _same_but_times(a, b) for a, b in zip(old, new, strict=True))


def _same_but_times(before: str, after: str) -> bool:
    if _CLOCK.sub("", before) != _CLOCK.sub("", after):
        return False
    times = zip(_CLOCK.findall(before), _CLOCK.findall(after), strict=True)
    return all(_apart(old, new) <= (FAR_MINUTES if old[2] else NEAR_MINUTES) for old, new in times)


def _apart(old: tuple[str, str, str], new: tuple[str, str, str]) -> float:
    """Minutes between two times of day, which may have dates; infinite where one has and the other has not."""
    if bool(old[2]) != bool(new[2]):
        return float("inf")
    minutes = abs(_minutes(old) - _minutes(new))
    return minutes if old[2] else min(minutes, _DAY - minutes)


def _minutes(clock: tuple[str, str, str]) -> float:
    hour, minute, date = clock
    day = datetime.strptime(f"{date} 2000", "%d %b %Y").replace(tzinfo=UTC).timestamp() / 60 if date else 0.0
    return day + 60 * int(hour) + int(minute)
