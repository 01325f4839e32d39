"""Failures on a real API server: who pays, which nodes are avoided, and that a mass failure takes nothing down."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import NODES
from tests.live.harness import NAMESPACE, ControllerProcess, Live, eventually, training_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LONG = 600.0
GRACE = 2.0
RULES = {"brake_nodes": 2}


@pytest.fixture
async def controller(live: Live, tmp_path: Path) -> AsyncIterator[ControllerProcess]:
    async with ControllerProcess(
        live.kubeconfig(tmp_path), tmp_path, failures=RULES, gang={"node_grace_seconds": GRACE}
    ) as process:
        yield process
        assert process.alive, process.tail()


def play(live: Live, pod: str, **status: Any) -> None:
    """What a kubelet would say of a pod, where KWOK has no words for it."""
    patch = json.dumps({"status": status})
    live.cluster.kubectl("patch", "pod", pod, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", patch)


def exited(code: int, reason: str, message: str = "") -> dict[str, Any]:
    end = {"exitCode": code, "reason": reason, "message": message, "finishedAt": "2026-01-02T03:04:05Z"}
    told = {"name": "trainer", "image": "example.test/trainer:1", "imageID": "", "ready": False, "restartCount": 0}
    return {"phase": "Failed", "containerStatuses": [{**told, "state": {"terminated": end}}]}


def failures(live: Live, job: str) -> list[tuple[str, str, str]]:
    """Cause, reason and node of what has ended the job's gangs."""
    found = live.status(job).get("failures", [])
    return [(each["cause"], each["reason"], each.get("node", "")) for each in found]


def nodes_of(live: Live, job: str) -> list[str]:
    return [node["name"] for node in live.status(job).get("plan", {}).get("nodes", [])]


def epoch(live: Live, job: str) -> int:
    return int(live.status(job).get("plan", {}).get("epoch", 0))


def message(live: Live, job: str, condition: str) -> str:
    return next((c["message"] for c in live.status(job)["conditions"] if c["type"] == condition), "")


async def runs(live: Live, job: str, at: int) -> None:
    await eventually(
        lambda: epoch(live, job) == at and live.holds(job, "PodsReady"), 30, lambda: f"epoch {at}: {live.status(job)}"
    )


@contextmanager
def not_ready(live: Live, nodes: list[str]) -> Iterator[None]:
    """KWOK's kubelets of these nodes say that they are not ready."""
    mark = "fake.trimtab.dev/not-ready"
    for verb in ("annotate", "label"):
        live.cluster.kubectl(verb, "node", *nodes, f"{mark}=true")
    try:
        yield
    finally:
        for verb in ("annotate", "label"):
            live.cluster.kubectl(verb, "node", *nodes, f"{mark}-")
        live.cluster.kubectl("wait", "--for=condition=Ready", *(f"node/{name}" for name in nodes), "--timeout=30s")


async def test_a_mistake_of_the_user_ends_the_job_after_two_attempts_and_short_memory_says_what_to_raise(
    live: Live, controller: ControllerProcess
) -> None:
    live.apply(training_job("mistaken", gpus=8, seconds=LONG), training_job("hungry", gpus=16, seconds=LONG))
    await runs(live, "mistaken", 1)
    quoted = 'exec: "/x/nvidia-start": stat /x/nvidia-start: no such file or directory'
    play(live, "mistaken-1-0", **exited(128, "StartError", quoted))
    await runs(live, "mistaken", 2)
    play(live, "mistaken-2-0", **exited(127, "Error"))
    await live.until("mistaken", "Failed")
    assert failures(live, "mistaken") == [("UserError", "CannotStart", "")] * 2
    assert "the command was not found" in message(live, "mistaken", "Failed")
    assert "trying again does not help" in message(live, "mistaken", "Failed")
    assert controller.metric("trimtab_failures_total", cause="UserError") == 2

    await runs(live, "hungry", 1)
    play(live, "hungry-1-1", **exited(137, "OOMKilled"))
    await runs(live, "hungry", 2)
    assert failures(live, "hungry") == [("OutOfMemory", "OutOfMemory", "")]
    assert live.status("hungry")["restarts"] == 1
    assert "OutOfMemory" in live.events("hungry")
    await asyncio.gather(*map(live.gone, ("mistaken", "hungry")))


