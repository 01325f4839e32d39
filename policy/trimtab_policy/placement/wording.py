"""Texts for people that tell of points in time, each with what it says besides.

A time moves a little with every report of a running job. Whoever tells a text again can see by its `Wording` whether
anything else has changed, and by how much the times have.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy.placement.runtime import LONGEST
from trimtab_policy.types import Pending, PendingReason, Remedy, Wording

DAY = 86_400.0
YEAR = 365 * DAY
_EPOCHS = 2 * LONGEST
"""Seconds on either side of 1970 for which there are dates here: `runtime` looks ahead no farther than half of that."""


class TimedText(Struct, frozen=True):
    """A text as it is told, and what it is made of."""

    text: str
    wording: Wording


class Hint(Struct, frozen=True):
    """A text about a change that would help, and the change."""

    text: str
    remedy: Remedy


def clock(moment: float, now: float | None = None) -> str:
    """A point in time as people write it in a message: `~14:32 UTC`; more than a day from `now` with its date.

    The farther away, the rounder: who says the same thing again should say it in the same words. Whatever is asked has
    an answer, for what is told decides nothing.
    """
    if not -_EPOCHS < moment < _EPOCHS:
        return "~a century from now"
    ahead = 0.0 if now is None else moment - now
    step = 60.0 if ahead < DAY / 24 else 300.0 if ahead < DAY / 4 else 3600.0
    rounded = datetime.fromtimestamp(moment - moment % 60 if step == 60 else step * round(moment / step), UTC)
    if ahead >= YEAR:
        return rounded.strftime("~%b %Y")
    return rounded.strftime("~%H:%M UTC" if ahead < DAY else "~%H:%M UTC on %d %b")


def worded(now: float, *parts: str | float) -> TimedText:
    """A text of words and points in time (numbers, as POSIX seconds), one after the other."""
    text = "".join(part if isinstance(part, str) else clock(part, now) for part in parts)
    timeless = "".join(part if isinstance(part, str) else "~" for part in parts)
    return TimedText(text, Wording(timeless, tuple(part for part in parts if not isinstance(part, str))))


def waits(
    job: str,
    reason: PendingReason,
    message: str | TimedText,
    blockers: Iterable[str | TimedText] = (),
    alternatives: Iterable[str | TimedText | Hint] = (),
) -> Pending:
    """Why the job with this UID waits."""
    before, hints = tuple(blockers), tuple(alternatives)
    timed = {each.text: each.wording for each in (message, *before, *hints) if isinstance(each, TimedText)}
    return Pending(
        job, reason, _text(message), tuple(map(_text, before)), tuple(map(_text, hints)), wordings=timed,
        remedies=tuple(each.remedy for each in hints if isinstance(each, Hint)),
    )  # fmt: skip


def add(pending: Pending, more: TimedText) -> Pending:
    """The same reason with more to its message."""
    before = pending.wordings.get(pending.message, Wording(pending.message))
    message = f"{pending.message}; {more.text}"
    wording = Wording(f"{before.timeless}; {more.wording.timeless}", (*before.times, *more.wording.times))
    return replace(pending, message=message, wordings=pending.wordings | {message: wording})


def _text(told: str | TimedText | Hint) -> str:
    return told if isinstance(told, str) else told.text
