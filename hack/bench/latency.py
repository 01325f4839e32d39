"""What a user feels on a quiet cluster of 24 nodes: from a job's creation to its bound pod, and a controller's start.

The clock of the first starts when the request to create the job is sent and stops when a watch shows its only pod on
a node. That of the second starts with the process, on a cluster where a job waits, and stops when the job has its plan.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
from hack.bench.lab import NAMESPACE, Lab, create_jobs, job, lab
from hack.bench.spread import Spread, spread
from msgspec import Struct

from trimtab import names
from trimtab.checkout import checkout
from trimtab.fake.profile import load_profile
from trimtab.kube.resources import JOBS, PODS, Resource

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

    def wanted(pod: Object) -> bool:  # and no other: the job before this one may still be leaving
        return "nodeName" in pod["spec"] and pod["metadata"]["labels"].get(names.LABEL_JOB) == name

    async with _first(where, PODS, wanted) as seen:
        began = time.monotonic()
        await create_jobs(where.client, [job(name, gpus=1, tensor=1)])
        took = await seen - began
    made = msgspec.json.decode(await where.client.get(JOBS.path(NAMESPACE, name)))
    await where.client.delete(JOBS.path(NAMESPACE, name), uid=made["metadata"]["uid"])
    return took


async def bound_by_stock(where: Lab, name: str) -> float:
    """The same of a pod of one GPU that the stock kube-scheduler binds: two writes, where a job takes six."""
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    spec = {
        "containers": [{"name": "trainer", "image": "example.com/trainer:1", "resources": resources}],
        "tolerations": [{"operator": "Exists"}],
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}

    def wanted(pod: Object) -> bool:
        return "nodeName" in pod["spec"] and pod["metadata"]["name"] == name

    async with _first(where, PODS, wanted) as seen:
        began = time.monotonic()
        made = msgspec.json.decode(await where.client.create(PODS.path(NAMESPACE), body))
        took = await seen - began
    await where.client.delete(PODS.path(NAMESPACE, name), uid=made["metadata"]["uid"], grace_seconds=0)
    return took


async def _started(where: Lab) -> float:
    await create_jobs(where.client, [job("waiting", gpus=1, tensor=1)])
    async with _first(where, JOBS, lambda made: "plan" in made.get("status", {})) as seen:
        began = time.monotonic()
        async with where.controller():
            took = await seen - began
    await where.clear()
    return took


@asynccontextmanager
async def _first(
    where: Lab, resource: Resource, wanted: Callable[[Object], bool]
) -> AsyncIterator[asyncio.Task[float]]:
    """A task that ends with the monotonic time at which an object that changes now first is as wanted."""
    standing = asyncio.Event()

    async def look() -> float:
        version = msgspec.json.decode(await where.client.get(resource.path()))["metadata"]["resourceVersion"]
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            aclosing(where.client.watch(resource.path(), {"resourceVersion": version})) as stream,
        ):
            async for lines in stream:
                moment = time.monotonic()
                standing.set()
                events = [msgspec.json.decode(line) for line in lines]
                if any(e["type"] in ("ADDED", "MODIFIED") and wanted(e["object"]) for e in events):
                    return moment
        raise ConnectionError(f"the watch of {resource.plural} ended")

    task = asyncio.create_task(look())
    try:
        await standing.wait()
        yield task
    finally:
        task.cancel()
