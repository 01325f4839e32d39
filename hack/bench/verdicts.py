"""How long a job that cannot start waits for the reason, and how good the start is that it is told.

`pure` is one whole decision, as the controller makes it, of a snapshot in which every node is full and so many jobs
wait: all of them get a reason, what would help, and a time. `live` is felt by a user: from the request that creates a
job to the moment at which a watch shows why it waits, first for all of them at once, then for one more at a time.

`punctual` holds expected starts against what then happens in the simulator, jobs coming as they come and predictions in
error by a fifth.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from itertools import islice
from typing import Any

import msgspec
from hack.bench import decisions
from hack.bench.cluster_fixture import Lab, create_jobs, job, lab, until
from hack.bench.percentiles import Spread, spread
from hack.bench.punctuality import Punctuality, Told, punctuality, witness
from msgspec import Struct
from msgspec.structs import replace

from trimtab import names
from trimtab.decide.engine import Engine
from trimtab.decide.rules import rules_of
from trimtab.kube.resources import JOBS
from trimtab.settings import Settings
from trimtab_lab.workloads import clusters, generator
from trimtab_local.fake.profile import FakeCluster, NodePool
from trimtab_policy.perf import plans
from trimtab_policy.scheduling.choice import Choice
from trimtab_policy.scheduling.etas import expected_starts
from trimtab_policy.types import Job, Snapshot

DEADLINE_SECONDS = 600.0
PATIENCE_SECONDS = 300.0
FILLER_NODES = 64
"""Of the largest gang that holds nodes: its data-parallel degree divides the batch."""
POLICIES = ("best_fit", "fcfs", "easy_backfill")
ERROR = 0.2
SITE = "H100-SXM5-80GB=64,A100-SXM4-80GB=64"


class Size(Struct, frozen=True):
    """How much is measured."""

    nodes: int
    pending: int
    repeat: int
    seeds: int


FULL = Size(nodes=1000, pending=500, repeat=20, seeds=6)
TINY = Size(nodes=20, pending=5, repeat=2, seeds=1)


class Live(Struct):
    """Seconds from the creation of a job to the reason why it waits."""

    burst: Spread
    """Of all jobs, created at once."""
    one: Spread
    """Of one more, while they wait."""
    reasons: dict[str, int]


class Verdicts(Struct):
    """All that was measured."""

    nodes: int
    pending: int
    cold: float
    """Milliseconds of CPU of the first decision of a process."""
    warm: Spread
    """Milliseconds of CPU of a decision."""
    starts: Spread
    """Milliseconds of CPU of the forecast in it."""
    live: Live | None
    punctual: dict[str, Punctuality]
    """By policy."""


async def measure(size: Size, *, live: bool = True) -> Verdicts:
    """`live` needs a local control plane."""
    snapshot = await decisions.snapshot_of(decisions.profile_of(size.nodes), 1.0, size.pending)
    engine, settings = Engine(), Settings()
    choice = Choice("best_fit", "fcfs", deadline_seconds=DEADLINE_SECONDS)
    rules = rules_of(settings)
    engine.prepare(["best_fit"])
    plans.forget()

    def decide() -> float:
        began = time.process_time()
        found = engine.decide(snapshot, choice, rules)
        took = 1000 * (time.process_time() - began)
        assert len(found.pending) + len(found.placements) >= size.pending
        return took

    cold = decide()
    return Verdicts(
        nodes=size.nodes,
        pending=size.pending,
        cold=cold,
        warm=spread([decide() for _ in range(size.repeat)]),
        starts=spread([_forecast(snapshot) for _ in range(size.repeat)]),
        live=await _live(size) if live else None,
        punctual={policy: _punctual(policy, size.seeds) for policy in POLICIES},
    )


def _forecast(snapshot: Snapshot) -> float:
    pending = Engine().decide(snapshot, Choice("best_fit", "fcfs", deadline_seconds=DEADLINE_SECONDS)).pending
    began = time.process_time()
    expected_starts(snapshot, pending)
    return 1000 * (time.process_time() - began)


async def _live(size: Size) -> Live:
    pool = NodePool(name="h100", count=size.nodes, product="NVIDIA-H100-80GB-HBM3", gpus=8, cpu=192, memory="2Ti")
    async with lab("verdicts") as where:
        await where.add_nodes(FakeCluster(name="verdicts", pools=(pool,)))
        async with where.controller():
            await _fill(where, size)
            watching = _Watch(where)
            async with watching.standing():
                waiting = list(islice(_waiting(), size.pending + size.repeat))
                burst = await watching.times(waiting[: size.pending])
                one = [(await watching.times([each]))[0] for each in waiting[size.pending :]]
            return Live(spread(burst), spread(one), watching.reasons())


async def _fill(where: Lab, size: Size) -> None:
    """Jobs that hold every node for long."""
    left, sizes = size.nodes, list[int]()
    while left:
        sizes.append(min(FILLER_NODES, 1 << (left.bit_length() - 1)))
        left -= sizes[-1]
    await create_jobs(
        where.client, [job(f"holds-{number}", gpus=8 * nodes, tensor=1) for number, nodes in enumerate(sizes)]
    )

    async def planned() -> bool:
        return all("plan" in made.get("status", {}) for made in await where.items(JOBS))

    await until("all nodes are held", planned, PATIENCE_SECONDS)


def _waiting() -> Iterator[dict[str, Any]]:
    """Jobs of different shapes, none of which can start: busy GPUs, too large, no plan, no such GPU."""
    number = 0
    while True:
        number += 1
        made = job(f"waits-{number:04}", gpus=8 * (1 + number % 4), tensor=1)
        made["spec"]["training"]["globalBatchSize"] = 256 * (1 + number % 7)
        if number % 5 == 1:
            made["spec"]["resources"]["gpus"] = {"max": 16384}
            made["spec"]["training"]["globalBatchSize"] = 16384
        elif number % 5 == 2:
            made["spec"]["model"] = {"preset": "llama3.1-405b"}
        elif number % 5 == 3:
            made["spec"]["resources"]["gpuTypes"] = ["T4"]
        yield made


class _Watch:
    """Hears of every job's status as a user's watch would."""

    def __init__(self, where: Lab) -> None:
        self._where = where
        self._seen: dict[str, float] = {}
        self._reasons: dict[str, str] = {}
        self._news = asyncio.Event()

    def standing(self) -> _Following:
        """For the length of an `async with` block."""
        return _Following(self)

    async def follow(self, ready: asyncio.Event) -> None:
        """Note when each job is first said to wait; a watch that ends is begun anew."""
        while True:
            listed = msgspec.json.decode(await self._where.client.get(JOBS.path()))
            for made in listed["items"]:
                self._note(made, time.monotonic())
            self._news.set()
            version = {"resourceVersion": listed["metadata"]["resourceVersion"]}
            async with aclosing(self._where.client.watch(JOBS.path(), version)) as stream:
                ready.set()
                async for lines in stream:
                    moment = time.monotonic()
                    for line in lines:
                        self._note(msgspec.json.decode(line).get("object", {}), moment)
                    self._news.set()

    async def times(self, jobs: list[dict[str, Any]]) -> list[float]:
        """Create them at once; seconds until each is told why it waits."""
        wanted = [each["metadata"]["name"] for each in jobs]
        began: dict[str, float] = {}

        async def create(each: dict[str, Any]) -> None:
            began[each["metadata"]["name"]] = time.monotonic()
            await create_jobs(self._where.client, [each])

        await asyncio.gather(*map(create, jobs))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self._seen.keys() >= set(wanted):
                self._news.clear()
                await self._news.wait()
        return [self._seen[name] - began[name] for name in wanted]

    def reasons(self) -> dict[str, int]:
        """Of all that were seen."""
        return dict(Counter(self._reasons.values()))

    def _note(self, made: dict[str, Any], moment: float) -> None:
        status, meta = made.get("status", {}), made.get("metadata", {})
        told = [c for c in status.get("conditions", ()) if (c["type"], c["status"]) == (names.PLANNED, "False")]
        if told and "pending" in status and meta["name"] not in self._seen:
            self._seen[meta["name"]] = moment
            self._reasons[meta["name"]] = status["pending"]["reason"]


class _Following:
    def __init__(self, watch: _Watch) -> None:
        self._watch = watch
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._watch.follow(ready))
        await ready.wait()

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()


def _punctual(policy: str, seeds: int) -> Punctuality:
    site, told, silent = clusters.cluster(SITE), list[Told](), 0
    for seed in range(seeds):
        drawn = _longer(generator.llm_jobs("llm-small", 100, site, 1.2, seed))
        said, unanswered = witness(policy, drawn, site, ERROR, seed)
        told += said
        silent += unanswered
    return punctuality(told, silent)


def _longer(jobs: list[Job]) -> list[Job]:
    """Hours, not minutes."""
    return [
        replace(each, created=20 * each.created, training=replace(each.training, steps=20 * each.training.steps))
        for each in jobs
    ]
