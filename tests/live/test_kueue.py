"""Kueue admits our jobs: real CRDs on the real API server, the real controller, and a Kueue that the tests play."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faultproxy import FaultProxy
from tests.live.harness import ControllerProcess, Live, eventually, training_job
from tests.live.scripted_kueue import CRDS, NoKueue, ScriptedKueue, crds

from trimtab import names

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
LONG = 600.0
POOL = {"pool": "kueue"}
TOLERATION = {"key": "pool", "operator": "Exists", "effect": "NoSchedule"}


def queued(name: str, *, low: int = 16, high: int = 16, **changes: Any) -> Json:
    """A job that LocalQueue `gpus` is to admit."""
    policy = "Fixed" if low == high else "Moldable"
    gpus = {"max": high} | ({"min": low} if low < high else {})
    spec = {"resources": {"gpus": gpus}, "elasticity": {"policy": policy}} | changes
    job = training_job(name, **spec)
    job["metadata"]["labels"] = {names.LABEL_KUEUE_QUEUE: "gpus"}
    return job


def install(live: Live, files: list[Path]) -> None:
    for file in files:
        live.cluster.kubectl("apply", "--server-side", "-f", str(file))
    created = "--for=jsonpath={.status.conditions}"  # kubectl cannot wait for a condition before there are any
    live.cluster.kubectl("wait", created, *_crd_names(), "--timeout=30s")
    live.cluster.kubectl("wait", "--for=condition=Established", *_crd_names(), "--timeout=30s")


def uninstall(live: Live) -> None:
    live.cluster.kubectl("delete", *_crd_names(), "--ignore-not-found", "--timeout=60s")


def _crd_names() -> list[str]:
    return [f"crd/{plural}.{names.KUEUE_GROUP}" for plural in CRDS]


@pytest.fixture(scope="module")
def files() -> list[Path]:
    try:
        return crds()
    except NoKueue as error:
        pytest.skip(f"Kueue's CRDs cannot be fetched here: {error}")


@pytest.fixture(scope="module")
def installed(live_cluster: Live, files: list[Path]) -> Iterator[None]:
    """Kueue's CRDs, and two of the four nodes in a pool of its own."""
    install(live_cluster, files)
    live_cluster.cluster.kubectl("label", "node", "live-2", "live-3", "pool=kueue")
    yield
    live_cluster.cluster.kubectl("label", "node", "live-2", "live-3", "pool-", "--overwrite")
    uninstall(live_cluster)


@pytest.fixture
async def kueue(live: Live, installed: None) -> AsyncIterator[ScriptedKueue]:
    async with ScriptedKueue(live.cluster.kubeconfig) as kueue:
        await kueue.flavor("pool", POOL, TOLERATION)
        yield kueue
    assert kueue.complaints == []


def waits(live: Live, job: str) -> str:
    pending = live.status(job).get("pending") or {}
    return f"{pending.get('reason')}: {pending.get('message')}"


async def says(live: Live, job: str, message: str) -> None:
    await eventually(lambda: message in waits(live, job), what=lambda: f"{job} to say {message!r}: {waits(live, job)}")


def nodes_of(live: Live, job: str) -> set[str]:
    return {node["name"] for node in (live.status(job).get("plan") or {}).get("nodes", ())}


def workload_uid(kueue: ScriptedKueue, job: str) -> str:
    return str(kueue.workload(job).get("metadata", {}).get("uid", ""))


def clear(live: Live, *jobs: str) -> None:
    """Away with jobs and what they hold; the garbage collector would take half a minute to learn of new kinds."""
    for job in jobs:
        live.delete("ltj", job, "--wait=false")
        live.cluster.kubectl("delete", "pods", "-l", f"{names.LABEL_JOB}={job}", "--force", "--grace-period=0")


async def test_without_kueue_its_label_means_nothing_and_an_event_says_so(live: Live, tmp_path: Path) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path):
        live.apply(queued("unheard"))
        await live.until("unheard", "Complete")
        await eventually(lambda: names.REASON_KUEUE_MISSING in live.events("unheard"), what="the event")
    clear(live, "unheard")


async def test_a_job_waits_for_kueue_and_keeps_to_what_it_gives(
    live: Live, kueue: ScriptedKueue, tmp_path: Path
) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path):
        live.apply(queued("asks", low=4, high=16, seconds=4), queued("foreign", managedBy="kueue.x-k8s.io/multikueue"))
        podset = (await kueue.asked("asks"))["spec"]["podSets"][0]
        assert (podset["count"], podset["minCount"]) == (16, 4)
        await says(live, "asks", "Kueue has not looked at")
        await kueue.refuse("asks", "WaitingForQuota", "insufficient quota in flavor pool")
        await says(live, "asks", "WaitingForAdmission: Kueue (WaitingForQuota): insufficient quota in flavor pool")
        assert not live.pods("asks")
        await kueue.admit("asks", 8, "pool")
        await kueue.until(lambda: kueue.holds("asks", "PodsReady"), "PodsReady")
        assert live.status("asks")["plan"]["gpus"] <= 8
        assert nodes_of(live, "asks") <= {"live-2", "live-3"}
        assert all(TOLERATION in pod["spec"]["tolerations"] for pod in live.pods("asks"))
        assert names.REASON_KUEUE_ADMITTED in live.events("asks")
        await kueue.until(lambda: kueue.holds("asks", "Finished"), "Finished")
        assert kueue.condition("asks", "Finished")["reason"] == "Succeeded"
        assert not kueue.workload("foreign")
    clear(live, "asks", "foreign")


