"""What happens to a gang when the world around it changes: it runs as a whole somewhere else, or says why not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.faultproxy import FaultProxy
from tests.live.harness import ControllerProcess, Live, eventually, gpu_node, training_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LONG = 600.0


@pytest.fixture
async def controller(live: Live, tmp_path: Path) -> AsyncIterator[ControllerProcess]:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path) as process:
        yield process
        assert process.alive, process.tail()


def epoch(live: Live, job: str) -> int:
    return int(live.status(job).get("plan", {}).get("epoch", 0))


def nodes_of(live: Live, job: str) -> list[str]:
    return [node["name"] for node in live.status(job).get("plan", {}).get("nodes", [])]


async def replanned(live: Live, job: str) -> None:
    await eventually(
        lambda: epoch(live, job) == 2 and live.holds(job, "PodsReady"), 30, lambda: f"epoch 2: {live.status(job)}"
    )


async def test_a_deleted_pod_takes_its_gang_with_it_and_the_job_starts_anew(
    live: Live, controller: ControllerProcess
) -> None:
    live.apply(training_job("pod-deleted", seconds=LONG))
    await live.until("pod-deleted", "PodsReady")
    live.delete("pod", "pod-deleted-1-1")
    await replanned(live, "pod-deleted")
    assert [pod["metadata"]["labels"]["trimtab.dev/epoch"] for pod in live.pods("pod-deleted")] == ["2", "2"]
    assert "PodDeleted" in live.events("pod-deleted")
    await live.gone("pod-deleted")


@pytest.mark.parametrize("how", ["deleted", "not-ready"])
async def test_a_gang_leaves_a_node_that_is_lost(live: Live, controller: ControllerProcess, how: str) -> None:
    job = f"node-{how}"
    live.apply(training_job(job, seconds=LONG))
    await live.until(job, "PodsReady")
    lost = nodes_of(live, job)[1]
    try:
        if how == "deleted":
            live.cluster.kubectl("delete", "node", lost)
        else:
            live.cluster.kubectl("annotate", "node", lost, "fake.trimtab.dev/not-ready=true")
            live.cluster.kubectl("label", "node", lost, "fake.trimtab.dev/not-ready=true")
        await replanned(live, job)
        assert lost not in nodes_of(live, job)
    finally:
        if how == "deleted":
            live.apply(gpu_node(lost))
        else:
            live.cluster.kubectl("annotate", "node", lost, "fake.trimtab.dev/not-ready-")
            live.cluster.kubectl("label", "node", lost, "fake.trimtab.dev/not-ready-")
        live.cluster.kubectl("wait", "--for=condition=Ready", f"node/{lost}", "--timeout=30s")
        await live.gone(job)


async def test_a_node_cordoned_before_its_pod_is_bound_is_not_used(
    live: Live, proxy: FaultProxy, tmp_path: Path
) -> None:
    await proxy.inject("status:500", path="pods/cordoned-1-1/binding", count=1000)
    async with ControllerProcess(proxy.kubeconfig, tmp_path):
        live.apply(training_job("cordoned", seconds=LONG))
        await eventually(lambda: len(nodes_of(live, "cordoned")) == 2, what="a plan")
        cordoned = nodes_of(live, "cordoned")[1]
        live.cluster.kubectl("cordon", cordoned)
        try:
            await replanned(live, "cordoned")
            assert cordoned not in nodes_of(live, "cordoned")
        finally:
            live.cluster.kubectl("uncordon", cordoned)
            await live.gone("cordoned")


async def test_a_binding_that_stays_refused_rolls_the_whole_gang_back(
    live: Live, proxy: FaultProxy, tmp_path: Path
) -> None:
    await proxy.inject("status:409", path="pods/refused-1-1/binding", count=1000)
    async with ControllerProcess(proxy.kubeconfig, tmp_path):
        live.apply(training_job("refused", seconds=LONG))
        await replanned(live, "refused")
        assert "BindRefused" in live.events("refused")
        assert {pod["metadata"]["labels"]["trimtab.dev/epoch"] for pod in live.pods("refused")} == {"2"}
        await live.gone("refused")


async def test_a_quota_that_admits_only_part_of_the_gang_lets_none_of_it_stay(
    live: Live, controller: ControllerProcess
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": "default"}}
    live.apply({**quota, "spec": {"hard": {"pods": "1"}}})
    try:
        live.apply(training_job("over-quota", seconds=LONG))
        await eventually(lambda: "CreateRefused" in live.events("over-quota"), what="the refusal to be told")
        await eventually(lambda: not live.pods("over-quota"), what="the admitted pod to be taken back")
    finally:
        live.delete("resourcequota", "few")
    await live.until("over-quota", "PodsReady")
    await live.gone("over-quota")


async def test_a_misspelt_field_of_the_template_is_told_and_starts_nothing(
    live: Live, controller: ControllerProcess
) -> None:
    job = training_job("misspelt", seconds=LONG)
    job["spec"]["template"]["spec"]["containers"][0] |= {"comand": ["python"], "volumeMount": []}
    live.apply(job)
    await eventually(lambda: "CreateRefused" in live.events("misspelt"), what="the refusal to be told")
    events = json.loads(live.cluster.kubectl("get", "events", "-n", "default", "-o", "json"))["items"]
    told = [event["message"] for event in events if event["reason"] == "CreateRefused"]
    assert any('unknown field "spec.containers[0].comand"' in message for message in told), told
    await eventually(lambda: not live.pods("misspelt"), what="no pod to be there")
    live.delete("ltj", "misspelt")


async def test_a_job_edited_so_that_its_plan_is_too_large_is_planned_anew(
    live: Live, controller: ControllerProcess
) -> None:
    live.apply(training_job("edited", seconds=LONG, elasticity={"policy": "Fixed", "minRuntimeSeconds": 0}))
    await live.until("edited", "PodsReady")
    live.patch("ltj", "edited", {"spec": {"resources": {"gpus": {"max": 8}}}})
    await replanned(live, "edited")
    assert live.status("edited")["plan"]["gpus"] == 8
    await live.gone("edited")


async def test_a_suspended_job_holds_nothing_and_runs_again_when_resumed(
    live: Live, controller: ControllerProcess
) -> None:
    live.apply(training_job("suspended", seconds=LONG))
    await live.until("suspended", "PodsReady")
    live.patch("ltj", "suspended", {"spec": {"suspend": True}})
    await live.until("suspended", "Suspended")
    await eventually(lambda: not live.pods("suspended"), what="its pods to be gone")
    live.patch("ltj", "suspended", {"spec": {"suspend": False}})
    await replanned(live, "suspended")
    await live.gone("suspended")


async def test_a_job_deleted_while_its_gang_is_being_bound_leaves_nothing(
    live: Live, proxy: FaultProxy, tmp_path: Path
) -> None:
    await proxy.inject("delay:1", path="/binding", count=2)
    async with ControllerProcess(proxy.kubeconfig, tmp_path) as controller:
        live.apply(training_job("deleted", seconds=LONG))
        await eventually(lambda: len(live.pods("deleted")) == 2, what="its pods")
        await live.gone("deleted")
        live.apply(training_job("deleted"))
        await live.until("deleted", "Complete")
        assert controller.alive
        await live.gone("deleted")


async def test_a_failed_pod_restarts_the_gang_until_the_restarts_are_used_up(
    live: Live, controller: ControllerProcess
) -> None:
    once, always = training_job("fails-once"), training_job("fails-always", maxRestarts=1)
    once["metadata"]["annotations"] = {"fake.trimtab.dev/fail": "1@0.5"}
    always["metadata"]["annotations"] = {"fake.trimtab.dev/fail": "0@0.5x9"}
    live.apply(once, always)
    await live.until("fails-once", "Complete")
    assert live.status("fails-once")["restarts"] == 1
    await live.until("fails-always", "Failed")
    status = live.status("fails-always")
    assert status["restarts"] == 1
    assert "exited with 1" in next(c["message"] for c in status["conditions"] if c["type"] == "Failed")
    await live.gone("fails-once")
    await live.gone("fails-always")


async def test_gpus_taken_by_somebody_else_after_the_plan_are_given_up(live_cluster: Live, tmp_path: Path) -> None:
    """The API server binds a pod to a full node without a word: the accounting is ours."""
    live = live_cluster
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path):
        live.apply(training_job("robbed", seconds=LONG))
        await live.until("robbed", "PodsReady")
        robbed = nodes_of(live, "robbed")[0]
        live.apply(foreign_pod("robber", robbed))
        try:
            await replanned(live, "robbed")
            assert robbed not in nodes_of(live, "robbed")
            assert "NodeOverallocated" in live.events("robbed")
        finally:
            live.delete("pod", "robber", "--force", "--grace-period=0")
            await live.gone("robbed")


async def test_malformed_nodes_are_reported_and_left_alone(live: Live, controller: ControllerProcess) -> None:
    unknown = gpu_node("live-unknown", product="NVIDIA-X1-SECRET", **{"nvidia.com/gpu.memory": "lots"})
    live.apply(unknown)
    try:

        def reasons() -> list[str]:
            return [
                event["reason"] for event in live.list("events") if event["involvedObject"]["name"] == "live-unknown"
            ]

        await eventually(lambda: {"MalformedLabel", "UnusableGpus"} <= set(reasons()), what=lambda: str(reasons()))
    finally:
        live.cluster.kubectl("delete", "node", "live-unknown")


async def test_a_job_that_refers_to_nothing_says_so_and_starts_once_it_exists(
    live: Live, controller: ControllerProcess
) -> None:
    live.apply(training_job("queueless", queue="later"), training_job("classless", priorityClassName="later"))
    for job, reason in (("queueless", "QueueNotFound"), ("classless", "PriorityClassNotFound")):
        await eventually(lambda job=job, reason=reason: pending(live, job) == reason, what=f"{job} to be {reason}")
        await eventually(lambda job=job, reason=reason: reason in live.events(job), what=f"the event {reason}")
    queue = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "later"}, "spec": {}}
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "later"},
        "value": 7,
    }
    live.apply(queue, priority)
    try:
        await live.until("queueless", "Complete")
        await live.until("classless", "Complete")
    finally:
        await live.gone("queueless")
        await live.gone("classless")
        live.cluster.kubectl("delete", "queue/later", "priorityclass/later")


async def test_jobs_that_do_not_fit_wait_with_the_reason_and_start_when_room_is_made(
    live: Live, controller: ControllerProcess
) -> None:
    live.apply(training_job("first", gpus=32, seconds=LONG))
    await live.until("first", "PodsReady")
    live.apply(training_job("second", gpus=16, resources={"gpus": {"max": 16}, "gpuTypes": ["A100-SXM4-80GB"]}))
    await eventually(lambda: pending(live, "second") == "InsufficientGpus", what=lambda: str(live.status("second")))
    waits = live.status("second")["pending"]
    assert any("default/first holds 32" in blocker for blocker in waits["blockers"]), waits
    await live.gone("first")
    await live.until("second", "Complete")
    await live.gone("second")


def pending(live: Live, job: str) -> str:
    return str(live.status(job).get("pending", {}).get("reason", ""))


def foreign_pod(name: str, node: str, gpus: int = 8) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "image": "example.test/c", "resources": {"limits": limits}}],
        },
    }
