"""What a job of one tenant says, or is kept from ending by, stops nobody else: against a running controller.

Nothing here needs more than the right to create jobs. (What admission policies refuse is in `test_tenancy`; here they
are not installed, for a hole must be closed behind them, too.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.harness import NAMESPACE, ControllerProcess, Live, eventually, training_job
from tests.live.trainings import AT_ONCE, REPORTS, forget, tells

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

FORCED = ("-n", NAMESPACE, "--force", "--grace-period=0")
KEPT = "evil.example/keep"
JOBS = ("lasting", "forever", "large", "small", "one", "two", "three", "honest", "victim")
IN_VAIN, WAITING = ("vain-1", "vain-2", "vain-3"), ("wait-1", "wait-2", "wait-3")


@pytest.fixture
async def controller(live: Live, tmp_path: Path) -> AsyncIterator[ControllerProcess]:
    """A controller that listens to trainings, and has learned nothing from those of the tests before."""
    forget(live)
    process = ControllerProcess(live.kubeconfig(tmp_path), tmp_path, reports=REPORTS, telemetry=AT_ONCE).start()
    yield process
    for job in JOBS:
        if live.get("ltj", job):
            live.patch("ltj", job, {"metadata": {"finalizers": None}})
        await live.gone(job)
    live.cluster.kubectl("delete", "ltq", "hostile", "--ignore-not-found")
    process.stop()
    forget(live)
    assert process.alive is False


def reason(live: Live, job: str) -> str:
    return str(live.status(job).get("pending", {}).get("reason", ""))


async def test_a_training_that_says_it_ends_in_the_year_2739933_halts_nobody(
    live: Live, controller: ControllerProcess
) -> None:
    forever = training_job("forever", gpus=16)
    forever["spec"]["training"]["steps"] = 1_000_000_000
    live.apply(forever)
    await live.until("forever", names.PODS_READY)
    await tells(live, controller, "forever", stepSeconds=86_400)
    await eventually(lambda: "observed" in live.status("forever"), 20, "its figures in its status")
    live.apply(training_job("large", gpus=32))
    await eventually(lambda: reason(live, "large") != "", 20, "the large one to wait for the GPUs of the other")
    live.apply(training_job("small", gpus=8))
    await live.until("small", names.PODS_READY, 20)
    assert reason(live, "large") in ("InsufficientGpus", "Fragmented")
    assert controller.metric("trimtab_policy_fallbacks_total") == 0
    assert controller.metric("trimtab_isolated_errors_total") == 0
    assert controller.alive


async def test_a_finalizer_keeps_no_gpus_and_no_quota_is_used_twice(live: Live, controller: ControllerProcess) -> None:
    queue: dict[str, Any] = {"apiVersion": names.API_VERSION, "kind": names.QUEUE_KIND, "metadata": {"name": "hostile"}}
    live.apply(queue | {"spec": {"quotas": [{"gpuType": "*", "gpus": 8}]}})
    for name in ("one", "two", "three"):
        made = training_job(name, gpus=8, seconds=600, queue="hostile")
        made["metadata"]["finalizers"] = [KEPT]
        live.apply(made)
        await live.until(name, names.PODS_READY)
        live.delete("ltj", name, "--wait=false")
        await eventually(lambda name=name: not live.pods(name), 20, f"the pods of {name} to go with it")
        assert live.get("ltj", name)["metadata"]["finalizers"] == [KEPT], "the object is still there"
    # Of these jobs only: pods of jobs that other tests have left done stand in the same namespace.
    assert [pod["metadata"]["name"] for name in ("one", "two", "three") for pod in live.pods(name)] == []


async def test_whoever_fills_both_lines_of_a_queue_sets_nothing_going_that_never_rests(
    live: Live, tmp_path: Path
) -> None:
    """At the end of each line there is a job that is just not considered. Two of them once changed places for ever:
    one that no time helps was told that it is not considered, so nobody knew that of it any more."""
    queue: dict[str, Any] = {"apiVersion": names.API_VERSION, "kind": names.QUEUE_KIND, "metadata": {"name": "hostile"}}
    live.apply(queue | {"spec": {"quotas": [{"gpuType": "*", "gpus": 0}]}})
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, queues={"considered_per_queue": 1}) as controller:

        def writes() -> float:
            return controller.metric("trimtab_api_requests_total", resource="llmtrainingjobs/status")

        def reasons() -> list[str]:
            return [reason(live, name) for name in (*IN_VAIN, *WAITING)]

        expected = ["ClusterTooSmall"] * 3 + ["QuotaExceeded", "NotConsidered", "NotConsidered"]
        try:
            for name in (*IN_VAIN, *WAITING):
                live.apply(training_job(name, gpus=8 if name in WAITING else 8192, seconds=600, queue="hostile"))
            await eventually(lambda: reasons() == expected, 60, lambda: str(reasons()))
            before = writes()
            await asyncio.sleep(8)
            assert (reasons(), writes()) == (expected, before)
        finally:
            live.delete("ltj", *IN_VAIN, *WAITING)
            live.delete("ltq", "hostile")


async def test_pods_that_take_long_to_end_count_until_they_are_gone(live: Live, controller: ControllerProcess) -> None:
    queue: dict[str, Any] = {"apiVersion": names.API_VERSION, "kind": names.QUEUE_KIND, "metadata": {"name": "hostile"}}
    live.apply(queue | {"spec": {"quotas": [{"gpuType": "*", "gpus": 8}]}})
    live.apply(training_job("one", gpus=8, seconds=600, queue="hostile"))
    await live.until("one", names.PODS_READY)
    pods = [pod["metadata"]["name"] for pod in live.pods("one")]
    for pod in pods:
        live.patch("pod", pod, {"metadata": {"finalizers": [KEPT]}})
    live.delete("ltj", "one", "--wait=false")
    live.apply(training_job("two", gpus=8, seconds=600, queue="hostile"))
    await eventually(lambda: reason(live, "two") == "QuotaExceeded", 20, lambda: str(live.status("two")))
    for pod in pods:
        live.patch("pod", pod, {"metadata": {"finalizers": None}})
    await live.until("two", names.PODS_READY, 90)  # the garbage collector learns of new CRDs every 30 s


async def test_what_another_namespace_says_is_a_jobs_is_not(live: Live, controller: ControllerProcess) -> None:
    """Pods and Services there name its UID: of a group that the garbage collector does not know, so they stay."""
    live.apply(training_job("victim", gpus=8, seconds=600, suspend=True))
    owner = {"apiVersion": "evil.example/v1", "kind": names.JOB_KIND, "name": "victim", "controller": True}
    owner["uid"] = live.get("ltj", "victim")["metadata"]["uid"]
    meta = {"name": "victim", "namespace": "hostile", "ownerReferences": [owner]}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hostile"}}
    container = {"name": "any", "image": "example.test/any:1"}
    forged = (
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"clusterIP": "None"}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}},
    )
    live.apply(space, *forged)
    try:
        live.patch("ltj", "victim", {"spec": {"suspend": False}})
        await live.until("victim", names.PODS_READY)
        assert live.get("service", "victim"), "its gang finds itself"
        live.patch("ltj", "victim", {"spec": {"suspend": True}})
        await eventually(lambda: not live.pods("victim"), 30, "its gang to be gone")
        live.patch("ltj", "victim", {"spec": {"suspend": False}})
        await live.until("victim", names.PODS_READY)
        there = live.cluster.kubectl("get", "pod,service", "victim", "-n", "hostile", "-o", "name").split()
        assert there == ["pod/victim", "service/victim"], "and they were there all the time"
    finally:
        live.cluster.kubectl("delete", "namespace", "hostile", "--wait=false")


async def test_who_deletes_pods_with_centuries_to_end_gives_them_no_more_than_their_own_spec(
    live: Live, controller: ControllerProcess
) -> None:
    """The API server takes any time from whoever may delete a pod, and a kubelet would wait for so long."""
    lasting = training_job("lasting", gpus=16, seconds=6000)
    stubborn = {"annotations": {"pod-delete.stage.kwok.x-k8s.io/delay": "48h"}}  # it ignores SIGTERM
    lasting["spec"]["template"] |= {"metadata": stubborn}
    live.apply(lasting)
    await live.until("lasting", names.PODS_READY)
    for rank, seconds in enumerate((9_000_000_000, 10_000_000_000)):
        live.delete("pod", f"lasting-1-{rank}", f"--grace-period={seconds}", "--wait=false")
    given = {pod["metadata"]["name"]: pod["metadata"] for pod in live.pods("lasting")}
    assert given, "they are still there"

    def graces() -> list[int]:
        return [pod["metadata"].get("deletionGracePeriodSeconds", 0) for pod in live.pods("lasting")]

    await eventually(lambda: graces() == [30, 30], what=lambda: f"30 s each: {graces()}, {live.status('lasting')}")
    live.cluster.kubectl("delete", "pods", *given, *FORCED)  # as kubelets would by now
    await eventually(lambda: live.status("lasting").get("plan", {}).get("epoch") == 2, 40, "it to start anew")
    live.delete("ltj", "lasting", "--wait=false")
    await eventually(lambda: graces() == [30, 30], what="the second gang to be deleted, too")
    live.cluster.kubectl("delete", "pods", "-l", f"{names.LABEL_JOB}=lasting", *FORCED)
