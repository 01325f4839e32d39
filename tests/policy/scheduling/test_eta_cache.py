"""Times of starts are worked out as often as they are worth it."""

from __future__ import annotations

from trimtab_policy.scheduling.eta_cache import LONGEST_SECONDS, PART, Times
from trimtab_policy.types import Eta

SOON = Eta(100.0, 200.0, 300.0)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_they_are_told_again_for_a_while_that_grows_with_their_cost() -> None:
    clock = Clock()
    times = Times(clock)
    assert times.recent(["a"]) is None, "nothing is known yet"
    times.note({"a": SOON}, ["a", "b"], cost=0.2)
    clock.now += 0.2 / PART - 0.1
    assert times.recent(["a", "b"]) == {"a": SOON}, "and of b it is known that its start is not in sight"
    clock.now += 0.2
    assert times.recent(["a", "b"]) is None


def test_who_is_new_does_not_wait_for_the_next_time() -> None:
    times = Times(Clock())
    times.note({"a": SOON}, ["a"], cost=0.2)
    assert times.recent(["a", "new"]) is None
    assert times.recent([]) == {"a": SOON}


def test_however_dear_they_are_they_do_not_grow_old() -> None:
    clock = Clock()
    times = Times(clock)
    times.note({"a": SOON}, ["a"], cost=60.0)
    clock.now += LONGEST_SECONDS
    assert times.recent(["a"]) is None
