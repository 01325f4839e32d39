"""Room for a job that is more urgent, on a full cluster: who has to go is asked first, and comes back where it was.

The oracle of `live` counts GPUs all the time: no node ever has more requested than it has, whoever comes when.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faultproxy import FaultProxy
from tests.live.harness import ControllerProcess, Live, eventually, training_job

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

URGENT = "room-urgent"
ANSWERS = {"minRuntimeSeconds": 0, "checkpoint": {"graceSeconds": 60}}


@pytest.fixture(autouse=True)
def priority(live: Live) -> Iterator[None]:
    live.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": URGENT},
            "value": 1000,
        }
    )
    yield
    live.cluster.kubectl("delete", "priorityclass", URGENT)


def modest(name: str, gpus: int = 16, seconds: float = 6.0, policy: str = "Fixed", **spec: Any) -> dict[str, Any]:
    """A job that may be stopped at once, and answers."""
    return training_job(name, gpus=gpus, seconds=seconds, elasticity={"policy": policy, **ANSWERS}, **spec)


def urgent(name: str, gpus: int = 16, seconds: float = 1.0) -> dict[str, Any]:
    return modest(name, gpus, seconds, priorityClassName=URGENT)


async def a_full_cluster(live: Live, *jobs: str, seconds: float) -> None:
    """All four nodes are taken by these two jobs."""
    live.apply(*(modest(name, seconds=seconds) for name in jobs))
    for name in jobs:
        await live.until(name, names.PODS_READY)


async def stops(live: Live, job: str) -> None:
    """Suspend a job, wait until its pods are gone, and delete it: nobody waits for a collector."""
    live.patch("ltj", job, {"spec": {"suspend": True}})
    await eventually(lambda: not live.pods(job), what=lambda: f"{job} to be gone: {live.status(job)}")
    live.delete("ltj", job, "--wait=false")


def plan(live: Live, job: str) -> dict[str, Any]:
    found: dict[str, Any] = live.status(job).get("plan", {})
    return found


async def test_a_gang_of_lower_priority_makes_room_and_goes_on_afterwards(live: Live, tmp_path: Path) -> None:
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path) as process:
        # They run until the test ends them: on a slow machine one that ended by itself would make room, too.
        await a_full_cluster(live, "modest-a", "modest-b", seconds=3600)
        live.apply(urgent("urgent"))
        await live.until("urgent", names.COMPLETE)
        [left] = plan(live, "urgent")["waitsFor"]
        victim = left["job"].removeprefix("default/")
        assert (left["epoch"], left["cause"]) == (1, "Preempted")
        other = ({"modest-a", "modest-b"} - {victim}).pop()
        await eventually(
            lambda: plan(live, victim).get("epoch") == 2, what=lambda: f"its way back: {live.status(victim)}"
        )
        await live.until(victim, names.PODS_READY)
        status = live.status(victim)
        [record] = status["stops"]
        assert (record["cause"], record["beneficiary"]) == ("Preempted", "default/urgent")
        assert (status["plan"]["epoch"], status.get("restarts", 0), status.get("setbacks", 0)) == (2, 0, 0)
        assert names.CHECKPOINT_REQUESTED in live.events(victim)
        assert (plan(live, other)["epoch"], "stops" in live.status(other)) == (1, False)
        assert process.metric("trimtab_preemptions_total", cause="Preempted") == 1
        assert process.metric("trimtab_repeated_preemptions_total") == 0
        for name in (victim, other):
            await stops(live, name)


async def test_a_controller_that_dies_once_the_plan_is_written_stops_nobody_too_many_or_too_few(
    live: Live, proxy: FaultProxy, tmp_path: Path
) -> None:
    first = ControllerProcess(proxy.kubeconfig, tmp_path).start()
    second = ControllerProcess(proxy.kubeconfig, tmp_path)
    try:
        await a_full_cluster(live, "killed-a", "killed-b", seconds=600)
        await proxy.inject("kill-after", path=r"llmtrainingjobs/heir/status", nth=1)
        await proxy.victim(first.pid)
        live.apply(urgent("heir"))
        await first.died()
        [left] = plan(live, "heir")["waitsFor"]
        victim = left["job"].removeprefix("default/")
        assert "stop" not in live.status(victim), "nobody was asked before the plan was written"
        second.start()
        await live.until("heir", names.COMPLETE, 60)
        await eventually(
            lambda: plan(live, victim).get("epoch") == 2, what=lambda: f"the way back: {live.status(victim)}"
        )
        await live.until(victim, names.PODS_READY)
        assert [record["beneficiary"] for record in live.status(victim)["stops"]] == ["default/heir"]
        for name in ("killed-a", "killed-b"):
            await stops(live, name)
    finally:
        first.stop()
        second.stop()


async def test_an_elastic_job_grows_where_gpus_are_free_and_keeps_its_steps(live: Live, tmp_path: Path) -> None:
    settings = {"elasticity": {"interval_seconds": 0.5}}
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **settings) as process:
        live.apply(modest("in-the-way", seconds=600))
        await live.until("in-the-way", names.PODS_READY)
        grows = modest("grows", gpus=32, seconds=600, policy="Elastic")
        grows["spec"]["resources"]["gpus"]["min"] = 8
        grows["spec"]["elasticity"]["checkpoint"]["resharding"] = True
        live.apply(grows)
        await live.until("grows", names.PODS_READY)
        before = plan(live, "grows")
        assert before["gpus"] <= 16
        await stops(live, "in-the-way")
        await eventually(
            lambda: plan(live, "grows").get("gpus", 0) > before["gpus"] and live.holds("grows", names.PODS_READY),
            30,
            lambda: f"it to grow: {live.status('grows')}\n{process.tail()}",
        )
        status = live.status("grows")
        assert [record["cause"] for record in status["stops"]] == ["Resized"]
        assert status["plan"]["epoch"] == before["epoch"] + 1
        assert status["observed"]["stepsDone"] >= status["observed"]["lastCheckpointStep"] > 0
        await stops(live, "grows")


async def test_a_preemptive_policy_has_its_way_with_elastic_jobs(live: Live, tmp_path: Path) -> None:
    settings = {"policy": {"name": "srtf", "fallback": "fcfs"}, "preemption": {"enabled": False}}
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **settings):
        live.apply(modest("long", gpus=32, seconds=600, policy="Elastic"))
        await live.until("long", names.PODS_READY)
        live.apply(urgent("short", gpus=32, seconds=0.5))
        await live.until("short", names.COMPLETE)
        [record] = live.status("long")["stops"]
        assert (record["cause"], record["beneficiary"]) == ("Yielded", "default/short")
        assert plan(live, "short")["policy"] == "srtf"
        await eventually(
            lambda: plan(live, "long").get("epoch") == 2, what=lambda: f"its return: {live.status('long')}"
        )
        await stops(live, "long")
