"""Bytes of the fullest GPU under a plan: states, activations, what gathering needs, and the framework.

Notation as in `model_flops`; t tensor, p pipeline, c context, e expert and D data degree, b micro-batch, B global
batch, m = B/(D b) micro-batches a step, v chunks of a rank in the interleaved schedule. Attention is fused
(FlashAttention: the s x s scores are never stored) and there is no dropout unless said otherwise. Formulas:

- states per parameter: Megatron-LM, docs/user-guide/features/dist_optimizer.md (bf16 6+12/d, fp16 4+16/d, fp32 8+8/d);
  ZeRO-3 keeps one fp32 copy that is the master weight as well: Rajbhandari et al. 2020, arXiv 1910.02054, section 5.
  The fp32 copy of fp16 gradients lives only while the optimizer steps, when activations are gone
- activations: Korthikanti et al. 2022, arXiv 2205.05198, table 2 and equations 2 to 5, with their terms for q, k, v and
  the feed-forward block kept apart so that grouped-query, latent, gated and expert layers have their own
- micro-batches in flight: Narayanan et al. 2021, arXiv 2104.04473, section 2.2

Two numbers matter and are kept apart: `allocated` is what torch.cuda.max_memory_allocated reports; `required` is what
a card must have so that the run is safe, with the context of the driver, collective buffers and fragmentation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trimtab_policy.perf import model_flops as shapes
from trimtab_policy.perf.model_flops import ModelShape
from trimtab_policy.perf.plan_arrays import FULL, SELECTIVE, Array, Number, PlanColumns, Work

WORKSPACE = 3 * 2.0**25
"""32 MiB for cuBLAS on the forward and on the backward thread, as much for Transformer Engine: the default on Hopper,
and what the golden values of Megatron-LM hold beyond the states (71 MB on A100, 101 MB on H100)."""

IN_PLACE, VOCABULARY_PARALLEL, PLAIN = 0.0, 4.0, 10.0
"""Bytes that a loss adds to each logit in compute precision: none where its gradient takes the logits' place (those of
flash-attn and Liger); an fp32 softmax in Megatron-Core's vocab_parallel_cross_entropy, forward and backward; an fp32
log-softmax with the gradients of it and of its input in torch.nn.functional.cross_entropy."""

FRAMEWORK_BYTES = 2.5e9
"""CUDA context (1.1 GB on V100, 1.6 GB on A100: BLOOM chronicles) and NCCL's channel buffers."""

RESERVE = 0.10
"""Held back, as a fraction of what is allocated, for cached blocks that do not fit the next request (fragmentation).

The formulas meet allocator readings within 5 % (Megatron-LM's golden values): the reserve is twice that. Published runs
left no less than 0.13 (llm-foundry's MPT-3B, 3 x 8192 tokens on H100-80GB; next 0.16 and 0.17), so none of them is
refused. Readings of nvidia-smi and of reserved bytes, which count cached blocks, are met by `required` within 12 % on
average; DeepSpeed's lie above it (allocated + 8.5 GB meets those of BLOOM within 5 %: communication buckets beside the
rest). With expandable segments, as our launchers set them, little is lost to caching.
"""


class Memory(NamedTuple):
    """Bytes of the fullest GPU by what they are for; columns of shape (n,)."""

    weights: Array
    gradients: Array
    optimizer: Array
    gathered: Array
    """Layers whose shards are gathered at one time under ZeRO-3."""
    activations: Array
    logits: Array
    """With the loss, and the final norm before them."""
    update: Array
    """What the optimizer's step needs beyond the activations that it comes after: fp32 copies of fp16 gradients."""

    @property
    def states(self) -> Array:
        """What stays between two steps."""
        return self.weights + self.gradients + self.optimizer

    @property
    def allocated(self) -> Array:
        """Peak of torch.cuda.max_memory_allocated."""
        return self.states + self.gathered + self.activations + self.logits + self.update + WORKSPACE

    @property
    def required(self) -> Array:
        """What the card must have: allocated with the reserve for fragmentation, and the framework's own bytes."""
        return self.allocated * (1 + RESERVE) + FRAMEWORK_BYTES


def footprint(
    work: Work,
    plans: PlanColumns,
    *,
    fused_attention: Number = 1.0,
    loss_bytes: Number = VOCABULARY_PARALLEL,
    dropout: Number = 0.0,
) -> Memory:
    """Memory of the fullest GPU of each plan. `fused_attention` and `dropout` are 1 or 0, `loss_bytes` as above.

    Either end of the pipeline holds one vocabulary matrix (a tied one is copied). The first stage has the most
    micro-batches in flight, the last one the logits: the fuller of the two counts. With p = 1 they are one GPU.
    """
    layer = layer_activations(work, plans, fused_attention=fused_attention, dropout=dropout)
    logits = _logits(work, plans, loss_bytes)
    first_logits = np.where(plans.pipeline == 1, logits, 0.0)
    first = _stage_activations(work, plans, layer, first_logits, last=False)
    last = _stage_activations(work, plans, layer, logits, last=True)
    at_end = last + logits > first + first_logits
    activations, logits = np.where(at_end, last, first), np.where(at_end, logits, first_logits)
    return _with_states(work, plans, activations, logits)