async def test_a_node_that_ends_the_gangs_of_two_jobs_is_avoided_until_it_is_repaired(
    live: Live, controller: ControllerProcess
) -> None:
    live.apply(training_job("first", gpus=8, seconds=LONG))
    await runs(live, "first", 1)
    [bad] = nodes_of(live, "first")
    refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}
    play(live, "first-1-0", **refused)
    await eventually(lambda: failures(live, "first") == [("Node", "PodRefused", bad)], what="the node to be blamed")
    live.patch("ltj", "first", {"spec": {"suspend": True}})
    await live.until("first", "Suspended")
    once = datetime.fromisoformat(live.status("first")["failures"][0]["time"]).timestamp()
    await eventually(lambda: time.time() > once + 2 * GRACE, what="the second failure to be one of its own")

    second = training_job("second", gpus=8, seconds=LONG)
    second["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": bad}
    live.apply(second)
    await runs(live, "second", 1)
    play(live, "second-1-0", **refused)
    await eventually(lambda: bad in blockers(live, "second"), what=lambda: str(live.status("second")))
    assert "has ended the gangs of 2 jobs" in blockers(live, "second")
    assert controller.metric("trimtab_bad_nodes") == 1
    await eventually(lambda: "BadNode" in live.events(bad), what="the node to be reported")

    live.cluster.kubectl("annotate", "node", bad, f"trimtab.dev/repaired={datetime.now(UTC):%FT%TZ}")
    try:
        await runs(live, "second", 2)
        assert controller.metric("trimtab_bad_nodes") == 0
    finally:
        live.cluster.kubectl("annotate", "node", bad, "trimtab.dev/repaired-")
        await asyncio.gather(*map(live.gone, ("first", "second")))


async def test_where_half_the_nodes_are_lost_at_once_nothing_is_taken_down_and_all_goes_on_when_they_are_back(
    live: Live, controller: ControllerProcess
) -> None:
    jobs = ("mass-0", "mass-1", "mass-2")
    live.apply(*(training_job(job, gpus=8, seconds=LONG) for job in jobs))
    for job in jobs:
        await runs(live, job, 1)
    hit, *others = jobs
    used = {nodes_of(live, job)[0] for job in jobs}
    free = next(name for name in NODES if name not in used)
    pods = {pod["metadata"]["uid"] for job in jobs for pod in live.pods(job)}
    with not_ready(live, [*nodes_of(live, hit), free]):
        await live.until(hit, "Degraded")
        assert f"2 of 4 GPU nodes are lost at once, of this gang {nodes_of(live, hit)[0]}" in message(
            live, hit, "Degraded"
        )
        assert controller.metric("trimtab_brake") == 1
        live.apply(training_job("waits", gpus=8, seconds=LONG))
        await eventually(lambda: bool(blockers(live, "waits")), what="the queue to hold")
        assert not any(live.holds(job, "Degraded") for job in others)
        assert live.holds(hit, "PodsReady")
    await eventually(lambda: not live.holds(hit, "Degraded"), what="the condition to go")
    await runs(live, "waits", 1)
    assert {pod["metadata"]["uid"] for job in jobs for pod in live.pods(job)} == pods
    assert [(epoch(live, job), failures(live, job)) for job in jobs] == [(1, [])] * 3
    assert controller.metric("trimtab_brake") == 0
    await asyncio.gather(*map(live.gone, (*jobs, "waits")))


def blockers(live: Live, job: str) -> str:
    return "; ".join(live.status(job).get("pending", {}).get("blockers", []))
