"""Running jobs move, bend or shrink so that a gang fits, and nobody stops for it: each is asked, told why, and goes on.

Four nodes of eight A100s. The oracle of `live` counts GPUs all the time, and that every gang has its time to answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.accounts import clear, controlling, foreign_pod, runs_as, shape, told, went_on
from tests.live.conftest import NODES
from tests.live.harness import Live
from tests.live.test_room import modest, plan

from trimtab import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LONG = 600.0


@pytest.fixture(autouse=True)
def clean(live_cluster: Live) -> Iterator[None]:
    """No job of one test is in the way of the next one."""
    yield
    clear(live_cluster)


@contextmanager
def only_on(live: Live, node: str) -> Iterator[None]:
    """All other nodes take no pods meanwhile."""
    others = [name for name in NODES if name != node]
    live.cluster.kubectl("cordon", *others)
    try:
        yield
    finally:
        live.cluster.kubectl("uncordon", *others)


def gang(name: str, gpus: int, seconds: float = 1.0) -> dict[str, Any]:
    """A job of so many GPUs, also of 24, that nobody can help by giving it less."""
    training = {"sequenceLength": 8192, "globalBatchSize": 144, "steps": max(1, round(seconds * 50))}
    return modest(name, gpus=gpus, training=training)


def asked_once(live: Live, job: str, cause: str, beneficiary: str) -> None:
    """It was asked once, for this, and both the request and its end were told with the reason."""
    [record] = live.status(job)["stops"]
    assert (record["epoch"], record["cause"], record["beneficiary"]) == (1, cause, f"default/{beneficiary}")
    [request] = told(live, job, names.CHECKPOINT_REQUESTED)
    assert f"{cause}: " in request
    assert f"default/{beneficiary}" in request
    [end] = told(live, job, cause)
    saved = re.search(r"it saved step (\d+), .* after it was asked; it goes on as ", end)
    assert saved, end
    assert 0 < int(saved[1]) <= live.status(job)["observed"]["lastCheckpointStep"]


async def test_a_gang_fits_once_a_small_job_has_moved_which_loses_no_step(live: Live, tmp_path: Path) -> None:
    async with controlling(live, tmp_path) as process:
        small = {"small-a": NODES[0], "small-b": NODES[1]}
        for name, node in small.items():
            job = modest(name, gpus=4, seconds=LONG)
            job["metadata"]["annotations"] = {names.ANNOTATION_FAKE_CHECKPOINT: "1"}
            with only_on(live, node):
                live.apply(job)
                await live.until(name, names.PODS_READY)
        live.apply(gang("needs-three", gpus=24))
        await live.until("needs-three", names.COMPLETE)
        [left] = plan(live, "needs-three")["waitsFor"]
        mover = left["job"].removeprefix("default/")
        [stays] = small.keys() - {mover}
        assert (left["epoch"], left["cause"]) == (1, "Moved")
        assert set(shape(live, "needs-three")) == {*NODES} - {small[stays]}

        await runs_as(live, mover, 2)
        assert shape(live, mover) == {small[stays]: 4}
        went_on(live, mover)
        asked_once(live, mover, "Moved", "needs-three")
        assert "makes room for default/needs-three" in plan(live, mover)["reason"]
        assert (plan(live, stays)["epoch"], "stops" in live.status(stays)) == (1, False)
        assert process.metric("trimtab_stops_total", cause="Moved", result="acknowledged") == 1
        assert process.metric("trimtab_preemptions_total") == 1
        assert process.metric("trimtab_lost_gpu_seconds_total") == 0


async def test_a_job_takes_another_shape_where_that_leaves_whole_nodes_to_a_gang(live: Live, tmp_path: Path) -> None:
    """Two GPUs are left on each of two nodes, and a tensor-parallel group of four must not span them."""
    live.apply(*(foreign_pod(f"others-{node}", node, 6) for node in NODES[:2]))
    try:
        async with controlling(live, tmp_path) as process:
            bends = modest(
                "bends",
                gpus=4,
                seconds=LONG,
                policy="Elastic",
                resources={"gpus": {"min": 4, "max": 4}},
                parallelism={"mode": "Model", "context": {"max": 1}},
            )
            bends["spec"]["elasticity"]["checkpoint"] = {"graceSeconds": 60, "resharding": True}
            live.apply(bends)
            await live.until("bends", names.PODS_READY)
            [before] = shape(live, "bends").items()
            assert (before[0] in NODES[2:], before[1], plan(live, "bends")["parallelism"]["tensor"]) == (True, 4, 4)
            live.apply(gang("needs-two", gpus=16))
            await live.until("needs-two", names.COMPLETE)
            assert set(shape(live, "needs-two")) == {*NODES[2:]}

            await runs_as(live, "bends", 2)
            assert shape(live, "bends") == dict.fromkeys(NODES[:2], 2)
            degrees = plan(live, "bends")["parallelism"]
            assert (degrees["tensor"], degrees["pipeline"]) == (2, 2)
            went_on(live, "bends")
            asked_once(live, "bends", "Moved", "needs-two")
            assert process.metric("trimtab_stops_total", cause="Moved", result="acknowledged") == 1
    finally:
        live.cluster.kubectl("delete", "pod", *(f"others-{node}" for node in NODES[:2]), "-n", "default", "--now")


async def test_an_elastic_job_goes_on_with_fewer_gpus_so_that_another_one_starts(live: Live, tmp_path: Path) -> None:
    settings = {"elasticity": {"interval_seconds": 600.0}}
    async with controlling(live, tmp_path, **settings) as process:
        gives = modest("gives", gpus=32, seconds=LONG, policy="Elastic", resources={"gpus": {"min": 8, "max": 32}})
        gives["spec"]["elasticity"]["checkpoint"] = {"graceSeconds": 60, "resharding": True}
        live.apply(gives)
        await live.until("gives", names.PODS_READY)
        assert plan(live, "gives")["gpus"] == 32
        live.apply(gang("newcomer", gpus=16))
        await live.until("newcomer", names.COMPLETE)
        await runs_as(live, "gives", 2)
        assert 8 <= plan(live, "gives")["gpus"] <= 16
        went_on(live, "gives")
        asked_once(live, "gives", "Resized", "newcomer")
        assert "gives GPUs to default/newcomer" in plan(live, "gives")["reason"]
        assert process.metric("trimtab_preemptions_total", cause="Resized") == 1
