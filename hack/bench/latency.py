"""What a user feels on a quiet cluster of 24 nodes: from a job's creation to its bound pod, and a controller's start.

The clock of the first starts when the request to create the job is sent and stops when a watch shows its only pod on
a node. That of the second starts with the process, on a cluster where a job waits, and stops when the job has its plan.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
from hack.bench.cluster_fixture import NAMESPACE, Lab, create_jobs, job, lab
from hack.bench.percentiles import Spread, spread
from msgspec import Struct

from trimtab import names
from trimtab.errors import NotFound
from trimtab.kube.resources import JOBS, PODS, Resource
from trimtab_local.checkout import checkout
from trimtab_local.fake.profile import load_profile

PATIENCE_SECONDS = 60.0

Object = dict[str, Any]


class Latencies(Struct):
    """Seconds."""

    bound: Spread
    started: Spread


async def measure(repeat: int, starts: int) -> Latencies:
    """So many jobs one after the other, and so many starts of a controller."""
    async with lab("latency") as where:
        await where.add_nodes(load_profile(checkout() / "manifests" / "fake" / "heterogeneous.yaml"))
        async with where.controller():
            waited = [await bound(where, f"small-{i}") for i in range(repeat)]
        await where.clear()
        return Latencies(spread(waited), spread([await _started(where) for _ in range(starts)]))


async def bound(where: Lab, name: str) -> float:
    """Seconds from the request that creates a job of one GPU until its pod is on a node. The job is deleted then."""
    return (await bound_and_shown(where, name))[0]


async def bound_and_shown(where: Lab, name: str, patience: float = PATIENCE_SECONDS) -> tuple[float, float]:
    """The same, and the seconds until a watch of jobs shows it: what of the first is the API server's own.

    Raises TimeoutError after `patience` seconds.
    """

    def placed(pod: Object) -> bool:  # and no other: the job before this one may still be leaving
        return "nodeName" in pod["spec"] and pod["metadata"]["labels"].get(names.LABEL_JOB) == name

    def itself(made: Object) -> bool:
        return bool(made["metadata"]["name"] == name)

    pods, itself_alone = _Place(PODS, PODS.path(), {"labelSelector": f"{names.LABEL_JOB}={name}"}), _only(name)
    async with (
        _first(where, pods, placed, patience) as seen,
        _first(where, itself_alone, itself, patience) as shown,
    ):
        began = time.monotonic()
        await create_jobs(where.client, [job(name, gpus=1, tensor=1)])
        took = await seen - began, await shown - began
    made = msgspec.json.decode(await where.client.get(JOBS.path(NAMESPACE, name)))
    await where.client.delete(JOBS.path(NAMESPACE, name), uid=made["metadata"]["uid"])
    return took


async def _started(where: Lab) -> float:
    await create_jobs(where.client, [job("waiting", gpus=1, tensor=1)])
    async with _first(where, _only("waiting"), lambda made: "plan" in made.get("status", {})) as seen:
        began = time.monotonic()
        async with where.controller():
            took = await seen - began
    await where.clear()
    return took


class _Place(Struct, frozen=True):
    """Where to look for something: a watch of all objects, as a controller's is, and a request for these alone."""

    resource: Resource
    path: str
    among: Mapping[str, str] = {}

    async def version(self, where: Lab) -> str:
        """Since when to watch. Of thousands of large objects the API server lists one in time, and all of them not."""
        listed = await where.client.get(self.resource.path(), {"limit": "1"})
        return str(msgspec.json.decode(listed)["metadata"]["resourceVersion"])

    async def now(self, where: Lab) -> list[Object]:
        try:
            found = msgspec.json.decode(await where.client.get(self.path, self.among))
        except NotFound:
            return []
        return list(found.get("items", [found]))


def _only(name: str) -> _Place:
    return _Place(JOBS, JOBS.path(NAMESPACE, name))


@asynccontextmanager
async def _first(
    where: Lab, place: _Place, wanted: Callable[[Object], bool], patience: float = PATIENCE_SECONDS
) -> AsyncIterator[asyncio.Task[float]]:
    """A task that ends with the monotonic time at which an object first is as wanted."""
    standing = asyncio.Event()

    async def look() -> float:
        async with asyncio.timeout(patience):
            while True:  # the API server ends a watch that falls behind, and soon remembers no more of what it missed
                since = {"resourceVersion": await place.version(where)}
                if any(map(wanted, await place.now(where))):
                    return time.monotonic()
                async with aclosing(where.client.watch(place.resource.path(), since)) as stream:
                    async for lines in stream:
                        moment = time.monotonic()
                        standing.set()
                        events = [msgspec.json.decode(line) for line in lines]
                        if any(e["type"] in ("ADDED", "MODIFIED") and wanted(e["object"]) for e in events):
                            return moment
                        if any(e["type"] == "ERROR" for e in events):
                            break
                await asyncio.sleep(0.1)

    task = asyncio.create_task(look())
    stands = asyncio.create_task(standing.wait())
    try:
        await asyncio.wait((task, stands), return_when=asyncio.FIRST_COMPLETED)  # it may have failed before
        yield task
    finally:
        task.cancel()
        stands.cancel()
