"""A pin narrows what the user allows to one node, and never widens it: judged by our own reading of affinity."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import node_object

from trimtab.observe import nodes
from trimtab.observe.eligibility import Eligibility
from trimtab.plan.affinity import pinned

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PIN = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
FAST = {"key": "disk", "operator": "In", "values": ["fast"]}
NEAR = {"key": "rack", "operator": "Exists"}


def terms(affinity: dict[str, Any] | None) -> Any:
    return pinned(affinity, "n1")["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]


def required(*given_terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(given_terms)}}}


@pytest.mark.parametrize("affinity", [None, {}, {"nodeAffinity": None}, {"nodeAffinity": {}}])
def test_a_pod_without_affinity_is_pinned_by_one_term(affinity: dict[str, Any] | None) -> None:
    assert terms(affinity) == [{"matchFields": [PIN]}]


def test_the_pin_goes_into_every_term_for_terms_are_alternatives() -> None:
    assert terms(required({"matchExpressions": [FAST]}, {"matchFields": [PIN], "matchExpressions": [NEAR]})) == [
        {"matchExpressions": [FAST], "matchFields": [PIN]},
        {"matchFields": [PIN, PIN], "matchExpressions": [NEAR]},
    ]


def test_a_term_that_matches_nothing_still_matches_nothing() -> None:
    assert terms(required({}, {"matchExpressions": [FAST]}))[0] == {}


def test_preferences_and_everything_else_stay() -> None:
    preferred = [{"weight": 1, "preference": {"matchExpressions": [FAST]}}]
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {key: preferred}, "podAntiAffinity": {"x": "y"}}
    assert pinned(affinity, "n1")["nodeAffinity"][key] == preferred
    assert pinned(affinity, "n1")["podAntiAffinity"] == {"x": "y"}


def test_what_was_given_is_left_alone() -> None:
    affinity = required({"matchExpressions": [FAST]})
    pinned(affinity, "n1")
    assert affinity == required({"matchExpressions": [FAST]})


NODES = [
    facts
    for name in ("n1", "n2", "n3")
    for disk in ("fast", "slow")
    if (facts := nodes.facts(node_object(name, labels={"disk": disk}), ()))
]
EXPRESSIONS = st.sampled_from([FAST, NEAR, {"key": "disk", "operator": "NotIn", "values": ["fast"]}])
FIELDS = st.sampled_from([PIN, {"key": "metadata.name", "operator": "NotIn", "values": ["n2"]}])
TERMS = st.fixed_dictionaries(
    {}, optional={"matchExpressions": st.lists(EXPRESSIONS, max_size=2), "matchFields": st.lists(FIELDS, max_size=2)}
)


@given(st.lists(TERMS, min_size=1, max_size=3), st.sampled_from(["n1", "n2"]))
def test_a_pinned_pod_may_run_exactly_where_it_is_pinned_and_was_allowed(
    given_terms: list[dict[str, Any]], node: str
) -> None:
    before = Eligibility({"affinity": required(*given_terms)})
    after = Eligibility({"affinity": pinned(required(*given_terms), node)})
    for facts in NODES:
        assert after.admits(facts) == (facts.name == node and before.admits(facts))
