"""Queues on a running controller: whose jobs count, who may wait, who is next, and gangs that nobody overtakes.

The four nodes have 32 A100s. Nobody is stopped for anybody here: room for others is another story.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.live.harness import ControllerProcess, Live, eventually, pace, training_job, wait_until

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

A100 = "A100-SXM4-80GB"
LONG = 600.0
CALM = {"enabled": False, "reclaim": False, "consolidation": False}


@pytest.fixture(scope="module")
def controller(live_cluster: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerProcess]:
    """One controller for all tests."""
    directory = tmp_path_factory.mktemp("queues")
    kubeconfig = live_cluster.kubeconfig(directory)
    process = ControllerProcess(kubeconfig, directory, preemption=CALM, queues={"status_seconds": 0.3}).start()
    wait_until(lambda: "leading" in process.tail(), process.tail)
    yield process
    assert process.alive, process.tail()
    process.stop()


@pytest.fixture(autouse=True)
def clean(live_cluster: Live) -> Iterator[None]:
    """No job of one test is in the way of the next one."""
    yield
    live_cluster.cluster.kubectl("delete", "ltj", "--all", "-n", "default", "--wait=false")


@pytest.fixture
def queue(live: Live, controller: ControllerProcess) -> Iterator[Callable[..., None]]:
    """Create queues that are gone after the test."""
    made: list[str] = []

    def create(name: str, **spec: Any) -> None:
        made.append(name)
        live.apply(
            {"apiVersion": names.API_VERSION, "kind": names.QUEUE_KIND, "metadata": {"name": name}, "spec": spec}
        )

    yield create
    live.cluster.kubectl("delete", "ltq", *made)


def status_of(live: Live, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(live.cluster.kubectl("get", "ltq", queue, "-o", "json"))
    return dict(found.get("status", {}))


def pending(live: Live, job: str) -> dict[str, Any]:
    found: dict[str, Any] = live.status(job).get("pending", {})
    return found


def get_queues(live: Live) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "trimtab", "get", "queues", "-o", "json"]
    kubeconfig = ("--kubeconfig", str(live.cluster.kubeconfig))
    answer = subprocess.run([*command, *kubeconfig], capture_output=True, check=True, text=True)
    rows: list[dict[str, Any]] = json.loads(answer.stdout)
    return rows


async def waits(live: Live, job: str, reason: str) -> str:
    """Wait until the job waits for this reason; returns the message."""
    await eventually(
        lambda: pending(live, job).get("reason") == reason, 20, lambda: f"{job} to wait: {live.status(job)}"
    )
    return str(pending(live, job)["message"])


async def tells(live: Live, queue: str, **expected: Any) -> None:
    """Wait until the status of a queue says so."""
    await eventually(
        lambda: expected.items() <= status_of(live, queue).items(), 20, lambda: f"{expected}: {status_of(live, queue)}"
    )


async def test_a_namespace_has_a_queue_that_borrows_and_takes_only_so_many_waiting_jobs(
    live: Live, queue: Callable[..., None]
) -> None:
    queue("live-of-ns", namespaces=["default"], quotas=[{"gpuType": A100, "guaranteed": 8}], maxPendingJobs=1)
    queue("live-theirs", namespaces=["somewhere-else"])
    live.apply(training_job("q-runs", gpus=32, seconds=LONG), training_job("q-not-mine", queue="live-theirs"))
    assert "not for jobs of namespace default" in await waits(live, "q-not-mine", "QueueNotAllowed")
    await live.until("q-runs", "PodsReady")
    live.apply(training_job("q-first", gpus=32, seconds=LONG))
    await waits(live, "q-first", "InsufficientGpus")
    live.apply(training_job("q-second", gpus=32, seconds=LONG))
    assert "it is number 2 in line" in await waits(live, "q-second", "QueueFull")
    uses = [{"gpuType": A100, "gpus": 32, "borrowed": 24}]
    await tells(live, "live-of-ns", gpus=32, runningJobs=1, pendingJobs=2, sharePermille=1000, uses=uses)
    shown = await asyncio.to_thread(get_queues, live)
    [row] = [row for row in shown if row["name"] == "live-of-ns"]
    assert (row["next"], row["pending"], row["quotas"][0]["borrowed"]) == ("default/q-first", 2, 24)
    live.delete("ltj", "q-runs")
    await live.until("q-first", "PodsReady")
    await waits(live, "q-second", "InsufficientGpus")
    for job in ("q-not-mine", "q-first", "q-second"):
        live.delete("ltj", job, "--wait=false")
    await tells(live, "live-of-ns", gpus=0, runningJobs=0, pendingJobs=0)


async def test_of_two_queues_the_one_that_holds_less_is_next(
    live: Live, controller: ControllerProcess, queue: Callable[..., None]
) -> None:
    queue("live-a")
    queue("live-b")
    live.apply(training_job("q-a1", seconds=LONG, queue="live-a"), training_job("q-none", seconds=LONG))
    await live.until("q-a1", "PodsReady")
    await live.until("q-none", "PodsReady")
    live.apply(training_job("q-a2", seconds=LONG, queue="live-a"))
    await waits(live, "q-a2", "InsufficientGpus")
    await asyncio.sleep(1.1)  # creation times are in whole seconds
    live.apply(training_job("q-b1", seconds=LONG, queue="live-b"))
    await waits(live, "q-b1", "InsufficientGpus")
    await tells(live, "live-a", gpus=16, sharePermille=500, pendingJobs=1)
    await tells(live, "live-b", sharePermille=0, pendingJobs=1)
    assert controller.metric("trimtab_queue_gpus", queue="live-a", gpu_type=A100) == 16
    assert controller.metric("trimtab_queue_share", queue="live-a") == 0.5
    live.delete("ltj", "q-none")
    await live.until("q-b1", "PodsReady")
    assert pending(live, "q-a2")
    for job in ("q-a1", "q-a2", "q-b1"):
        await live.gone(job)


async def test_a_large_gang_is_passed_by_short_jobs_only(live: Live, controller: ControllerProcess) -> None:
    live.apply(training_job("r-runs", gpus=16, seconds=14.0 * await pace(live)))
    await live.until("r-runs", "PodsReady")
    live.apply(training_job("r-large", gpus=32, seconds=LONG))
    message = await waits(live, "r-large", "InsufficientGpus")
    assert f"32×{A100} on" in message
    assert "is kept for it" in message
    live.apply(training_job("r-long", gpus=8, seconds=LONG))
    assert "is kept for default/r-large" in await waits(live, "r-long", "Reserved")
    live.apply(training_job("r-short", gpus=8, seconds=1.0))
    await live.until("r-short", "Complete")
    assert not live.status("r-large").get("plan")
    assert not live.status("r-long").get("plan")
    await live.until("r-large", "PodsReady")
    assert not live.status("r-long").get("plan")
    for job in ("r-runs", "r-large", "r-long", "r-short"):
        await live.gone(job)
