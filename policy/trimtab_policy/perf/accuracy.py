"""How good predictions of the step time are, held against measurements.

Three questions, for the whole table, every source and every GPU type:

- how far off: mean and median of the absolute percentage error |predicted/measured - 1|
- how honest: the share of measured times inside the 80 % interval
- how useful: where a source measured several plans of one job on the same GPUs, what it costs to run the plan that is
  predicted fastest (regret), and how alike the two orders are (Spearman's rank correlation)

Errors of a table say most about whoever published most, so the mean over sources (macro) is the one to judge by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trimtab_policy.perf.plan_arrays import Array

if TYPE_CHECKING:
    from trimtab_policy.perf.forecast import Forecast
    from trimtab_policy.perf.measured import Measurements

APART = "vTrain-single"
"""A source of toy models on one node, with more rows than all others together: not part of the mean over sources."""
MIN_PLANS = 4
"""Measured plans from which on a job says something about choosing one."""


class Overall(Struct, frozen=True):
    """Errors over all rows; fractions, not percent."""

    n: int
    mape: float
    median_ape: float
    macro_mape: float
    """Mean over sources of their MAPE, without `APART` unless there is no other source."""
    coverage80: float
    """Share of rows whose measured time lies inside the predicted 80 % interval."""


class Errors(Struct, frozen=True):
    """Errors over the rows of one source or GPU type; fractions."""

    n: int
    mape: float
    median_ape: float
    coverage80: float


class Ranking(Struct, frozen=True):
    """How well one source's plans are ordered, averaged over its jobs."""

    groups: int
    """Jobs with at least `MIN_PLANS` different plans on the same GPUs."""
    mean_regret: float
    """Measured time of the plan predicted fastest, over that of the one measured fastest, less 1."""
    spearman: float


class Accuracy(Struct, frozen=True):
    """All of it. `sources`, `gpus` and `ranking` are by name; a source without such jobs is not in `ranking`."""

    overall: Overall
    sources: dict[str, Errors]
    gpus: dict[str, Errors]
    ranking: dict[str, Ranking]


class Peer(Struct, frozen=True):
    """Another predictor, run on published measurements like these, but not on the same rows; fractions."""

    name: str
    mape: float
    """Over 275 rows kept apart, on A100 and H100 in 16 bit, that all of them can run; without `APART`."""
    mape_common: float
    """Over all 724 such rows."""
    ranking: dict[str, tuple[float, float]] = {}
    """Source -> (mean regret, Spearman)."""


PEERS = (
    Peer("Calculon", 0.341, 0.358, {"vTrain-multi": (0.013, 0.72), APART: (0.102, 0.65)}),
    Peer("llm-analysis", 0.170, 0.207),
    Peer("constant FLOP/s (a guess)", 0.149, 0.174, {"vTrain-multi": (0.019, 0.69), APART: (0.92, -0.17)}),
)
"""The public tools that need no profile of the job. Calculon: Isaev et al. 2023 (SC '23); llm-analysis:
github.com/cli99/llm-analysis. The guess is one calibrated rate per GPU type, with recomputation and bubble."""


def judge(runs: Measurements, forecast: Forecast) -> Accuracy:
    """Accuracy of a forecast of these runs, row by row."""
    return assess(runs.sources, runs.gpu_names, runs.jobs, runs.seconds, forecast, plans=plan_numbers(runs))


def assess(
    sources: NDArray[np.str_],
    gpu_names: NDArray[np.str_],
    jobs: NDArray[np.str_],
    seconds: Array,
    forecast: Forecast,
    *,
    plans: NDArray[np.int64] | None = None,
) -> Accuracy:
    """Accuracy from columns of shape (n,), n >= 1. Raises ValueError when there are no rows.

    Rows with equal `plans` (by default every row has its own) in one job are one plan that was measured repeatedly: it
    counts once, with medians.
    """
    if not len(seconds):
        raise ValueError("there is nothing to assess: no measurement can be used")
    error = relative_error(seconds, forecast)
    covered = (forecast.low <= seconds) & (seconds <= forecast.high)
    by_source = _errors(sources, error, covered)
    whole = _of(error, covered)
    numbers = np.arange(len(seconds)) if plans is None else plans
    return Accuracy(
        overall=Overall(whole.n, whole.mape, whole.median_ape, _macro(by_source), whole.coverage80),
        sources=by_source,
        gpus=_errors(gpu_names, error, covered),
        ranking=_rankings(sources, jobs, numbers, seconds, forecast.seconds),
    )


