"""Seconds of one optimizer step under a plan.

Notation as in `shape` and `memory`. A micro-batch crosses the fullest pipeline stage in

    stage = ceil(L/p) * layer + head,   layer = (gpu^4 + launch^4)^(1/4) + exposed communication

and a step is m stages, the pipeline's filling and draining, what data parallelism cannot hide, and the optimizer:

    step = m (stage + p2p) + (p - 1)(stage - head + p2p)/v + data + optimizer + fixed

The parts, each a function below: matrix products by a roofline with a penalty for narrow shapes; fused attention;
element-wise traffic; tensor-, context- and expert-parallel collectives; point-to-point of the pipeline (Narayanan et
al. 2021, arXiv 2104.04473); ZeRO/FSDP traffic (Rajbhandari et al. 2020, arXiv 1910.02054). Ranks are laid out tensor
innermost, then context, data, pipeline, as Megatron-Core and torchtitan do; that decides which links a group uses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trimtab_policy.perf import memory
from trimtab_policy.perf.columns import FULL, SELECTIVE, Array, Plans
from trimtab_policy.perf.hardware import CURRENT, ELEMENT_PASSES, LATENCY, Machine, Software, machine
from trimtab_policy.types import GpuSpec, ModelSpec, Precision, TrainingSpec


class StepTime(NamedTuple):
    """Seconds of one step by what they are spent on; columns of shape (n,)."""

    compute: Array
    """Of the fullest pipeline stage, all micro-batches, recomputation and launch floor included."""
    layer_communication: Array
    """Tensor, context and expert collectives that no computation hides."""
    bubble: Array
    pipeline_communication: Array
    data_communication: Array
    """Gradient and weight traffic between data-parallel ranks that the backward pass does not hide."""
    optimizer: Array
    fixed: Array

    @property
    def total(self) -> Array:
        return (
            self.compute
            + self.layer_communication
            + self.bubble
            + self.pipeline_communication
            + self.data_communication
            + self.optimizer
            + self.fixed
        )


class _Case(NamedTuple):
    """What all parts of one evaluation share."""

    model: ModelSpec
    training: TrainingSpec
    plans: Plans
    gpus_per_node: Array
    machine: Machine
    software: Software

    @property
    def tokens(self) -> Array:
        """Tokens of one micro-batch per context rank: s b/c."""
        return self.training.sequence_length * self.plans.micro_batch / self.plans.context

    @property
    def micro_batches(self) -> Array:
        return self.training.global_batch_size / (self.plans.data * self.plans.micro_batch)

    @property
    def layers(self) -> Array:
        return np.ceil(self.model.layers / self.plans.pipeline)

    @property
    def passes(self) -> Array:
        """Forward passes' worth of work: one forward, two backward, one more when all is recomputed."""
        return np.where(self.plans.recompute == FULL, 4.0, 3.0)

    @property
    def element(self) -> float:
        """Bytes of one activation element."""
        return 4.0 if self.training.precision is Precision.FP32 else 2.0

    @property
    def query(self) -> int:
        return self.model.attention_heads * self.model.head_dim

    @property
    def key_value(self) -> int:
        return self.model.kv_heads * self.model.head_dim


def step_time(
    model: ModelSpec,
    training: TrainingSpec,
    plans: Plans,
    gpu: GpuSpec,
    gpus_per_node: Array | int,
    *,
    spread: float = 1.0,
    software: Software = CURRENT,
) -> StepTime:
    """Time of one optimizer step of each plan.

    `gpus_per_node` (n,) or scalar: GPUs of one node that the gang uses (or of one NVLink domain where that is wider).
    `spread` >= 1 divides the network's bandwidth, for placements that cross an oversubscribed level of it.
    Raises ValueError when the GPU lacks the precision.
    """
    per_node = np.asarray(gpus_per_node, dtype=np.float64)
    case = _Case(model, training, plans, per_node, machine(gpu, training.precision, spread=spread), software)
    layer, layer_comm, head = _layer_compute(case), _layer_communication(case), _head(case)
    p2p = _pipeline_transfer(case)
    stage = case.layers * (layer + layer_comm)
    compute = case.layers * layer + head
    micro_batches = case.micro_batches
    return StepTime(
        compute=micro_batches * compute,
        layer_communication=micro_batches * case.layers * layer_comm,
        bubble=(plans.pipeline - 1) / plans.virtual * stage,
        pipeline_communication=(micro_batches + (plans.pipeline - 1) / plans.virtual) * p2p,
        data_communication=_data_communication(case, compute),
        optimizer=_optimizer(case),
        fixed=np.full_like(compute, software.step_seconds),
    )


