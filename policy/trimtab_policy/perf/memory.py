"""Bytes of the fullest GPU under a plan: states, activations, what gathering needs, and the framework.

Notation as in `shape`; t tensor, p pipeline, c context, e expert and D data degree, b micro-batch, B global batch,
m = B/(D b) micro-batches a step. Sequence parallelism is on wherever t > 1, and attention is fused (FlashAttention:
the s x s scores are never stored) unless said otherwise. Formulas:

- states per parameter: Megatron-LM, docs/user-guide/features/dist_optimizer.md (bf16 6+12/d, fp16 4+16/d, fp32 8+8/d);
  ZeRO-3 keeps one fp32 copy that is the master weight as well: Rajbhandari et al. 2020, arXiv 1910.02054, section 5
- activations: Korthikanti et al. 2022, arXiv 2205.05198, table 2 and equations 2 to 5, with their terms for q, k, v and
  the feed-forward block kept apart so that grouped-query, gated and expert layers have their own
- micro-batches in flight: Narayanan et al. 2021, arXiv 2104.04473, section 2.2

Two numbers matter and are kept apart: `allocated` is what torch.cuda.max_memory_allocated reports; `required` is what
a card must have so that the run is safe, with the context of the driver, collective buffers and fragmentation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trimtab_policy.perf import shape as shapes
from trimtab_policy.perf.columns import FULL, SELECTIVE, Array, Number, Plans, Work
from trimtab_policy.perf.shape import Shape

FRAMEWORK_BYTES = 2.5e9
"""CUDA context (1.1 GB on V100, 1.6 GB on A100: BLOOM chronicles), library workspaces and NCCL's channel buffers."""

RESERVE = 0.15
"""Held back, as a fraction of what is allocated, for cached blocks that do not fit the next request (fragmentation).

The formulas meet allocator readings within 3 to 5 % (Megatron-LM's golden values), while readings of nvidia-smi, which
count cached blocks, reach 1.3 times them. With expandable segments, as our launchers set them, little of that is lost.
Held against published runs that did fit, 0.15 refuses 0 of 85 BLOOM runs on A100, 3 of 73 of vTrain's on many nodes and
22 of 150 of llm-foundry's, which fill the card to the brim; 0.3 would refuse 48 of those.
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

    @property
    def allocated(self) -> Array:
        """Peak of torch.cuda.max_memory_allocated."""
        return self.weights + self.gradients + self.optimizer + self.gathered + self.activations + self.logits

    @property
    def required(self) -> Array:
        """What the card must have: allocated with the reserve for fragmentation, and the framework's own bytes."""
        return self.allocated * (1 + RESERVE) + FRAMEWORK_BYTES


def footprint(work: Work, plans: Plans, *, fused_attention: Number = 1.0) -> Memory:
    """Memory of the fullest GPU of each plan; `fused_attention` is 1 or 0.

    Either end of the pipeline holds one vocabulary matrix (a tied one is copied). The first stage has the most
    micro-batches in flight, the last one the logits: the fuller of the two counts. With p = 1 they are one GPU.
    """
    layer = layer_activations(work, plans, fused_attention=fused_attention)
    full = plans.recompute == FULL
    layer_input = _layer_input(work, plans)
    kept = np.where(full, layer_input, layer)
    live = np.where(full, layer - layer_input, 0.0)
    logits = _logits(work, plans)
    first_logits = np.where(plans.pipeline == 1, logits, 0.0)
    first = _layers_in_flight(work, plans, last=False) * kept + _beyond(live, first_logits)
    last = _layers_in_flight(work, plans, last=True) * kept + _beyond(live, logits)
    at_end = last + logits > first + first_logits
    return Memory(
        *_states(work, plans),
        gathered=_gathered(work, plans),
        activations=np.where(at_end, last, first),
        logits=np.where(at_end, logits, first_logits),
    )


def layer_activations(work: Work, plans: Plans, *, fused_attention: Number = 1.0) -> Array:
    """Bytes that one micro-batch leaves in an average layer for its backward pass, per GPU (a recomputed one: briefly).

    For a plain GPT layer this is Korthikanti's s b h (10 + 24/t + 5 a s/(h t)), the 10 divided by t under sequence
    parallelism, the last term only where scores are stored. Experts are taken to be evenly loaded, as the auxiliary
    loss makes them.
    """
    shape, size = work.shape, work.format.activation
    crossing = 1 + shape.cross_layers / shape.layers
    norms = _norm_elements(shape, crossing) * size + (1 + crossing) * shape.hidden  # one byte of mask a dropout
    products = size * (crossing * _attention_elements(shape) + _block_elements(shape))
    scores = (2 * size + 1) * crossing * shape.heads * work.sequence / plans.context
    stored = np.where((plans.recompute == SELECTIVE) | (fused_attention == 1), 0.0, scores)
    whole = np.where(plans.sequence_parallel == 1, plans.tensor, 1.0)
    return _tokens(work, plans) * (norms / whole + (products + stored) / plans.tensor)


def _norm_elements(shape: Shape, crossing: Number) -> Number:
    """Per token, outside what tensor parallelism divides: inputs of norms, and of attention and block behind them."""
    return 2 * (1 + crossing) * shape.hidden


