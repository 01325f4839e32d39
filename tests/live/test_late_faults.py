"""A pod fails first, and the fault of its GPU is told a moment later: the GPU is to blame, and the job does not pay.

Agents report through the API server, as in `test_health`; here nothing else of them runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.accounts import clear, controlling, runs_as, shape
from tests.live.conftest import NODES
from tests.live.harness import Live, eventually, training_job
from tests.live.test_failures import exited, failures, message, play
from tests.live.test_health import report
from tests.live.test_room import plan

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LONG = 600.0
LATE = 2.0
"""Seconds from a pod's end to the report of the fault; the controller waits 5 s for one."""


@pytest.fixture(autouse=True)
def clean(live_cluster: Live) -> Iterator[None]:
    """Neither jobs nor reports of this test are in the way of others."""
    yield
    clear(live_cluster)
    live_cluster.cluster.kubectl("delete", "gpunodes", "--all", "--wait=true")


async def test_an_xid_that_comes_after_the_end_of_a_pod_takes_the_blame_from_the_job(
    live: Live, tmp_path: Path
) -> None:
    """No restarts are left to either job: the one whose GPU was sound has failed, the other one goes on."""
    telemetry = {"grace_seconds": 60.0, "recovery_seconds": 3.0}
    for node in NODES:
        report(live, node)
    async with controlling(live, tmp_path, telemetry=telemetry) as process:
        live.apply(*(training_job(name, gpus=16, seconds=LONG, maxRestarts=0) for name in ("innocent", "guilty")))
        for name in ("innocent", "guilty"):
            await live.until(name, names.PODS_READY)
        broken = plan(live, "innocent")["nodes"][0]["name"]
        for name in ("innocent", "guilty"):  # the pod on the broken GPU hangs, that of the other node ends
            play(live, f"{name}-1-1", **exited(1, "Error"))
        await asyncio.sleep(LATE)
        assert (failures(live, "innocent"), failures(live, "guilty")) == ([], []), "judged before agents could tell"
        report(live, broken, 3)

        await eventually(lambda: bool(failures(live, "innocent")), what=lambda: str(live.status("innocent")))
        assert failures(live, "innocent") == [("Gpu", names.REASON_GPU_UNHEALTHY, broken)]
        assert live.status("innocent").get("restarts", 0) == 0
        play(live, "guilty-1-0", **exited(1, "Error"))  # till now its node might have been dead
        await live.until("guilty", names.FAILED)
        assert failures(live, "guilty") == [("Program", "PodFailed", "")]
        assert "no restarts are left" in message(live, "guilty", names.FAILED)
        await runs_as(live, "innocent", 2)
        assert broken not in shape(live, "innocent")
        assert process.metric("trimtab_failures_total", cause="Gpu") == 1
        assert process.metric("trimtab_failures_total", cause="Program") == 1
