"""What a queue has borrowed it gives back to the queue that is guaranteed it, and its job goes on where it stopped.

The four nodes have 32 A100s; each of two queues is guaranteed half of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.accounts import clear, controlling, runs_as, told, went_on
from tests.live.harness import Live, eventually
from tests.live.test_room import modest, plan

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

A100 = "A100-SXM4-80GB"
LONG = 600.0
LENDER, BORROWER = "reclaim-lender", "reclaim-borrower"


@pytest.fixture(autouse=True)
def clean(live_cluster: Live) -> Iterator[None]:
    """No job of one test is in the way of the next one."""
    yield
    clear(live_cluster)


@pytest.fixture(autouse=True)
def halves(live: Live) -> Iterator[None]:
    """Two queues, each of which is guaranteed half of the cluster and may have all of it."""
    spec = {"quotas": [{"gpuType": A100, "guaranteed": 16, "gpus": 32}]}
    kind = {"apiVersion": names.API_VERSION, "kind": names.QUEUE_KIND, "spec": spec}
    live.apply(*({**kind, "metadata": {"name": name}} for name in (LENDER, BORROWER)))
    yield
    live.cluster.kubectl("delete", "ltq", LENDER, BORROWER)


def uses(live: Live, queue: str) -> list[dict[str, Any]]:
    """What the queue's status says that its jobs hold."""
    found = json.loads(live.cluster.kubectl("get", "ltq", queue, "-o", "json"))
    held: list[dict[str, Any]] = found.get("status", {}).get("uses", [])
    return held


async def test_a_queue_takes_back_what_it_is_guaranteed_and_no_more_than_that(live: Live, tmp_path: Path) -> None:
    settings = {"queues": {"status_seconds": 0.3}}
    async with controlling(live, tmp_path, **settings) as process:
        live.apply(modest("owns", seconds=LONG, queue=BORROWER))
        await live.until("owns", names.PODS_READY)
        live.apply(modest("borrows", seconds=LONG, queue=BORROWER))
        await live.until("borrows", names.PODS_READY)
        lent = [{"gpuType": A100, "gpus": 32, "borrowed": 16}]
        await eventually(lambda: uses(live, BORROWER) == lent, what=lambda: str(uses(live, BORROWER)))

        live.apply(modest("entitled", seconds=LONG, queue=LENDER))
        await runs_as(live, "entitled", 1)
        assert [(left["job"], left["cause"]) for left in plan(live, "entitled")["waitsFor"]] == [
            ("default/borrows", "Reclaimed")
        ]
        waits = live.status("borrows")
        assert live.holds("borrows", names.PREEMPTED)
        assert (waits.get("plan"), waits["pending"]["reason"]) == (None, "InsufficientGpus")
        assert waits["observed"]["stepsDone"] == waits["observed"]["lastCheckpointStep"]
        [record] = waits["stops"]
        assert (record["cause"], record["beneficiary"]) == ("Reclaimed", "default/entitled")
        [why] = told(live, "borrows", "Reclaimed")
        assert f"queue {BORROWER} has borrowed its GPUs" in why
        assert f"default/entitled gets what queue {LENDER} is guaranteed; it saved step " in why

        live.apply(modest("beyond", seconds=1, queue=LENDER))  # for it the lender would have to borrow
        await eventually(lambda: bool(live.status("beyond").get("pending")), what="it to wait")
        assert live.holds("entitled", names.PODS_READY)
        live.patch("ltj", "entitled", {"spec": {"suspend": True}})
        await live.until("beyond", names.COMPLETE)  # its turn: nothing of the lender runs any more
        await runs_as(live, "borrows", 2)
        went_on(live, "borrows")
        assert not live.holds("borrows", names.PREEMPTED)
        assert (plan(live, "owns")["epoch"], "stops" in live.status("owns")) == (1, False)
        assert process.metric("trimtab_stops_total", result="acknowledged", cause="Reclaimed") == 1
        assert process.metric("trimtab_preemptions_total") == 1
