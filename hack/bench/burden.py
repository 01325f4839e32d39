"""What one tenant's many large jobs cost everybody else: memory of the controller, and time for others' jobs to start.

The crowd: thousands of jobs in one namespace, each as large as its object may be and with a plan space of its own. A
third is suspended, a third asks for more GPUs than the cluster has, and a third waits for the quota of its queue. Then
another tenant's jobs of one GPU come, one after the other. Their clock is that of `latency`: from the request that
creates the job to its bound pod; without the crowd, while it comes, with it, and with it after the controller has been
started anew. A watch of our own says how long it takes until the job is shown to anybody: while thousands of large
objects are being created, the API server tells of them late, whoever watches.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from hack.bench.cluster_fixture import Lab, job, lab, rss_mib, until
from hack.bench.latency import bound, bound_and_shown
from hack.bench.percentiles import Spread, spread
from msgspec import Struct

from trimtab import names
from trimtab.kube.resources import JOBS, QUEUES, Resource
from trimtab_local.checkout import checkout
from trimtab_local.fake.profile import load_profile

NAMESPACES = Resource("v1", "namespaces")
CROWD = "crowd"
QUOTA = 8
TEMPLATE_BYTES = 63 * 1024
"""Of each job's template: the API takes little more."""
ANNOTATION_BYTES = 4 * 1024
ENVIRONMENT = 250
"""Variables among which these bytes are spread: many small parts cost more than one large."""
AT_ONCE = 50
LAST = 30
"""Jobs of the crowd whose answer says that all have one."""
PATIENCE_SECONDS = 600.0
LARGE = 1 << 10
"""GPUs: more than the cluster has."""

Object = dict[str, Any]
Pair = tuple[float, float]


class Burden(Struct):
    """Seconds and MiB."""

    jobs: int
    alone: Spread
    """From a job's creation to its bound pod, with nobody else there."""
    coming: Spread
    """The same, while the crowd is being created."""
    crowded: Spread
    """The same, when it is there."""
    recovery: float
    """From the start of another controller, with the crowd there, to the bound pod of a job that waited for it."""
    anew: Spread
    """From a job's creation to its bound pod with that controller."""
    shown: dict[str, Spread]
    """From a job's creation until a watch shows it: `alone`, `coming`, `crowded`, `anew`."""
    memory: dict[str, float]
    """Of a controller: `alone`, `crowded` and `anew`, and what was the most of each (`crowded peak`, `anew peak`)."""

    @property
    def most(self) -> float:
        """MiB: the most that a controller ever had."""
        return max(self.memory.values())


async def measure(jobs: int, repeat: int) -> Burden:
    """So many jobs in the crowd, and so many of somebody else one after the other, three times."""
    async with lab("burden") as where:
        await where.add_nodes(load_profile(checkout() / "manifests" / "fake" / "heterogeneous.yaml"))
        await _prepare(where)
        memory: dict[str, float] = {}
        async with where.controller() as pid:
            alone = await _probes(where, "alone", repeat)
            memory["alone"] = rss_mib(pid)["now"]
            coming = await _come(where, jobs, repeat)
            crowded = await _probes(where, "crowded", repeat)
            memory |= _memory("crowded", pid)
        started = time.perf_counter()
        async with where.controller() as pid:
            await bound(where, "recovery")
            recovery = time.perf_counter() - started
            anew = await _probes(where, "anew", repeat)
            memory |= _memory("anew", pid)
    found = {"alone": alone, "coming": coming, "crowded": crowded, "anew": anew}
    ours, shown = ({when: spread([pair[side] for pair in pairs]) for when, pairs in found.items()} for side in (0, 1))
    return Burden(jobs=jobs, recovery=round(recovery, 2), shown=shown, memory=memory, **ours)


async def _probes(where: Lab, when: str, count: int) -> list[Pair]:
    return [await _probe(where, f"{when}-{i}") for i in range(count)]


async def _probe(where: Lab, name: str) -> Pair:
    """Seconds from the creation of a job of somebody else until it is bound, and until a watch shows it."""
    return await bound_and_shown(where, name, PATIENCE_SECONDS)


def crowd(count: int) -> list[Object]:
    """Jobs of the crowd. No two have a plan space in common."""
    return [_one_of_many(i) for i in range(count)]


def _one_of_many(i: int) -> Object:
    made = job(f"crowd-{i:05}", gpus=LARGE if i % 3 == 1 else 8, tensor=1)
    made["metadata"]["namespace"] = CROWD
    spec = made["spec"]
    spec["training"]["globalBatchSize"] = 1024 + 8 * i
    spec["queue"] = CROWD
    spec["suspend"] = i % 3 == 0
    each = "x" * (TEMPLATE_BYTES // ENVIRONMENT - len('{"name":"V000","value":""},'))
    container = spec["template"]["spec"]["containers"][0]
    made["metadata"]["annotations"] = {"example.test/note": "x" * ANNOTATION_BYTES}
    container["env"] = [{"name": f"V{n:03}", "value": each} for n in range(ENVIRONMENT)]
    return made


async def _prepare(where: Lab) -> None:
    await where.client.create(NAMESPACES.path(), {"metadata": {"name": CROWD}})
    quota = {"quotas": [{"gpuType": "*", "gpus": QUOTA}]}
    queue = {"apiVersion": names.API_VERSION, "kind": names.QUEUE_KIND, "metadata": {"name": CROWD}, "spec": quota}
    await where.client.create(QUEUES.path(), queue)


async def _come(where: Lab, count: int, repeat: int) -> list[Pair]:
    """Create the crowd, and meanwhile so many jobs of somebody else: their seconds."""
    jobs, seconds = crowd(count), list[Pair]()
    pause = max(count // repeat, 1)
    probe: asyncio.Task[Pair] | None = None
    for i in range(0, count, AT_ONCE):
        print(f"{i} of {count} jobs of the crowd", end="\r", file=sys.stderr)
        if i // pause >= len(seconds) and (probe is None or probe.done()):
            seconds += [probe.result()] if probe else []
            probe = asyncio.create_task(_probe(where, f"coming-{i}"))
        await _create(where, jobs[i : i + AT_ONCE])
    seconds += [await probe] if probe else []
    last = [each["metadata"]["name"] for each in jobs[-LAST:] if not each["spec"]["suspend"]]
    await until("the last of the crowd have been answered", lambda: _answered(where, last), PATIENCE_SECONDS)
    return seconds


async def _answered(where: Lab, crowd: Iterable[str]) -> bool:
    found = [msgspec.json.decode(await where.client.get(JOBS.path(CROWD, name))) for name in crowd]
    return all(each.get("status", {}).get("pending") or each.get("status", {}).get("plan") for each in found)


def _memory(when: str, pid: int) -> dict[str, float]:
    found = rss_mib(pid)
    return {when: found["now"], f"{when} peak": found["peak"]}


async def _create(where: Lab, jobs: Sequence[Object]) -> None:
    await asyncio.gather(*(where.client.create(JOBS.path(CROWD), one) for one in jobs))