def relative_error(seconds: Array, forecast: Forecast) -> Array:
    """Signed error of each row: predicted/measured - 1."""
    return forecast.seconds / seconds - 1


def bias(names: NDArray[np.str_], error: Array) -> dict[str, float]:
    """Median signed error by name: what is left when errors in both directions cancel."""
    return {name: float(np.median(error[rows])) for name, rows in _by_name(names)}


def plan_numbers(runs: Measurements) -> NDArray[np.int64]:
    """A number per row, equal where the plans are."""
    table = np.stack(np.broadcast_arrays(*runs.plans), axis=1)
    numbers: NDArray[np.int64] = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    return numbers


def spearman(left: Array, right: Array) -> float:
    """Spearman's rank correlation, ties with their mean rank; 0 where one side is all ties: it orders nothing."""
    if np.ptp(left) == 0 or np.ptp(right) == 0:
        return 0.0
    return float(np.corrcoef(_ranks(left), _ranks(right))[0, 1])


def regret(measured: Array, predicted: Array) -> float:
    """Loss of running the plan predicted fastest instead of the fastest; several predicted equal count on average."""
    chosen = measured[predicted == predicted.min()].mean()
    return float(chosen / measured.min() - 1)


def regret_of_first(tries: int, measured: Array, predicted: Array) -> float:
    """Loss of running the best of the plans that are predicted to be the `tries` fastest."""
    first = np.argsort(predicted, kind="stable")[:tries]
    return float(measured[first].min() / measured.min() - 1)


def _macro(by_source: Mapping[str, Errors]) -> float:
    counted = [errors.mape for name, errors in by_source.items() if name != APART]
    return float(np.mean(counted or [errors.mape for errors in by_source.values()]))


def _errors(names: NDArray[np.str_], error: Array, covered: NDArray[np.bool_]) -> dict[str, Errors]:
    return {name: _of(error[rows], covered[rows]) for name, rows in _by_name(names)}


def _of(error: Array, covered: NDArray[np.bool_]) -> Errors:
    size = np.abs(error)
    return Errors(len(size), float(size.mean()), float(np.median(size)), float(covered.mean()))


def _by_name(names: NDArray[np.str_]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    return ((str(name), names == name) for name in np.unique(names))


class PlanTimes(NamedTuple):
    """One time per plan of one job, in seconds; columns of shape (plans,)."""

    measured: Array
    predicted: Array


def plan_times(runs: Measurements, forecast: Forecast) -> list[PlanTimes]:
    """Jobs of which at least `MIN_PLANS` different plans were measured."""
    jobs = _jobs(runs.jobs, plan_numbers(runs), runs.seconds, forecast.seconds)
    return [job for job in jobs if len(job.measured) >= MIN_PLANS]


def _rankings(
    sources: NDArray[np.str_], jobs: NDArray[np.str_], plans: NDArray[np.int64], measured: Array, predicted: Array
) -> dict[str, Ranking]:
    found: dict[str, Ranking] = {}
    for source, rows in _by_name(sources):
        own = _jobs(jobs[rows], plans[rows], measured[rows], predicted[rows])
        if wide := [job for job in own if len(job.measured) >= MIN_PLANS]:
            found[source] = Ranking(
                groups=len(wide),
                mean_regret=_mean([regret(*job) for job in wide]),
                spearman=_mean([spearman(*job) for job in wide]),
            )
    return found


def _jobs(jobs: NDArray[np.str_], plans: NDArray[np.int64], measured: Array, predicted: Array) -> Iterator[PlanTimes]:
    for _, rows in _by_name(jobs):
        yield PlanTimes(_medians(plans[rows], measured[rows]), _medians(plans[rows], predicted[rows]))


def _medians(plans: NDArray[np.int64], seconds: Array) -> Array:
    """One value per different plan, by its number."""
    return np.array([np.median(seconds[plans == plan]) for plan in np.unique(plans)])


def _ranks(values: Array) -> Array:
    """Ranks from 1, equal values sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Array = (last - (counts - 1) / 2)[inverse]
    return ranks


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
