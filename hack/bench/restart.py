"""What a controller takes in when it begins on a large cluster, and how soon its first plan is there.

10,000 nodes with agents, 40,000 pods (two of each of 2,000 running gangs; the others are daemons of others), and one
job that waits. The cluster is in memory (`simulated_cluster`), as the bytes that an API server would send: how long it
takes to send them is not told. Told are the memory that a controller's copy of it takes, with all that a round keeps,
on top of what a process of it takes with nothing in sight; and seconds of CPU from the start of the process to the copy
and from there to the first write of its plan.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hack.bench import news, rounds, telemetry
from hack.bench import simulated_cluster as worlds
from hack.bench.cluster_fixture import job, rss_mib, until
from msgspec import Struct
from rich.table import Table

from trimtab.kube.resources import GPUNODES, JOBS, NODES, PODS
from trimtab.observe.gpunodes import GpuNodes
from trimtab.settings import Settings
from trimtab_local.fake.profile import FakeCluster, NodePool
from trimtab_policy.scheduling.choice import Choice

GANG_GPUS = 16
WAITING = "waiting"
"""The job that is planned."""
MEMORY_GOAL, SECONDS_GOAL = 700.0, 8.0


class Size(Struct, frozen=True):
    """How large the cluster is."""

    nodes: int
    gangs: int
    pods: int


FULL, TINY = Size(10_000, 2000, 40_000), Size(8, 2, 20)


class Restart(Struct):
    """MiB, and seconds of CPU."""

    size: Size
    policy: str
    bare: float
    """Memory of a process that has loaded a controller's modules."""
    copy: float
    """Memory on top of that, after the first round."""
    peak: float
    """The same at its most."""
    loading: float
    """Seconds until the modules are loaded."""
    reading: float
    """From there until everything is read."""
    planning: float
    """From there until the plan is on its way."""

    @property
    def seconds(self) -> float:
        """From the start to the next plan."""
        return self.loading + self.reading + self.planning


async def measure(size: Size, policy: str = "rudder") -> Restart:
    """Begin once."""
    settings = Settings()
    bare, loading = _process()
    world = await _world(size, settings)
    gc.collect()
    _forget_peak()
    before, began = rss_mib(os.getpid())["now"], time.process_time()
    heard = GpuNodes(settings.telemetry)
    copy, following = await worlds.cluster(world, settings, heard)
    read = time.process_time()
    written: list[str] = []
    client: Any = _Noting(written)
    loop = rounds.made(copy, settings, heard, client=client, choice=Choice(policy, "fcfs", deadline_seconds=600.0))
    await loop.round()

    async def begun() -> bool:
        return any(WAITING in path for path in written)

    await until("the plan is on its way", begun)
    over, after = time.process_time(), rss_mib(os.getpid())
    following.cancel()
    copied, peak = after["now"] - before, after["peak"] - before
    return Restart(size, policy, bare, copied, peak, loading, read - began, over - read)


class _Noting(news.Gone):
    """What is written is noted, and refused."""

    def __init__(self, written: list[str]) -> None:
        self._written = written

    def __getattr__(self, name: str) -> Any:
        refuse = super().__getattr__(name)

        async def note(path: str, *rest: object, **more: object) -> None:
            self._written.append(path)
            await refuse(path, *rest, **more)

        return note


def _forget_peak() -> None:
    """The peak is that of what follows."""
    Path("/proc/self/clear_refs").write_text("5")


def _process() -> tuple[float, float]:
    """MiB and seconds of CPU of a process that has loaded what a controller loads."""
    script = (
        "import os, time, trimtab.controller.app, trimtab_policy.learned.rudder\n"
        "from hack.bench.cluster_fixture import rss_mib\n"
        "print(rss_mib(os.getpid())['now'], time.process_time())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    memory, seconds = map(float, done.stdout.split())
    return memory, seconds


async def _world(size: Size, settings: Settings) -> worlds.World:
    pool = NodePool(name="v100", count=size.nodes, product=telemetry.PRODUCT, gpus=8, cpu=96, memory="1Ti")
    running = [job(f"running-{i:05}", gpus=GANG_GPUS, tensor=1) for i in range(size.gangs)]
    world = await worlds.with_running_jobs(FakeCluster(name="bench", pools=(pool,)), running, settings)
    names = [node["metadata"]["name"] for node in world.items(NODES)]
    fleet = telemetry.Fleet(names)
    for name in names:
        world.put(GPUNODES, fleet.report(name))
    for number in range(size.pods - len(world.items(PODS))):
        world.put(PODS, _daemon(number, names[number % len(names)]))
    world.put(JOBS, job(WAITING, gpus=GANG_GPUS, tensor=1))
    return world


def _daemon(number: int, node: str) -> dict[str, Any]:
    """A pod that is not ours, about as large as the API server shows one."""
    variables = [{"name": f"VARIABLE_{each}", "value": "x" * 20} for each in range(10)]
    container = {
        "name": "daemon",
        "image": "example.com/daemon:1",
        "env": variables,
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
    }
    return {
        "metadata": {"name": f"daemon-{number}", "namespace": "kube-system", "labels": {"app": "daemon"}},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def goals(found: Restart) -> Iterator[tuple[str, float, float]]:
    """What, its figure, and what that should be at most."""
    where = f"{found.size.nodes:,} nodes, {found.size.pods:,} pods, {found.size.gangs:,} gangs"
    yield f"{where}: memory of the controller at its peak, MiB", found.bare + found.peak, MEMORY_GOAL
    yield f"{where}: s of CPU from its start to the next plan", found.seconds, SECONDS_GOAL


def table(found: Restart) -> Table:
    """One line."""
    made = Table("MiB", "AT THE PEAK", "LOADED, s", "READ, s", "PLANNED, s", title="restart")
    memory = (f"{found.bare + each:.0f}" for each in (found.copy, found.peak))
    made.add_row(*memory, *(f"{each:.1f}" for each in (found.loading, found.reading, found.planning)))
    return made
