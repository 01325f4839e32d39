"""One way to train, measured: seconds of a step, memory, and for one of them the trace.

The first steps warm up (kernels are chosen, the optimizer gets its states) and their memory is watched; the next ones
are timed with nothing watching; the trace is of steps of its own, since to record takes time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from msgspec import Struct
from torch import Tensor

from trimtab_lab.profiling import trace
from trimtab_lab.profiling.trace import Operator
from trimtab_lab.profiling.training import Trainer, batch
from trimtab_policy.specs import ModelSpec, ParallelPlan, TrainingSpec

WARM_UP = 2
"""Steps. The second is the first with the optimizer's states: its memory is that of all that follow."""
RECORDED = 2
"""Steps of the trace."""

Advance = Callable[[], None]
"""Called after every step."""


class MeasuredPlan(Struct, frozen=True):
    """Some steps of one way to train."""

    step_seconds: float
    """Median."""
    steps: tuple[float, ...]
    """Seconds of each."""
    tokens_per_second: float
    allocated: int
    """Bytes that torch had allocated on the device at once, at most."""
    states: int
    """Of them, bytes of weights, gradients and optimizer, which stay."""
    first_loss: float
    last_loss: float


class Recorded(Struct, frozen=True):
    """What a trace says of a step; seconds are brought to those of the steps that were timed."""

    classes: dict[str, float]
    operators: tuple[Operator, ...]
    kernels: tuple[Operator, ...]


class ProfiledTraining(NamedTuple):
    """What is trained, where; how is the plan's business."""

    model: ModelSpec
    training: TrainingSpec
    """Its `steps` are those that are timed."""
    device: torch.device
    seed: int = 0


def measure(case: ProfiledTraining, plan: ParallelPlan, advance: Advance) -> MeasuredPlan | None:
    """Warm up and time some steps; None where the device has too little memory, which is then free again.

    Raises ValueError for what cannot be trained: see `Trainer`.
    """
    try:
        return _measure(case, plan, advance)
    except RuntimeError as error:
        if not _out_of_memory(error):
            raise
    finally:
        clear(case.device)
    return None


def record(case: ProfiledTraining, plan: ParallelPlan, step_seconds: float, file: Path, advance: Advance) -> Recorded:
    """Write a chrome trace of some steps, and sum it up for steps that take so long when nobody watches."""
    trainer, tokens = Trainer(case.model, case.training, plan, case.device, case.seed), _tokens(case)
    for _ in range(WARM_UP):
        timed(trainer, tokens, advance)
    with trace.recorder(case.device) as recorded:
        watched = sum(timed(trainer, tokens, advance).seconds for _ in range(RECORDED)) / RECORDED
    recorded.export_chrome_trace(str(file))
    scale = step_seconds / watched
    found = trace.scaled(trace.operators(recorded, case.device, RECORDED), scale)
    kernels = trace.scaled(trace.kernels(recorded, RECORDED), scale)
    return Recorded(trace.by_class(found, step_seconds), found, kernels)


class OptimizerStep(NamedTuple):
    """One optimizer step."""

    seconds: float
    loss: float


def timed(trainer: Trainer, tokens: Tensor, advance: Advance) -> OptimizerStep:
    """One step. A GPU has done all of it by then: its loss becomes a number behind all kernels of the step."""
    began = perf_counter()
    loss = trainer.step(tokens)
    seconds = perf_counter() - began
    advance()
    return OptimizerStep(seconds, loss)


def clear(device: torch.device) -> None:
    """Give back what is allocated but not in use."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _measure(case: ProfiledTraining, plan: ParallelPlan, advance: Advance) -> MeasuredPlan:
    with trace.watching(case.device) as watched:
        tokens = _tokens(case)
        trainer = Trainer(case.model, case.training, plan, case.device, case.seed)
        first = [timed(trainer, tokens, advance) for _ in range(WARM_UP)]
    steps = [timed(trainer, tokens, advance) for _ in range(case.training.steps)]
    middle = median(step.seconds for step in steps)
    return MeasuredPlan(
        step_seconds=middle,
        steps=tuple(step.seconds for step in steps),
        tokens_per_second=case.training.tokens_per_step / middle,
        allocated=watched.peak,
        states=trainer.state_bytes,
        first_loss=first[0].loss,
        last_loss=steps[-1].loss,
    )


def _tokens(case: ProfiledTraining) -> Tensor:
    return batch(case.model, case.training, case.seed)


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "not enough memory" in str(error)
