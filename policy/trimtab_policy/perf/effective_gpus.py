"""What the GPUs of a gang are worth: its step time there, and with the same plan on other GPU types.

Many gangs and types are one evaluation of the time model. Whether a plan would fit in the other type's memory does not
matter: it is asked how fast the hardware is for this model, not where the job could go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trimtab_policy.perf import hardware, plan_arrays, speed
from trimtab_policy.perf.hardware import GpuRates, Software
from trimtab_policy.perf.model_flops import Array
from trimtab_policy.specs import GpuSpec, ModelSpec, ParallelPlan, TrainingSpec


class PlannedTraining(NamedTuple):
    """A training under a plan."""

    model: ModelSpec
    training: TrainingSpec
    plan: ParallelPlan
    gpus_per_node: int
    software: str


def step_seconds(gangs: Sequence[PlannedTraining], gpus: Sequence[GpuSpec]) -> Array:
    """Seconds of one optimizer step, (gangs, types); infinite where the type lacks the number format.

    On types with link domains of several nodes as if the gang lay in one, or filled those that it spans: it is asked
    what the hardware could do.
    """
    seconds = np.full((len(gangs), len(gpus)), np.inf)
    pairs = [
        (row, column)
        for row, gang in enumerate(gangs)
        for column, gpu in enumerate(gpus)
        if gang.training.precision in gpu.peak_flops
    ]
    if not pairs:
        return seconds
    rows, where = np.array(pairs).T
    run = plan_arrays.take(plan_arrays.stack([plan_arrays.work(gang.model, gang.training) for gang in gangs]), rows)
    plans = plan_arrays.columns([gang.plan for gang in gangs]).take(rows)
    widths = np.array([gang.gpus_per_node for gang in gangs], dtype=np.float64)[rows]
    machines = np.array(
        [hardware.machine(gpus[k], gangs[i].training.precision, software=gangs[i].software) for i, k in pairs]
    )
    software = np.array([hardware.software(gang.software) for gang in gangs])[rows]
    linked = np.maximum(widths, np.array([gpus[k].link_domain for _, k in pairs], dtype=np.float64))
    time = speed.step_time(run, plans, GpuRates(*machines.T), linked, Software(*software.T))
    seconds[rows, where] = time.total
    return seconds
