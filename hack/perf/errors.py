"""Step times of published runs: errors, intervals and choice of plans, all of runs that the constants have not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec
import numpy as np
from hack.perf.figures import Figure, Section, Unit
from numpy.typing import NDArray

from trimtab_policy.perf import accuracy, constants, fit
from trimtab_policy.perf.accuracy import APART, Accuracy, Errors, PlanTimes
from trimtab_policy.perf.constants import Constants
from trimtab_policy.perf.forecast import Forecast, forecast
from trimtab_policy.perf.measured import Measurements
from trimtab_policy.perf.plan_arrays import Array

Progress = Callable[[int, float], None]

MOST_OF_A_SOURCE = 0.15
REGRETS = {"vTrain-multi": 0.01, APART: 0.03, "bigscience-A100": 0.04}
"""Source -> mean regret of the plan ranked first that was the goal."""
SCAN = "nanotron"
"""Source of the second table that measured thousands of plans of the same jobs."""
SCAN_NOISE = 0.06
"""Standard deviation of its measurements, from pairs of runs that differ in nothing that matters."""
FEWEST_TO_FIT = 100
"""Runs without which there is nothing to fit constants to."""
CLUSTERS = ("internevo", "fms-fsdp", "torchtitan", "flagperf", "mlperf", "sailor-gh200", SCAN, "vTrain-multi")
"""Sources that are one cluster or one framework each."""
TRIES = range(4)
"""Choices of three runs, over which the error is averaged."""


def unseen_groups(runs: Measurements, later: NDArray[np.bool_], progress: Progress) -> list[Section]:
    """Every run predicted by constants that were fitted without its group (model and GPU family).

    `later` (n,): runs of the second table, whose sources and goals are others.
    """
    said = fit.cross_validate(runs, runs.groups, progress)
    first, first_said = runs.take(~later), _taken(said, ~later)
    found = accuracy.judge(first, first_said)
    bias = accuracy.bias(first.sources, accuracy.relative_error(first.seconds, first_said))
    apart = np.abs(accuracy.relative_error(first.seconds, first_said))[first.sources != APART]
    sections = [
        Section(
            "Step time, whole groups left out", list(_errors(found, float(np.median(apart)))), _sources(found, bias)
        ),
        Section("Choice of plans, whole groups left out", list(_ranking(found))),
    ]
    return [*sections, *_second_table(runs.take(later), _taken(said, later))] if later.any() else sections


def _second_table(runs: Measurements, said: Forecast) -> list[Section]:
    found = accuracy.judge(runs, said)
    error = np.abs(accuracy.relative_error(runs.seconds, said))
    scan = runs.sources == SCAN
    routed = np.asarray(runs.work.shape.experts) > 0
    amd = np.array([gpu.vendor == "AMD" for gpu in runs.gpus])
    figures = [
        Figure("MAPE", found.overall.mape, 0.14, note=f"{found.overall.n} runs"),
        Figure("inside their 80 % interval, at least", found.overall.coverage80, 0.75, at_least=True),
        Figure("inside their 80 % interval, at most", found.overall.coverage80, 0.88),
    ]
    parts = (("H100, scan of plans", scan, 0.15), ("mixtures of experts", routed, 0.13), ("AMD", amd, 0.18))
    for name, rows, goal in (*parts, ("others", ~(scan | routed | amd), 0.25)):
        if rows.any():
            note = f"{rows.sum()} runs, median {np.median(error[rows]):.1%}"
            figures.append(Figure(f"MAPE, {name}", float(error[rows].mean()), goal, note=note))
    bias = accuracy.bias(runs.sources, accuracy.relative_error(runs.seconds, said))
    table = Section("Step time of the second table, whole groups left out", figures, _sources(found, bias))
    return [table, _scan(runs.take(scan), _taken(said, scan))] if scan.any() else [table]


def _scan(runs: Measurements, said: Forecast) -> Section:
    """How well the plans of a scan are ranked, beside what a perfect predictor loses to noise of the measurements."""
    jobs, noise = accuracy.plan_times(runs, said), np.random.default_rng(0)
    perfect = [
        job._replace(predicted=job.measured * np.exp(noise.normal(0, SCAN_NOISE, len(job.measured)))) for job in jobs
    ]

    def mean(judge: Callable[[Array, Array], float], of: list[PlanTimes]) -> float:
        return float(np.mean([judge(*job) for job in of]))

    def best_of_three(measured: Array, predicted: Array) -> float:
        return accuracy.regret_of_first(3, measured, predicted)

    first, three = mean(accuracy.regret, jobs), mean(best_of_three, jobs)
    median = float(np.median([accuracy.regret(*job) for job in jobs]))
    lost = [f"{mean(judge, perfect):.1%} to noise alone" for judge in (accuracy.regret, best_of_three)]
    return Section(
        "Choice among the plans of a scan, whole groups left out",
        [
            Figure("mean regret of the plan ranked first", first, 0.06, note=f"{len(jobs)} jobs; {lost[0]}"),
            Figure("median regret of the plan ranked first", median, note="the mean hangs on single stalled runs"),
            Figure("mean regret of the best of the first three", three, 0.03, note=lost[1]),
            Figure(
                "Spearman", mean(accuracy.spearman, jobs), 0.88, at_least=True, unit=Unit.PLAIN,
                note=f"{mean(accuracy.spearman, perfect):.3f} with noise alone",
            ),
        ],
    )  # fmt: skip


def _taken(said: Forecast, rows: NDArray[np.bool_]) -> Forecast:
    return Forecast(*(column[rows] for column in said))


def unseen_vendors(runs: Measurements, progress: Progress) -> Section:
    """Runs on other vendors' GPUs, predicted by constants that were fitted without any GPU of their vendor."""
    vendors = np.array([gpu.vendor for gpu in runs.gpus])
    left_out = [name for name in np.unique(vendors) if (vendors != name).sum() >= FEWEST_TO_FIT]
    said = fit.cross_validate(runs, np.where(np.isin(vendors, left_out), vendors, ""), progress)
    figures: list[Figure] = []
    for name in left_out:
        rows = vendors == name
        found = accuracy.judge(runs.take(rows), _taken(said, rows)).overall
        note = f"{found.n} runs, MAPE {found.mape:.1%}"
        figures.append(Figure(f"{name}: inside their 80 % interval", found.coverage80, 0.75, at_least=True, note=note))
    return Section("One vendor left out", figures)


