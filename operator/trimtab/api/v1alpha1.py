"""The kinds of trimtab.dev/v1alpha1: `LLMTrainingJob` says what to train, `Queue` limits who may use how many GPUs.

Users say *what*; how it runs (GPU type, count, parallelism, nodes) is decided within the limits given here and
reported in the status. Every field can be left out unless it says what to train.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from trimtab.api import cel
from trimtab.api.base import (
    AnyObject,
    ApiModel,
    Degree,
    DnsName,
    GpuType,
    Int32,
    Int64,
    Namespace,
    Quantity,
    extra,
    rules,
)
from trimtab.api.status import JobStatus
from trimtab.api.template import PodTemplate
from trimtab_policy.specs import (
    MAX_RANK,
    AdapterTargets,
    Optimizer,
    OptimizerOffload,
    Precision,
    Quantization,
    Recompute,
)


class ParallelMode(StrEnum):
    """How the gang may divide the work."""

    AUTO = "Auto"
    DATA = "Data"
    MODEL = "Model"
    HYBRID = "Hybrid"


class ElasticPolicy(StrEnum):
    """When the number of GPUs is chosen."""

    FIXED = "Fixed"
    MOLDABLE = "Moldable"
    ELASTIC = "Elastic"


class Launcher(StrEnum):
    """What starts the training processes in a pod."""

    TORCHRUN = "Torchrun"
    TORCHTITAN = "Torchtitan"
    MEGATRON = "Megatron"
    DEEPSPEED = "DeepSpeed"
    CUSTOM = "Custom"


class Architecture(ApiModel):
    """Shape of a transformer, in the terms of its config.json."""

    model_config = rules(*cel.ARCHITECTURE)
    layers: Annotated[Int32, Field(ge=1, le=1024)]
    """Transformer layers (num_hidden_layers), e.g. 32."""
    hidden_size: Annotated[Int32, Field(ge=1, le=131072)]
    """Width of the residual stream (hidden_size), e.g. 4096."""
    attention_heads: Annotated[Int32, Field(ge=1, le=1024)]
    """Query heads (num_attention_heads), e.g. 32."""
    kv_heads: Annotated[Int32, Field(ge=1, le=1024)] | None = None
    """Key and value heads (num_key_value_heads), fewer than attentionHeads with grouped-query attention.
    Default: attentionHeads."""
    head_dim: Annotated[Int32, Field(ge=1, le=8192)] | None = None
    """Width of one head. Default: hiddenSize / attentionHeads."""
    ffn_hidden_size: Annotated[Int32, Field(ge=1, le=1048576)]
    """Inner width of the feed-forward block (intermediate_size), e.g. 14336; of one expert in a mixture of experts."""
    vocab_size: Annotated[Int32, Field(ge=1, le=16777216)]
    """Tokens in the vocabulary, e.g. 128256."""
    gated_ffn: bool = True
    """Whether the feed-forward block has a gate: three matrices (SwiGLU, as in Llama) instead of two (as in GPT)."""
    tied_embeddings: bool = False
    """Whether the output layer shares the weights of the input embedding."""
    learned_positions: Annotated[Int32, Field(ge=0, le=16777216)] = 0
    """Rows of a learned position embedding, e.g. 1024 for GPT-2; 0 for rotary or relative positions."""
    biases: bool = False
    """Whether linear layers and norms carry biases, as in GPT-2 and BERT."""
    experts: Annotated[Int32, Field(ge=2, le=4096)] | None = None
    """Experts per mixture-of-experts layer, e.g. 8. Left out: a dense model."""
    experts_per_token: Annotated[Int32, Field(ge=1, le=4096)] | None = None
    """Experts that each token is routed to, e.g. 2. Needed with `experts`."""


class Model(ApiModel):
    """The model to train: a preset or an architecture."""

    model_config = rules(*cel.MODEL)
    preset: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = None
    """A published model by name, e.g. llama3-8b."""
    architecture: Architecture | None = None
    """The shape of any other transformer."""


class AdaptersSpec(ApiModel):
    """Low-rank adapters, which are trained while all other weights are frozen: LoRA, or QLoRA where these are
    quantized."""

    rank: Annotated[Int32, Field(ge=1, le=MAX_RANK)]
    """Rank of the adapters' matrices, e.g. 16: `r` of PEFT."""
    targets: AdapterTargets = AdapterTargets.ALL_LINEAR
    """Matrices of every layer that get one: projections of queries and values, all of the attention, or all linear."""
    quantization: Quantization = Quantization.NONE
    """Number format of the frozen matrices. NF4 and NF4Double are bitsandbytes' 4 bit, without and with double
    quantization; INT8 is LLM.int8()."""


