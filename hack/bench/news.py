"""What a round costs by what has happened since the last one, on a large cluster that is at work: 10,000 nodes of nine
GPU products and 2,000 running gangs. Milliseconds of CPU of all threads, the arrival of what has happened included.

    nothing     nothing has happened
    starts      a job has come, and can start
    waits       a job has come that needs more GPUs than are free of any type
    deleted     a running job is gone, and its pods with it

The controller's own parts run on a cluster in memory, without agents, other kinds of jobs and Kueue. What they write is
refused after the round: a round ends when every write is on its way, and what has happened is then undone. The same is
done on 1,000 nodes, to see how each cost grows.
"""

from __future__ import annotations

import asyncio
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from hack.bench import decisions, rounds
from hack.bench import simulated_cluster as worlds
from hack.bench.cluster_fixture import job
from hack.bench.simulated_cluster import Object, World
from msgspec import Struct
from rich.table import Table

from trimtab.controller.cluster import Cluster
from trimtab.controller.loop.rounds import Rounds
from trimtab.errors import NotFound
from trimtab.kube.resources import JOBS, PODS
from trimtab.observe.snapshot import ClusterObserver
from trimtab.settings import Settings
from trimtab_policy.scheduling.choice import Choice

NODES = 10_000
SMALL = 1000
"""Nodes of the cluster that the other one is compared with."""
NODES_PER_GANG = 5
GANG_GPUS = 16
POLICIES = ("best_fit", "rudder")
DEADLINE_SECONDS = 600.0
GOALS = {"best_fit": 30.0, "rudder": 150.0}
QUIET_GOAL = 10.0
GROWTH_GOAL = 1.1


class Line(Struct):
    """What one kind of news costs with one policy."""

    policy: str
    news: str
    nodes: int
    gangs: int
    milliseconds: float
    """Median."""
    fewer_nodes: int
    fewer: float
    """Milliseconds on so many nodes."""

    @property
    def growth(self) -> float:
        """The cost grows as the nodes to this power."""
        return math.log(self.milliseconds / self.fewer) / math.log(self.nodes / self.fewer_nodes)


class Gone:
    """An API server for which whatever is written to is gone already: nobody tries again."""

    def __getattr__(self, name: str) -> Any:
        async def refuse(*_: object, **__: object) -> NoReturn:
            await asyncio.sleep(0)
            raise NotFound(f"{name}: gone")

        return refuse


async def measure(nodes: int = NODES, repeat: int = 7, small: int = SMALL) -> list[Line]:
    """All policies and kinds of news on so many nodes, and on `small` ones."""
    few, gangs = await _costs(small, repeat)
    many, gangs = await _costs(nodes, repeat)
    return [Line(*key, nodes, gangs, many[key], small, few[key]) for key in many]


def goals(lines: list[Line]) -> Iterator[tuple[str, float, float]]:
    """What, its figure, and what that should be at most."""
    for line in lines:
        goal = QUIET_GOAL if line.news == "nothing" else GOALS[line.policy]
        yield f"{line.policy}, {line.nodes:,} nodes, news: {line.news}; ms of CPU a round", line.milliseconds, goal
        yield f"{line.policy}, news: {line.news}; growth from {line.fewer_nodes:,} nodes", line.growth, GROWTH_GOAL


def table(lines: list[Line] | None) -> Table:
    """All lines."""
    found = Table("POLICY", "NEWS", "NODES", "GANGS", "ms OF CPU", "ON FEWER NODES", "GROWTH", title="news")
    for line in lines or ():
        figures = f"{line.milliseconds:.1f}", f"{line.fewer:.1f}", f"{line.growth:.2f}"
        found.add_row(line.policy, line.news, str(line.nodes), str(line.gangs), *figures)
    return found


