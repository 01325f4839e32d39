"""What agents cost the controller: `python -m hack.bench.telemetry`.

10,000 nodes of eight GPUs, all in memory, each with a report as the fake backend and the agent make it, and with the
`managedFields` that the API server adds for server-side apply. Measured are

- one report, from the bytes of its watch event to the judgement that nothing has changed (one event at a time arrives);
- a round with nothing to do, without agents and with them, in an idle cluster and in one with 2,000 running gangs;
- a round after a second's worth of reports (each agent reports every 30 s), and what both take of a core, were there
  a round in every second.

Milliseconds are those of CPU. The garbage collector's heap is frozen first, as the controller does when it is ready.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import typer
from hack.bench import rounds
from hack.bench import simulated_cluster as worlds
from hack.bench.binding import Size
from hack.bench.percentiles import Spread, spread
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from trimtab import names
from trimtab.agent.digest import Digest, report
from trimtab.agent.profile import FakeNode as CardProfile
from trimtab.agent.profile import RunningPod
from trimtab.agent.simulation import SimulatedNode
from trimtab.controller.cluster import Cluster
from trimtab.kube.resources import GPUNODES, NODES
from trimtab.observe.gpunodes import GpuNodes
from trimtab.settings import Settings
from trimtab_local.fake.profile import FakeCluster, NodePool
from trimtab_policy import catalog

PRODUCT, SPEC, GPUS = "Tesla-V100-SXM2-32GB", "V100-SXM2-32GB", 8
PERIOD = 30
FULL = Size(nodes=10_000, wide_gangs=1000, narrow_gangs=1000, gang=2)
TINY = Size(nodes=9, wide_gangs=2, narrow_gangs=1, gang=4)
UPDATE_GOAL, ROUND_GOAL, CORE_GOAL = 0.1, 10.0, 0.15


class Costs(Struct):
    """Milliseconds of CPU."""

    nodes: int
    event_bytes: int
    """Size of one watch event."""
    update: Spread
    """Per report, over batches of a second's worth."""
    idle_without: Spread
    """A round with nothing to do and no agents."""
    idle: Spread
    """With agents."""
    busy_without: Spread
    """The same with running gangs."""
    busy: Spread
    busy_after_reports: Spread
    """A round after a second's worth of reports, their arrival left out."""

    @property
    def core(self) -> float:
        """Part of a core that reports take as they come, with a round in every second."""
        return (self.nodes / PERIOD * self.update.p50 + self.busy_after_reports.p50) / 1000


async def measure(size: Size, repeat: int) -> Costs:
    """Measure all of it."""
    settings = Settings()
    # First, as in a controller, whose memory has one cluster: after three others each round costs half as much again.
    world = await _world(size, settings, gangs=True)
    busy, after, updates, largest = await _rounds(world, settings, repeat, agents=True)
    idle_without, *_ = await _rounds(await _world(size, settings, gangs=False), settings, repeat, agents=False)
    busy_without, *_ = await _rounds(await _world(size, settings, gangs=True), settings, repeat, agents=False)
    idle, *_ = await _rounds(await _world(size, settings, gangs=False), settings, repeat, agents=True)
    return Costs(size.nodes, largest, updates, idle_without, idle, busy_without, busy, after)


async def _world(size: Size, settings: Settings, *, gangs: bool) -> worlds.World:
    pool = NodePool(name="v100", count=size.nodes, product=PRODUCT, gpus=GPUS, cpu=96, memory="1Ti")
    jobs = [job for kind in size.jobs() for job in kind] if gangs else []
    return await worlds.with_running_jobs(FakeCluster(name="bench", pools=(pool,)), jobs, settings)


async def _rounds(
    world: worlds.World, settings: Settings, repeat: int, *, agents: bool
) -> tuple[Spread, Spread, Spread, int]:
    """Rounds with nothing to do; after reports; reports; and the size of one."""
    told = [node["metadata"]["name"] for node in world.items(NODES)] if agents else []
    fleet = Fleet(told)
    for name in told:
        world.put(GPUNODES, fleet.report(name))
    heard = GpuNodes(settings.telemetry) if agents else None
    copy, following = await worlds.cluster(world, settings, heard)
    try:
        loop = rounds.made(copy, settings, heard)
        await loop.round()
        gc.collect()
        gc.freeze()
        unchanged = spread([await rounds.timed(loop) for _ in range(repeat)])
        if not agents:
            return unchanged, unchanged, unchanged, 0
        updates, after = [], []
        for turn in range(repeat):
            some = told[turn % PERIOD :: PERIOD]
            updates.append(await _arrive(world, copy, [fleet.report(name) for name in some]))
            after.append(await rounds.timed(loop))
        return unchanged, spread(after), spread(updates), fleet.largest
    finally:
        gc.unfreeze()
        following.cancel()