def _attention_elements(shape: Shape) -> Number:
    """Per token: q, k, v and what enters the output projection; latent vectors before and after their norms."""
    latent = 2 * (shape.query_rank + shape.key_value_rank) + shape.position
    return shape.query + shape.key + shape.value + shape.weighted + latent


def _block_elements(shape: Shape) -> Number:
    """Per token of an average layer: what the feed-forward block computes; experts' copies of inputs and outputs."""
    dense = (shape.gates + 1) * shape.ffn
    routed = shape.active * ((shape.gates + 1) * shape.expert_ffn + 2 * shape.hidden)
    routed = routed + (shape.gates + 1) * shape.shared_ffn
    return (shape.dense_layers * dense + shape.expert_layers * routed) / shape.layers


def _tokens(work: Work, plans: Plans) -> Array:
    """Tokens of one micro-batch per context rank: s b / c."""
    return work.sequence * plans.micro_batch / plans.context


def _layer_input(work: Work, plans: Plans) -> Array:
    """All that full recomputation keeps of a layer: its input, split by sequence parallelism."""
    split = np.where(plans.sequence_parallel == 1, plans.tensor, 1.0)
    return _tokens(work, plans) / split * work.format.activation * work.shape.hidden


def _beyond(live: Array, logits: Array) -> Array:
    """What the layer being recomputed adds to the peak: it lives only after the logits have gone."""
    return np.maximum(live - logits, 0.0)


def _layers_in_flight(work: Work, plans: Plans, *, last: bool) -> Array:
    """Layers' worth of activations on the first or last stage, at the peak of the (interleaved) 1F1B schedule.

    Rank r of the interleaved schedule runs 2(p - r - 1) + (v - 1)p chunks ahead: Megatron-Core, pipeline_parallel/
    schedules.py. For r = 0 that is Korthikanti's L(1 + (p - 1)/(p v)).
    """
    p, v = plans.pipeline, plans.virtual
    ahead = (v - 1) * p + (0 if last else 2 * (p - 1))
    chunks = np.where(v > 1, ahead + 1, 1 if last else p)
    micro_batches = work.batch / (plans.data * plans.micro_batch)
    return np.minimum(chunks, micro_batches * v) * np.ceil(work.shape.layers / p) / v


def _logits(work: Work, plans: Plans) -> Array:
    """Logits in compute precision and their fp32 copy for the loss: s b V/t (2 + 4)."""
    return _tokens(work, plans) * work.shape.vocabulary / plans.tensor * (work.format.activation + 4)


def parameters_per_gpu(shape: Shape, plans: Plans) -> tuple[Array, Array, Array]:
    """Parameters that an end stage computes with, per GPU, before ZeRO: (layers, their experts, vocabulary)."""
    share = np.ceil(shape.layers / plans.pipeline) / plans.tensor
    tables = np.where(plans.pipeline > 1, 1.0, shape.tables)
    outside = tables * shapes.embedding_parameters(shape) + shape.positions * shape.hidden
    return (
        share * shapes.shared_parameters(shape),
        share * (_experts(shape) / plans.expert),
        outside / plans.tensor,
    )


def _experts(shape: Shape) -> Number:
    """Parameters of the experts of an average layer."""
    return shapes.expert_parameters(shape) * shape.expert_layers / shape.layers


def _states(work: Work, plans: Plans) -> tuple[Array, Array, Array]:
    """Bytes of weights, gradients and optimizer states after ZeRO.

    Dense parameters are sharded over all D c ranks that hold a copy, experts over the D c/e ranks that share one; in
    hybrid sharding over as many of these as share a copy. Fully sharded (stage 3) in mixed precision, the fp32 shard
    is weight and master at once, and 16-bit weights exist only while gathered.
    """
    layers, experts, vocabulary = parameters_per_gpu(work.shape, plans)
    form = work.format
    copies = plans.data * plans.context
    ranks = np.where(plans.shard > 0, plans.shard, copies)
    expert_ranks = np.minimum(ranks, copies / plans.expert)
    single = (plans.zero_stage >= 3) & (np.asarray(form.master) > 0)

    def held(stage: int, matrix: Number, table: Number) -> Array:
        over = np.where(plans.zero_stage >= stage, ranks, 1.0)
        over_experts = np.where(plans.zero_stage >= stage, expert_ranks, 1.0)
        return matrix * (layers / over + experts / over_experts) + table * vocabulary / over

    weight = np.where(single, 4.0, form.weight)
    gradient = np.where(single, 4.0, form.gradient)
    master = np.where(single, 0.0, form.master)
    return (
        held(3, weight, weight),
        held(2, gradient, gradient),
        held(1, master + form.moments, master + form.table_moments),
    )


def _gathered(work: Work, plans: Plans) -> Array:
    """ZeRO-3: weights of the unit at work and of the next one, and the gradient of one before it is scattered."""
    layer = shapes.shared_parameters(work.shape) + _experts(work.shape) / plans.expert
    unit = np.maximum(layer, shapes.embedding_parameters(work.shape))
    held = work.format.activation * (layer + 2 * unit) / plans.tensor
    return np.where(plans.zero_stage >= 3, held, 0.0)
