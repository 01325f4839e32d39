"""Learned policies against published ones on jobs that are drawn, in the simulator.

Agents decide by the code, on the snapshots and with the weights of the live controller. Unless an entry says
otherwise, every policy decides alone, as published, and not as a stage of the controller's pipeline (`sim.controller`).
All policies meet the same windows, drawn from seeds that no training uses; compared are average JCTs within a window
(`sim.statistics`): geometric mean of the ratios, BCa interval over windows, p-values of the whole table corrected after
Holm. Who touches running jobs stands out by its restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from trimtab_lab.bench.report import BenchReport, Cell
from trimtab_lab.evaluation import statistics
from trimtab_lab.evaluation.contestant import Decider, uses_sizes
from trimtab_lab.evaluation.scenario import GENERATED, Scenario, ScenarioResult
from trimtab_lab.evaluation.statistics import Comparison
from trimtab_lab.evaluation.store import kept_or_made
from trimtab_lab.evaluation.workers import processes
from trimtab_lab.evaluation.workload import CLUSTER_V0
from trimtab_policy import policy as registry

SURE = 0.05
"""Corrected p-values below it are marked."""
BOUND = "bound"
USES_SIZES = "°"
"""Marks policies that decide by the run times of jobs."""
FIGURES = {"JCT, h": "avg_jct_h", "GPUs used": "utilisation", "restarts/job": "restarts_per_job"}
"""Column -> figure of `metrics.Summary`."""


class At(NamedTuple):
    """A row of the table."""

    load: float
    policy: str


Window = tuple[int, int]
"""Seed and number."""
Outcomes = Mapping[At, Mapping[Window, ScenarioResult]]
Ratios = Mapping[tuple[At, str], Comparison]


def run(
    *,
    seeds: list[int],
    progress: Callable[[str], None],
    folder: Path,
    cluster: str,
    loads: Sequence[float],
    windows: int,
    window_jobs: int,
    agents: Sequence[str],
    baselines: Sequence[str],
    references: Sequence[str],
    fewer: Mapping[str, int] | None = None,
    workload: str = CLUSTER_V0,
    decider: str = Decider.PAPER,
    elastic: float | None = None,
    workers: int = 2,
) -> BenchReport:
    """Average JCT of agents and baselines over that of each reference and of the lower bound, at each load.

    Every seed has so many windows of so many jobs; `fewer` says which policies are simulated on the first of them only,
    because they take long. `workload` names a generator of jobs; `decider` and `elastic` are as in `Scenario`. Runs are
    kept in `folder`: stopped, they go on from there. Raises ValueError in one line for names that are unknown, and for
    agents whose weights cannot be loaded.
    """
    limits = dict.fromkeys([*agents, *baselines], windows) | dict(fewer or {})
    if unknown := [each for each in (*references, *limits) if each not in (*agents, *baselines)]:
        raise ValueError(f"references and fewer: {', '.join(unknown)}: not among the agents and baselines")
    base = Scenario(
        "", GENERATED + workload, cluster, windows=windows, window_jobs=window_jobs, decider=Decider(decider),
        elastic=elastic,
    )  # fmt: skip
    scenarios = [
        replace(base, policy=policy, load=load, window=window, seed=seed)
        for seed in seeds
        for window in range(windows)
        for load in loads
        for policy, most in limits.items()
        if window < most
    ]
    found = _by_row(kept_or_made(scenarios, folder, processes(workers), progress))
    ratios = _ratios(found, references)
    return BenchReport(
        title=_title(base),
        columns=("load", "policy", "kind", *FIGURES, "windows", *(f"÷ {each}" for each in (*references, BOUND))),
        rows=tuple(
            _row(at, found[at], len(seeds) * windows, ratios, references)
            for at in sorted(found, key=lambda at: _rank(at, ratios, references))
        ),
        notes=(*_notes(base, seeds, loads, limits), *_limits(limits, len(seeds), len(ratios) - len(found))),
    )


def _title(base: Scenario) -> str:
    jobs = base.trace.removeprefix(GENERATED)
    shared = "" if base.elastic is None else f", {base.elastic:.0%} of them elastic"
    return f"{base.cluster}: average JCT on the jobs of {'Cluster-v0' if jobs == CLUSTER_V0 else jobs}{shared}"


def _by_row(outcomes: Iterable[ScenarioResult]) -> Outcomes:
    found: dict[At, dict[Window, ScenarioResult]] = {}
    for each in outcomes:
        one = each.scenario
        found.setdefault(At(one.load or 0.0, one.policy), {})[one.seed, one.window] = each
    return found


def _rank(at: At, ratios: Ratios, references: Sequence[str]) -> tuple[float, float]:
    """By the ratio to the first reference: means over different windows do not compare."""
    against = ratios.get((at, references[0]))
    return at.load, against.ratio.value if against else 1.0


def _mean(outcomes: Iterable[ScenarioResult], figure: str) -> float:
    return fmean(each.summary[figure] for each in outcomes)


def _ratios(found: Outcomes, references: Sequence[str]) -> Ratios:
    """To every reference on the windows that both have, and to the bound; p-values corrected over the whole table."""
    told = {
        (at, name): _compared(runs, found[At(at.load, name)])
        for at, runs in found.items()
        for name in references
        if name != at.policy
    }
    raised = statistics.holm([each.p for each in told.values()])
    bounds = {(at, BOUND): _to_bound(runs) for at, runs in found.items()}
    return {key: replace(each, p=p) for (key, each), p in zip(told.items(), raised, strict=True)} | bounds


def _compared(ours: Mapping[Window, ScenarioResult], theirs: Mapping[Window, ScenarioResult]) -> Comparison:
    both = sorted(ours.keys() & theirs.keys())
    mine, others = ([some[window].summary["avg_jct_h"] for window in both] for some in (ours, theirs))
    return statistics.compare(mine, others)


def _to_bound(runs: Mapping[Window, ScenarioResult]) -> Comparison:
    """Nobody doubts that it is above 1: no test, so no p."""
    jct, bounds = zip(
        *((each.summary["avg_jct_h"], max(each.bounds_h.values())) for each in runs.values()), strict=True
    )
    return replace(statistics.compare(jct, bounds), p=1.0)


def _row(
    at: At, runs: Mapping[Window, ScenarioResult], windows: int, ratios: Ratios, references: Sequence[str]
) -> tuple[Cell, ...]:
    """Means only where they are over all windows, so that a column holds what compares."""
    figures = (_mean(runs.values(), figure) if len(runs) == windows else "–" for figure in FIGURES.values())
    against = (_written(ratios.get((at, name))) for name in (*references, BOUND))
    told = at.policy + USES_SIZES * uses_sizes(at.policy)
    return f"{at.load:g}", told, str(registry.entry(at.policy).kind), *figures, str(len(runs)), *against


def _written(found: Comparison | None) -> str:
    """`0.84 (0.79–0.90)*`; 1 for the reference itself."""
    if found is None:
        return "1"
    return f"{found.ratio.value:.2f} ({found.ratio.low:.2f}–{found.ratio.high:.2f})" + "*" * (found.p < SURE)


def _notes(base: Scenario, seeds: Sequence[int], loads: Sequence[float], limits: Mapping[str, int]) -> Iterator[str]:
    each = f" for each of {len(seeds)} seeds" if len(seeds) > 1 else ""
    yield (
        f"{base.windows} windows of {base.window_jobs} jobs{each}, the same for all; the middle 60 % of their jobs are "
        "measured. Load 1 is the largest arrival rate that the cluster could carry, were GPUs divisible in time "
        "(`cluster_jobs.saturation`)."
    )
    yield (
        f"Ratios are geometric means over paired windows with 95 % BCa intervals; * p < {SURE} after Holm over the "
        f"table. `{BOUND}`: the greatest of the certified lower bounds of each window."
    )
    if base.decider is Decider.PAPER:
        yield "Every policy decides alone, as published: `trimtab evaluate` shows them under the controller as well."
    else:
        yield f"Decisions are made {Decider.CONTROLLER.described}: every policy is one stage of it."
    yield "Policies without restarts never touch running jobs; the others may stop, move or resize them."
    if few := {policy: most for policy, most in limits.items() if most < base.windows}:
        told = ", ".join(f"{policy} on the first {most}" for policy, most in few.items())
        yield f"Simulated on fewer windows because it takes long: {told}. Ratios are over the windows that both have."
    yield (
        f"The same runs: `trimtab evaluate --policies {','.join(f'{name}+{base.decider}' for name in limits)}"
        f" --trace {base.trace} --cluster {base.cluster}"
        f" --load {','.join(f'{load:g}' for load in loads)} --windows {base.windows} --window-jobs {base.window_jobs}"
        f"{'' if base.elastic is None else f' --elastic {base.elastic:g}'} --seed {seeds[0]}`."
    )


def _limits(limits: Mapping[str, int], seeds: int, comparisons: int) -> Iterator[str]:
    """What the table does not say."""
    yield f"{USES_SIZES} decides by how long jobs will take, which is told without error; the others do without."
    if few := sorted({most * seeds for most in limits.values() if 2.0 ** (1 - most * seeds) * comparisons > SURE}):
        told = " or ".join(map(str, few))
        yield f"Over {told} windows no p can be small enough for a mark: there its absence says nothing."
    yield (
        "Windows begin with an empty cluster, as the episodes of training do, and are short: they say more about how a "
        "queue is worked off than about a cluster that has been full for weeks. One set of weights is judged of each "
        "agent, that of its best seed by validation; how much seeds differ is not in the intervals."
    )
