"""What 10,000 connections that ask for nothing cost a controller and an extender that may open 1,024 files.

Each port is flooded by itself, in three ways: silent connections, headers that never end, and bodies that never come.
Those that are cut off come again five seconds later. They are a process of their own. Meanwhile a probe asks for
/healthz as a kubelet does, on a connection of its own for each question and within a second, from an address that the
flood comes from, too; and somebody's jobs of one GPU come one after the other, as in `latency`.

    hack/bench/run flood                             # as a part of everything that is measured
    .venv/bin/python -m hack.bench.flood [CONNECTIONS]  # by itself
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

from hack.bench.cluster_fixture import HOST, Lab, free_port, lab, rss_mib
from hack.bench.latency import bound
from hack.bench.percentiles import Spread, spread
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from trimtab_local.checkout import checkout
from trimtab_local.fake.profile import load_profile

FILES = 1024
"""What the processes may open; the flood may open what this machine allows."""
WAYS = {
    "silent": b"",
    "headers": b"POST /v1/report HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    "bodies": b"POST /v1/report HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n{",
}
PROBE_SECONDS, PROBE_EVERY = 1.0, 0.1
HEALTHY = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Flood(Struct, frozen=True):
    """One port, flooded in one way."""

    port: str
    way: str
    made: int
    """Connections, those that came again included."""
    held: int
    """Of them, open at the end as the flood sees it."""
    probes: int
    failed: int
    """Without an answer within a second."""
    probe: Spread
    """Seconds of those that were answered."""
    bound: Spread
    """Seconds from a job's creation to its bound pod."""
    memory_mib: float
    """More than before, at the most."""
    files: int
    """Open in the process, at the most."""
    log_lines: int


class Floods(Struct, frozen=True):
    """All of them, and jobs without."""

    connections: int
    alone: Spread
    floods: list[Flood]


async def measure(connections: int, seconds: float, jobs: int) -> Floods:
    """So many connections for so long at each port, and so many jobs meanwhile."""
    async with lab("flood") as where:
        await where.add_nodes(load_profile(checkout() / "manifests" / "fake" / "heterogeneous.yaml"))
        metrics, reports, extender, health = (free_port() for _ in range(4))
        told = {"URL": f"http://{HOST}:{reports}", "PORT": str(reports), "HOST": HOST}
        variables = {f"TRIMTAB_REPORTS__{name}": value for name, value in told.items()}
        async with (
            where.controller(variables=variables, port=metrics, descriptors=FILES) as controller,
            where.extender(extender, health=health, descriptors=FILES) as other,
        ):
            alone = spread([await bound(where, f"alone-{i}") for i in range(jobs)])
            floods = []
            for name, port, process, asked in (
                ("metrics", metrics, controller, metrics),
                ("reports", reports, controller, metrics),
                ("extender", extender, other, health),
                ("extender's metrics", health, other, health),
            ):
                log = where.log if process == controller else where.log.with_name("extender.log")
                for way in WAYS:
                    print(f"flooding {name}: {way}", file=sys.stderr)
                    under = _Under(where, process, port, asked, log)
                    floods.append(await under.flood(name, way, connections, seconds, jobs))
        return Floods(connections, alone, floods)


class _Under:
    """A process under a flood."""

    def __init__(self, where: Lab, pid: int, port: int, health: int, log: Path) -> None:
        self._where = where
        self._pid = pid
        self._port = port
        self._health = health
        self._log = log

    async def flood(self, name: str, way: str, connections: int, seconds: float, jobs: int) -> Flood:
        """Flood its port for so long, and as long as it takes so many jobs to be bound."""
        memory, lines = rss_mib(self._pid)["now"], _lines(self._log)
        probes = _Probes(self._health)
        async with _crowd(self._port, way, connections) as crowd, probes.asking(), self._watched() as seen:
            end = time.monotonic() + seconds
            times = [await bound(self._where, f"{name.split()[-1]}-{way}-{i}") for i in range(jobs)]
            await asyncio.sleep(max(0.0, end - time.monotonic()))
            made, held = await _counted(crowd)
        return Flood(
            name, way, made, held, probes.asked, probes.asked - len(probes.took), spread(probes.took or [0.0]),
            spread(times), max(seen["memory"]) - memory, int(max(seen["files"])), _lines(self._log) - lines,
        )  # fmt: skip

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[dict[str, list[float]]]:
        seen: dict[str, list[float]] = {"memory": [], "files": []}

        async def look() -> None:
            while True:
                seen["memory"].append(rss_mib(self._pid)["now"])
                seen["files"].append(len(os.listdir(f"/proc/{self._pid}/fd")))
                await asyncio.sleep(0.1)

        async with _beside(look()):
            await asyncio.sleep(0)
            yield seen


@asynccontextmanager
async def _crowd(port: int, way: str, count: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that is the flood, once all of it has come."""
    command = (sys.executable, "-m", "hack.bench.crowd", str(port), str(count), WAYS[way].hex())
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        assert process.stdout
        await process.stdout.readline()
        yield process
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself
            process.kill()
        await process.wait()


async def _counted(crowd: asyncio.subprocess.Process) -> tuple[int, int]:
    """Connections that it has made and that it has, when it ends."""
    said, _ = await crowd.communicate(b"\n")
    made, held = said.split()
    return int(made), int(held)


class _Probes:
    """A kubelet's questions: each on a connection of its own, and with a second's patience."""

    def __init__(self, port: int) -> None:
        self.asked = 0
        self.took: list[float] = []
        self._port = port

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """For the length of a block."""
        async with _beside(self._ask()):
            yield

    async def _ask(self) -> None:
        while True:
            self.asked += 1
            began = time.monotonic()
            with suppress(OSError, TimeoutError):  # asked and not in `took`: that is what is counted
                async with asyncio.timeout(PROBE_SECONDS):
                    reader, writer = await asyncio.open_connection(HOST, self._port)
                    with closing(writer):
                        writer.write(HEALTHY)
                        if b" 200 " in await reader.readline():
                            self.took.append(time.monotonic() - began)
            await asyncio.sleep(PROBE_EVERY)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Something done meanwhile, for the length of a block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _lines(log: Path) -> int:
    return log.read_bytes().count(b"\n")


def table(found: Floods) -> Table:
    """One row for each flood."""
    made = Table(title=f"Floods of {found.connections:,} connections, {FILES:,} files; alone: {_ms(found.alone)}")
    for title in ("Port", "Way", "Came", "Probes", "Failed", "Probe", "Bound", "Memory", "Files", "Log lines"):
        made.add_column(title, justify="left" if title in ("Port", "Way") else "right")
    for each in found.floods:
        made.add_row(
            each.port, each.way, f"{each.made:,}", f"{each.probes:,}", f"{each.failed:,}", _ms(each.probe),
            _ms(each.bound), f"{each.memory_mib:+.1f} MiB", f"{each.files:,}", f"{each.log_lines:,}",
        )  # fmt: skip
    return made


def _ms(found: Spread) -> str:
    return f"{1000 * found.p50:.0f} / {1000 * found.p99:.0f} ms"


if __name__ == "__main__":
    Console(width=140).print(table(asyncio.run(measure(int((*sys.argv[1:], 10_000)[0]), 8.0, 10))))
