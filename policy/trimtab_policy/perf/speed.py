"""Seconds of one optimizer step under a plan.

Notation as in `model_flops` and `memory`. A micro-batch crosses the fullest pipeline stage in

    stage = ceil(L/p) * layer + head,   layer = |gpu + exposed communication, launch|_edge

and a step is m stages, the pipeline's filling and draining, what data parallelism cannot hide, and the optimizer:

    step = m (stage + p2p) + (p - 1)(stage - head + p2p)/v + data + optimizer + host + fixed

The parts, each a function below: matrix products by a roofline with a penalty for narrow shapes; fused attention;
element-wise traffic; tensor-, context- and expert-parallel collectives; point-to-point of the pipeline (Narayanan et
al. 2021, arXiv 2104.04473); ZeRO/FSDP traffic (Rajbhandari et al. 2020, arXiv 1910.02054). Ranks are laid out tensor
innermost, then context, data, pipeline, as Megatron-Core and torchtitan do; that decides which links a group uses.

Beside frozen weights (LoRA) products have no gradient of their weights: two passes in place of three. Adapters are
products as narrow as their rank, quantized weights cross memory once more for every pass, and what travels between
ranks are gradients of the adapters alone; under ZeRO-3 frozen weights are gathered as they are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.perf import hardware, memory
from trimtab_policy.perf.hardware import GpuRates, Software
from trimtab_policy.perf.model_flops import ModelShape
from trimtab_policy.perf.plan_arrays import FULL, SELECTIVE, Array, Number, PlanColumns, Work


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
    host: Array
    """Transfers to and from the host's memory that computing does not hide, and the optimizer's step there."""
    stragglers: Array
    """Waiting for the slowest: jitter of hosts and network, with every doubling of nodes."""
    fixed: Array

    @property
    def computing(self) -> Array:
        """Share of the step that is spent computing."""
        return self.compute / self.total

    @property
    def total(self) -> Array:
        return (
            self.compute
            + self.layer_communication
            + self.bubble
            + self.pipeline_communication
            + self.data_communication
            + self.optimizer
            + self.host
            + self.stragglers
            + self.fixed
        )


CEILING = 0.95
"""Of the datasheet's peak: no product is ever faster, whatever the constants say together."""


class _Evaluation(NamedTuple):
    """What all parts of one evaluation share."""

    work: Work
    plans: PlanColumns
    machine: GpuRates
    software: Software
    linked: Number
    """GPUs that share a link."""
    trained: tuple[Array, Array, Array]
    """Trained parameters of a GPU, before ZeRO: layers, their experts, vocabulary."""

    @property
    def shape(self) -> ModelShape:
        return self.work.shape

    @property
    def tokens(self) -> Array:
        """Tokens of one micro-batch per context rank: s b/c."""
        return self.work.sequence * self.plans.micro_batch / self.plans.context

    @property
    def micro_batches(self) -> Array:
        return self.work.batch / (self.plans.data * self.plans.micro_batch)

    @property
    def layers(self) -> Array:
        return np.ceil(self.shape.layers / self.plans.pipeline)

    @property
    def passes(self) -> Array:
        """Forward passes' worth of work: one forward, two backward, one more when all is recomputed."""
        return np.where(self.plans.recompute == FULL, 4.0, 3.0)

    @property
    def unweighted(self) -> Array:
        """Passes of products with frozen weights, which have no gradient: one less."""
        return self.passes - (np.asarray(self.work.tuning.rank) > 0)


