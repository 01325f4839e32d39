"""What real machines reach of their datasheet: the few constants of the time model, each with a physical meaning.

Where published training runs are at hand, `gemm`, `attention` and the values further up were set by a coordinate
descent on the mean step-time error over sources and then rounded: they stand for a typical run, not for one framework.
Elsewhere `gemm` is the best matrix product ever measured on the architecture (MAMF, stas00/ml-engineering,
compute/accelerator) times 0.9, or that of the nearest relative, and `source` says so.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from msgspec import Struct

from trimtab_policy.perf.shape import Number
from trimtab_policy.types import GpuSpec, Precision


class Efficiency(Struct, frozen=True):
    """Reachable fractions of one GPU architecture's datasheet figures."""

    gemm: float
    """Of the matrix peak, for large matrix products in 16 bit, averaged over a training step."""
    attention: float
    """Of what `gemm` gives, for fused attention counted with causal (halved) FLOPs."""
    source: str


class Software(NamedTuple):
    """What the training framework does about the costs that hardware alone does not set; numbers or columns (n,)."""

    skill: Number
    """Speed of its products and attention, relative to the middle of all frameworks."""
    fused_attention: Number
    """1: FlashAttention; 0: the s x s scores go to memory and back."""
    score_bytes: Number
    """Bytes that cross memory for every unfused score in 16 bit, forward and backward."""
    launch_seconds: Number
    """Host time to launch the kernels of one layer, forward and backward: the floor under small layers."""
    passes: Number
    """How often stored activations cross memory in a forward pass, matrix products apart."""
    tensor_overlap: Number
    """Fraction of tensor-parallel communication hidden behind matrix products."""
    data_overlap: Number
    """Fraction of the compute time that can hide data-parallel communication."""
    messages: Number
    optimizer_bytes: Number
    """Bytes that the optimizer moves per parameter of its shard."""
    step_seconds: Number
    """Fixed cost of a step: data loading, gradient norm, scheduler, logging."""


CURRENT = Software(1, 1, 40, 1.8e-3, 3, 0.6, 0.4, 1, 28, 0.015)

MEMORY_EFFICIENCY = 0.88
"""Of memory bandwidth, for streaming kernels (element-wise, norms, optimizer)."""
LINK_EFFICIENCY = 0.77
"""Of NVLink/xGMI bandwidth as NCCL's bus bandwidth (A100: 230 of 300 GB/s; nccl-tests)."""
NETWORK_EFFICIENCY = 0.8
"""Of network bandwidth in collectives between nodes."""
FP8_EFFICIENCY = 0.97
"""FP8 products relative to 16-bit ones, each against its own peak, casts and scaling included."""
LATENCY = 15e-6
"""Seconds to start one collective step (kernel launch plus first hop)."""
ELEMENT_PASSES = 2.0
"""How often each stored activation crosses memory in a forward pass, matrix products apart: written once, read once."""
GEMM_HALF_WIDTH = 100.0
"""Smallest dimension at which a product runs at half its rate, on A100; grows with the square root of the peak."""

_MAMF = "0.9 x MAMF (stas00/ml-engineering)"
_EFFICIENCY = {
    "Volta": Efficiency(gemm=0.54, attention=0.4, source="BigScience V100 and Megatron-LM 2020 runs"),
    "Turing": Efficiency(gemm=0.5, attention=0.33, source="as Volta, less for its power limit"),
    "Ampere": Efficiency(gemm=0.72, attention=0.4, source="Megatron-LM, BLOOM, vTrain and llm-foundry runs on A100"),
    "Ada": Efficiency(gemm=0.6, attention=0.33, source="no runs at hand; between Ampere and its power limit"),
    "Hopper": Efficiency(gemm=0.69, attention=0.33, source="llm-foundry, NeMo, torchtitan runs on H100"),
    "Blackwell": Efficiency(gemm=0.80, attention=0.33, source="Megatron-Bridge and NVIDIA DGXC runs on GB200"),
    "CDNA1": Efficiency(gemm=0.45, attention=0.25, source="no runs at hand; below CDNA3"),
    "CDNA2": Efficiency(gemm=0.5, attention=0.25, source="no runs at hand; as CDNA3"),
    "CDNA3": Efficiency(gemm=0.5, attention=0.33, source=_MAMF + ": MI300X 0.51, MI325X 0.60"),
    "Gaudi2": Efficiency(gemm=0.6, attention=0.3, source="llm-foundry: 260 of 432 TFLOP/s on 8 x Gaudi2"),
    "Gaudi3": Efficiency(gemm=0.45, attention=0.3, source="no runs at hand; below Gaudi2 for twice the matrix engines"),
}
_UNKNOWN = Efficiency(gemm=0.4, attention=0.25, source="nothing known: cautious guess")


class Machine(NamedTuple):
    """One GPU as the time model sees it: rates in FLOP/s and bytes/s after efficiency; numbers or columns (n,)."""

    product: Number
    """Matrix products of linear layers."""
    half_width: Number
    """Smallest dimension at which a product runs at half that rate."""
    misalignment: Number
    odd_heads: Number
    attention: Number
    memory: Number
    link: Number
    network: Number
    latency: Number
    """Seconds to start one collective step."""
    hop: Number
    domain: Number
    """GPUs that share the link, where that is more than a node; 0 otherwise."""


def efficiency(gpu: GpuSpec) -> Efficiency:
    """Constants of the GPU's architecture."""
    return _EFFICIENCY.get(gpu.architecture, _UNKNOWN)


def machine(gpu: GpuSpec, precision: Precision, *, spread: float = 1.0) -> Machine:
    """Rates of a GPU. `spread` >= 1 divides the network's bandwidth: how much a placement's way through it narrows.

    Raises ValueError when the GPU lacks the precision.
    """
    if precision not in gpu.peak_flops:
        raise ValueError(f"{gpu.name} does not support {precision}: use one of {', '.join(sorted(gpu.peak_flops))}")
    reached = efficiency(gpu)
    peak, wide = gpu.peak_flops[precision], _wide_peak(gpu, precision)
    return Machine(
        product=peak * reached.gemm * (FP8_EFFICIENCY if precision is Precision.FP8 else 1.0),
        half_width=GEMM_HALF_WIDTH * sqrt(wide / 312e12),
        misalignment=0.05,
        odd_heads=4.0,
        attention=wide * reached.gemm * reached.attention,
        memory=gpu.memory_bandwidth * MEMORY_EFFICIENCY,
        link=gpu.link_bandwidth * LINK_EFFICIENCY,
        network=gpu.network_bandwidth * NETWORK_EFFICIENCY / max(1.0, spread),
        latency=LATENCY,
        hop=2.4e-6,
        domain=gpu.link_domain,
    )


def _wide_peak(gpu: GpuSpec, precision: Precision) -> float:
    """Peak of the format that attention keeps: 16 bit when the linear layers go to FP8."""
    attention = Precision.BF16 if precision is Precision.FP8 else precision
    return gpu.peak_flops.get(attention, gpu.peak_flops[precision])
