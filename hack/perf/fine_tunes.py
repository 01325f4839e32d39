"""Fine-tunes: published runs of LoRA and QLoRA, of 8-bit optimizers and of offloading.

The rows and what is doubtful about them are `tests/policy/perf/data/fine_tunes.csv`; the figures are those of the
tests, from their functions.
"""

from __future__ import annotations

import numpy as np
from hack.perf.figures import Figure, Section
from numpy.typing import NDArray
from tests.policy.perf import test_fine_tunes_measured as held

from trimtab_policy.perf.measured import Measurements

GOAL = 0.12


def figures() -> Section:
    """All about fine-tunes."""
    table = held.published()
    ran = {table.runs.names[i] for i in np.flatnonzero(table.outcome("ran"))}
    failed = {table.runs.names[i] for i in np.flatnonzero(table.outcome("OOM"))}
    error = np.abs(table.error)
    varied = table.runs.readings == "varied"
    found = [
        Figure(
            "fine-tunes that ran and are called infeasible",
            len(table.refused & ran) / len(ran),
            0,
            note=f"{len(ran)} runs; {', '.join(held.AT_ODDS)}: {next(iter(held.AT_ODDS.values()))}",
        ),
        Figure(
            "out-of-memory cases of theirs that are refused",
            len(failed & table.refused) / len(failed),
            1.0,
            at_least=True,
            note=f"{len(failed)} cases",
        ),
        *_errors("memory", error, table.read, table.apart),
        Figure(
            "below readings under varied lengths, mean",
            float(-table.error[varied].mean()),
            note=f"{varied.sum()} readings, with all that the allocator's cache holds: not in the figures above",
        ),
    ]
    return Section("Fine-tunes", [*found, *_times()], _by_source(table))


def _errors(what: str, error: NDArray[np.float64], rows: NDArray[np.bool_], apart: NDArray[np.bool_]) -> list[Figure]:
    parts = {"all": rows, "looked at before": rows & ~apart, "kept apart": rows & apart}
    return [
        Figure(f"error of {what}, mean, {name}", float(error[part].mean()), GOAL, note=f"{part.sum()} readings")
        for name, part in parts.items()
    ]


def _times() -> list[Figure]:
    runs, said = held.predicted()
    error = np.abs(said.seconds / runs.seconds - 1)
    inside = float(((said.low <= runs.seconds) & (runs.seconds <= said.high)).mean())
    note = f"{len(error)} runs; nothing was fitted on them"
    return [
        Figure("error of step times, median", float(np.median(error)), note=note),
        Figure("error of step times, mean", float(error.mean())),
        Figure("inside their 80 % interval, at least", inside, 0.7, at_least=True),
        Figure("inside their 80 % interval, at most", inside, 0.9),
    ]


def _by_source(table: held.FineTunes) -> str:
    runs, said = held.predicted()
    off = said.seconds / runs.seconds - 1
    lines = [
        "| source | | readings | memory: mean error | bias | times | mean error | bias |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for source in sorted(set(table.runs.sources.tolist())):
        here = table.runs.sources == source
        kept = "kept apart" if table.apart[here].all() else ""
        cells = [*_cells(table.error[here & table.read]), *_cells(_of(runs, source, off))]
        lines.append(f"| {source} | {kept} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _of(runs: Measurements, source: str, error: NDArray[np.float64]) -> NDArray[np.float64]:
    return error[runs.sources == source]


def _cells(error: NDArray[np.float64]) -> tuple[str, str, str]:
    if not len(error):
        return "", "", ""
    return str(len(error)), f"{np.abs(error).mean():.1%}", f"{np.median(error):+.1%}"
