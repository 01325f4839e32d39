"""The API server away, lying or silent: no exit, no pod touched, and work goes on as soon as it is back.

These are the traps of kopf 1.45.2 sprung on the whole controller against a real API server: 75 s of 503 (kopf alone
exits after 55), an ERROR in a stream (kopf alone dies), a deletion in a watch gap (kopf alone never sees it), and a
watch that went mute.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.faultproxy import FaultProxy
from tests.live.harness import ControllerProcess, Live, eventually, training_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

EVERYTHING_BUT_LEASES = r"^(?!.*/leases)"


async def test_75_seconds_of_503_neither_end_the_controller_nor_touch_a_gang(
    live: Live, proxy: FaultProxy, tmp_path: Path
) -> None:
    async with ControllerProcess(proxy.kubeconfig, tmp_path) as controller:
        live.apply(training_job("survivor", seconds=6000))
        await live.until("survivor", "PodsReady")
        before = {pod["metadata"]["uid"] for pod in live.pods("survivor")}
        async with live.excuse():
            await proxy.inject("status:503", path=EVERYTHING_BUT_LEASES, count=1_000_000)
            await proxy.sever()
            live.apply(training_job("waiting", gpus=8))
            await asyncio.sleep(75)
            assert controller.alive, controller.tail()
            await proxy.heal()
            await live.until("waiting", "Complete", seconds=20)
        assert {pod["metadata"]["uid"] for pod in live.pods("survivor")} == before
        await live.gone("survivor")
        await live.gone("waiting")


async def test_an_error_in_every_watch_stream_is_survived(live: Live, proxy: FaultProxy, tmp_path: Path) -> None:
    async with ControllerProcess(proxy.kubeconfig, tmp_path) as controller:
        live.apply(training_job("before-error"))
        await live.until("before-error", "Complete")
        await proxy.inject("werr:500", count=20)
        assert await proxy.sever() >= 6
        live.apply(training_job("after-error"))
        await live.until("after-error", "Complete", seconds=40)
        assert controller.alive
        await live.gone("before-error")
        await live.gone("after-error")


@pytest.mark.parametrize("gap", ["gone", "mute"])
async def test_a_pod_deleted_while_nobody_was_told_is_noticed(
    live: Live, proxy: FaultProxy, tmp_path: Path, gap: str
) -> None:
    job = f"unseen-{gap}"
    async with ControllerProcess(proxy.kubeconfig, tmp_path, reflector={"stall_seconds": 4.0}):
        live.apply(training_job(job, seconds=6000))
        await live.until(job, "PodsReady")
        # with `gone` the watch is first kept away, then told that its version is too old: only a relist can tell
        action = "status:503" if gap == "gone" else "mute"
        await proxy.inject(action, path="/pods.*watch=true", count=1_000 if gap == "gone" else 1)
        await proxy.sever()
        await asyncio.sleep(1)
        live.delete("pod", f"{job}-1-0", "--force", "--grace-period=0")
        if gap == "gone":
            await proxy.heal()
            await proxy.inject("gone", path="/pods.*watch=true", count=1)
        await eventually(
            lambda: live.status(job).get("plan", {}).get("epoch") == 2 and live.holds(job, "PodsReady"),
            40,
            lambda: f"epoch 2: {live.status(job)}",
        )
        await live.gone(job)
