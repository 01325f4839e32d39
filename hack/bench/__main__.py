"""Measure, and print."""

from __future__ import annotations

import asyncio
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from hack.bench import (
    agreement,
    artifact,
    binding,
    burden,
    decisions,
    extender,
    flood,
    gangs,
    latency,
    news,
    online,
    others,
    plans,
    restart,
    room,
    rounds,
    simulator,
    tenants,
    verdicts,
)
from hack.bench.peers import race as peers
from hack.bench.peers import stream
from hack.bench.report import Machine, Report, show
from rich.console import Console

SIA_DATA = Path("../shared/sia")


class Part(StrEnum):
    """What can be measured by itself."""

    BINDING = "binding"
    DECISIONS = "decisions"
    ROUNDS = "rounds"
    NEWS = "news"
    LATENCY = "latency"
    OTHERS = "others"
    PLANS = "plans"
    AGREEMENT = "agreement"
    ARTIFACT = "artifact"
    SIMULATOR = "simulator"
    EXTENDER = "extender"
    GANGS = "gangs"
    VERDICTS = "verdicts"
    ROOM = "room"
    FLOOD = "flood"
    BURDEN = "burden"
    TENANTS = "tenants"
    ONLINE = "online"
    PEERS = "peers"
    STREAM = "stream"
    RESTART = "restart"


class Format(StrEnum):
    """Forms of output."""

    TABLE = "table"
    JSON = "json"


def main(
    parts: Annotated[list[Part] | None, typer.Argument(help="What to measure [default: everything]")] = None,
    repeat: Annotated[int, typer.Option(help="Rounds of the race; the median counts.", min=1)] = 3,
    tiny: Annotated[bool, typer.Option(help="At toy size, to see that it works; the figures mean nothing.")] = False,
    sia: Annotated[Path, typer.Option(help="Folder with the data of Sia's artifact.")] = SIA_DATA,
    output: Annotated[Format, typer.Option("--output", "-o", help="Print tables or JSON.")] = Format.TABLE,
    nodes: Annotated[
        list[int] | None, typer.Option(help="peers, news: nodes; repeatable [default: 500, 10000]", min=1)
    ] = None,
    gangs: Annotated[int, typer.Option(help="peers: gangs; 0 for as many as fit.", min=0)] = 0,
    gang: Annotated[int, typer.Option(help="peers: pods per gang, one on each node.", min=1)] = 32,
    rival: Annotated[list[str] | None, typer.Option(help="peers: who runs; repeatable [default: everybody]")] = None,
    program: Annotated[list[str] | None, typer.Option(help="peers: RIVAL=PATH of a binary; repeatable.")] = None,
    fresh: Annotated[bool, typer.Option(help="peers, stream: do not go on with an interrupted one.")] = False,
    load: Annotated[float, typer.Option(help="stream: what jobs ask for, over what the cluster has.", min=0.1)] = (
        stream.Size().load
    ),
) -> None:
    """Measure how fast Trimtab is on this machine, about an hour in all. Others should be quiet meanwhile."""
    choice = peers.Choice(
        tuple(nodes or (500,)), gangs, gang, tuple(rival or peers.CONTESTANTS), _programs(program or []), fresh
    )
    if mistake := choice.mistake():
        raise typer.BadParameter(mistake)
    size = max(nodes) if nodes else news.NODES
    report = asyncio.run(
        measure(set(parts or Part), repeat, sia, peers.TINY if tiny else choice, size, load, tiny=tiny)
    )
    if output is Format.JSON:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        show(report, Console())


def _programs(given: list[str]) -> dict[str, Path]:
    """Paths by rival. Raises BadParameter."""
    pairs = [each.partition("=") for each in given]
    for name, _, path in pairs:
        if not Path(path).is_file():
            raise typer.BadParameter(f"--program {name}={path}: RIVAL=PATH is wanted, of a file that exists")
    return {name: Path(path).resolve() for name, _, path in pairs}


async def measure(
    parts: set[Part],
    repeat: int,
    sia: Path = SIA_DATA,
    choice: peers.Choice = peers.TINY,
    nodes: int = news.NODES,
    load: float = stream.Size().load,
    *,
    tiny: bool,
) -> Report:
    """Measure these parts one after the other; `nodes` are those on which rounds with news are measured, `load` is that
    of the stream."""
    report = Report(Machine())
    size = binding.TINY if tiny else binding.FULL
    if Part.PLANS in parts:
        _say("plans")
        report.plans = plans.measure(*((8, 2) if tiny else (1024, 100)))
    if Part.DECISIONS in parts:
        _say("decisions")
        report.decisions = await decisions.measure(*((((20, 5),), 2) if tiny else (decisions.SIZES, 30)))
    if Part.ROUNDS in parts:
        _say("rounds")
        report.rounds = await rounds.measure(size, 3 if tiny else 100)
    if Part.NEWS in parts:
        _say("news")
        report.news = await (news.measure(40, 1, small=20) if tiny else news.measure(nodes))
    if Part.LATENCY in parts:
        _say("latency")
        report.latency = await latency.measure(*((2, 1) if tiny else (50, 5)))
    if Part.OTHERS in parts:
        _say("others")
        report.others = await others.measure(*((2, 1) if tiny else (8, 30)))
    if Part.AGREEMENT in parts:
        _say("agreement")
        report.agreement = await agreement.measure(*((4, 1000.0) if tiny else (60, 20.0)))
    if Part.ARTIFACT in parts:
        _say("artifact")
        if artifact.available(sia):
            report.artifact = artifact.measure(sia, os.cpu_count() or 1, only="gavel_fifo" if tiny else "")
        else:
            print(f"left out: there is no {sia / 'profiles'}", file=sys.stderr)
    if Part.SIMULATOR in parts:
        _say("simulator")
        report.simulator = simulator.measure(*(((100, 10_000), (4,), 400) if tiny else ()))
    if Part.BINDING in parts:
        _say("binding")
        report.binding = await binding.measure(size, repeat)
    if Part.EXTENDER in parts:
        _say("extender")
        report.extender = await extender.measure(extender.TINY if tiny else extender.FULL)
    if Part.GANGS in parts:
        _say("gangs")
        report.gangs = await gangs.measure(size, repeat)
    if Part.VERDICTS in parts:
        _say("verdicts")
        report.verdicts = await verdicts.measure(verdicts.TINY if tiny else verdicts.FULL)
    if Part.ROOM in parts:
        _say("room")
        report.room = room.measure(*((3, 4, 1) if tiny else ()))
    if Part.TENANTS in parts:
        _say("tenants")
        report.tenants = await tenants.measure(tenants.TINY if tiny else None)
    if Part.ONLINE in parts:
        _say("online")
        report.online = online.measure(online.TINY if tiny else None)
    if Part.FLOOD in parts:
        _say("flood")
        report.flood = await flood.measure(*((300, 1.0, 1) if tiny else (10_000, 8.0, 10)))
    if Part.BURDEN in parts:
        _say("burden")
        report.burden = await burden.measure(*((30, 2) if tiny else (5000, 30)))
    if Part.RESTART in parts:
        _say("restart")
        report.restart = await restart.measure(restart.TINY if tiny else restart.FULL)
    if Part.PEERS in parts:
        _say("peers")
        report.peers = await peers.measure(choice, repeat)
    if Part.STREAM in parts:
        _say("stream")
        length = stream.TINY if tiny else stream.Size(load=load)
        wanted = stream.chosen(choice.contestants)
        report.stream = await stream.measure(length, wanted, choice.programs, fresh=choice.fresh)
    return report


def _say(what: str) -> None:
    print(f"measuring {what}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
