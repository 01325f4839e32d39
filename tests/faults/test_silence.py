"""A node falls silent: no kubelet ends the pod that is left there. A gang that has lost a rank goes on by itself, after
a while; one that may still compute waits for somebody who knows. And whose failure it was is said rightly in the end.

Rows F35 to F37 of the matrix.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.faults import witness_state
from tests.faults.testbed import Stand
from tests.faults.watcher import Watcher
from tests.faults.workloads import FOUR_NODES, LONG, whole
from tests.live.harness import gpu_node, training_job

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

JOBS = "llmtrainingjobs"
SILENT_SECONDS = 6.0
PATIENCE = {
    "gang": {"node_grace_seconds": 1.0, "backoff_initial_seconds": 0.5, "backoff_max_seconds": 300.0},
    "failures": {"silent_node_seconds": SILENT_SECONDS},
}
GRACE_AND_SLACK = 60.0
"""Seconds: 30 that a pod has to end, 15 until somebody is told that it has not, and what all else takes."""


@asynccontextmanager
async def gang_on_a_mute_node(stand: Stand, job: str, gpus: int) -> AsyncIterator[str]:
    """A gang that runs, and a node of it without a kubelet, on which nothing ends; the other nodes are free."""
    node = f"mute-{job}"
    made = gpu_node(node)
    made["metadata"]["annotations"] = {}
    made["status"]["conditions"] = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    await stand.hands.create("nodes", made)
    closed = FOUR_NODES if gpus == 8 else FOUR_NODES[1:]
    await asyncio.gather(*(close(stand, name, True) for name in closed))
    await stand.hands.create(JOBS, training_job(job, gpus=gpus, seconds=LONG))
    await stand.watcher.until(
        lambda seen: witness_state.holds(seen.job(job), "GangScheduled"), 30, lambda: f"its pods: {stand.tell(job)}"
    )
    await stand.hands.patch("pods", on(stand.watcher, job, node), {"status": {"phase": "Running"}}, status=True)
    await stand.runs(job)
    await asyncio.gather(*(close(stand, name, False) for name in closed))
    yield node
    await stand.clear(job)
    await stand.hands.delete("nodes", node)


async def close(stand: Stand, node: str, closed: bool) -> None:
    await stand.hands.patch("nodes", node, {"spec": {"unschedulable": closed or None}})


def on(seen: Watcher, job: str, node: str) -> str:
    """Name of the job's pod on a node, or nothing."""
    return next((pod["metadata"]["name"] for pod in seen.pods(job) if witness_state.node_of(pod) == node), "")


