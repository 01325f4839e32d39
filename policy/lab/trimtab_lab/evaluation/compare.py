"""What the results of many runs say together: tables of what may be compared, and nothing else.

Runs belong into one table if policies could know the same (information regime) at the same offered load. In a table
windows are paired: all policies met the same jobs and the same misfortunes, and policies are compared by the ratio of
their average JCT in each window, not by averages over windows of different scale (Sia, Pollux and Gavel report those,
so they are told, too). Certified lower bounds stand beside every table.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, to_builtins
from msgspec.structs import asdict, replace

from trimtab_lab.evaluation import statistics
from trimtab_lab.evaluation.contestant import Decider, uses_sizes
from trimtab_lab.evaluation.scenario import JobGroup, ScenarioResult
from trimtab_lab.evaluation.statistics import Regression

Figures = dict[str, float | None]
_SECONDS = {name: f"{name}_s" for name in ("submitted", "started", "finished", "deadline")}
"""Names of points in time, as columns."""
_Window = tuple[float, int]
"""Load (0 where the trace sets it) and number: what makes runs of two policies a pair."""


class Ratio(Struct, frozen=True):
    """Average JCT over that of a reference policy."""

    to: str
    mean: float
    """Geometric mean over paired windows."""
    windows: int
    low: float | None = None
    """The 95 % interval; None with few windows."""
    high: float | None = None
    p: float | None = None
    """That the two are alike (`statistics.significance`), corrected for all ratios that are told together (Holm)."""
    wins: float | None = None
    """Share of the windows in which it is below 1."""


class ComparisonRow(Struct, frozen=True):
    """One policy in a table."""

    policy: str
    windows: int
    figures: Figures
    """Means over windows of `metrics.Summary`, by its names; None where nothing is known."""
    jct_h: tuple[float, ...]
    """Of all jobs that finished, of all windows."""
    queues: dict[str, JobGroup]
    """Queue -> all jobs of it that finished, of all windows."""
    unfinished: int
    """Jobs that did not, of all windows."""
    not_arrived: int
    """Jobs that would have come after runs were cut off."""
    uses_sizes: bool
    """Whether it decides by how long jobs will take."""
    decider: Decider
    """What turned its answers into decisions."""
    round_seconds: float | None
    """Between its decisions; None: at events."""
    solver_gap: float | None
    ratio: Ratio | None
    """None for the reference itself."""


class ComparisonTable(Struct, frozen=True):
    """Policies that may be compared with each other."""

    regime: str
    loads: tuple[float | None, ...]
    """One, unless the table sums up several."""
    windows: int
    bounds_h: dict[str, float]
    """Lower bounds on the average JCT by name, means over windows."""
    bound_h: float | None
    """Mean over windows of the greatest bound of each."""
    reference: str
    rows: tuple[ComparisonRow, ...]
    used: Regression | None = None
    """Of ln(average JCT) on utilisation over all runs, within windows: what a policy gains by keeping GPUs busy."""

    @property
    def binding(self) -> str:
        """The bound that is greatest on average; empty where there is none."""
        return max(self.bounds_h, key=self.bounds_h.__getitem__, default="")


def tables(
    outcomes: Iterable[ScenarioResult], policies: Sequence[str], reference: str = ""
) -> tuple[ComparisonTable, ...]:
    """A table for every regime and load, in the order in which policies are named and loads grow.

    Ratios are to `reference`, or to the first policy of a table that has not got it.
    """
    cells: dict[tuple[str, float], list[ScenarioResult]] = {}
    regimes = _regimes(ordered := sorted(outcomes, key=lambda one: policies.index(one.scenario.policy)))
    for each in ordered:
        cells.setdefault((each.regime, each.scenario.load or 0.0), []).append(each)
    keys = sorted(cells, key=lambda key: (regimes.index(key[0]), key[1]))
    return _corrected([_table(cells[key], reference) for key in keys])


def summed_up(
    outcomes: Iterable[ScenarioResult], policies: Sequence[str], reference: str = ""
) -> tuple[ComparisonTable, ...]:
    """A table for every regime, over all loads: ratios are still those of the same window at the same load."""
    ordered = sorted(outcomes, key=lambda one: policies.index(one.scenario.policy))
    return _corrected(
        [_table([each for each in ordered if each.regime == regime], reference) for regime in _regimes(ordered)]
    )


def as_json(summed: Iterable[ComparisonTable], single: Sequence[ComparisonTable]) -> dict[str, dict[str, Any]]:
    """Policy -> its figures, and what belongs to them: regime, bounds, ratio, solver gap, regression of its table.

    `summed` are the tables over all loads, `single` those of each; where there are several loads, the policy's own
    figures at each stand under `loads`.
    """
    found = {row.policy: _as_json(table, row) for table in summed for row in table.rows}
    if len({table.loads for table in single}) > 1:
        for table in single:
            for row in table.rows:
                found[row.policy].setdefault("loads", {})[f"{table.loads[0] or 0:g}"] = _as_json(table, row)
    return found


def window_rows(outcomes: Iterable[ScenarioResult]) -> Iterator[dict[str, object]]:
    """One row a run, for a CSV file: policy, load, window, regime, all figures and all bounds."""
    for each in outcomes:
        one = each.scenario
        head: dict[str, object] = {"policy": one.policy, "load": one.load, "window": one.window, "regime": each.regime}
        bounds = {f"{name.lower()}_h": bound for name, bound in each.bounds_h.items()}
        yield head | dict(each.summary) | bounds | {"solver_gap": each.solver_gap}


def job_rows(outcomes: Iterable[ScenarioResult]) -> Iterator[dict[str, object]]:
    """One row a job, for a CSV file, of the runs that kept their jobs."""
    for each in outcomes:
        one = each.scenario
        head: dict[str, object] = {"policy": one.policy, "load": one.load, "window": one.window}
        for job in each.jobs:
            yield head | {_SECONDS.get(name, name): value for name, value in asdict(job).items()}


def _as_json(table: ComparisonTable, row: ComparisonRow) -> dict[str, Any]:
    return row.figures | {
        "windows": row.windows,
        "unfinished": row.unfinished,
        "not_arrived": row.not_arrived,
        "uses_sizes": row.uses_sizes,
        "decided": row.decider.value,
        "round_seconds": row.round_seconds,
        "queues": to_builtins(row.queues),
        "solver_gap": row.solver_gap,
        "ratio": row.ratio and to_builtins(row.ratio),
        "regime": table.regime,
        "bounds_h": table.bounds_h,
        "bound_h": table.bound_h,
        "bound": table.binding,
        "jct_on_utilisation": to_builtins(table.used),
    }


def _regimes(outcomes: Iterable[ScenarioResult]) -> list[str]:
    return list(dict.fromkeys(each.regime for each in outcomes))


def _table(outcomes: Sequence[ScenarioResult], wanted: str) -> ComparisonTable:
    by_policy: dict[str, dict[_Window, ScenarioResult]] = {}
    for each in outcomes:
        by_policy.setdefault(each.scenario.policy, {})[_window(each)] = each
    reference = wanted if wanted in by_policy else next(iter(by_policy))
    windows = {window: one for runs in by_policy.values() for window, one in runs.items()}
    bounds = [one.bounds_h for one in windows.values() if one.bounds_h]
    names = sorted(set().union(*bounds))
    return ComparisonTable(
        regime=outcomes[0].regime,
        loads=tuple(sorted({each.scenario.load for each in outcomes}, key=lambda load: load or 0.0)),
        windows=len(windows),
        bounds_h={name: float(np.mean([each[name] for each in bounds])) for name in names},
        bound_h=float(np.mean([max(each.values()) for each in bounds])) if bounds else None,
        reference=reference,
        rows=tuple(_row(policy, runs, reference, by_policy[reference]) for policy, runs in by_policy.items()),
        used=_regression(outcomes),
    )


def _window(outcome: ScenarioResult) -> _Window:
    return outcome.scenario.load or 0.0, outcome.scenario.window


def _row(
    policy: str, runs: dict[_Window, ScenarioResult], reference: str, others: dict[_Window, ScenarioResult]
) -> ComparisonRow:
    gaps = [run.solver_gap for run in runs.values() if run.solver_gap is not None]
    names = dict.fromkeys(name for run in runs.values() for name in run.summary)
    return ComparisonRow(
        policy=policy,
        windows=len(runs),
        figures={name: _mean(run.summary.get(name) for run in runs.values()) for name in names},
        jct_h=tuple(time for run in runs.values() for time in run.jct_h),
        queues=_queues(runs.values()),
        unfinished=_sum(runs.values(), "unfinished"),
        not_arrived=_sum(runs.values(), "not_arrived"),
        uses_sizes=uses_sizes(policy),
        decider=next(iter(runs.values())).decider,
        round_seconds=next(iter(runs.values())).round_seconds,
        solver_gap=max(gaps, default=None),
        ratio=None if policy == reference else _ratio(runs, reference, others),
    )


def _sum(runs: Iterable[ScenarioResult], name: str) -> int:
    return round(sum(run.summary.get(name) or 0 for run in runs))


def _queues(runs: Collection[ScenarioResult]) -> dict[str, JobGroup]:
    """Every job counts alike, whatever its window."""
    found: dict[str, JobGroup] = {}
    for name in sorted({queue for run in runs for queue in run.queues}):
        parts = [run.queues[name] for run in runs if name in run.queues]
        jobs = sum(part.jobs for part in parts)
        found[name] = JobGroup(jobs, sum(part.jobs * part.avg_jct_h for part in parts) / jobs)
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    """Over those that are known."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    return float(np.mean(known)) if known else None


