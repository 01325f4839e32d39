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
- adapters beside frozen weights: a frozen product needs its weight for the backward pass, not its input; an adapter
  needs that input (Hu et al. 2021, arXiv 2106.09685; Dettmers et al. 2023, arXiv 2305.14314, appendix G)

Two numbers matter and are kept apart: `allocated` is what torch.cuda.max_memory_allocated reports; `required` is what
a card must have so that the run is safe, with the context of the driver, collective buffers and fragmentation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.perf import model_flops as shapes
from trimtab_policy.perf.model_flops import ModelShape
from trimtab_policy.perf.plan_arrays import FULL, SELECTIVE, Array, Number, PlanColumns, Tuning, Work

WORKSPACE = 3 * 2.0**25
"""32 MiB for cuBLAS on the forward and on the backward thread, as much for Transformer Engine: the default on Hopper,
and what the golden values of Megatron-LM hold beyond the states (71 MB on A100, 101 MB on H100)."""

IN_PLACE, VOCABULARY_PARALLEL, SHIFTED, PLAIN, UPCAST = 0.0, 4.0, 6.0, 10.0, 14.0
"""Bytes that a loss adds to each logit in compute precision: none where its gradient takes the logits' place (those of
flash-attn and Liger); an fp32 softmax in Megatron-Core's vocab_parallel_cross_entropy, forward and backward; a shifted
copy, the log-softmax and its gradient, all in 16 bit; an fp32 log-softmax with the gradients of it and of its input in
torch.nn.functional.cross_entropy; logits, their shifted copy, log-softmax and gradient in fp32, as transformers has."""

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
    """Those that are trained."""
    frozen: Array
    """Weights beside adapters; under ZeRO-3 with all that lies outside of layers, which stays gathered, and scales."""
    gradients: Array
    optimizer: Array
    gathered: Array
    """Layers whose shards are gathered at one time under ZeRO-3, or copied from the host; with the quantized matrix
    that is being multiplied, in the precision of the product."""
    activations: Array
    logits: Array
    """With the loss, and the final norm before them."""
    update: Array
    """What the optimizer's step needs beyond the activations that it comes after: fp32 copies of fp16 gradients."""

    @property
    def states(self) -> Array:
        """What stays between two steps."""
        return self.weights + self.frozen + self.gradients + self.optimizer

    @property
    def allocated(self) -> Array:
        """Peak of torch.cuda.max_memory_allocated."""
        return self.states + self.gathered + self.activations + self.logits + self.update + WORKSPACE

    @property
    def required(self) -> Array:
        """What the card must have: allocated with the reserve for fragmentation, and the framework's own bytes.

        Frozen weights leave no holes: they are loaded once, before anything else.
        """
        return self.reserved + FRAMEWORK_BYTES

    @property
    def reserved(self) -> Array:
        """What PyTorch's allocator holds: torch.cuda.max_memory_reserved."""
        return self.allocated * (1 + RESERVE) - RESERVE * self.frozen


def footprint(
    work: Work,
    plans: PlanColumns,
    *,
    fused_attention: Number = 1.0,
    loss_bytes: Number = VOCABULARY_PARALLEL,
    dropout: Number = 0.0,
    eager: Number = 0.0,
) -> Memory:
    """Memory of the fullest GPU of each plan. `fused_attention`, `dropout`, `eager` are 1 or 0, `loss_bytes` as above.

    Either end of the pipeline holds one vocabulary matrix (a tied one is copied). The first stage has the most
    micro-batches in flight, the last one the logits: the fuller of the two counts. With p = 1 they are one GPU.
    """
    layer = layer_activations(work, plans, fused_attention=fused_attention, dropout=dropout, eager=eager)
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
    weights, frozen, gradients, optimizer, copies = _resident(work, plans)
    frozen = frozen + _root(work, plans)
    update = np.maximum(copies - activations - logits - gathered, 0.0)
    return Memory(weights, frozen, gradients, optimizer, gathered, activations, logits, update)


