"""Where the time and the memory of one plan go, and what training with it takes: utilisation, energy, money.

Everything follows from three things that the model computes anyway: `speed.step_time` by part, `memory.footprint` by
part, and the FLOPs that the model needs (`model_flops.training_flops_per_token`).
"""

from __future__ import annotations

from msgspec import UNSET, Struct

from trimtab_policy.perf import hardware, memory, model_flops, plan_arrays, speed, uncertainty
from trimtab_policy.specs import GpuSpec, ModelSpec, ParallelPlan, Prediction, TrainingSpec

BILLION = 1e9
"""Tokens that energy and cost are told for."""


class Breakdown(Struct, frozen=True):
    """One plan on given hardware, taken apart."""

    step: dict[str, float]
    """Seconds of one step by what they are spent on; their sum is the predicted step time."""
    low: float
    """Lower end of the 80 % interval of the step time, in seconds; see `uncertainty`."""
    high: float
    memory: dict[str, float]
    """Bytes of the fullest GPU by what they are for, reserve included; their sum is what the plan requires."""
    card_bytes: int
    """What the card has."""
    host_bytes: int
    """What a rank keeps in the host's memory because of what is offloaded."""
    mfu: float
    """Model FLOPs utilisation: see `utilisation`."""
    kwh_per_billion: float
    """Energy of 10^9 tokens in kWh: see `energy`."""
    cost_per_billion: float | None
    """Price of 10^9 tokens; None where no price is known."""


def breakdown(
    model: ModelSpec,
    training: TrainingSpec,
    plan: ParallelPlan,
    gpu: GpuSpec,
    gpus_per_node: int,
    *,
    price: float | None = None,
    software: str = hardware.CURRENT,
    expected: Prediction | None = None,
    linked: int = 0,
) -> Breakdown:
    """Take a plan apart. `price` is that of one GPU-hour, in any currency.

    `expected`: what is predicted of it where that is not what the model says of the plan alone, because of what runs
    have taught or on slow cards. All parts of a step are then told in the same proportion.

    `linked`: as for `plans.predict`.

    Raises ValueError when the GPU lacks the precision.
    """
    work, rows = plan_arrays.work(model, training), plan_arrays.columns([plan])
    machine = hardware.machine(gpu, training.precision, software=software)
    together = linked or hardware.linked(gpu, gpus_per_node)
    times = speed.step_time(work, rows, machine, together, hardware.software(software))
    total = float(times.total[0])
    unsure = uncertainty.factor(
        times.computing,
        gpu,
        plan.gpus,
        together,
        software,
        routed=model.experts > 0,
        tuned=bool(work.tuning.unusual),
    )
    factor = float(unsure[0])
    seconds = expected.step_seconds if expected else total
    factor = expected.uncertainty if expected else factor
    rate = training.tokens_per_step / seconds
    hours = BILLION / rate / 3600
    return Breakdown(
        step={name: float(part[0]) * seconds / total for name, part in times._asdict().items()},
        low=seconds / factor,
        high=seconds * factor,
        memory=_memory(memory.footprint(work, rows, **hardware.kernels(software))),
        card_bytes=gpu.memory_bytes,
        host_bytes=round(float(memory.host_bytes(work, rows)[0])),
        mfu=utilisation(model, training, gpu, plan.gpus, rate),
        kwh_per_billion=energy(gpu, plan.gpus, hours),
        cost_per_billion=None if price is None else price * plan.gpus * hours,
    )


def utilisation(model: ModelSpec, training: TrainingSpec, gpu: GpuSpec, gpus: int, tokens_per_second: float) -> float:
    """Model FLOPs utilisation: the FLOP/s that the model needs, over the dense peak of the GPUs in its precision.

    Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B: recomputation is not counted. Unlike there, only the
    scores that a causal model can see are. Frozen weights need 4 FLOPs a token in place of 6.
    """
    frozen = training.adapters is not UNSET
    shape = model_flops.of(model)
    needed = model_flops.training_flops_per_token(shape, training.sequence_length, frozen=frozen) * tokens_per_second
    return float(needed) / (gpus * gpu.peak_flops[training.precision])


def energy(gpu: GpuSpec, gpus: int, hours: float) -> float:
    """kWh if every GPU drew its rated power all the time: an upper estimate for GPUs, without hosts and cooling."""
    return gpu.power_watts * gpus * hours / 1000


def _memory(found: memory.Memory) -> dict[str, float]:
    parts = {name: float(column[0]) for name, column in found._asdict().items()}
    parts |= {"workspaces": memory.WORKSPACE, "framework": memory.FRAMEWORK_BYTES}
    return parts | {"reserve": float(found.required[0]) - sum(parts.values())}