async def _costs(nodes: int, repeat: int) -> tuple[dict[tuple[str, str], float], int]:
    """Policy and news -> median of milliseconds; and how many gangs run."""
    settings, profile = Settings(), decisions.profile_of(nodes)
    running = [job(f"running-{i:05}", gpus=GANG_GPUS, tensor=1) for i in range(nodes // NODES_PER_GANG)]
    world = await worlds.with_running_jobs(profile, running, settings)
    found: dict[tuple[str, str], float] = {}
    for policy in POLICIES:
        copy, following = await worlds.cluster(world, settings)
        client: Any = Gone()
        choice = Choice(policy, "fcfs", deadline_seconds=DEADLINE_SECONDS)
        loop = rounds.made(copy, settings, client=client, choice=choice)
        try:
            costs = await Trial(world, copy, loop).run(repeat)
            found |= {(policy, news): cost for news, cost in costs.items()}
        finally:
            following.cancel()
    return found, len(running)


class Trial:
    """One controller, and all kinds of news for it."""

    def __init__(self, world: World, copy: Cluster, loop: Rounds) -> None:
        self._world = world
        self._copy = copy
        self._loop = loop
        self._gpus = 8 + max(_free(copy).values(), default=0)
        self._names = (f"news-{number:03}" for number in range(10**3))

    async def run(self, repeat: int) -> dict[str, float]:
        """News -> median of milliseconds of CPU."""
        kinds: dict[str, Callable[[], Any]] = {
            "nothing": self._nothing,
            "starts": self._starts,
            "waits": self._waits,
            "deleted": self._deleted,
        }
        for prepare in kinds.values():  # plans are searched, and everything is read, for the first time
            await self._round(prepare)
        gc.collect()
        gc.freeze()  # as the controller does when it begins to lead
        return {
            news: statistics.median([await self._round(prepare) for _ in range(repeat)])
            for news, prepare in kinds.items()
        }

    async def _round(self, happen: Callable[[], Callable[[], None]]) -> float:
        """Something happens, and a round follows. Afterwards everything is as before."""
        undo = happen()
        cost = await self._timed()
        undo()
        await self._timed()
        await self._timed()
        return cost

    async def _timed(self) -> float:
        began = time.process_time()
        for _ in range(3):
            await asyncio.sleep(0)  # the reflectors' turn
        await self._loop.round()
        return 1000 * (time.process_time() - began)

    def _nothing(self) -> Callable[[], None]:
        return lambda: None

    def _starts(self) -> Callable[[], None]:
        return self._arrives(job(next(self._names), gpus=GANG_GPUS, tensor=1))

    def _waits(self) -> Callable[[], None]:
        wide = job(next(self._names), gpus=self._gpus, tensor=8)
        wide["spec"]["training"]["globalBatchSize"] = self._gpus
        return self._arrives(wide)

    def _arrives(self, new: Object) -> Callable[[], None]:
        made = self._world.tell(JOBS, new, "ADDED")
        return lambda: self._world.tell(JOBS, made, "DELETED")

    def _deleted(self) -> Callable[[], None]:
        gone = next(each for each in self._world.items(JOBS) if each["metadata"]["name"].startswith("running"))
        uid = gone["metadata"]["uid"]
        pods = [pod for pod in self._world.items(PODS) if pod["metadata"]["ownerReferences"][0]["uid"] == uid]
        self._world.tell(JOBS, gone, "DELETED")
        for pod in pods:
            self._world.tell(PODS, pod, "DELETED")

        def undo() -> None:
            self._world.tell(JOBS, gone, "ADDED")
            for pod in pods:
                self._world.tell(PODS, pod, "ADDED")

        return undo


def _free(copy: Cluster) -> dict[str, int]:
    """GPUs that are free, by type."""
    free: dict[str, int] = {}
    for node in ClusterObserver(Settings().topology.levels).observe(copy.caches(), time.time()).snapshot.nodes:
        free[node.gpu_type] = free.get(node.gpu_type, 0) + node.free_gpus
    return free