def group_bandwidth(hardware: Machine, size: Array, inner: Array, gpus_per_node: Array) -> Array:
    """Bytes/s per GPU of a ring over `size` ranks that lie `inner` ranks apart.

    Inside a node it is the link. Between nodes the ring has as many network adapters to itself as it has ranks on a
    node: min(size, gpus_per_node/inner). Pure data parallelism thus sees all adapters of a node, data parallelism over
    tensor groups of eight only one (measured on 2 x 8 GPUs: 44.7, 20.8, 16.2, 8.1 GB/s for 8, 4, 2, 1 ranks per node;
    Galvatron, hardware_configs).
    """
    on_node = np.clip(gpus_per_node / inner, 1.0, size)
    outside = np.minimum(hardware.link, hardware.network * on_node)
    return np.where(size * inner <= gpus_per_node, hardware.link, outside)


def _ring(size: Array, volume: Array, bandwidth: Array, messages: Array | float = 1.0) -> Array:
    """All-gather or reduce-scatter of `volume` bytes in all: (n - 1)/n of it moves, log2 n latencies a message."""
    return (size - 1) / size * volume / bandwidth + messages * LATENCY * np.log2(size)


def _gemm(case: _Case, rows: Array, inner: Array | float, columns: Array | float) -> Array:
    """Forward seconds of (rows x inner) @ (inner x columns): the slower of arithmetic and memory.

    Narrow products run below peak, by 1 + w/min(shape), for tiles and pipelines that they do not fill.
    """
    narrowest = np.minimum(np.minimum(rows, inner), columns)
    arithmetic = 2 * rows * inner * columns / case.machine.gemm * (1 + case.machine.half_width / narrowest)
    elements = rows * columns + inner * columns + rows * inner
    return np.maximum(arithmetic, case.machine.gemm_bytes * elements / case.machine.memory)


def _linear(case: _Case) -> Array:
    """Forward seconds of one layer's matrix products with weights."""
    h, t, tokens = case.model.hidden_size, case.plans.tensor, case.tokens
    inner = (2 if case.model.gated_ffn else 1) * case.model.ffn_hidden_size / t
    projections = _gemm(case, tokens, h, (case.query + 2 * case.key_value) / t) + _gemm(case, tokens, case.query / t, h)
    if not case.model.experts:
        return projections + _gemm(case, tokens, h, inner) + _gemm(case, tokens, case.model.ffn_hidden_size / t, h)
    local = case.model.experts / case.plans.expert
    routed = tokens * case.model.experts_per_token / local
    block = _gemm(case, routed, h, inner) + _gemm(case, routed, case.model.ffn_hidden_size / t, h)
    return projections + _gemm(case, tokens, h, case.model.experts) + local * block


def _attention(case: _Case) -> tuple[Array, Array]:
    """Seconds of scores and weighting of one layer, (forward, backward); causal, so half of the square counts.

    The fused backward recomputes the scores: 2.5 forwards (Dao 2023, arXiv 2307.08691). Unfused scores cross memory
    about 40 bytes an element in all, a third of it forward.
    """
    s, t = case.training.sequence_length, case.plans.tensor
    forward = 2 * case.tokens * s * case.query / t / case.machine.attention
    if case.software.fused_attention:
        return forward, 2.5 * forward
    scores = case.tokens * s * case.model.attention_heads / t
    crossing = 20 * case.element * scores / case.machine.memory
    return forward + crossing / 3, 2 * forward + crossing * 2 / 3


def _element_wise(case: _Case) -> Array:
    """Forward seconds of norms, activations, residuals, dropout: every stored activation is written and read once."""
    fused = memory.layer_activations(case.model, case.training, case.plans)
    return ELEMENT_PASSES * fused / case.machine.memory


def _accumulation(case: _Case) -> Array:
    """Adding one micro-batch's gradients of one layer to the running sum: an fp32 read and write per weight."""
    layers, experts, _ = memory.parameters_per_gpu(case.model, case.plans)
    return 8 * (layers + experts) / case.layers / case.machine.memory


def _layer_compute(case: _Case) -> Array:
    """Forward, backward and recomputation of one layer for one micro-batch, without communication."""
    forward, backward = _attention(case)
    again = np.where(case.plans.recompute >= SELECTIVE, forward, 0.0)
    gpu = case.passes * (_linear(case) + _element_wise(case)) + forward + backward + again + _accumulation(case)
    launch = case.software.launch_seconds * case.passes / 3
    return np.sqrt(np.sqrt(gpu**4 + launch**4))


def _layer_communication(case: _Case) -> Array:
    """Exposed tensor, context and expert collectives of one layer and micro-batch, forward and backward."""
    return _tensor(case) + _context(case) + _expert(case)


def _tensor(case: _Case) -> Array:
    """Two all-reduces forward, two backward, two more when recomputed, each an all-gather and a reduce-scatter."""
    t = case.plans.tensor
    bandwidth = group_bandwidth(case.machine, t, np.ones_like(t), case.gpus_per_node)
    volume = case.element * case.tokens * case.model.hidden_size
    collectives = 2 * np.where(case.plans.recompute == FULL, 6, 4)
    return (1 - case.software.tensor_overlap) * collectives * _ring(t, volume, bandwidth)


