"""What agents report, and what becomes of it in a cluster: broken GPUs are left and avoided, and used again when well.

In all tests but one no agent runs: its part is written straight into the API server, as its field manager does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.faultproxy import FaultProxy
from tests.live import test_agents
from tests.live.conftest import NODES
from tests.live.harness import ControllerProcess, Live, eventually, training_job
from tests.live.test_disruptions import LONG, epoch, nodes_of, pending, replanned

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LOST = {"kind": "Xid", "code": 79, "time": "2026-01-02T03:00:00Z", "count": 1}
BUSY = {"smUtilizationPercent": 95, "memoryUsedBytes": 70 << 30}
QUICK = {"grace_seconds": 1.0, "recovery_seconds": 3.0, "foreign_seconds": 1.0}


@pytest.fixture(autouse=True)
def no_reports_left(live_cluster: Live) -> Iterator[None]:
    yield
    live_cluster.cluster.kubectl("delete", "gpunodes", "--all", "--wait=true")


def report(live: Live, node: str, *broken: int, **changes: Any) -> None:
    """What the agent of a node writes: eight A100s, of which some are `broken`. Other keywords change all readings."""
    status = {name: changes.pop(name) for name in ("periodSeconds", "bootId") if name in changes}
    gpus = [
        {
            "uuid": f"GPU-{node}-{index}",
            "index": index,
            "product": "NVIDIA A100-SXM4-80GB",
            "memoryTotalBytes": 80 << 30,
            "smUtilizationPercent": 0,
            **({"faults": [LOST]} if index in broken else {}),
            **changes,
        }
        for index in range(8)
    ]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    defaults = {"observedTime": now, "periodSeconds": 3600, "bootId": "first", "backend": "fake"}
    kind = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": node}}
    apply = ("apply", "--server-side", "--field-manager=trimtab-agent", "-f", "-")
    if not live.get("gpunode", node):
        live.cluster.kubectl(*apply, stdin=json.dumps(kind))
    body = {**kind, "status": {**defaults, **status, "gpus": gpus}}
    live.cluster.kubectl(*apply, "--subresource=status", stdin=json.dumps(body))


def healthy(live: Live, node: str) -> tuple[str, str]:
    """Status and reason of the condition."""
    conditions = live.get("gpunode", node).get("status", {}).get("conditions", [])
    return next(((c["status"], c["reason"]) for c in conditions if c["type"] == "Healthy"), ("", ""))


async def judged(live: Live, node: str, status: str, reason: str) -> None:
    await eventually(
        lambda: healthy(live, node) == (status, reason), what=lambda: f"{node} {reason}: {healthy(live, node)}"
    )


def controller(live: Live, directory: Path, **telemetry: Any) -> ControllerProcess:
    return ControllerProcess(live.kubeconfig(directory), directory, telemetry=QUICK | telemetry)


async def test_a_gang_leaves_a_broken_gpu_and_its_node_is_used_again_after_a_reboot(live: Live, tmp_path: Path) -> None:
    job = "gpu-broken"
    async with controller(live, tmp_path) as process:
        live.apply(training_job(job, seconds=LONG))
        await live.until(job, "PodsReady")
        broken = nodes_of(live, job)[1]
        report(live, broken, 3)
        await judged(live, broken, "False", "XidFatal")
        await replanned(live, job)
        assert broken not in nodes_of(live, job)
        assert "GpuUnhealthy" in live.events(job)
        await eventually(lambda: "XidFatal" in live.events(broken), what="the event")
        assert process.metric("trimtab_unhealthy_gpus", reason="XidFatal") == 1
        assert live.status(job).get("restarts", 0) == 0
    before = live.get("gpunode", broken)["status"]["conditions"]
    async with controller(live, tmp_path) as process:  # another one, which has nothing but the cluster to go by
        live.apply(training_job("gpu-others", gpus=8, seconds=LONG))
        await live.until("gpu-others", "PodsReady")
        assert nodes_of(live, "gpu-others") != [broken]
        assert live.get("gpunode", broken)["status"]["conditions"] == before
        report(live, broken, bootId="second")
        await judged(live, broken, "Unknown", "Recovering")
        await judged(live, broken, "True", "NoFaults")
        live.apply(training_job("gpu-again", gpus=8, seconds=LONG))
        await live.until("gpu-again", "PodsReady")
        assert nodes_of(live, "gpu-again") == [broken]
        assert epoch(live, job) == 2
        await eventually(lambda: "NoFaults" in live.events(broken), what="the event of the recovery")
    assert len(live.get("gpunode", broken)["status"]["gpus"]) == 8
    for each in (job, "gpu-others", "gpu-again"):
        await live.gone(each)


async def test_from_a_fault_that_an_agent_sees_to_the_repair_that_somebody_vouches_for(
    live: Live, tmp_path: Path
) -> None:
    kubectl = live.cluster.kubectl
    agents = test_agents.running(tmp_path, live.cluster.kubeconfig, "--fake-nodes", report_seconds=10)
    async with agents, controller(live, tmp_path, foreign_seconds=60.0):
        live.apply(training_job("gpu-lost", seconds=LONG))
        await live.until("gpu-lost", "PodsReady")
        broken = nodes_of(live, "gpu-lost")[0]
        await eventually(
            lambda: "default/gpu-lost-1-0" in _has(live, broken, 3), what=lambda: str(_has(live, broken, 3))
        )
        try:
            kubectl("annotate", "node", broken, f"{names.ANNOTATION_FAKE_GPU_FAULTS}=[{{kind: lost, gpu: 3}}]")
            await judged(live, broken, "False", "GpuLost")
            await replanned(live, "gpu-lost")
            assert broken not in nodes_of(live, "gpu-lost")
            assert "GpuUnhealthy" in live.events("gpu-lost")
        finally:
            kubectl("annotate", "node", broken, f"{names.ANNOTATION_FAKE_GPU_FAULTS}-")
        later = datetime.now(UTC) + timedelta(minutes=1)  # the agent may see the last of it in this very second
        kubectl("annotate", "gpunode", broken, f"{names.ANNOTATION_REPAIRED}={later:%Y-%m-%dT%H:%M:%SZ}")
        await judged(live, broken, "True", "NoFaults")
        await live.gone("gpu-lost")


def _has(live: Live, node: str, index: int) -> list[str]:
    """Pods that have a GPU, as the agent says."""
    gpus = live.get("gpunode", node).get("status", {}).get("gpus", [])
    return [pod for gpu in gpus if gpu["index"] == index for pod in gpu.get("pods", [])]


async def test_gpus_that_others_use_are_not_given_to_jobs_until_they_are_free(live: Live, tmp_path: Path) -> None:
    for node in NODES[:3]:
        report(live, node, **BUSY)
    async with controller(live, tmp_path) as process:
        live.apply(
            training_job("crowded", seconds=LONG, resources={"gpus": {"max": 16}, "gpuTypes": ["A100-SXM4-80GB"]})
        )
        await eventually(
            lambda: pending(live, "crowded") == "InsufficientGpus", what=lambda: str(live.status("crowded"))
        )
        assert process.metric("trimtab_foreign_gpus") == 24
        await eventually(lambda: "ForeignLoad" in live.events(NODES[0]), what="the event")
        for node in NODES[:3]:
            report(live, node)
        await live.until("crowded", "PodsReady")
        for node in nodes_of(live, "crowded"):
            report(live, node, **BUSY)  # its own work: nobody else's
        await live.gone("crowded")


async def test_a_silent_agent_is_told_of_and_takes_nothing_away(live: Live, tmp_path: Path) -> None:
    async with controller(live, tmp_path) as process:
        for node in NODES:
            report(live, node, periodSeconds=1)
        for node in NODES:
            await judged(live, node, "Unknown", "StaleReadings")
        assert process.metric("trimtab_stale_gpunodes") == 4
        live.apply(training_job("unwatched", seconds=LONG))
        await live.until("unwatched", "PodsReady")
        await live.gone("unwatched")


async def test_when_all_gpus_seem_broken_the_reports_are(live: Live, tmp_path: Path) -> None:
    async with controller(live, tmp_path) as process:
        for node in NODES:
            report(live, node, *range(8))
        await eventually(
            lambda: sorted(healthy(live, node)[1] for node in NODES) == ["TooManyUnhealthy"] * 3 + ["XidFatal"],
            what=lambda: str([healthy(live, node) for node in NODES]),
        )
        live.apply(training_job("undeterred", seconds=LONG))
        await live.until("undeterred", "PodsReady")
        assert process.metric("trimtab_problems", reason="TooManyUnhealthy") == 3
        await live.gone("undeterred")


async def test_a_cluster_without_the_kind_is_served_all_the_same(live: Live, proxy: FaultProxy, tmp_path: Path) -> None:
    await proxy.inject("status:404", path="gpunodes", count=100_000)
    async with ControllerProcess(proxy.kubeconfig, tmp_path) as process:
        live.apply(training_job("kindless", seconds=LONG))
        await live.until("kindless", "PodsReady")
        assert process.alive
        await live.gone("kindless")
