"""The API server refuses, hangs, lies, forgets or is away: nothing is touched meanwhile, and work goes on after.

Rows F4 to F8, F12 to F14, F33 and F34 of the matrix; longer outages and other lies are in `test_outages`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.faults import witness_state
from tests.faults.testbed import Stand
from tests.faults.watcher import Watcher
from tests.faults.workloads import LONG
from tests.live.harness import ControllerProcess, eventually, training_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

JOBS = "llmtrainingjobs"
BUT_LEASES = r"^(?!.*/leases)"
ENDLESS = 1_000_000


def uids(seen: Watcher, job: str) -> set[str]:
    return {witness_state.uid_of(pod) for pod in seen.pods(job)}


async def started(stand: Stand, job: str) -> set[str]:
    """A gang that runs; its pods."""
    await stand.hands.create(JOBS, training_job(job, seconds=LONG))
    await stand.runs(job)
    return uids(stand.watcher, job)


async def ends_after(stand: Stand, job: str, gpus: int = 8) -> None:
    """A new job shows that work goes on."""
    await stand.hands.create(JOBS, training_job(job, gpus=gpus, seconds=0.1))
    await stand.ends(job, seconds=30)


async def test_status_writes_that_conflict_are_tried_again_without_haste(stand: Stand) -> None:
    await stand.running()
    await stand.proxy.inject("status:409", method="PATCH", path="/status", count=ENDLESS)
    await stand.hands.create(JOBS, training_job("conflict", seconds=0.1))
    await asyncio.sleep(4)
    tries = await stand.proxy.struck()
    assert 1 <= tries <= 40
    assert not stand.watcher.pods("conflict"), "there is no plan: nothing may be made"
    await stand.proxy.heal()
    await stand.ends("conflict")
    await stand.clear("conflict")


@pytest.mark.parametrize("code", [429, 500])
async def test_an_overloaded_api_server_is_not_pressed_and_gangs_stay(stand: Stand, code: int) -> None:
    controller = await stand.running()
    before = await started(stand, f"stays-{code}")
    await stand.proxy.inject(f"status:{code}", path=BUT_LEASES, count=ENDLESS)
    await stand.proxy.sever()
    await stand.hands.create(JOBS, training_job(f"waits-{code}", gpus=8, seconds=0.1))
    await asyncio.sleep(4)
    assert controller.alive, controller.tail()
    asked = await stand.proxy.struck()
    assert asked <= 200, "40 requests a second from one controller that gets no answer are a storm"
    await stand.proxy.heal()
    await stand.ends(f"waits-{code}", seconds=20)
    assert uids(stand.watcher, f"stays-{code}") == before
    await stand.clear(f"stays-{code}", f"waits-{code}")


@pytest.mark.parametrize(
    ("method", "where"), [("POST", "pods/hung-.*/binding"), ("PATCH", "hung/status"), ("POST", "/pods$")]
)
async def test_a_request_that_hangs_holds_nobody_else_up_for_long(stand: Stand, method: str, where: str) -> None:
    await stand.running({"kube": {"request_timeout": 2.0}})
    await stand.proxy.inject("hang:60", method=method, path=where, count=1)
    await stand.hands.create(JOBS, training_job("hung", seconds=0.1))
    await stand.watcher.until(lambda seen: stand.watcher.job("hung"), 10, "the job")
    await ends_after(stand, "passes-by")
    await stand.ends("hung", seconds=40)
    await stand.clear("hung", "passes-by")


async def test_an_api_server_that_is_away_costs_no_pod_and_work_goes_on_when_it_is_back(stand: Stand) -> None:
    controller = await stand.running()
    before = await started(stand, "outlives")
    async with stand.watcher.excuse():
        await stand.proxy.inject("reset", count=ENDLESS)
        await stand.proxy.sever()
        await stand.hands.create(JOBS, training_job("after-outage", gpus=8, seconds=0.1))
        await asyncio.sleep(8)
        await stand.proxy.heal()
    await stand.ends("after-outage", seconds=20)
    assert controller.alive, "who has lost its lease stands for election again"
    assert uids(stand.watcher, "outlives") == before
    await stand.clear("outlives", "after-outage")


async def test_an_event_that_was_lost_is_healed_by_the_next_list(stand: Stand) -> None:
    await stand.running({"reflector": {"resync_seconds": 3.0}})
    await started(stand, "unheard")
    await stand.proxy.inject("drop-event:DELETED", path="/pods.*watch=true")
    await stand.proxy.sever()
    await stand.watcher.until(lambda seen: seen.pods("unheard"), 10, "pods")
    await asyncio.sleep(1)
    await stand.hands.delete("pods", "unheard-1-1", grace=0)
    await stand.runs("unheard", epoch=2)
    await stand.clear("unheard")


@pytest.mark.parametrize("kind", ["pods", "nodes", "llmtrainingjobs"])
async def test_a_list_that_is_older_than_what_was_seen_is_not_acted_on(stand: Stand, kind: str) -> None:
    """The first list of this controller knows no job: whoever believes it again would delete or make pods."""
    stand.stop()
    await stand.running()
    job = f"time-travel-{kind[:4]}"
    before = await started(stand, job)
    await stand.proxy.inject("stale-list", path=f"/{kind}", count=4)
    await stand.proxy.inject("gone", path=f"/{kind}.*watch=true", count=1)
    await stand.proxy.sever()
    await asyncio.sleep(2)
    assert uids(stand.watcher, job) == before
    await stand.proxy.heal()
    await ends_after(stand, f"{job}-next")
    assert uids(stand.watcher, job) == before
    await stand.clear(job, f"{job}-next")


async def test_a_leader_whose_renewals_alone_are_lost_stops_before_another_one_starts(
    stand: Stand, tmp_path: Path
) -> None:
    cut_off = await stand.running({"leadership": {"identity": "cut-off"}})
    before = await started(stand, "fenced")
    await stand.proxy.inject("status:503", method="PUT", path="/leases/", count=ENDLESS)
    kubeconfig = stand.live.kubeconfig(tmp_path)
    async with ControllerProcess(kubeconfig, tmp_path, leadership={"identity": "other"}) as other:
        await eventually(lambda: "leading" in other.tail(1000), what="the other one to lead")
        await ends_after(stand, "by-the-other")
        assert "standing for election again" in cut_off.tail(1000)
    await stand.proxy.heal()
    assert uids(stand.watcher, "fenced") == before
    await stand.clear("fenced", "by-the-other")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_controller_that_was_killed_or_frozen_restarts_no_job(stand: Stand, number: signal.Signals) -> None:
    controller = await stand.running()
    job = f"unmoved-{number.name.lower()}"
    before = await started(stand, job)
    controller.signal(number)
    if number == signal.SIGKILL:
        await controller.died()
    else:
        await asyncio.sleep(5)  # longer than its lease
        controller.signal(signal.SIGCONT)
        await asyncio.sleep(1)
    await stand.running()
    await ends_after(stand, f"{job}-next")
    assert uids(stand.watcher, job) == before
    assert await stand.watcher.rests(3) == {}
    await stand.clear(job, f"{job}-next")


async def test_a_control_plane_that_stops_for_a_while_costs_no_pod(stand: Stand) -> None:
    """F33: etcd and the API server are frozen, as by a slow disk, and go on."""
    await stand.running()
    before = await started(stand, "held")
    parts = stand.live.cluster.status().components
    frozen = [parts["etcd"], parts["kube-apiserver"]]
    async with stand.watcher.excuse():
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(6)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(1)
        await stand.running()
        await ends_after(stand, "after-thaw")
    assert uids(stand.watcher, "held") == before
    await stand.clear("held", "after-thaw")


async def test_somebody_who_edits_all_the_time_is_no_obstacle(stand: Stand) -> None:
    """F33: `kubectl apply` in a loop races with every write of ours."""
    await stand.running()
    await stand.hands.create(JOBS, training_job("contended", seconds=0.1))
    for number in range(60):
        label = {"metadata": {"labels": {"number": str(number)}}}
        await stand.hands.patch(JOBS, "contended", label)
    await stand.ends("contended")
    assert witness_state.plan_of(stand.watcher.job("contended"))["epoch"] == 1
    await stand.clear("contended")
