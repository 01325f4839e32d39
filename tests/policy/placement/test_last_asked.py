"""What was worked out of the last objects: by identity, and of no more objects than are kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from trimtab_policy.placement.last_asked import LastAsked


def test_the_same_object_is_looked_into_once_and_an_equal_one_again() -> None:
    made: list[tuple[int, ...]] = []

    def look(about: tuple[int, ...]) -> int:
        made.append(about)
        return len(made)

    known: LastAsked[tuple[int, ...], int] = LastAsked(look, 2)
    first, equal = tuple(range(2)), tuple(range(2))
    assert [known.of(each) for each in (first, first, equal, first)] == [1, 1, 2, 1]


def test_the_object_that_was_asked_about_longest_ago_is_dropped() -> None:
    made: list[str] = []
    known: LastAsked[str, None] = LastAsked(made.append, 2)
    for each in ("a", "b", "a", "c", "a", "b"):
        known.of(each)
    assert made == ["a", "b", "c", "b"]


def test_threads_that_ask_at_once_get_the_same() -> None:
    known: LastAsked[tuple[int, ...], object] = LastAsked(lambda _: object(), 1)
    about = (1,)
    with ThreadPoolExecutor(8) as pool:
        assert len({id(each) for each in pool.map(lambda _: known.of(about), range(64))}) == 1
