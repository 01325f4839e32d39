"""One node's facts: room, place in the network, and why it takes no pods."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import node_object

from trimtab.observe.nodes import CLIQUE_LABEL, NodeFacts, facts

LEVELS = (("zone",), ("block", "cloud-block"), ("rack",))


def known(**changes: Any) -> NodeFacts:
    found = facts(node_object("n1", **changes), LEVELS)
    assert found
    return found


def test_a_node_without_gpus_is_none_of_ours() -> None:
    assert facts(node_object("n1", None, allocatable={"nvidia.com/gpu": None}), LEVELS) is None


def test_room_is_what_the_kubelet_offers() -> None:
    node = known(allocatable={"cpu": "127500m", "memory": "64Gi", "pods": "30"})
    assert (node.gpus, node.cpu_milli, node.memory, node.pods) == (8, 127_500, 64 << 30, 30)
    assert (node.unavailable, node.ready, node.problems) == ("", True, ())


def test_a_node_that_does_not_say_has_the_usual_number_of_pod_slots() -> None:
    assert known(allocatable={"pods": None}).pods == 110


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ready": "False"}, "NotReady"),
        ({"ready": "Unknown"}, "NotReady"),
        ({"spec": {"unschedulable": True}}, "cordoned"),
        ({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}, "being deleted"),
        ({"allocatable": {"nvidia.com/gpu": "0"}}, "allocatable nvidia.com/gpu is 0: "),
        ({"allocatable": {"memory": "much"}}, "status.allocatable: 'much' is no quantity"),
        ({"labels": {"nvidia.com/gpu.product": None}}, "no label names the GPU product"),
    ],
)
def test_why_a_node_takes_no_pods(changes: dict[str, Any], why: str) -> None:
    assert known(**changes).unavailable.startswith(why)


def test_what_somebody_should_mend_is_a_problem_with_a_reason_of_its_own() -> None:
    assert [problem.reason for problem in known(labels={"nvidia.com/gpu.memory": "x"}).problems] == ["MalformedLabel"]
    assert [problem.reason for problem in known(allocatable={"memory": "much"}).problems] == ["MalformedAllocatable"]
    [unusable] = known(allocatable={"nvidia.com/gpu": "0"}).problems
    assert (unusable.kind, unusable.name, unusable.uid, unusable.reason) == ("Node", "n1", "node-n1", "UnusableGpus")


def test_a_cordon_is_no_problem() -> None:
    assert known(spec={"unschedulable": True}).problems == ()


def test_topology_is_read_level_by_level_and_the_first_key_wins() -> None:
    assert known(labels={"zone": "z", "block": "b", "cloud-block": "c", "rack": "r"}).topology == ("z", "b", "r")
    assert known(labels={"zone": "z", "cloud-block": "c", "rack": "r"}).topology == ("z", "c", "r")


def test_levels_that_a_node_lacks_are_empty_or_left_off() -> None:
    assert known(labels={"zone": "z", "rack": "r"}).topology == ("z", "", "r")
    assert known(labels={"zone": "z"}).topology == ("z",)
    assert known().topology == ()


def test_the_nvlink_clique_is_the_link_domain() -> None:
    assert known(labels={CLIQUE_LABEL: "cluster.3"}).link_domain == "cluster.3"
