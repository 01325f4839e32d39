"""What is trained, on what, and how it is divided: the words of the performance model.

Units, unless a field says otherwise: bytes, seconds, FLOP/s, bytes/s. "Degree" is a parallel width (data, tensor,
pipeline, context, expert).
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import UNSET, Struct, UnsetType

OTHER = "other"
"""Training software of which nothing is known: the middle of all that is."""


class Precision(StrEnum):
    """Number format of the matrix multiplications."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    FP8 = "FP8"


class Optimizer(StrEnum):
    """Optimizers that differ in bytes of state per parameter."""

    ADAMW = "AdamW"
    ADAMW_8BIT = "AdamW8bit"
    """Moments of matrices in 8 bit with a scale per 256 (Dettmers et al. 2021, arXiv 2110.02861)."""
    SGD = "SGD"
    ADAFACTOR = "Adafactor"
    MUON = "Muon"


class Mode(StrEnum):
    """How a gang divides the work: copies of the model, pieces of it, or both."""

    DATA = "Data"
    MODEL = "Model"
    HYBRID = "Hybrid"


class Recompute(StrEnum):
    """Which activations are computed again in the backward pass (Korthikanti et al. 2022, section 5)."""

    NONE = "None"
    SELECTIVE = "Selective"
    FULL = "Full"


class AdapterTargets(StrEnum):
    """Matrices of every layer that get a low-rank adapter: what PEFT calls `target_modules`."""

    QUERY_VALUE = "QueryValue"
    """Projections of queries and values (Hu et al. 2021, arXiv 2106.09685, section 4.2)."""
    ATTENTION = "Attention"
    """Query, key, value and output projections."""
    ALL_LINEAR = "AllLinear"
    """Those and the feed-forward block's (Dettmers et al. 2023, arXiv 2305.14314, section 4)."""


class Quantization(StrEnum):
    """Number format in which the frozen matrices of the layers are kept.

    Embeddings, norms and the output layer stay in the precision of the training, as in all of these libraries.
    """

    NONE = "None"
    """As computed with: 16 bit, 32 bit in FP32."""
    INT8 = "INT8"
    """LLM.int8() (Dettmers et al. 2022, arXiv 2208.07339)."""
    NF4 = "NF4"
    """4 bit and an fp32 scale per 64 numbers (Dettmers et al. 2023, arXiv 2305.14314)."""
    NF4_DOUBLE = "NF4Double"
    """The same with scales in 8 bit, 256 of which share an fp32 one. GPTQ with groups of 128 takes as much."""


class OptimizerOffload(StrEnum):
    """Where the optimizer's states are while they are not needed."""

    NONE = "None"
    HOST = "Host"
    """On the host, whose processor steps (ZeRO-Offload, Ren et al. 2021, arXiv 2101.06840; FSDP's CPUOffload)."""
    PAGED = "Paged"
    """In memory that GPU and host share, paged in for the step (bitsandbytes' paged optimizers)."""


class GpuSpec(Struct, frozen=True):
    """Datasheet facts of one GPU product; `trimtab_policy.catalog` holds the known ones."""

    name: str
    """Canonical name, e.g. `H100-SXM5-80GB`; what users write in `spec.resources.gpuTypes`."""
    vendor: str
    """NVIDIA, AMD or Intel."""
    architecture: str
    """Volta, Turing, Ampere, Ada, Hopper, Blackwell, CDNA3, ..."""
    memory_bytes: int
    memory_bandwidth: float
    peak_flops: dict[Precision, float]
    """Dense peak per number format. A format that the GPU lacks is absent: the plan space leaves it out."""
    link_bandwidth: float
    """GPU-to-GPU bandwidth inside a node, per GPU and direction (NVLink, xGMI; PCIe where there is neither)."""
    network_bandwidth: float
    """Network bandwidth between nodes per GPU and direction, of the usual reference server."""
    power_watts: float
    link_domain: int = 0
    """GPUs that share the link where that is more than a node (72 of an NVL72 rack); 0: those of the node."""
    released: str = ""
    """Month in which it was announced, `2022-03`; empty where it is not known."""
    source: str = ""
    """Where the figures come from; `estimated from node labels` for a product that the catalogue does not know."""

    def __hash__(self) -> int:
        """Equal specs have equal names; the dict of peaks cannot be hashed itself."""
        return hash((self.name, self.memory_bytes))


