"""A GPU and a training framework as the time model sees them: datasheet times fitted constants.

`Datasheet` holds facts, `constants` what is reached of them; `machine` and `software` multiply the two. All of them
take numbers for one GPU, or columns (n,) where every row is a run on a GPU of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypedDict

import numpy as np

from trimtab_policy import catalog
from trimtab_policy.perf import constants as fitted
from trimtab_policy.perf.constants import Constants, Lookup
from trimtab_policy.perf.memory import IN_PLACE, PLAIN, SHIFTED, UPCAST, VOCABULARY_PARALLEL
from trimtab_policy.perf.model_flops import Number
from trimtab_policy.specs import GpuSpec, Precision

CURRENT = "megatron-core"
"""The software that is meant where none is named: what the Megatron launcher starts."""

_UNFUSED = frozenset(
    {"megatron-deepspeed", "megatron-deepspeed-1f1b", "megatron-lm", "deepspeed-zero3", "nemo-megatron", "sailor"}
)
"""Frameworks of 2019 to 2022, whose attention writes the s x s scores to memory."""

_UNPADDED = frozenset({"megatron-deepspeed-1f1b"})
"""Frameworks that take an odd vocabulary as it is: GPT-2's 50,257 costs them dearly."""

_BALANCED = frozenset({"nanotron"})
"""Frameworks that split a pipeline by what its blocks are estimated to cost (nanotron: `get_block_compute_costs`)."""

_LATE = frozenset({"nanotron"})
"""Frameworks that under ZeRO 1 sum gradients after the last backward pass, whole on every rank, and gather weights
after the step, while nothing else goes on (nanotron until 2025: `make_ddp`, `sync_gradients_across_dp`)."""

_BUCKETS = {"nanotron": 25 * 2.0**20 / 2}
"""Gradients in 16 bit that fill a bucket of PyTorch's DDP, where stage 0 sums them by bucket (nanotron: 25 MB)."""

_EAGER = frozenset({"peft", "qwen", "qlora", "litgpt", "fsdp-qlora"})
"""Frameworks whose layers run operation by operation in PyTorch."""

_LOSSES = {
    "torchtune": IN_PLACE,  # in fp32 a chunk at a time
    "litgpt": VOCABULARY_PARALLEL,  # log-softmax and gradient in 16 bit
    "qwen": SHIFTED,
    **dict.fromkeys(("peft", "qlora", "fsdp-qlora"), UPCAST),
}
"""Bytes per logit of those frameworks whose loss is another than PyTorch's on logits as they are."""

_PCIE = 40e9
"""No NVLink is slower, no PCIe link of today faster, in bytes/s and direction."""


_HOST_LINKS = {
    **dict.fromkeys(("Volta", "Turing"), 16e9),
    **dict.fromkeys(("Ampere", "Ada", "CDNA1", "CDNA2", "Gaudi2"), 32e9),
    **dict.fromkeys(("Hopper", "Blackwell", "CDNA3", "CDNA4", "Gaudi3"), 64e9),
}
"""Bytes/s and direction between GPU and host: 16 lanes of PCIe 3, 4 or 5, as the products of a generation have."""
_SUPERCHIPS = ("GH", "GB")
_SUPERCHIP_LINK = 450e9
"""NVLink-C2C of superchips (NVIDIA Grace Hopper whitepaper: 900 GB/s in both directions)."""


class Datasheet(NamedTuple):
    """Facts of one GPU at one precision; numbers or columns (n,)."""

    operand_peak: Number
    """FLOP/s of products with operands of the linear layers' format."""
    wide_peak: Number
    """FLOP/s in the format that attention and the output layer keep: 16 bit when the linear layers go to FP8."""
    power: Number
    """Watts per FLOP/s at 16 bit, relative to the generation's reference product."""
    single: Number
    """1 in FP32, without matrix units."""
    low: Number
    """1 in FP8 and FP4."""
    memory: Number
    link: Number
    network: Number
    domain: Number
    """GPUs that share the link where that is more than a node; 0 otherwise."""
    host: Number
    """Bytes/s and direction to the host's memory."""