def step_time(
    work: Work, plans: PlanColumns, machine: GpuRates, linked: Number, software: Software | None = None
) -> StepTime:
    """Time of one optimizer step of each plan.

    `linked` (n,) or a number: GPUs of the gang that share a link, on one node or in one link domain, which of several
    domains is the smallest share. Software: by default what we launch.
    """
    software = software or hardware.software()
    case = _Evaluation(work, plans, machine, software, linked, memory.trained_per_gpu(work, plans))
    (layer, layer_comm, calm), head = _layer(case), _head(case)
    p2p, far = _pipeline_transfer(case), _far_wait(case)
    staged = plans.pipeline > 1
    layers, last = _split(case, layer + layer_comm, head)
    extra = np.maximum(0.0, head - (layers - last) * (layer + layer_comm))
    stage = layers * (layer + layer_comm)
    compute = layers * layer + extra
    micro_batches = case.micro_batches
    smooth = StepTime(
        compute=micro_batches * compute,
        layer_communication=micro_batches * layers * layer_comm,
        # While the pipeline fills and drains a rank has one thing to do at a time, so that nothing contends.
        bubble=(plans.pipeline - 1) / plans.virtual * layers * (layer + calm),
        pipeline_communication=(micro_batches + (plans.pipeline - 1) / plans.virtual) * p2p
        # p micro-batches are on their way at once, and each waits at all p - 1 crossings, there and back.
        + np.where(staged, 2 * micro_batches * far * (1 - 1 / plans.pipeline), 0.0),
        data_communication=_data_communication(case, stage + extra) + np.where(staged, 0.0, far),
        optimizer=_optimizer(case),
        host=_host(case, stage + extra),
        stragglers=np.zeros_like(compute),
        fixed=software.step_seconds + np.zeros_like(compute),
    )
    doublings = np.log2(np.maximum(1.0, plans.gpus / case.linked))
    return smooth._replace(stragglers=software.straggling * doublings * smooth.total)


def _split(case: _Evaluation, layer: Array, head: Array) -> tuple[Array, Array]:
    """(n,) layers of the fullest stage but the last, and of the last, which has the output layer as well.

    Software that does not balance stages gives each as many, and where they do not divide evenly the last the fewer.
    Balanced, no split has a shorter longest stage.
    `layer`, `head` (n,): seconds of a layer and of the output layer.
    """
    total, stages = case.shape.layers, case.plans.pipeline
    front, last = case.layers, np.floor(total / stages)
    if not np.any(case.software.balanced):
        return front, last
    best = np.full_like(layer, np.inf)
    even = np.floor((total + head / layer) / stages)
    for most in (np.maximum(even, 1.0), even + 1):  # layers of any stage but the last
        left = np.maximum(0.0, total - most * (stages - 1))
        others = np.minimum(most, np.ceil((total - left) / np.maximum(1, stages - 1)))
        longest = np.maximum(others * layer, left * layer + head)
        better = (stages > 1) & (case.software.balanced > 0) & (longest < best)
        front, last = np.where(better, others, front), np.where(better, left, last)
        best = np.where(better, longest, best)
    return front, last


UNIT = 256
"""GPUs whose machines share their lowest switches: 32 of 8, a scalable unit of NVIDIA's reference design (SuperPOD)."""


def _far_wait(case: _Evaluation) -> Array:
    """Seconds that an exchange between all ranks waits for paths through the upper levels of the network.

    In proportion to the peers of a rank that are not in its unit. Measured under nanotron on 512 GPUs of one cluster,
    for models of 3 and 80 billion parameters alike: where stages send to each other with every micro-batch, else once a
    step.
    """
    unit = np.maximum(UNIT, case.linked)
    return case.software.far_wait * (1 - unit / np.maximum(case.plans.gpus, unit))


def group_bandwidth(machine: GpuRates, size: Array, inner: Array, linked: Number) -> Array:
    """Bytes/s per GPU of a ring over `size` ranks that lie `inner` ranks apart.

    Among `linked` GPUs, of a node or of a link domain, it is the link. Between those the ring has as many network
    adapters to itself as it has ranks there: min(size, linked/inner). Pure data parallelism thus sees all adapters of a
    node, data parallelism over tensor groups of eight only one (measured on 2 x 8 GPUs: 44.7, 20.8, 16.2, 8.1 GB/s for
    8, 4, 2, 1 ranks per node; Galvatron, hardware_configs).
    """
    inside = np.clip(linked / inner, 1.0, size)
    outside = np.minimum(machine.link, machine.network * inside)
    return np.where(size * inner <= linked, machine.link, outside)


