"""What it costs that another controller makes the pods: a batch Job that is placed, beside a job of ours like it.

Both are created in turns on a quiet cluster, one at a time: the same nodes, the same GPUs, degrees fixed, so that their
plans are alike. An independent watch of pods and jobs has the clock. Of each gang:

    whole      from the request that creates the job until the last pod is bound: what its user waits for
    planned    from the first sight of the plan until then: for ours pods are made and bound, for theirs taken in,
               let through their gates, and bound
    made       from the first sight of the last pod until then: for ours that is binding alone; pods of the batch Job
               are there at once, behind their gates, and wait for the stand-in and its plan as well

The first of each is not counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
from hack.bench.cluster_fixture import NAMESPACE, PATIENCE_SECONDS, Lab, job, lab, until
from hack.bench.percentiles import Spread, spread
from msgspec import Struct
from rich.table import Table

from trimtab import names
from trimtab.kube.resources import JOBS, PODS, Resource
from trimtab_local.fake.profile import FakeCluster, NodePool

NODES = 24
GPUS = 8
"""Of a node, and of each pod."""
PLACE = {"TRIMTAB_INTEROP__PLACE": "Labelled"}
BATCH_JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
PARTS = ("whole", "planned", "made")

Object = dict[str, Any]


class Waits(Struct):
    """Seconds, by who makes the pods."""

    whole: Spread
    planned: Spread
    made: Spread


class Outcome(Struct):
    """Gangs of so many pods."""

    pods: int
    runs: int
    ours: Waits
    theirs: Waits

    def added(self, part: str) -> float:
        """What a batch Job waits longer than ours, by the median, in per cent."""
        ours, theirs = getattr(self.ours, part), getattr(self.theirs, part)
        return 100 * float(theirs.p50 / ours.p50 - 1)


class _Witness:
    """When pods and plans were first seen, in monotonic seconds by name."""

    def __init__(self) -> None:
        self.made: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        self.planned: dict[str, float] = {}
        self.changed = asyncio.Event()

    async def follow(self, where: Lab, resource: Resource, stands: asyncio.Event) -> None:
        """Watch all objects of a kind."""
        listed = msgspec.json.decode(await where.client.get(resource.path(), {"limit": "1"}))
        version = listed["metadata"]["resourceVersion"]
        while True:  # the API server may close a watch whenever it likes
            async with aclosing(where.client.watch(resource.path(), {"resourceVersion": version})) as stream:
                async for lines in stream:
                    moment = time.monotonic()
                    stands.set()
                    for event in map(msgspec.json.decode, lines):
                        if event["type"] == "ERROR":
                            raise RuntimeError(f"the watch of {resource.plural} has fallen behind: {event['object']}")
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] in ("ADDED", "MODIFIED"):
                            self._take(resource, event["object"], moment)

    def _take(self, resource: Resource, seen: Object, moment: float) -> None:
        name = seen["metadata"]["name"]
        if resource is JOBS and "plan" in seen.get("status", {}):
            self.planned.setdefault(name, moment)
        if resource is PODS:
            self.made.setdefault(name, moment)
            if "nodeName" in seen["spec"]:
                self.bound.setdefault(name, moment)
        self.changed.set()

    async def gang(self, name: str, pods: int, began: float) -> tuple[float, float, float]:
        """Wait until all pods of a job are bound; seconds of the PARTS. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(bound := _of(name, self.bound)) < pods:
                self.changed.clear()
                await self.changed.wait()
        end = max(bound)
        return end - began, end - min(_of(name, self.planned)), end - max(_of(name, self.made))


def _of(name: str, moments: dict[str, float]) -> list[float]:
    """Those of a job: all that is made for it is called like it."""
    return [moment for called, moment in moments.items() if f"{called}-".startswith(f"{name}-")]


