"""What our agent writes is what is read: every reading plausible, every fault of its fake backend judged as meant."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trimtab import names
from trimtab.agent.digest import Digest, report
from trimtab.agent.profile import FakeNode, Injected, RunningPod
from trimtab.agent.simulation import SimulatedNode
from trimtab.kube.objects import GpuNodeObject, Meta
from trimtab.observe import health, telemetry, unmanaged_load
from trimtab.observe.telemetry import NodeTelemetry
from trimtab_policy import catalog

H100 = "NVIDIA-H100-80GB-HBM3"


def told(*faults: dict[str, Any], seconds: int = 90, running: int = 0) -> NodeTelemetry:
    """What is read of the report that the agent of a fake node writes after so many readings."""
    pods = (RunningPod("team-a/train-0", running),) if running else ()
    profile = FakeNode(
        product=H100, gpus=8, nvlinks=18, running=pods, faults=msgspec.convert(faults, tuple[Injected, ...])
    )
    node, digest = SimulatedNode(profile, catalog.gpu("H100-SXM5-80GB"), "n1"), Digest(30.0)
    for second in range(seconds):
        state = digest.take(node.read(float(second)), float(second), 1_767_323_045.0 + second)
    status = report(state, backend="fake", period=30, boot_id="boot")
    return telemetry.read_telemetry(GpuNodeObject(Meta(name="n1", uid="u"), msgspec.Raw(msgspec.json.encode(status))))


def test_a_sound_node_at_work_is_read_in_full() -> None:
    node = told(running=8)
    assert (node.implausible, node.error, node.period, node.boot_id) == ((), "", 30, "boot")
    assert health.bad_gpus(node) == ()
    means = node.means(arrived=1.0)
    assert 0.8 < means.utilization <= 1
    assert all(number == number for number in msgspec.structs.astuple(means))
    assert {gpu.pods for gpu in node.gpus} == {("team-a/train-0",)}
    assert {spec.name for gpu in node.gpus if (spec := catalog.by_product(gpu.product))} == {"H100-SXM5-80GB"}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"kind": "xid", "code": 48}, names.REASON_XID_FATAL),
        ({"kind": "xid", "code": 79}, names.REASON_GPU_LOST),
        ({"kind": "xid", "code": 95}, names.REASON_XID_FATAL),
        ({"kind": "xid", "code": 119}, names.REASON_XID_FATAL),
        ({"kind": "lost"}, names.REASON_GPU_LOST),
        ({"kind": "rowRemapFailure"}, names.REASON_ROW_REMAP_FAILED),
        ({"kind": "uncorrectableEcc"}, names.REASON_UNCORRECTABLE_ECC),
    ],
)
def test_faults_that_take_a_gpu_away(fault: dict[str, Any], reason: str) -> None:
    node = told({"gpu": 3, "at": 20, **fault}, running=8)
    assert node.implausible == ()
    assert [(bad.index, bad.reason) for bad in health.bad_gpus(node)] == [(3, reason)]


@pytest.mark.parametrize(
    "fault",
    [{"kind": "xid", "code": code} for code in (13, 31, 43, 63, 94)]
    + [{"kind": kind} for kind in ("nan", "garbage", "stuck", "thermalThrottle", "slow")],
)
def test_faults_that_do_not(fault: dict[str, Any]) -> None:
    node = told({"gpu": 3, "at": 20, **fault}, running=8)
    assert health.bad_gpus(node) == ()
    assert node.implausible == ()
    assert len(node.gpus) == 8


def test_somebody_elses_work_is_foreign() -> None:
    node = told({"kind": "foreignLoad", "gpu": [6, 7], "at": 20}, running=4)
    load = unmanaged_load.load(node.gpus, unmanaged_load.NO_LOAD, utilization=0.1, memory=0.05)
    assert (load.claimed, load.unclaimed, load.foreign(requested=4)) == (4, (6, 7), 2)


def test_an_agent_that_cannot_read_says_why() -> None:
    node = told({"kind": "driverError", "at": 20})
    assert "version mismatch" in node.error
