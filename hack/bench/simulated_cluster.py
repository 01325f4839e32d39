"""A cluster that exists in memory only: the bytes that an API server would send of it, and a controller's copy of them.

Nodes are those of the shipped profiles, or of one pool; jobs are planned and their pods made by Trimtab's own pure
functions, so that everything looks as it would after Trimtab itself had done it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from trimtab.api.convert import to_plan
from trimtab.api.status import JobStatus
from trimtab.apply import transitions
from trimtab.controller.cluster import Cluster
from trimtab.decide.engine import Engine
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.resources import JOBS, NODES, PODS, PRIORITY_CLASSES, SERVICES, Resource
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.jobs import JobFacts
from trimtab.observe.snapshot import ClusterObserver
from trimtab.plan import objects
from trimtab.plan.gang import gang_plan
from trimtab.settings import Settings
from trimtab_local.fake.nodes import expand
from trimtab_local.fake.profile import FakeCluster
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.types import Placement

Object = dict[str, Any]


class World:
    """The source of a `Cluster`: lists what there is, and then tells every change that `tell` is given."""

    def __init__(self, nodes: Iterable[Object], jobs: Iterable[Object] = ()) -> None:
        self._versions = itertools.count(1000)
        self._events: dict[str, asyncio.Queue[list[bytes]]] = {}
        self._items: dict[str, dict[str, bytes]] = {}
        """As bytes: a heap full of dicts would slow down the garbage collector, and with it whoever is measured."""
        for node in nodes:
            self.put(NODES, node | {"status": node["status"] | {"conditions": [_ready()]}})
        for job in jobs:
            self.put(JOBS, job)
            if name := job["spec"].get("priorityClassName"):
                self.put(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": 1000})

    def items(self, resource: Resource) -> list[Object]:
        """All objects of a kind."""
        return [msgspec.json.decode(content) for content in self._items.get(resource.path(), {}).values()]

    def put(self, resource: Resource, obj: Object) -> Object:
        """Create or replace an object; the world gives it UID, times and versions."""
        kept = self._items.setdefault(resource.path(), {})
        name = obj["metadata"]["name"]
        stamp = {"creationTimestamp": _now(), "generation": 1, "uid": str(uuid.uuid4())}
        meta = stamp | obj["metadata"] | {"resourceVersion": str(next(self._versions))}
        made = {**obj, "metadata": meta}
        kept[name] = msgspec.json.encode(made)
        return made

    def tell(self, resource: Resource, obj: Object, event: str = "MODIFIED") -> Object:
        """Create, replace or remove an object, as the type of event says, and tell those who watch. Returns it as they
        are told of it."""
        made = self.put(resource, obj)
        if event == "DELETED":
            del self._items[resource.path()][made["metadata"]["name"]]
        self._queue(resource.path()).put_nowait([msgspec.json.encode({"type": event, "object": made})])
        return made

    async def pages(self, path: str, page_size: int, params: Mapping[str, str] | None = None) -> AsyncIterator[bytes]:
        """One page with everything (trimtab.kube.reflector.Source)."""
        items = [msgspec.Raw(content) for content in self._items.get(path, {}).values()]
        yield msgspec.json.encode({"metadata": {"resourceVersion": str(next(self._versions))}, "items": items})

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[list[bytes], None]:
        """Events as they are told (trimtab.kube.reflector.Source)."""
        yield []
        while True:
            yield await self._queue(path).get()

    def _queue(self, path: str) -> asyncio.Queue[list[bytes]]:
        return self._events.setdefault(path, asyncio.Queue())


async def cluster(
    world: World, settings: Settings, heard: GpuNodes | None = None
) -> tuple[Cluster, asyncio.Task[None]]:
    """A controller's copy of the world, and the task that keeps it true. `heard` takes what agents report."""
    source: Any = world  # it only lists and watches
    copy = Cluster(source, settings.reflector, lambda: None, Silent(), gpunodes=heard)
    following = asyncio.create_task(copy.run())
    await copy.synced()
    return copy, following


async def with_running_jobs(profile: FakeCluster, jobs: Sequence[Object], settings: Settings) -> World:
    """The world after Trimtab has placed these jobs and all their pods run. Jobs that find no room wait."""
    world = World(expand(profile), jobs)
    copy, following = await cluster(world, settings)
    observation = ClusterObserver(settings.topology.levels).observe(copy.caches(), time.time())
    following.cancel()
    choice = Choice("best_fit", "fcfs", deadline_seconds=600)  # a rule: the world must not change with weights
    outcome = Engine().decide(observation.snapshot, choice)
    by_name = {job["metadata"]["name"]: job for job in world.items(JOBS)}
    for placement in outcome.placements:
        facts = observation.jobs[placement.job]
        resource = observation.nodes[placement.shares[0].node].resource
        _run(world, by_name[facts.meta.name], facts, placement, resource)
    return world


def _run(world: World, job: Object, facts: JobFacts, placement: Placement, resource: str) -> None:
    assert facts.spec and facts.training  # noqa: PT018 - our own jobs are valid
    now = time.time()
    plan = to_plan(
        placement, epoch=1, policy="best_fit", resource=resource, generation=1, now=datetime.fromtimestamp(now, UTC)
    )
    planned = transitions.planned(JobStatus(), facts.meta, plan, now)
    running = transitions.scheduled(planned, facts.meta, now, all_running=True)
    world.put(JOBS, job | {"status": running.to_wire()})
    blueprint = gang_plan(facts.meta, facts.spec, facts.template, facts.training, plan)
    world.put(SERVICES, objects.service(blueprint))
    for rank, share in enumerate(plan.nodes):
        pod = objects.pod(blueprint, rank)
        pod["spec"]["nodeName"] = share.name
        world.put(PODS, pod | {"status": {"phase": "Running", "startTime": _now(), "conditions": [_ready()]}})


def _ready() -> dict[str, str]:
    return {"type": "Ready", "status": "True", "lastTransitionTime": _now(), "lastHeartbeatTime": _now()}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
