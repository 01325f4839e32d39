"""A page that applies deltas has what the server has."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from trimtab.web.deltas import WHOLE, apply, diff

VALUES = st.one_of(st.integers(-3, 3), st.sampled_from(["", "a", "b"]))
COLUMNS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.lists(VALUES, max_size=30))


@given(st.lists(COLUMNS, min_size=1, max_size=6))
def test_a_snapshot_and_its_deltas_are_the_later_snapshot(moments: list[dict[str, list[object]]]) -> None:
    names = {name for moment in moments for name in moment}
    whole = [{name: moment.get(name, []) for name in names} for moment in moments]
    page = whole[0]
    for before, after in itertools.pairwise(whole):
        page = apply(page, diff(before, after))
        assert page == after


@given(COLUMNS, COLUMNS)
def test_neither_side_of_a_delta_is_changed(old: dict[str, list[object]], new: dict[str, list[object]]) -> None:
    kept = {name: list(column) for name, column in old.items()}
    apply(old, diff(old, new))
    assert old == kept


def test_what_stays_is_not_told() -> None:
    assert diff({"a": [1, 2], "b": [3]}, {"a": [1, 2], "b": [3]}) == {}


def test_few_changes_are_told_as_gaps_and_many_as_the_whole_column() -> None:
    old = [0] * 100
    new = [*old]
    new[7] = new[9] = 5
    assert diff({"a": old}, {"a": new}) == {"a": {"at": [8, 2], "to": [5, 5]}}
    assert diff({"a": old}, {"a": [1] * 100}) == {"a": {"all": [1] * 100}}
    assert WHOLE * 2 < 100


def test_what_is_added_at_the_end_is_appended() -> None:
    old = list(range(20))
    assert diff({"a": old}, {"a": [*old, 20]}) == {"a": {"at": [21], "to": [20]}}
    assert apply({"a": old}, {"a": {"at": [21, 1], "to": [20, 21]}})["a"] == [*old, 20, 21]
