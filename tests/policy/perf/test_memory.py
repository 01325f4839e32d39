"""Memory: published values, and what must hold for any architecture."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from tests.policy.perf.architectures import cases

from trimtab_policy import catalog
from trimtab_policy.perf import memory
from trimtab_policy.perf import model_flops as shapes
from trimtab_policy.perf import plan_arrays as col
from trimtab_policy.perf.plan_arrays import PlanColumns, columns
from trimtab_policy.specs import GpuSpec, ModelSpec, Optimizer, ParallelPlan, Precision, Recompute, TrainingSpec

GIB = float(1 << 30)

# Korthikanti et al. 2022, table 3: layers, hidden, heads, t, p, v, b, activations with sequence parallelism and
# selective recomputation (= fused attention), parameters + gradients + optimizer at 18 bytes without embedding; GiB.
PUBLISHED = {
    "22B": (48, 6144, 64, 8, 1, 1, 4, 9.562, 45.562),
    "175B": (96, 12288, 96, 8, 8, 3, 1, 12.352, 45.562),
    "530B": (105, 20480, 128, 8, 35, 3, 1, 23.076, 31.641),
    "1T": (128, 25600, 160, 8, 64, 1, 1, 26.562, 32.959),
}


def gpt(layers: int, hidden: int, heads: int) -> ModelSpec:
    return ModelSpec("gpt", layers, hidden, heads, heads, hidden // heads, 4 * hidden, 51200, False, True, 2048, True)


def interleaved(plan: ParallelPlan, chunks: int) -> PlanColumns:
    return columns([plan])._replace(virtual=np.array([float(chunks)]))


def count(model: ModelSpec) -> float:
    return float(shapes.parameters(shapes.of(model)))


@pytest.mark.parametrize("name", PUBLISHED)
def test_activations_and_states_of_published_models(name: str) -> None:
    layers, hidden, heads, t, p, v, b, activations, states = PUBLISHED[name]
    model, training = gpt(layers, hidden, heads), TrainingSpec(2048, 1024, 1)
    plan = interleaved(ParallelPlan(tensor=t, pipeline=p, micro_batch=b), v)
    in_flight = memory._layers_in_flight(col.work(model, training), plan, last=False)
    assert memory.layer_activations(col.work(model, training), plan, dropout=1.0) * in_flight / GIB == pytest.approx(
        activations, abs=1e-3
    )
    per_layer, _, _ = memory.parameters_per_gpu(shapes.of(model), plan)
    assert per_layer * 18 / GIB == pytest.approx(states, rel=5e-4)


def test_scores_are_stored_only_without_fused_attention_and_recomputation() -> None:
    model, training = gpt(48, 6144, 64), TrainingSpec(2048, 1024, 1)

    def activations(recompute: Recompute) -> float:
        plan = columns([ParallelPlan(tensor=8, micro_batch=4, recompute=recompute)])
        return (
            48
            * float(memory.layer_activations(col.work(model, training), plan, fused_attention=0.0, dropout=1.0)[0])
            / GIB
        )

    # Korthikanti: s b h L/t (34 + 5 a s/h)
    assert activations(Recompute.NONE) == pytest.approx(9.5625 * (34 + 5 * 64 * 2048 / 6144) / 34)
    assert activations(Recompute.SELECTIVE) == pytest.approx(9.5625)


@pytest.mark.parametrize(
    ("precision", "bytes_whole", "bytes_sharded"),
    [(Precision.BF16, 6, 12), (Precision.FP16, 4, 12), (Precision.FP32, 8, 8)],
)
def test_bytes_per_parameter_are_those_of_megatrons_distributed_optimizer(
    precision: Precision, bytes_whole: int, bytes_sharded: int
) -> None:
    model, training = catalog.model("gpt2"), TrainingSpec(1024, 64, 1, precision=precision)
    found = memory.footprint(col.work(model, training), columns([ParallelPlan(data=8, zero_stage=1)]))
    assert found.states[0] / count(model) == pytest.approx(bytes_whole + bytes_sharded / 8, rel=1e-3)


def test_fp32_copies_of_fp16_gradients_live_after_the_activations() -> None:
    model = catalog.model("llama3-8b")
    plan = columns([ParallelPlan(zero_stage=1)])

    def found(sequence: int) -> memory.Memory:
        return memory.footprint(col.work(model, TrainingSpec(sequence, 1, 1, precision=Precision.FP16)), plan)

    short, long = found(1), found(65536)
    assert (short.states + short.activations + short.logits + short.update)[0] == pytest.approx(
        20 * count(model), rel=1e-3
    )
    assert long.update[0] == 0


def test_zero_3_shards_everything_but_what_is_gathered() -> None:
    model, training = catalog.model("llama3-8b"), TrainingSpec(8192, 64, 1)
    found = memory.footprint(col.work(model, training), columns([ParallelPlan(data=64, zero_stage=3)]))
    assert found.states[0] == pytest.approx(16 * count(model) / 64, rel=1e-3)
    assert 0 < found.gathered[0] < 5e9


def test_experts_are_spread_over_expert_ranks() -> None:
    model, training = catalog.model("mixtral-8x7b"), TrainingSpec(4096, 64, 1)
    whole, spread = memory.footprint(
        col.work(model, training), columns([ParallelPlan(data=8, expert=e) for e in (1, 8)])
    ).weights
    experts = 2 * (count(model) - 1.61e9)
    assert whole - spread == pytest.approx(experts * 7 / 8, rel=0.01)


def test_optimizers_differ_in_their_states() -> None:
    model, plan = catalog.model("llama3-8b"), columns([ParallelPlan()])

    def states(optimizer: Optimizer) -> float:
        training = TrainingSpec(1024, 1, 1, optimizer=optimizer)
        return float(memory.footprint(col.work(model, training), plan).optimizer[0]) / count(model)

    assert states(Optimizer.ADAMW) == pytest.approx(12, rel=1e-3)
    assert states(Optimizer.SGD) == pytest.approx(8, rel=1e-3)
    assert states(Optimizer.ADAFACTOR) == pytest.approx(4, rel=1e-3)
    assert 8 < states(Optimizer.MUON) < 9


def test_hybrid_sharding_is_sharding_over_the_ranks_that_share_a_copy() -> None:
    job = col.work(catalog.model("llama3-8b"), TrainingSpec(8192, 512, 1))
    hybrid, node = (
        columns([ParallelPlan(data=64, zero_stage=3, shard=8)]),
        columns([ParallelPlan(data=8, zero_stage=3)]),
    )
    assert memory.footprint(job, hybrid).allocated[0] == memory.footprint(job, node).allocated[0]


def test_without_sequence_parallelism_norms_and_masks_are_not_divided() -> None:
    """Korthikanti, table 2: s b h (10 + 24/t) against s b h 34/t."""
    job = col.work(gpt(48, 6144, 64), TrainingSpec(2048, 1024, 1))
    plan = columns([ParallelPlan(tensor=8, micro_batch=4)])
    without = plan._replace(sequence_parallel=np.zeros(1))
    sbh = 2048 * 4 * 6144
    assert memory.layer_activations(job, plan, dropout=1.0)[0] == pytest.approx(sbh * 34 / 8)
    assert memory.layer_activations(job, without, dropout=1.0)[0] == pytest.approx(sbh * (10 + 24 / 8))


def test_context_parallelism_divides_tokens_and_scores() -> None:
    job = col.work(gpt(48, 6144, 64), TrainingSpec(8192, 1024, 1))
    one, four = memory.layer_activations(job, columns([ParallelPlan(context=c) for c in (1, 4)]), fused_attention=0.0)
    assert four < one / 4
    fused_one, fused_four = memory.layer_activations(job, columns([ParallelPlan(context=c) for c in (1, 4)]))
    assert (one - fused_one) / (four - fused_four) == pytest.approx(16)
    assert fused_four == pytest.approx(fused_one / 4)


def test_fp8_keeps_operands_in_one_byte() -> None:
    """Of 32 bytes a token and width of GPT without dropout, 12 become 6, and the projection has a copy of its own."""
    model = gpt(48, 6144, 64)
    one = columns([ParallelPlan()])
    in_bf16 = memory.layer_activations(col.work(model, TrainingSpec(1, 1, 1)), one)[0] / 6144
    in_fp8 = memory.layer_activations(col.work(model, TrainingSpec(1, 1, 1, precision=Precision.FP8)), one)[0] / 6144
    assert (in_bf16, in_fp8) == (32, 27)


def test_latent_attention_keeps_latent_vectors_and_expanded_heads() -> None:
    """DeepSeek-V2 (arXiv 2405.04434): 128 heads of 128 + 64, values of 128, ranks 1536 and 512."""
    job = col.work(catalog.model("deepseek-v3"), TrainingSpec(1, 1, 1))
    found = memory._attention_bytes(job.shape, 2, 2)
    assert found == 2 * (2 * 128 * 192 + 2 * 128 * 128 + 2 * (1536 + 512) + 64)


def test_a_loss_that_is_not_fused_keeps_the_logits_in_fp32() -> None:
    job, plan = col.work(catalog.model("llama3-8b"), TrainingSpec(8192, 1, 1)), columns([ParallelPlan()])
    logits = [
        memory.footprint(job, plan, loss_bytes=how).logits[0]
        for how in (memory.IN_PLACE, memory.VOCABULARY_PARALLEL, memory.PLAIN)
    ]
    assert np.diff(logits) == pytest.approx([8192 * 128256 * 4, 8192 * 128256 * 6])


@given(cases())
def test_every_part_is_finite_and_not_negative(case: tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec]) -> None:
    model, training, plan, _ = case
    found = memory.footprint(col.work(model, training), columns([plan]))
    assert all(np.isfinite(part).all() and (part >= 0).all() for part in found)
    assert found.required[0] > found.allocated[0] > 0


@given(cases())
def test_more_sequences_in_a_micro_batch_never_need_less(
    case: tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec],
) -> None:
    """The steps' micro-batches are kept many enough for the pipeline to be full, as a larger global batch would."""
    model, training, plan, _ = case
    larger = msgspec.structs.replace(training, global_batch_size=training.global_batch_size * 1024)
    batches = [msgspec.structs.replace(plan, micro_batch=b) for b in (1, 2, 4, 8)]
    assert (np.diff(memory.footprint(col.work(model, larger), columns(batches)).required) >= 0).all()