async def _arrive(world: worlds.World, copy: Cluster, reports: list[dict[str, Any]]) -> float:
    """CPU of one report, of so many that come one after the other."""
    reflector = copy.gpunodes
    assert reflector
    for each in reports:
        world.tell(GPUNODES, each)
    last = reports[-1]["metadata"]["name"]
    known = reflector.items[last]
    began = time.process_time()
    while reflector.items[last] is known:  # noqa: ASYNC110 - nothing else runs that could wait for an event
        await asyncio.sleep(0)
    return 1000 * (time.process_time() - began) / len(reports)


class Fleet:
    """Agents of all nodes, without the processes."""

    def __init__(self, nodes: Iterable[str]) -> None:
        profile = CardProfile(product=PRODUCT, gpus=GPUS, nvlinks=6, running=(RunningPod("bench/load", GPUS),))
        self._cards = {name: SimulatedNode(profile, catalog.gpu(SPEC), name) for name in nodes}
        self._digests = {name: Digest(float(PERIOD)) for name in self._cards}
        self._now = 0.0
        self.largest = 0

    def report(self, node: str) -> dict[str, Any]:
        """The GPUNode as the API server shows it after the agent's next write."""
        self._now += 1
        state = self._digests[node].take(self._cards[node].read(self._now), self._now, time.time())
        status = msgspec.to_builtins(report(state, backend="fake", period=PERIOD, boot_id="bench"))
        obj = {
            "apiVersion": names.API_VERSION,
            "kind": names.GPUNODE_KIND,
            "metadata": {"name": node, "uid": f"uid-{node}", "managedFields": [_managed(status)]},
            "status": status,
        }
        self.largest = max(self.largest, len(msgspec.json.encode(obj)))
        return obj


def _managed(status: dict[str, Any]) -> dict[str, Any]:
    """What server-side apply notes down of the fields and their owner: it doubles the size of the object."""
    gpus = {f'k:{{"uuid":"{gpu["uuid"]}"}}': {".": {}, **_fields(gpu)} for gpu in status["gpus"]}
    return {
        "manager": names.AGENT_FIELD_MANAGER,
        "operation": "Apply",
        "apiVersion": names.API_VERSION,
        "time": "2026-01-02T03:04:05Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:status": {**_fields({**status, "gpus": None}), "f:gpus": gpus}},
        "subresource": "status",
    }


def _fields(obj: dict[str, Any]) -> dict[str, Any]:
    return {f"f:{name}": _fields(value) if isinstance(value, dict) else {} for name, value in obj.items()}


def table(costs: Costs) -> Table:
    """For people, with the goals."""
    title = f"{costs.nodes} nodes with agents, ms of CPU"
    shown = Table("", "p50", "p99", "GOAL", title=title, title_justify="left", box=None, pad_edge=False)
    rows: tuple[tuple[str, Spread, float | None], ...] = (
        (f"one report ({costs.event_bytes / 1000:.0f} kB), from its bytes to its judgement", costs.update, UPDATE_GOAL),
        ("a round with nothing to do, no agents", costs.idle_without, None),
        ("the same with agents", costs.idle, ROUND_GOAL),
        ("a round with running gangs, nothing to do, no agents", costs.busy_without, None),
        ("the same with agents", costs.busy, ROUND_GOAL),
        ("the same after a second's worth of reports", costs.busy_after_reports, None),
    )
    for what, cost, goal in rows:
        shown.add_row(what, f"{cost.p50:.3g}", f"{cost.p99:.3g}", f"≤ {goal:g}" if goal else "")
    shown.add_row("reports and a round in every second, of a core", f"{costs.core:.0%}", "", f"≤ {CORE_GOAL:.0%}")
    return shown


def main(
    tiny: Annotated[bool, typer.Option(help="At toy size, to see that it works; the figures mean nothing.")] = False,
    repeat: Annotated[int, typer.Option(help="Rounds of each kind; of reports, batches.", min=1)] = 60,
) -> None:
    """Measure what agents cost the controller, about four minutes. Others should be quiet meanwhile."""
    costs = asyncio.run(measure(TINY if tiny else FULL, repeat))
    Console().print(table(costs))


if __name__ == "__main__":
    typer.run(main)
