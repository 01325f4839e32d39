"""GPU nodes and agents: what labels, device plugins and reports say, and where they contradict one another."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.builders import H100, gpunode_object, node_object
from tests.devices import bare_node, device_class, nvidia_gpu, slice_object
from tests.doctor.world import healthy, only, pod, time_at, wrong

from trimtab import names
from trimtab.doctor.checks import agents, nodes
from trimtab.doctor.findings import Finding, Reason, Severity
from trimtab.doctor.inventory import Unknown
from trimtab.kube.objects import NodeObject

GOOD = node_object("good")


def bare(
    name: str = "bare", *, capacity: dict[str, str] | None = None, labels: dict[str, str] | None = None
) -> NodeObject:
    """A node that offers no GPUs."""
    raw = {"metadata": {"name": name, "labels": labels or {}}, "status": {"capacity": capacity or {}}}
    return msgspec.convert(raw, NodeObject)


def beside_a_good_one(node: NodeObject) -> list[Finding]:
    return wrong(nodes.labels, healthy(nodes=(GOOD, node)))


@pytest.mark.parametrize(
    ("node", "reason", "told"),
    [
        (node_object("x", None), Reason.UNLABELLED, "no label names the GPU product"),
        (
            node_object("x", None, labels={"nvidia.com/gpu.product": "NVIDIA-Z9000"}),
            Reason.UNKNOWN_PRODUCT,
            "its memory is not known",
        ),
        (
            node_object("x", None, labels={"nvidia.com/gpu.product": "NVIDIA-Z9000", "nvidia.com/gpu.memory": "81920"}),
            Reason.UNKNOWN_PRODUCT,
            "estimated",
        ),
        (bare("x", labels={"nvidia.com/gpu.present": "true"}), Reason.NO_DEVICE_PLUGIN, "device plugin"),
        (bare("x", labels={"amd.com/gpu.product-name": "MI300X"}), Reason.NO_DEVICE_PLUGIN, "device plugin"),
        (bare("x", capacity={"nvidia.com/gpu": "8"}), Reason.NO_DEVICE_PLUGIN, "device plugin"),
        (node_object("x", allocatable={names.NVIDIA_GPU: "0"}), Reason.NO_DEVICE_PLUGIN, "is 0"),
        (node_object("x", labels={"nvidia.com/gpu.count": "7"}), Reason.COUNTS_DISAGREE, "has 8 nvidia.com/gpu"),
        (node_object("x", labels={"nvidia.com/gpu.memory": "much"}), Reason.BAD_LABEL, "'much' is no amount"),
        (node_object("x", allocatable={names.NVIDIA_GPU: "many"}), Reason.UNUSABLE, "is no quantity"),
    ],
)
def test_each_fault_has_its_reason(node: NodeObject, reason: Reason, told: str) -> None:
    (finding,) = beside_a_good_one(node)
    assert (finding.level, finding.reason) == (Severity.WARNING, reason)
    assert told in finding.message
    assert finding.objects == ("Node/x",)


BY_DEVICES = {"slices": (slice_object("dra"),), "device_classes": (device_class(),)}
DIRECT = pod("controller", containers=[{"env": [{"name": "TRIMTAB_BINDING__MODE", "value": "Direct"}]}])
LOST = {"key": "gpu.nvidia.com/gpu-lost", "effect": "NoSchedule"}


def test_gpus_that_come_by_resource_slices_are_understood() -> None:
    seen = healthy(nodes=(GOOD, bare_node("dra")), **BY_DEVICES)
    assert not wrong(nodes.labels, seen)
    (finding,) = nodes.labels(seen)
    assert finding.message == "2 GPU nodes understood"


@pytest.mark.parametrize(
    ("changes", "reason", "told"),
    [
        ({"pods": (DIRECT,)}, Reason.DEVICES_NOT_ALLOCATED, "only kube-scheduler does"),
        ({"device_classes": ()}, Reason.NO_DEVICE_CLASS, "no DeviceClass gpu.nvidia.com"),
        ({"slices": (slice_object("dra", count=2),)}, Reason.UNUSABLE, "1 of 2 ResourceSlices"),
        (
            {"slices": (slice_object("dra", [nvidia_gpu(0, taints=[LOST]), nvidia_gpu(1)]),)},
            Reason.GPUS_WITHDRAWN,
            "gpu.nvidia.com/gpu-lost:NoSchedule",
        ),
    ],
)
def test_what_keeps_them_from_being_used_has_its_reason(changes: dict[str, Any], reason: Reason, told: str) -> None:
    (finding,) = wrong(nodes.labels, healthy(nodes=(GOOD, bare_node("dra")), **(BY_DEVICES | changes)))
    assert finding.reason is reason
    assert told in finding.message
    assert finding.objects == ("Node/dra",)


def test_objects_that_cannot_be_read_are_named() -> None:
    (finding,) = wrong(nodes.labels, healthy(unreadable=("resourceslices a", "resourceslices b")))
    assert finding.message.startswith("resourceslices a, resourceslices b cannot be read")


def test_nodes_of_one_type_that_offer_gpus_in_two_ways_are_told() -> None:
    by_class = {"slices": (slice_object("dra"),), "device_classes": (device_class(resource=""),)}
    plugins = tuple(node_object(name, H100) for name in ("a", "b"))
    seen = healthy(nodes=(*plugins, bare_node("dra")), **by_class)
    (finding,) = wrong(nodes.labels, seen)
    assert (finding.reason, finding.objects) == (Reason.RESOURCES_MIXED, ("Node/dra",))


def test_gpus_that_the_plugin_took_away_are_counted() -> None:
    some = node_object("x", allocatable={names.NVIDIA_GPU: "6"})
    some = replace(some, status=replace(some.status, capacity={names.NVIDIA_GPU: "8"}))
    (finding,) = beside_a_good_one(some)
    assert finding.reason is Reason.GPUS_WITHDRAWN
    assert "2 of 8 GPUs" in finding.message
    none = replace(some, status=replace(some.status, allocatable={names.NVIDIA_GPU: "0"}))
    assert [each.reason for each in beside_a_good_one(none)] == [Reason.GPUS_WITHDRAWN]


def test_the_same_fault_of_many_nodes_is_told_once() -> None:
    many = tuple(node_object(f"gpu-{index}", None) for index in range(1000))
    (finding,) = wrong(nodes.labels, healthy(nodes=(GOOD, *many)))
    assert finding.message.startswith("gpu-[0-999]: no label")
    assert len(finding.objects) == 1000


def test_nodes_that_are_partitioned_on_purpose_are_no_fault() -> None:
    shared = node_object("x", None, labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED"})
    finding = only(nodes.labels, healthy(nodes=(GOOD, shared)))
    assert finding.level is Severity.OK
    assert finding.message == "1 GPU node understood, 1 more are partitioned or shared and left alone"


def test_no_usable_node_at_all_is_an_error_and_none_with_gpus_a_warning() -> None:
    found = wrong(nodes.labels, healthy(nodes=(node_object("x", None),)))
    assert [(each.level, each.reason) for each in found] == [
        (Severity.ERROR, Reason.NO_USABLE_NODES), (Severity.WARNING, Reason.UNLABELLED),
    ]  # fmt: skip
    (none,) = wrong(nodes.labels, healthy(nodes=(bare(),)))
    assert none.reason is Reason.NO_GPU_NODES


def report(name: str = "n1", age: float = 10.0, **changes: Any) -> Any:
    return gpunode_object(name, **{"observedTime": time_at(-age), **changes})


def test_agents_are_optional_but_not_on_some_nodes_only() -> None:
    assert only(agents.reports, healthy(reports=(), pods=())).level is Severity.OK
    (finding,) = wrong(agents.reports, healthy(nodes=(GOOD, node_object("n1"))))
    assert finding.reason is Reason.AGENT_MISSING
    assert finding.objects == ("Node/good",)
    (running,) = wrong(agents.reports, healthy(reports=()))
    assert running.reason is Reason.AGENT_MISSING


@pytest.mark.parametrize(("age", "stale"), [(89.0, False), (91.0, True), (-500.0, False)])
def test_a_report_is_stale_after_three_periods(age: float, stale: bool) -> None:
    found = wrong(agents.reports, healthy(reports=(report(age=age),)))
    assert [each.reason for each in found] == ([Reason.AGENT_STALE] if stale else [])


def test_a_report_that_the_controller_calls_stale_is_stale() -> None:
    judged = {
        "type": "Healthy",
        "status": "Unknown",
        "reason": "StaleReadings",
        "message": "",
        "lastTransitionTime": time_at(),
    }
    (finding,) = wrong(agents.reports, healthy(reports=(report(conditions=[judged]),)))
    assert finding.reason is Reason.AGENT_STALE


def test_an_agent_that_cannot_read_says_why() -> None:
    (finding,) = wrong(agents.reports, healthy(reports=(report(gpus=[], error="NVML: driver mismatch"),)))
    assert finding.reason is Reason.AGENT_BLIND
    assert "n1 says: NVML: driver mismatch" in finding.message


def test_agents_of_another_version_are_told_by_node() -> None:
    others = tuple(pod("agent", f"a{index}", version="0.0.9", nodeName=f"gpu-{index}") for index in range(3))
    (finding,) = wrong(agents.reports, healthy(pods=others))
    assert finding.reason is Reason.VERSION_DIFFERS
    assert finding.message.endswith("0.0.9 on gpu-[0-2]")


def test_without_a_right_to_pods_reports_are_judged_all_the_same() -> None:
    assert only(agents.reports, healthy(pods=Unknown("this user may not"))).level is Severity.OK
