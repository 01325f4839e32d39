"""Which nodes a template admits: the semantics of kube-scheduler, which nobody else enforces in direct binding."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import A100, node_object

from trimtab import names
from trimtab.observe.eligibility import eligible
from trimtab.observe.nodes import NodeFacts, facts

CONTAINERS = [{"name": "trainer", "image": "x"}]


def a_node(name: str = "n1", **changes: Any) -> NodeFacts:
    known = facts(node_object(name, A100, **changes), ())
    assert known
    return known


def admits(spec: dict[str, Any], node: NodeFacts) -> bool:
    return eligible({"containers": CONTAINERS} | spec, [node]) is None


def test_none_means_all() -> None:
    assert eligible({"containers": CONTAINERS}, [a_node("a"), a_node("b")]) is None
    assert eligible({"containers": CONTAINERS, "nodeSelector": {names.HOSTNAME: "b"}}, [a_node("a"), a_node("b")]) == (
        "b",
    )
    assert eligible({"containers": CONTAINERS, "nodeSelector": {"no": "where"}}, [a_node("a")]) == ()


# --- selector and affinity -----------------------------------------------------------------------------------------
def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_every_label_of_the_selector_must_match() -> None:
    node = a_node(labels={"a": "1", "b": "2"})
    assert admits({"nodeSelector": {"a": "1", "b": "2"}}, node)
    assert not admits({"nodeSelector": {"a": "1", "b": "3"}}, node)
    assert not admits({"nodeSelector": {"a": "1", "c": ""}}, node)


@pytest.mark.parametrize(
    ("operator", "values", "present", "absent"),
    [
        ("In", ("x", "5"), True, False),
        ("In", ("x",), False, False),
        ("NotIn", ("5",), False, True),
        ("NotIn", ("x",), True, True),
        ("Exists", (), True, False),
        ("DoesNotExist", (), False, True),
        ("Gt", ("4",), True, False),
        ("Gt", ("5",), False, False),
        ("Lt", ("6",), True, False),
        ("Lt", ("-6",), False, False),
        ("Gt", ("four",), False, False),
        ("Gt", (), False, False),
        ("Gt", ("1", "2"), False, False),
        ("Near", ("5",), False, False),
    ],
)
def test_operators_on_a_label_that_is_5_or_absent(
    operator: str, values: tuple[str, ...], present: bool, absent: bool
) -> None:
    spec = affinity(expression("key", operator, *values))
    assert admits(spec, a_node(labels={"key": "5"})) is present
    assert admits(spec, a_node()) is absent


def test_a_label_that_is_no_number_is_neither_greater_nor_less() -> None:
    node = a_node(labels={"key": "v5"})
    assert not admits(affinity(expression("key", "Gt", "0")), node)
    assert not admits(affinity(expression("key", "Lt", "9")), node)


def test_terms_are_alternatives_and_expressions_of_one_term_are_not() -> None:
    node = a_node(labels={"a": "1"})
    a, b = expression("a", "Exists"), expression("b", "Exists")
    assert admits(affinity(b, a), node)
    assert not admits(affinity({"matchExpressions": a["matchExpressions"] + b["matchExpressions"]}), node)


def test_an_empty_term_matches_nothing() -> None:
    assert not admits(affinity({}), a_node())
    assert not admits(affinity(), a_node())
    assert admits(affinity({}, expression(names.HOSTNAME, "Exists")), a_node())


def test_fields_match_the_name_of_the_node() -> None:
    by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    assert admits(affinity(by_name), a_node("n1"))
    assert not admits(affinity(by_name), a_node("n2"))
    assert not admits(affinity(by_name | expression("a", "Exists")), a_node("n1"))


def test_preferences_and_empty_affinities_exclude_nobody() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
    assert admits({"affinity": {"nodeAffinity": preferred}}, a_node())
    assert admits({"affinity": None}, a_node())
    assert admits({"affinity": {"nodeAffinity": None}}, a_node())


# --- taints ----------------------------------------------------------------------------------------------------------
def tainted(key: str = "team", value: str = "a", effect: str = "NoSchedule") -> NodeFacts:
    return a_node(spec={"taints": [{"key": key, "value": value, "effect": effect}]})


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (None, False),
        ({"key": "team", "operator": "Equal", "value": "a"}, True),
        ({"key": "team", "value": "a"}, True),
        ({"key": "team", "value": "b"}, False),
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "team", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Exists"}, True),
        ({"operator": "Equal", "value": "a"}, False),
        ({"key": "team", "operator": "Exists", "effect": None, "tolerationSeconds": 5}, True),
    ],
)
def test_tolerations(toleration: dict[str, Any] | None, tolerated: bool) -> None:
    assert admits({"tolerations": [toleration] if toleration else []}, tainted()) is tolerated


def test_a_taint_without_value_is_matched_by_an_empty_one() -> None:
    assert admits({"tolerations": [{"key": "team"}]}, tainted(value=""))


@pytest.mark.parametrize(("effect", "admitted"), [("NoExecute", False), ("PreferNoSchedule", True)])
def test_effects_of_taints(effect: str, admitted: bool) -> None:
    assert admits({}, tainted(effect=effect)) is admitted


def test_every_taint_must_be_tolerated() -> None:
    taints = [{"key": key, "effect": "NoSchedule"} for key in ("a", "b")]
    assert not admits({"tolerations": [{"key": "a", "operator": "Exists"}]}, a_node(spec={"taints": taints}))


@pytest.mark.parametrize("key", names.GPU_RESOURCES)
def test_the_usual_taint_of_gpu_nodes_is_tolerated_anyway(key: str) -> None:
    assert admits({}, tainted(key))


def test_a_cordon_is_told_as_such_and_not_as_a_taint() -> None:
    assert admits({}, tainted("node.kubernetes.io/unschedulable", ""))


# --- resources beyond GPUs, CPU and memory ---------------------------------------------------------------------------
@pytest.mark.parametrize(("asked", "admitted"), [(1, True), ("4", True), (5, False)])
def test_a_node_must_offer_what_the_template_asks_for(asked: Any, admitted: bool) -> None:
    spec = {"containers": [{"name": "trainer", "resources": {"limits": {"rdma/hca": asked}}}]}
    assert admits(spec, a_node(allocatable={"rdma/hca": "4"})) is admitted
    assert not admits(spec, a_node())
    assert not admits(spec, a_node(allocatable={"rdma/hca": "four"}))


def test_containers_ask_together_and_init_containers_one_after_the_other() -> None:
    def asks(*amounts: int) -> list[dict[str, Any]]:
        return [{"name": f"c{n}", "resources": {"requests": {"rdma/hca": n}}} for n in amounts]

    node = a_node(allocatable={"rdma/hca": "4"})
    assert admits({"containers": asks(1, 3), "initContainers": asks(4, 2)}, node)
    assert not admits({"containers": asks(2, 3)}, node)
    assert not admits({"containers": asks(1), "initContainers": asks(5)}, node)


def test_cpu_and_memory_are_counted_elsewhere() -> None:
    assert admits({"containers": [{"name": "c", "resources": {"requests": {"cpu": 1000, "memory": "9Ti"}}}]}, a_node())
