"""The vectorised search: of thousands of plans for a job the fastest per gang, on several GPU types at once.

Degrees and bytes do not depend on the GPU type: the table of plans, and what each requires, is made once. The time of a
plan is bounded from below by the work of its layers, divided without loss over pipeline ranks and copies, the bubble of
its schedule, and the transfers between its stages at the speed that two of them have. These have few distinct values
(tensor, context and expert degree, micro-batch, recomputation), so that the bound of a plan costs a look-up. Plans are
timed in two rounds: first those with the least bound of their gang, then those whose bound is not above the best time
of the first round. The others cannot win: the result is that of timing them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.perf import hardware, memory, plan_space, speed
from trimtab_policy.perf.hardware import GpuRates, Software
from trimtab_policy.perf.plan_arrays import Array, PlanColumns, Work, work
from trimtab_policy.perf.plan_space import Gang, Mask
from trimtab_policy.perf.speed import StepTime
from trimtab_policy.specs import ModelSpec, TrainingSpec
from trimtab_policy.types import Requirements

Rows = NDArray[np.int64]

EXACT = 1 - 1e-9
"""Keeps a bound below the time that it bounds, whatever the order of their roundings."""


class PlanTable(NamedTuple):
    """Every plan of a job (n,), and every gang that it may run on: pairs (m,), by gang."""

    run: Work
    software: Software
    plans: PlanColumns
    required: Array
    """(n,) bytes of the fullest GPU, reserve included."""
    plan: Rows
    """(m,) which plan"""
    gang: Rows
    """(m,) on which gang"""
    nodes: Array
    """(g,) nodes of each gang"""
    widths: Array
    """(g,) GPUs that it uses of each node"""
    linked: Array
    """(g,) GPUs of it that share a link"""


class PlanChoice(NamedTuple):
    """Pairs of a table on some of k machines: columns (c,), by machine, then gang."""

    machine: Rows
    pair: Rows
    seconds: Array
    computing: Array
    """Share of those that is spent computing."""

    def take(self, rows: Rows) -> PlanChoice:
        """These rows of it."""
        return PlanChoice(self.machine[rows], self.pair[rows], self.seconds[rows], self.computing[rows])


def table(
    model: ModelSpec,
    training: TrainingSpec,
    requirements: Requirements,
    gangs: Sequence[Gang],
    room: float = np.inf,
    linked: Sequence[int] | None = None,
) -> PlanTable:
    """All plans of the job that the rules allow on these gangs and that require at most `room` bytes.

    What is offloaded has to find room in the memory that pods ask for where they ask for some
    (`Requirements.memory_per_gpu`): that is what is kept for them on a node.

    `linked`: GPUs of each gang that share a link; by default those of a node.
    """
    run, plans = work(model, training), plan_space.table(model, training, requirements, gangs, linked)
    required = memory.footprint(run, plans, **hardware.kernels(requirements.software)).required
    fits = required <= room
    if run.tuning.offloads and requirements.memory_per_gpu:
        fits &= memory.host_bytes(run, plans) <= requirements.memory_per_gpu
    plans = plans.take(fits)
    nodes, widths = np.array(gangs, dtype=np.float64).reshape(-1, 2).T
    together = widths if linked is None else np.array(linked, dtype=np.float64)
    plan, gang = _placed(plans, gangs, together)
    software = hardware.software(requirements.software)
    return PlanTable(run, software, plans, required[fits], plan, gang, nodes, widths, together)


def fitting(found: PlanTable, machines: Sequence[GpuRates], room: Array) -> PlanChoice:
    """Every pair on every machine whose `room` (k,) in bytes it fits in, timed."""
    machine, pair = _fitting(found, room)
    time = _time(found, machines, machine, pair)
    return PlanChoice(machine, pair, time.total, time.computing)


def fastest(found: PlanTable, machines: Sequence[GpuRates], room: Array) -> PlanChoice:
    """Of the pairs that fit, the fastest of each gang on each machine; of equals the one with the smaller degrees."""
    fits = (found.required <= room[:, None])[:, found.plan]
    least = np.where(fits, bounds(found, machines), np.inf)
    groups = _Groups(found.gang)
    # Stages 2 and 3 move parameters with every micro-batch, which the bound leaves out: they have seeds of their own.
    heavy = (found.plans.zero_stage >= 2)[found.plan]
    seeds = groups.least(np.where(heavy, np.inf, least)) | groups.least(np.where(heavy, least, np.inf))
    times, slowed, computing = np.full((3, *fits.shape), np.inf)
    time = _time(found, machines, *np.nonzero(seeds))
    times[seeds], slowed[seeds] = time.total, time.total / (time.total - time.stragglers)
    computing[seeds] = time.computing
    # Stragglers slow all plans of a gang alike.
    rest = fits & ~seeds & (least * groups.minimum(slowed) <= groups.minimum(times))
    time = _time(found, machines, *np.nonzero(rest))
    times[rest], computing[rest] = time.total, time.computing
    machine, pair = groups.first(groups.least(times))
    return PlanChoice(machine, pair, times[machine, pair], computing[machine, pair])


def bounds(found: PlanTable, machines: Sequence[GpuRates]) -> Array:
    """(k, m) seconds that no plan can beat: layers, output layer, bubble and transfers, without data parallelism."""
    plans = found.plans
    kinds, kind = _kinds(plans)
    reaches, reach = np.unique(found.linked, return_inverse=True)
    body, head, transfer = _work(found, kinds, machines, reaches)
    rounds = found.run.batch / (plans.data * plans.micro_batch)
    stages = (rounds + (plans.pipeline - 1) / plans.virtual) / plans.pipeline
    transfers = np.where(plans.pipeline > 1, rounds * plans.virtual + plans.pipeline - 1, 0.0)
    cell = kind[found.plan] * len(reaches) + reach[found.gang]
    times: Array = body[:, cell] * stages[found.plan]
    # Balanced stages share the output layer in effect: the last one has fewer layers for it.
    share = plans.pipeline if found.software.balanced else np.ones_like(plans.pipeline)
    times += head[:, cell] * (rounds / share)[found.plan]
    times += transfer[:, cell] * transfers[found.plan]
    return times * EXACT


class _Groups:
    """Pairs (m,) of one gang, which follow each other; values are (k, m), a machine a row."""

    def __init__(self, gang: Rows) -> None:
        new = np.diff(gang, prepend=-1) != 0
        self.starts = np.flatnonzero(new)
        self.group = np.cumsum(new) - 1

    def minimum(self, values: Array) -> Array:
        """The least value of its group, for every pair."""
        if not values.shape[1]:
            return values
        return np.minimum.reduceat(values, self.starts, axis=1).take(self.group, axis=1)

    def least(self, values: Array) -> Mask:
        """Pairs that have the least value of their group, unless it is infinite."""
        found: Mask = np.isfinite(values) & (values == self.minimum(values))
        return found

    def first(self, chosen: Mask) -> tuple[Rows, Rows]:
        """(machine, pair) of the first chosen one of each group."""
        machine, pair = np.nonzero(chosen)
        new: Mask = np.diff(machine * (len(self.starts) + 1) + self.group[pair], prepend=-1) != 0
        return machine[new], pair[new]


def _placed(plans: PlanColumns, gangs: Sequence[Gang], linked: Array) -> tuple[Rows, Rows]:
    """Every plan on every gang of its size, as pairs of (plan, gang), by gang.

    A node holds whole tensor groups, or a link domain does that consist of whole nodes; groups that share one copy are
    those of a node.
    """
    shapes = np.array(gangs, dtype=np.float64).reshape(-1, 2)
    begin, end = (np.searchsorted(plans.gpus, shapes.prod(axis=1), side=side) for side in ("left", "right"))
    gang = np.repeat(np.arange(len(shapes)), end - begin)
    plan = np.arange(len(gang)) - np.repeat(np.cumsum(end - begin) - end, end - begin)
    width, tensor, shard = shapes[gang, 1], plans.tensor[plan], plans.shard[plan]
    whole = (width % tensor == 0) | (tensor % width == 0) & (linked[gang] % tensor == 0)
    fits = whole & ((shard == 0) | (shard * tensor == width))
    return plan[fits], gang[fits]


def _fitting(found: PlanTable, room: Array) -> tuple[Rows, Rows]:
    """(machine, pair) of all that fits."""
    machine, pair = np.nonzero((found.required <= room[:, None])[:, found.plan])
    return machine, pair


def _time(found: PlanTable, machines: Sequence[GpuRates], machine: Rows, pair: Rows) -> StepTime:
    """(c,) step times."""
    each = GpuRates(*(np.array(field, dtype=np.float64)[machine] for field in zip(*machines, strict=True)))
    plans, linked = found.plans.take(found.plan[pair]), found.linked[found.gang[pair]]
    return speed.step_time(found.run, plans, each, linked, found.software)


def _kinds(plans: PlanColumns) -> tuple[PlanColumns, Rows]:
    """Plans of one copy and one stage that differ in a layer's work, and which of them (n,) each plan has."""
    code = np.zeros_like(plans.tensor)
    for column in (plans.tensor, plans.context, plans.expert, plans.micro_batch, plans.recompute):
        code = code * (column.max(initial=0) + 1) + column
    _, first, kind = np.unique(code, return_index=True, return_inverse=True)
    ones, zeros = np.ones(len(first)), np.zeros(len(first))
    alone = plans.take(first)._replace(data=ones, pipeline=ones, virtual=ones, zero_stage=zeros, shard=zeros)
    return alone, kind


def _work(
    found: PlanTable, kinds: PlanColumns, machines: Sequence[GpuRates], reaches: Array
) -> tuple[Array, Array, Array]:
    """Seconds of one micro-batch on one copy, (k, kinds x reaches): all layers, what the last stage adds, one transfer.

    A pipeline of two stages tells them apart: its bubble is that of its layers alone. Where its two stages share no
    link, neither do those of any longer one.
    """
    rows = np.repeat(np.arange(len(kinds.data)), len(reaches))
    halves = kinds.take(rows)._replace(pipeline=np.full(len(rows), 2.0))
    each = GpuRates(*(np.array([field], dtype=np.float64).T for field in zip(*machines, strict=True)))
    run = found.run
    # Two stages may meet over the network where a single one, of half as many GPUs, does not.
    alone = found.software._replace(contention=0.0, far_wait=0.0, balanced=0.0)
    time = speed.step_time(run, halves, each, np.tile(reaches, len(kinds.data)), alone)
    rounds = run.batch / halves.micro_batch
    head = (time.compute + time.layer_communication) / rounds - time.bubble
    body = time.bubble * run.shape.layers / np.ceil(run.shape.layers / 2)
    return body, head, time.pipeline_communication / (rounds + 1)