def calibrated_clusters(runs: Measurements, progress: Progress) -> Section:
    """What three runs of a cluster that the fit has not seen do to the error of its other runs."""
    before, after, lines = [], [], ["| cluster | runs | before | after |", "|---|---:|---:|---:|"]
    for done, source in enumerate(CLUSTERS, start=1):
        own = runs.take(runs.sources == source)
        if len(own.seconds) < 2 * len(TRIES):
            continue
        base = fit.fit(runs.take(runs.sources != source))
        base = msgspec.structs.replace(base, interval=constants.load().interval)
        errors = [_calibrated(own, base, seed) for seed in TRIES]
        old, new = (float(np.mean(each)) for each in zip(*errors, strict=True))
        before.append(old)
        after.append(new)
        lines.append(f"| {source} | {len(own.seconds)} | {old:.1%} | {new:.1%} |")
        progress(done, done / len(CLUSTERS))
    figures = [
        Figure("MAPE of the other runs, before", float(np.mean(before))),
        Figure("MAPE of the other runs, after three", float(np.mean(after)), max(float(np.mean(before)) / 2, 0.10)),
    ]
    return Section("Three runs of an unknown cluster", figures, "\n".join(lines))


def _calibrated(own: Measurements, base: Constants, seed: int) -> tuple[float, float]:
    """(before, after): MAPE of all but three runs, without and with a calibration on those three."""
    chosen = np.random.default_rng(seed).permutation(len(own.seconds))[:3]
    others = own.take(np.setdiff1d(np.arange(len(own.seconds)), chosen))
    fitted = fit.fit(own.take(chosen), start=base)
    old, new = (
        np.abs(accuracy.relative_error(others.seconds, forecast(others, each))).mean() for each in (base, fitted)
    )
    return float(old), float(new)


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
