"""API objects as policies see them, and the way back."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace
from pydantic import ValidationError

from trimtab.api.base import TEXT
from trimtab.api.convert import (
    UNLIMITED,
    to_eta,
    to_model_spec,
    to_placement,
    to_plan,
    to_quotas,
    to_requirements,
    to_start_time,
    to_training,
)
from trimtab.api.status import MAX_LOST, Plan
from trimtab.api.v1alpha1 import JobSpec, QueueSpec
from trimtab.errors import SpecError
from trimtab_policy import catalog
from trimtab_policy.specs import (
    Adapters,
    AdapterTargets,
    Mode,
    ModelSpec,
    Offload,
    Optimizer,
    OptimizerOffload,
    ParallelPlan,
    Precision,
    Prediction,
    Quantization,
    Recompute,
)
from trimtab_policy.types import Alternative, Bounds, Eta, NodeShare, Placement, Quota

Spec = Callable[..., JobSpec]
ANY = Bounds()
ONE = Bounds(1, 1)


@pytest.fixture
def spec(job: Callable[..., dict[str, Any]]) -> Spec:
    """The spec of a valid job with changes below `spec`."""
    return lambda **changes: JobSpec.model_validate(
        job({f"spec.{path.replace('__', '.')}": value for path, value in changes.items()})["spec"]
    )


def test_a_preset_is_looked_up(spec: Spec) -> None:
    assert to_model_spec(spec(model={"preset": "llama3-8b"}).model) == catalog.model("llama3-8b")


def test_an_unknown_preset_names_the_field_and_what_is_near(spec: Spec) -> None:
    with pytest.raises(SpecError, match=r"^spec\.model\.preset: .*llama3-8b") as refused:
        to_model_spec(spec(model={"preset": "llama3-9b"}).model)
    assert refused.value.field == "spec.model.preset"


def test_a_short_name_of_a_gpu_allows_all_types_of_that_name(spec: Spec) -> None:
    def allowed(*types: str) -> tuple[str, ...]:
        return to_requirements(spec(resources={"gpus": {"max": 8}, "gpuTypes": list(types)})).gpu_types

    assert {"H100-SXM5-80GB", "H100-PCIE-80GB", "H100-NVL-94GB"} <= set(allowed("H100"))
    assert allowed("a100-80gb") == ("A100-SXM4-80GB", "A100-PCIE-80GB")
    assert allowed("H100-SXM5-80GB", "H100-SXM5") == ("H100-SXM5-80GB", "H100-SXM5-96GB-500W")
    assert allowed("T4", "H1000", "H100-SXM5-80GBB") == ("T4", "H1000", "H100-SXM5-80GBB")


def test_an_architecture_is_completed_by_the_usual_defaults(spec: Spec) -> None:
    assert to_model_spec(spec().model) == ModelSpec(
        name="custom",
        layers=8,
        hidden_size=512,
        attention_heads=8,
        kv_heads=8,
        head_dim=64,
        ffn_hidden_size=2048,
        vocab_size=32000,
    )


def test_a_mixture_of_experts_with_grouped_heads_of_their_own_width(spec: Spec) -> None:
    shape = {"kvHeads": 2, "headDim": 128, "experts": 8, "expertsPerToken": 2, "gatedFfn": False}
    model = to_model_spec(spec(**{f"model__architecture__{name}": value for name, value in shape.items()}).model)
    assert (model.kv_heads, model.head_dim, model.experts, model.experts_per_token, model.gated_ffn) == (
        2,
        128,
        8,
        2,
        False,
    )


@pytest.mark.parametrize("model", [{}, {"preset": "gpt2", "architecture": {}}])
def test_without_an_api_server_the_model_is_still_checked(spec: Spec, model: dict[str, Any]) -> None:
    with pytest.raises((SpecError, ValidationError), match="architecture"):
        to_model_spec(spec(model=model).model)


def test_heads_that_do_not_divide_are_refused_where_no_api_server_has(spec: Spec) -> None:
    with pytest.raises(SpecError, match=r"hiddenSize: must be a multiple"):
        to_model_spec(spec(model__architecture__attentionHeads=7).model)


@given(tokens=st.integers(1, 10**15), batch=st.integers(1, 2**20), length=st.integers(1, 2**24))
def test_tokens_become_whole_steps_rounded_up(tokens: int, batch: int, length: int) -> None:
    training = JobSpec.model_fields["training"].annotation
    assert training is not None
    value = training(sequenceLength=length, globalBatchSize=batch, tokens=tokens)
    steps = to_training(value).steps
    assert (steps - 1) * batch * length < tokens <= steps * batch * length


def test_training_has_its_defaults(spec: Spec) -> None:
    training = to_training(spec().training)
    assert (training.steps, training.precision, training.tokens_per_step) == (100, Precision.BF16, 1024 * 64)


def test_both_or_no_length_of_the_run_is_refused(spec: Spec) -> None:
    for length in ({"tokens": 5, "steps": 5}, {"steps": None}):
        with pytest.raises(SpecError, match=r"spec\.training: give exactly one"):
            to_training(spec(**{f"training__{name}": value for name, value in length.items()}).training)


def test_nothing_said_means_everything_is_allowed(spec: Spec) -> None:
    free = to_requirements(spec(resources={"gpus": {"max": 8}}))
    assert free.gpus == Bounds(1, 8)
    assert free.modes == (Mode.DATA, Mode.MODEL, Mode.HYBRID)
    assert (free.tensor, free.pipeline, free.context, free.expert) == (ANY, ANY, ANY, ANY)
    assert (free.zero_stage, free.recompute, free.max_nodes, free.gpu_types) == (None, None, None, ())


def test_limits_are_taken_over(spec: Spec) -> None:
    limited = to_requirements(
        spec(
            resources={"gpus": {"min": 4, "max": 8}, "gpuTypes": ["t4", "Unheard-Of-GPU"], "maxNodes": 2}
            | {"cpusPerGpu": "1500m", "memoryPerGpu": "64Gi"},
            parallelism={
                "mode": "Hybrid",
                "tensor": {"fixed": 4},
                "pipeline": {"max": 2},
                "zeroStage": 1,
                "recompute": "Full",
            },
        )
    )
    assert limited.gpus == Bounds(4, 8)
    assert limited.gpu_types == ("T4", "Unheard-Of-GPU")
    assert (limited.max_nodes, limited.cpu_milli_per_gpu, limited.memory_per_gpu) == (2, 1500, 64 << 30)
    assert limited.modes == (Mode.HYBRID,)
    assert (limited.tensor, limited.pipeline) == (Bounds(4, 4), Bounds(1, 2))
    assert (limited.zero_stage, limited.recompute) == (1, Recompute.FULL)


def test_fixed_means_all_of_the_gpus(spec: Spec) -> None:
    assert to_requirements(spec(elasticity={"policy": "Fixed"}, resources={"gpus": {"max": 8}})).gpus == Bounds(8, 8)


def test_more_at_least_than_at_most_is_refused(spec: Spec) -> None:
    with pytest.raises(SpecError, match=r"spec\.resources\.gpus\.min: 9 exceeds max, which is 8"):
        to_requirements(spec(resources={"gpus": {"min": 9, "max": 8}}))


@pytest.mark.parametrize(
    ("asked", "tensor", "pipeline", "zero_stage"),
    [
        ({}, ONE, ONE, None),
        ({"zeroStage": 3}, ONE, ONE, 3),
        ({"pipeline": {"max": 4}}, ONE, Bounds(1, 4), 1),
        ({"tensor": {"fixed": 2}, "zeroStage": 2}, Bounds(2, 2), ONE, 2),
        ({"tensor": {"max": 2}, "zeroStage": 3}, ONE, ONE, 3),
        ({"mode": "Hybrid"}, ANY, ANY, 1),
        ({"mode": "Model"}, ANY, ANY, 0),
    ],
)
def test_deepspeed_is_asked_only_for_what_it_can_do(
    spec: Spec, asked: dict[str, Any], tensor: Bounds, pipeline: Bounds, zero_stage: int | None
) -> None:
    allowed = to_requirements(spec(launcher="DeepSpeed", parallelism=asked))
    assert (allowed.tensor, allowed.pipeline, allowed.context) == (tensor, pipeline, ONE)
    assert allowed.zero_stage == zero_stage


@pytest.mark.parametrize(
    ("launcher", "can"),
    [("Megatron", True), ("Torchtitan", True), ("Torchrun", False), ("DeepSpeed", False), ("Custom", False)],
)
def test_only_some_launchers_interleave_and_keep_a_copy_per_node(spec: Spec, launcher: str, can: bool) -> None:
    allowed = to_requirements(spec(launcher=launcher))
    assert (allowed.virtual, allowed.hybrid_sharding) == ((ANY, True) if can else (ONE, False))


def test_a_megatron_job_that_may_be_moved_keeps_one_format_of_checkpoints(spec: Spec) -> None:
    moves = {"checkpoint": {"resharding": True}}
    assert to_requirements(spec(launcher="Megatron", elasticity=moves)).zero_stages == Bounds(0, 1)
    assert to_requirements(spec(launcher="Megatron")).zero_stages == Bounds(0, 3), "it keeps its degrees"
    assert to_requirements(spec(launcher="Torchtitan", elasticity=moves)).zero_stages == Bounds(0, 3)
    asked = to_requirements(spec(launcher="Megatron", elasticity=moves, parallelism={"zeroStage": 3}))
    assert asked.zero_stage == 3, "the user's word counts"


def test_a_fine_tune_is_what_the_performance_model_knows(spec: Spec) -> None:
    found = to_training(
        spec(
            training__adapters={"rank": 16, "targets": "Attention", "quantization": "NF4Double"},
            training__offload={"optimizer": "Paged"},
            training__optimizer="AdamW8bit",
        ).training
    )
    assert found.adapters == Adapters(16, AdapterTargets.ATTENTION, Quantization.NF4_DOUBLE)
    assert found.offload == Offload(OptimizerOffload.PAGED)
    assert found.optimizer is Optimizer.ADAMW_8BIT
    plain = to_training(spec().training)
    assert (plain.adapters, plain.offload) == (UNSET, UNSET)


@pytest.mark.parametrize(
    ("launcher", "changes", "field"),
    [
        ("Torchtitan", {"training__adapters": {"rank": 8}}, "adapters"),
        ("Torchtitan", {"training__optimizer": "AdamW8bit"}, "optimizer"),
        ("Torchtitan", {"training__offload": {"optimizer": "Host"}}, "offload.optimizer"),
        ("Torchtitan", {"training__offload": {"optimizer": "Host", "weights": True}}, ""),
        ("Torchtitan", {"training__offload": {"activations": True}}, "offload.activations"),
        ("Megatron", {"training__adapters": {"rank": 8}}, "adapters"),
        ("Megatron", {"training__offload": {"optimizer": "Host"}}, ""),
        ("Megatron", {"training__offload": {"optimizer": "Paged"}}, "offload.optimizer"),
        ("Megatron", {"training__offload": {"weights": True}}, "offload.weights"),
        ("DeepSpeed", {"training__adapters": {"rank": 8}, "training__offload": {"optimizer": "Host"}}, ""),
        ("Torchrun", {"training__adapters": {"rank": 8}, "training__optimizer": "AdamW8bit"}, ""),
    ],
)
def test_what_a_launcher_has_no_flags_for_is_refused_by_its_field(
    spec: Spec, launcher: str, changes: dict[str, Any], field: str
) -> None:
    asked = spec(launcher=launcher, **changes)
    if not field:
        to_requirements(asked)
        return
    with pytest.raises(SpecError, match=rf"^spec\.training\.{field}: {launcher} has no flag"):
        to_requirements(asked)


def test_quotas_carry_their_queue() -> None:
    queue = QueueSpec.model_validate(
        {"quotas": [{"gpuType": "h100-sxm5-80gb", "gpus": 4}, {"gpuType": "*", "gpus": 8}]}
    )
    assert to_quotas("q", queue) == (Quota("q", "H100-SXM5-80GB", 4), Quota("q", "*", 8))


def test_a_quota_without_a_limit_only_guarantees() -> None:
    queue = QueueSpec.model_validate({"quotas": [{"gpuType": "T4", "guaranteed": 4}]})
    assert to_quotas("q", queue) == (Quota("q", "T4", UNLIMITED, 4),)


def test_of_a_type_that_is_spelt_in_two_ways_the_lower_quota_counts() -> None:
    rows = [{"gpuType": "t4", "gpus": 8, "guaranteed": 2}, {"gpuType": "T4", "gpus": 6, "guaranteed": 4}]
    assert to_quotas("q", QueueSpec.model_validate({"quotas": rows})) == (Quota("q", "T4", 6, 2),)


PLACEMENT = Placement(
    job="uid",
    gpu_type="A100-SXM4-80GB",
    shares=(NodeShare("n2", 4), NodeShare("n1", 4)),
    plan=ParallelPlan(data=2, tensor=4, micro_batch=2, zero_stage=1, recompute=Recompute.SELECTIVE),
    prediction=Prediction(
        step_seconds=1.5, tokens_per_second=41200.0, memory_bytes=1 << 35, run_seconds=3600.0, uncertainty=1.2
    ),
    reason="8×A100-SXM4-80GB: 41.2k tokens/s",
)


def plan(placement: Placement) -> Plan:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return to_plan(placement, epoch=3, policy="best_fit", resource="nvidia.com/gpu", generation=7, now=now)


def test_a_plan_on_the_wire() -> None:
    assert plan(PLACEMENT).to_wire() == {
        "epoch": 3,
        "observedGeneration": 7,
        "createdTime": "2026-01-02T03:04:05Z",
        "policy": "best_fit",
        "reason": "8×A100-SXM4-80GB: 41.2k tokens/s",
        "gpuType": "A100-SXM4-80GB",
        "gpuResource": "nvidia.com/gpu",
        "gpus": 8,
        "mode": "Hybrid",
        "summary": "dp=2 tp=4 pp=1 zero=1",
        "parallelism": {
            "data": 2,
            "tensor": 4,
            "pipeline": 1,
            "context": 1,
            "expert": 1,
            "microBatch": 2,
            "zeroStage": 1,
            "recompute": "Selective",
        },
        "nodeCount": 2,
        "nodes": [{"name": "n2", "gpus": 4}, {"name": "n1", "gpus": 4}],
        "predicted": {
            "stepMilliseconds": 1500,
            "stepMillisecondsLow": 1250,
            "stepMillisecondsHigh": 1800,
            "tokensPerSecond": 41200,
            "memoryBytesPerGpu": 1 << 35,
            "runSeconds": 3600,
            "finishTime": "2026-01-02T04:04:05Z",
        },
    }


def lost(**changes: Any) -> Alternative:
    why = "worth 0.50 as much to this job"
    return replace(Alternative("T4", 16, PLACEMENT.plan, PLACEMENT.prediction, why, 0.5, 0.25), **changes)


def test_what_lost_is_kept_with_the_plan() -> None:
    [kept] = plan(replace(PLACEMENT, alternatives=(lost(),))).to_wire()["alternatives"]
    assert kept == {
        "gpuType": "T4",
        "gpus": 16,
        "summary": "dp=2 tp=4 pp=1 zero=1",
        "stepMilliseconds": 1500,
        "tokensPerSecond": 41200,
        "runSeconds": 3600,
        "worthPermille": 500,
        "pricePermille": 250,
        "whyNot": "worth 0.50 as much to this job",
    }


def test_what_lost_is_bounded_in_number_length_and_value() -> None:
    many = tuple(lost(why_not="x" * 5000, worth=math.inf, price=math.nan) for _ in range(50))
    kept = plan(replace(PLACEMENT, alternatives=many)).alternatives or ()
    assert len(kept) == MAX_LOST
    assert {(len(each.why_not), each.worth_permille, each.price_permille) for each in kept} == {(TEXT, 10**9, None)}
    unsaid = plan(replace(PLACEMENT, alternatives=(lost(worth=None, price=None),))).to_wire()["alternatives"][0]
    assert not {"worthPermille", "pricePermille"} & unsaid.keys()


def test_a_plan_of_an_earlier_version_has_nothing_that_lost() -> None:
    assert Plan.model_validate(plan(PLACEMENT).to_wire()).alternatives is None


INTERLEAVED = ParallelPlan(pipeline=4, virtual=3, data=2, zero_stage=1)
HYBRID_SHARDED = ParallelPlan(data=8, zero_stage=3, shard=4)


@pytest.mark.parametrize(
    "degrees", [PLACEMENT.plan, INTERLEAVED, HYBRID_SHARDED], ids=lambda degrees: degrees.describe()
)
def test_a_plan_read_back_is_the_placement_that_was_written(degrees: ParallelPlan) -> None:
    written = replace(PLACEMENT, plan=degrees)
    assert to_placement("uid", Plan.model_validate_json(plan(written).model_dump_json(by_alias=True))) == written


def test_what_predictions_were_corrected_by_is_on_the_wire_only_where_it_says_something() -> None:
    slow = replace(PLACEMENT, speed=0.85, prediction=replace(PLACEMENT.prediction, correction=1.234))
    written = plan(slow)
    assert (written.predicted.correction_permille, written.predicted.speed_permille) == (1234, 850)
    assert to_placement("uid", written) == slow
    assert not {"correctionPermille", "speedPermille"} & plan(PLACEMENT).to_wire()["predicted"].keys()


def test_a_job_that_goes_on_from_a_checkpoint_ends_earlier() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    rest = to_plan(PLACEMENT, epoch=3, policy="p", resource="nvidia.com/gpu", generation=7, now=now, left=0.25)
    assert (rest.predicted.finish_time - now).total_seconds() == 900
    assert rest.predicted.run_seconds == 3600


def test_how_fast_fake_pods_run_is_on_the_wire_and_the_end_counts_on_it() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    fast = to_plan(PLACEMENT, epoch=3, policy="p", resource="nvidia.com/gpu", generation=7, now=now, speedup=1800)
    assert (fast.predicted.speedup_permille, fast.predicted.run_seconds) == (1_800_000, 3600)
    assert (fast.predicted.finish_time - now).total_seconds() == 2
    assert "speedupPermille" not in plan(PLACEMENT).to_wire()["predicted"]


def test_interleaving_and_hybrid_sharding_are_on_the_wire_only_where_there_is_any() -> None:
    plain, interleaved, sharded = (
        plan(replace(PLACEMENT, plan=degrees)).to_wire() for degrees in (PLACEMENT.plan, INTERLEAVED, HYBRID_SHARDED)
    )
    assert not {"virtualPipeline", "shard"} & set(plain["parallelism"])
    assert interleaved["parallelism"]["virtualPipeline"] == 3
    assert interleaved["summary"] == "dp=2 tp=1 pp=4 vpp=3 zero=1"
    assert sharded["parallelism"]["shard"] == 4
    assert sharded["summary"] == "dp=8 tp=1 pp=1 zero=3 shard=4"


def test_a_start_is_told_in_whole_minutes_with_the_interval_rounded_outward() -> None:
    told = to_start_time(Eta(1_767_323_045.0, 1_767_324_000.5, 1_767_330_001.0)).to_wire()
    assert told == {
        "earliest": "2026-01-02T03:04:00Z",
        "expected": "2026-01-02T03:20:00Z",
        "latest": "2026-01-02T05:01:00Z",
    }
    assert to_start_time(Eta(0.0, 1e18, 1e18)).latest.year == 9999


def test_a_start_that_was_told_is_read_until_it_has_passed() -> None:
    eta = Eta(1_767_323_040.0, 1_767_324_000.0, 1_767_330_060.0)
    assert to_eta(to_start_time(eta), eta.low - 1) == eta
    assert to_eta(to_start_time(eta), eta.expected + 5) == Eta(eta.expected + 5, eta.expected + 5, eta.high)
    assert to_eta(to_start_time(eta), eta.high) is None
    assert to_eta(None, 0.0) is None
