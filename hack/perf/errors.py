"""Step times of published runs: errors, intervals and choice of plans, all of runs that the constants have not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from hack.perf.figures import Figure, Section, Unit

from trimtab_policy.perf import accuracy, fit
from trimtab_policy.perf.accuracy import APART, Accuracy, Errors
from trimtab_policy.perf.measured import Measurements

Progress = Callable[[int, float], None]

MOST_OF_A_SOURCE = 0.15
REGRETS = {"vTrain-multi": 0.01, APART: 0.03, "bigscience-A100": 0.04}
"""Source -> mean regret of the plan ranked first that was the goal."""


def unseen_groups(runs: Measurements, progress: Progress) -> list[Section]:
    """Every run predicted by constants that were fitted without its group (model and GPU family)."""
    said = fit.cross_validate(runs, runs.groups, progress)
    found = accuracy.judge(runs, said)
    bias = accuracy.bias(runs.sources, accuracy.relative_error(runs.seconds, said))
    apart = np.abs(accuracy.relative_error(runs.seconds, said))[runs.sources != APART]
    return [
        Section(
            "Step time, whole groups left out", list(_errors(found, float(np.median(apart)))), _sources(found, bias)
        ),
        Section("Choice of plans, whole groups left out", list(_ranking(found))),
    ]


def unseen_generations(runs: Measurements, progress: Progress) -> Section:
    """Every run predicted by constants that were fitted without any GPU of its generation."""
    generations = np.array([gpu.architecture for gpu in runs.gpus])
    found = accuracy.judge(runs._replace(gpu_names=generations), fit.cross_validate(runs, generations, progress))
    figures = [
        Figure("MAPE, mean over generations", float(np.mean([row.mape for row in found.gpus.values()])), 0.18),
        Figure("MAPE, mean over sources (vTrain-single apart)", found.overall.macro_mape, 0.18),
        Figure("inside their 80 % interval", found.overall.coverage80),
    ]
    figures += [Figure(f"MAPE of {name} ({row.n} runs)", row.mape) for name, row in found.gpus.items()]
    return Section("Step time, one GPU generation left out", figures)


def _errors(found: Accuracy, median_apart: float) -> Iterator[Figure]:
    overall = found.overall
    yield Figure("MAPE, mean over sources (vTrain-single apart)", overall.macro_mape, 0.08)
    yield Figure("median error of a run (vTrain-single apart)", median_apart, 0.05)
    yield Figure("median error of a run", overall.median_ape, 0.05)
    name, worst = max(found.sources.items(), key=lambda item: item[1].mape)
    yield Figure(f"MAPE of the worst source: {name}", worst.mape, MOST_OF_A_SOURCE, note=_above(found.sources))
    yield Figure("inside their 80 % interval, at least", overall.coverage80, 0.75, at_least=True)
    yield Figure("inside their 80 % interval, at most", overall.coverage80, 0.85)


def _above(sources: Mapping[str, Errors]) -> str:
    above = sorted(
        (name for name, row in sources.items() if row.mape > MOST_OF_A_SOURCE), key=lambda n: -sources[n].mape
    )
    return "above: " + ", ".join(f"{name} {sources[name].mape:.0%}" for name in above) if above else ""


def _ranking(found: Accuracy) -> Iterator[Figure]:
    for source, row in sorted(found.ranking.items(), key=lambda item: item[0] not in REGRETS):
        goal = REGRETS.get(source)
        yield Figure(
            f"{source}: mean regret of the plan ranked first", row.mean_regret, goal, note=f"{row.groups} jobs"
        )
        ranks = 0.9 if goal is not None else None
        yield Figure(f"{source}: Spearman", row.spearman, ranks, at_least=True, unit=Unit.PLAIN)


def _sources(found: Accuracy, bias: Mapping[str, float]) -> str:
    lines = ["| source | runs | MAPE | median | inside 80 % | bias |", "|---|---:|---:|---:|---:|---:|"]
    for name, row in sorted(found.sources.items(), key=lambda item: -item[1].n):
        figures = f"{row.mape:.1%} | {row.median_ape:.1%} | {row.coverage80:.0%} | {bias[name]:+.1%}"
        lines.append(f"| {name} | {row.n} | {figures} |")
    return "\n".join(lines)
