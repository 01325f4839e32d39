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

from trimtab_policy.perf import shape
from trimtab_policy.perf.columns import FULL, SELECTIVE, Array, Plans
from trimtab_policy.types import ModelSpec, Optimizer, Precision, TrainingSpec

FRAMEWORK_BYTES = 2.5e9
"""CUDA context (1.1 GB on V100, 1.6 GB on A100: BLOOM chronicles), library workspaces and NCCL's channel buffers."""

RESERVE = 0.15
"""Held back, as a fraction of what is allocated, for cached blocks that do not fit the next request (fragmentation).

The formulas meet allocator readings within 3 to 5 % (Megatron-LM's golden values), while readings of nvidia-smi, which
count cached blocks, reach 1.3 times them. With expandable segments, as our launchers set them, little of that is lost.
Held against published runs that did fit, 0.15 refuses 0 of 85 BLOOM runs on A100, 3 of 73 of vTrain's on many nodes and
22 of 150 of llm-foundry's, which fill the card to the brim; 0.3 would refuse 48 of those.
"""


class Bytes(NamedTuple):
    """Bytes per parameter of one number format. `master` is what the optimizer keeps besides its moments."""

    weight: float
    gradient: float
    master: float
    activation: float
    """Bytes of one activation element."""


_FORMAT = {
    Precision.FP32: Bytes(weight=4, gradient=4, master=0, activation=4),
    Precision.FP16: Bytes(weight=2, gradient=2, master=8, activation=2),  # master and an fp32 copy of the gradient
    Precision.BF16: Bytes(weight=2, gradient=4, master=4, activation=2),  # gradients accumulate in fp32
    Precision.FP8: Bytes(weight=4, gradient=4, master=4, activation=2),  # bf16 weight, cached FP8 copy and transpose
}
_SHARDED = _FORMAT[Precision.FP32]
"""Fully sharded (stage 3): the fp32 shard is weight and master at once; 16-bit weights exist only while gathered."""

_MOMENTS = {  # bytes per parameter of (matrices, embeddings)
    Optimizer.ADAMW: (8.0, 8.0),
    Optimizer.SGD: (4.0, 4.0),
    Optimizer.ADAFACTOR: (0.0, 0.0),  # factored second moment: O(rows + columns), no first
    Optimizer.MUON: (4.0, 8.0),  # momentum of matrices; embeddings stay with Adam
}


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


def footprint(model: ModelSpec, training: TrainingSpec, plans: Plans, *, fused_attention: bool = True) -> Memory:
    """Memory of the fullest GPU of each plan.

    Either end of the pipeline holds one vocabulary matrix (a tied one is copied). The first stage has the most
    micro-batches in flight, the last one the logits: the fuller of the two counts. With p = 1 they are one GPU.
    """
    layer = layer_activations(model, training, plans, fused_attention=fused_attention)
    full = plans.recompute == FULL
    layer_input = _layer_input(model, training, plans)
    kept = np.where(full, layer_input, layer)
    live = np.where(full, layer - layer_input, 0.0)
    logits = _logits(model, training, plans)
    first_logits = np.where(plans.pipeline == 1, logits, 0.0)
    first = _layers_in_flight(model, training, plans, last=False) * kept + _beyond(live, first_logits)
    last = _layers_in_flight(model, training, plans, last=True) * kept + _beyond(live, logits)
    at_end = last + logits > first + first_logits
    return Memory(
        *_states(model, training, plans),
        gathered=_gathered(model, training, plans),
        activations=np.where(at_end, last, first),
        logits=np.where(at_end, logits, first_logits),
    )


def layer_activations(model: ModelSpec, training: TrainingSpec, plans: Plans, *, fused_attention: bool = True) -> Array:
    """Bytes that one micro-batch leaves in one layer for its backward pass, per GPU (a recomputed one: briefly).

    For a plain GPT layer this is Korthikanti's s b h/t (34 + 5 a s/h), the last term only where scores are stored.
    Experts are taken to be evenly loaded, as the auxiliary loss makes them.
    """
    size = _FORMAT[training.precision].activation
    h = model.hidden_size
    query, key_value = model.attention_heads * model.head_dim, model.kv_heads * model.head_dim
    inner = (3 if model.gated_ffn else 2) * model.ffn_hidden_size
    # per token: both norms' inputs, attention's and the block's input; q, k, v and what enters the output projection
    elements = 4 * h + 2 * query + 2 * key_value + inner
    if model.experts:  # k copies through as many experts, and their outputs to be weighted
        elements += (model.experts_per_token - 1) * inner + 2 * model.experts_per_token * h
    masks = 2 * h  # one byte each after attention and block
    scores = 0.0 if fused_attention else (2 * size + 1) * model.attention_heads * training.sequence_length
    stored = np.where(plans.recompute == SELECTIVE, 0.0, scores)
    return _tokens(training, plans) / plans.tensor * (size * elements + masks + stored)