def last_stage(
    work: Work,
    plans: PlanColumns,
    *,
    fused_attention: Number = 1.0,
    loss_bytes: Number = VOCABULARY_PARALLEL,
    dropout: Number = 0.0,
) -> Memory:
    """Memory of the last pipeline stage, whose figures training logs show; arguments as of `footprint`."""
    layer = layer_activations(work, plans, fused_attention=fused_attention, dropout=dropout)
    logits = _logits(work, plans, loss_bytes)
    activations = _stage_activations(work, plans, layer, logits, last=True)
    return _with_states(work, plans, activations, logits)


def _with_states(work: Work, plans: PlanColumns, activations: Array, logits: Array) -> Memory:
    gathered = _gathered(work, plans)
    weights, gradients, optimizer, copies = _states(work, plans)
    update = np.maximum(copies - activations - logits - gathered, 0.0)
    return Memory(weights, gradients, optimizer, gathered, activations, logits, update)


def layer_activations(work: Work, plans: PlanColumns, *, fused_attention: Number = 1.0, dropout: Number = 0.0) -> Array:
    """Bytes that one micro-batch leaves in an average layer for its backward pass, per GPU (a recomputed one: briefly).

    For a plain GPT layer with dropout this is Korthikanti's s b h (10 + 24/t + 5 a s/(h t)), the 10 divided by t under
    sequence parallelism, the last term only where scores are stored. Experts are taken to be evenly loaded, as the
    auxiliary loss makes them.
    """
    shape, size = work.shape, work.format.activation
    crossing = 1 + shape.cross_layers / shape.layers
    # Inputs of each norm and of the product behind it; a byte of mask behind attention and block.
    operand = np.minimum(work.format.operand, size)
    undivided = (1 + crossing) * shape.hidden * (size + operand + dropout)
    products = crossing * _attention_bytes(shape, size, operand) + _block_bytes(shape, size, operand)
    # The softmax for its own backward and, where dropout changes it, for that of the product with the values.
    score = np.where(fused_attention == 1, 0.0, size + (size + 1) * dropout)
    stored = np.where(plans.recompute == SELECTIVE, 0.0, score * crossing * shape.heads * work.sequence)
    return _tokens(work, plans) * (
        undivided / _sequence_split(plans) + (products + stored / plans.context) / plans.tensor
    )


def _stage_activations(work: Work, plans: PlanColumns, layer: Array, logits: Array, *, last: bool) -> Array:
    """Activations of the first or last stage at its peak.

    Full recomputation keeps each layer's input, and has one layer alive, but only after the logits have gone.
    """
    full = plans.recompute == FULL
    kept = _tokens(work, plans) / _sequence_split(plans) * work.format.activation * work.shape.hidden
    alive = np.where(full, np.maximum(layer - kept - logits, 0.0), 0.0)
    return _layers_in_flight(work, plans, last=last) * np.where(full, kept, layer) + alive


def _attention_bytes(shape: ModelShape, size: Number, operand: Number) -> Number:
    """Per token: q, k, v and what enters the output projection, which keeps a narrower copy of it in FP8.

    Latent vectors are kept before and after their norms.
    """
    latent = (size + operand) * (shape.query_rank + shape.key_value_rank) + size * shape.position
    copied = np.where(operand < size, operand, 0.0) * shape.weighted
    return size * (shape.query + shape.key + shape.value + shape.weighted) + latent + copied


def _block_bytes(shape: ModelShape, size: Number, operand: Number) -> Number:
    """Per token of an average layer: ends of the feed-forward block's activation function.

    Experts have copies of their inputs, and outputs to be weighted.
    """
    ends = shape.gates * size + operand
    routed = shape.active * (ends * shape.expert_ffn + (operand + size) * shape.hidden) + ends * shape.shared_ffn
    return (shape.dense_layers * ends * shape.ffn + shape.expert_layers * routed) / shape.layers


def _tokens(work: Work, plans: PlanColumns) -> Array:
    """Tokens of one micro-batch per context rank: s b / c."""
    return work.sequence * plans.micro_batch / plans.context


def _sequence_split(plans: PlanColumns) -> Array:
    """What norms and residuals are divided by besides context: the tensor degree under sequence parallelism."""
    return np.where(plans.sequence_parallel == 1, plans.tensor, 1.0)