@asynccontextmanager
async def _watched(where: Lab) -> AsyncIterator[_Witness]:
    witness, stand = _Witness(), {PODS: asyncio.Event(), JOBS: asyncio.Event()}
    async with asyncio.TaskGroup() as group:  # a watch that fails ends the measurement
        tasks = [group.create_task(witness.follow(where, resource, stands)) for resource, stands in stand.items()]
        await asyncio.gather(*(stands.wait() for stands in stand.values()))
        yield witness
        for task in tasks:
            task.cancel()


def batch_job(name: str, pods: int) -> Object:
    """A batch Job that is to be placed, and says the same as `job` of as many GPUs: tensor groups of a node."""
    ours = job(name, gpus=pods * GPUS, tensor=GPUS)["spec"]
    training = ours["training"]
    stated = {
        "model": ours["model"]["preset"],
        "sequence_length": training["sequenceLength"],
        "global_batch_size": training["globalBatchSize"],
        "steps": training["steps"],
        "precision": training["precision"],
        "tensor": GPUS,
        "pipeline": 1,
        "context": 1,
    }
    label = {names.LABEL_MANAGED: "true"}
    container = ours["template"]["spec"]["containers"][0] | {"resources": {"limits": {names.NVIDIA_GPU: GPUS}}}
    spec = {
        "schedulerName": names.SCHEDULER_NAME,
        "schedulingGates": [{"name": names.SCHEDULING_GATE}],
        "restartPolicy": "Never",
        "containers": [container],
    }
    annotations = {names.STATED[field]: str(value) for field, value in stated.items()}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": label, "annotations": annotations},
        "spec": {
            "completionMode": "Indexed",
            "parallelism": pods,
            "completions": pods,
            "template": {"metadata": {"labels": label}, "spec": spec},
        },
    }


async def _run(where: Lab, witness: _Witness, path: str, made: Object, pods: int) -> tuple[float, float, float]:
    """One gang, from its birth until nothing of it is left."""
    began = time.monotonic()
    await where.client.create(path, made)
    waits = await witness.gang(made["metadata"]["name"], pods, began)
    await where.client.request("DELETE", f"{path}/{made['metadata']['name']}", body={"propagationPolicy": "Background"})

    async def gone() -> bool:
        return not await where.items(PODS) and not await where.items(JOBS)

    await until("the gang is gone", gone)
    return waits


async def measure(pods: int, repeat: int) -> Outcome:
    """So many gangs of each, in turns."""
    ways: dict[str, tuple[str, Callable[[str], Object]]] = {
        "ours": (JOBS.path(NAMESPACE), lambda name: job(name, gpus=pods * GPUS, tensor=GPUS)),
        "theirs": (BATCH_JOBS, lambda name: batch_job(name, pods)),
    }
    seconds: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    async with lab("others") as where:
        pool = NodePool(name="v100", count=NODES, product="Tesla-V100-SXM2-32GB", gpus=GPUS, cpu=96, memory="1Ti")
        await where.add_nodes(FakeCluster(name="bench", pools=(pool,)))
        async with where.controller(variables=PLACE), _watched(where) as witness:
            for turn in range(repeat + 1):
                for way, (path, make) in ways.items():
                    seconds[way].append(await _run(where, witness, path, make(f"{way}-{turn}"), pods))
    ours, theirs = (Waits(*map(spread, zip(*each[1:], strict=True))) for each in seconds.values())
    return Outcome(pods, repeat, ours, theirs)


def table(found: Outcome) -> Table:
    """For people."""
    title = f"gangs of {found.pods} pods, from ... to bound, s"
    columns = ("FROM", "OURS p50", "MAX", "BATCH JOB p50", "MAX", "ADDED")
    shown = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
    called = {"whole": "job created", "planned": "plan seen", "made": "last pod seen"}
    for part in PARTS:
        waits: list[Spread] = [getattr(each, part) for each in (found.ours, found.theirs)]
        times = [f"{seconds:.3f}" for wait in waits for seconds in (wait.p50, wait.max)]
        shown.add_row(called[part], *times, f"{found.added(part):+.0f} %")
    return shown