def _tokens(training: TrainingSpec, plans: Plans) -> Array:
    """Tokens of one micro-batch per context rank: s b / c."""
    return training.sequence_length * plans.micro_batch / plans.context


def _layer_input(model: ModelSpec, training: TrainingSpec, plans: Plans) -> Array:
    """All that full recomputation keeps of a layer: its input, split by sequence parallelism."""
    size = _FORMAT[training.precision].activation
    return _tokens(training, plans) / plans.tensor * size * model.hidden_size


def _beyond(live: Array, logits: Array) -> Array:
    """What the layer being recomputed adds to the peak: it lives only after the logits have gone."""
    return np.maximum(live - logits, 0.0)


def _layers_in_flight(model: ModelSpec, training: TrainingSpec, plans: Plans, *, last: bool) -> Array:
    """Layers' worth of activations on the first or last stage, at the peak of the (interleaved) 1F1B schedule.

    Rank r of the interleaved schedule runs 2(p - r - 1) + (v - 1)p chunks ahead: Megatron-Core, pipeline_parallel/
    schedules.py. For r = 0 that is Korthikanti's L(1 + (p - 1)/(p v)).
    """
    p, v = plans.pipeline, plans.virtual
    ahead = (v - 1) * p + (0 if last else 2 * (p - 1))
    chunks = np.where(v > 1, ahead + 1, 1 if last else p)
    micro_batches = training.global_batch_size / (plans.data * plans.micro_batch)
    return np.minimum(chunks, micro_batches * v) * np.ceil(model.layers / p) / v


def _logits(model: ModelSpec, training: TrainingSpec, plans: Plans) -> Array:
    """Logits in compute precision and their fp32 copy for the loss: s b V/t (2 + 4)."""
    size = _FORMAT[training.precision].activation
    return _tokens(training, plans) * model.vocab_size / plans.tensor * (size + 4)


def parameters_per_gpu(model: ModelSpec, plans: Plans) -> tuple[Array, Array, Array]:
    """Parameters that an end stage computes with, per GPU, before ZeRO: (layers, their experts, vocabulary)."""
    layers = np.ceil(model.layers / plans.pipeline)
    tables = np.where((plans.pipeline > 1) | model.tied_embeddings, 1, 2)
    return (
        layers * shape.shared_parameters(model) / plans.tensor,
        layers * shape.expert_parameters(model) / (plans.tensor * plans.expert),
        (tables * shape.embedding_parameters(model) + model.learned_positions * model.hidden_size) / plans.tensor,
    )


def _states(model: ModelSpec, training: TrainingSpec, plans: Plans) -> tuple[Array, Array, Array]:
    """Bytes of weights, gradients and optimizer states after ZeRO.

    Dense parameters are sharded over all D c ranks that hold a copy, experts over the D c/e ranks that share one.
    """
    layers, experts, vocabulary = parameters_per_gpu(model, plans)
    copies = plans.data * plans.context
    whole, sharded = _FORMAT[training.precision], _SHARDED
    matrix_moment, vocabulary_moment = _MOMENTS[training.optimizer]
    fully = plans.zero_stage >= 3

    def held(stage: int, matrix: Array | float, table: Array | float) -> Array:
        over = np.where(plans.zero_stage >= stage, copies, 1.0)
        over_experts = np.where(plans.zero_stage >= stage, copies / plans.expert, 1.0)
        return matrix * (layers / over + experts / over_experts) + table * vocabulary / over

    weight = np.where(fully, sharded.weight, whole.weight)
    gradient = np.where(fully, sharded.gradient, whole.gradient)
    master = np.where(fully, sharded.master, whole.master)
    return (
        held(3, weight, weight),
        held(2, gradient, gradient),
        held(1, master + matrix_moment, master + vocabulary_moment),
    )


def _gathered(model: ModelSpec, training: TrainingSpec, plans: Plans) -> Array:
    """ZeRO-3: weights of the unit at work and of the next one, and the gradient of one before it is scattered."""
    layer = shape.shared_parameters(model) + shape.expert_parameters(model) / plans.expert
    unit = np.maximum(layer, shape.embedding_parameters(model))
    size = _FORMAT[training.precision].activation
    return np.where(plans.zero_stage >= 3, size * (layer + 2 * unit) / plans.tensor, 0.0)