class OffloadSpec(ApiModel):
    """What is kept in the host's memory while the GPU does not need it. It counts against `resources.memoryPerGpu`."""

    optimizer: OptimizerOffload = OptimizerOffload.NONE
    """The optimizer's states. Host: the host's processor steps (ZeRO-Offload). Paged: they are moved to the GPU page by
    page when it is short of memory (bitsandbytes)."""
    weights: bool = False
    """Weights too, layer by layer (DeepSpeed's offload_param, FSDP's CPUOffload)."""
    activations: bool = False
    """What the forward pass keeps for the backward pass."""


class Training(ApiModel):
    """How much is trained, with which numbers. What is said here holds however the work is divided."""

    model_config = rules(*cel.TRAINING)
    sequence_length: Annotated[Int32, Field(ge=1, le=16777216)]
    """Tokens per sequence, e.g. 8192."""
    global_batch_size: Annotated[Int32, Field(ge=1, le=1048576)]
    """Sequences per optimizer step over all GPUs, e.g. 512. It never changes with the number of GPUs: gradient
    accumulation makes up the difference."""
    steps: Annotated[Int64, Field(ge=1, le=1_000_000_000)] | None = None
    """Optimizer steps to train. Give this or `tokens`."""
    tokens: Annotated[Int64, Field(ge=1, le=1_000_000_000_000_000)] | None = None
    """Tokens to train, e.g. 15000000000; rounded up to whole steps. Give this or `steps`."""
    precision: Precision = Precision.BF16
    """Number format of the matrix multiplications. GPU types that lack it are not considered: V100 and T4 have no
    BF16; FP8 needs Ada, Hopper or later, or an MI300X."""
    optimizer: Optimizer = Optimizer.ADAMW
    """Optimizer; they differ in memory per parameter."""
    adapters: AdaptersSpec | None = None
    """Left out: all weights are trained."""
    offload: OffloadSpec | None = None
    """Left out: nothing leaves the GPU."""


class GpuRange(ApiModel):
    """How many GPUs the job may have."""

    model_config = rules(*cel.GPU_RANGE)
    min: Degree | None = None
    """Fewest GPUs to start with. Default: 1, or `max` where elasticity.policy is Fixed."""
    max: Degree
    """Most GPUs the job can use, e.g. 16."""


class GpusPerNode(ApiModel):
    """How many GPUs every node of the gang gives."""

    model_config = rules(*cel.GPUS_PER_NODE)
    min: Degree | None = None
    """Fewest, e.g. 8 for whole nodes only. Default: 1."""
    max: Degree | None = None
    """Most. Default: all that a node has."""


class Resources(ApiModel):
    """The hardware that the job may have. Within these limits, Trimtab chooses."""

    gpus: GpuRange
    """Number of GPUs, over all nodes. All GPUs of a job are of one type, and every node gives equally many."""
    gpu_types: Annotated[tuple[GpuType, ...], Field(max_length=32), extra(list_type="set")] | None = None
    """Allowed GPU types, e.g. [H100-SXM5-80GB, A100-SXM4-80GB]; `trimtab get nodes` lists those of the cluster.
    A short name allows all types of that name: H100, A100-80GB. Left out: any type that the model fits on."""
    cpus_per_gpu: Quantity | None = None
    """CPUs that a pod requests for each of its GPUs, e.g. 8 or 500m. Default: none."""
    memory_per_gpu: Quantity | None = None
    """Host memory that a pod requests for each of its GPUs, e.g. 64Gi. Default: none."""
    max_nodes: Annotated[Int32, Field(ge=1, le=4096)] | None = None
    """Most nodes the gang may spread over; 1 keeps it inside one machine. Default: no limit."""
    gpus_per_node: GpusPerNode = GpusPerNode()
    """How many GPUs every node of the gang gives: one pod runs on each. Default: whatever is fastest."""


class Width(ApiModel):
    """Limit of one parallel degree: an upper bound, or one value."""

    model_config = rules(*cel.WIDTH)
    max: Degree | None = None
    """Largest degree that may be chosen; 1 rules this kind of parallelism out."""
    fixed: Degree | None = None
    """The degree, when it must not be chosen."""