class ModelSpec(Struct, frozen=True):
    """Shape of a decoder-only (or encoder-only) transformer, in the terms of its config.json."""

    name: str
    layers: int
    hidden_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden_size: int
    """Inner width of the feed-forward block; of one expert in a mixture-of-experts model."""
    vocab_size: int
    gated_ffn: bool = True
    """Three matrices (SwiGLU) instead of two."""
    tied_embeddings: bool = False
    learned_positions: int = 0
    """Rows of a learned position embedding (GPT-2, BERT); 0 for rotary or relative positions."""
    biases: bool = False
    """Whether linear layers and norms carry biases (GPT-2, BERT)."""
    qkv_biases: bool = False
    """Whether only the query, key and value projections carry biases (Qwen 2)."""
    causal: bool = True
    """Each token attends to those before it (decoder); else to all (BERT, the encoder of T5)."""
    cross_attention_layers: int = 0
    """Decoder layers of an encoder-decoder model (T5), which attend to the encoder too; `layers` counts both sides."""
    experts: int = 0
    """Experts per mixture-of-experts layer; 0 for a dense model."""
    experts_per_token: int = 0
    shared_experts: int = 0
    """Experts beside those, which every token passes (DeepSeek, Qwen 2 MoE)."""
    dense_layers: int = 0
    """First layers of a mixture-of-experts model that have one dense block instead."""
    dense_ffn_hidden_size: int = 0
    """Inner width of that dense block."""
    query_rank: int = 0
    """Latent attention (DeepSeek-V2, arXiv 2405.04434): rank of the queries' latent vector; 0: projected directly."""
    kv_rank: int = 0
    """Rank of the latent vector of keys and values; 0 for multi-head or grouped-query attention."""
    rope_head_dim: int = 0
    """Part of `head_dim` that carries the position in latent attention."""
    value_head_dim: int = 0
    """Width of a value head in latent attention; 0: as `head_dim`."""


MAX_RANK = 1 << 14
"""An adapter as wide as the widest model known has more parameters than the matrix that it is beside."""


class Adapters(Struct, frozen=True):
    """Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) that are trained while all other weights are frozen.

    Raises ValueError for a rank that no adapter has.
    """

    rank: int
    """Width r of the two matrices that an adapter is the product of: r (in + out) parameters."""
    targets: AdapterTargets = AdapterTargets.ALL_LINEAR
    quantization: Quantization = Quantization.NONE
    """Of the frozen weights: QLoRA where it is 4 bit."""

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= MAX_RANK:
            raise ValueError(f"adapters.rank must be from 1 to {MAX_RANK}, got {self.rank}")


class Offload(Struct, frozen=True):
    """What a training keeps in the host's memory while the GPU does not need it."""

    optimizer: OptimizerOffload = OptimizerOffload.NONE
    weights: bool = False
    """Weights, or this rank's shard of them, copied layer by layer (DeepSpeed's offload_param, FSDP's CPUOffload)."""
    activations: bool = False
    """What the forward pass keeps for the backward pass: layers' inputs under full recomputation, else all of it."""


