"""What DeviceClasses choose: comparisons that all have to hold are understood, and nothing else is guessed at."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.devices import amd_gpu, nvidia_gpu, slice_object

from trimtab import names
from trimtab.kube.objects import DeviceClassObject, SliceDevice
from trimtab.observe.device_selectors import LONGEST, Undecided, chooses, class_asked_by, terms
from trimtab.observe.devices import DeviceInventory
from trimtab.observe.gpus import NodeGpus, Obstacle

DOMAIN = names.NVIDIA_DRIVER
ATTRIBUTES = f"device.attributes['{DOMAIN}']"
USUAL = f"device.driver == '{DOMAIN}' && {ATTRIBUTES}.type == 'gpu'"
"""Of NVIDIA's chart."""


def device(**attributes: Any) -> SliceDevice:
    made = nvidia_gpu(0)
    made["attributes"] |= attributes
    return msgspec.convert(made, SliceDevice)


def device_class(*expressions: str, name: str = DOMAIN, created: str = "", resource: str = "") -> DeviceClassObject:
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": each}} for each in expressions]}
    spec |= {"extendedResourceName": resource} if resource else {}
    meta = {"name": name} | ({"creationTimestamp": created} if created else {})
    return msgspec.convert({"metadata": meta, "spec": spec}, DeviceClassObject)


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        (USUAL, True),
        (USUAL.replace("'", '"'), True),
        (f"  {USUAL}  ", True),
        (f"device.driver == '{names.AMD_DRIVER}'", False),
        (f"device.driver != '{names.AMD_DRIVER}'", True),
        (f"{ATTRIBUTES}.type != 'mig'", True),
        (f"{ATTRIBUTES}.type in ['mig', \"gpu\"]", True),
        (f"{ATTRIBUTES}.type in ['mig']", False),
        (f"{ATTRIBUTES}.slot == 3 && {ATTRIBUTES}.spare == false", True),
        (f"{ATTRIBUTES}.slot >= 4", False),
        (f"{ATTRIBUTES}.slot < 4", True),
        ("device.attributes['example.com'].rack == 'a'", True),
        (f"device.capacity['{DOMAIN}'].memory.compareTo(quantity('40Gi')) >= 0", True),
        (f"device.capacity['{DOMAIN}'].memory.compareTo(quantity('90Gi')) >= 0", False),
        (f"{ATTRIBUTES}.productName == 'a && b'", False),
    ],
)
def test_comparisons_are_understood(expression: str, chosen: bool) -> None:
    own = {"slot": {"int": 3}, "spare": {"bool": False}, "example.com/rack": {"string": "a"}}
    assert chooses(device_class(expression), DOMAIN, device(**own)) is chosen


@pytest.mark.parametrize(
    "expression",
    [
        f"{USUAL} || true",
        f"!({USUAL})",
        f"({USUAL})",
        "true",
        "",
        f"{ATTRIBUTES}.type.startsWith('g')",
        f"'type' in {ATTRIBUTES} && {ATTRIBUTES}.type == 'gpu'",
        f"{ATTRIBUTES}.absent == 'x'",  # an error in CEL
        "device.attributes['example.com'].type == 'gpu'",
        f"{ATTRIBUTES}.type == 3",
        f"{ATTRIBUTES}.type in 'gpu'",
        f"{ATTRIBUTES}.cudaComputeCapability.compareTo(semver('9.0.0')) >= 0",
        f"device.capacity['{DOMAIN}'].memory.compareTo(quantity('lots')) >= 0",
        f"device.capacity['{DOMAIN}'].memory.compareTo(quantity('40Gi')) >= 1",
        f"device.capacity['{DOMAIN}'].cores.compareTo(quantity('1')) >= 0",
        USUAL + " && ",
        USUAL + " " * LONGEST,
    ],
)
def test_of_anything_else_nothing_is_guessed(expression: str) -> None:
    with pytest.raises(Undecided):
        chooses(device_class(expression), DOMAIN, device())


def test_what_one_selector_refuses_is_refused_whatever_the_others_say() -> None:
    assert chooses(device_class(), DOMAIN, device())
    assert not chooses(device_class("true", f"{ATTRIBUTES}.type == 'mig'"), DOMAIN, device())
    with pytest.raises(Undecided):
        chooses(device_class("true", USUAL), DOMAIN, device())


@given(st.text(alphabet="device.attributes['g']==!&| \"in[]", max_size=60))
def test_no_text_breaks_the_reading(text: str) -> None:
    with contextlib.suppress(Undecided):
        assert all(term.how for term in terms(text))


def test_the_youngest_class_stands_behind_an_extended_resource() -> None:
    old = device_class(name="a", created="2026-01-01T00:00:00Z", resource=names.NVIDIA_GPU)
    new = device_class(name="b", created="2026-02-01T00:00:00Z", resource=names.NVIDIA_GPU)
    plain = device_class()
    assert class_asked_by(names.NVIDIA_GPU, DOMAIN, [new, old, plain]) is new
    assert class_asked_by(names.NVIDIA_GPU, DOMAIN, [plain]) is plain
    assert class_asked_by(names.NVIDIA_GPU, DOMAIN, [device_class(name="other")]) is None


def described(*expressions: str, gpus: int = 8) -> NodeGpus:
    devices = [nvidia_gpu(index) for index in range(gpus)]
    asked = device_class(*expressions, resource=names.NVIDIA_GPU)
    found = DeviceInventory([slice_object("n1", devices)], [asked]).gpus("n1")
    assert found
    return found


def test_gpus_that_the_class_does_not_choose_do_not_count_and_are_named() -> None:
    gpus = described(USUAL, f"{ATTRIBUTES}.uuid != '{device().attributes['uuid'].string}'")
    assert (gpus.count, gpus.withdrawn) == (7, 0)
    [(reason, told)] = gpus.remarks
    assert reason == "OutsideDeviceClass"
    assert "gpu-0" in told


def test_a_class_that_chooses_nothing_of_a_node_is_its_obstacle() -> None:
    gpus = described(f"{ATTRIBUTES}.type == 'mig'")
    assert (gpus.count, gpus.spec, gpus.obstacle) == (0, None, Obstacle.NO_DEVICE_CLASS)
    assert "chooses none" in gpus.unusable


def test_a_class_that_is_not_understood_is_taken_to_choose_all_and_that_is_told() -> None:
    gpus = described(f"{ATTRIBUTES}.productName.contains('H100')")
    assert gpus.count == 8
    assert [reason for reason, _ in gpus.remarks] == ["DeviceClassNotUnderstood"]


def test_amds_class_is_understood() -> None:
    made = slice_object("n1", [amd_gpu(index) for index in range(8)], driver=names.AMD_DRIVER)
    asked = device_class(f"device.driver == '{names.AMD_DRIVER}'", name=names.AMD_DRIVER)
    found = DeviceInventory([made], [asked]).gpus("n1")
    assert found
    assert (found.count, found.remarks) == (8, ())
