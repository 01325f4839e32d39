"""How degrees are handed to each training framework: the golden table, and what must hold for every row of it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from trimtab.plan.launch import DEEPSPEED_CONFIG_PATH, LaunchedGang, launch
from trimtab_policy.specs import (
    Adapters,
    Offload,
    Optimizer,
    OptimizerOffload,
    ParallelPlan,
    Precision,
    Quantization,
    Recompute,
    TrainingSpec,
)

LAUNCHERS = ["Torchrun", "Torchtitan", "Megatron", "DeepSpeed", "Custom"]
TRAINING = TrainingSpec(sequence_length=4096, global_batch_size=256, steps=1000)
PLANS = {
    "one-gpu": ParallelPlan(micro_batch=2),
    "data-zero3": ParallelPlan(data=16, zero_stage=3, micro_batch=4, recompute=Recompute.FULL),
    "data-zero2": ParallelPlan(data=16, zero_stage=2, micro_batch=4),
    "tensor": ParallelPlan(tensor=8, recompute=Recompute.SELECTIVE),
    "hybrid": ParallelPlan(data=2, tensor=4, pipeline=2, zero_stage=1, micro_batch=2),
    "experts-and-context": ParallelPlan(data=8, context=2, expert=4, zero_stage=1),
    "interleaved": ParallelPlan(data=2, tensor=2, pipeline=4, virtual=4, zero_stage=1),
    "copy-per-node": ParallelPlan(data=16, tensor=2, context=2, zero_stage=3, shard=4),
}


def gang(plan: ParallelPlan, training: TrainingSpec = TRAINING) -> LaunchedGang:
    nodes = max(1, plan.gpus // 8)
    return LaunchedGang("llama", 7, "H100-SXM5-80GB", nodes, plan.gpus // nodes, "llama-7-0.llama", plan, training, 32)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launch(launcher: str, golden: SnapshotAssertion) -> None:
    assert {name: handed_over(launcher, plan) for name, plan in PLANS.items()} == golden


def handed_over(launcher: str, plan: ParallelPlan, training: TrainingSpec = TRAINING) -> dict[str, Any]:
    started = launch(launcher, gang(plan, training), 0)
    config = json.loads(started.deepspeed_config) if started.deepspeed_config else None
    return {"env": started.env, "args": started.args, "deepspeed.json": config}


FINE_TUNES = {
    "qlora": replace(TRAINING, adapters=Adapters(16, quantization=Quantization.NF4_DOUBLE)),
    "8-bit": replace(TRAINING, optimizer=Optimizer.ADAMW_8BIT),
    "states on the host": replace(TRAINING, offload=Offload(OptimizerOffload.HOST)),
    "all on the host": replace(TRAINING, offload=Offload(OptimizerOffload.HOST, weights=True, activations=True)),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_a_fine_tune_adds(launcher: str, golden: SnapshotAssertion) -> None:
    plan = PLANS["data-zero3"]
    usual = handed_over(launcher, plan)
    added = {}
    for name, training in FINE_TUNES.items():
        tuned = handed_over(launcher, plan, training)
        assert tuned["env"].items() >= {**usual["env"], "TRIMTAB_LAUNCH_FLAGS": " ".join(tuned["args"])}.items()
        added[name] = {
            "env": {key: value for key, value in tuned["env"].items() if key not in usual["env"]},
            "args": [word for word in tuned["args"] if word not in usual["args"]],
            "deepspeed.json": {
                key: value
                for key, value in (tuned["deepspeed.json"] or {}).items()
                if usual["deepspeed.json"].get(key) != value
            },
        }
    assert added == golden


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_only_the_rank_differs_between_the_pods_of_a_gang(launcher: str) -> None:
    first, second = (launch(launcher, gang(PLANS["hybrid"]), rank) for rank in (0, 1))
    assert (first.env["PET_NODE_RANK"], second.env["PET_NODE_RANK"]) == ("0", "1")
    assert first.env | {"PET_NODE_RANK": "1"} == second.env
    assert (first.args, first.deepspeed_config) == (second.args, second.deepspeed_config)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_global_batch_stays_what_the_user_asked_for(launcher: str, plan: ParallelPlan) -> None:
    env = launch(launcher, gang(plan), 0).env
    micro, accumulation = int(env["TRIMTAB_MICRO_BATCH_SIZE"]), int(env["TRIMTAB_GRADIENT_ACCUMULATION_STEPS"])
    assert micro * accumulation * int(env["TRIMTAB_DP"]) == TRAINING.global_batch_size
    assert int(env["PET_NNODES"]) * int(env["PET_NPROC_PER_NODE"]) == plan.gpus


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_deepspeed_gets_a_file_whose_batch_sizes_agree(plan: ParallelPlan) -> None:
    started = launch("DeepSpeed", gang(plan), 0)
    assert started.args == ("--deepspeed", "--deepspeed_config", DEEPSPEED_CONFIG_PATH)
    config = json.loads(started.deepspeed_config or "")
    product = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * plan.data
    assert product == config.get("train_batch_size", product) == TRAINING.global_batch_size
    assert config["zero_optimization"] == {"stage": plan.zero_stage}


@pytest.mark.parametrize(
    ("plan", "given"),
    [
        (ParallelPlan(data=8), True),
        (ParallelPlan(data=2, tensor=4), False),
        (ParallelPlan(data=2, tensor=2, pipeline=2, zero_stage=1), True),
    ],
)
def test_deepspeed_that_divides_tensors_by_itself_gets_two_of_the_three_batch_sizes(
    plan: ParallelPlan, given: bool
) -> None:
    """It multiplies by all ranks, those of a tensor group as well, and ends where the product is another."""
    config = json.loads(launch("DeepSpeed", gang(plan), 0).deepspeed_config or "")
    assert ("train_batch_size" in config) is given


def torchtitans(plan: ParallelPlan) -> dict[str, str]:
    """Values of torchtitan's flags for parallelism by name."""
    return dict(flag.removeprefix("--parallelism.").split("=") for flag in launch("Torchtitan", gang(plan), 0).args)