def layer_activations(
    work: Work, plans: PlanColumns, *, fused_attention: Number = 1.0, dropout: Number = 0.0, eager: Number = 0.0
) -> Array:
    """Bytes that one micro-batch leaves in an average layer for its backward pass, per GPU (a recomputed one: briefly).

    For a plain GPT layer with dropout this is Korthikanti's s b h (10 + 24/t + 5 a s/(h t)), the 10 divided by t under
    sequence parallelism, the last term only where scores are stored. Experts are taken to be evenly loaded, as the
    auxiliary loss makes them. `eager`: norms and activation functions go operation by operation, as in the modelling
    code of Hugging Face's transformers: an fp32 input per norm, and in gated blocks a further result.
    """
    if work.tuning.adapted or np.any(eager):
        plain = layer_activations(
            work._replace(tuning=Tuning()), plans, fused_attention=fused_attention, dropout=dropout
        )
        return plain + _tokens(work, plans) * _more_activations(work, plans, np.asarray(eager), np.asarray(dropout))
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


def _more_activations(work: Work, plans: PlanColumns, eager: Array, dropout: Array) -> Array:
    """Bytes per token of a layer beyond those where all is trained and fused, or less.

    Frozen products do not keep their inputs, but for quantized ones in eager frameworks (bitsandbytes' MatMul4Bit did
    until 2024). What norms put out is then kept only where an adapter reads it, so is what enters the block's last
    product; attention needs its own output anyway. With dropout, every adapter has an input and a mask of its own.
    """
    shape, size, tuning = work.shape, work.format.activation, work.tuning
    frozen = np.where(np.asarray(tuning.rank) > 0, 1.0, 0.0)
    operand = np.minimum(work.format.operand, size)
    crossing = 1 + shape.cross_layers / shape.layers
    width = _average_width(shape)
    unread = frozen * (1 - np.asarray(tuning.block)) * (1 - eager * tuning.quantized)
    spared = unread * operand * (shape.hidden / _sequence_split(plans) + width / plans.tensor)
    upcast = np.maximum(4.0 - size, 0.0) * (1 + crossing) * shape.hidden / _sequence_split(plans)
    unfused = size * (shape.gates - 1) * width / plans.tensor
    dropped = (size + 1) * dropout * frozen * _adapter_inputs(work, plans)
    inner = size * np.asarray(tuning.rank) * adapted_matrices(work)
    more: Array = eager * (upcast + unfused) + dropped + inner - spared
    return more


def _average_width(shape: ModelShape) -> Number:
    """Columns of the feed-forward blocks that a token passes in an average layer."""
    routed = shape.active * shape.expert_ffn + shape.shared_ffn
    return (shape.dense_layers * shape.ffn + shape.expert_layers * routed) / shape.layers


def adapted_matrices(work: Work) -> Number:
    """Adapters that a token passes in an average layer; all experts that serve it count."""
    shape, tuning = work.shape, work.tuning
    blocks = (shape.dense_layers + shape.expert_layers * (shape.active + (shape.shared_ffn > 0))) / shape.layers
    crossing = 1 + shape.cross_layers / shape.layers
    attention = 2 * (np.asarray(tuning.query_value) + np.asarray(tuning.key_output))
    found: Number = crossing * attention + np.asarray(tuning.block) * blocks * (shape.gates + 1)
    return found


def _adapter_inputs(work: Work, plans: PlanColumns) -> Array:
    """Numbers per token that the adapters of an average layer read, each its own."""
    shape, tuning, t = work.shape, work.tuning, plans.tensor
    crossing = 1 + shape.cross_layers / shape.layers
    attention = 2 * np.asarray(tuning.query_value) * shape.hidden
    attention = attention + np.asarray(tuning.key_output) * (shape.hidden + shape.weighted / t)
    block = shape.gates * shape.hidden + _average_width(shape) / t
    inputs: Array = crossing * attention + np.asarray(tuning.block) * block
    return inputs


def _stage_activations(work: Work, plans: PlanColumns, layer: Array, logits: Array, *, last: bool) -> Array:
    """Activations of the first or last stage at its peak.

    Full recomputation keeps each layer's input, and has one layer alive, but only after the logits have gone.
    """
    full = plans.recompute == FULL
    kept = _inputs(work, plans)
    alive = np.where(full, np.maximum(layer - kept - logits, 0.0), 0.0)
    each = kept_per_layer(work, plans, layer)
    stored = _layers_in_flight(work, plans, last=last) * each
    if work.tuning.offloads:
        # One layer's is on its way to the host or back while the next is being computed.
        stored = np.where(work.tuning.activations_host, np.minimum(stored, 2 * each), stored)
    return stored + alive


