"""The default policy against Sia, cell by cell, beside the goals that were set before it was built.

Everybody decides alone and about all jobs, running ones too, on the same windows, which no training has seen, in the
engine. Sia decides in rounds of 60 s, as published. `sized_sia` is told how long jobs take and decides at events, as
rudder does; `analytic_rudder` is rudder before any training (`evaluation.controls`). Where there are errors, they are
the same for both: true speeds differ from the predicted ones, and jobs are not as long as they state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trimtab_lab.bench.report import BenchReport, Cell
from trimtab_lab.evaluation import statistics
from trimtab_lab.evaluation.contestant import Decider
from trimtab_lab.evaluation.scenario import GENERATED, Scenario, ScenarioResult
from trimtab_lab.evaluation.statistics import Interval
from trimtab_lab.evaluation.store import kept_or_made
from trimtab_lab.evaluation.workers import processes

POLICY, PUBLISHED, SIZED, BASE = "rudder", "sia", "sized_sia", "analytic_rudder"
WANTED = 30
"""Windows of a cell, unless the interval is within ..."""
NARROW = 0.08
"""... this part of the ratio, up and down."""
RATIOS = {
    "p99 JCT ÷ Sia": "p99_jct_h",
    "worst slowdown ÷ Sia": "worst_slowdown",
    "GPU-hours ÷ Sia": "gpu_hours_per_job",
}
"""Column -> figure; goal for each: 1."""
RESTARTS = "restarts/job (Sia)"
LEAST = "no schedule below, ÷ Sia"
PIPELINE = "÷ Sia, both under our pipeline"


class Goals(Struct, frozen=True, forbid_unknown_fields=True):
    """Largest ratios of average JCTs that were to be reached."""

    sia: float
    sized_sia: float
    errors: float
    """To Sia, both with errors."""
    base: float = 0.93
    """To the form before any training."""


class FlagshipCell(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table."""

    workload: str
    cluster: str
    load: float
    windows: int
    goals: Goals
    window_jobs: int = 100
    remark: str = ""
    """Put behind the cluster."""
    pipeline: bool = False
    """Whether both are compared under the controller's pipeline, too."""


class FlagshipErrors(Struct, frozen=True, forbid_unknown_fields=True):
    """Spreads of logarithms."""

    model: float
    """Of true step times over predicted ones, by job and GPU type."""
    size: float
    """Of stated steps over true ones, by job."""


class _Run(NamedTuple):
    """One of the runs that a cell compares."""

    policy: str
    errors: bool = False
    pipeline: bool = False


_RUNS = (_Run(POLICY), _Run(PUBLISHED), _Run(SIZED), _Run(BASE), _Run(POLICY, True), _Run(PUBLISHED, True))
_PIPELINE = _Run(POLICY, pipeline=True), _Run(PUBLISHED, pipeline=True)
_Outcomes = Mapping[_Run, Sequence[ScenarioResult]]
"""In the order of the windows."""


def run(
    *,
    seeds: list[int],
    progress: Callable[[str], None],
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    errors: Mapping[str, float],
    workers: int = 2,
) -> BenchReport:
    """The table, a row for each of `rows` (fields of `FlagshipCell`), in their order; `errors` has those of
    `FlagshipErrors`.

    Runs are kept in `folder`, each by a hash of what it follows from: stopped, the bench goes on from there, and other
    weights of rudder cost no run of anybody else. Raises ValueError in one line for rows that are none, names that are
    unknown, and weights that cannot be loaded.
    """
    cells = msgspec.convert(rows, tuple[FlagshipCell, ...])
    wrong = msgspec.convert(errors, FlagshipErrors)
    wanted = {cell: _scenarios(cell, wrong, seeds) for cell in cells}
    scenarios = [each for runs in wanted.values() for window in zip(*runs.values(), strict=True) for each in window]
    made = {each.scenario: each for each in kept_or_made(scenarios, folder, processes(workers), progress)}
    found = {cell: {which: [made[each] for each in mine] for which, mine in wanted[cell].items()} for cell in cells}
    return BenchReport(
        title="Average JCT over that of Sia, and what came of the goals",
        columns=(
            "jobs", "cluster", "load", "windows", "JCT, h", "÷ Sia", LEAST, PIPELINE, "÷ Sia, sizes known",
            "with errors ÷ Sia", "÷ before training", *RATIOS, RESTARTS,
        ),
        rows=tuple(_row(cell, found[cell]) for cell in cells),
        notes=tuple(_notes(found, wrong)),
    )  # fmt: skip


