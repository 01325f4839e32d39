"""Fitting the constants to measured runs, and how well that carries over to runs that were left out.

A penalised least-squares fit: the residual of a run is the logarithm of predicted over measured step time, and every
constant is drawn to what is believed of it (`constants.KINDS`), members to the middle of their kind. That is the most
probable value under a hierarchical normal model (Gelman and Hill 2007, chapter 12), so that a framework with three runs
moves its constants a little and one with hundreds as far as they say. Residuals weigh less where a source has many, so
that no source decides alone, and grow only linearly beyond some noise, since tables have errors.

Needs scipy (`pip install trimtab[perf]`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from trimtab_policy.perf.constants import (
    KINDS,
    Axis,
    Constant,
    Constants,
    Family,
    StepTimeInterval,
    beliefs,
    load,
    log_factor,
)
from trimtab_policy.perf.forecast import Forecast, RunTable, forecast, scene, step_times
from trimtab_policy.perf.measured import Measurements
from trimtab_policy.perf.model_flops import Array, Number
from trimtab_policy.perf.uncertainty import half_width

Progress = Callable[[int, float], None]
"""Called with the number of steps taken and the cost reached, or with folds done and their share."""

NOISE = 0.06
"""Standard deviation of log step time between what a good model says and what is measured."""
TAIL = 1.0
"""Residuals beyond so many times the noise count linearly (pseudo-Huber loss)."""
CROWD = 0.5
"""A source of n runs has n^(1 - CROWD) times the weight of a source of one."""
ENOUGH = 3
"""Runs of one software on one GPU generation from which on their predictions are no longer said to be strange."""
FEW = 10
"""Runs of a software whose scatter is believed half as much as that of all software."""
MOST_STEPS = 60
STEP = 1e-6
"""Of a difference quotient, on the scale that is fitted."""
MOST_FOLDS = 20
NINETY = 1.2816
"""Standard deviations from the middle of a normal distribution to its 90 % point."""


class Vector(NamedTuple):
    """The constants as one vector on the scale that is fitted, with what is believed of each."""

    names: list[tuple[str, str]]
    """(kind, member); an empty member is the middle."""
    start: Array
    spread: Array


class FitProblem:
    """One table of runs, and the constants that it can say something of."""

    def __init__(self, runs: Measurements, start: Constants) -> None:
        self._scene: RunTable = scene(runs)
        self._runs = runs
        self._keys: dict[Axis, NDArray[np.str_]] = {
            "generation": np.array(self._scene.generations),
            "software": runs.software,
            "recipe": runs.recipes,
        }
        self.vector = _vector(start, {axis: sorted(set(column.tolist())) for axis, column in self._keys.items()})
        self._position = {name: i for i, name in enumerate(self.vector.names)}
        self._rows = {
            name: np.array([self._position[name, member] for member in self._keys[kind.axis].tolist()])
            for name, kind in KINDS.items()
            if kind.axis
        }

    def predict(self, x: Array) -> Array:
        """(n,) step times of all runs."""
        return step_times(self._scene, lambda name: self._column(name, x)).total

    def solve(self, rows: NDArray[np.bool_], progress: Progress | None = None) -> tuple[Array, Array]:
        """(most probable constants, their standard deviations), both on the scale that is fitted."""
        from scipy.optimize import least_squares  # an extra: only those who fit need it

        weight, measured = self._weights(rows), np.log(self._runs.seconds)
        steps = 0

        def errors(x: Array) -> Array:
            return (np.log(self.predict(x)) - measured) * weight / NOISE

        def residuals(x: Array) -> Array:
            tamed, _ = _tamed(errors(x))
            return np.concatenate([tamed[rows], (x - self.vector.start) / self.vector.spread])

        def derivatives(x: Array) -> Array:
            _, slope = _tamed(errors(x))
            of_runs = (slope * weight / NOISE)[:, None] * self._sensitivity(x)
            return np.concatenate([of_runs[rows], np.diag(1 / self.vector.spread)])

        def report(_: object, /) -> None:
            nonlocal steps
            steps += 1
            if progress:
                progress(steps, steps / MOST_STEPS)

        found = least_squares(
            residuals, self.vector.start, derivatives, x_scale=self.vector.spread, max_nfev=MOST_STEPS, ftol=1e-6,
            xtol=1e-6, tr_solver="lsmr", callback=report,
        )  # fmt: skip
        covariance = np.linalg.inv(found.jac.T @ found.jac)
        return found.x, np.sqrt(np.diag(covariance))

    def pairs(self, rows: NDArray[np.bool_]) -> frozenset[tuple[str, str]]:
        """(Generation, software) that these runs say enough of."""
        each = zip(*(self._keys[axis][rows].tolist() for axis in ("generation", "software")), strict=True)
        return frozenset(pair for pair, runs in Counter(each).items() if runs >= ENOUGH)

    def constants(self, x: Array, deviation: Array, start: Constants, rows: NDArray[np.bool_]) -> Constants:
        """A solution for these runs as constants; members that occur in no run stay as they were at the start."""
        families: dict[str, Family] = {}
        for name, kind in KINDS.items():
            middle = self._position[name, ""]
            each = dict(start.families[name].each)
            for (family, member), i in self._position.items():
                if family == name and member:
                    each[member] = Constant(*_triple(kind.inward, x[middle] + x[i], deviation[i]))
            families[name] = Family(*_triple(kind.inward, x[middle], deviation[middle]), each)
        seen = start.seen | self.pairs(rows)
        return Constants(families, start.interval, seen, f"fitted on {int(rows.sum())} runs")

    def _sensitivity(self, x: Array) -> Array:
        """(n, constants) derivatives of the runs' log step times, by forward differences.

        A run has one member of each kind, and its constant is that of the sum of middle and member: one evaluation
        with a kind moved for all runs gives the derivatives with respect to the middle and to every member.
        """
        table = np.zeros((len(self._runs.seconds), len(x)))
        here, every = np.log(self.predict(x)), np.arange(len(table))
        for name in KINDS:
            middle = self._position[name, ""]
            moved = x.copy()
            moved[middle] += STEP
            slope = (np.log(self.predict(moved)) - here) / STEP
            table[:, middle] = slope
            if name in self._rows:
                table[every, self._rows[name]] = slope
        return table

    def _column(self, name: str, x: Array) -> Number:
        middle = x[self._position[name, ""]]
        return KINDS[name].inward(middle + x[self._rows[name]] if name in self._rows else middle)

    def _weights(self, rows: NDArray[np.bool_]) -> Array:
        """Square roots of the runs' weights: each source's, shared by its runs, and less for noisy ones."""
        weight: Array = crowding(self._runs.sources) / (1 + (self._runs.noise / 0.2) ** 2) * rows
        scaled: Array = np.sqrt(weight / weight.sum() * 4 * np.sqrt(rows.sum()))
        return scaled


def _tamed(errors: Array) -> tuple[Array, Array]:
    """Residuals whose squares are the pseudo-Huber loss of these errors, and their derivatives."""
    size = np.abs(errors) / TAIL
    root = np.sqrt(1 + size**2)
    # 2 (root - 1), without the difference of nearly equal numbers.
    length = np.sqrt(2 / (root + 1)) * size
    slope = np.divide(size, root * length, out=np.ones_like(size), where=length > 0)
    return np.sign(errors) * TAIL * length, slope


def fit(runs: Measurements, *, start: Constants | None = None, progress: Progress | None = None) -> Constants:
    """The most probable constants given these runs, starting from (and drawn to) `start`, by default bare beliefs.

    Raises ValueError when there are no usable runs.
    """
    if not len(runs.seconds):
        raise ValueError("there are no usable runs to fit constants to")
    start = start or beliefs()
    problem = FitProblem(runs, start)
    every = np.ones(len(runs.seconds), dtype=np.bool_)
    return problem.constants(*problem.solve(every, progress), start, every)


def cross_validate(
    runs: Measurements, folds: NDArray[np.str_], progress: Progress | None = None, *, start: Constants | None = None
) -> Forecast:
    """Every run predicted by constants that were fitted without its fold.

    `folds` (n,): labels of what belongs together; more than `MOST_FOLDS` are dealt out to so many folds.
    """
    start = start or msgspec.structs.replace(beliefs(), interval=load().interval)
    said = Forecast(*(np.full(len(runs.seconds), np.nan) for _ in Forecast._fields))
    parts = _dealt(folds)
    for done, test in enumerate(parts, start=1):
        problem = FitProblem(runs, start)
        x, deviation = problem.solve(~test)
        found = forecast(runs.take(test), problem.constants(x, deviation, start, ~test))
        for column, part in zip(said, found, strict=True):
            column[test] = part
        if progress:
            progress(done, done / len(parts))
    return said


def calibrated(
    runs: Measurements, constants: Constants, held_out: Forecast, *, by_generation: Forecast, by_software: Forecast
) -> Constants:
    """The constants with the interval that holds 80 % of runs predicted without their group, generation, software.

    Quantile regression (Koenker and Bassett 1978) of the absolute log error on the share of time not spent computing,
    the doublings of nodes and the presence of experts; how much wider or narrower the runs of each software lie; then
    what the other two forecasts need on top.
    """
    from scipy.optimize import minimize  # an extra: only those who fit need it

    what = scene(runs)
    times = step_times(what, constants.columns(what.generations, list(runs.software), list(runs.recipes)))
    by_source = crowding(runs.sources)
    by_gpu = by_source / _sums(by_source, np.array(what.generations))

    def half(
        interval: StepTimeInterval, scatter: Array | float = 1.0, strange_gpu: bool = False, strange: bool = False
    ) -> Array:
        return half_width(interval, times.computing, what.doublings, what.routed, scatter, strange_gpu, strange)

    def loss(error: Array, width: Array, weights: Array = by_source) -> float:
        short = error - width
        return float(np.average(np.maximum(0.8 * short, -0.2 * short), weights=weights))

    def usual(log_terms: Array) -> StepTimeInterval:
        base, overhead, nodes, experts = map(float, np.exp(log_terms))
        return StepTimeInterval(base, overhead, nodes, experts, 0.0, 0.0)

    def error(said: Forecast) -> Array:
        return np.abs(np.log(said.seconds / runs.seconds))

    known, start = error(held_out), np.log([0.1, 0.1, 0.01, 0.1])
    found = minimize(lambda t: loss(known, half(usual(t))), start, method="Nelder-Mead", options={"maxiter": 2000})
    interval = usual(found.x)
    interval = msgspec.structs.replace(interval, scatter=_scatter(runs.software, known / half(interval)))
    scatter = np.array([interval.scatter[name] for name in runs.software.tolist()])
    # On a generation without runs no software has any, either: what that costs is known first.
    for field, said, each, strange_gpu, weights in (
        ("unmeasured_software", by_software, 1.0, False, by_source),
        ("unmeasured_generation", by_generation, scatter, True, by_gpu),  # every generation counts alike
    ):
        wrong = error(said)
        tries = [msgspec.structs.replace(interval, **{field: width}) for width in _WIDTHS]
        losses = [loss(wrong, half(one, each, strange_gpu, True), weights) for one in tries]
        interval = tries[int(np.argmin(losses))]
    return msgspec.structs.replace(constants, interval=interval)


def _scatter(software: NDArray[np.str_], widths: Array) -> dict[str, float]:
    """Of each software, the width that holds 80 % of its runs, relative to that of all.

    `widths` (n,): errors in units of the interval's half width. One with few runs is drawn to 1, as constants are.
    """
    found: dict[str, float] = {}
    for name in np.unique(software):
        own = widths[software == name]
        found[str(name)] = float(np.quantile(own, 0.8) ** (len(own) / (len(own) + FEW)))
    return found


_WIDTHS = tuple(round(0.01 * step, 2) for step in range(101))
"""Candidates for what a coefficient adds to the interval, in logarithms."""


def crowding(sources: NDArray[np.str_]) -> Array:
    """Weights of runs: n of one source share the weight n^(1 - CROWD)."""
    _, where, counts = np.unique(sources, return_inverse=True, return_counts=True)
    weights: Array = counts.astype(np.float64)[where] ** -CROWD
    return weights


def _sums(values: Array, labels: NDArray[np.str_]) -> Array:
    """(n,) the sum of the values that share a row's label."""
    _, where = np.unique(labels, return_inverse=True)
    sums: Array = np.bincount(where, weights=values).astype(np.float64)[where]
    return sums