def _inputs(work: Work, plans: PlanColumns) -> Array:
    """Input of a layer, which full recomputation keeps, of one micro-batch."""
    inputs: Array = _tokens(work, plans) / _sequence_split(plans) * work.format.activation * work.shape.hidden
    return inputs


def kept_per_layer(work: Work, plans: PlanColumns, layer: Array) -> Array:
    """Bytes that one micro-batch keeps of a layer until its backward pass; `layer` as `layer_activations` says."""
    kept: Array = np.where(plans.recompute == FULL, _inputs(work, plans), layer)
    return kept


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


def trained_per_gpu(work: Work, plans: PlanColumns) -> tuple[Array, Array, Array]:
    """Of `parameters_per_gpu` those that are trained: all, or the adapters in their place.

    An adapter's half at the divided side of its matrix is divided with it, the other one is whole on every rank.
    """
    whole = parameters_per_gpu(work.shape, plans)
    if not work.tuning.adapted:
        return whole
    shape, tuning, t = work.shape, work.tuning, plans.tensor
    rank, h = np.asarray(tuning.rank, dtype=np.float64), shape.hidden
    attention = np.asarray(tuning.query_value) * (2 * h + (shape.query + shape.value) / t)
    attention = attention + np.asarray(tuning.key_output) * (2 * h + (shape.key + shape.weighted) / t)

    def block(width: Number) -> Array:
        return np.asarray(tuning.block) * (shape.gates + 1) * (h + width / t)

    crossing = 1 + shape.cross_layers / shape.layers
    blocks = shape.dense_layers * block(shape.ffn) + shape.expert_layers * np.where(
        np.asarray(shape.shared_ffn) > 0, block(shape.shared_ffn), 0.0
    )
    routed = shape.expert_layers / shape.layers * shape.experts / plans.expert * block(shape.expert_ffn)
    layers = np.ceil(shape.layers / plans.pipeline)
    adapters = (layers * rank * (crossing * attention + blocks / shape.layers), layers * rank * routed)
    some = rank > 0
    return (
        np.where(some, adapters[0], whole[0]),
        np.where(some, adapters[1], whole[1]),
        np.where(some, 0.0, whole[2]),
    )


def frozen_per_gpu(work: Work, plans: PlanColumns) -> tuple[Array, Array]:
    """Bytes of frozen weights that a GPU computes with, before ZeRO: (all but experts, experts); 0 without adapters."""
    tuning = work.tuning
    layers, experts, vocabulary = parameters_per_gpu(work.shape, plans)
    matrices = shapes.matrix_parameters(work.shape) / shapes.shared_parameters(work.shape) * layers
    dense = tuning.frozen * matrices + tuning.outside * (layers - matrices + vocabulary)
    return np.where(tuning.rank, dense, 0.0), np.where(tuning.rank, tuning.frozen * experts, 0.0)


def _experts(shape: ModelShape) -> Number:
    """Parameters of the experts of an average layer."""
    return shapes.expert_parameters(shape) * shape.expert_layers / shape.layers


class States(NamedTuple):
    """Bytes of a rank's states, wherever they are; columns of shape (n,)."""

    weights: Array
    """Those that are trained."""
    frozen: Array
    gradients: Array
    optimizer: Array
    copies: Array
    """Of gradients in fp32, while the optimizer steps."""


def _resident(work: Work, plans: PlanColumns) -> States:
    """What of the states is on the GPU."""
    found = states(work, plans)
    if not work.tuning.offloads:
        return found
    here = 1 - np.asarray(work.tuning.weights_host)
    stepped = 1 - np.asarray(work.tuning.optimizer_host)
    resident = stepped * (1 - np.asarray(work.tuning.optimizer_paged))
    return States(
        found.weights * here,
        found.frozen * here,
        found.gradients * stepped,
        found.optimizer * resident,
        found.copies * stepped,
    )


def host_bytes(
    work: Work, plans: PlanColumns, *, fused_attention: Number = 1.0, dropout: Number = 0.0, eager: Number = 0.0
) -> Array:
    """Bytes that a rank keeps in the host's memory, pinned, because of what is offloaded; arguments as of `footprint`.

    What is paged lies there only if need be, so that it counts as well.
    """
    tuning = work.tuning
    if not tuning.offloads:
        return np.zeros_like(plans.data)
    found = states(work, plans)
    layer = layer_activations(work, plans, fused_attention=fused_attention, dropout=dropout, eager=eager)
    stored = _layers_in_flight(work, plans, last=False) * kept_per_layer(work, plans, layer)
    away, paged = np.asarray(tuning.optimizer_host), np.asarray(tuning.optimizer_paged)
    there: Array = (
        np.asarray(tuning.weights_host) * (found.weights + found.frozen)
        + away * (found.gradients + found.copies)
        + np.maximum(away, paged) * found.optimizer
        + np.asarray(tuning.activations_host) * stored
    )
    return there


