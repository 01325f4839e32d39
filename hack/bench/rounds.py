"""What a round costs when nothing, or next to nothing, has changed: 1,000 nodes, 50 running gangs, 1,600 pods.

The controller's own parts run on a cluster in memory. A round that writes nothing is all that is measured; the API
server has no part in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from hack.bench import simulated_cluster as worlds
from hack.bench.binding import Size
from hack.bench.cluster_fixture import v100_nodes
from hack.bench.percentiles import Spread, spread
from msgspec import Struct

from trimtab.controller.cluster import Cluster
from trimtab.controller.event_recorder import EventRecorder
from trimtab.controller.jobs.attention import Attention
from trimtab.controller.jobs.evictions import Evictions
from trimtab.controller.jobs.gangs import Gangs
from trimtab.controller.loop.choosing import Choosing
from trimtab.controller.loop.decisions import Decisions
from trimtab.controller.loop.rounds import Rounds, Wake
from trimtab.controller.loop.shadow import ShadowMode
from trimtab.controller.nodes.health import Health
from trimtab.controller.views import Views
from trimtab.decide.engine import Engine
from trimtab.decide.remote import RemoteEngine
from trimtab.kube.resources import NODES, PODS, Resource
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.snapshot import ClusterObserver
from trimtab.settings import Settings
from trimtab_policy.scheduling.choice import Choice


class Costs(Struct):
    """Milliseconds."""

    first: float
    """The first round after a start: nothing is remembered yet."""
    unchanged: Spread
    heartbeat: Spread
    """A node's heartbeat arrives, and a round is made all the same: usually it would not be."""
    pod_changed: Spread
    node_changed: Spread


class NoClient:
    """Whoever writes here has a bug: all jobs run already."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"client.{name} was used in a round without news")


NO_CLIENT = NoClient()
BEST_FIT = Choice("best_fit", "fcfs", deadline_seconds=600)


async def measure(size: Size, repeat: int) -> Costs:
    """Run rounds and time them."""
    settings = Settings()
    jobs = [job for kind in size.jobs() for job in kind]
    world = await worlds.with_running_jobs(v100_nodes(size.nodes), jobs, settings)
    assert len(world.items(PODS)) == size.pods
    copy, following = await worlds.cluster(world, settings)
    rounds = made(copy, settings)
    try:
        first = await timed(rounds)
        return Costs(
            first=first,
            unchanged=spread([await timed(rounds) for _ in range(repeat)]),
            heartbeat=spread([await _after(rounds, world, NODES, _heartbeat) for _ in range(repeat)]),
            pod_changed=spread([await _after(rounds, world, PODS, _restarted) for _ in range(repeat)]),
            node_changed=spread([await _after(rounds, world, NODES, _labelled) for _ in range(repeat)]),
        )
    finally:
        following.cancel()


def made(
    copy: Cluster,
    settings: Settings,
    heard: GpuNodes | None = None,
    *,
    client: Any = NO_CLIENT,
    choice: Choice = BEST_FIT,
) -> Rounds:
    """The controller's rounds on a copy of a cluster; `heard` is what agents have reported, `client` takes what is
    written, and `choice` says who decides."""
    observer, engine, wake = ClusterObserver(settings.topology.levels, heard), Engine(), Wake()
    views, recorder = Views(copy, observer, settings, gpunodes=heard), EventRecorder(client, "bench")
    health = Health(client, copy, heard, recorder) if heard else None

    def fail(error: BaseException) -> None:
        raise error

    attention = Attention(settings.round.sweep_seconds)
    copy.listen(attention.attend)
    gangs = Gangs(
        client, copy, views, recorder, settings, leader_epoch=lambda: 1, wake=wake, fail=fail, attention=attention
    )
    choosing = Choosing(choice, copy, engine, recorder)
    shadow, successions = ShadowMode(RemoteEngine(), gangs, settings, wake), Evictions(gangs, views)
    decisions = Decisions(choosing, engine, shadow, gangs, recorder, successions, settings)
    return Rounds(copy, observer, decisions, gangs, views, recorder, settings.round, health)


async def timed(rounds: Rounds) -> float:
    """One round, in milliseconds of CPU."""
    began = time.process_time()
    await rounds.round()
    return 1000 * (time.process_time() - began)


async def _after(rounds: Rounds, world: worlds.World, resource: Resource, change: Callable[[Any], None]) -> float:
    """One round after one change, the arrival of the change included."""
    obj = world.items(resource)[0]
    change(obj)
    world.tell(resource, obj)
    began = time.process_time()
    await asyncio.sleep(0)  # the reflector's turn
    await asyncio.sleep(0)
    await rounds.round()
    return 1000 * (time.process_time() - began)


def _heartbeat(node: Any) -> None:
    node["status"]["conditions"][0]["lastHeartbeatTime"] = str(time.time_ns())


def _restarted(pod: Any) -> None:
    pod["status"]["startTime"] = str(time.time_ns())


def _labelled(node: Any) -> None:
    node["metadata"]["labels"]["bench"] = str(time.time_ns())
