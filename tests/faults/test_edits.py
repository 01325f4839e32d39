"""Whatever is edited at whatever stage: it is refused, or the job comes to rest with it, and the old spec heals all.

Rows F25 and F29 of the matrix.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.faults import witness_state
from tests.faults.edits import Edit, job_edits
from tests.faults.raw_client import Refused, path
from tests.faults.testbed import Stand
from tests.faults.watcher import Watcher
from tests.faults.workloads import LONG, whole
from tests.live.harness import training_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

JOBS = "llmtrainingjobs"
QUICK = {"policy": "Fixed", "checkpoint": {"graceSeconds": 1, "resharding": True}, "minRuntimeSeconds": 0}


def job(name: str, **spec: Any) -> dict[str, Any]:
    return training_job(name, seconds=LONG, **{"elasticity": QUICK} | spec)


def seen_by_controller(seen: Watcher, name: str) -> bool:
    found = seen.job(name)
    return bool(witness_state.status_of(found).get("observedGeneration") == found["metadata"]["generation"])


async def edited(stand: Stand, name: str, edit: Edit) -> bool:
    """Whether the API server took it."""
    try:
        await stand.hands.patch(JOBS, name, edit.patch())
    except Refused as refused:
        if refused.code not in (400, 422):
            raise
        return False
    return True


def test_every_property_of_the_schema_is_edited() -> None:
    edits = job_edits()
    assert len(edits) > 200
    assert len({edit.path for edit in edits}) > 50
    assert sum(not edit.sound for edit in edits) > 80


async def test_any_edit_is_refused_or_survived_and_rolling_back_recovers(stand: Stand) -> None:
    await stand.running()
    original = job("edited-all")
    await stand.hands.create(JOBS, original)
    await stand.runs("edited-all")
    taken = []
    for edit in job_edits():
        if await edited(stand, "edited-all", edit):
            taken.append(edit)
            await rolled_back(stand, original)
    assert not [str(edit) for edit in taken if not edit.sound], "what the schema forbids was taken"
    assert len(taken) > 20
    assert stand.controller.alive, stand.controller.tail()
    await stand.watcher.until(
        lambda seen: whole(seen, "edited-all", 1) and witness_state.plan_of(seen.job("edited-all"))["gpus"] == 16,
        60,
        lambda: f"the job to run as it did: {stand.tell('edited-all')}",
    )
    await stand.clear("edited-all")


async def rolled_back(stand: Stand, original: dict[str, Any]) -> None:
    """The spec is again what it was."""
    whole_spec = [{"op": "add", "path": "/spec", "value": original["spec"]}]
    await stand.hands.ask("PATCH", path(JOBS, original["metadata"]["name"]), whole_spec, "application/json-patch+json")


EDITS = {
    "priority": {"priorityClassName": "system-node-critical"},
    "queue": {"queue": "no-such-queue"},
    "gpus": {"resources": {"gpus": {"max": 8}}},
    "suspend": {"suspend": True},
    "template": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "live-3"}}}},
}
STAGES = ("waiting", "planned", "running", "completed")


@pytest.mark.parametrize("what", EDITS)
@pytest.mark.parametrize("stage", STAGES)
async def test_an_edit_at_any_stage_and_back_again(stand: Stand, stage: str, what: str) -> None:
    name = f"{stage}-{what}"
    await stand.running()
    if stage == "waiting":
        stand.stop()
    if stage == "planned":
        await stand.proxy.inject("status:500", path=f"pods/{name}-1-1/binding", count=3)
    made = job(name) if stage != "completed" else {**training_job(name, seconds=0.1)}
    await stand.hands.create(JOBS, made)
    if stage == "planned":
        await stand.watcher.until(lambda seen: witness_state.plan_of(seen.job(name)), 20, "a plan")
    if stage == "running":
        await stand.runs(name)
    if stage == "completed":
        await stand.ends(name)
    taken = await edited(stand, name, Edit((), EDITS[what], sound=True))
    assert taken or what == "template", "but for the template under a plan, all of this may be edited at any time"
    await stand.running()
    if stage != "completed":
        await stand.watcher.until(lambda seen: seen_by_controller(seen, name), 20, lambda: stand.tell(name))
    await rolled_back(stand, made)
    if stage == "completed":
        assert witness_state.holds(stand.watcher.job(name), "Complete")
    else:
        await stand.watcher.until(
            lambda seen: whole(seen, name, 1) and witness_state.plan_of(seen.job(name))["gpus"] == 16,
            40,
            lambda: f"{name} to run: {stand.tell(name)}",
        )
    await stand.proxy.heal()
    await stand.clear(name)


async def test_a_storm_of_edits_moves_a_job_once_in_its_cool_down(stand: Stand) -> None:
    """F29: ten edits in a few seconds, each asking for another gang; `hack/faults --goals` does it for 5 minutes."""
    await stand.running()
    cool = {**QUICK, "minRuntimeSeconds": 3600}
    await stand.hands.create(JOBS, job("storm", elasticity=cool))
    await stand.runs("storm")
    before = witness_state.plan_of(stand.watcher.job("storm"))["epoch"]
    for number in range(10):
        await stand.hands.patch(JOBS, "storm", {"spec": {"resources": {"gpus": {"max": 8 if number % 2 == 0 else 16}}}})
        await asyncio.sleep(0.5)
    await asyncio.sleep(3)
    assert witness_state.status_of(stand.watcher.job("storm"))["lastEpoch"] <= before + 1
    await stand.clear("storm")


@pytest.mark.parametrize("when", ["running", "controller down"])
async def test_a_job_that_is_deleted_leaves_nothing(stand: Stand, when: str) -> None:
    name = f"deleted-{when[:4]}"
    await stand.running()
    await stand.hands.create(JOBS, job(name))
    await stand.runs(name)
    if when == "controller down":
        stand.stop()
    await stand.hands.delete(JOBS, name)
    await stand.watcher.until(
        lambda seen: not seen.job(name) and not seen.pods(name), 90, lambda: f"nothing to be left: {stand.tell(name)}"
    )


async def test_jobs_of_a_namespace_that_is_deleted_hold_nobody_up(stand: Stand) -> None:
    await stand.running()
    await stand.hands.create("namespaces", {"metadata": {"name": "doomed"}})
    doomed = job("goes-too")
    doomed["metadata"]["namespace"] = "doomed"
    await stand.hands.create(JOBS, doomed, namespace="doomed")
    await stand.watcher.until(
        lambda seen: witness_state.holds(seen.job("goes-too", "doomed"), "PodsReady"),
        30,
        lambda: stand.tell("goes-too"),
    )
    await stand.hands.delete("namespaces", "doomed")
    await stand.hands.create(JOBS, training_job("stays", gpus=8, seconds=0.1))
    await stand.ends("stays")
    await stand.watcher.until(
        lambda seen: not seen.job("goes-too", "doomed") and not seen.pods("goes-too", "doomed"), 90, "all to be gone"
    )
    await stand.clear("stays")