def _ring(case: _Evaluation, size: Array, inner: Array, volume: Array, messages: Array | float = 1.0) -> Array:
    """All-gather or reduce-scatter of `volume` bytes in all over `size` ranks that lie `inner` ranks apart.

    (n - 1)/n of it moves. A message has a latency, and one for each hop.
    """
    machine = case.machine
    hop = np.where(size * inner <= case.linked, machine.link_hop, machine.hop)
    moving = (size - 1) / size * volume / group_bandwidth(machine, size, inner, case.linked)
    return moving + messages * (size > 1) * (machine.latency + hop * (size - 1))


def _all_reduce(case: _Evaluation, size: Array, inner: Array, volume: Array, messages: Array | float = 1.0) -> Array:
    """Sum of `volume` bytes over `size` ranks that lie `inner` ranks apart, which all of them get.

    As many bytes as a reduce-scatter and an all-gather move. Between nodes it goes up and down a tree instead of around
    a ring, so that its hops grow with the logarithm of the nodes (NCCL since 2.4; Jeaugey 2019, Massively Scale Your
    Deep Learning Training with NCCL 2.4).
    """
    machine = case.machine
    inside = np.clip(case.linked / inner, 1.0, size)
    hops = machine.hop * np.log2(size / inside) + machine.link_hop * (inside - 1)
    moving = (size - 1) / size * volume / group_bandwidth(machine, size, inner, case.linked)
    return 2 * (moving + messages * (size > 1) * (machine.latency + hops))


_TILE = 128
"""Width of the tiles that tensor cores' products consist of, in 16 bit (NVIDIA, Matrix Multiplication Background)."""
_LACKING = np.array([0.0, *(_TILE.bit_length() - (width & -width).bit_length() for width in range(1, _TILE))])
"""Halvings that widths 0 to 127 lack to be multiples of a tile."""


def _misaligned(width: Number) -> Array:
    """Halvings that a width lacks to consist of whole tiles (0 to 7): of the last one a part is computed in vain."""
    lacking: Array = _LACKING[np.rint(width).astype(np.int64) & (_TILE - 1)]
    return lacking


def _gemm(case: _Evaluation, rows: Number, inner: Number, columns: Number) -> Array:
    """Forward seconds of (rows x inner) @ (inner x columns): the slower of arithmetic and memory.

    Narrow products run below peak, by 1 + w/min(shape), for tiles and pipelines that they do not fill.
    """
    narrowest = np.maximum(np.minimum(np.minimum(rows, inner), columns), 1e-9)
    odd = _misaligned(inner) + _misaligned(columns)
    rate = np.minimum(case.machine.product * case.software.skill, CEILING * case.machine.peak)
    arithmetic = 2 * rows * inner * columns / rate
    arithmetic = arithmetic * (1 + case.machine.half_width / narrowest) * (1 + case.machine.misalignment * odd)
    elements = rows * columns + inner * columns + rows * inner
    return np.maximum(arithmetic, case.work.format.operand * elements / case.machine.memory)


def _projections(case: _Evaluation) -> Array:
    """Forward seconds of query, key, value and output projections, direct or through latent vectors."""
    m, h, t, tokens = case.shape, case.shape.hidden, case.plans.tensor, case.tokens
    output = _gemm(case, tokens, m.weighted / t, h)
    direct = _gemm(case, tokens, h, (m.query + m.key + m.value) / t)
    if not np.any(m.key_value_rank):
        return direct + output
    query = np.where(
        m.query_rank,
        _gemm(case, tokens, h, m.query_rank) + _gemm(case, tokens, m.query_rank, m.query / t),
        _gemm(case, tokens, h, m.query / t),
    )
    unrotated = m.key - m.heads * m.position
    down = _gemm(case, tokens, h, m.key_value_rank + m.position)
    latent = query + down + _gemm(case, tokens, m.key_value_rank, (unrotated + m.value) / t)
    return np.where(m.key_value_rank, latent, direct) + output


