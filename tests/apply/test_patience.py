"""A waiting job's status is written when it has news, not when a clock in it has moved."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.builders import MOMENT, NOW

from trimtab.api.status import Pending, StartTime
from trimtab.apply.patience import foretold, settled
from trimtab_policy.types import PendingReason


def start(minutes: float, spread: float = 10) -> StartTime:
    expected = MOMENT + timedelta(minutes=minutes)
    margin = timedelta(minutes=spread)
    return StartTime(earliest=expected - margin, expected=expected, latest=expected + margin)


def pending(message: str = "needs 8, enough are expected ~03:14 UTC", minutes: float | None = 60) -> Pending:
    told = None if minutes is None else start(minutes)
    return Pending(reason=PendingReason.INSUFFICIENT_GPUS, message=message, blockers=("a holds 8",), start_time=told)


def test_a_time_of_day_that_moves_by_minutes_is_no_news() -> None:
    before = pending()
    assert settled(before, pending("needs 8, enough are expected ~03:17 UTC"), NOW) is before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("needs 8, enough are expected ~03:14 UTC", "needs 8, enough are expected ~03:31 UTC"),
        ("needs 8, enough are expected ~03:14 UTC", "needs 8, enough are expected ~03:14 UTC on 23 Nov"),
        ("needs 8, enough are expected ~12:00 UTC on 23 Nov", "needs 8, enough are expected ~12:00 UTC on 24 Nov"),
        ("needs 8, free: 4", "needs 8, free: 5"),
        ("needs 8, enough are expected ~03:14 UTC", "needs 8"),
    ],
)
def test_a_text_that_says_something_else_is_news(before: str, after: str) -> None:
    assert settled(pending(before), pending(after), NOW) == pending(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("~23:58 UTC", "~00:02 UTC"),
        ("~23:00 UTC on 30 Nov", "~00:00 UTC on 01 Dec"),
    ],
)
def test_midnight_is_a_minute_like_others(before: str, after: str) -> None:
    assert settled(pending(before), pending(after), NOW).message == before


@pytest.mark.parametrize(("minutes", "news"), [(61, False), (70, False), (50, False), (75, True), (40, True)])
def test_a_start_is_news_when_it_moved_by_a_fifth_of_the_wait(minutes: float, news: bool) -> None:
    before, after = pending(minutes=60), pending(minutes=minutes)
    assert settled(before, after, NOW) == (after if news else before)


def test_a_start_within_minutes_moves_by_two_minutes_before_it_is_news() -> None:
    before = Pending(reason=PendingReason.INSUFFICIENT_GPUS, message="busy", start_time=start(3, spread=1))
    assert settled(before, before.model_copy(update={"start_time": start(5, spread=1)}), NOW) is before
    later = before.model_copy(update={"start_time": start(6, spread=1)})
    assert settled(before, later, NOW) == later


def test_a_new_text_takes_the_old_start_along() -> None:
    told = settled(pending(minutes=60), pending("needs 8, free: 5", minutes=62), NOW)
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
