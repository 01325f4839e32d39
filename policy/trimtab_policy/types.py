"""The values that travel between observing, deciding and acting.

Everything a policy may know is a `Snapshot`; everything it may say is a `Decision`. Both are frozen, comparable and
serialisable (msgspec), so that one and the same value flows through the live controller, `trimtab plan` on a dumped
snapshot, the simulator and the tests.

Units, unless a field says otherwise: bytes, seconds, FLOP/s, bytes/s; points in time are POSIX seconds.
"Node" is a machine with GPUs, "gang" the set of pods of one job (one pod per node, equal GPUs each), "degree" a
parallel width (data, tensor, pipeline, context, expert).
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Precision(StrEnum):
    """Number format of the matrix multiplications."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    FP8 = "FP8"


class Optimizer(StrEnum):
    """Optimizers that differ in bytes of state per parameter."""

    ADAMW = "AdamW"
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


class TrainingSpec(Struct, frozen=True):
    """What is to be trained, independent of how it is divided."""

    sequence_length: int
    global_batch_size: int
    """Sequences per optimizer step: fixed by the user, whatever the degrees."""
    steps: int
    precision: Precision = Precision.BF16
    optimizer: Optimizer = Optimizer.ADAMW

    @property
    def tokens_per_step(self) -> int:
        return self.sequence_length * self.global_batch_size


class Bounds(Struct, frozen=True):
    """Inclusive limits of one degree; `low == high` when the user fixed it."""

    low: int = 1
    high: int = 1 << 20

    def admits(self, value: int) -> bool:
        return self.low <= value <= self.high


class Requirements(Struct, frozen=True):
    """What a job allows: the part of the plan space that a policy may choose from."""

    gpus: Bounds
    gpu_types: tuple[str, ...] = ()
    """Allowed canonical GPU types; empty for any."""
    max_nodes: int | None = None
    modes: tuple[Mode, ...] = (Mode.DATA, Mode.MODEL, Mode.HYBRID)
    tensor: Bounds = Bounds()
    pipeline: Bounds = Bounds()
    virtual: Bounds = Bounds()
    """Chunks per pipeline rank that the launcher can interleave."""
    context: Bounds = Bounds()
    expert: Bounds = Bounds()
    zero_stage: int | None = None
    """None: free to choose."""
    hybrid_sharding: bool = True
    """Whether the launcher can shard within groups of ranks, e.g. nodes, instead of over all (`ParallelPlan.shard`)."""
    software: str = "megatron-core"
    """What the launcher starts, as `perf.constants` names it: `megatron-core`, `torchtitan`, or `other`."""
    recompute: Recompute | None = None
    """None: free to choose."""
    cpu_milli_per_gpu: int = 0
    memory_per_gpu: int = 0
    """Host memory in bytes per GPU."""
    cpu_milli_per_pod: int = 0
    """What a pod asks for whatever its GPUs: sidecars, or a template with requests of its own."""
    memory_per_pod: int = 0

    def cpu_milli(self, gpus: int) -> int:
        """CPU millicores that a pod with so many GPUs requests."""
        return self.cpu_milli_per_pod + gpus * self.cpu_milli_per_gpu

    def memory(self, gpus: int) -> int:
        """Bytes of host memory that a pod with so many GPUs requests."""
        return self.memory_per_pod + gpus * self.memory_per_gpu


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
        parts += [f"zero={self.zero_stage}"] if self.zero_stage else []
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

    @property
    def step_seconds_low(self) -> float:
        """Lower end of the 80 % interval."""
        return self.step_seconds / self.uncertainty

    @property
    def step_seconds_high(self) -> float:
        return self.step_seconds * self.uncertainty


class Node(Struct, frozen=True):
    """A schedulable machine with GPUs of one type."""

    name: str
    gpu_type: str
    gpus: int
    """Allocatable GPUs."""
    free_gpus: int
    """Not requested by any pod that is bound or promised to the node; negative when the node is over-allocated."""
    free_cpu_milli: int
    free_memory: int
    free_pods: int
    topology: tuple[str, ...] = ()
    """Enclosing domains from widest to nearest, e.g. (zone, block, rack): a longer shared prefix is a shorter way."""
    link_domain: str = ""
    """GPUs of equal link_domain share NVLink/xGMI; empty where the domain ends at the node."""


class NodeShare(Struct, frozen=True):
    """GPUs that a gang takes of one node, i.e. one pod."""

    node: str
    gpus: int


class Alternative(Struct, frozen=True):
    """A choice that lost, kept to explain the one that won."""

    gpu_type: str
    gpus: int
    plan: ParallelPlan
    prediction: Prediction
    why_not: str


