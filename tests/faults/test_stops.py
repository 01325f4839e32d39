"""A gang that has to give way gets its time, however it answers, and goes on no further back than it must.

Rows F28 and F29 of the matrix. That nobody is stopped too early, or for one who is not more urgent, is watched by the
witness (I6, I7); steps are those of fake trainers, which have a checkpoint of every tenth of their run.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.faults import witness_state
from tests.faults.testbed import Stand
from tests.faults.watcher import Watcher
from tests.faults.workloads import FOUR_NODES, JOBS, LONG, PATIENT, URGENT, whole
from tests.live.harness import training_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

FULL = 8 * len(FOUR_NODES)


def low(name: str, answer: str, grace: int = 5, seconds: float = LONG, **spec: Any) -> dict[str, Any]:
    checkpoint = {"graceSeconds": grace, "resharding": True}
    made = training_job(name, gpus=FULL, seconds=seconds, elasticity={**PATIENT, "checkpoint": checkpoint}, **spec)
    made["metadata"]["annotations"] = {"fake.trimtab.dev/checkpoint": answer}
    return made


async def urgent(stand: Stand, name: str, gpus: int = 16) -> None:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    await stand.hands.create("priorityclasses", {**kind, "metadata": {"name": URGENT}})
    await stand.hands.create(
        JOBS, training_job(name, gpus=gpus, seconds=LONG, priorityClassName=URGENT, elasticity=PATIENT)
    )


def asked(seen: Watcher, name: str) -> bool:
    return bool(witness_state.status_of(seen.job(name)).get("stop"))


def steps(seen: Watcher, name: str) -> int:
    return int(witness_state.status_of(seen.job(name)).get("observed", {}).get("stepsDone", 0))


@pytest.mark.parametrize("answer", ["0", "2", "60", "Ignores"])
async def test_a_gang_that_gives_way_gets_its_time_however_it_answers(stand: Stand, answer: str) -> None:
    """At once, late, too late, never."""
    name = f"answers-{answer.lower()}"
    await stand.running()
    await stand.hands.create(JOBS, low(name, answer, seconds=150))
    await stand.runs(name)
    await asyncio.sleep(10)  # past the first tenth of some 70 s
    await urgent(stand, f"{name}-high")
    await stand.watcher.until(lambda seen: whole(seen, f"{name}-high", 1), 40, lambda: stand.tell(name))
    victim = stand.watcher.job(name)
    assert witness_state.holds(victim, "Preempted")
    assert witness_state.status_of(victim).get("restarts", 0) == 0
    kept = steps(stand.watcher, name)
    assert kept > 0, "steps up to the last checkpoint are kept"
    await stand.clear(f"{name}-high")
    await stand.runs(name, epoch=2)
    assert steps(stand.watcher, name) >= kept
    assert not witness_state.holds(stand.watcher.job(name), "Preempted")
    await stand.clear(name)


async def test_a_gang_that_ends_while_it_is_asked_is_not_stopped_twice(stand: Stand) -> None:
    """Its pods end with 143, as they do that have saved their state and leave."""
    name = "ends-asked"
    await stand.running()
    await stand.hands.create(JOBS, low(name, "Ignores", grace=30, maxRestarts=0))
    await stand.runs(name)
    await urgent(stand, f"{name}-high")
    await stand.watcher.until(lambda seen: asked(seen, name), 30, lambda: stand.tell(name))
    state = {"terminated": {"exitCode": 143, "reason": "Error"}}
    container = {"name": "trainer", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    status = {"status": {"phase": "Failed", "containerStatuses": [container]}}
    for pod in stand.watcher.pods(name):
        await stand.hands.patch("pods", pod["metadata"]["name"], status, status=True)
    await stand.watcher.until(lambda seen: whole(seen, f"{name}-high", 1), 25, lambda: stand.tell(name, f"{name}-high"))
    assert not witness_state.holds(stand.watcher.job(name), "Failed"), "it did as it was asked"
    assert witness_state.status_of(stand.watcher.job(name)).get("restarts", 0) == 0
    await stand.clear(name, f"{name}-high")


async def test_a_victim_that_is_deleted_while_it_is_asked_makes_room_at_once(stand: Stand) -> None:
    await stand.running()
    await stand.hands.create(JOBS, low("deleted-asked", "Ignores", grace=60))
    await stand.runs("deleted-asked")
    await urgent(stand, "after-deleted")
    await stand.watcher.until(lambda seen: asked(seen, "deleted-asked"), 30, lambda: stand.tell("deleted-asked"))
    await stand.clear("deleted-asked")
    await stand.watcher.until(lambda seen: whole(seen, "after-deleted", 1), 30, lambda: stand.tell("after-deleted"))
    await stand.clear("after-deleted")


async def test_two_gangs_that_cannot_both_run_do_not_take_turns(stand: Stand) -> None:
    """F29: whoever had to give way waits; nobody is stopped again for it."""
    await stand.running({"elasticity": {"interval_seconds": 0.5}})
    await stand.hands.create(JOBS, low("gives-way", "0"))
    await stand.runs("gives-way")
    await urgent(stand, "takes", FULL)
    await stand.watcher.until(lambda seen: whole(seen, "takes", 1), 40, lambda: stand.tell("gives-way", "takes"))
    await asyncio.sleep(6)
    epochs = [witness_state.status_of(stand.watcher.job(name))["lastEpoch"] for name in ("gives-way", "takes")]
    assert epochs == [1, 1]
    await stand.clear("gives-way", "takes")