class TrainingSpec(Struct, frozen=True):
    """What is to be trained, independent of how it is divided.

    Fields that are UNSET are left out of what is written, so that jobs without them are as they were before these were
    there.
    """

    sequence_length: int
    global_batch_size: int
    """Sequences per optimizer step: fixed by the user, whatever the degrees."""
    steps: int
    precision: Precision = Precision.BF16
    optimizer: Optimizer = Optimizer.ADAMW
    adapters: Adapters | UnsetType = UNSET
    """UNSET: all weights are trained."""
    offload: Offload | UnsetType = UNSET
    """UNSET: nothing leaves the GPU."""

    @property
    def tokens_per_step(self) -> int:
        return self.sequence_length * self.global_batch_size


class ParallelPlan(Struct, frozen=True):
    """Degrees and schedule of one training run; data x tensor x pipeline x context is its number of GPUs."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    """Model chunks per pipeline rank of the interleaved schedule (arXiv 2104.04473, section 2.2); 1: plain 1F1B."""
    context: int = 1
    expert: int = 1
    """Expert degree divides `data`: experts are spread over data-parallel ranks, they cost no further GPUs."""
    micro_batch: int = 1
    """Sequences per micro-batch and data-parallel rank."""
    zero_stage: int = 0
    """0 replicated, 1 optimizer states, 2 and gradients, 3 and parameters (FSDP) sharded over data ranks."""
    shard: int = 0
    """Ranks that share one copy of what the stage shards, a divisor of data x context (hybrid sharding); 0: all."""
    recompute: Recompute = Recompute.NONE

    @property
    def gpus(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def mode(self) -> Mode:
        if self.tensor * self.pipeline * self.context == 1:
            return Mode.DATA
        return Mode.MODEL if self.data == 1 else Mode.HYBRID

    def micro_batches(self, global_batch_size: int) -> int:
        """Micro-batches per step and data rank: the gradient-accumulation steps that keep the global batch."""
        return global_batch_size // (self.data * self.micro_batch)

    def describe(self) -> str:
        """Short form for people: `dp=2 tp=4 pp=1 zero=1`."""
        parts = [f"dp={self.data}", f"tp={self.tensor}", f"pp={self.pipeline}"]
        parts += [f"vpp={self.virtual}"] if self.virtual > 1 else []
        parts += [f"cp={self.context}"] if self.context > 1 else []
        parts += [f"ep={self.expert}"] if self.expert > 1 else []
        shared = self.data * self.context > 1  # with one rank there is nobody to shard anything over
        parts += [f"zero={self.zero_stage}"] if self.zero_stage and shared else []
        parts += [f"shard={self.shard}"] if self.shard else []
        return " ".join(parts)


class Prediction(Struct, frozen=True):
    """What the performance model expects of a plan on given hardware."""

    step_seconds: float
    tokens_per_second: float
    memory_bytes: int
    """Peak of the fullest GPU, with the reserve that the fit is judged by."""
    run_seconds: float
    """From the first step to the last, without queueing."""
    uncertainty: float = 1.0
    """Factor of the 80 % interval: of five such runs four take from step_seconds over it to step_seconds times it."""
    correction: float = 1.0
    """Factor that is in these times because of what was observed of other jobs (`correction`)."""

    def at(self, speed: float) -> Prediction:
        """The same plan with its slowest GPU at this part of the rate that was predicted for.

        A step ends when the slowest rank has computed its part and all the others have waited for it in their
        collectives, so all of it is taken to get slower alike. That is certain of the computing only; of a step bound
        by the network it says too much, which is the side to err on: a gang that is promised less is kept off slow
        cards where there is a choice, and finishes earlier than told where there is none.
        """
        return Prediction(
            step_seconds=self.step_seconds / speed,
            tokens_per_second=self.tokens_per_second * speed,
            memory_bytes=self.memory_bytes,
            run_seconds=self.run_seconds / speed,
            uncertainty=self.uncertainty,
            correction=self.correction,
        )

    @property
    def step_seconds_low(self) -> float:
        """Lower end of the 80 % interval."""
        return self.step_seconds / self.uncertainty

    @property
    def step_seconds_high(self) -> float:
        return self.step_seconds * self.uncertainty
