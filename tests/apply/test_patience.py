"""A waiting job's status is written when it has news, not when a clock in it has moved."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.builders import MOMENT, NOW

from trimtab.api.status import PendingStatus, StartTime
from trimtab.apply.patience import foretold, settled
from trimtab_policy.types import PendingReason


def start(minutes: float, spread: float = 10) -> StartTime:
    expected = MOMENT + timedelta(minutes=minutes)
    margin = timedelta(minutes=spread)
    return StartTime(earliest=expected - margin, expected=expected, latest=expected + margin)


def pending(free: int = 0, minutes: float | None = 60) -> PendingStatus:
    told = None if minutes is None else start(minutes)
    reason, message = PendingReason.INSUFFICIENT_GPUS, f"needs 8, free: {free}"
    return PendingStatus(
        reason=reason, message=message, blockers=("a holds 8",), start_time=told, wording_hash=f"{free}"
    )


def timed(free: int, *minutes: float) -> PendingStatus:
    """A text that tells of times so many minutes from now."""
    moments = tuple(MOMENT + timedelta(minutes=each) for each in minutes)
    words = ", ".join(["needs 8", f"free: {free}", *(f"then ~{moment:%H:%M}" for moment in moments)])
    return pending(free).model_copy(update={"message": words, "times": moments})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (timed(0, 60), timed(0, 73)),
        (timed(0, 60), timed(0, 47)),
        (timed(0, 10), timed(0, 16)),
        (timed(0, 10, 60), timed(0, 10, 75)),
        (timed(0, 1440), timed(0, 1440 * 2)),
        (timed(4), timed(5)),
        (timed(4, 60), timed(5, 60)),
        (timed(0, 60), timed(0)),
        (timed(0, 60), timed(0, 60, 70)),
    ],
)
def test_a_text_that_says_something_else_is_news(before: PendingStatus, after: PendingStatus) -> None:
    assert settled(before, after, NOW) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (timed(0, 60), timed(0, 71)),
        (timed(0, 10), timed(0, 15)),
        (timed(0, -10), timed(0, -5)),
        (timed(0, 10, 60), timed(0, 6, 50)),
        (timed(0, 1440), timed(0, 1440 + 200)),
    ],
)
def test_times_that_have_moved_by_little_are_no_news(before: PendingStatus, after: PendingStatus) -> None:
    """A fifth of the time that is left, or five minutes; a time that is over has none left."""
    assert before.message != after.message
    assert settled(before, after, NOW) is before


def test_texts_of_which_nobody_has_told_the_wording_are_compared_as_they_are() -> None:
    """As of a version that did not tell it: written once more, and only where they differ."""
    old = timed(0, 60).model_copy(update={"wording_hash": None})
    moved = timed(0, 61).model_copy(update={"wording_hash": None})
    assert settled(old, moved, NOW) == moved
    assert settled(old, timed(0, 61), NOW) == timed(0, 61)
    assert settled(old, old.model_copy(), NOW) is old


@pytest.mark.parametrize(("minutes", "news"), [(61, False), (70, False), (50, False), (75, True), (40, True)])
def test_a_start_is_news_when_it_moved_by_a_fifth_of_the_wait(minutes: float, news: bool) -> None:
    before, after = pending(minutes=60), pending(minutes=minutes)
    assert settled(before, after, NOW) == (after if news else before)


def test_a_start_within_minutes_moves_by_two_minutes_before_it_is_news() -> None:
    before = PendingStatus(reason=PendingReason.INSUFFICIENT_GPUS, message="busy", start_time=start(3, spread=1))
    assert settled(before, before.model_copy(update={"start_time": start(5, spread=1)}), NOW) is before
    later = before.model_copy(update={"start_time": start(6, spread=1)})
    assert settled(before, later, NOW) == later


def test_a_new_text_takes_the_old_start_along() -> None:
    told = settled(pending(minutes=60), pending(5, minutes=62), NOW)
    assert (told.message, told.start_time) == ("needs 8, free: 5", start(60))


def test_another_reason_and_a_start_that_is_in_sight_no_more_are_news() -> None:
    gone = pending(minutes=None)
    assert settled(pending(), gone, NOW) == gone
    other = pending().model_copy(update={"reason": PendingReason.FRAGMENTED})
    assert settled(pending(), other, NOW) is other
    assert settled(None, gone, NOW) is gone


@pytest.mark.parametrize(("minutes", "when"), [(49, "early"), (50, "within"), (60, "within"), (71, "late")])
def test_a_start_is_held_against_what_was_foretold(minutes: float, when: str) -> None:
    came = foretold(pending(minutes=60), NOW + 60 * minutes)
    assert came is not None
    assert (came.when, came.seconds) == (when, pytest.approx(60 * abs(minutes - 60), abs=1))


def test_nothing_foretold_is_nothing_to_judge() -> None:
    assert foretold(None, NOW) is None
    assert foretold(pending(minutes=None), NOW) is None