def _context(case: _Case) -> Array:
    """Ring attention: keys and values go round once forward, with their gradients twice backward, behind attention."""
    c, t = case.plans.context, case.plans.tensor
    bandwidth = group_bandwidth(case.machine, c, t, case.gpus_per_node)
    volume = case.element * case.tokens * c * 2 * case.key_value / t
    forward, backward = _attention(case)
    again = np.where(case.plans.recompute >= SELECTIVE, 1, 0)
    return np.maximum(
        0.0, (3 + again) * _ring(c, volume, bandwidth) - case.software.data_overlap * (forward + backward)
    )


def _expert(case: _Case) -> Array:
    """All-to-all to the experts and back, forward and backward (and again when recomputed)."""
    if not case.model.experts:
        return np.zeros_like(case.plans.expert)
    e, inner = case.plans.expert, case.plans.tensor * case.plans.context
    bandwidth = group_bandwidth(case.machine, e, inner, case.gpus_per_node)
    # Every rank sends over its own adapter: unlike a ring, neighbours on the node do not save it any traffic.
    bandwidth = np.where(e * inner <= case.gpus_per_node, bandwidth, np.minimum(bandwidth, case.machine.network))
    volume = case.element * case.tokens * case.model.hidden_size * case.model.experts_per_token / case.plans.tensor
    return 2 * np.where(case.plans.recompute == FULL, 3, 2) * _ring(e, volume, bandwidth)


def _head(case: _Case) -> Array:
    """Output layer and loss on the last stage: one product three times, and the logits across memory in fp32."""
    columns = case.model.vocab_size / case.plans.tensor
    product = 3 * _gemm(case, case.tokens, case.model.hidden_size, columns)
    return product + 16 * case.tokens * columns / case.machine.memory


def _pipeline_transfer(case: _Case) -> Array:
    """Activations to the next stage and gradients back, once per chunk, split over the tensor group's adapters."""
    p, t = case.plans.pipeline, case.plans.tensor
    inside = case.plans.gpus <= case.gpus_per_node
    bandwidth = np.where(inside, case.machine.link, np.minimum(case.machine.link, case.machine.network))
    volume = case.element * case.tokens * case.model.hidden_size / t
    return np.where(p > 1, 2 * case.plans.virtual * (volume / bandwidth + LATENCY), 0.0)


def _data_communication(case: _Case, compute: Array) -> Array:
    """Exposed gradient and weight traffic over the D c ranks that hold the same parameters.

    `compute` (n,): one micro-batch on one stage, which hides as much as `Software.data_overlap` of it. Stages 0 and 1
    communicate with one micro-batch a step only, stage 2 scatters gradients with each, and stage 3 gathers the weights
    for forward and backward as well (6 bytes a parameter in 16 bit).
    """
    stage, more = case.plans.zero_stage, case.micro_batches - 1
    weight, gradient = case.element, 2.0 if case.training.precision is Precision.FP16 else 4.0
    once = np.where(stage == 0, 2 * gradient, gradient + weight)
    each = np.where(stage <= 1, 0.0, gradient)
    sharded = stage >= 3
    messages = np.where(sharded, 3 * case.layers, 1.0)
    hidden = case.software.data_overlap * compute
    first = _parameter_traffic(case, np.where(sharded, 3 * weight, once), messages)
    others = _parameter_traffic(case, np.where(sharded, 3 * weight, each), np.where(stage <= 1, 0.0, messages))
    return np.maximum(0.0, first - hidden) + more * np.maximum(0.0, others - hidden)


def _parameter_traffic(case: _Case, per_parameter: Array, messages: Array) -> Array:
    """Seconds to move so many bytes per parameter around the ranks that hold the same ones.

    Dense parameters have D c copies, those of an expert D c/e, e times further apart.
    """
    layers, experts, vocabulary = memory.parameters_per_gpu(case.model, case.plans)
    copies, apart = case.plans.data * case.plans.context, case.plans.tensor
    wide = group_bandwidth(case.machine, copies, apart, case.gpus_per_node)
    dense = _ring(copies, per_parameter * (layers + vocabulary), wide, messages)
    if not case.model.experts:
        return dense
    copies, apart = copies / case.plans.expert, apart * case.plans.expert
    narrow = group_bandwidth(case.machine, copies, apart, case.gpus_per_node)
    return dense + _ring(copies, per_parameter * experts, narrow, messages)


def _optimizer(case: _Case) -> Array:
    """Reading gradient, master weight and moments and writing them back, of this rank's share."""
    layers, experts, vocabulary = memory.parameters_per_gpu(case.model, case.plans)
    copies = np.where(case.plans.zero_stage >= 1, case.plans.data * case.plans.context, 1.0)
    share = (layers + vocabulary) / copies + experts / np.maximum(1.0, copies / case.plans.expert)
    return 30 * share / case.machine.memory