def _grouped(case: _Evaluation) -> _Evaluation:
    """The same with the rate of products that are grouped by expert."""
    machine = case.machine
    return case._replace(machine=machine._replace(product=machine.product * machine.grouped))


def _block(case: _Evaluation, tokens: Number, width: Number) -> Array:
    """Forward seconds of one feed-forward block."""
    h = case.shape.hidden
    return _gemm(case, tokens, h, case.shape.gates * width) + _gemm(case, tokens, width, h)


def _linear(case: _Evaluation) -> Array:
    """Forward seconds of an average layer's matrix products with weights."""
    m, t, tokens = case.shape, case.plans.tensor, case.tokens
    dense = _block(case, tokens, m.ffn / t)
    projections = _projections(case) * (1 + m.cross_layers / m.layers)
    if not np.any(m.experts):
        return projections + dense
    local = np.maximum(1.0, m.experts / case.plans.expert)
    routed = tokens * m.active / local
    mixture = local * _block(_grouped(case), routed, m.expert_ffn / t) + _gemm(case, tokens, m.hidden, m.experts)
    mixture = mixture + np.where(m.shared_ffn, _block(case, tokens, m.shared_ffn / t), 0.0)
    return projections + (m.dense_layers * dense + m.expert_layers * mixture) / m.layers


_USUAL_HEAD = 128
"""Width of a head that the rate of fused attention is that of."""


def _attention(case: _Evaluation) -> tuple[Array, Array]:
    """Seconds of scores and weighting of one layer, (forward, backward); only the visible part of the square counts.

    The exponential of a score takes its time whatever the width of a head, so that narrow heads run slower (Shah et al.
    2024, arXiv 2407.08608, section 1). The fused backward recomputes the scores: 2.5 forwards (Dao 2023, arXiv
    2307.08691). Unfused scores cross memory
    about 40 bytes an element in all, a third of it forward.
    """
    m, s, t = case.shape, case.work.sequence, case.plans.tensor
    sides = 1 + m.cross_layers / m.layers
    forward = 2 * m.visible * sides * case.tokens * s * (m.query + m.weighted) / t
    width = m.query / m.heads
    exponentials = (1 + case.machine.exponential / width) / (1 + case.machine.exponential / _USUAL_HEAD)
    rate = np.minimum(case.machine.attention * case.software.skill, CEILING * case.machine.wide_peak)
    forward = forward * exponentials / rate
    crossing = case.software.score_bytes * case.work.format.activation / 2 * case.tokens * s * m.heads / t
    crossing = crossing * sides / case.machine.memory * (1 + case.machine.odd_heads * (m.query / m.heads % 8 > 0))
    fused = case.software.fused_attention
    return forward + (1 - fused) * crossing / 3, (2 + 0.5 * fused) * forward + (1 - fused) * crossing * 2 / 3


def _element_wise(case: _Evaluation) -> Array:
    """Forward seconds of norms, activations, residuals, dropout: stored activations cross memory a few times."""
    return case.software.passes * memory.layer_activations(case.work, case.plans) / case.machine.memory


def _routing(case: _Evaluation) -> Array:
    """Seconds of sorting tokens by expert and back, forward and backward: each of its experts has a copy of a token."""
    m = case.shape
    copies = m.active * m.expert_layers / m.layers * case.tokens * m.hidden / case.plans.tensor
    return case.software.expert_time * case.software.routing_bytes * copies / case.machine.memory


def _accumulation(case: _Evaluation) -> Array:
    """Adding one micro-batch's gradients of one layer to the running sum: fp32, read and written, and more."""
    layers, experts, _ = case.trained
    return case.software.accumulation_bytes * (layers + experts) / case.layers / case.machine.memory


