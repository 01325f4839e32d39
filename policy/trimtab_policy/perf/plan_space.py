"""All ways to divide one job: gang shapes, degrees, schedules, and the rules that launchers hold them to.

A gang shape is nodes x GPUs per node. Degrees depend only on the total, and memory only on the degrees, so the table
is built per total and meets the shapes last. Hybrid sharding alone looks at the shape: it stays within nodes.

Where a link domain spans nodes (NVL72) a gang is there once for each share of it that may lie in one domain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from trimtab_policy.perf.plan_arrays import FULL, NONE, Array, PlanColumns, recompute_code
from trimtab_policy.specs import Mode, ModelSpec, ParallelPlan, Quantization, TrainingSpec
from trimtab_policy.types import Bounds, Requirements

Mask = NDArray[np.bool_]
Gang = tuple[int, int]
"""(nodes, GPUs per node)"""

MAX_GPUS = 4096
"""Largest gang that is considered where the user sets no maximum."""
MAX_MICRO_BATCH_TOKENS = 65536
"""A micro-batch of more tokens gains no speed any more, on any GPU of the catalogue."""
MAX_MICRO_BATCH = 16384
"""Sequences, as many as the status of a job may say."""
MIN_CONTEXT_TOKENS = 4096
"""Context parallelism leaves every rank this much of the sequence, unless the user asks for a higher degree."""


def gangs(requirements: Requirements, node_gpus: int) -> list[Gang]:
    """Every (nodes, GPUs per node) that the requirements allow on nodes with `node_gpus` GPUs, by total.

    GPUs per node: powers of two, the whole node, and the user's own minimum and maximum. In total: powers of two,
    multiples of the most that a node gives, and again the user's own. Raises ValueError for a node without GPUs.
    """
    if node_gpus < 1:
        raise ValueError(f"node_gpus must be at least 1, got {node_gpus}")
    asked = requirements.gpus_per_node
    per_node = _within(Bounds(1, node_gpus), sorted({*_powers_of_two(node_gpus), node_gpus, asked.low, asked.high}))
    return [
        (total // width, width)
        for total in _totals(requirements, node_gpus)
        for width in per_node
        if total % width == 0 and admits_gang(requirements, total // width, width)
    ]


class Linkage(NamedTuple):
    """How a gang has to lie in link domains that span nodes, in nodes; by default it is all the same."""

    segment: int = 1
    """Consecutive ranks of so many nodes lie in one domain: a group that communicates most."""
    share: int = 1
    """Every domain that it lies in holds at least so many of its nodes, whole segments."""


ANYHOW = Linkage()


def link_shares(nodes: int, domain: int) -> list[int]:
    """Nodes of the smallest share of a gang over link domains of `domain` nodes, for equal shares, largest first.

    The first is that over as few domains as can hold the gang, the last, 1, that where it lies scattered. 8 nodes over
    domains of 18 lie as 8, 4+4, 3+3+2 or 2+2+2+2, and so on: [8, 4, 2, 1].
    """
    fewest = -(-nodes // max(1, domain))
    return sorted({nodes // count for count in range(fewest, nodes + 1)}, reverse=True)


def linkage(plan: ParallelPlan, gpus_per_node: int, linked: int) -> Linkage:
    """How a gang has to lie that is as fast as predicted where `linked` GPUs of it share a link; 0: it is all the same.

    Its segments are the largest groups of ranks that the prediction takes to share a link: those of the tensor degree,
    with context, expert or data degree around it.
    """
    inner = plan.tensor * plan.context
    groups = [math.lcm(size, gpus_per_node) for size in (plan.tensor, inner, inner * plan.expert, inner * plan.data)]
    segment = max((size for size in groups if size <= linked), default=gpus_per_node)
    segment //= gpus_per_node
    share = segment * max(1, math.ceil(linked / gpus_per_node / segment))
    return Linkage(segment, share) if share > 1 else ANYHOW


def admits_gang(requirements: Requirements, nodes: int, gpus_per_node: int) -> bool:
    """Whether the requirements allow so many nodes and GPUs."""
    few_enough = requirements.max_nodes is None or nodes <= requirements.max_nodes
    of_node = requirements.gpus_per_node.admits(gpus_per_node)
    return few_enough and of_node and requirements.gpus.admits(nodes * gpus_per_node)


def table(
    model: ModelSpec,
    training: TrainingSpec,
    requirements: Requirements,
    shapes: Sequence[Gang],
    linked: Sequence[int] | None = None,
) -> PlanColumns:
    """Every plan for these gangs that keeps the rules, as columns of shape (n,), by number of GPUs.

    `linked`: GPUs of each gang that share a link; by default those of a node.
    """
    reaches = {width for _, width in shapes} if linked is None else set(linked)
    plans = _degrees(model, training, requirements, shapes, reaches)
    plans = _with_sharding(plans, requirements, sorted({width for _, width in shapes}))
    plans = _with_chunks(plans, model, training, requirements)
    if tuned := [holds for holds, _ in _tuning_rules(training, plans)]:
        plans = plans.take(np.logical_and.reduce(tuned))
    again = [NONE, FULL] if requirements.recompute is None else [recompute_code(requirements.recompute)]
    # Selective recomputation only where asked for: with fused attention there are no scores to drop, so it costs time
    # and saves nothing.
    return _crossed(plans, recompute=again)


def _degrees(
    model: ModelSpec, training: TrainingSpec, requirements: Requirements, shapes: Sequence[Gang], reaches: set[int]
) -> PlanColumns:
    """Every division of these gangs that keeps the rules, unsharded, in one chunk, without recomputation."""
    total, t, p, c = _cross(
        sorted({nodes * width for nodes, width in shapes}),
        _within(requirements.tensor, sorted({d for gpus in reaches for d in _divisors(gpus)})),
        _within(requirements.pipeline, _divisors(model.layers)),
        _contexts(training, requirements.context),
    )
    data = total / (t * p * c)
    whole = (np.floor(data) == data) & (training.global_batch_size % np.maximum(1, np.floor(data)) == 0)
    plans = _plain(data[whole], t[whole], p[whole], c[whole])
    plans = plans.take(_in_modes(plans, requirements.modes) & _kept(model, training, plans))
    plans = _crossed(plans, expert=_within(requirements.expert, _divisors(max(1, model.experts))))
    plans = plans.take(plans.data % plans.expert == 0)
    plans = _crossed(plans, micro_batch=_micro_batches(training))
    return plans.take(training.global_batch_size % (plans.data * plans.micro_batch) == 0)


def _with_sharding(plans: PlanColumns, requirements: Requirements, widths: Sequence[int]) -> PlanColumns:
    """Crossed with what is sharded, and over whom: all copies, or those of a node.

    Left to us, stage 0 is for models without copies and only for them: stage 1 stores fewer bytes and moves no more; at
    worst it waits for the weights to be gathered, where software does not gather them ahead.
    """
    free = requirements.zero_stage is None
    stages = list(filter(requirements.zero_stages.admits, range(4))) if free else [requirements.zero_stage or 0]
    nodes = [width for width in widths if width > 1] if requirements.hybrid_sharding and 3 in stages else []
    stage = np.array(stages + [3] * len(nodes), dtype=np.float64)
    node = np.array([0] * len(stages) + nodes, dtype=np.float64)
    single, copies = plans.pipeline == 1, plans.data * plans.context
    kept = (stage[:, None] <= 1) | single
    kept &= ((stage[:, None] == 0) == (copies == 1)) if free else True
    (some,) = np.nonzero(single)
    shard = node[len(stages) :, None] / plans.tensor[some]
    kept[len(stages) :, some] &= _shards(plans.take(some), shard) & (shard < copies[some])
    rows, choice = np.nonzero(kept.T)
    return plans.take(rows)._replace(zero_stage=stage[choice], shard=node[choice] / plans.tensor[rows])


def _with_chunks(
    plans: PlanColumns, model: ModelSpec, training: TrainingSpec, requirements: Requirements
) -> PlanColumns:
    """Crossed with the chunks of a pipeline rank."""
    chunks = np.array(_within(requirements.virtual, _divisors(model.layers)), dtype=np.float64)[:, None]
    kept = _interleaves(model, training, plans, chunks)
    rows, choice = np.nonzero(kept.T)
    return plans.take(rows)._replace(virtual=chunks[choice, 0])


def rules(model: ModelSpec, training: TrainingSpec, plans: PlanColumns) -> Iterator[tuple[Mask, str]]:
    """Every rule: the rows that keep it, and the rule in words."""
    yield from _division_rules(model, training, plans)
    yield from _tuning_rules(training, plans)


def _division_rules(model: ModelSpec, training: TrainingSpec, plans: PlanColumns) -> Iterator[tuple[Mask, str]]:
    """Rules of divisibility.

    Megatron-Core (training/arguments.py, transformer/transformer_config.py) and torchtitan (models/*/parallelize.py,
    distributed/{parallel_dims,pipeline_parallel}.py).
    """
    t, p, c, e = plans.tensor, plans.pipeline, plans.context, plans.expert
    s, batch = training.sequence_length, training.global_batch_size
    for count, name in (
        (model.attention_heads, "attention heads"),
        (model.kv_heads, "key/value heads"),
        (model.ffn_hidden_size, "columns of the feed-forward block"),
    ):
        yield count % t == 0, f"the tensor degree must divide the {count} {name}"
    yield model.layers % p == 0, f"the pipeline degree must divide the {model.layers} layers"
    yield s % (t * np.where(c > 1, 2 * c, 1)) == 0, f"tensor x 2 context must divide the sequence length of {s}"
    yield batch % (plans.data * plans.micro_batch) == 0, f"data x micro_batch must divide the global batch of {batch}"
    yield max(1, model.experts) % e == 0, f"the expert degree must divide the {model.experts} experts"
    yield plans.data % e == 0, "the expert degree must divide the data degree"
    yield (plans.zero_stage <= 1) | (p == 1), "ZeRO stages 2 and 3 exclude pipeline parallelism"
    yield (
        _interleaves(model, training, plans, plans.virtual),
        "interleaving needs a pipeline whose degree divides the micro-batches, and whole layers in every chunk",
    )
    yield (
        (plans.shard == 0) | _shards(plans, plans.shard) & (plans.zero_stage == 3),
        "hybrid sharding is for ZeRO stage 3 without expert parallelism, over a multiple of the context degree that"
        " divides data x context",
    )


def _tuning_rules(training: TrainingSpec, plans: PlanColumns) -> Iterator[tuple[Mask, str]]:
    """What launchers cannot do with quantized or offloaded weights.

    Quantized matrices are sharded whole layers at a time (torchtune, PEFT with FSDP or DeepSpeed), by nobody within a
    layer or over stages; those of LLM.int8() not at all. Adapters beside weights in 16 bit go with all degrees
    (Megatron-Bridge).
    """
    quantization = Quantization.NONE if training.adapters is UNSET else training.adapters.quantization
    if quantization is not Quantization.NONE:
        divided = plans.tensor * plans.pipeline * plans.context * plans.expert
        yield (
            divided == 1,
            f"weights in {quantization} are divided over data ranks alone: no launcher does it otherwise",
        )
    if quantization is Quantization.INT8:
        yield plans.zero_stage < 3, "weights in INT8 cannot be sharded: ZeRO stage 2 at most"
    if training.offload is UNSET:
        return
    if training.offload.weights:
        alone = plans.data * plans.context == 1
        yield (plans.zero_stage == 3) | alone, "weights that the host keeps need ZeRO stage 3, or a single copy"
    if training.offload.activations or training.offload.weights:
        yield plans.pipeline == 1, "weights and activations that the host keeps exclude pipeline parallelism"


def _interleaves(model: ModelSpec, training: TrainingSpec, plans: PlanColumns, chunks: Array) -> Mask:
    """Whether the (interleaved) schedule exists: one chunk, or chunks of whole layers and full rounds of the pipeline.

    Broadcasts `chunks` against the plans.
    """
    p = plans.pipeline
    rounds = training.global_batch_size / (plans.data * plans.micro_batch) % p == 0
    possible: Mask = (chunks == 1) | (model.layers % (p * chunks) == 0) & rounds & (p > 1)
    return possible


def _shards(plans: PlanColumns, shard: Array) -> Mask:
    """Whether groups of `shard` ranks can share one copy. Broadcasts `shard` against the plans."""
    alone = np.maximum(shard, 1)
    whole: Mask = (shard % plans.context == 0) & (plans.data * plans.context % alone == 0)
    possible: Mask = (shard > 1) & whole & (plans.expert == 1)
    return possible


def _kept(model: ModelSpec, training: TrainingSpec, plans: PlanColumns) -> Mask:
    kept: Mask = np.logical_and.reduce([holds for holds, _ in _division_rules(model, training, plans)])
    return kept


def _powers_of_two(limit: int) -> list[int]:
    return [1 << k for k in range(limit.bit_length()) if 1 << k <= limit]


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _within(bounds: Bounds, values: Sequence[int]) -> list[int]:
    return [value for value in values if bounds.admits(value)]


def _totals(requirements: Requirements, node_gpus: int) -> list[int]:
    low, high = requirements.gpus.low, requirements.gpus.high
    node_gpus = min(node_gpus, requirements.gpus_per_node.high)
    limit = min(high, max(MAX_GPUS, low), (requirements.max_nodes or MAX_GPUS) * node_gpus)
    return _within(
        Bounds(max(1, low), limit), sorted({low, high, *_powers_of_two(limit), *range(node_gpus, limit + 1, node_gpus)})
    )


def _contexts(training: TrainingSpec, bounds: Bounds) -> list[int]:
    longest = max(1, training.sequence_length // MIN_CONTEXT_TOKENS, bounds.low)
    return _within(bounds, sorted({*_powers_of_two(longest), bounds.low}))


def _micro_batches(training: TrainingSpec) -> list[int]:
    most = max(1, min(MAX_MICRO_BATCH, MAX_MICRO_BATCH_TOKENS // training.sequence_length))
    return _powers_of_two(min(most, training.global_batch_size))


def _cross(*axes: Sequence[int]) -> tuple[Array, ...]:
    """The Cartesian product as flat columns, the last axis fastest."""
    mesh = np.meshgrid(*(np.asarray(axis, dtype=np.float64) for axis in axes), indexing="ij")
    return tuple(column.ravel() for column in mesh)


def _plain(data: Array, tensor: Array, pipeline: Array, context: Array) -> PlanColumns:
    """These degrees, one sequence at a time, with nothing sharded, interleaved or recomputed."""
    ones, zeros = np.ones_like(data), np.zeros_like(data)
    return PlanColumns(
        data,
        tensor,
        pipeline,
        virtual=ones,
        context=context,
        expert=ones,
        micro_batch=ones,
        zero_stage=zeros,
        shard=zeros,
        recompute=zeros,
        sequence_parallel=ones,
    )


def _crossed(table: PlanColumns, **choice: Sequence[int]) -> PlanColumns:
    """The table once per value of one column."""
    ((name, values),) = choice.items()
    repeated = PlanColumns(*(np.repeat(column, len(values)) for column in table))
    return repeated._replace(**{name: np.tile(np.asarray(values, dtype=np.float64), len(table.data))})


def _in_modes(plans: PlanColumns, modes: Sequence[Mode]) -> Mask:
    """Rows whose mode (`ParallelPlan.mode`) is allowed."""
    copied = plans.tensor * plans.pipeline * plans.context == 1
    single = plans.data == 1
    allowed: Mask = np.zeros(copied.shape, dtype=np.bool_)
    for mode, rows in ((Mode.DATA, copied), (Mode.MODEL, ~copied & single), (Mode.HYBRID, ~copied & ~single)):
        if mode in modes:
            allowed |= rows
    return allowed
