"""What is denied is in no text, whatever it stands beside."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.web.town import OPEN, SECRET, SECRET_JOB, Town

from trimtab.web.audience import ELSEWHERE, SOMEBODY, Audience, Denied, columns_for, denied, redacted, told
from trimtab.web.columns import HIDDEN

NAMES = Denied(frozenset({"team-b"}), frozenset({"secret-70b"}))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("behind team-b/secret-70b (older)", f"behind {SOMEBODY} (older)"),
        ("team-b/anything-at-all.", f"{SOMEBODY}."),
        ("queue of team-b holds less", f"queue of {ELSEWHERE} holds less"),
        ("pod secret-70b-3-12 of gang secret-70b-3", f"pod {SOMEBODY} of gang {SOMEBODY}"),
        ("secret-70b ends first", f"{SOMEBODY} ends first"),
        ("secret-70b.team-b.svc:29500", f"{SOMEBODY}:29500"),
        ("team-bb and xteam-b stay", "team-bb and xteam-b stay"),
        ("16×H100-SXM5-80GB free", "16×H100-SXM5-80GB free"),
    ],
)
def test_names_are_replaced_as_whole_words(text: str, shown: str) -> None:
    assert told(text, NAMES) == shown


def test_keys_are_looked_through_as_well_and_none_is_lost() -> None:
    value = redacted({"team-b/a": 1, "team-b/b": 2, "team-a/c": 3}, NAMES)
    assert value == {SOMEBODY: 1, f"{SOMEBODY} (2)": 2, "team-a/c": 3}


JSON = st.recursive(
    st.one_of(st.integers(), st.none(), st.sampled_from(["team-b", "of team-b/secret-70b", "x", "team-b,secret-70b"])),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["a", "team-b/x"]), inner)),
)


@given(JSON)
def test_no_depth_hides_a_name(value: Any) -> None:
    assert b"team-b" not in msgspec.json.encode(redacted(value, NAMES))


def test_a_name_that_somebody_shown_has_as_well_is_no_secret() -> None:
    names = denied(Audience(frozenset({"a"})), ["a/train", "b/train", "b/other"], ["a", "b", "kube-system"])
    assert names == Denied(frozenset({"b", "kube-system"}), frozenset({"other"}))


def test_who_sees_all_gets_the_very_same_value() -> None:
    value = {"text": "team-b/secret-70b"}
    assert redacted(value, denied(Audience(), ["team-b/secret-70b"], ["team-b"])) is value


def test_the_map_says_that_a_gpu_is_somebody_elses_and_not_whose() -> None:
    moment = Town(16).moment()
    audience = Audience(frozenset({OPEN}))
    shown = columns_for(audience, moment.columns, moment.denied(audience))
    assert HIDDEN in shown["gpu.job"]
    assert shown["gpu.job"].count(HIDDEN) == 32
    assert SECRET.encode() not in msgspec.json.encode(shown)
    assert SECRET_JOB.encode() not in msgspec.json.encode(shown)


def test_without_the_right_to_nodes_there_is_no_map() -> None:
    moment = Town(4).moment()
    audience = Audience(frozenset({OPEN}), nodes=False)
    shown = columns_for(audience, moment.columns, moment.denied(audience))
    assert all(not shown[name] for name in shown if name.startswith(("node.", "gpu.")))
    assert f"{OPEN}/next-up" in shown["job.key"]