def test_torchtitan_makes_as_many_stages_as_the_plan_has_chunks() -> None:
    given = torchtitans(PLANS["interleaved"])
    assert given["pipeline_parallel_schedule"] == "Interleaved1F1B"
    # torchtitan, distributed/pipeline_parallel.py: stages = (layers + less in the first + less in the last) / per stage
    per_stage = int(given["pipeline_parallel_layers_per_stage"])
    less = [int(given[f"pipeline_parallel_{end}_stage_less_layers"]) for end in ("first", "last")]
    assert (32 + sum(less)) / per_stage == 4 * 4


def test_torchtitan_divides_experts_by_the_tensor_degree_as_the_plan_does() -> None:
    assert torchtitans(ParallelPlan(data=8, tensor=2, expert=4))["expert_tensor_parallel_degree"] == "2"
    assert "expert_tensor_parallel_degree" not in torchtitans(ParallelPlan(data=8, tensor=2))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_torchtitans_degrees_make_up_the_gang(plan: ParallelPlan) -> None:
    given = torchtitans(plan)
    names = ["data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "pipeline_parallel"]
    degrees = [int(given[f"{name}_degree"]) for name in [*names, "context_parallel"]]
    assert math.prod(degrees) == plan.gpus
    shared = int(given["data_parallel_shard_degree"]) * plan.context
    assert plan.shard in (0, shared)


def test_megatron_keeps_a_copy_per_instance_of_its_optimizer() -> None:
    args = launch("Megatron", gang(PLANS["copy-per-node"]), 0).args
    assert args[args.index("--num-distributed-optimizer-instances") + 1] == "8"  # 16 x 2 ranks, 4 to a copy
    assert args[args.index("--data-parallel-sharding-strategy") + 1] == "optim_grads_params"


@pytest.mark.parametrize("name", ["data-zero2", "data-zero3", "copy-per-node"])
def test_megatron_fsdp_gets_the_checkpoints_that_it_takes(name: str) -> None:
    args = launch("Megatron", gang(PLANS[name]), 0).args
    assert args[args.index("--ckpt-format") + 1] == "fsdp_dtensor"
    assert "--no-gradient-accumulation-fusion" in args
    assert "--ckpt-format" not in launch("Megatron", gang(PLANS["hybrid"]), 0).args


def test_kernels_keep_their_order_where_megatron_wants_it_and_only_there() -> None:
    def ordered(plan: ParallelPlan, launcher: str = "Megatron") -> bool:
        return launch(launcher, gang(plan), 0).env.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"

    assert [name for name, plan in PLANS.items() if ordered(plan)] == [
        *("tensor", "hybrid", "experts-and-context", "interleaved")
    ]
    assert not ordered(PLANS["tensor"], "Torchtitan")


@pytest.mark.parametrize(
    "command",
    [("torchrun", "-m", "torchtitan.train", "--module", "llama3"), ("bash", "-c", "x --module=llama3"), ("MODULE",)],
)
def test_torchtitan_since_0_3_is_known_by_its_module_and_takes_recomputation_as_its_last_word(
    command: tuple[str, ...],
) -> None:
    training = replace(TRAINING, precision=Precision.FP8)
    plan = ParallelPlan(data=8, tensor=2, expert=4, recompute=Recompute.FULL)
    args = launch("Torchtitan", replace(gang(plan, training), command=command), 0).args
    assert args[-2:] == ("--training.disable_cuda_graphs", "activation-checkpoint:full")
    gone = ("activation_checkpoint.mode", "expert_tensor_parallel_degree", "model.converters")
    assert not [flag for flag in args if any(name in flag for name in gone)]
    older = launch("Torchtitan", gang(plan, training), 0).args
    assert all(any(name in flag for flag in older) for name in gone)


def test_only_deepspeed_gets_a_file() -> None:
    assert [name for name in LAUNCHERS if launch(name, gang(PLANS["hybrid"]), 0).deepspeed_config] == ["DeepSpeed"]


@pytest.mark.parametrize(
    ("precision", "flags"),
    [
        (Precision.FP32, ()),
        (Precision.FP16, ("--fp16",)),
        (Precision.BF16, ("--bf16",)),
        (Precision.FP8, ("--bf16", "--fp8-format", "hybrid")),
    ],
)
def test_megatron_is_told_the_precision(precision: Precision, flags: tuple[str, ...]) -> None:
    args = launch("Megatron", gang(PLANS["one-gpu"], replace(TRAINING, precision=precision)), 0).args
    assert args[-len(flags) :] == flags if flags else not {"--fp16", "--bf16"} & set(args)


@pytest.mark.parametrize(
    ("precision", "enabled"), [("FP32", None), ("FP16", "fp16"), ("BF16", "bf16"), ("FP8", "bf16")]
)
def test_deepspeed_is_told_the_precision(precision: str, enabled: str | None) -> None:
    training = replace(TRAINING, precision=Precision(precision))
    config = json.loads(launch("DeepSpeed", gang(PLANS["one-gpu"], training), 0).deepspeed_config or "")
    assert [name for name in ("bf16", "fp16") if config[name]["enabled"]] == ([enabled] if enabled else [])


def test_scripts_can_read_all_flags_from_the_environment() -> None:
    started = launch("Megatron", gang(PLANS["hybrid"]), 0)
    assert started.env["TRIMTAB_LAUNCH_FLAGS"].split() == list(started.args)
