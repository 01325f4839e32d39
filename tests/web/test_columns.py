"""Columns: rows keep their places, and every GPU is told of once."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import A100, H100, NOW, fault, gpu_reading, gpunode_object, node_object
from tests.web.town import OPEN, SECRET, SECRET_JOB, Town, running_job, waiting_job

from trimtab.web import columns as c
from trimtab.web.audience import EVERYTHING, Audience, columns_for
from trimtab.web.channels import Channel
from trimtab.web.deltas import Columns, apply


def rows(columns: Columns, kind: str) -> dict[str, dict[str, Any]]:
    """By name of a node, or key of a job, what its columns say; empty rows left out."""
    names = [name.removeprefix(f"{kind}.") for name in columns if name.startswith(f"{kind}.")]
    told = zip(*(columns[f"{kind}.{name}"] for name in names), strict=True)
    found = [dict(zip(names, row, strict=True)) for row in told]
    first = "key" if kind == "job" else "name"
    return {row[first]: row for row in found if row[first]}


def gpus(columns: Columns, node: str) -> list[str]:
    """Who has each GPU of a node."""
    row = rows(columns, "node")[node]
    told = columns["gpu.job"][row["at"] : row["at"] + row["gpus"]]
    return [columns["job.key"][each] if each >= 0 else str(each) for each in told]


def test_every_gpu_says_who_has_it_and_where_it_is() -> None:
    town = Town(16)
    columns = town.moment().columns
    assert gpus(columns, "n0") == [f"{OPEN}/run-0"] * 8
    assert gpus(columns, "n15") == [str(c.FREE)] * 8
    node = rows(columns, "node")["n9"]
    assert (node["zone"], node["block"], node["rack"]) == ("z0", "b0", "r1")
    assert columns["type"][node["type"]] == H100


def test_what_agents_say_stands_beside_it() -> None:
    town = Town(4)
    busy = [gpu_reading(0, "n3", smUtilizationPercent=93, temperatureCelsius=71, memoryUsedBytes=20 << 30)]
    busy += [gpu_reading(1, "n3", faults=[fault(code=79)]), gpu_reading(2, "n3", throttledPercent=50)]
    busy += [gpu_reading(index, "n3") for index in range(3, 8)]
    town.heard.take(gpunode_object("n3", busy))
    columns = town.moment().columns
    at = rows(columns, "node")["n3"]["at"]
    assert [columns[f"gpu.{name}"][at] for name in ("use", "temp", "memory", "state")] == [93, 71, 25, c.WELL]
    assert columns["gpu.state"][at + 1 : at + 3] == [c.FAULT, c.THROTTLED]


def test_a_job_tells_its_phase_its_place_and_when_it_is_expected_to_start() -> None:
    found = rows(Town(16).moment().columns, "job")
    waits, runs = found[f"{OPEN}/next-up"], found[f"{SECRET}/{SECRET_JOB}"]
    assert (waits["phase"], waits["gpus"], waits["place"] > 0) == (c.WAITS, 0, True)
    assert (waits["low"], waits["start"], waits["high"]) == (NOW + 2400, NOW + 3600, NOW + 6000)
    assert (runs["phase"], runs["gpus"], runs["type"]) == (c.HOLDS, 16, A100)


def test_rows_stay_where_they_are_and_are_given_to_others_once_they_are_free() -> None:
    town = Town(8)
    before = town.moment().columns
    places = {key: before["job.key"].index(key) for key in rows(before, "job")}
    del town.jobs["next-up"], town.nodes["n5"]
    after = town.moment().columns
    assert all(after["job.key"][place] == key for key, place in places.items() if key != f"{OPEN}/next-up")
    assert after["job.key"][places[f"{OPEN}/next-up"]] == ""
    assert after["node.name"][before["node.name"].index("n5")] == ""
    town.jobs["newer"] = waiting_job("newer", OPEN, "waits")
    assert town.moment().columns["job.key"][places[f"{OPEN}/next-up"]] == f"{OPEN}/newer"


def test_a_node_that_comes_back_with_more_gpus_gets_room_for_them() -> None:
    town = Town(4)
    town.moment()
    town.nodes["n3"] = node_object("n3", H100, allocatable={"nvidia.com/gpu": "16"})
    columns = town.moment().columns
    assert len(gpus(columns, "n3")) == 16
    spans = sorted((row["at"], row["gpus"]) for row in rows(columns, "node").values())
    assert all(at + count <= later for (at, count), (later, _) in itertools.pairwise(spans))


@given(st.integers(0, 1 << 30), st.booleans())
def test_however_the_cluster_changes_a_viewer_has_what_is_true(seed: int, restricted: bool) -> None:
    """The whole way: looks, an audience, frames as JSON, and a page that applies them."""
    draw, town = random.Random(seed), Town(6)
    audience = Audience(frozenset({OPEN})) if restricted else EVERYTHING
    channel, page = Channel(audience), dict[str, list[Any]]()
    for number in range(6):
        moment = town.moment()
        frame = channel.feed(moment.columns, moment.denied(audience), town.now)
        if frame is not None:
            channel.publish(frame)
            told = msgspec.json.decode(frame or channel.snapshot())
            page = apply(page, told["columns"]) if frame else told["columns"]
        assert page == columns_for(audience, moment.columns, moment.denied(audience))
        _happen(town, draw, number)


def _happen(town: Town, draw: random.Random, number: int) -> None:
    name = draw.choice(sorted(town.nodes) or ["n0"])
    what = draw.randrange(5)
    if what == 0 and len(town.nodes) > 1:
        del town.nodes[name]
    elif what == 1:
        town.nodes[f"m{number}"] = node_object(f"m{number}", draw.choice([A100, H100]))
    elif what == 2:
        job, where = f"new-{number}", draw.choice([OPEN, SECRET])
        town.jobs[job] = running_job(job, where, {name: draw.randrange(1, 9)})
    elif what == 3 and town.jobs:
        del town.jobs[draw.choice(sorted(town.jobs))]
    else:
        town.report(name, [draw.randrange(101) for _ in range(8)])
    town.now += draw.choice([0.0, 1.0, 600.0])


async def test_a_snapshot_is_encoded_once_for_all_and_elsewhere() -> None:
    town = Town()
    moment = town.moment()
    channel, encoded = Channel(EVERYTHING), list[bytes]()
    channel.publish(channel.feed(moment.columns, moment.denied(EVERYTHING), 1.0) or b"")

    async def elsewhere(work: Callable[[], bytes]) -> bytes:
        encoded.append(work())
        return encoded[-1]

    found = await asyncio.gather(*(channel.behind(since, elsewhere) for since in ("", "other.3", f"{channel.id}9")))
    assert found == [(channel.id, encoded)] * 3
    assert encoded == [channel.snapshot()]
    assert await channel.behind(channel.id, elsewhere) == (channel.id, [])


async def test_who_gets_a_snapshot_while_another_moment_comes_goes_on_from_what_they_got() -> None:
    town = Town()
    moment = town.moment()
    channel, sent = Channel(EVERYTHING), asyncio.Event()
    channel.publish(channel.feed(moment.columns, moment.denied(EVERYTHING), 1.0) or b"")

    async def elsewhere(work: Callable[[], bytes]) -> bytes:
        await sent.wait()
        return work()

    waits = asyncio.create_task(channel.behind("", elsewhere))
    await asyncio.sleep(0)
    town.report("n0", [7] * 8)
    later = town.moment(2)
    channel.publish(channel.feed(later.columns, later.denied(EVERYTHING), 2.0) or b"")
    sent.set()
    since, (snapshot,) = await waits
    _, (delta,) = await channel.behind(since, elsewhere)
    page, change = msgspec.json.decode(snapshot), msgspec.json.decode(delta)
    assert (page["id"], change["from"]) == (since, since)
    assert apply(page["columns"], change["columns"]) == channel.columns