def _layers_in_flight(work: Work, plans: PlanColumns, *, last: bool) -> Array:
    """Layers' worth of activations on the first or last stage, at the peak of the (interleaved) 1F1B schedule.

    Rank r of the interleaved schedule runs 2(p - r - 1) + (v - 1)p chunks ahead: Megatron-Core, pipeline_parallel/
    schedules.py. For r = 0 that is Korthikanti's L(1 + (p - 1)/(p v)).
    """
    p, v = plans.pipeline, plans.virtual
    ahead = (v - 1) * p + (0 if last else 2 * (p - 1))
    chunks = np.where(v > 1, ahead + 1, 1 if last else p)
    micro_batches = work.batch / (plans.data * plans.micro_batch)
    return np.minimum(chunks, micro_batches * v) * np.ceil(work.shape.layers / p) / v


def _logits(work: Work, plans: PlanColumns, loss_bytes: Number) -> Array:
    """The last stage beside its layers: logits in compute precision, what the loss adds, and the final norm's ends."""
    size = work.format.activation
    logits = work.shape.vocabulary / plans.tensor * (size + loss_bytes)
    return _tokens(work, plans) * (logits + 2 * size * work.shape.hidden / _sequence_split(plans))


def parameters_per_gpu(shape: ModelShape, plans: PlanColumns) -> tuple[Array, Array, Array]:
    """Parameters that an end stage computes with, per GPU, before ZeRO: (layers, their experts, vocabulary)."""
    share = np.ceil(shape.layers / plans.pipeline) / plans.tensor
    tables = np.where(plans.pipeline > 1, 1.0, shape.tables)
    outside = tables * shapes.embedding_parameters(shape) + shape.positions * shape.hidden
    return (
        share * shapes.shared_parameters(shape),
        share * (_experts(shape) / plans.expert),
        outside / plans.tensor,
    )


def _experts(shape: ModelShape) -> Number:
    """Parameters of the experts of an average layer."""
    return shapes.expert_parameters(shape) * shape.expert_layers / shape.layers


def _states(work: Work, plans: PlanColumns) -> tuple[Array, Array, Array, Array]:
    """Bytes of weights, gradients and optimizer states after ZeRO, and of fp32 gradients while the optimizer steps.

    Dense parameters are sharded over all D c ranks that hold a copy, experts over the D c/e ranks that share one; in
    hybrid sharding over as many of these as share a copy. Fully sharded (stage 3) in mixed precision, the fp32 shard
    is weight and master at once, and 16-bit weights exist only while gathered.
    """
    layers, experts, vocabulary = parameters_per_gpu(work.shape, plans)
    form = work.format
    copies = plans.data * plans.context
    ranks = np.where(plans.shard > 0, np.minimum(plans.shard, copies), copies)
    dense, expert_ranks = layers + vocabulary, np.minimum(ranks, copies / plans.expert)

    def held(stage: int) -> Array:
        """Parameters of which this GPU keeps what the stage shards."""
        sharded = plans.zero_stage >= stage
        return np.where(sharded, dense / ranks + experts / expert_ranks, dense + experts)

    single = (plans.zero_stage >= 3) & np.asarray(form.master > 0)
    copied = np.where((form.gradient < 4) & (form.master > 4), 4.0, 0.0)
    mine = held(1)
    tables = (form.table_moments - form.moments) * vocabulary / np.where(plans.zero_stage >= 1, ranks, 1.0)
    return (
        np.where(single, 4.0, form.weight) * held(3),
        np.where(single, 4.0, form.gradient) * held(2),
        np.where(single, form.moments, form.master - copied + form.moments) * mine + tables,
        np.where(single, 0.0, copied) * mine,
    )


def _gathered(work: Work, plans: PlanColumns) -> Array:
    """ZeRO-3: weights of the unit at work and of the next one, and the gradient of one before it is scattered.

    ZeRO-2 has the whole gradient of a unit, and the copy in which it travels, before its own share of it is left.
    """
    layer = shapes.shared_parameters(work.shape) + _experts(work.shape) / plans.expert
    unit = np.maximum(layer, shapes.embedding_parameters(work.shape))
    sharded = work.format.activation * (layer + 2 * unit)
    # A small model is one unit: there is no more to scatter than what other ranks are to have of its gradient.
    ranks = np.where(plans.shard > 0, plans.shard, plans.data * plans.context)
    layers, experts, vocabulary = parameters_per_gpu(work.shape, plans)
    others = (layers + vocabulary) * (1 - 1 / ranks) + experts * (1 - np.minimum(1.0, plans.expert / ranks))
    whole = work.format.gradient * others
    scattered = np.minimum((work.format.activation + work.format.wire) * unit / plans.tensor, whole)
    return np.where(plans.zero_stage >= 3, sharded / plans.tensor, np.where(plans.zero_stage == 2, scattered, 0.0))
