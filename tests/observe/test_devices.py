"""GPUs that come by dynamic resource allocation: what the real drivers publish, and what they must never publish."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import H100
from tests.devices import (
    H100_NAME,
    amd_gpu,
    claim_object,
    device_class,
    nvidia_gpu,
    nvidia_mig,
    slice_object,
    taint_rule,
)

from trimtab import names
from trimtab.kube.objects import DeviceClassObject, ResourceClaimObject, ResourceSliceObject
from trimtab.observe.devices import MOST_DEVICES, MOST_SHARED, DeviceInventory
from trimtab.observe.gpus import MOST_GPUS, NodeGpus, Obstacle

EIGHT = [nvidia_gpu(index) for index in range(8)]


def described(*slices: ResourceSliceObject, classes: tuple[DeviceClassObject, ...] = (device_class(),)) -> NodeGpus:
    gpus = DeviceInventory(slices, classes).gpus("n1")
    assert gpus
    assert (gpus.spec is None) == bool(gpus.unusable) == (gpus.obstacle is not None)
    return gpus


def obstacle(*slices: ResourceSliceObject, **changes: Any) -> tuple[Obstacle | None, str]:
    gpus = described(*slices, **changes)
    return gpus.obstacle, gpus.unusable


# --- as they should be ---------------------------------------------------------------------------------------------
def test_nvidia_as_its_driver_publishes_it() -> None:
    gpus = described(slice_object("n1"))
    assert gpus.spec
    assert (gpus.spec.name, gpus.resource, gpus.count, gpus.remarks) == (H100, names.NVIDIA_GPU, 8, ())


def test_amd_as_its_driver_publishes_it_is_asked_for_by_its_class() -> None:
    slices = slice_object("n1", [amd_gpu(index) for index in range(8)], driver=names.AMD_DRIVER)
    gpus = described(slices, classes=(device_class(names.AMD_DRIVER, ""),))
    assert gpus.spec
    assert (gpus.spec.name, gpus.count) == ("MI300X", 8)
    assert gpus.resource == "deviceclass.resource.kubernetes.io/gpu.amd.com"


def test_attributes_may_name_the_domain_of_their_driver() -> None:
    qualified = [
        {**gpu, "attributes": {k if "/" in k else f"gpu.nvidia.com/{k}": v for k, v in gpu["attributes"].items()}}
        for gpu in EIGHT
    ]
    assert described(slice_object("n1", qualified)) == described(slice_object("n1"))


def test_a_product_that_the_catalogue_lacks_is_estimated_from_memory_and_compute_capability() -> None:
    gpus = described(slice_object("n1", [nvidia_gpu(0, "NVIDIA Z900", "96Gi")]))
    assert gpus.spec
    assert (gpus.spec.name, gpus.spec.architecture, gpus.spec.memory_bytes) == ("NVIDIA Z900", "Hopper", 96 << 30)
    assert [reason for reason, _ in gpus.remarks] == ["UnknownGpuProduct"]


def test_a_pool_in_several_slices_counts_when_all_are_there() -> None:
    halves = [slice_object("n1", EIGHT[:4], count=2), slice_object("n1", EIGHT[4:], count=2, number=1)]
    assert described(*halves).count == 8
    why, told = obstacle(halves[0])
    assert why is Obstacle.UNREADABLE
    assert "1 of 2 ResourceSlices are there" in told


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    old, new = slice_object("n1", EIGHT), slice_object("n1", EIGHT[:7], generation=2)
    assert described(old, new).count == described(new, old).count == 7
    half = slice_object("n1", EIGHT[:4], generation=3, count=2)
    assert obstacle(old, new, half)[0] is Obstacle.UNREADABLE, "who is about to write the third has given up the second"


# --- as they come when something is wrong ----------------------------------------------------------------------------
def test_tainted_gpus_take_no_pods_and_are_told_by_name() -> None:
    lost = {"key": "gpu.nvidia.com/gpu-lost", "effect": "NoSchedule"}
    only_told = {"key": "gpu.nvidia.com/unmonitored", "effect": "None"}
    devices = [nvidia_gpu(0, taints=[only_told]), nvidia_gpu(1, taints=[lost]), *EIGHT[2:]]
    gpus = described(slice_object("n1", devices))
    assert (gpus.count, gpus.withdrawn) == (7, 1)
    [(reason, message)] = gpus.remarks
    assert reason == "TaintedDevice"
    assert "gpu-1 (GPU-00000001-0000-0000-0000-000000000000): gpu.nvidia.com/gpu-lost:NoSchedule" in message


@pytest.mark.parametrize(
    ("selector", "sound"),
    [
        ({"driver": names.NVIDIA_DRIVER, "pool": "n1", "device": "gpu-3"}, 7),
        ({"pool": "n1", "device": "gpu-3"}, 7),
        ({"device": "gpu-3"}, 7),
        ({"pool": "n1"}, 0),
        ({}, 0),  # the empty selector matches all devices
        ({"pool": "n2"}, 8),
        ({"driver": names.AMD_DRIVER}, 8),
        ({"pool": "n1", "device": "gpu-9"}, 8),
    ],
)
def test_a_taint_rule_takes_the_gpus_that_it_selects(selector: dict[str, str], sound: int) -> None:
    gpus = DeviceInventory([slice_object("n1")], [device_class()], rules=[taint_rule(**selector)]).gpus("n1")
    assert gpus
    assert (gpus.count, gpus.withdrawn) == (sound, 8 - sound)
    told = gpus.unusable if not sound else "".join(text for _, text in gpus.remarks)
    assert ("DeviceTaintRule broken" in told) == (sound < 8)


def test_a_taint_rule_that_only_tells_or_selects_nothing_takes_no_gpu() -> None:
    selectorless = msgspec.structs.replace(
        taint_rule(), spec=msgspec.structs.replace(taint_rule().spec, device_selector=None)
    )
    rules = [taint_rule(effect=names.DEVICE_TAINT_FREE), selectorless]
    gpus = DeviceInventory([slice_object("n1")], [device_class()], rules=rules).gpus("n1")
    assert gpus
    assert gpus.count == 8


def test_a_rule_that_comes_or_goes_is_seen_though_no_slice_has_changed() -> None:
    slices, classes = [slice_object("n1")], [device_class()]
    counts, before = [], None
    for rules in ([], [taint_rule(pool="n1", device="gpu-0")], []):
        before = DeviceInventory(slices, classes, before, rules)
        gpus = before.gpus("n1")
        assert gpus
        counts.append(gpus.count)
    assert counts == [8, 7, 8]


def test_a_node_whose_gpus_are_all_tainted_has_none_to_give() -> None:
    xid = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute"}
    gpus = described(slice_object("n1", [nvidia_gpu(index, taints=[xid]) for index in range(2)]))
    assert (gpus.obstacle, gpus.withdrawn) == (Obstacle.NONE_ALLOCATABLE, 2)
    assert "gpu.nvidia.com/xid=79:NoExecute" in gpus.unusable


@pytest.mark.parametrize(
    ("devices", "why", "said"),
    [
        ([nvidia_mig(0, part) for part in range(7)], Obstacle.SLICED, "only parts of its GPUs"),
        ([nvidia_gpu(0), nvidia_gpu(1, "NVIDIA H200")], Obstacle.MIXED, "1 × NVIDIA H200"),
        ([nvidia_gpu(0, "")], Obstacle.NO_PRODUCT, "does not name the product"),
        ([nvidia_gpu(0, "x" * 65)], Obstacle.NO_PRODUCT, "does not name the product"),
        ([nvidia_gpu(0, "NVIDIA Z900", "-1")], Obstacle.UNKNOWN_PRODUCT, "no usable capacity memory"),
        ([nvidia_gpu(0, "NVIDIA Z900", "1Ei")], Obstacle.UNKNOWN_PRODUCT, "no usable capacity memory"),
        ([nvidia_gpu(0), nvidia_gpu(0)], Obstacle.UNREADABLE, "several devices of the name 'gpu-0'"),
        ([nvidia_gpu(0), nvidia_gpu(0, name="gpu-1")], Obstacle.UNREADABLE, "several GPUs of the UUID GPU-00000000"),
        ([nvidia_gpu(i) for i in range(MOST_GPUS + 1)], Obstacle.UNREADABLE, "no machine more than 1024"),
        ([nvidia_mig(0, i) for i in range(MOST_DEVICES + 1)], Obstacle.UNREADABLE, "more than any machine"),
    ],
)
def test_what_cannot_be_used_is_told(devices: list[dict[str, Any]], why: Obstacle, said: str) -> None:
    found, told = obstacle(slice_object("n1", devices))
    assert found is why
    assert said in told


def test_a_device_that_would_be_a_part_of_every_gpu_costs_its_node_and_no_time() -> None:
    shared = [{"counterSet": "all", "counters": {}}]
    gpus = [nvidia_gpu(index, consumesCounters=shared) for index in range(MOST_SHARED + 1)]
    parts = [nvidia_mig(0, index) | {"consumesCounters": shared} for index in range(3)]
    found, told = obstacle(slice_object("n1", [*gpus, *parts]))
    assert found is Obstacle.UNREADABLE
    assert f"a part of more than {MOST_SHARED} GPUs" in told
    assert obstacle(slice_object("n1", [*gpus[1:], *parts]))[0] is None


def test_without_a_device_class_nobody_can_ask_for_them() -> None:
    found, told = obstacle(slice_object("n1"), classes=())
    assert found is Obstacle.NO_DEVICE_CLASS
    assert "no DeviceClass gpu.nvidia.com" in told
    named = described(slice_object("n1"), classes=(device_class(resource=""),))
    assert named.resource == "deviceclass.resource.kubernetes.io/gpu.nvidia.com"
    other = described(slice_object("n1"), classes=(device_class("whole-gpus"),))
    assert other.resource == names.NVIDIA_GPU, "whatever the class is called that has the resource"


def test_what_one_node_says_of_the_pool_of_another_changes_nothing_there() -> None:
    hostile = slice_object("n2", EIGHT[:1], pool="n1", generation=9, count=5)
    inventory = DeviceInventory([slice_object("n1"), hostile], [device_class()])
    assert (mine := inventory.gpus("n1"))
    assert mine.count == 8
    assert (its := inventory.gpus("n2"))
    assert its.obstacle is Obstacle.UNREADABLE


def test_devices_of_other_drivers_and_of_no_single_node_are_left_alone() -> None:
    network = slice_object("n1", [{"name": "nic-0"}], driver="dra.net")
    shared = msgspec.structs.replace(
        slice_object("n1"), spec=msgspec.structs.replace(slice_object("n1").spec, node_name="")
    )
    assert DeviceInventory([network, shared], [device_class()]).gpus("n1") is None


def test_a_node_is_read_again_only_when_something_of_it_changes() -> None:
    one, two = slice_object("n1"), slice_object("n2")
    before = DeviceInventory([one, two], [device_class()])
    known = before.gpus("n1"), before.gpus("n2")
    after = DeviceInventory([one, slice_object("n2", EIGHT[:3], generation=2)], [device_class()], before)
    assert after.gpus("n1") is known[0]
    assert (changed := after.gpus("n2"))
    assert changed.count == 3
    classless = DeviceInventory([one, two], [], before).gpus("n1")
    assert classless
    assert classless.obstacle is Obstacle.NO_DEVICE_CLASS


# --- who holds what --------------------------------------------------------------------------------------------------
def held(slices: list[ResourceSliceObject], *claims: ResourceClaimObject) -> list[tuple[str, list[str]]]:
    holdings = DeviceInventory(slices, [device_class()]).holdings(claims)
    return sorted((each.node, sorted(each.consumers)) for each in holdings for _ in range(each.gpus))


def test_an_allocated_claim_holds_its_devices_for_the_pods_that_it_is_reserved_for() -> None:
    claims = claim_object("a", "n1", ["gpu-0", "gpu-1"], "pod-a"), claim_object("b", "n2", ["gpu-0"])
    assert held([slice_object("n1"), slice_object("n2")], *claims) == [("n1", ["pod-a"]), ("n1", ["pod-a"]), ("n2", [])]


def test_a_claim_that_kube_scheduler_made_for_a_pod_is_that_pods_before_it_is_reserved() -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "pod-a", "controller": True}
    claim = claim_object("a", "n1", ["gpu-0"], metadata={"ownerReferences": [owner]})
    assert held([slice_object("n1")], claim) == [("n1", ["pod-a"])]


def test_a_gpu_that_several_hold_is_held_once_and_by_all() -> None:
    claims = claim_object("a", "n1", ["gpu-0"], "pod-a"), claim_object("b", "n1", ["gpu-0"], "pod-b")
    assert held([slice_object("n1")], *claims) == [("n1", ["pod-a", "pod-b"])]


def test_whoever_holds_a_part_of_a_gpu_holds_the_gpu() -> None:
    whole = nvidia_gpu(0, consumesCounters=[{"counterSet": "gpu-0-counter-set", "counters": {}}])
    virtual = {"name": "gpu-vfio-1", "attributes": {"type": {"string": "vfio"}}}
    virtual["attributes"] |= {"resource.kubernetes.io/pciBusID": {"string": "0000:01:00.0"}}  # type: ignore[operator]
    slices = [slice_object("n1", [whole, nvidia_gpu(1), nvidia_mig(0, 0), nvidia_mig(0, 1), virtual])]
    parts = [claim_object(f"part-{i}", "n1", [f"gpu-0-mig-1g10gb-19-{i}"], f"pod-{i}") for i in range(2)]
    assert held(slices, *parts) == [("n1", ["pod-0", "pod-1"])]
    assert held(slices, claim_object("vm", "n1", ["gpu-vfio-1"], "pod-vm")) == [("n1", ["pod-vm"])]


def test_who_only_looks_holds_nothing_and_devices_that_are_gone_are_not_held() -> None:
    admin = claim_object("monitor", "n1", ["gpu-0"], "pod-monitor", admin=True)
    gone = claim_object("gone", "n1", ["gpu-99"], "pod-gone")
    waiting = msgspec.convert({"metadata": {"name": "waits", "uid": "w"}, "spec": {}}, ResourceClaimObject)
    assert held([slice_object("n1")], admin, gone, waiting) == []


# --- whatever they say -----------------------------------------------------------------------------------------------
TEXTS = st.sampled_from(["", "gpu", "mig", "amdgpu", H100_NAME, "x" * 80, "GPU-1", "9.0.0", "9.x"])
DEVICES = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["gpu-0", "gpu-1", "gpu-2", "part-0"]),
        "attributes": st.dictionaries(
            st.sampled_from(["type", "productName", "uuid", "gpu.nvidia.com/type", "cudaComputeCapability"]),
            st.one_of(TEXTS.map(lambda text: {"string": text}), st.just({"int": 3}), st.just({"bool": True})),
        ),
        "capacity": st.dictionaries(
            st.just("memory"), st.sampled_from(["80Gi", "0", "-5", "nonsense", "9E"]).map(lambda text: {"value": text})
        ),
        "taints": st.lists(st.fixed_dictionaries({"key": TEXTS, "effect": st.sampled_from(["None", "NoExecute"])})),
    }
)
POOLS = st.fixed_dictionaries(
    {
        "devices": st.lists(DEVICES, max_size=4),
        "driver": st.sampled_from([names.NVIDIA_DRIVER, names.AMD_DRIVER]),
        "pool": st.sampled_from(["n1", "other"]),
        "generation": st.integers(0, 2),
        "count": st.integers(1, 2),
    }
)


@given(st.lists(POOLS, max_size=5), st.randoms(use_true_random=False))
def test_whatever_drivers_say_a_node_never_has_more_than_they_name_and_order_says_nothing(
    pools: list[dict[str, Any]], order: random.Random
) -> None:
    slices = [slice_object("n1", **pool, number=number) for number, pool in enumerate(pools)]
    mixed = list(slices)
    order.shuffle(mixed)
    found = DeviceInventory(slices, [device_class()]).gpus("n1")
    again = DeviceInventory(mixed, [device_class()]).gpus("n1")
    named = {(each.spec.driver, each.spec.pool.name, device.name) for each in slices for device in each.spec.devices}
    if found is None:
        assert again is None
        return
    assert again
    assert (found.spec is None) == bool(found.unusable) == (found.obstacle is not None)
    assert 0 <= found.count + found.withdrawn <= len(named)
    assert (found.spec, found.resource, found.count) == (again.spec, again.resource, again.count)


@given(st.lists(st.lists(st.sampled_from([f"gpu-{i}" for i in range(10)]), max_size=5), max_size=5))
def test_no_gpu_is_held_twice(wanted: list[list[str]]) -> None:
    claims = [claim_object(f"c{i}", "n1", devices, f"pod-{i}") for i, devices in enumerate(wanted)]
    real = {device for devices in wanted for device in devices} & {f"gpu-{i}" for i in range(8)}
    assert len(held([slice_object("n1")], *claims)) == len(real)