def _vector(start: Constants, members: dict[Axis, list[str]]) -> Vector:
    names: list[tuple[str, str]] = []
    values: list[float] = []
    spread: list[float] = []
    for name, kind in KINDS.items():
        family = start.families[name]
        middle = kind.outward(family.value)
        names.append((name, ""))
        values.append(middle)
        spread.append(kind.spread)
        for member in members[kind.axis] if kind.axis else ():
            known = family.each.get(member)
            names.append((name, member))
            values.append(kind.outward(known.value) - middle if known else log_factor(name, member))
            spread.append(kind.deviation)
    return Vector(names, np.array(values), np.array(spread))


def _triple(inward: Callable[[Number], Number], middle: float, deviation: float) -> tuple[float, float, float]:
    low, high = middle - NINETY * deviation, middle + NINETY * deviation
    return float(inward(middle)), float(inward(low)), float(inward(high))


def _dealt(folds: NDArray[np.str_]) -> list[NDArray[np.bool_]]:
    """(n,) masks of the folds; the same labels are always dealt out alike."""
    labels = np.unique(folds)
    if len(labels) > MOST_FOLDS:
        np.random.default_rng(0).shuffle(labels)
    hands = [labels[i :: min(MOST_FOLDS, len(labels))] for i in range(min(MOST_FOLDS, len(labels)))]
    return [np.isin(folds, hand) for hand in hands]
