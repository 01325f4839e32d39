"""How long predicting takes: the plan search for a 70B model, one prediction among many. One core, warm, no cache."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from hack.perf.figures import Figure, Section, Unit

from trimtab_policy import catalog
from trimtab_policy.perf import hardware, plan_space, plans, search, speed
from trimtab_policy.specs import TrainingSpec
from trimtab_policy.types import Bounds, Requirements

MODEL = catalog.model("llama3-70b")
TRAINING = TrainingSpec(sequence_length=8192, global_batch_size=1024, steps=1)
NEEDS = Requirements(gpus=Bounds(1, 1024))
TYPES = ("A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM5-141GB", "B200-SXM-180GB", "MI300X", "MI325X")
NODE = 8
AT_ONCE = 4096
"""Plans of one vectorised prediction: about as many as the search times for one type."""


def figures(repeat: int = 30) -> Section:
    """The search over six GPU types and up to 1,024 of each, and what one of its predictions costs."""
    offers = tuple(plans.Offer(catalog.gpu(name), NODE) for name in TYPES)

    def look() -> None:
        plans.forget()
        plans.options_by_type(MODEL, TRAINING, NEEDS, offers)

    found = search.table(MODEL, TRAINING, NEEDS, plan_space.gangs(NEEDS, NODE))
    placed = len(found.plan)
    some = np.linspace(0, placed - 1, AT_ONCE).astype(np.int64)
    rows, widths = found.plans.take(found.plan[some]), found.widths[found.gang[some]]
    machine = hardware.machine(offers[0].gpu, TRAINING.precision)
    each = _median(lambda: speed.step_time(found.run, rows, machine, widths), repeat) / AT_ONCE
    what = f"{len(TYPES)} types × up to {NEEDS.gpus.high:,} GPUs, {placed:,} placed plans each"
    return Section(
        "Speed",
        [
            Figure("full plan search for a 70B model", _median(look, repeat), 0.020, unit=Unit.MILLISECONDS, note=what),
            Figure("one prediction, vectorised", each, 1e-6, unit=Unit.MICROSECONDS, note=f"{AT_ONCE:,} at once"),
        ],
    )


def _median(work: Callable[[], object], repeat: int) -> float:
    """Seconds of processor time of one call, after two that warm up."""
    times: list[float] = []
    gc.collect()
    for number in range(repeat + 2):
        began = time.process_time()
        work()
        if number >= 2:
            times.append(time.process_time() - began)
    return median(times)
