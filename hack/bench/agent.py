"""What the node agent costs: memory, CPU and writes of the real process, against its goals.

    python -m hack.bench.agent [--seconds 120] [--fake-nodes 5000]

The agent runs as on a node: `trimtab agent` with the nvml backend, reading eight H100 in training once a second. The
GPUs are those of the C library of the tests (the symbols and structs of libnvidia-ml.so.1, loaded by the unmodified
nvidia-ml-py), and a local control plane takes the reports. CPU and memory are the kernel's figures (/proc/PID/stat,
VmRSS) over the time after the start, whose imports are not counted.

With `--fake-nodes N` it measures the process that plays the agents of N fake nodes: writes per second, share of a core.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import aiohttp
import typer
from hack.bench.cluster_fixture import Lab, _answers, cpu_seconds, free_port, lab, rss_mib, until, v100_nodes
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table
from tests.agent.nvml.library import SCENARIOS, build, environment

from trimtab.kube.resources import NODES
from trimtab_local.fake.nodes import expand

GOAL_RSS_MIB = 60.0
GOAL_CPU = 0.01
GOAL_WRITES_PER_MINUTE = 6.0
NODE = "v100-0"
BATCH = 50
START_SECONDS = 600.0


class Cost(Struct, frozen=True):
    """What a process took over a stretch of time."""

    seconds: float
    cpu: float
    """Share of one core."""
    rss_mib: float
    peak_mib: float
    writes: float
    """Reports written."""
    sample_seconds: float = 0.0
    """Mean time of one reading of all GPUs."""


async def measure(seconds: float, warm_up: float = 10.0) -> Cost:
    """One agent with eight GPUs at 1 Hz, for so many seconds."""
    async with lab("agent") as control_plane:
        await control_plane.add_nodes(v100_nodes(1))
        with tempfile.TemporaryDirectory() as directory:
            variables = environment(build(Path(directory)), SCENARIOS / "h100x8.txt")
            async with _agent(control_plane, ("--node", NODE, "--backend", "nvml"), variables) as (pid, url):
                return await _cost(pid, url, seconds, warm_up)


async def measure_fleet(nodes: int, seconds: float, warm_up: float = 10.0) -> Cost:
    """The agents of so many fake nodes in one process, once each of them has reported."""
    async with lab("fleet") as control_plane:
        made = expand(v100_nodes(nodes))
        for first in range(0, nodes, BATCH):
            await asyncio.gather(
                *(control_plane.client.create(NODES.path(), node) for node in made[first : first + BATCH])
            )
        async with _agent(control_plane, ("--fake-nodes",), {}) as (pid, url):  # whether they are Ready is all the same
            return await _cost(pid, url, seconds, warm_up, nodes)


@asynccontextmanager
async def _agent(
    control_plane: Lab, options: Sequence[str], variables: Mapping[str, str]
) -> AsyncIterator[tuple[int, str]]:
    """`trimtab agent` as a process: its pid, and where its metrics are."""
    port = free_port()
    command = (sys.executable, "-m", "trimtab", "agent", *options, "--kubeconfig", str(control_plane.kubeconfig))
    own = {"TRIMTAB_METRICS__PORT": str(port), "TRIMTAB_METRICS__HOST": "127.0.0.1", **variables}
    process = await asyncio.create_subprocess_exec(*command, env=os.environ | own, stderr=asyncio.subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        await until("the agent has reported", lambda: _answers(f"{url}/readyz"))
        yield process.pid, f"{url}/metrics"
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def _cost(pid: int, url: str, seconds: float, warm_up: float, reports: int = 1) -> Cost:
    """Measured from then on, when there were so many reports and the warm-up is over."""

    async def reported() -> bool:
        await asyncio.sleep(1.0)
        return (await _metrics(url))["writes"] >= reports

    await until(f"{reports} reports are written", reported, START_SECONDS)
    await asyncio.sleep(warm_up)
    loop = asyncio.get_running_loop()
    before, cpu_before, began = await _metrics(url), cpu_seconds(pid), loop.time()
    await asyncio.sleep(seconds)
    after, cpu_after, ended = await _metrics(url), cpu_seconds(pid), loop.time()
    memory = rss_mib(pid)
    samples = after["samples"] - before["samples"]
    return Cost(
        seconds=ended - began,
        cpu=(cpu_after - cpu_before) / (ended - began),
        rss_mib=memory["now"],
        peak_mib=memory["peak"],
        writes=after["writes"] - before["writes"],
        sample_seconds=(after["sampling"] - before["sampling"]) / samples if samples else 0.0,
    )


async def _metrics(url: str) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        families = text_string_to_metric_families(await answer.text())
    samples = [sample for family in families for sample in family.samples]

    def total(name: str, **labels: str) -> float:
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    return {
        "writes": total("trimtab_agent_reports_total", result="written"),
        "samples": total("trimtab_agent_sample_duration_seconds_count"),
        "sampling": total("trimtab_agent_sample_duration_seconds_sum"),
    }


def show(cost: Cost) -> Table:
    """Figures, goals, and how much of each goal is used."""
    table = Table("AGENT, 8 GPUS, 1 HZ", "MEASURED", "GOAL", "MEASURED / GOAL", box=None, pad_edge=False)
    per_minute = 60 * cost.writes / cost.seconds
    rows = (
        ("resident memory", f"{cost.rss_mib:.1f} MiB", f"{GOAL_RSS_MIB:.0f} MiB", cost.rss_mib / GOAL_RSS_MIB),
        ("CPU", f"{cost.cpu:.2%} of a core", f"{GOAL_CPU:.0%}", cost.cpu / GOAL_CPU),
        (
            "writes",
            f"{per_minute:.1f} / min",
            f"{GOAL_WRITES_PER_MINUTE:.0f} / min",
            per_minute / GOAL_WRITES_PER_MINUTE,
        ),
    )
    for name, measured, goal, ratio in rows:
        table.add_row(name, measured, f"<= {goal}", f"{ratio:.2f}")
    table.add_row("one reading of all GPUs", f"{1000 * cost.sample_seconds:.2f} ms", "", "")
    return table


def show_fleet(cost: Cost, nodes: int) -> Table:
    """Figures of the process that plays many agents."""
    table = Table(f"AGENTS OF {nodes} FAKE NODES", "MEASURED", box=None, pad_edge=False)
    table.add_row("reports", f"{cost.writes / cost.seconds:.0f} / s")
    table.add_row("of those that a period of 30 s asks for", f"{30 * cost.writes / cost.seconds / nodes:.0%}")
    table.add_row("CPU", f"{cost.cpu:.0%} of a core")
    table.add_row("resident memory", f"{cost.rss_mib:.0f} MiB")
    return table


def main(
    seconds: Annotated[float, typer.Option(help="How long to measure.", min=1)] = 120.0,
    fake_nodes: Annotated[int, typer.Option(help="Measure the agents of so many fake nodes instead.", min=0)] = 0,
) -> None:
    """Measure the agent, about two minutes."""
    console = Console(width=100)
    if fake_nodes:
        console.print(show_fleet(asyncio.run(measure_fleet(fake_nodes, seconds)), fake_nodes))
    else:
        console.print(show(asyncio.run(measure(seconds))))


if __name__ == "__main__":
    typer.run(main)