def states(work: Work, plans: PlanColumns) -> States:
    """A rank's weights, gradients and optimizer states, on the GPU or on the host.

    Dense parameters are sharded over all D c ranks that hold a copy, experts over the D c/e ranks that share one; in
    hybrid sharding over as many of these as share a copy. Fully sharded (stage 3) in mixed precision, the fp32 shard
    is weight and master at once, and 16-bit weights exist only while gathered; where the host steps, it has the fp32
    shard, and the GPU one in 16 bit.
    """
    layers, experts, vocabulary = trained_per_gpu(work, plans)
    form = work.format
    copies = plans.data * plans.context
    ranks = np.where(plans.shard > 0, np.minimum(plans.shard, copies), copies)
    expert_ranks = np.minimum(ranks, copies / plans.expert)
    dense = layers + vocabulary

    def held(stage: int, dense: Array = dense, experts: Array = experts) -> Array:
        """Parameters of which this GPU keeps what the stage shards."""
        sharded = plans.zero_stage >= stage
        return np.where(sharded, dense / ranks + experts / expert_ranks, dense + experts)

    single = (plans.zero_stage >= 3) & np.asarray(form.master > 0)
    if work.tuning.offloads:
        single = single & (np.asarray(work.tuning.optimizer_host) == 0)
    copied = np.where((form.gradient < 4) & (form.master > 4), 4.0, 0.0)
    mine = held(1)
    tables = (form.table_moments - form.moments) * vocabulary / np.where(plans.zero_stage >= 1, ranks, 1.0)
    return States(
        np.where(single, 4.0, form.weight) * held(3),
        held(3, *frozen_per_gpu(work, plans)) if work.tuning.adapted else np.zeros_like(mine),
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
    layers, experts, vocabulary = trained_per_gpu(work, plans)
    others = (layers + vocabulary) * (1 - 1 / ranks) + experts * (1 - np.minimum(1.0, plans.expert / ranks))
    whole = work.format.gradient * others
    scattered = np.minimum((work.format.activation + work.format.wire) * unit / plans.tensor, whole)
    streamed = _streamed(work, plans)
    gathered = np.where(streamed, sharded / plans.tensor, np.where(plans.zero_stage == 2, scattered, 0.0))
    if not work.tuning.adapted:
        return gathered
    return np.where(work.tuning.rank, _gathered_frozen(work, plans, streamed), gathered)


def _streamed(work: Work, plans: PlanColumns) -> NDArray[np.bool_]:
    """Whether weights come layer by layer, from other ranks or from the host."""
    streamed: NDArray[np.bool_] = plans.zero_stage >= 3
    return streamed | (np.asarray(work.tuning.weights_host) > 0) if work.tuning.offloads else streamed


def _root(work: Work, plans: PlanColumns) -> Array:
    """What stays of frozen weights where they are streamed: scales, and FSDP's root, which lies outside of layers."""
    if not work.tuning.adapted:
        return np.zeros_like(plans.data)
    layers, experts, vocabulary = parameters_per_gpu(work.shape, plans)
    kept = work.tuning.outside * vocabulary + work.tuning.scales * (layers + experts)
    return np.where(_streamed(work, plans) & (np.asarray(work.tuning.rank) > 0), kept, 0.0)


def _gathered_frozen(work: Work, plans: PlanColumns, streamed: NDArray[np.bool_]) -> Array:
    """The same of frozen weights, which have no gradients: two layers as they are kept.

    In all cases a quantized matrix lies there in full precision while it is multiplied: the largest of a layer.
    """
    shape, tuning = work.shape, work.tuning
    layer = shapes.shared_parameters(shape) + _experts(shape) / plans.expert
    units = 2 * tuning.frozen * layer
    widest = np.maximum(np.maximum(shape.query, shape.expert_ffn), np.where(shape.dense_layers, shape.ffn, 0.0))
    matrix = work.format.activation * shape.hidden * widest
    return (np.where(streamed, units, 0.0) + tuning.quantized * matrix) / plans.tensor
