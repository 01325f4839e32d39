"""How long the plan search takes: a 70B model on six GPU types, gangs of any shape up to 1,024 GPUs.

The job was never searched before; modules, catalogue and constants are loaded. Time is CPU time of the process, whose
arithmetic keeps to one core. A global batch with many divisors makes the plan space several times larger.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from hack.bench.percentiles import Spread, spread
from msgspec import Struct

from trimtab_policy import catalog
from trimtab_policy.perf import hardware, memory, plan_space, plans, search, speed
from trimtab_policy.perf.plan_arrays import Array, PlanColumns, work
from trimtab_policy.specs import TrainingSpec
from trimtab_policy.types import Bounds, Requirements

GPUS = ("A100-SXM4-40GB", "A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM5-141GB", "L40S", "MI300X")
NODE_GPUS = 8
MODEL = catalog.model("llama3-70b")
BATCHES = (1024, 960)


class Searches(Struct):
    """Of one job; CPU milliseconds unless it says otherwise."""

    batch: int
    plans: int
    """That fit, counted on every gang and GPU type."""
    all_types: Spread
    one_type: Spread
    one_gang: Spread
    front: Spread
    """Of one type."""
    prediction: Spread
    """Memory and time of one plan of thousands, in CPU microseconds."""


def measure(largest: int, repeat: int) -> list[Searches]:
    """Searches up to so many GPUs, so often each."""
    return [_searches(TrainingSpec(8192, batch, 1), Requirements(gpus=Bounds(1, largest)), repeat) for batch in BATCHES]


def _searches(training: TrainingSpec, need: Requirements, repeat: int) -> Searches:
    gpus = [catalog.gpu(name) for name in GPUS]
    offers = tuple(plans.Offer(gpu, NODE_GPUS) for gpu in gpus)
    found = search.table(MODEL, training, need, plan_space.gangs(need, NODE_GPUS))
    fitting = found.required[found.plan] <= np.array([[gpu.memory_bytes] for gpu in gpus])
    nodes = max(1, need.gpus.high // NODE_GPUS)
    rows = found.plans.take(found.plan)
    return Searches(
        batch=training.global_batch_size,
        plans=int(fitting.sum()),
        all_types=_cost(lambda: plans.options_by_type(MODEL, training, need, offers), repeat),
        one_type=_cost(lambda: plans.options(MODEL, training, need, *offers[2]), repeat),
        one_gang=_cost(lambda: plans.best(MODEL, training, need, gpus[2], nodes, NODE_GPUS), repeat),
        front=_cost(lambda: plans.front(MODEL, training, need, *offers[2]), repeat),
        prediction=_cost(lambda: _predict(training, rows, found.widths[found.gang]), repeat, 1e6 / len(found.plan)),
    )


def _predict(training: TrainingSpec, rows: PlanColumns, widths: Array) -> None:
    run = work(MODEL, training)
    memory.footprint(run, rows)
    speed.step_time(run, rows, hardware.machine(catalog.gpu(GPUS[2]), training.precision), widths)


def _cost(action: Callable[[], object], repeat: int, scale: float = 1e3) -> Spread:
    """CPU seconds x scale of an action that remembers nothing of the last time."""
    return spread([scale * _seconds(action) for _ in range(repeat)])


def _seconds(action: Callable[[], object]) -> float:
    plans.forget()
    began = time.process_time()
    action()
    return time.process_time() - began