class GpuRates(NamedTuple):
    """One GPU as the time model sees it: rates in FLOP/s and bytes/s after efficiency; numbers or columns (n,)."""

    peak: Number
    """Datasheet peak of the linear layers' operands: no product exceeds `speed.CEILING` of it."""
    product: Number
    """Matrix products of linear layers."""
    wide: Number
    """Products that stay in 16 bit where the linear layers' operands are narrower: the output layer's."""
    wide_peak: Number
    """Datasheet peak of those."""
    half_width: Number
    """Smallest dimension at which a product runs at half its rate."""
    misalignment: Number
    grouped: Number
    """Rate of products grouped by expert, relative to the others'."""
    odd_heads: Number
    attention: Number
    """Fused, of heads of the usual width (`speed`)."""
    exponential: Number
    """Width of a head whose products take as long as the exponentials of its scores."""
    memory: Number
    link: Number
    network: Number
    all_to_all: Number
    """Bandwidth of an all-to-all relative to these two, which are those of rings."""
    latency: Number
    """Seconds to start a collective."""
    hop: Number
    """Seconds more for each further rank of its ring."""
    link_hop: Number
    """The same where all ranks share the link."""
    edge: Number
    """How sharply the slower of GPU and host sets the pace: the exponent of a norm, infinite for a maximum."""
    host: Number
    """To the host's memory and back, each direction by itself."""


class FrameworkFacts(NamedTuple):
    """What is known of a framework without measuring; numbers or columns (n,)."""

    fused_attention: Number
    pads_vocabulary: Number
    loss_bytes: Number
    """Bytes that its loss adds to each logit; see `memory`."""
    captured: Number = 0.0
    """1: whole layers are launched as CUDA graphs, which leaves nothing of routing and experts to the host."""
    eager: Number = 0.0
    """1: norms and activation functions go operation by operation, and adapters have dropout; see `memory`."""
    balanced: Number = 0.0
    """1: stages of a pipeline get layers by what they cost, so that the one with the output layer has fewer."""
    late_reduction: Number = 0.0
    """1: ZeRO 1 sums gradients as stage 0 does, and after the passes, so that nothing hides them or the weights."""
    bucket: Number = 0.0
    """Gradients that stage 0 sums at once; 0: those of a layer."""


class Software(NamedTuple):
    """What the training framework does about the costs that hardware alone does not set; numbers or columns (n,)."""

    skill: Number
    """Speed of its products and attention, relative to the middle of all frameworks."""
    fused_attention: Number
    """1: FlashAttention; 0: the s x s scores go to memory and back."""
    pads_vocabulary: Number
    """1: the vocabulary is filled up to whole tiles of 128; 0: only where tensor parallelism makes it."""
    score_bytes: Number
    logit_bytes: Number
    launch_seconds: Number
    tensor_launch: Number
    """What tensor parallelism adds to it, as a fraction."""
    expert_launch: Number
    """What routing to experts adds to it, as a fraction."""
    balanced: Number
    """1: stages of a pipeline get layers by what they cost; see `FrameworkFacts`."""
    late_reduction: Number
    """1: nothing hides what ZeRO 1 moves; see `FrameworkFacts`."""
    bucket: Number
    """Gradients that stage 0 sums at once; see `FrameworkFacts`."""
    unflatten: Number
    """Seconds to copy one rank's part of a parameter tensor out of a flat buffer."""
    far_wait: Number
    """Seconds that an exchange waits where all paths of a job leave their unit of machines."""
    contention: Number
    """Seconds that a layer waits for each rank of its tensor group, in a pipeline over the network."""
    passes: Number
    expert_time: Number
    """Time of routing and of grouped products over that where they are fused and captured."""
    routing_bytes: Number
    """That cross memory per number of a token sent to an expert."""
    tensor_overlap: Number
    data_overlap: Number
    gather_overlap: Number
    messages: Number
    accumulation_bytes: Number
    optimizer_bytes: Number
    step_seconds: Number
    straggling: Number
    dequantization_bytes: Number
    """That cross memory per number of a frozen weight that is quantized, each time that it is multiplied."""
    adapter_launch: Number
    """What the adapter of one matrix adds to the launch of a layer, as a fraction."""
    host_step: Number
    """Seconds in which a host steps one parameter."""