def _layer(case: _Evaluation) -> tuple[Array, Array, Array]:
    """One layer for one micro-batch: seconds of computing, what exposed communication adds to them, and what alone.

    The GPU works through kernels and collectives one after the other, while the host launches them: the slower of the
    two sets the pace, with a soft edge. Where the host is slower, communication costs nothing more. Last, what
    communication adds where no other micro-batch is on its way (`_contention`).
    """
    edge = case.machine.edge
    launch = case.software.launch_seconds * case.passes / 3
    launch = launch * np.where(case.plans.tensor > 1, 1 + case.software.tensor_launch, 1.0)
    routing = case.software.expert_launch * case.software.expert_time
    launch = launch * (1 + routing * case.shape.expert_layers / case.shape.layers)
    if case.work.tuning.adapted:
        launch = launch * (1 + case.software.adapter_launch * memory.adapted_matrices(case.work))
    gpu = _layer_compute(case)
    longest = np.maximum(gpu, launch)
    alone = longest * ((gpu / longest) ** edge + (launch / longest) ** edge) ** (1 / edge)
    both = gpu + _layer_communication(case)

    def paced(launch: Array) -> Array:
        longest = np.maximum(both, launch)
        found: Array = longest * ((both / longest) ** edge + (launch / longest) ** edge) ** (1 / edge)
        return found

    contention = _contention(case)
    undisturbed = paced(launch) - alone
    if not np.any(contention):
        return alone, undisturbed, undisturbed
    return alone, paced(launch + contention) - alone, undisturbed


def _contention(case: _Evaluation) -> Array:
    """Seconds that a layer's tensor collectives wait for hosts that are busy with sends between stages on other nodes.

    Each rank of a tensor group drives the network for its own part of the activations, and the group goes on when the
    last of them has launched. Measured under nanotron on H100: the same per layer for models of 3 and 80 billion
    parameters and for every micro-batch, in proportion to the tensor degree, and nothing where all stages share a node.
    """
    plans = case.plans
    meets = (plans.pipeline > 1) & (plans.tensor > 1) & (plans.gpus > case.linked)
    return np.where(meets, case.software.contention * plans.tensor * case.passes / 3, 0.0)


def _layer_compute(case: _Evaluation) -> Array:
    """Forward, backward and recomputation of one layer for one micro-batch, as the GPU's kernels take."""
    forward, backward = _attention(case)
    again = case.plans.recompute
    attention = forward + backward + np.where(again >= SELECTIVE, forward, 0.0)
    linear, element_wise, routing = _linear(case), _element_wise(case), _routing(case) / 3
    if not case.work.tuning.adapted:
        return case.passes * (linear + element_wise + routing) + attention + _accumulation(case)
    frozen = case.unweighted * (linear + _dequantization(case))
    return frozen + case.passes * (element_wise + routing + _adapters(case)) + attention + _accumulation(case)


def _dequantization(case: _Evaluation) -> Array:
    """Seconds of bringing a layer's quantized matrices into the precision of its products, for one pass."""
    layers, experts, _ = memory.parameters_per_gpu(case.shape, case.plans)
    numbers = (layers + experts) / case.layers
    moved: Array = case.work.tuning.quantized * case.software.dequantization_bytes * numbers
    return moved / case.machine.memory


def _adapters(case: _Evaluation) -> Array:
    """Forward seconds of a layer's adapters: two products as narrow as their rank per matrix, and their sum."""
    m, t, tokens, tuning = case.shape, case.plans.tensor, case.tokens, case.work.tuning
    rank = np.maximum(tuning.rank, 1.0)

    def adapter(tokens: Number, inputs: Number, outputs: Number) -> Array:
        added = 3 * case.work.format.activation * tokens * outputs / case.machine.memory
        return _gemm(case, tokens, inputs, rank) + _gemm(case, tokens, rank, outputs) + added

    def block(tokens: Number, width: Number) -> Array:
        return m.gates * adapter(tokens, m.hidden, width / t) + adapter(tokens, width / t, m.hidden)

    ends = adapter(tokens, m.hidden, m.query / t) + adapter(tokens, m.hidden, m.value / t)
    others = adapter(tokens, m.hidden, m.key / t) + adapter(tokens, m.weighted / t, m.hidden)
    attention = (1 + m.cross_layers / m.layers) * (tuning.query_value * ends + tuning.key_output * others)
    blocks = m.dense_layers * block(tokens, m.ffn)
    if np.any(m.experts):
        local = np.maximum(1.0, m.experts / case.plans.expert)
        mixture = local * block(tokens * m.active / local, m.expert_ffn)
        blocks = blocks + m.expert_layers * (mixture + np.where(m.shared_ffn, block(tokens, m.shared_ffn), 0.0))
    found: Array = np.where(tuning.rank, attention + tuning.block * blocks / m.layers, 0.0)
    return found