class Parallelism(ApiModel):
    """Limits on how the work is divided. Everything left out is chosen for speed and fit."""

    mode: ParallelMode = ParallelMode.AUTO
    """Data: every GPU has the whole model (ZeRO may shard its state). Model: one copy, divided over all GPUs by
    tensor, pipeline or context parallelism. Hybrid: several divided copies. Auto: whichever is best."""
    tensor: Width | None = None
    """Tensor parallelism: GPUs that divide each matrix; stays inside one NVLink domain."""
    pipeline: Width | None = None
    """Pipeline parallelism: stages that divide the layers."""
    context: Width | None = None
    """Context parallelism: GPUs that divide each sequence, for long contexts."""
    expert: Width | None = None
    """Expert parallelism: data-parallel ranks that divide the experts; takes no GPUs of its own."""
    zero_stage: Annotated[Int32, Field(ge=0, le=3)] | None = None
    """What is sharded over data-parallel ranks: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters
    (FSDP). Left out: chosen."""
    recompute: Recompute | None = None
    """Activations computed again in the backward pass instead of stored: None, Selective (attention only) or Full.
    Left out: chosen, the least that fits."""


class Checkpoint(ApiModel):
    """How the job saves its state when it is asked to stop."""

    grace_seconds: Annotated[Int32, Field(ge=0, le=86400)] = 120
    """Seconds that the job is given to save a checkpoint before its pods are stopped. Where it is stopped for others,
    no more than the operator's setting `preemption.most_grace_seconds` (900)."""
    resharding: bool = False
    """Whether a checkpoint can be loaded with other parallel degrees than it was saved with, as the distributed
    formats of torchtitan (DCP) and Megatron (torch_dist) can. If not, a restarted job keeps its degrees. Megatron then
    runs with ZeRO 0 or 1, unless `parallelism.zeroStage` says otherwise: from 2 on its format is another one."""


class Elasticity(ApiModel):
    """Whether the number of GPUs may vary."""

    policy: ElasticPolicy = ElasticPolicy.MOLDABLE
    """Fixed: exactly `resources.gpus.max` GPUs. Moldable: any number between min and max, chosen when the job starts.
    Elastic: as Moldable, and it may change while the job runs."""
    checkpoint: Checkpoint = Checkpoint()
    """How the job saves its state before it is moved or resized."""
    min_runtime_seconds: Annotated[Int32, Field(ge=0, le=31536000)] = 600
    """Seconds that a plan is kept at least before a running job may be resized, moved, or stopped for others. For that
    no more counts than the operator's setting `preemption.most_runtime_seconds` (3600)."""


class JobSpec(ApiModel):
    """What to train, and the limits within which Trimtab decides how."""

    model_config = rules(*cel.JOB_SPEC)
    model: Model
    """The model to train: a preset or an architecture."""
    training: Training
    """Sequence length, batch size, length of the run, precision, optimizer."""
    resources: Resources
    """How many GPUs of which types, and the CPU and memory that go with each."""
    parallelism: Parallelism = Parallelism()
    """Limits on the parallel degrees. Normally left out: they are chosen."""
    elasticity: Elasticity = Elasticity()
    """Whether the number of GPUs is fixed, chosen at the start, or may change."""
    queue: DnsName | None = None
    """Queue whose quota the job counts against. Left out: no quota applies. A running gang counts against the queue it
    was started in, until it ends; where the queue that is named by then would not have it, it is stopped, as after
    other edits."""
    priority_class_name: DnsName | None = None
    """PriorityClass of the whole gang; jobs of higher value are planned first. Left out: the cluster's default."""
    suspend: bool = False
    """Whether the job should hold no GPUs. Setting it stops a running job; unsetting it plans the job anew."""
    managed_by: (
        Annotated[
            str,
            StringConstraints(
                max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
            ),
        ]
        | None
    ) = None
    """Controller in charge, e.g. kueue.x-k8s.io/multikueue; Trimtab ignores jobs of others. Immutable.
    Left out: Trimtab."""
    launcher: Launcher = Launcher.TORCHRUN
    """What starts the training and takes the degrees. Torchrun: any script; it reads the degrees from TRIMTAB_TP,
    TRIMTAB_PP, TRIMTAB_DP and TRIMTAB_CP (if it only knows data parallelism, set parallelism.mode to Data). Torchtitan,
    Megatron, DeepSpeed: torchrun and that framework's own flags. Custom: environment only, the command is yours."""
    max_restarts: Annotated[Int32, Field(ge=0, le=1000)] = 3
    """How often the gang is started again after a failure before the job has Failed."""
    template: PodTemplate
    """The pod to run on every node."""


