"""What the controller pays for the page: its CPU and memory while nobody looks, and while many do, in turns.

On the fake control plane jobs come and go each second. The page is a real `trimtab ui` whose stream is read by a crowd,
and whose answers are asked for each second. They share API server and machine with the controller, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from hack.bench.cluster_fixture import NAMESPACE, Lab, cpu_seconds, create_jobs, job, lab, rss_mib, until, v100_nodes
from msgspec import Struct, field

from trimtab.errors import NotFound
from trimtab.kube.resources import JOBS

NODES, KEPT, NEW = 200, 40, 2
"""Fake nodes; jobs that are there at a time; and that come each second, while as many go."""
WARM_SECONDS = 20.0
ASKED = "overview", "jobs", "nodes", "queues", "timeline"


class Turns(Struct):
    """Of the controller: CPU seconds a second, and resident MiB at the end of each turn."""

    cpu: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    def told(self) -> str:
        turns = ", ".join(f"{100 * each:.1f}" for each in self.cpu)
        return f"CPU {100 * statistics.mean(self.cpu):5.1f} % of a core ({turns}), memory {self.memory[-1]:.0f} MiB"


async def measure(rounds: int, seconds: float, viewers: int) -> tuple[Turns, Turns]:
    """The controller without the page, and with it in use by so many viewers."""
    alone, seen = Turns(), Turns()
    async with lab("page") as where:
        await where.add_nodes(v100_nodes(NODES))
        async with where.controller() as pid:
            busy = asyncio.create_task(_come_and_go(where))
            try:
                await asyncio.sleep(WARM_SECONDS)
                for _ in range(rounds):
                    await _turn(pid, seconds, alone)
                    async with _page(where, viewers):
                        await _turn(pid, seconds, seen)
            finally:
                busy.cancel()
                await asyncio.gather(busy, return_exceptions=True)
    return alone, seen


async def _turn(pid: int, seconds: float, told: Turns) -> None:
    loop = asyncio.get_running_loop()
    cpu, began = cpu_seconds(pid), loop.time()
    await asyncio.sleep(seconds)
    told.cpu.append((cpu_seconds(pid) - cpu) / (loop.time() - began))
    told.memory.append(rss_mib(pid)["now"])


async def _come_and_go(where: Lab) -> None:
    for number in itertools.count():
        began = asyncio.get_running_loop().time()
        await create_jobs(where.client, [job(f"visit-{number}-{at}", gpus=6, tensor=1) for at in range(NEW)])
        for at in range(NEW):
            with contextlib.suppress(NotFound):
                await where.client.request("DELETE", JOBS.path(NAMESPACE, f"visit-{number - KEPT // NEW}-{at}"))
        await asyncio.sleep(max(0.0, began + 1.0 - asyncio.get_running_loop().time()))


@asynccontextmanager
async def _page(where: Lab, viewers: int) -> AsyncIterator[None]:
    """The page in use."""
    out = where.log.with_name("page.txt")
    with out.open("wb") as said, out.with_suffix(".log").open("ab") as log:
        words = [sys.executable, "-m", "trimtab", "ui", "--no-browser", f"--kubeconfig={where.kubeconfig}"]
        process = await asyncio.create_subprocess_exec(*words, stdout=said, stderr=log)

    async def serves() -> bool:
        return b"Ctrl-C" in out.read_bytes()

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(_ended, process)
        await until("the page is served", serves)
        url = out.read_text().splitlines()[0].rstrip("/")
        async with aiohttp.ClientSession() as session:

            async def answers() -> bool:
                async with session.get(f"{url}/api/v1/overview") as answer:
                    return answer.status == 200

            await until("the page has looked", answers)
            crowd = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "hack.bench.console", "--read", url, "--viewers", str(viewers),
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            stack.push_async_callback(_ended, crowd)
            assert crowd.stdout
            await crowd.stdout.readline()  # all have their snapshot
            asking = asyncio.create_task(_ask(session, url))
            try:
                yield
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)


async def _ask(session: aiohttp.ClientSession, url: str) -> None:
    while True:
        for path in ASKED:
            async with session.get(f"{url}/api/v1/{path}") as answer:
                await answer.read()
        await asyncio.sleep(1.0)


async def _ended(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    await process.wait()
