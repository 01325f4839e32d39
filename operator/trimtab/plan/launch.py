"""How the degrees of a plan are handed to each training framework: environment, flags, files.

Every pod gets torchrun's `PET_*` twins (Kubeflow Trainer's convention: static rendezvous on rank 0) and `TRIMTAB_*`
variables that any script can read. Frameworks with flags of their own get those too, appended to the container's
arguments; DeepSpeed reads a JSON file. The global batch is what the user asked for, whatever the data degree: the
number of gradient-accumulation steps follows.

Flags as of torchtitan 0.2 and 0.3 (`--parallelism.*`), Megatron-LM core 0.14 to 0.20 (`arguments.py`), DeepSpeed 0.17
to 0.19 (config JSON). `hack/gpu/check --only launchers` holds them against the parsers of what is installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from msgspec import UNSET, Struct

from trimtab import launch as in_container
from trimtab import names
from trimtab_policy.specs import (
    Offload,
    Optimizer,
    OptimizerOffload,
    ParallelPlan,
    Precision,
    Recompute,
    TrainingSpec,
)

MASTER_PORT = 29500
DEEPSPEED_CONFIG_PATH = "/etc/trimtab/deepspeed.json"


class LaunchedGang(Struct, frozen=True):
    """What a launcher needs to know of the whole gang."""

    job: str
    epoch: int
    gpu_type: str
    nodes: int
    gpus_per_node: int
    master_address: str
    """Where rank 0 can be reached; empty where the pods know it by themselves, or nobody does."""
    plan: ParallelPlan
    training: TrainingSpec
    layers: int
    """Transformer layers of the model."""
    command: tuple[str, ...] = ()
    """What the trainer's container says by itself: words of its command and arguments, names of its environment."""


class Launch(Struct, frozen=True):
    """What one pod of the gang gets."""

    env: dict[str, str]
    args: tuple[str, ...]
    deepspeed_config: str | None = None


def launch(launcher: str, gang: LaunchedGang, node_rank: int) -> Launch:
    """Environment, arguments and files for the pod of `node_rank`. `launcher` is `spec.launcher`."""
    flags = _FLAGS.get(launcher, _no_flags)(gang)
    env = _torchrun_env(gang, node_rank) | _trimtab_env(gang)
    env |= _megatron_env(gang) if launcher == "Megatron" else {}
    env["TRIMTAB_LAUNCH_FLAGS"] = " ".join(flags)
    return Launch(env, flags, _deepspeed_config(gang) if launcher == "DeepSpeed" else None)


def carried(started: Launch) -> str:
    """The same as a text that `trimtab.launch` reads in the container, where that was made by somebody else."""
    files = {DEEPSPEED_CONFIG_PATH: names.ANNOTATION_DEEPSPEED} if started.deepspeed_config else {}
    said = {"format": in_container.FORMAT, "environment": started.env, "arguments": started.args, "files": files}
    return json.dumps(said, sort_keys=True)


def _torchrun_env(gang: LaunchedGang, node_rank: int) -> dict[str, str]:
    values = {
        "PET_NNODES": str(gang.nodes),
        "PET_NPROC_PER_NODE": str(gang.gpus_per_node),
        "PET_NODE_RANK": str(node_rank),
        "PET_MASTER_ADDR": gang.master_address,
        "PET_MASTER_PORT": str(MASTER_PORT),
    }
    return {name: value for name, value in values.items() if value}


def _trimtab_env(gang: LaunchedGang) -> dict[str, str]:
    plan, training = gang.plan, gang.training
    values: dict[str, object] = {
        "JOB": gang.job,
        "EPOCH": gang.epoch,
        "GPU_TYPE": gang.gpu_type,
        "MODE": plan.mode,
        "DP": plan.data,
        "TP": plan.tensor,
        "PP": plan.pipeline,
        "VPP": plan.virtual,
        "CP": plan.context,
        "EP": plan.expert,
        "ZERO_STAGE": plan.zero_stage,
        "SHARD": _sharded(plan),
        "RECOMPUTE": plan.recompute,
        "MICRO_BATCH_SIZE": plan.micro_batch,
        "GLOBAL_BATCH_SIZE": training.global_batch_size,
        "GRADIENT_ACCUMULATION_STEPS": plan.micro_batches(training.global_batch_size),
        "SEQUENCE_LENGTH": training.sequence_length,
        "STEPS": training.steps,
        "PRECISION": training.precision,
    }
    return {f"TRIMTAB_{name}": str(value) for name, value in (values | _tuning(training)).items()}