def _layer_communication(case: _Evaluation) -> Array:
    """Tensor, context and expert collectives of one layer for one micro-batch that nothing hides."""
    return (1 - case.software.tensor_overlap) * _tensor(case) + _context(case) + _expert(case)


def _tensor(case: _Evaluation) -> Array:
    """Four all-reduces of the activations a layer, six with full recomputation (Shoeybi et al. 2019, section 3).

    With sequence parallelism each is an all-gather and a reduce-scatter of the same volume.
    """
    t = case.plans.tensor
    volume = case.work.format.activation * case.tokens * case.shape.hidden
    all_reduces = np.where(case.plans.recompute == FULL, 6, 4) * (1 + case.shape.cross_layers / case.shape.layers / 2)
    return 2 * all_reduces * _ring(case, t, np.ones_like(t), volume)


def _context(case: _Evaluation) -> Array:
    """Ring attention: keys and values go round once forward, with their gradients twice backward, behind attention."""
    c, t = case.plans.context, case.plans.tensor
    volume = case.work.format.activation * case.tokens * c * (case.shape.key + case.shape.value) / t
    forward, backward = _attention(case)
    again = np.where(case.plans.recompute >= SELECTIVE, 1, 0)
    moving = (3 + again) * _ring(case, c, t, volume)
    return np.maximum(0.0, moving - case.software.data_overlap * (forward + backward))


def _expert(case: _Evaluation) -> Array:
    """All-to-all to the experts and back, forward and backward (and again when recomputed).

    What stays on the node uses the link. To another node a token goes once, however many of its experts are there: k
    experts on N nodes are on (N - 1)(1 - (1 - 1/N)^k) others in the mean (DeepSeek-AI 2024, arXiv 2412.19437, 3.2.2).
    """
    m = case.shape
    if not np.any(m.experts):
        return np.zeros_like(case.plans.expert)
    e, inner = case.plans.expert, case.plans.tensor * case.plans.context
    nodes = np.clip(e * inner / case.linked, 1.0, e)
    here = m.active / nodes * (1 - nodes / e)
    elsewhere = (nodes - 1) * (1 - (1 - 1 / nodes) ** m.active)
    token = case.work.format.activation * case.tokens * m.hidden / case.plans.tensor
    moving = token * np.maximum(here / case.machine.link, elsewhere / case.machine.network) / case.machine.all_to_all
    times = 2 * np.where(case.plans.recompute == FULL, 3, 2) * m.expert_layers / m.layers
    hops = case.machine.hop * (nodes - 1) + case.machine.link_hop * (e - nodes)
    return times * np.where(e > 1, (moving + case.machine.latency + hops) * case.software.expert_time, 0.0)


def _head(case: _Evaluation) -> Array:
    """Output layer and loss on the last stage: a product three times, in 16 bit even under FP8 recipes, fp32 logits."""
    t = case.plans.tensor
    padded = case.software.pads_vocabulary + (t > 1) > 0
    columns = np.where(padded, np.ceil(case.shape.vocabulary / t / 128) * 128, case.shape.vocabulary)
    wide = case._replace(machine=case.machine._replace(product=case.machine.wide, peak=case.machine.wide_peak))
    logits: Array = case.software.logit_bytes * case.tokens * columns / case.machine.memory
    # The output layer is not recomputed: three passes, or two where it is frozen.
    passes = 3 - (np.asarray(case.work.tuning.rank) > 0)
    return passes * _gemm(wide, case.tokens, case.shape.hidden, columns) + logits