async def falls_silent(stand: Stand, node: str) -> None:
    """As kube-controller-manager says it, 50 s after the last word."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": now}
    await stand.hands.patch("nodes", node, {"status": {"conditions": [ready]}}, status=True)


async def told(stand: Stand, reason: str, job: str) -> list[str]:
    """What events with this reason say about the job."""
    selector = f"reason={reason},involvedObject.name={job}"
    found: Any = await stand.hands.ask("GET", f"/api/v1/namespaces/default/events?fieldSelector={selector}")
    return [event.get("message") or event.get("note", "") for event in found["items"]]


async def eventually_told(stand: Stand, reason: str, job: str) -> list[str]:
    for _ in range(100):
        if found := await told(stand, reason, job):
            return found
        await asyncio.sleep(0.1)
    return []


async def test_a_gang_that_lost_a_rank_with_its_node_goes_on_elsewhere_by_itself(stand: Stand) -> None:
    """F35."""
    job = "partial"
    await stand.running(PATIENCE)
    async with gang_on_a_mute_node(stand, job, gpus=16) as node:
        pod, began = on(stand.watcher, job, node), time.monotonic()
        await falls_silent(stand, node)
        await stand.watcher.until(
            lambda seen: whole(seen, job, 2), GRACE_AND_SLACK, lambda: f"it to go on: {stand.tell(job)}"
        )
        assert time.monotonic() - began >= SILENT_SECONDS - 1, "a node may only be slow to answer"
        assert node not in {witness_state.node_of(each) for each in stand.watcher.pods(job)}
        [message] = await eventually_told(stand, names.REASON_FORCED, job)
        assert message.startswith(f"pod {pod} is deleted by force: nothing was heard of node {node} for ")
        status = witness_state.status_of(stand.watcher.job(job))
        assert [(each["cause"], each["node"]) for each in status["failures"]] == [("Node", node)]
        assert status.get("restarts", 0) == 0


async def test_a_gang_that_is_just_starting_waits_for_heartbeats_that_are_late(stand: Stand) -> None:
    """F37: a slow control plane calls nodes Unknown that were Ready seconds ago. Their pods are bound all the same."""
    job, node = "late", "mute-late"
    made = gpu_node(node)
    made["metadata"]["annotations"] = {}
    made["status"]["conditions"] = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    await stand.running({"gang": {"node_grace_seconds": 60.0}})
    await stand.hands.create("nodes", made)
    closed = FOUR_NODES[1:]
    await asyncio.gather(*(close(stand, name, True) for name in closed))
    await stand.proxy.inject("status:500", path=f"pods/{job}-1-./binding", count=4)
    await stand.hands.create(JOBS, training_job(job, gpus=16, seconds=LONG))
    await stand.watcher.until(lambda seen: seen.pods(job), 30, lambda: f"pods: {stand.tell(job)}")
    await falls_silent(stand, node)
    await asyncio.gather(*(close(stand, name, False) for name in closed))
    await stand.watcher.until(
        lambda seen: witness_state.holds(seen.job(job), "GangScheduled"), 40, lambda: f"the gang: {stand.tell(job)}"
    )
    assert {witness_state.node_of(pod) for pod in stand.watcher.pods(job)} == {node, FOUR_NODES[0]}
    assert witness_state.plan_of(stand.watcher.job(job))["epoch"] == 1, stand.tell(job)
    await stand.clear(job)
    await stand.hands.delete("nodes", node)


async def test_a_gang_that_may_still_compute_waits_for_somebody_who_knows(stand: Stand) -> None:
    """F35: all of it is on the node that does not answer."""
    job = "alone"
    await stand.running(PATIENCE)
    async with gang_on_a_mute_node(stand, job, gpus=8) as node:
        pod = on(stand.watcher, job, node)
        await falls_silent(stand, node)
        await held_up(stand, job)
        await asyncio.sleep(SILENT_SECONDS)
        assert on(stand.watcher, job, node) == pod
        assert not await told(stand, names.REASON_FORCED, job)
        taint = {"key": names.TAINT_OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}
        await stand.hands.patch("nodes", node, {"spec": {"taints": [taint]}})
        await stand.watcher.until(
            lambda seen: whole(seen, job, 2), GRACE_AND_SLACK, lambda: f"it to go on: {stand.tell(job)}"
        )


async def held_up(stand: Stand, job: str) -> None:
    def so(seen: Watcher) -> bool:
        return witness_state.condition(seen.job(job), "Planned").get("reason") == names.REASON_HELD_UP

    await stand.watcher.until(so, GRACE_AND_SLACK, lambda: f"it to say what it waits for: {stand.tell(job)}")


async def test_a_program_that_fails_because_a_node_is_dying_uses_up_no_restart(stand: Stand) -> None:
    """F36: the other rank ends with an error within seconds; Kubernetes notices the node only later."""
    job = "accused"
    await stand.running(PATIENCE)
    async with gang_on_a_mute_node(stand, job, gpus=16) as node:
        peer = next(name for name in FOUR_NODES if on(stand.watcher, job, name))
        await fails(stand, on(stand.watcher, job, peer))
        await stand.watcher.until(
            lambda seen: booked(seen, job) == (1, "Program"), 20, lambda: f"a failure: {stand.tell(job)}"
        )
        await falls_silent(stand, node)
        await stand.watcher.until(
            lambda seen: booked(seen, job) == (0, "Node"), 10, lambda: f"to be corrected: {stand.tell(job)}"
        )
        [message] = await eventually_told(stand, "NodeLost", job)
        assert message.startswith(f"node {node} fell silent within ")
        await stand.watcher.until(
            lambda seen: whole(seen, job, 2), GRACE_AND_SLACK, lambda: f"it to go on: {stand.tell(job)}"
        )


async def test_a_job_without_restarts_is_not_given_up_before_its_nodes_could_be_missed(stand: Stand) -> None:
    """F36."""
    job = "last"
    await stand.running(PATIENCE)
    async with gang_on_a_mute_node(stand, job, gpus=16) as node:
        await stand.hands.patch(JOBS, job, {"spec": {"maxRestarts": 0}})
        peer = next(name for name in FOUR_NODES if on(stand.watcher, job, name))
        await fails(stand, on(stand.watcher, job, peer))
        await asyncio.sleep(3)
        assert not witness_state.holds(stand.watcher.job(job), "Failed")
        await falls_silent(stand, node)
        await stand.watcher.until(
            lambda seen: whole(seen, job, 2), GRACE_AND_SLACK, lambda: f"it to go on: {stand.tell(job)}"
        )
        assert booked(stand.watcher, job) == (0, "Node")


async def fails(stand: Stand, pod: str) -> None:
    """Its program ends with an error."""
    state = {"terminated": {"exitCode": 1, "reason": "Error"}}
    container = {"name": "trainer", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    ended = {"status": {"phase": "Failed", "containerStatuses": [container]}}
    await stand.hands.patch("pods", pod, ended, status=True)


def booked(seen: Watcher, job: str) -> tuple[int, str]:
    """Restarts used up, and the cause of the last failure."""
    status = witness_state.status_of(seen.job(job))
    return status.get("restarts", 0), (status.get("failures") or [{"cause": ""}])[-1]["cause"]