async def test_an_evicted_gang_is_stopped_gives_its_quota_back_and_waits_again(
    live: Live, kueue: ScriptedKueue, tmp_path: Path
) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path):
        live.apply(queued("guest", seconds=LONG))
        await kueue.asked("guest")
        await kueue.admit("guest", 16, "pool")
        await kueue.until(lambda: kueue.holds("guest", "PodsReady"), "PodsReady")
        await kueue.evict("guest")
        await kueue.until(lambda: not kueue.holds("guest", "QuotaReserved"), "the quota to be given back")
        assert "admission" not in kueue.workload("guest")["status"]
        assert kueue.holds("guest", "Requeued")
        assert not live.pods("guest")
        status = live.status("guest")
        assert [stop["cause"] for stop in status["stops"]] == ["Evicted"]
        assert status.get("restarts", 0) == 0
        await says(live, "guest", "evicted by Kueue (Preempted)")
        await kueue.admit("guest", 16, "pool")
        await kueue.until(lambda: kueue.holds("guest", "PodsReady"), "PodsReady again")
        assert live.status("guest")["plan"]["epoch"] == 2
    clear(live, "guest")


async def test_edits_suspension_and_a_deleted_workload_converge(
    live: Live, kueue: ScriptedKueue, tmp_path: Path
) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path):
        live.apply(queued("edited", seconds=LONG))
        first = (await kueue.asked("edited"))["metadata"]["uid"]
        live.patch("ltj", "edited", {"spec": {"resources": {"gpus": {"max": 8}}}})
        await kueue.until(lambda: kueue.workload("edited")["spec"]["podSets"][0]["count"] == 8, "the edit")
        assert kueue.workload("edited")["metadata"]["uid"] == first
        live.patch("ltj", "edited", {"spec": {"suspend": True}})
        await kueue.until(lambda: not kueue.workload("edited"), "the Workload to be withdrawn")
        live.patch("ltj", "edited", {"spec": {"suspend": False}})
        second = (await kueue.asked("edited"))["metadata"]["uid"]
        await kueue.admit("edited", 8, "pool")
        await live.until("edited", "PodsReady")
        await kueue.delete("edited")
        await kueue.until(lambda: workload_uid(kueue, "edited") not in ("", second), "the job to ask anew")
        assert live.pods("edited")
        await kueue.refuse("edited", "Inadmissible", "ClusterQueue research is inactive")
        await says(live, "edited", "ClusterQueue research is inactive")
        await eventually(lambda: not live.pods("edited"), what="its pods to be gone")
    clear(live, "edited")


async def test_controllers_killed_at_writes_to_a_workload_go_on_from_there(
    live: Live, kueue: ScriptedKueue, proxy: FaultProxy, tmp_path: Path
) -> None:
    """One dies when it has asked, one when it has told that the gang runs, and the third tells of its end."""
    live.apply(queued("crashed", seconds=4.0))
    for method, path in (("POST", ".*/workloads"), ("PATCH", ".*/workloads/.*/status")):
        async with ControllerProcess(proxy.kubeconfig, tmp_path) as controller:
            await proxy.victim(controller.pid)
            await proxy.inject("kill-after", method=method, path=path)
            await kueue.asked("crashed")
            if not kueue.holds("crashed", "Admitted"):
                await kueue.admit("crashed", 16, "pool")
            await controller.died()
    async with ControllerProcess(proxy.kubeconfig, tmp_path):
        await kueue.until(lambda: kueue.holds("crashed", "Finished"), "Finished")
    assert len([new for kind, new in kueue.seen if kind == "ADDED"]) == 1
    clear(live, "crashed")


async def test_when_kueue_is_removed_gangs_run_on_and_who_waits_goes_on_waiting(
    live: Live, kueue: ScriptedKueue, tmp_path: Path
) -> None:
    """The last one: Kueue stays away."""
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path):
        live.apply(queued("runs", low=8, high=8, seconds=LONG), queued("stays", low=8, high=8))
        await kueue.asked("runs")
        await kueue.asked("stays")
        await kueue.refuse("stays", "WaitingForQuota", "none left")
        await kueue.admit("runs", 8, "pool")
        await live.until("runs", "PodsReady")
        await says(live, "stays", "none left")
        uninstall(live)
        await says(live, "stays", "Kueue is no longer installed")
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path) as successor:
        await eventually(lambda: "LEADER" in successor.tail(400).upper(), what="a successor that leads")
        await says(live, "stays", "Kueue is no longer installed")
        assert live.holds("runs", "PodsReady")
        assert live.status("runs")["plan"]["epoch"] == 1
    clear(live, "runs", "stays")
