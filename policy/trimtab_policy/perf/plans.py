"""The plan search: for every shape of gang, the fastest way to divide a job that fits in memory.

All candidates of one (job, GPU type) are rows of one table: crossed and thinned by the launchers' rules
(`space`), thinned by memory, and only what is left is timed. Of the variants of one row (recomputation, ZeRO
stage) one that recomputes and shards no less than another that fits is dropped untimed: it cannot be faster.

A plan fits when `Memory.required` is at most the memory that the driver reports for the card. Required is what the
formulas say is allocated plus `memory.RESERVE` against fragmentation plus `memory.FRAMEWORK_BYTES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trimtab_policy.perf import hardware, memory, space, speed
from trimtab_policy.perf.columns import Array, Plans, columns, work
from trimtab_policy.perf.space import Mask, Shape, Variants
from trimtab_policy.types import (
    Bounds,
    GpuSpec,
    ModelSpec,
    ParallelPlan,
    Prediction,
    Requirements,
    TrainingSpec,
)

_GIB = float(1 << 30)


class InvalidPlan(ValueError):
    """A plan that no launcher would start for this job: the message names the rule."""


class Option(Struct, frozen=True):
    """One shape of gang with the fastest plan for it."""

    gpus: int
    nodes: int
    gpus_per_node: int
    plan: ParallelPlan
    prediction: Prediction


@lru_cache(maxsize=4096)
def options(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, gpu: GpuSpec, node_gpus: int
) -> tuple[Option, ...]:
    """For every gang shape that the requirements allow, the fastest plan that fits, by GPUs and then by speed.

    `space.shapes` says which shapes there are. Empty when nothing fits: `why_none` says why.
    """
    found = _search(model, _once(training), _relevant(requirements), gpu, node_gpus)
    return tuple(_for_steps(option, training.steps) for option in found)


def best(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, gpu: GpuSpec, nodes: int, gpus_per_node: int
) -> Option | None:
    """The fastest plan for one given gang, or None when none fits or the requirements exclude the gang."""
    if not space.admits_shape(requirements, nodes, gpus_per_node):
        return None
    found = _fastest(model, training, requirements, gpu, [(nodes, gpus_per_node)])
    return found[0] if found else None


def predict(
    model: ModelSpec,
    training: TrainingSpec,
    plan: ParallelPlan,
    gpu: GpuSpec,
    gpus_per_node: int,
    *,
    spread: float = 1.0,
) -> Prediction:
    """What to expect of one given plan, whether it fits or not.

    `spread` >= 1 divides the network's bandwidth, for placements across an oversubscribed level of it.
    Raises InvalidPlan for a plan that breaks a rule of divisibility, ValueError when the GPU lacks the precision.
    """
    check(model, training, plan, gpus_per_node)
    row = columns([plan])
    run, machine = work(model, training), hardware.machine(gpu, training.precision, spread=spread)
    seconds = speed.step_time(run, row, machine, gpus_per_node).total
    return _prediction(training, float(seconds[0]), float(memory.footprint(run, row).required[0]))


def fits(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan, gpu: GpuSpec) -> bool:
    """Whether the fullest GPU of the plan has enough memory, reserve included."""
    return bool(memory.footprint(work(model, training), columns([plan])).required[0] <= gpu.memory_bytes)


def check(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan, gpus_per_node: int) -> None:
    """Raise InvalidPlan with the first rule that the plan breaks for this job on so many GPUs per node."""
    for name in ("data", "tensor", "pipeline", "context", "expert", "micro_batch"):
        if getattr(plan, name) < 1:
            raise InvalidPlan(f"plan.{name} must be at least 1, got {getattr(plan, name)}")
    if plan.zero_stage not in range(4):
        raise InvalidPlan(f"plan.zero_stage must be 0, 1, 2 or 3, got {plan.zero_stage}")
    if gpus_per_node < 1 or plan.gpus % gpus_per_node or gpus_per_node % plan.tensor:
        raise InvalidPlan(
            f"{gpus_per_node} GPUs per node: must divide the plan's {plan.gpus} GPUs and be a multiple of its tensor"
            f" degree {plan.tensor}"
        )
    for holds, rule in space.rules(model, training, columns([plan])):
        if not holds.all():
            raise InvalidPlan(f"{plan.describe()} micro-batch {plan.micro_batch} for {model.name}: {rule}")


def why_none(model: ModelSpec, training: TrainingSpec, requirements: Requirements, gpu: GpuSpec, node_gpus: int) -> str:
    """A sentence for people: what keeps every plan of this job off this GPU type, with the nearest miss in numbers."""
    if training.precision not in gpu.peak_flops:
        return f"{gpu.name} does not support {training.precision}, only {', '.join(sorted(gpu.peak_flops))}"
    gangs = space.shapes(requirements, node_gpus)
    if not gangs:
        most = f" on at most {requirements.max_nodes} of them" if requirements.max_nodes is not None else ""
        return f"no gang of {_range(requirements.gpus)} GPUs can be made of nodes with {node_gpus} {gpu.name}{most}"
    table = space.degrees(model, training, requirements, gangs)
    choice = space.variants(requirements)
    possible = space.sensible(requirements, table, choice)
    if not possible.any():
        return (
            f"no plan for {_range(requirements.gpus)} GPUs divides {model.name} evenly: {model.layers} layers,"
            f" {model.attention_heads} heads, {model.kv_heads} key/value heads, global batch"
            f" {training.global_batch_size}, within modes {', '.join(requirements.modes)} and the degrees asked for"
        )
    needs = np.where(possible, _required(model, training, table, choice), np.inf)
    row, column = np.unravel_index(int(np.argmin(needs)), needs.shape)
    plan = _flat(table, choice, np.array([row]), np.array([column])).plan(0)
    need = needs[row, column]
    recompute = str(plan.recompute).lower()
    verdict = "which fits" if need <= gpu.memory_bytes else f"but {gpu.name} has {gpu.memory_bytes / _GIB:.0f} GiB"
    return (
        f"{model.name} needs at least {need / _GIB:.0f} GiB per GPU (reserve included), with {plan.describe()},"
        f" micro-batch {plan.micro_batch} and {recompute} recomputation on {plan.gpus} GPUs, {verdict}"
    )


@lru_cache(maxsize=4096)
def _search(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, gpu: GpuSpec, node_gpus: int
) -> tuple[Option, ...]:
    found = _fastest(model, training, requirements, gpu, space.shapes(requirements, node_gpus))
    return tuple(sorted(found, key=lambda option: (option.gpus, option.prediction.step_seconds)))


def _fastest(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, gpu: GpuSpec, gangs: Sequence[Shape]
) -> list[Option]:
    """The fastest fitting plan of each gang that has one."""
    if training.precision not in gpu.peak_flops or not gangs:
        return []
    plans, needs = _fitting(model, training, requirements, gpu, gangs)
    rows, nodes, widths = _placed(plans, gangs)
    plans, needs = plans.take(rows), needs[rows]
    machine = hardware.machine(gpu, training.precision)
    seconds = speed.step_time(work(model, training), plans, machine, widths).total
    return [
        Option(
            gpus=int(nodes[row] * widths[row]),
            nodes=int(nodes[row]),
            gpus_per_node=int(widths[row]),
            plan=plans.plan(row),
            prediction=_prediction(training, float(seconds[row]), float(needs[row])),
        )
        for row in _first_of_each(nodes, widths, seconds)
    ]


def _fitting(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, gpu: GpuSpec, gangs: Sequence[Shape]
) -> tuple[Plans, Array]:
    """Plans that fit and that no other variant of the same degrees beats for certain, and the bytes each requires."""
    table = space.degrees(model, training, requirements, gangs)
    choice = space.variants(requirements)
    needs = _required(model, training, table, choice)
    fitting = space.sensible(requirements, table, choice) & (needs <= gpu.memory_bytes)
    rows, which = np.nonzero(fitting & ~_beaten(fitting, choice))
    return _flat(table, choice, rows, which), needs[rows, which]


def _required(model: ModelSpec, training: TrainingSpec, table: Plans, choice: Variants) -> Array:
    """(n, v) bytes required by every variant of every row."""
    crossed = table._replace(zero_stage=choice.zero_stage, recompute=choice.recompute)
    return memory.footprint(work(model, training), crossed).required


def _beaten(fitting: Mask, choice: Variants) -> Mask:
    """(n, v) where another variant fits that recomputes and shards no more."""
    return np.stack([fitting[:, choice.before(v)].any(axis=1) for v in range(fitting.shape[1])], axis=1)


def _flat(table: Plans, choice: Variants, rows: NDArray[np.int64], which: NDArray[np.int64]) -> Plans:
    """Chosen variants of chosen rows as plain columns (n,)."""
    chosen = Plans(*(column[rows, 0] for column in table))
    return chosen._replace(zero_stage=choice.zero_stage[0, which], recompute=choice.recompute[0, which])


def _placed(plans: Plans, gangs: Sequence[Shape]) -> tuple[NDArray[np.int64], Array, Array]:
    """Every plan on every gang of its size whose nodes hold whole tensor groups: (rows, nodes, GPUs per node)."""
    nodes, widths = np.array(sorted(gangs, key=lambda gang: gang[0] * gang[1]), dtype=np.float64).T
    first, end = (np.searchsorted(nodes * widths, plans.gpus, side=side) for side in ("left", "right"))
    rows = np.repeat(np.arange(len(first)), end - first)
    starts = np.cumsum(end - first) - (end - first)
    gang = np.arange(len(rows)) - starts[rows] + first[rows]
    whole = widths[gang] % plans.tensor[rows] == 0
    return rows[whole], nodes[gang[whole]], widths[gang[whole]]


def _first_of_each(nodes: Array, widths: Array, seconds: Array) -> NDArray[np.int64]:
    """The fastest row of each gang; of equals the earlier, which has the smaller degrees."""
    order = np.lexsort((seconds, widths, nodes))
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (np.diff(nodes[order]) != 0) | (np.diff(widths[order]) != 0)
    return order[new]


def _prediction(training: TrainingSpec, seconds: float, required: float) -> Prediction:
    return Prediction(
        step_seconds=seconds,
        tokens_per_second=training.tokens_per_step / seconds,
        memory_bytes=round(required),
        run_seconds=seconds * training.steps,
    )


def _once(training: TrainingSpec) -> TrainingSpec:
    """Jobs that differ only in their number of steps share one search."""
    return msgspec.structs.replace(training, steps=1)


def _for_steps(option: Option, steps: int) -> Option:
    run_seconds = option.prediction.step_seconds * steps
    prediction = msgspec.structs.replace(option.prediction, run_seconds=run_seconds)
    return msgspec.structs.replace(option, prediction=prediction)


def _relevant(requirements: Requirements) -> Requirements:
    """Only what the search depends on: jobs that differ in host resources or in allowed types share one search."""
    return Requirements(
        gpus=requirements.gpus,
        max_nodes=requirements.max_nodes,
        modes=requirements.modes,
        tensor=requirements.tensor,
        pipeline=requirements.pipeline,
        context=requirements.context,
        expert=requirements.expert,
        zero_stage=requirements.zero_stage,
        recompute=requirements.recompute,
    )


def _range(bounds: Bounds) -> str:
    return str(bounds.low) if bounds.low == bounds.high else f"{bounds.low} to {bounds.high}"