def _ratio(runs: dict[_Window, ScenarioResult], reference: str, others: dict[_Window, ScenarioResult]) -> Ratio | None:
    """Over the windows that both have; None where they have none in common."""
    both = sorted(runs.keys() & others.keys())
    mine, theirs = ([some[window].summary["avg_jct_h"] for window in both] for some in (runs, others))
    if len(both) < statistics.MIN_WINDOWS:
        logs = np.log(mine) - np.log(theirs)
        return Ratio(reference, float(np.exp(logs.mean())), len(both)) if both else None
    found = statistics.compare(mine, theirs)
    interval = found.ratio
    return Ratio(reference, interval.value, found.windows, interval.low, interval.high, found.p, found.wins)


def _corrected(found: Sequence[ComparisonTable]) -> tuple[ComparisonTable, ...]:
    """P-values of all ratios as those of one family of tests."""
    told = [row.ratio.p for table in found for row in table.rows if row.ratio and row.ratio.p is not None]
    raised = iter(statistics.holm(told))
    return tuple(replace(table, rows=tuple(_raised(row, raised) for row in table.rows)) for table in found)


def _raised(row: ComparisonRow, p_values: Iterator[float]) -> ComparisonRow:
    if row.ratio is None or row.ratio.p is None:
        return row
    return replace(row, ratio=replace(row.ratio, p=next(p_values)))


def _regression(outcomes: Sequence[ScenarioResult]) -> Regression | None:
    """None where no line can be drawn: too few runs, or the same utilisation in all of them."""
    known = [each for each in outcomes if each.summary.get("utilisation") is not None]
    used = [each.summary["utilisation"] for each in known]
    jct = [math.log(each.summary["avg_jct_h"]) for each in known]
    try:
        return statistics.regression(used, jct, [str(_window(each)) for each in known])
    except ValueError:
        return None
