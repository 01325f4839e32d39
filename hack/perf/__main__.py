"""Measure, print, and write policy/trimtab_policy/perf/RESULTS.md."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from hack.perf import errors, fine_tunes, memory, report, speed
from hack.perf.figures import Section
from rich.console import Console
from rich.table import Table

from trimtab.commands.perf import PUBLISHED
from trimtab.ui.progress import shares
from trimtab_local.checkout import checkout
from trimtab_policy.perf import measured

SECOND = "more_training_throughput.csv"
"""The table of later years' sources, beside the first."""


class Part(StrEnum):
    """What can be measured by itself."""

    ERRORS = "errors"
    GENERATIONS = "generations"
    VENDORS = "vendors"
    CLUSTERS = "clusters"
    MEMORY = "memory"
    FINE_TUNES = "fine-tunes"
    SPEED = "speed"


def main(
    parts: Annotated[list[Part] | None, typer.Argument(help="What to measure; by default everything.")] = None,
    table: Annotated[Path | None, typer.Option(help="Measured runs; by default those beside the checkout.")] = None,
    second: Annotated[Path | None, typer.Option(help="More of them, from other sources; by default as well.")] = None,
    write: Annotated[bool, typer.Option(help="Write perf/RESULTS.md; only when everything was measured.")] = True,
) -> None:
    """Hold the performance model against its goals, 20 minutes in all. Exit code 1 when a goal is missed.

    Beside the table of runs lies that of Megatron-LM's golden values.
    """
    path = table or checkout().parent.joinpath(*PUBLISHED)
    if not path.is_file():
        print(f"there is no table of measured runs at {path}: name one with --table", file=sys.stderr)
        raise typer.Exit(2)
    chosen = set(parts or Part)
    sections = measure(path, second or path.with_name(SECOND), chosen)
    show(sections, Console())
    if write and chosen == set(Part):
        out = checkout() / "policy" / "trimtab_policy" / "perf" / "RESULTS.md"
        out.write_text(report.markdown(sections, checkout()), encoding="utf-8")
        print(f"written to {out}", file=sys.stderr)
    raise typer.Exit(int(any(figure.met is False for section in sections for figure in section.figures)))


def measure(path: Path, second: Path, parts: set[Part]) -> list[Section]:
    """The figures of these parts; `second` need not exist."""
    first = measured.read_measured(path)
    runs = measured.read_measured(path, second) if second.is_file() else first
    sections: list[Section] = []
    if Part.ERRORS in parts:
        with shares("leaving out groups") as progress:
            sections += errors.unseen_groups(runs, np.arange(len(runs.seconds)) >= len(first.seconds), progress)
    if Part.GENERATIONS in parts:
        with shares("leaving out GPU generations") as progress:
            sections.append(errors.unseen_generations(runs, progress))
    if Part.VENDORS in parts:
        with shares("leaving out vendors") as progress:
            sections.append(errors.unseen_vendors(runs, progress))
    if Part.CLUSTERS in parts:
        with shares("calibrating to clusters") as progress:
            sections.append(errors.calibrated_clusters(runs, progress))
    if Part.MEMORY in parts:
        sections.append(memory.figures(path.parent))
    if Part.FINE_TUNES in parts:
        sections.append(fine_tunes.figures())
    if Part.SPEED in parts:
        sections.append(speed.figures())
    return sections


def show(sections: list[Section], console: Console) -> None:
    """Print everything."""
    for section in sections:
        table = Table(title=section.title, title_justify="left", box=None, pad_edge=False)
        for name, justify in (("", "left"), ("MEASURED", "right"), ("GOAL", "right"), ("", "left"), ("", "left")):
            table.add_column(name, justify="right" if justify == "right" else "left")
        for figure in section.figures:
            table.add_row(*(cell.replace("**", "") for cell in figure.said()))
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
