"""Measure, and print."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from typing import Annotated

import msgspec
import typer
from hack.bench import binding, decisions, latency, plans, rounds
from hack.bench.report import Machine, Report, show
from rich.console import Console


class Part(StrEnum):
    """What can be measured by itself."""

    BINDING = "binding"
    DECISIONS = "decisions"
    ROUNDS = "rounds"
    LATENCY = "latency"
    PLANS = "plans"


class Format(StrEnum):
    """Forms of output."""

    TABLE = "table"
    JSON = "json"


def main(
    parts: Annotated[list[Part] | None, typer.Argument(help="What to measure [default: everything]")] = None,
    repeat: Annotated[int, typer.Option(help="Rounds of the race; the median counts.", min=1)] = 3,
    tiny: Annotated[bool, typer.Option(help="At toy size, to see that it works; the figures mean nothing.")] = False,
    output: Annotated[Format, typer.Option("--output", "-o", help="Print tables or JSON.")] = Format.TABLE,
) -> None:
    """Measure how fast Trimtab is on this machine, about 15 minutes in all. Others should be quiet meanwhile."""
    report = asyncio.run(measure(set(parts or Part), repeat, tiny=tiny))
    if output is Format.JSON:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        show(report, Console())


async def measure(parts: set[Part], repeat: int, *, tiny: bool) -> Report:
    """Measure these parts one after the other."""
    report = Report(Machine())
    size = binding.TINY if tiny else binding.FULL
    if Part.PLANS in parts:
        _say("plans")
        report.plans = plans.measure(*((8, 2) if tiny else (1024, 100)))
    if Part.DECISIONS in parts:
        _say("decisions")
        report.decisions = await decisions.measure(*(([20], 5, 2) if tiny else ([1000, 5000], 100, 30)))
    if Part.ROUNDS in parts:
        _say("rounds")
        report.rounds = await rounds.measure(size, 3 if tiny else 100)
    if Part.LATENCY in parts:
        _say("latency")
        report.latency = await latency.measure(*((2, 1) if tiny else (50, 5)))
    if Part.BINDING in parts:
        _say("binding")
        report.binding = await binding.measure(size, repeat)
    return report


def _say(what: str) -> None:
    print(f"measuring {what}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
