"""NVLink between nodes: whose the IMEX session of a node is, as far as the API shows it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.devices import slice_object
from tests.doctor.world import healthy, pod, time_at, wrong

from trimtab import names
from trimtab.doctor.checks import imex
from trimtab.doctor.findings import Reason, Severity
from trimtab.doctor.inventory import ComputeDomain, Pod
from trimtab.kube.objects import ResourceSliceObject


def driver(node: str, *kinds: str) -> ResourceSliceObject:
    """What the driver of ComputeDomains publishes on a node."""
    devices = [{"name": f"{kind}-0", "attributes": {"type": {"string": kind}}} for kind in kinds]
    return slice_object(node, devices, driver=names.COMPUTE_DOMAIN_DRIVER)


def plugin(node: str, channels: str = "") -> Pod:
    env = [{"name": imex.STATIC_CHANNELS, "value": channels}] if channels else []
    return pod("plugin", f"plugin-{node}", nodeName=node, containers=[{"env": env}])


def domain(age: float = 1000.0, **daemons: str) -> ComputeDomain:
    """A ComputeDomain that was made so many seconds ago, with daemons on these nodes."""
    raw: dict[str, Any] = {
        "metadata": {"name": "linked-1", "namespace": "default", "creationTimestamp": time_at(-age)},
        "status": {"status": "NotReady", "nodes": [{"name": name, "status": said} for name, said in daemons.items()]},
    }
    return msgspec.convert(raw, ComputeDomain)


BOTH = ("daemon", "channel")


def test_a_driver_that_is_alone_on_its_nodes_is_well() -> None:
    seen = healthy(
        slices=(driver("t1", *BOTH), driver("t2", *BOTH)),
        device_plugins=(plugin("t1"), plugin("t2")),
        compute_domains=(domain(t1="Ready", t2="Ready"),),
    )
    (finding,) = imex.sessions(seen)
    assert (finding.level, finding.message) == (Severity.OK, "2 nodes with daemons for ComputeDomains")


def test_where_there_is_no_such_driver_nothing_is_wrong() -> None:
    assert wrong(imex.sessions, healthy()) == []
    assert wrong(imex.sessions, healthy(device_plugins=(plugin("t1", "0"),))) == [], "static IMEX alone is fine"


def test_channels_of_the_device_plugin_beside_daemons_of_the_driver_are_a_finding_with_the_nodes() -> None:
    slices = (driver("t1", *BOTH), driver("t2", *BOTH))
    (finding,) = wrong(imex.sessions, healthy(slices=slices, device_plugins=(plugin("t1", "0"), plugin("t2"))))
    assert (finding.reason, finding.objects) == (Reason.STATIC_IMEX, ("Node/t1",))


def test_a_driver_that_uses_the_nodes_own_service_starts_no_daemons_and_is_fine() -> None:
    seen = healthy(slices=(driver("t1", "channel"),), device_plugins=(plugin("t1", "0"),))
    assert wrong(imex.sessions, seen) == []


@pytest.mark.parametrize(
    ("age", "said", "told"), [(1000, "NotReady", True), (60, "NotReady", False), (1000, "Ready", False)]
)
def test_a_daemon_that_does_not_become_ready_is_told_after_a_while(age: float, said: str, told: bool) -> None:
    seen = healthy(
        slices=(driver("t1", *BOTH), driver("t2", *BOTH)), compute_domains=(domain(age, t1="Ready", t2=said),)
    )
    found = wrong(imex.sessions, seen)
    assert [each.reason for each in found] == ([Reason.IMEX_DAEMON_NOT_READY] if told else [])
    assert all(each.objects == ("Node/t2",) for each in found)


def test_a_node_is_told_of_once() -> None:
    seen = healthy(
        slices=(driver("t1", *BOTH),), device_plugins=(plugin("t1", "0,1"),), compute_domains=(domain(t1="NotReady"),)
    )
    assert [each.reason for each in wrong(imex.sessions, seen)] == [Reason.STATIC_IMEX]
