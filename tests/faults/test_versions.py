"""The controller meets what other versions of it have written, and a CRD that comes and goes: running jobs run on.

Rows F26 and F27 of the matrix.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.faults import witness_state
from tests.faults.raw_client import path
from tests.faults.testbed import Stand
from tests.faults.workloads import LONG, whole
from tests.live.harness import training_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

JOBS, CRDS = "llmtrainingjobs", "customresourcedefinitions"
CRD = "llmtrainingjobs.trimtab.dev"
YOUNGER = ("stop", "stops", "failures", "degrees", "observed", "shadow", "trainerStatus", "setbacks", "pending")
"""Fields that the first versions did not write."""
STRANGE: dict[str, dict[str, Any]] = {
    "older": dict.fromkeys(YOUNGER),
    "conditions": {
        "conditions": [
            {"type": "FromTheFuture", "status": "True", "reason": "Who", "lastTransitionTime": "2026-01-02T03:04:05Z"}
        ]
    },
    "counters": {"restarts": 0, "setbacks": 2147483647},
    "times": {"retryTime": "9999-01-01T00:00:00Z", "startTime": "1970-01-01T00:00:00Z"},
}


@pytest.mark.parametrize("what", STRANGE)
async def test_a_status_of_another_version_restarts_no_running_job(stand: Stand, what: str) -> None:
    name = f"upgraded-{what}"
    await stand.running()
    await stand.hands.create(JOBS, training_job(name, seconds=LONG))
    await stand.runs(name)
    before = {witness_state.uid_of(pod) for pod in stand.watcher.pods(name)}
    stand.stop()
    changes = STRANGE[what]
    if conditions := changes.get("conditions"):
        changes = {"conditions": [*witness_state.status_of(stand.watcher.job(name))["conditions"], *conditions]}
    await stand.hands.patch(JOBS, name, {"status": changes}, status=True)
    garbage = {"metadata": {"annotations": {"trimtab.dev/policy": "", "fake.trimtab.dev/fail": "@@", "x": "y" * 1000}}}
    await stand.hands.patch(JOBS, name, garbage)
    await stand.running()
    await stand.hands.create(JOBS, training_job(f"{name}-next", gpus=8, seconds=0.1))
    await stand.ends(f"{name}-next")
    assert {witness_state.uid_of(pod) for pod in stand.watcher.pods(name)} == before
    assert witness_state.plan_of(stand.watcher.job(name))["epoch"] == 1
    if what == "conditions":
        assert witness_state.holds(stand.watcher.job(name), "FromTheFuture"), (
            "what we do not know is not ours to take away"
        )
    await stand.clear(name, f"{name}-next")


@pytest.fixture
async def crd_restored(stand: Stand) -> AsyncIterator[dict[str, Any]]:
    """The CRD as it is; it is so again afterwards."""
    found = await stand.hands.get(CRDS, CRD)
    original = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD},
        "spec": found["spec"],
    }
    yield original
    await stand.hands.create(CRDS, original)
    await stand.hands.patch(CRDS, CRD, {"spec": original["spec"]})
    await served(stand, True)


async def served(stand: Stand, wanted: bool) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await stand.hands.ask("GET", path(JOBS))
                there = True
            except Exception:  # noqa: BLE001 - whatever it says, it does not list jobs
                there = False
            if there == wanted:
                return
            await asyncio.sleep(0.2)


async def garbage_is_collected(stand: Stand) -> None:
    """Wait until the garbage collector follows our jobs.

    A change of the CRD cuts its watch, and it may take half a minute to look again. Of a job that it has not seen until
    then it asks the API server, and takes a 404, which is also what a CRD says that is not served, for the job's end:
    it would delete the pods. A finalizer that only it takes away, and only from what it follows, tells when it is back.
    """
    await stand.hands.create(JOBS, training_job("canary", suspend=True))
    await stand.hands.ask("DELETE", path(JOBS, "canary"), {"propagationPolicy": "Orphan"})
    await stand.watcher.until(lambda seen: not seen.job("canary"), 90, "the garbage collector to see a job")


async def test_fields_that_a_later_version_has_written_are_kept(stand: Stand, crd_restored: dict[str, Any]) -> None:
    later = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    where = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/fromTheFuture"
    await stand.hands.ask(
        "PATCH", path(CRDS, CRD), [{"op": "add", "path": where, "value": later}], "application/json-patch+json"
    )
    await stand.running()
    await stand.hands.create(JOBS, training_job("downgraded", seconds=LONG))
    await stand.runs("downgraded")
    async with asyncio.timeout(30):  # the API server takes the new schema a moment later
        while "fromTheFuture" not in witness_state.status_of(await stand.hands.get(JOBS, "downgraded")):
            await stand.hands.patch(
                "llmtrainingjobs", "downgraded", {"status": {"fromTheFuture": {"a": 1}}}, status=True
            )
            await asyncio.sleep(0.2)
    await stand.hands.delete("pods", "downgraded-1-0", grace=0)
    await stand.watcher.until(lambda seen: whole(seen, "downgraded", 2), 30, lambda: stand.tell("downgraded"))
    # Read anew: a watch that was opened before the schema changed goes on pruning by the old one.
    assert witness_state.status_of(await stand.hands.get(JOBS, "downgraded"))["fromTheFuture"] == {"a": 1}
    await stand.clear("downgraded")


async def test_a_version_that_is_not_served_for_a_while_costs_no_job(
    stand: Stand, crd_restored: dict[str, Any]
) -> None:
    controller = await stand.running()
    await garbage_is_collected(stand)
    await stand.hands.create(JOBS, training_job("unserved", seconds=LONG))
    await stand.runs("unserved")
    await stand.proxy.forget()
    where = "/spec/versions/0/served"
    for value in (False, True):
        change = [{"op": "replace", "path": where, "value": value}]
        await stand.hands.ask("PATCH", path(CRDS, CRD), change, "application/json-patch+json")
        await served(stand, value)
        await stand.proxy.sever()
        await asyncio.sleep(2)
    await stand.hands.create(JOBS, training_job("served-again", gpus=8, seconds=0.1))
    await stand.ends("served-again", seconds=60)
    assert controller.alive, controller.tail()
    deleted = [call.name for call in await stand.proxy.trace() if call.method == "DELETE" and "unserved" in call.name]
    assert not deleted, stand.tell("unserved")
    await stand.runs("unserved")
    assert witness_state.status_of(stand.watcher.job("unserved")).get("restarts", 0) == 0, stand.tell("unserved")
    await stand.clear("unserved", "served-again")


async def test_a_crd_that_is_deleted_and_made_again_ends_its_jobs_and_not_the_controller(
    stand: Stand, crd_restored: dict[str, Any]
) -> None:
    controller = await stand.running()
    await stand.hands.create(JOBS, training_job("swept-away", seconds=LONG))
    await stand.runs("swept-away")
    await stand.hands.delete(CRDS, CRD)
    await served(stand, False)
    await asyncio.sleep(2)
    await stand.hands.create(CRDS, crd_restored)
    await served(stand, True)
    for pod in stand.watcher.pods("swept-away"):
        await stand.hands.delete("pods", pod["metadata"]["name"], grace=0)
    await stand.hands.create(JOBS, training_job("of-the-new-crd", seconds=0.1))
    await stand.ends("of-the-new-crd", seconds=90)
    assert controller.alive, controller.tail()
    await stand.clear("of-the-new-crd")
