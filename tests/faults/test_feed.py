"""What agents say may be late, forged, absurd or missing: decisions are those that would be made without it (I12).

Rows F16 and F23 of the matrix. The API server refuses some of it (`validated`), the controller disbelieves the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.faults import witness_state
from tests.faults.raw_client import Refused
from tests.faults.testbed import Stand
from tests.faults.witness_state import Object
from tests.faults.workloads import FOUR_NODES, LONG
from tests.live.harness import training_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

JOBS = "llmtrainingjobs"
QUICK = {"telemetry": {"grace_seconds": 1.0, "recovery_seconds": 3.0, "foreign_seconds": 1.0}}
XID = {"kind": "Xid", "code": 79, "time": "2026-01-02T03:00:00Z", "count": 1}


def reading(node: str, index: int, **changes: Any) -> Object:
    sound = {
        "uuid": f"GPU-{node}-{index}",
        "index": index,
        "product": "NVIDIA A100-SXM4-80GB",
        "memoryTotalBytes": 80 << 30,
        "smUtilizationPercent": 0,
    }
    return sound | changes


def report(node: str, *, skew: float = 0.0, gpus: list[Object] | None = None, **status: Any) -> Object:
    """What an agent whose clock is off by `skew` seconds writes into its status."""
    said = (datetime.now(UTC) + timedelta(seconds=skew)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    readings = [reading(node, index) for index in range(8)] if gpus is None else gpus
    defaults = {"observedTime": said, "periodSeconds": 3600, "bootId": "first", "backend": "fake"}
    return {"status": {**defaults, "gpus": readings, **status}}


@pytest.fixture(autouse=True)
async def reports(stand: Stand) -> AsyncIterator[None]:
    kind = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "GPUNode"}
    await stand.hands.create("gpunodes", *({**kind, "metadata": {"name": node}} for node in FOUR_NODES))
    yield
    for node in FOUR_NODES:
        await stand.hands.delete("gpunodes", node)


async def told(stand: Stand, reports: dict[str, Object]) -> None:
    for node, said in reports.items():
        await stand.hands.patch("gpunodes", node, said, status=True)


ABSURD: dict[str, Object] = {
    "temperature": {"temperatureCelsius": 1_000_000_000},
    "utilisation": {"smUtilizationPercent": 1_000_000_000},
    "memory": {"memoryUsedBytes": 1 << 62},
    "negative": {"memoryUsedBytes": -1},
    "no number": {"powerWatts": "NaN"},
    "duplicate": {"uuid": "GPU-the-same", "index": 0},
}


@pytest.mark.parametrize("what", ABSURD)
async def test_absurd_readings_of_all_nodes_change_no_decision(stand: Stand, what: str) -> None:
    await stand.running(QUICK)
    absurd = {node: report(node, gpus=[reading(node, i) | ABSURD[what] for i in range(8)]) for node in FOUR_NODES}
    with suppress(Refused):  # validated: the controller never sees it
        await told(stand, absurd)
    job = f"absurd-{what.replace(' ', '-')}"
    await stand.hands.create(JOBS, training_job(job, seconds=0.1))
    await stand.ends(job)
    await stand.clear(job)


@pytest.mark.parametrize("skew", [-600.0, 600.0, 1e8])
async def test_clocks_of_agents_do_not_matter(stand: Stand, skew: float) -> None:
    """F16: age is counted by arrival. A broken GPU is believed however wrong the clock of its node is."""
    await stand.running(QUICK)
    await told(stand, {node: report(node, skew=skew) for node in FOUR_NODES})
    broken = FOUR_NODES[0]
    faulty = [reading(broken, index, **({"faults": [XID]} if index == 3 else {})) for index in range(8)]
    await told(stand, {broken: report(broken, skew=skew, gpus=faulty)})
    job = f"skewed-{int(skew) % 1000}"
    await stand.hands.create(JOBS, training_job(job, gpus=8, seconds=LONG))
    await stand.runs(job)
    await stand.watcher.until(
        lambda seen: broken not in [node["name"] for node in witness_state.plan_of(seen.job(job)).get("nodes", [])],
        20,
        lambda: f"{job} to be elsewhere: {stand.tell(job)}",
    )
    await stand.clear(job)


async def test_a_report_of_ten_megabytes_is_refused_and_nobody_is_the_worse_for_it(stand: Stand) -> None:
    await stand.running(QUICK)
    with pytest.raises(Refused) as refused:
        await told(stand, {FOUR_NODES[0]: report(FOUR_NODES[0], backend="x" * (10 << 20))})
    assert refused.value.code in (413, 422)
    await stand.hands.create(JOBS, training_job("after-flood", seconds=0.1))
    await stand.ends("after-flood")
    await stand.clear("after-flood")


async def test_reports_about_nodes_that_do_not_exist_are_left_alone(stand: Stand) -> None:
    await stand.running(QUICK)
    kind = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": "nowhere"}}
    await stand.hands.create("gpunodes", kind)
    await told(stand, {"nowhere": report("nowhere", gpus=[reading("nowhere", 0, faults=[XID])])})
    await stand.hands.create(JOBS, training_job("somewhere", seconds=0.1))
    await stand.ends("somewhere")
    await stand.hands.delete("gpunodes", "nowhere")
    await stand.clear("somewhere")
