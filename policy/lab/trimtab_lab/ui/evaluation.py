"""What evaluations look like: bars while runs are made, a table for what may be compared, the bounds below it.

All figures are hours, shares or counts as `trimtab evaluate -o json` names them; three digits are enough for people.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Group
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table as RichTable

from trimtab.ui.progress import PlainProgress
from trimtab.ui.terminal import Console, Text, column
from trimtab_lab.evaluation.contestant import uses_sizes

if TYPE_CHECKING:
    from trimtab_lab.evaluation.compare import ComparisonTable, Ratio
    from trimtab_lab.evaluation.statistics import Regression

TELLING = 20.0
"""Ends of the interval of a regression from which on it tells nothing: a factor of 7 for ten points of utilisation."""
SURE = 0.05
"""Corrected p-values below it are marked."""


def _short(value: float) -> str:
    """Three digits: `0.412`, `7.90`, `95.8`, `1234`."""
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"


def _brief(value: float) -> str:
    """Two digits: `0.41`, `7.9`, `96`."""
    return f"{value:.2f}" if abs(value) < 1 else f"{value:.1f}" if abs(value) < 10 else f"{value:.0f}"


USES_SIZES = "†"
"""Stands behind policies that decide by how long jobs will take."""

COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "avg_jct_h": ("JCT, h\nAVG", _short),
    "p50_jct_h": ("\nP50", _short),
    "p99_jct_h": ("\nP99", _short),
    "makespan_h": ("MAKE-\nSPAN", _short),
    "gpu_hours_per_job": ("GPU-H\n/JOB", _short),
    "restarts_per_job": ("RE-\nSTARTS", _brief),
    "utilisation": ("USED\nGPUS", "{:.0%}".format),
    "p99_rho": ("ρ\nP99", _brief),
    "decision_ms_p50": ("MS TO\nDECIDE", _brief),
}
"""Figure -> heading of two lines, and how it is written."""


@contextmanager
def runs(todo: Mapping[str, int], done: Mapping[str, int]) -> Iterator[Callable[[str], None]]:
    """Bars on stderr while runs are made: all, and those of each policy; plain lines where nobody looks.

    `todo` counts the runs of every policy, `done` those of them that were made before. The function that this gives
    takes the policy of a run that is ready.
    """
    total, before = sum(todo.values()), sum(done.values())
    if not sys.stderr.isatty():
        plain = PlainProgress("runs", total)
        plain.advance(before)
        yield lambda policy: plain.advance()
        return
    columns = (
        column(), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), column("left"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with RichProgress(*columns, console=Console(stderr=True)) as bars:
        whole = bars.add_task("all runs", total=total, completed=before)
        each = {name: bars.add_task(f"  {name}", total=todo[name], completed=done.get(name, 0)) for name in todo}

        def advance(policy: str) -> None:
            bars.advance(whole)
            bars.advance(each[policy])

        yield advance


def table(found: ComparisonTable) -> Group:
    """One table with its title above and its bounds below."""
    return Group(Text(title(found), "bold"), _figures(found), *_notes(found))


def title(found: ComparisonTable) -> str:
    """What may be compared here, in one line: `load 0.7 · 30 windows · exact run times`."""
    loads = [f"{load:g}" for load in found.loads if load is not None]
    load = f"load {', '.join(loads)}" if loads else "load as in the trace"
    return f"{load} · {found.windows} {'window' if found.windows == 1 else 'windows'} · {found.regime}"


def _figures(found: ComparisonTable) -> RichTable:
    made = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    made.add_column("\nPOLICY", overflow="fold", min_width=8)
    for heading, _ in COLUMNS.values():
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column(f"AVG JCT /\n{found.reference}", justify="right", no_wrap=True)
    averages = [average for row in found.rows if (average := row.figures.get("avg_jct_h")) is not None]
    for row in found.rows:
        best = row.figures.get("avg_jct_h") == min(averages, default=None) and len(found.rows) > 1
        cells = (_cell(row.figures.get(name), write) for name, (_, write) in COLUMNS.items())
        made.add_row(row.policy + USES_SIZES * row.uses_sizes, *cells, _ratio(row.ratio), style="bold" if best else "")
    return made


def _ratio(ratio: Ratio | None) -> str:
    """`0.84 (0.79–0.90)*`."""
    if ratio is None:
        return "1"
    interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.2f}–{ratio.high:.2f})"
    mark = "*" if ratio.p is not None and ratio.p < SURE else ""
    return f"{ratio.mean:.2f}{interval}{mark}"


def _notes(found: ComparisonTable) -> Iterator[Text]:
    """What must not be overlooked, each in a line."""
    if found.bound_h is not None:
        others = ", ".join(f"{name} {_short(hours)}" for name, hours in found.bounds_h.items())
        yield Text.assemble(
            "No schedule has an average JCT below ", (f"{_short(found.bound_h)} h", "bold"),
            f" (mostly {found.binding}; {others}).",
        )  # fmt: skip
    if any(row.ratio and row.ratio.p is not None for row in found.rows):
        yield Text(f"Ratio: geometric mean over paired windows, 95 % interval; * p < {SURE} after Holm.", "dim")
    yield Text(sizes_note([row.policy for row in found.rows]), "dim")
    yield Text(_decisions(found), "dim")
    if found.used and max(abs(found.used.slope.low), abs(found.used.slope.high)) < TELLING:
        yield Text(_regression(found.used), "dim")
    if late := [f"{row.policy} {row.unfinished}" for row in found.rows if row.unfinished]:
        yield Text(f"Jobs that were not finished when runs were cut off: {', '.join(late)}.", "yellow")
    if absent := [f"{row.policy} {row.not_arrived}" for row in found.rows if row.not_arrived]:
        yield Text(f"Jobs that had not arrived by then and are in no figure: {', '.join(absent)}.", "yellow")
    if gaps := [f"{row.policy} {row.solver_gap:.2%}" for row in found.rows if row.solver_gap is not None]:
        yield Text(f"Largest gap that the solver left to the optimum: {', '.join(gaps)}.", "dim")


def sizes_note(policies: Sequence[str]) -> str:
    """Who among them decides by how long jobs will take."""
    users = [name for name in policies if uses_sizes(name)]
    if not users:
        return "None of these policies decides by how long jobs will take."
    others = "all do" if len(users) == len(policies) else "the others do without"
    return f"{USES_SIZES} decides by how long jobs will take, as far as it is known; {others}."


def _decisions(found: ComparisonTable) -> str:
    """Who decides when, and as what."""
    moments = {row.policy: f"every {row.round_seconds:g} s" if row.round_seconds else "at events" for row in found.rows}
    return decided_note({row.policy: f"{moments[row.policy]}, {row.decider.described}" for row in found.rows})


def decided_note(ways: Mapping[str, str]) -> str:
    """Policies with how they decide, those of one way together: `Decisions: fcfs, sjf alone, as published.`"""
    together = {way: [name for name, each in ways.items() if each == way] for way in dict.fromkeys(ways.values())}
    told = "; ".join(f"{', '.join(names)} {way}" for way, names in together.items())
    return f"Decisions: {told}."


def _regression(used: Regression) -> str:
    gain, low, high = (math.expm1(each / 10) for each in (used.slope.value, used.slope.low, used.slope.high))
    return (
        f"Ten points more utilisation went with {gain:+.0%} average JCT "
        f"(95 %: {low:+.0%} to {high:+.0%}; R² {used.r_squared:.2f}; {used.n} runs, within windows)."
    )


def _cell(value: float | None, write: Callable[[float], str]) -> str:
    return "-" if value is None else write(value)
