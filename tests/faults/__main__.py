"""`hack/faults`: what CI has no time for. Everything runs on a cluster of its own, and ends with a verdict."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from hack import last_runs
from rich.console import Console
from rich.table import Table
from tests.faults.campaign import Record, campaign, summary
from tests.faults.cluster_fixture import laboratory
from tests.faults.goals import PARTS, measure
from tests.faults.soak import figures
from tests.faults.soak import soak as endure
from tests.faults.workloads import WORKLOADS

err = Console(stderr=True)
SWEEP = "hack/faults --all"


def main(
    all_: Annotated[bool, typer.Option("--all", help="Kill the controller at every write of every workload.")] = False,
    workload: Annotated[list[str] | None, typer.Option(help=f"Only these: {', '.join(WORKLOADS)}.")] = None,
    crashes: Annotated[int, typer.Option(help="Go on with larger gangs until so many crashes.", min=1)] = 1000,
    record: Annotated[Path | None, typer.Option(help="File that an interrupted --all goes on from.")] = None,
    soak: Annotated[str, typer.Option(help="Random faults and edits for so long, e.g. 30m.", metavar="TIME")] = "",
    seed: Annotated[int, typer.Option(help="Of --soak: the same seed tells the same story.")] = 0,
    goals: Annotated[bool, typer.Option("--goals", help="Measure what the fault matrix promises; 15 minutes.")] = False,
    part: Annotated[list[str] | None, typer.Option(help=f"Of --goals only these: {', '.join(PARTS)}.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
) -> None:
    """Break things on purpose. Exits with 1 when an invariant was violated."""
    results: dict[str, Any] = {}
    if unknown := {*(part or ())} - {*PARTS}:
        raise typer.BadParameter(f"--part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    if all_:
        _say(last_runs.told(SWEEP))
        results["sweep"] = asyncio.run(_sweep(Record(record), crashes, workload or []))
    if soak:
        results["soak"] = asyncio.run(_soak(_seconds(soak), seed))
    if goals:
        results["goals"] = asyncio.run(measure(_say, part or ()))
    if not results:
        raise typer.BadParameter("nothing to do: say --all, --soak or --goals")
    if output == "json":
        print(json.dumps(results, indent=2))
    else:
        for title, rows in results.items():
            _show(title, rows)
    if any(row.get("violations") for rows in results.values() for row in rows):
        raise SystemExit(1)


async def _sweep(record: Record, crashes: int, only: list[str]) -> list[dict[str, object]]:
    begun_on = last_runs.commit_now()
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        async with laboratory() as stand:
            async for verdict in campaign(stand, record, crashes, only):
                bad = "".join(f"\n    {problem}" for problem in verdict.problems)
                _say(
                    f"{record.crashes:5} {verdict.workload}×{verdict.nodes} {verdict.mode} {verdict.write} "
                    f"{verdict.what}: {'VIOLATED' if bad else 'ok'} {verdict.seconds:.2f} s{bad}"
                )
        if not only:  # whole, and not interrupted
            broken = sum(bool(verdict.problems) for verdict in record.verdicts)
            _say(last_runs.note(SWEEP, f"{record.crashes} crashes, {broken} lives with violations", begun_on))
    return summary(record.verdicts)


async def _soak(seconds: float, seed: int) -> list[dict[str, object]]:
    outcome = await endure(seconds, seed, _say)
    for problem in outcome.open:
        _say(f"STILL OPEN {problem}")
    return figures(outcome)


def _seconds(text: str) -> float:
    """30m, 90s, 2h, or seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found:
        raise typer.BadParameter(f"{text}: say 90s, 30m or 2h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def _say(text: str) -> None:
    err.print(text, highlight=False, markup=False)


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(*(key.replace("_", " ") for key in rows[0]), title=title) if rows else Table(title=title)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
