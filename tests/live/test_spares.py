"""Warm spares on a running controller: a free node is kept from jobs that wait, and is there when a gang loses one.

The failure rate is set so high that one node is to be kept for two or three that are in use; of the four nodes of the
other tests one is kept, that is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.live.accounts import clear, controlling, runs_as, shape
from tests.live.conftest import NODES
from tests.live.harness import ControllerProcess, Live, eventually, training_job
from tests.live.test_failures import blockers, failures, not_ready

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

A100 = "A100-SXM4-80GB"
LONG = 600.0
RULES = {"spares": "Auto", "failures_per_node_day": 0.05}


@pytest.fixture(autouse=True)
def clean(live_cluster: Live) -> Iterator[None]:
    """No job of one test is in the way of the next one."""
    yield
    clear(live_cluster)


@pytest.fixture
async def controller(live: Live, tmp_path: Path) -> AsyncIterator[ControllerProcess]:
    async with controlling(live, tmp_path, failures=RULES) as process:
        yield process


async def test_a_spare_node_is_kept_from_those_who_wait_and_taken_by_the_gang_that_loses_one(
    live: Live, controller: ControllerProcess
) -> None:
    live.apply(training_job("spared", gpus=16, seconds=LONG))
    await live.until("spared", names.PODS_READY)
    live.apply(training_job("beside", gpus=8, seconds=LONG))
    await live.until("beside", names.PODS_READY)
    [spare] = {*NODES} - {*shape(live, "spared"), *shape(live, "beside")}
    await eventually(lambda: controller.metric("trimtab_spare_nodes", type=A100) == 1, what="one free node to be kept")
    live.apply(training_job("waits", gpus=8, seconds=LONG))
    await eventually(lambda: bool(blockers(live, "waits")), what=lambda: f"it to wait: {live.status('waits')}")
    assert f"{spare}: kept as a warm spare for gangs that lose a node" in blockers(live, "waits")

    lost, stays = sorted(shape(live, "spared"))
    with not_ready(live, [lost]):
        await runs_as(live, "spared", 2)
        assert set(shape(live, "spared")) == {stays, spare}
        assert failures(live, "spared") == [("Node", "NodeLost", lost)]
        assert live.status("spared").get("restarts", 0) == 0
        assert not live.status("waits").get("plan")
        assert not live.holds("beside", "Degraded")
    await eventually(
        lambda: controller.metric("trimtab_spare_nodes", type=A100) == 1, what="the repaired node to be the next spare"
    )
    assert not live.status("waits").get("plan")
    live.patch("ltj", "spared", {"spec": {"suspend": True}})
    await runs_as(live, "waits", 1)  # two free nodes, of which one is kept