def _pipeline_transfer(case: _Evaluation) -> Array:
    """Activations to the next stage and gradients back, once per chunk, split over the tensor group's adapters."""
    p, t = case.plans.pipeline, case.plans.tensor
    inside = case.plans.gpus <= case.linked
    bandwidth = np.where(inside, case.machine.link, np.minimum(case.machine.link, case.machine.network))
    volume = case.work.format.activation * case.tokens * case.shape.hidden / t
    return np.where(p > 1, 2 * case.plans.virtual * (volume / bandwidth + case.machine.latency), 0.0)


def _data_communication(case: _Evaluation, busy: Array) -> Array:
    """Exposed gradient and weight traffic over the D c ranks that hold the same parameters.

    `busy` (n,): one micro-batch on one stage. `Software.data_overlap` of it hides as much traffic that goes along with
    the passes: gradients, and the weights of stage 3. Stages 0 and 1 reduce gradients with one micro-batch a step only,
    stage 2 scatters them with each, and stage 3 gathers the weights for forward and backward as well (6 bytes a
    parameter in 16 bit). Stages 1 and 2 gather the weights that the optimizer has renewed once a step, which hides
    behind the next forward pass only in software that looks ahead (`Software.gather_overlap`). Nothing is hidden where
    stage 1 is late (`FrameworkFacts.late_reduction`).
    """
    stage, more = case.plans.zero_stage, case.micro_batches - 1
    weight, gradient = case.work.format.activation, case.work.format.wire
    gathers = np.where(stage >= 3, 2 * weight, 0.0)
    each = _parameter_traffic(case, gathers, gradient) + _frozen_traffic(case)
    renewed = np.where((stage == 1) | (stage == 2), _parameter_traffic(case, weight, 0.0), 0.0)
    hidden, ahead = case.software.data_overlap * busy, case.software.gather_overlap * busy
    if np.any(late := _late(case)):
        renewed = renewed + np.where(late, _unflattening(case), 0.0)
        hidden, ahead = np.where(late, 0.0, hidden), np.where(late, 0.0, ahead)
    exposed = (1 + np.where(stage >= 2, more, 0.0)) * np.maximum(0.0, each - hidden)
    return exposed + np.maximum(0.0, renewed - ahead)


def _late(case: _Evaluation) -> NDArray[np.bool_]:
    """Where gradients are summed after the last backward pass, whole (`FrameworkFacts.late_reduction`)."""
    late: NDArray[np.bool_] = (case.plans.zero_stage == 1) & (np.asarray(case.software.late_reduction) > 0)
    return late


_TENSORS = 6
"""Parameter tensors of a layer with fused projections: four matrices and two norms."""


def _unflattening(case: _Evaluation) -> Array:
    """Seconds to copy weights out of the flat buffer of each rank that renewed them, tensor by tensor."""
    copies = case.plans.data * case.plans.context
    seconds: Array = case.software.unflatten * _TENSORS * case.layers * np.where(copies > 1, copies, 0.0)
    return seconds


def _frozen_traffic(case: _Evaluation) -> Array:
    """Seconds to gather frozen weights, as they are kept, for the forward and the backward pass: stage 3 alone."""
    if not case.work.tuning.adapted:
        return np.zeros_like(case.plans.data)
    plans = case.plans
    dense, experts = memory.frozen_per_gpu(case.work, plans)
    copies = plans.data * plans.context
    shard = np.where(plans.shard > 0, np.minimum(plans.shard, copies), copies)
    messages = 2 * case.layers * case.software.messages
    moving = _ring(case, shard, plans.tensor, 2 * dense, messages)
    if np.any(case.shape.experts):
        apart = plans.tensor * plans.expert
        moving = moving + _ring(case, np.maximum(1.0, copies / plans.expert), apart, 2 * experts, messages)
    return np.where((plans.zero_stage >= 3) & (np.asarray(case.work.tuning.rank) > 0), moving, 0.0)


