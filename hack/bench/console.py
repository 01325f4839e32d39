"""How the console bears many nodes and viewers: `python -m hack.bench.console [--nodes 4000] [--viewers 200]`.

A town of fake nodes changes each second: 5 % of its GPUs have other readings, 1 % change hands. Looked at are the bytes
of a delta; the longest time that the event loop was held, by the clock and in CPU time of its thread; how late a timer
came that is due each 10 ms, which also waits for the interpreter and for other processes; and the CPU that the process
takes for one viewer and for many, who read from a process of their own. API server and watches are left out: what is
measured is the look, the encoding and the sending. The page in a browser: `hack.bench.page`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from asyncio.events import Handle
from typing import Any

import aiohttp
from hack.bench.percentiles import spread
from tests.builders import A100
from tests.web.serving import Site, site
from tests.web.town import OPEN, Town, running_job

from trimtab.web.console import Moment
from trimtab.web.garbage import calm

TICK_SECONDS = 0.01


class Held:
    """The longest callbacks of the event loop."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def watch(self) -> None:
        run: Any = Handle._run

        def timed(handle: Handle) -> None:
            wall, cpu = time.perf_counter(), time.thread_time()
            run(handle)
            self.wall.append(time.perf_counter() - wall)
            self.cpu.append(time.thread_time() - cpu)

        Handle._run = timed  # type: ignore[method-assign] - asyncio has no hook that sees every callback


class Change:
    """What happens in a second."""

    def __init__(self, town: Town) -> None:
        self._town, self._draw, self._number = town, random.Random(0), 0  # noqa: S311 - the same changes in every run, and nothing secret
        self._use = {name: [80] * 8 for name in town.nodes}
        for name, use in self._use.items():
            town.report(name, use)

    def __call__(self, number: int) -> Moment:
        town, draw, names = self._town, self._draw, list(self._use)
        for _ in range(len(names) * 8 // 20):
            self._use[draw.choice(names)][draw.randrange(8)] = draw.randrange(101)
        for name in draw.sample(names, len(names) // 10):
            town.report(name, self._use[name])
        free = [name for name in names[len(names) // 2 :] if self._town.kinds[name] == A100]
        for _ in range(max(1, len(names) // 100)):
            self._number += 1
            town.jobs.pop(f"visit-{self._number - 200}", None)
            held = {free[self._number % len(free)]: 8}
            town.jobs[f"visit-{self._number}"] = running_job(f"visit-{self._number}", OPEN, held)
        town.now += 1.0
        return town.moment(number)


async def _serve(nodes: int, viewers: int, seconds: int) -> dict[str, Any]:
    held = Held()
    async with site(nodes=nodes, connections=1024) as made:
        change = await made.console.thread(lambda: Change(made.town))
        await second(made, change, 2)
        calm()
        readers = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hack.bench.console", "--read", made.url, "--viewers", str(viewers),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert readers.stdout
        await readers.stdout.readline()  # all have their snapshot
        held.watch()
        late = list[float]()
        ticking = asyncio.create_task(_tick(late))
        cpu, sizes = time.process_time(), []
        for number in range(seconds):
            began = time.monotonic()
            sizes += await second(made, change, number + 3)
            await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
        spent = time.process_time() - cpu
        ticking.cancel()
        readers.kill()
        await readers.wait()
    return {
        "cpu": spent,
        "delta": max(sizes),
        "wall": sorted(held.wall)[-5:],
        "cpus": sorted(held.cpu)[-5:],
        "late": spread(late),
    }


async def _tick(late: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        late.append(loop.time() - due)


async def second(made: Site, change: Change, number: int) -> list[int]:
    """Have a second of changes happen, and sent; bytes of the frames."""

    def work() -> tuple[Moment, list[Any]]:
        moment = change(number)
        return moment, list(made.console.fed(moment))

    moment, frames = await made.console.thread(work)
    made.console.publish(moment, frames)
    return [len(frame) for _, frame in frames]


async def _read(url: str, viewers: int) -> None:
    """All viewers: they read, and do nothing with it."""
    ready = asyncio.Semaphore(0)

    async def view(session: aiohttp.ClientSession) -> None:
        async with session.get(f"{url}/api/v1/stream") as answer:
            await answer.content.readline()
            ready.release()
            async for _ in answer.content.iter_any():
                pass

    connector, limit = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=limit, read_bufsize=4 << 20) as session:
        tasks = [asyncio.create_task(view(session)) for _ in range(viewers)]
        for _ in range(viewers):
            await ready.acquire()
        print("ready", flush=True)
        await asyncio.gather(*tasks)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--nodes", type=int, default=4000)
    asked.add_argument("--viewers", type=int, default=200)
    asked.add_argument("--seconds", type=int, default=15)
    asked.add_argument("--read", default="", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.read:
        asyncio.run(_read(given.read, given.viewers))
        return
    found = asyncio.run(_serve(given.nodes, given.viewers, given.seconds))
    print(f"{given.nodes} nodes, {given.viewers} viewers, {given.seconds} s")
    print(f"  largest delta           {found['delta'] / 1000:.1f} kB")
    print("  loop held, by the clock " + ", ".join(f"{1000 * each:.1f}" for each in found["wall"]) + " ms")
    print("  loop held, CPU          " + ", ".join(f"{1000 * each:.1f}" for each in found["cpus"]) + " ms")
    late = ", ".join(f"{name} {1000 * getattr(found['late'], name):.1f}" for name in ("p50", "p99", "max"))
    print(f"  timer late              {late} ms")
    print(f"  CPU                     {found['cpu'] / given.seconds:.3f} s a second")


if __name__ == "__main__":
    main()