def linked(gpu: GpuSpec, gpus_per_node: int) -> int:
    """GPUs that share a link at best, where a gang uses so many of each node: these, or all of a link domain."""
    return max(gpus_per_node, gpu.link_domain)


def datasheet(gpu: GpuSpec, precision: Precision) -> Datasheet:
    """Facts of a GPU. Raises ValueError when it lacks the precision."""
    if precision not in gpu.peak_flops:
        raise ValueError(f"{gpu.name} does not support {precision}: use one of {', '.join(sorted(gpu.peak_flops))}")
    wide = Precision.BF16 if precision is Precision.FP8 else precision
    return Datasheet(
        operand_peak=gpu.peak_flops[precision],
        wide_peak=gpu.peak_flops.get(wide, gpu.peak_flops[precision]),
        power=_power(gpu),
        single=float(precision is Precision.FP32),
        low=float(precision is Precision.FP8),
        memory=gpu.memory_bandwidth,
        link=gpu.link_bandwidth,
        network=gpu.network_bandwidth,
        domain=float(gpu.link_domain),
        host=_SUPERCHIP_LINK if gpu.name.startswith(_SUPERCHIPS) else _HOST_LINKS.get(gpu.architecture, 16e9),
    )


_REFERENCE = {
    "Volta": "V100-SXM2-32GB",
    "Ampere": "A100-SXM4-80GB",
    "Hopper": "H100-SXM5-80GB",
    "Blackwell": "GB200-186GB",
}
"""What the constants of a generation were fitted on, for the most part."""


MOST_POWER = 1.2
"""Beyond that more watts per FLOP/s do not help: what is left of the peak are the product's own limits (H20: 4.8)."""


def _power(gpu: GpuSpec) -> float:
    """Power decides the clocks that a card can hold: products of one generation share what they can do with a watt."""
    name = _REFERENCE.get(fitted.generation(gpu))
    if name is None or Precision.FP16 not in gpu.peak_flops:
        return 1.0

    def each(one: GpuSpec) -> float:
        return one.power_watts / one.peak_flops[Precision.FP16]

    return min(each(gpu) / each(catalog.gpu(name)), MOST_POWER)


def stack(sheets: Sequence[Datasheet]) -> Datasheet:
    """Many GPUs as columns of shape (n,)."""
    return Datasheet(*np.array(sheets, dtype=np.float64).reshape(-1, len(Datasheet._fields)).T)


def reached(sheet: Datasheet, value: Lookup) -> GpuRates:
    """Rates of a GPU, or columns of them, with these constants."""
    wide_share = value("gemm") * np.where(sheet.single, value("fp32"), sheet.power ** value("power"))
    share = wide_share * np.where(sheet.low, value("low") * value("low_skill"), 1.0)
    return GpuRates(
        peak=sheet.operand_peak,
        product=sheet.operand_peak * share,
        wide=sheet.wide_peak * wide_share,
        wide_peak=sheet.wide_peak,
        half_width=value("half_width") * np.sqrt(sheet.wide_peak / 312e12),
        misalignment=value("misalignment"),
        grouped=value("grouped"),
        odd_heads=value("odd_heads"),
        attention=sheet.wide_peak * value("gemm") * value("attention"),
        exponential=value("exponential"),
        memory=sheet.memory * value("memory"),
        link=sheet.link * np.where(sheet.link < _PCIE, value("pcie"), value("link")),
        network=sheet.network * value("network"),
        all_to_all=value("all_to_all"),
        latency=value("latency"),
        hop=value("hop"),
        link_hop=value("link_hop"),
        edge=value("edge"),
        host=sheet.host * value("host_link"),
    )