def _parameter_traffic(case: _Evaluation, gathered: Number, gradient: Number) -> Array:
    """Seconds to gather so many bytes per parameter and to reduce its gradient, over the ranks that hold the same ones.

    Dense parameters have D c copies, those of an expert D c/e, e times further apart. Where only S of the copies share
    one (hybrid sharding), weights and gradients move among those, and 1/S of the gradient between the groups (Zhang et
    al. 2022, MiCS, arXiv 2205.00119). Without sharding gradients are all-reduced, twice their bytes, in buckets of a
    layer or so (`FrameworkFacts.bucket`), late ones at once. Shards may travel parameter by parameter.
    """
    plans = case.plans
    layers, experts, vocabulary = case.trained
    late = _late(case)
    whole = (plans.zero_stage == 0) | late
    pieces = np.where(plans.zero_stage >= 1, case.software.messages, np.minimum(case.software.messages, 1.0))
    messages = np.where(late, 1.0, np.where(plans.zero_stage >= 3, 3, 1) * case.layers * pieces)
    bucket = np.where(late, 0.0, case.software.bucket)

    def moved(parameters: Array, copies: Array, apart: Array, shard: Array) -> Array:
        scattered = gathered + np.where(whole, 0.0, gradient)
        inside = _ring(case, shard, apart, scattered * parameters, messages * (scattered > 0))
        if not np.any(gradient):
            return inside
        buckets = np.where(bucket > 0, parameters / np.maximum(bucket, 1.0), messages)
        summed = _all_reduce(case, shard, apart, gradient * parameters, buckets)
        between = _all_reduce(case, copies / shard, apart * shard, gradient / shard * parameters, case.layers)
        return inside + np.where(whole, summed, 0.0) + between

    copies = plans.data * plans.context
    shard = np.where((plans.shard > 0) & (plans.zero_stage > 0), np.minimum(plans.shard, copies), copies)
    dense = moved(layers + vocabulary, copies, plans.tensor, shard)
    if not np.any(case.shape.experts):
        return dense
    copies = np.maximum(1.0, copies / plans.expert)
    return dense + moved(experts, copies, plans.tensor * plans.expert, copies)


def _optimizer(case: _Evaluation) -> Array:
    """Reading gradient, master weight and moments and writing them back, of this rank's share."""
    seconds: Array = case.software.optimizer_bytes * _share(case) / case.machine.memory
    if not case.work.tuning.offloads:
        return seconds
    here: Array = seconds * (1 - np.asarray(case.work.tuning.optimizer_host))
    return here


def _share(case: _Evaluation) -> Array:
    """Trained parameters that this rank's optimizer steps."""
    layers, experts, vocabulary = case.trained
    copies = np.where(case.plans.zero_stage >= 1, case.plans.data * case.plans.context, 1.0)
    share: Array = (layers + vocabulary) / copies + experts / np.maximum(1.0, copies / case.plans.expert)
    return share


def _host(case: _Evaluation, busy: Array) -> Array:
    """Seconds that what is offloaded adds to a step. `busy` (n,): one micro-batch on one stage.

    Weights come twice with every micro-batch, activations go and come back: what of it goes along with the passes is
    hidden as other traffic is (`Software.data_overlap`). Once a step gradients go to the host, which steps, and weights
    come back (Ren et al. 2021, arXiv 2101.06840, section 4); the ranks of a node share its processors. Paged states
    come and go.
    """
    work, plans = case.work, case.plans
    tuning, form = work.tuning, work.format
    if not tuning.offloads:
        return np.zeros_like(plans.data)
    held = memory.states(work, plans)
    stored = case.layers * memory.kept_per_layer(work, plans, memory.layer_activations(work, plans))
    moving = (
        2 * (tuning.weights_host * (held.weights + held.frozen) + tuning.activations_host * stored) / case.machine.host
    )
    exposed = case.micro_batches * np.maximum(0.0, moving - case.software.data_overlap * busy)
    share = _share(case)
    there = share * (form.wire + form.activation) / case.machine.host
    stepping = share * case.software.host_step * np.minimum(plans.gpus, case.linked)
    paging = 2 * share * (form.master + form.moments) / case.machine.host
    seconds: Array = exposed + tuning.optimizer_host * (there + stepping) + tuning.optimizer_paged * paging
    return seconds