class LLMTrainingJob(ApiModel):
    """Training of one language model: what to train. Trimtab decides on which GPUs, how many, and how divided."""

    model_config = rules(*cel.JOB)
    metadata: AnyObject
    """Name, namespace and the rest of metav1.ObjectMeta."""
    spec: JobSpec
    """What to train, and the limits within which Trimtab decides how."""
    status: JobStatus | None = None
    """Conditions, the plan, progress, and why the job waits."""


class QueueQuota(ApiModel):
    """Limits of a queue on one GPU type."""

    model_config = rules(*cel.QUEUE_QUOTA)
    gpu_type: Annotated[
        str, StringConstraints(min_length=1, max_length=63, pattern=r"^(\*|[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$")
    ]
    """GPU type, e.g. H100-SXM5-80GB, or `*` for all types together."""
    gpus: Annotated[Int32, Field(ge=0, le=1048576)] | None = None
    """Most GPUs that the queue's jobs may hold at a time. Left out: no limit."""
    guaranteed: Annotated[Int32, Field(ge=0, le=1048576)] = 0
    """GPUs that the queue's jobs can have at any time: others may borrow them, and give them back when they are asked
    for. What the queue holds beyond is borrowed, too. A guarantee of `*` covers what those by type leave over."""


class QueueSpec(ApiModel):
    """Limits of the queue, and who may use it."""

    model_config = rules(*cel.QUEUE_SPEC)
    quotas: Annotated[
        tuple[QueueQuota, ...], Field(max_length=64), extra(list_type="map", list_map_keys=["gpuType"])
    ] = ()
    """Limits by GPU type. A type without one is limited only by `*`, if that is given."""
    weight: Annotated[Int32, Field(ge=1, le=1000)] = 1
    """Share of what is not guaranteed to anybody, relative to the other queues."""
    namespaces: Annotated[tuple[Namespace, ...], Field(max_length=256), extra(list_type="set")] = ()
    """Namespaces whose jobs alone may use the queue; those of them that name no queue count against this one (where
    several queues list a namespace, against the first by name). Left out: jobs of every namespace may name it."""
    max_pending_jobs: Annotated[Int32, Field(ge=0, le=100000)] | None = None
    """Most jobs that wait in it at a time, by priority and age: those beyond are not looked at (QueueFull). 0 closes
    the queue; what runs goes on. Left out: no limit."""


class QueueUse(ApiModel):
    """What the jobs of a queue hold of one GPU type."""

    gpu_type: GpuType
    """GPU type."""
    gpus: Annotated[Int32, Field(ge=0)]
    """GPUs that they hold."""
    borrowed: Annotated[Int32, Field(ge=0)] = 0
    """Of those, what the queue may have to give back."""


class QueueStatus(ApiModel):
    """How the queue is used."""

    model_config = rules(*cel.QUEUE_STATUS)
    running_jobs: Annotated[Int32, Field(ge=0)] = 0
    """Jobs that hold GPUs."""
    pending_jobs: Annotated[Int32, Field(ge=0)] = 0
    """Jobs that wait."""
    gpus: Annotated[Int32, Field(ge=0)] = 0
    """GPUs that its jobs hold, of all types."""
    share_permille: Annotated[Int32, Field(ge=0)] = 0
    """Its part of the cluster's throughput over its weight, in thousandths: of two queues the one with less is next."""
    uses: Annotated[tuple[QueueUse, ...], Field(max_length=64), extra(list_type="map", list_map_keys=["gpuType"])] = ()
    """The same by GPU type."""
    leader_epoch: Annotated[Int64, Field(ge=0)] | None = None
    """Fencing epoch of the controller that wrote this."""


class Queue(ApiModel):
    """A share of the cluster's GPUs that jobs are counted against by naming it in `spec.queue`."""

    metadata: AnyObject
    """Name and the rest of metav1.ObjectMeta."""
    spec: QueueSpec
    """Limits of the queue, and who may use it."""
    status: QueueStatus | None = None
    """How the queue is used."""
