"""What the performance model says of a step that was measured, part by part.

It is asked about plain PyTorch in eager mode on one device. Two numbers of memory are kept apart, as in `perf.memory`:
here it is what the allocator hands out, without reserve and driver.
"""

from __future__ import annotations

from msgspec import Struct

from trimtab_lab.profiling import trace
from trimtab_policy.perf import hardware, memory, speed, uncertainty
from trimtab_policy.perf.plan_arrays import columns, work
from trimtab_policy.specs import GpuSpec, ModelSpec, ParallelPlan, TrainingSpec

SOFTWARE = "torchtitan-eager"
"""The measured software that is nearest to plain training in PyTorch."""

STEP, MEMORY = "step", "memory"


class PredictedParts(Struct, frozen=True):
    """Of one plan."""

    step_seconds: float
    low: float
    """Ends of the 80 % interval of the step."""
    high: float
    allocated: int
    """Bytes."""
    step: dict[str, float]
    """Seconds by part: compute, optimizer, fixed."""
    memory: dict[str, float]
    """Bytes by part: states (weights, gradients, optimizer), activations (with logits and loss), workspaces."""


class ComparedPart(Struct, frozen=True):
    """One line of the comparison: seconds, or bytes."""

    of: str
    """STEP or MEMORY."""
    name: str
    measured: float
    predicted: float
    ratio: float
    """Measured over predicted."""


def predict(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan, gpu: GpuSpec) -> PredictedParts:
    """Step and memory of a plan for one device. Raises ValueError when it lacks the precision."""
    job, row = work(model, training), columns([plan])
    on_cpu = gpu.architecture == "CPU"
    # GPT-2's odd vocabulary is left as it is, which costs matrix units dearly; libraries for CPUs pack operands anyway.
    software = hardware.software(SOFTWARE)._replace(pads_vocabulary=float(on_cpu))
    times = speed.step_time(job, row, hardware.machine(gpu, training.precision, software=SOFTWARE), 1, software)
    unsure = float(uncertainty.factor(times.computing, gpu, 1, 1, SOFTWARE)[0])
    found = memory.footprint(job, row, loss_bytes=hardware.facts(SOFTWARE).loss_bytes)
    held = {
        "states": float(found.states[0]),
        "activations": float((found.activations + found.logits + found.update)[0]),
        "workspaces": 0.0 if on_cpu else memory.WORKSPACE,
    }
    total = float(times.total[0])
    spent = {name: float(getattr(times, name)[0]) for name in ("compute", "optimizer", "fixed")}
    return PredictedParts(total, total / unsure, total * unsure, round(sum(held.values())), spent, held)


def parts(
    predicted: PredictedParts, step_seconds: float, classes: dict[str, float], allocated: int, states: int
) -> tuple[ComparedPart, ...]:
    """The same parts as they were measured, beside what was predicted; `classes` as of `trace.by_class`."""
    optimizer, fixed = classes.get(trace.OPTIMIZER, 0.0), classes.get(trace.FRAMEWORK, 0.0)
    spent = {"compute": step_seconds - optimizer - fixed, "optimizer": optimizer, "fixed": fixed}
    held = {"states": states, "activations": allocated - states}
    expected = {"states": predicted.memory["states"]}
    expected["activations"] = predicted.allocated - expected["states"]
    return (
        *(_part(STEP, name, spent[name], predicted.step[name]) for name in spent),
        _part(STEP, "total", step_seconds, predicted.step_seconds),
        *(_part(MEMORY, name, held[name], expected[name]) for name in held),
        _part(MEMORY, "total", allocated, predicted.allocated),
    )


def _part(of: str, name: str, measured: float, predicted: float) -> ComparedPart:
    return ComparedPart(of, name, measured, predicted, measured / predicted)
