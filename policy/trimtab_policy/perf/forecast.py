"""Step times of measured runs as the model predicts them, with intervals: what `accuracy` holds against the truth.

Every row has a model, a GPU, a framework of its own; all of them are one evaluation of `speed`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.perf import hardware, speed
from trimtab_policy.perf.constants import Constants, Lookup, fading, generation
from trimtab_policy.perf.hardware import Datasheet, FrameworkFacts
from trimtab_policy.perf.measured import Measurements
from trimtab_policy.perf.model_flops import Array
from trimtab_policy.perf.speed import StepTime
from trimtab_policy.perf.uncertainty import half_width


class Forecast(NamedTuple):
    """Predicted seconds of one step; columns of shape (n,)."""

    seconds: Array
    low: Array
    """Lower end of the 80 % interval."""
    high: Array


class RunTable(NamedTuple):
    """All of a table of runs that does not depend on the constants."""

    runs: Measurements
    generations: list[str]
    sheet: Datasheet
    facts: FrameworkFacts
    youth: Array
    linked: Array
    """GPUs that share a link: nobody says how measured runs lay, so all of a domain."""
    doublings: Array
    """Of nodes."""
    routed: NDArray[np.bool_]
    """Whether the model has experts."""


def scene(runs: Measurements) -> RunTable:
    """Facts of these runs as columns."""
    sheet = hardware.stack([hardware.datasheet(*pair) for pair in zip(runs.gpus, runs.precisions, strict=True)])
    linked = np.maximum(runs.gpus_per_node, sheet.domain)
    return RunTable(
        runs=runs,
        generations=[generation(gpu) for gpu in runs.gpus],
        sheet=sheet,
        facts=FrameworkFacts(
            *np.array([hardware.facts(name) for name in runs.software]).reshape(-1, len(FrameworkFacts._fields)).T
        )._replace(captured=runs.captured),
        youth=np.asarray(fading(runs.ages)),
        linked=linked,
        doublings=np.log2(np.maximum(1.0, runs.plans.gpus / linked)),
        routed=np.asarray(runs.work.shape.experts) > 0,
    )


def step_times(what: RunTable, value: Lookup) -> StepTime:
    """Where the time of each run goes, with these constants."""
    machine = hardware.reached(what.sheet, value)
    practice = hardware.practised(value, what.facts, what.youth)
    return speed.step_time(what.runs.work, what.runs.plans, machine, what.linked, practice)


def forecast(runs: Measurements, constants: Constants) -> Forecast:
    """Predicted step times of these runs and their 80 % intervals."""
    what = scene(runs)
    times = step_times(what, constants.columns(what.generations, list(runs.software), list(runs.recipes)))
    strange_gpu = np.array([not constants.measured(name) for name in what.generations])
    strange_software = np.array(
        [pair not in constants.seen for pair in zip(what.generations, runs.software.tolist(), strict=True)]
    )
    scatter = np.array([constants.interval.scatter.get(name, 1.0) for name in runs.software.tolist()])
    half = half_width(
        constants.interval,
        times.computing,
        what.doublings,
        what.routed,
        scatter,
        strange_gpu,
        strange_software,
        runs.work.tuning.unusual,
    )
    return Forecast(times.total, times.total * np.exp(-half), times.total * np.exp(half))