def practised(value: Lookup, facts: FrameworkFacts, youth: Number = 0.0) -> Software:
    """A framework, or columns of them, with these constants; `youth` is what is left of a GPU generation's (0 to 1)."""
    return Software(
        skill=value("skill") / (1 + value("youth") * youth),
        fused_attention=facts.fused_attention,
        pads_vocabulary=facts.pads_vocabulary,
        score_bytes=value("score_bytes"),
        logit_bytes=value("logit_bytes"),
        launch_seconds=value("launch") * np.where(facts.captured, value("captured"), 1.0),
        tensor_launch=value("tensor_launch"),
        expert_launch=value("expert_launch"),
        balanced=facts.balanced,
        late_reduction=facts.late_reduction,
        bucket=facts.bucket,
        unflatten=value("unflatten"),
        far_wait=value("far_wait"),
        contention=value("contention"),
        passes=value("passes"),
        expert_time=1 + value("unfused_experts") * (1 - np.asarray(facts.captured)),
        routing_bytes=value("routing_bytes"),
        tensor_overlap=value("tensor_overlap"),
        data_overlap=value("data_overlap"),
        gather_overlap=value("gather_overlap"),
        messages=value("messages"),
        accumulation_bytes=value("accumulation_bytes"),
        optimizer_bytes=value("optimizer_bytes"),
        step_seconds=value("step"),
        straggling=value("straggling"),
        dequantization_bytes=value("dequantization"),
        adapter_launch=value("adapter_launch"),
        host_step=value("host_step") / 1e9,
    )


def facts(software: str) -> FrameworkFacts:
    """What is known of a framework without measuring."""
    loss = VOCABULARY_PARALLEL if software.startswith(("megatron", "nemo")) else PLAIN
    return FrameworkFacts(
        fused_attention=float(software not in _UNFUSED),
        pads_vocabulary=float(software not in _UNPADDED),
        loss_bytes=_LOSSES.get(software, loss),
        eager=float(software in _EAGER),
        balanced=float(software in _BALANCED),
        late_reduction=float(software in _LATE),
        bucket=_BUCKETS.get(software, 0.0),
    )


class Kernels(TypedDict):
    """What `memory.footprint` is to know of a framework's kernels."""

    loss_bytes: Number
    eager: Number


def kernels(software: str) -> Kernels:
    """Of a framework that runs a job. Attention is fused in all that run one today, and models have no dropout."""
    known = facts(software)
    return Kernels(loss_bytes=known.loss_bytes, eager=known.eager)


def machine(gpu: GpuSpec, precision: Precision, *, spread: float = 1.0, software: str = CURRENT) -> GpuRates:
    """Rates of a GPU under some software, with the constants in use.

    `spread` >= 1 divides the network's bandwidth: how much a placement's way through it narrows.
    Raises ValueError when the GPU lacks the precision.
    """
    full = _machine(gpu, precision, software, fitted.active())
    return full if spread <= 1.0 else full._replace(network=full.network / spread)


def software(name: str = CURRENT) -> Software:
    """A framework on a GPU generation that it has known for years, with the constants in use."""
    return _software(name, fitted.active())


@lru_cache(maxsize=1024)
def _machine(gpu: GpuSpec, precision: Precision, software: str, constants: Constants) -> GpuRates:
    recipe = "fp8" if precision is Precision.FP8 else ""
    full = reached(datasheet(gpu, precision), constants.lookup(fitted.generation(gpu), software, recipe))
    return GpuRates(*map(float, full))


@lru_cache(maxsize=64)
def _software(name: str, constants: Constants) -> Software:
    return Software(*map(float, practised(constants.lookup("", name, ""), facts(name))))