@given(cases())
def test_recomputing_and_sharding_never_need_more(case: tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec]) -> None:
    model, training, plan, _ = case
    by_recompute = [msgspec.structs.replace(plan, recompute=r) for r in Recompute]
    for fused in (1.0, 0.0):
        none, selective, full = memory.footprint(
            col.work(model, training), columns(by_recompute), fused_attention=fused
        ).allocated
        assert max(selective, full) <= none * (1 + 1e-12)
    by_stage = [msgspec.structs.replace(plan, zero_stage=z) for z in (0, 1, 2)]
    assert (np.diff(memory.footprint(col.work(model, training), columns(by_stage)).allocated) <= 0).all()


@given(cases())
def test_many_plans_at_once_are_the_same_as_one_at_a_time(
    case: tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec],
) -> None:
    model, training, plan, _ = case
    other = msgspec.structs.replace(plan, data=plan.data * 2, recompute=Recompute.FULL)
    together = memory.footprint(col.work(model, training), columns([plan, other])).required
    alone = [memory.footprint(col.work(model, training), columns([p])).required[0] for p in (plan, other)]
    assert together.tolist() == alone


@given(cases())
def test_wider_sharding_never_needs_more(case: tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec]) -> None:
    model, training, plan, _ = case
    by_shard = [
        msgspec.structs.replace(plan, data=8, expert=1, zero_stage=max(plan.zero_stage, 1), shard=n)
        for n in (1, 2, 4, 8)
    ]
    assert (np.diff(memory.footprint(col.work(model, training), columns(by_shard)).allocated) <= 0).all()


@given(cases(), cases())
def test_different_jobs_at_once_are_the_same_as_one_at_a_time(
    one: tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec],
    other: tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec],
) -> None:
    jobs = [col.work(model, training) for model, training, _, _ in (one, other)]
    plans = [plan for _, _, plan, _ in (one, other)]
    together = memory.footprint(col.stack(jobs), columns(plans)).required
    alone = [memory.footprint(job, columns([plan])).required[0] for job, plan in zip(jobs, plans, strict=True)]
    assert together == pytest.approx(alone, rel=1e-12)


def test_a_table_of_plans_crosses_with_variants() -> None:
    job = col.work(catalog.model("llama3-8b"), TrainingSpec(8192, 64, 1))
    rows = columns([ParallelPlan(data=d) for d in (1, 2, 4)])
    crossed = PlanColumns(*(column[:, None] for column in rows))._replace(zero_stage=np.array([[0.0, 1.0]]))
    found = memory.footprint(job, crossed).required
    assert found.shape == (3, 2)
    assert found[:, 1] == pytest.approx(memory.footprint(job, rows._replace(zero_stage=np.ones(3))).required)
