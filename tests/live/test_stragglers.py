"""A slow card in a cluster: new jobs avoid it, those that cannot are told the truth, and a running one leaves in time.

No agent runs here: its part is written straight into the API server, as in `test_health`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import NODES
from tests.live.harness import ControllerProcess, Live, eventually, training_job
from tests.live.test_disruptions import LONG, nodes_of, replanned
from tests.live.test_health import report
from tests.live.test_reports import trimtab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SLOW, *FAST = NODES
FULL_MHZ = 1410
QUICK = {"straggler_seconds": 1.0, "recovery_seconds": 3600.0, "foreign_utilization": 1.0}
AT_WORK = {"smUtilizationPercent": 95, "smClockMhz": FULL_MHZ, "smClockMaxMhz": FULL_MHZ}


@pytest.fixture(autouse=True)
def no_reports_left(live_cluster: Live) -> Iterator[None]:
    yield
    live_cluster.cluster.kubectl("delete", "gpunodes", "--all", "--wait=true")


def predicted(live: Live, job: str) -> dict[str, Any]:
    found: dict[str, Any] = live.status(job)["plan"]["predicted"]
    return found


async def test_jobs_avoid_a_slow_card_or_are_told_and_leave_it_when_there_is_room(live: Live, tmp_path: Path) -> None:
    for node in FAST:
        report(live, node, **AT_WORK)
    report(live, SLOW, **{**AT_WORK, "smClockMhz": FULL_MHZ // 2, "throttleReasons": ["HwThermalSlowdown"]})
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, telemetry=QUICK) as process:
        await eventually(lambda: "SlowGpu" in live.events(SLOW), what=lambda: f"the verdict\n{process.tail()}")
        assert process.metric("trimtab_stragglers", type="A100-SXM4-80GB") == 8
        shown = json.loads(trimtab(live, "snapshot", "--features"))["nodes"]
        assert [shown[node]["speed"] for node in NODES] == [0.5, 1.0, 1.0, 1.0]
        assert shown[FAST[0]]["utilization"] == pytest.approx(0.95)
        patient = {"elasticity": {"policy": "Fixed", "minRuntimeSeconds": 0}}
        live.apply(training_job("avoids", gpus=8, seconds=LONG))
        live.apply(training_job("fills", gpus=16, seconds=LONG))
        await live.until("avoids", "PodsReady")
        await live.until("fills", "PodsReady")
        assert {*nodes_of(live, "avoids"), *nodes_of(live, "fills")} == {*FAST}
        live.apply(training_job("slowed", gpus=8, seconds=LONG, **patient))
        await live.until("slowed", "PodsReady")
        assert nodes_of(live, "slowed") == [SLOW]
        usual, slowed = predicted(live, "avoids"), predicted(live, "slowed")
        assert slowed["speedPermille"] == 500
        assert slowed["stepMilliseconds"] == pytest.approx(2 * usual["stepMilliseconds"], abs=2)
        assert slowed["runSeconds"] == pytest.approx(2 * usual["runSeconds"], rel=0.01)
        why = live.status("slowed")["plan"]["reason"]
        assert f"at 0.50 of the usual rate, because node {SLOW} has a slow GPU" in why
        saved = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        observed = {"epoch": 1, "stepsDone": 10, "lastCheckpointStep": 10, "lastCheckpointTime": saved}
        live.patch("ltj", "slowed", {"status": {"observed": observed}}, "--subresource=status")
        await live.gone("avoids")
        await replanned(live, "slowed")
        assert nodes_of(live, "slowed")[0] in FAST
        assert "speedPermille" not in predicted(live, "slowed")
        assert "Straggler" in live.events("slowed")
        assert process.metric("trimtab_moves_total", cause="straggler") == 1
        assert live.status("slowed").get("restarts", 0) == 0
        for job in ("fills", "slowed"):
            await live.gone(job)
