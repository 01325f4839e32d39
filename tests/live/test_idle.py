"""A job that holds GPUs and does nothing: told of, and where the settings say so stopped after its notice.

No agent runs here: its part is written straight into the API server, as in `test_health`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import NODES
from tests.live.harness import ControllerProcess, Live, eventually, training_job
from tests.live.test_disruptions import LONG, nodes_of
from tests.live.test_health import report

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

A100 = "A100-SXM4-80GB"
OWN = {"foreign_utilization": 1.0}
OFTEN = {"sweep_seconds": 5.0}
AT_WORK = {"smUtilizationPercent": 95}
MAY_STOP = {"policy": "Fixed", "minRuntimeSeconds": 0, "checkpoint": {"graceSeconds": 30}}


@pytest.fixture(autouse=True)
def no_reports_left(live_cluster: Live) -> Iterator[None]:
    yield
    live_cluster.cluster.kubectl("delete", "gpunodes", "--all", "--wait=true")


def told(live: Live, job: str) -> dict[str, Any]:
    """The condition Idle; empty where there is none."""
    found: list[dict[str, Any]] = live.status(job).get("conditions", [])
    return next((each for each in found if each["type"] == names.IDLE), {})


async def test_a_gang_whose_gpus_do_nothing_is_told_of_and_one_that_nobody_sees_is_not(
    live: Live, tmp_path: Path
) -> None:
    async with ControllerProcess(
        live.kubeconfig(tmp_path), tmp_path, idle={"after_seconds": 2.0}, telemetry=OWN, round=OFTEN
    ) as process:
        for job in ("idles", "unseen"):
            live.apply(training_job(job, gpus=8, seconds=LONG))
            await live.until(job, names.PODS_READY)
        [node] = nodes_of(live, "idles")
        report(live, node)
        await live.until("idles", names.IDLE)
        assert "8 GPUs have done nothing since" in told(live, "idles")["message"]
        assert "stopTime" not in live.status("idles")["idle"]
        assert live.status("idles")["conditions"][-1]["reason"] == names.REASON_RUNNING
        await eventually(lambda: names.IDLE in live.events("idles"), what="the event")
        await eventually(lambda: process.metric("trimtab_idle_gpus", gpu_type=A100) == 8, what=lambda: process.tail())
        report(live, node, **AT_WORK)
        await eventually(lambda: told(live, "idles")["status"] == "False", what=lambda: str(told(live, "idles")))
        assert "idle" not in live.status("idles")
        assert told(live, "unseen") == {}
        counted = {use: process.metric("trimtab_gpu_seconds_total", tenant="default", use=use) for use in
                   ("idle", "unknown")}  # fmt: skip
        assert min(counted.values()) > 0
        assert process.metric("trimtab_wait_seconds_count") == 2
        for job in ("idles", "unseen"):
            await live.gone(job)


async def test_where_the_settings_say_so_it_is_stopped_when_its_notice_is_over_whichever_controller_leads_then(
    live: Live, tmp_path: Path
) -> None:
    rules = {"after_seconds": 2.0, "stop": "AfterNotice", "notice_seconds": 12.0}
    credentials = live.kubeconfig(tmp_path)
    for node in NODES:
        report(live, node)
    async with ControllerProcess(credentials, tmp_path, idle=rules, telemetry=OWN, round=OFTEN) as process:
        live.apply(training_job("hoards", gpus=8, seconds=LONG, elasticity=MAY_STOP))
        await live.until("hoards", names.IDLE)
        until = live.status("hoards")["idle"]["stopTime"]
        assert until in told(live, "hoards")["message"]
        process.signal(signal.SIGKILL)
        await process.died()
    async with ControllerProcess(credentials, tmp_path, idle=rules, telemetry=OWN, round=OFTEN) as process:
        await eventually(
            lambda: live.status("hoards").get("stops"), 60, lambda: f"{live.status('hoards')}\n{process.tail()}"
        )
        await eventually(lambda: "plan" not in live.status("hoards"), 60, lambda: str(live.status("hoards")))
        status = live.status("hoards")
        [stop] = status["stops"]
        assert (stop["cause"], stop["epoch"]) == ("Idle", 1)
        assert stop["time"] >= until, "not before what it was told"
        assert status["observed"]["lastCheckpointStep"] > 0, "it was asked to save its state"
        assert status["pending"]["reason"] == "BackingOff"
        assert "retryTime" in status
        assert "idle" not in status
        assert status.get("restarts", 0) == 0
        assert {names.IDLE, names.CHECKPOINT_REQUESTED} <= {*live.events("hoards")}
        assert process.metric("trimtab_stops_total", cause="Idle") == 1
        await live.gone("hoards")
