"""Nodes go, stop, are closed or filled between the plan and the last pod, and pods come to a bad end: the gang is whole
somewhere, or nowhere.

Rows F17, F19 to F22 of the matrix; `test_disruptions` has those of F18 and F31.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.faults import witness_state
from tests.faults.testbed import Stand
from tests.faults.watcher import Watcher
from tests.faults.workloads import FOUR_NODES, LONG, nodes_back, whole
from tests.live.harness import training_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

JOBS = "llmtrainingjobs"
NOT_READY = "fake.trimtab.dev/not-ready"


@pytest.fixture(autouse=True)
async def all_nodes_after(stand: Stand) -> AsyncIterator[None]:
    yield
    for name in FOUR_NODES:
        if stand.watcher.node(name):
            await set_ready(stand, name, True)
            await stand.hands.patch("nodes", name, {"spec": {"unschedulable": None, "taints": None}})
    await nodes_back(stand)


async def set_ready(stand: Stand, node: str, ready: bool) -> None:
    """KWOK keeps a node with this mark NotReady."""
    mark = {NOT_READY: None if ready else "true"}
    await stand.hands.patch("nodes", node, {"metadata": {"labels": mark, "annotations": mark}})


def nodes_of(seen: Watcher, job: str) -> list[str]:
    return [node["name"] for node in witness_state.plan_of(seen.job(job)).get("nodes", [])]


async def planned(stand: Stand, job: str) -> list[str]:
    """Create a job and wait for its plan; nodes of it."""
    await stand.hands.create(JOBS, training_job(job, seconds=LONG))
    await stand.watcher.until(lambda seen: nodes_of(seen, job), 30, lambda: f"a plan: {stand.tell(job)}")
    return nodes_of(stand.watcher, job)


async def whole_again(stand: Stand, job: str, epoch: int = 1) -> list[str]:
    await stand.watcher.until(lambda seen: whole(seen, job, epoch), 40, lambda: f"{job} to be whole: {stand.tell(job)}")
    return nodes_of(stand.watcher, job)


@pytest.mark.parametrize("again", [False, True])
async def test_a_pod_that_was_deleted_before_its_binding_arrives_costs_no_gang_its_wholeness(
    stand: Stand, again: bool
) -> None:
    """F17: with `again` somebody has made another pod of the same name meanwhile, which is not ours to bind."""
    job = f"bind-late-{again}".lower()
    await stand.running()
    await stand.proxy.inject("delay:2", path=f"pods/{job}-1-1/binding")
    await stand.hands.create(JOBS, training_job(job, seconds=LONG))
    await stand.watcher.until(lambda seen: len(seen.pods(job)) == 2, 30, "two pods")
    await stand.hands.delete("pods", f"{job}-1-1", grace=0)
    if again:
        container = {"name": "c", "image": "example.test/c"}
        other = {"metadata": {"name": f"{job}-1-1"}, "spec": {"schedulerName": "nobody", "containers": [container]}}
        await stand.hands.create("pods", {"apiVersion": "v1", "kind": "Pod", **other})
    await whole_again(stand, job)
    if again:
        left = await stand.hands.get("pods", f"{job}-1-1")
        assert not left["metadata"].get("ownerReferences"), "what is not ours stays as it is"
        await stand.hands.delete("pods", f"{job}-1-1", grace=0)
    await stand.clear(job)


@pytest.mark.parametrize("how", ["deleted", "tainted", "cordoned"])
async def test_a_node_that_is_closed_while_a_binding_is_under_way_keeps_no_part_of_a_gang(
    stand: Stand, how: str
) -> None:
    job = f"closed-{how}"
    await stand.running()
    await stand.proxy.inject("delay:1.5", path=f"pods/{job}-1-1/binding")
    closed = (await planned(stand, job))[1]
    await stand.watcher.until(lambda seen: len(seen.pods(job)) == 2, 30, "two pods")
    if how == "deleted":
        await stand.hands.delete("nodes", closed)
        assert closed not in await whole_again(stand, job, epoch=2)
    else:
        taint = {"taints": [{"key": "broken", "effect": "NoSchedule"}]}
        await stand.hands.patch("nodes", closed, {"spec": taint if how == "tainted" else {"unschedulable": True}})
        await whole_again(stand, job)  # bound in time or not: NoSchedule is for those who come later
    await stand.clear(job)


@pytest.mark.parametrize("stage", ["before", "half", "running"])
async def test_a_node_that_stops_being_ready_leaves_the_gang_whole_or_nowhere(stand: Stand, stage: str) -> None:
    job = f"unready-{stage}"
    await stand.running()
    if stage != "running":
        await stand.proxy.inject(
            "status:500", path=f"pods/{job}-1-{'.' if stage == 'before' else '1'}/binding", count=9
        )
    lost = (await planned(stand, job))[1]
    if stage == "running":
        await stand.runs(job)
    await set_ready(stand, lost, False)
    where = await whole_again(stand, job, epoch=2)
    assert lost not in where
    await stand.clear(job)


async def test_a_node_that_flickers_costs_nothing(stand: Stand) -> None:
    await stand.running({"gang": {"node_grace_seconds": 20.0}})
    flickers = (await planned(stand, "flicker"))[0]
    await stand.runs("flicker")
    before = {witness_state.uid_of(pod) for pod in stand.watcher.pods("flicker")}
    for ready in (False, True, False, True):
        await set_ready(stand, flickers, ready)
        await asyncio.sleep(1)
    await stand.watcher.until(lambda seen: whole(seen, "flicker", 1), 10, "the gang")
    assert {witness_state.uid_of(pod) for pod in stand.watcher.pods("flicker")} == before
    await stand.clear("flicker")


async def test_when_all_nodes_seem_lost_at_once_no_gang_is_taken_down(stand: Stand) -> None:
    """F21: the network, or the API server, more likely than four nodes in one second."""
    await stand.running()
    await planned(stand, "braked")
    await stand.runs("braked")
    before = {witness_state.uid_of(pod) for pod in stand.watcher.pods("braked")}
    await asyncio.gather(*(set_ready(stand, node, False) for node in FOUR_NODES))
    await stand.watcher.until(
        lambda seen: witness_state.holds(seen.job("braked"), "Degraded"),
        30,
        lambda: f"a condition: {stand.tell('braked')}",
    )
    await asyncio.sleep(4)
    assert {
        witness_state.uid_of(pod) for pod in stand.watcher.pods("braked") if not witness_state.leaving(pod)
    } == before
    await asyncio.gather(*(set_ready(stand, node, True) for node in FOUR_NODES))
    await stand.watcher.until(
        lambda seen: not witness_state.holds(seen.job("braked"), "Degraded"),
        30,
        lambda: f"its end: {stand.tell('braked')}",
    )
    assert whole(stand.watcher, "braked", 1)
    await stand.clear("braked")


@pytest.mark.parametrize("reason", ["OutOfnvidia.com/gpu", "Evicted", "NodeShutdown"])
async def test_a_pod_that_its_kubelet_refuses_takes_the_gang_with_it_and_it_starts_anew(
    stand: Stand, reason: str
) -> None:
    job = f"refused-{reason[:4].lower()}"
    await stand.running()
    await planned(stand, job)
    await stand.runs(job)
    status = {"status": {"phase": "Failed", "reason": reason, "message": "said the kubelet"}}
    await stand.hands.patch("pods", f"{job}-1-1", status, status=True)
    await whole_again(stand, job, epoch=2)
    assert witness_state.status_of(stand.watcher.job(job)).get("restarts", 0) <= 1
    await stand.clear(job)