class Placement(Struct, frozen=True):
    """The whole answer for one job: type, count, parallelism and nodes."""

    job: str
    """UID of the job."""
    gpu_type: str
    shares: tuple[NodeShare, ...]
    """Rank order: the first share holds rank 0. Equal GPUs each."""
    plan: ParallelPlan
    prediction: Prediction
    reason: str
    """Why this one, in the words a user would ask for."""
    alternatives: tuple[Alternative, ...] = ()

    @property
    def gpus(self) -> int:
        return sum(share.gpus for share in self.shares)


class PendingReason(StrEnum):
    """Why a job has no placement: a closed list that tools may rely on."""

    NO_FEASIBLE_PLAN = "NoFeasiblePlan"
    NO_SUCH_GPU = "NoSuchGpu"
    NO_ELIGIBLE_NODE = "NoEligibleNode"
    CLUSTER_TOO_SMALL = "ClusterTooSmall"
    INSUFFICIENT_GPUS = "InsufficientGpus"
    FRAGMENTED = "Fragmented"
    QUOTA_EXCEEDED = "QuotaExceeded"
    QUEUE_NOT_FOUND = "QueueNotFound"
    PRIORITY_CLASS_NOT_FOUND = "PriorityClassNotFound"
    INVALID_SPEC = "InvalidSpec"
    BEHIND_OTHERS = "BehindOthers"
    BACKING_OFF = "BackingOff"
    DECISION_REFUSED = "DecisionRefused"


class Pending(Struct, frozen=True):
    """Why a job waits, and what would let it start."""

    job: str
    reason: PendingReason
    message: str
    blockers: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    """Changes that would unblock it, each a sentence."""


class Speed(Struct, frozen=True):
    """What a job makes of so many GPUs of one type, where that was measured or given and not predicted."""

    gpu_type: str
    gpus: int
    nodes: int
    """Over how many nodes they are spread. Such gangs may take unequal parts of their nodes."""
    steps_per_second: float
    """In the steps of `TrainingSpec.steps`, whatever a step stands for: a second of a trace, an iteration."""


class Job(Struct, frozen=True):
    """A training job as policies see it."""

    uid: str
    namespace: str
    name: str
    model: ModelSpec
    training: TrainingSpec
    requirements: Requirements
    created: float
    priority: int = 0
    queue: str = ""
    placement: Placement | None = None
    """Set while the job holds GPUs."""
    started: float | None = None
    expected_finish: float | None = None
    """When the job is expected to give its GPUs back, if it holds any."""
    steps_done: int = 0
    eligible: tuple[str, ...] | None = None
    """Names of the nodes that selectors, affinity and tolerations admit; None for all."""
    policy: str | None = None
    """Policy asked for by the job itself, for tests and comparisons."""
    speeds: tuple[Speed, ...] | None = None
    """All that it could run on, where that is known; None: what the performance model finds for `requirements`."""
    preemptible: bool = False
    """Whether it may be stopped, moved or resized while it runs."""
    restart_seconds: float = 0.0
    """GPU time that a stop and a new start are expected to cost: save, schedule, load."""
    restarts: int = 0
    """Starts after the first."""
    resuming: float = 0.0
    """Seconds until it computes again, if it is being started or restarted."""
    served: dict[str, float] = {}
    """GPU-seconds that it has held, by GPU type."""
    deadline: float | None = None


class Quota(Struct, frozen=True):
    """Hard limit of one queue on one GPU type (`*` for all types together)."""

    queue: str
    gpu_type: str
    gpus: int


class Snapshot(Struct, frozen=True):
    """The cluster at one moment: all that a policy may know."""

    time: float
    nodes: tuple[Node, ...]
    """Only nodes that may take new pods; `unavailable` says why the others may not."""
    jobs: tuple[Job, ...]
    """Jobs that wait for a decision or hold GPUs. Finished, suspended and backing-off jobs are absent."""
    gpu_types: dict[str, GpuSpec]
    """Facts of every type that occurs in `nodes`."""
    quotas: tuple[Quota, ...] = ()
    unavailable: dict[str, str] = {}
    """GPU node -> why it takes no pods (cordoned, NotReady, no memory label, ...)."""

    def waiting(self) -> list[Job]:
        """Jobs without a placement, most urgent first: priority, then age, then name."""
        pending = (job for job in self.jobs if job.placement is None)
        return sorted(pending, key=lambda job: (-job.priority, job.created, job.namespace, job.name))


class Stop(Struct, frozen=True):
    """A running job that is to give its GPUs back and wait."""

    job: str
    reason: str


class Decision(Struct, frozen=True):
    """What a policy wants: placements, and for every other waiting job the reason why not.

    A placement of a job that runs moves or resizes it; a running job that is not mentioned goes on as it is. Both this
    and `stops` are only for jobs that are preemptible.
    """

    policy: str
    placements: tuple[Placement, ...] = ()
    pending: tuple[Pending, ...] = ()
    stops: tuple[Stop, ...] = ()