def _tuning(training: TrainingSpec) -> dict[str, object]:
    """What a fine-tune's script has to know; nothing where all weights are trained as usual."""
    found: dict[str, object] = {}
    if training.optimizer is Optimizer.ADAMW_8BIT:
        found["OPTIMIZER"] = training.optimizer
    if (adapters := training.adapters) is not UNSET:
        found |= {"LORA_RANK": adapters.rank, "LORA_TARGETS": adapters.targets, "QUANTIZATION": adapters.quantization}
    if (offload := training.offload) is not UNSET:
        found |= {
            "OFFLOAD_OPTIMIZER": offload.optimizer,
            "OFFLOAD_WEIGHTS": int(offload.weights),
            "OFFLOAD_ACTIVATIONS": int(offload.activations),
        }
    return found


def _sharded(plan: ParallelPlan) -> int:
    """Ranks that share one copy of what the ZeRO stage shards; 1 where nothing is."""
    return (plan.shard or plan.data * plan.context) if plan.zero_stage else 1


def _torchtitan(gang: LaunchedGang) -> tuple[str, ...]:
    """FSDP is `data_parallel_shard_degree`, DDP `data_parallel_replicate_degree`; ZeRO-2 keeps gathered weights.

    Context ranks share a shard's copy as well, and are not counted in the shard degree. Left to itself, torchtitan
    gives the first and the last stage a layer less.

    Since 0.3 recomputation is a subcommand, which has to be the last word; experts are not divided by the tensor degree
    (its ranks share their tokens instead); and FP8 is the business of the configuration that the job names.
    """
    plan, training = gang.plan, gang.training
    sharded = max(1, _sharded(plan) // plan.context)
    per_rank = training.global_batch_size // plan.data if plan.pipeline > 1 else plan.micro_batch
    flags: dict[str, object] = {
        "parallelism.data_parallel_replicate_degree": plan.data // sharded,
        "parallelism.data_parallel_shard_degree": sharded,
        "parallelism.tensor_parallel_degree": plan.tensor,
        "parallelism.pipeline_parallel_degree": plan.pipeline,
        "parallelism.context_parallel_degree": plan.context,
        "parallelism.expert_parallel_degree": plan.expert,
        "training.local_batch_size": per_rank,
        "training.global_batch_size": training.global_batch_size,
        "training.seq_len": training.sequence_length,
        "training.steps": training.steps,
    }
    if plan.pipeline > 1:
        flags |= {
            "parallelism.pipeline_parallel_schedule": "Interleaved1F1B" if plan.virtual > 1 else "1F1B",
            "parallelism.pipeline_parallel_microbatch_size": plan.micro_batch,
            "parallelism.pipeline_parallel_layers_per_stage": gang.layers // (plan.pipeline * plan.virtual),
            "parallelism.pipeline_parallel_first_stage_less_layers": 0,
            "parallelism.pipeline_parallel_last_stage_less_layers": 0,
        }
    if plan.zero_stage in (1, 2):
        flags["parallelism.fsdp_reshard_after_forward"] = "never"
    # Weights, gradients and the optimizer's states.
    host = ("--training.enable_cpu_offload",) if training.offload is not UNSET and training.offload.weights else ()
    if training.precision is Precision.FP32:  # bf16 is what it does by itself; it has no FP16
        flags["training.mixed_precision_param"] = "float32"
    again = plan.recompute.value.lower()
    if _names_module(gang):
        # It captures CUDA graphs by itself, and ends where stages or experts keep it from that.
        eager = ("--training.disable_cuda_graphs",) if plan.pipeline * plan.expert > 1 else ()
        return (*_settings(flags), *host, *eager, f"activation-checkpoint:{again}")
    flags["activation_checkpoint.mode"] = again
    if plan.expert > 1:  # experts are divided by the tensor degree as well, as the plan takes it
        flags["parallelism.expert_tensor_parallel_degree"] = plan.tensor
    if training.precision is Precision.FP8:
        flags["model.converters"] = "float8"
    return (*_settings(flags), *host)


def _settings(flags: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"--{name}={value}" for name, value in flags.items())


def _names_module(gang: LaunchedGang) -> bool:
    """Whether the container starts torchtitan 0.3 or later: since then a job has to name its module, in 0.2 there was
    no such option. `MODULE` is the same for torchtitan's script run_train.sh."""
    return any(re.search(r"(^|\s)--module\b|^MODULE$", word) for word in gang.command)


def _megatron(gang: LaunchedGang) -> tuple[str, ...]:
    """The data degree is not given: Megatron derives it as world / (TP · PP · CP).

    Hybrid sharding is several instances of the distributed optimizer, each with a copy of its own. Megatron-FSDP takes
    checkpoints of its own format only, and cannot fuse the accumulation of gradients.
    """
    plan, training = gang.plan, gang.training
    flags: list[object] = [
        *("--tensor-model-parallel-size", plan.tensor),
        *("--pipeline-model-parallel-size", plan.pipeline),
        *("--context-parallel-size", plan.context),
        *("--micro-batch-size", plan.micro_batch),
        *("--global-batch-size", training.global_batch_size),
        *("--seq-length", training.sequence_length),
        *("--train-iters", training.steps),
    ]
    flags += ["--num-virtual-stages-per-pipeline-rank", plan.virtual] if plan.virtual > 1 else []
    flags += ["--expert-model-parallel-size", plan.expert] if plan.expert > 1 else []
    flags += ["--sequence-parallel"] if plan.tensor > 1 else []
    on_host = training.offload is not UNSET and training.offload.optimizer is OptimizerOffload.HOST
    flags += ["--use-distributed-optimizer"] if plan.zero_stage or on_host else []
    if plan.zero_stage >= 2:
        sharding = "optim_grads" if plan.zero_stage == 2 else "optim_grads_params"
        flags += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", sharding]
        flags += ["--ckpt-format", "fsdp_dtensor", "--no-gradient-accumulation-fusion"]
    if plan.shard:
        flags += ["--num-distributed-optimizer-instances", plan.data * plan.context // plan.shard]
    if on_host:
        flags += ["--optimizer-cpu-offload", "--optimizer-offload-fraction", "1.0", "--use-precision-aware-optimizer"]
    flags += [*_MEGATRON_RECOMPUTE[plan.recompute], *_MEGATRON_PRECISION[training.precision]]
    return tuple(str(flag) for flag in flags)


def _megatron_env(gang: LaunchedGang) -> dict[str, str]:
    """Tensor and context parallelism need kernels in the order in which they were launched, and Megatron ends where
    that is not set (before Blackwell). Megatron-FSDP ends where it is."""
    ordered = gang.plan.tensor * gang.plan.context > 1 and gang.plan.zero_stage < 2
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if ordered else {}


_MEGATRON_RECOMPUTE = {
    Recompute.NONE: (),
    Recompute.SELECTIVE: ("--recompute-granularity", "selective"),
    Recompute.FULL: ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"),
}
_MEGATRON_PRECISION = {
    Precision.FP32: (),
    Precision.FP16: ("--fp16",),
    Precision.BF16: ("--bf16",),
    Precision.FP8: ("--bf16", "--fp8-format", "hybrid"),
}


def _deepspeed(gang: LaunchedGang) -> tuple[str, ...]:
    return ("--deepspeed", "--deepspeed_config", DEEPSPEED_CONFIG_PATH)


def _deepspeed_config(gang: LaunchedGang) -> str:
    """Pipeline stages are made in code (`PipelineModule(num_stages=...)`): scripts read `TRIMTAB_PP`.

    The three batch sizes have to agree, and where it divides tensors by itself DeepSpeed counts the ranks of a tensor
    group as data ranks in that sum: it is then given two of the three, which say the same.
    """
    plan, training = gang.plan, gang.training
    config: dict[str, object] = {
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.micro_batches(training.global_batch_size),
        "zero_optimization": {"stage": plan.zero_stage},
        "bf16": {"enabled": training.precision in (Precision.BF16, Precision.FP8)},
        "fp16": {"enabled": training.precision is Precision.FP16},
    }
    if training.offload is not UNSET:
        config |= _offloaded(training.offload, plan)
    if plan.tensor > 1:
        config["tensor_parallel"] = {"autotp_size": plan.tensor}
    if plan.tensor == 1 or plan.pipeline > 1:  # ranks of a PipelineModule are counted by its own grid
        config["train_batch_size"] = training.global_batch_size
    return json.dumps(config, sort_keys=True)


def _offloaded(offload: Offload, plan: ParallelPlan) -> dict[str, object]:
    """Paged states are the business of the optimizer that the script makes (bitsandbytes)."""
    host = {"device": "cpu", "pin_memory": True}
    zero: dict[str, object] = {"stage": plan.zero_stage}
    zero |= {"offload_optimizer": host} if offload.optimizer is OptimizerOffload.HOST else {}
    zero |= {"offload_param": host} if offload.weights and plan.zero_stage == 3 else {}
    found: dict[str, object] = {"zero_optimization": zero}
    if offload.activations:
        found["activation_checkpointing"] = {"cpu_checkpointing": True, "partition_activations": plan.tensor > 1}
    return found


def _no_flags(gang: LaunchedGang) -> tuple[str, ...]:
    """Torchrun and Custom: the environment says it all."""
    return ()


_FLAGS: dict[str, Callable[[LaunchedGang], tuple[str, ...]]] = {
    "Torchtitan": _torchtitan,
    "Megatron": _megatron,
    "DeepSpeed": _deepspeed,
}