def _scenarios(cell: FlagshipCell, errors: FlagshipErrors, seeds: Sequence[int]) -> dict[_Run, list[Scenario]]:
    """The first of so many windows as are wanted: with more of them later, those that were made are made no more."""
    drawn = max(WANTED, cell.windows)
    base = Scenario(
        "", GENERATED + cell.workload, cell.cluster, load=cell.load, windows=drawn, window_jobs=cell.window_jobs,
        decider=Decider.PAPER,
    )  # fmt: skip
    wrong: dict[str, Any] = {"estimates": f"{errors.model:g}", "size_error": errors.size}
    live: dict[str, Any] = {"decider": Decider.CONTROLLER, "elastic": 1.0}
    return {
        which: [
            replace(
                base,
                policy=which.policy,
                seed=seed,
                window=window,
                **(wrong if which.errors else {}),
                **(live if which.pipeline else {}),
            )
            for seed in seeds
            for window in range(cell.windows)
        ]
        for which in (*_RUNS, *(_PIPELINE if cell.pipeline else ()))
    }


def _row(cell: FlagshipCell, found: _Outcomes) -> tuple[Cell, ...]:
    mine, theirs = found[_Run(POLICY)], found[_Run(PUBLISHED)]
    goals = cell.goals
    return (
        cell.workload,
        cell.cluster + (f" ({cell.remark})" if cell.remark else ""),
        f"{cell.load:g}",
        str(len(mine)),
        fmean(each.summary["avg_jct_h"] for each in mine),
        _judged(_ratio(mine, theirs), goals.sia),
        geometric_mean(max(each.bounds_h.values()) / each.summary["avg_jct_h"] for each in theirs),
        _judged(_ratio(found[_PIPELINE[0]], found[_PIPELINE[1]]), goals.sia) if cell.pipeline else None,
        _judged(_ratio(mine, found[_Run(SIZED)]), goals.sized_sia),
        _judged(_ratio(found[_Run(POLICY, errors=True)], found[_Run(PUBLISHED, errors=True)]), goals.errors),
        _judged(_ratio(mine, found[_Run(BASE)]), goals.base),
        *(_judged(_ratio(mine, theirs, figure), 1.0) for figure in RATIOS.values()),
        " ".join((f"{_restarts(mine):.2f}", f"({_restarts(theirs):.2f})")),
    )


def _ratio(ours: Sequence[ScenarioResult], theirs: Sequence[ScenarioResult], figure: str = "avg_jct_h") -> Interval:
    mine, others = ([each.summary[figure] for each in some] for some in (ours, theirs))
    return statistics.compare(mine, others).ratio


def _restarts(runs: Sequence[ScenarioResult]) -> float:
    """A ratio within windows is none: in some of them nobody restarts."""
    return fmean(each.summary["restarts_per_job"] for each in runs)


def _judged(found: Interval, goal: float) -> str:
    """`0.66 (0.61–0.71), 0.60 missed by 10 %`."""
    missed = found.value / goal - 1
    told = "met" if missed <= 0 else f"missed by {max(missed, 0.001):.1%}".replace("%", " %")
    return f"{found.value:.2f} ({found.low:.2f}–{found.high:.2f}), {goal:.2f} {told}"


def _notes(found: Mapping[FlagshipCell, _Outcomes], errors: FlagshipErrors) -> Iterator[str]:
    yield (
        "Each cell: geometric mean of the ratios within windows, its 95 % BCa interval, the goal, and by which part of "
        "the goal it was missed. The middle 60 % of the jobs of a window are measured. All decide alone and may stop, "
        "move and resize every job."
    )
    if any(cell.pipeline for cell in found):
        yield (
            f"{PIPELINE}: each as a stage of the live controller with its default settings, which keeps GPUs for those "
            "that came first, lets others give way, and leaves a gang alone for its first ten minutes."
        )
    yield (
        f"{LEAST}: the greatest certified lower bound on the average JCT of each window (`trimtab_lab.bounds`: the "
        "future known, stops and starts free), over Sia's. A goal below it cannot be reached; one shortly above it "
        "hardly."
    )
    yield (
        "Sia decides in rounds of 60 s, as published, and does not know how long jobs take; with sizes known its costs "
        "are weighted by the inverse of what a job has left, and it decides at events, as rudder does."
    )
    yield (
        f"With errors: true step times differ from predictions by a log-normal factor of spread {errors.model:g} for "
        f"each job and GPU type, stated steps from true ones by one of spread {errors.size:g} for each job; the same "
        "for both."
    )
    yield (
        "Before training: rudder's form with constants that nobody tuned, and without its network. Worst slowdown: JCT "
        "over what the job takes alone on the best GPUs for it. Restarts are means; the goal is not to be above Sia's."
    )
    if few := [cell for cell in found if cell.windows < WANTED]:
        wide = [cell for cell in few if _width(found[cell]) > NARROW]
        told = "; ".join(f"{cell.workload} on {cell.cluster} at {cell.load:g}" for cell in wide)
        yield (
            f"{len(few)} of the {len(found)} rows have fewer than {WANTED} windows. Of these, the interval of ÷ Sia is "
            f"wider than ±{NARROW:.0%} in ".replace("%", " %")
            + (f"{len(wide)}: {told}." if wide else "none.")
        )


def _width(found: _Outcomes) -> float:
    """Of the interval to one side, as a part of the ratio to Sia."""
    told = _ratio(found[_Run(POLICY)], found[_Run(PUBLISHED)])
    return max(told.high / told.value, told.value / told.low) - 1
