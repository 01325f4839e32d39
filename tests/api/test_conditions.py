"""Conditions: the last one tells the state, times move only with the status, and nobody else's are lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab import names
from trimtab.api.conditions import Status, find, holds, initial, merge
from trimtab.api.status import Condition

THEN = datetime(2026, 1, 1, tzinfo=UTC)
NOW = THEN + timedelta(hours=1)


def condition(kind: str, status: Status = "True", reason: str = "Because", at: datetime = NOW) -> Condition:
    return Condition(type=kind, status=status, reason=reason, last_transition_time=at)


def state(*changes: Condition) -> str:
    return merge(initial(1, THEN), changes)[-1].reason


def test_at_first_sight_no_condition_holds_and_each_says_why() -> None:
    seen = initial(4, NOW)
    assert {c.type for c in seen} == set(names.CONDITIONS)
    assert {(c.status, c.observed_generation) for c in seen} == {("False", 4)}
    assert all(c.reason and c.message for c in seen)
    assert seen[-1].reason == "NotDecided"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([("Planned", "False", "Fragmented")], "Fragmented"),
        ([("Planned", "True", "Binding")], "Binding"),
        ([("Planned", "True", "Binding"), ("GangScheduled", "True", "Starting")], "Starting"),
        ([("PodsReady", "True", "Running"), ("GangScheduled", "True", "Starting")], "Running"),
        ([("PodsReady", "False", "PodFailed"), ("Planned", "False", "BackingOff")], "BackingOff"),
        ([("Planned", "False", "Suspended"), ("Suspended", "True", "SuspendedByUser")], "SuspendedByUser"),
        (
            [("Planned", "True", "Binding"), ("PodsReady", "True", "Running"), ("Complete", "True", "Completed")],
            "Completed",
        ),
        ([("Planned", "True", "Binding"), ("Failed", "True", "TooManyRestarts")], "TooManyRestarts"),
    ],
)
def test_the_last_condition_tells_the_state(changes: list[tuple[str, Status, str]], told: str) -> None:
    assert state(*(condition(*change) for change in changes)) == told


def test_the_transition_time_stays_while_the_status_stays() -> None:
    before = merge((), [condition("Planned", at=THEN)])
    (after,) = merge(before, [condition("Planned", reason="Replanned", at=NOW)])
    assert (after.reason, after.last_transition_time) == ("Replanned", THEN)


def test_the_transition_time_moves_with_the_status() -> None:
    before = merge((), [condition("Planned", at=THEN)])
    (after,) = merge(before, [condition("Planned", "False", at=NOW)])
    assert after.last_transition_time == NOW


def test_conditions_of_others_are_kept_and_never_tell_the_state() -> None:
    foreign = condition("kueue.x-k8s.io/Admitted", at=THEN)
    merged = merge([foreign], [condition("Planned", "False")])
    assert merged[0] == foreign
    assert merged[-1].type == "Planned"


def test_lookups() -> None:
    conditions = merge((), [condition("Planned"), condition("Failed", "False")])
    assert holds(conditions, "Planned")
    assert not holds(conditions, "Failed")
    assert not holds(conditions, "Complete")
    assert find(conditions, "Complete") is None


changes = st.lists(
    st.builds(
        condition,
        st.sampled_from([*names.CONDITIONS, "Foreign"]),
        st.sampled_from(["True", "False", "Unknown"]),
        st.sampled_from(["A", "B"]),
        st.sampled_from([THEN, NOW]),
    ),
    unique_by=lambda c: c.type,
)


@given(changes, changes)
def test_merging_twice_is_merging_once(before: list[Condition], change: list[Condition]) -> None:
    once = merge(before, change)
    assert merge(once, change) == once
    assert len({c.type for c in once}) == len(once)


@given(changes)
def test_the_order_does_not_depend_on_the_order_of_the_changes(change: list[Condition]) -> None:
    assert merge((), change) == merge((), reversed(change))
