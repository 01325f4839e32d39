"""Memory: published values, and what must hold for any architecture."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from tests.policy.perf.architectures import cases

from trimtab_policy import catalog
from trimtab_policy.perf import columns as col
from trimtab_policy.perf import memory
from trimtab_policy.perf import shape as shapes
from trimtab_policy.perf.columns import Plans, columns
from trimtab_policy.types import GpuSpec, ModelSpec, Optimizer, ParallelPlan, Precision, Recompute, TrainingSpec

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


def interleaved(plan: ParallelPlan, chunks: int) -> Plans:
    return columns([plan])._replace(virtual=np.array([float(chunks)]))


@pytest.mark.parametrize("name", PUBLISHED)
def test_activations_and_states_of_published_models(name: str) -> None:
    layers, hidden, heads, t, p, v, b, activations, states = PUBLISHED[name]
    model, training = gpt(layers, hidden, heads), TrainingSpec(2048, 1024, 1)
    plan = interleaved(ParallelPlan(tensor=t, pipeline=p, micro_batch=b), v)
    in_flight = memory._layers_in_flight(col.work(model, training), plan, last=False)
    assert memory.layer_activations(col.work(model, training), plan) * in_flight / GIB == pytest.approx(
        activations, abs=1e-3
    )
    per_layer, _, _ = memory.parameters_per_gpu(shapes.of(model), plan)
    assert per_layer * 18 / GIB == pytest.approx(states, rel=5e-4)


def test_scores_are_stored_only_without_fused_attention_and_recomputation() -> None:
    model, training = gpt(48, 6144, 64), TrainingSpec(2048, 1024, 1)

    def activations(recompute: Recompute) -> float:
        plan = columns([ParallelPlan(tensor=8, micro_batch=4, recompute=recompute)])
        return 48 * float(memory.layer_activations(col.work(model, training), plan, fused_attention=False)[0]) / GIB

    # Korthikanti: s b h L/t (34 + 5 a s/h)
    assert activations(Recompute.NONE) == pytest.approx(9.5625 * (34 + 5 * 64 * 2048 / 6144) / 34)
    assert activations(Recompute.SELECTIVE) == pytest.approx(9.5625)


def test_megatron_golden_values_of_an_interleaved_pipeline_are_met_within_three_percent() -> None:
    """Megatron-LM functional test gpt3_7b_tp1_pp4_memory_speed: 24.5 to 24.8 GB of states, 60.5 to 60.7 GB peak."""
    model = ModelSpec("7b", 32, 4096, 32, 8, 128, 16384, 131072, gated_ffn=False)
    plan = interleaved(ParallelPlan(data=2, pipeline=4, zero_stage=1), 8)
    found = memory.footprint(col.work(model, TrainingSpec(8192, 8, 1)), plan)
    assert found.allocated[0] == pytest.approx(60.6e9, rel=0.03)
    states = found.weights[0] + found.gradients[0] + found.optimizer[0]
    assert states == pytest.approx(24.6e9, rel=0.06)


@pytest.mark.parametrize(
    ("precision", "bytes_whole", "bytes_sharded"),
    [(Precision.BF16, 6, 12), (Precision.FP16, 4, 16), (Precision.FP32, 8, 8)],
)
def test_bytes_per_parameter_are_those_of_megatrons_distributed_optimizer(
    precision: Precision, bytes_whole: int, bytes_sharded: int
) -> None:
    model, training = catalog.model("gpt2"), TrainingSpec(1024, 64, 1, precision=precision)
    found = memory.footprint(col.work(model, training), columns([ParallelPlan(data=8, zero_stage=1)]))
    states = found.weights[0] + found.gradients[0] + found.optimizer[0]
    assert states / shapes.parameters(shapes.of(model)) == pytest.approx(bytes_whole + bytes_sharded / 8, rel=1e-3)


def test_zero_3_shards_everything_but_what_is_gathered() -> None:
    model, training = catalog.model("llama3-8b"), TrainingSpec(8192, 64, 1)
    found = memory.footprint(col.work(model, training), columns([ParallelPlan(data=64, zero_stage=3)]))
    states = found.weights[0] + found.gradients[0] + found.optimizer[0]
    assert states == pytest.approx(16 * shapes.parameters(shapes.of(model)) / 64, rel=1e-3)
    assert 0 < found.gathered[0] < 5e9


def test_experts_are_spread_over_expert_ranks() -> None:
    model, training = catalog.model("mixtral-8x7b"), TrainingSpec(4096, 64, 1)
    whole, spread = memory.footprint(
        col.work(model, training), columns([ParallelPlan(data=8, expert=e) for e in (1, 8)])
    ).weights
    experts = 2 * (shapes.parameters(shapes.of(model)) - 1.61e9)
    assert whole - spread == pytest.approx(experts * 7 / 8, rel=0.01)


def test_optimizers_differ_in_their_states() -> None:
    model, plan = catalog.model("llama3-8b"), columns([ParallelPlan()])

    def states(optimizer: Optimizer) -> float:
        training = TrainingSpec(1024, 1, 1, optimizer=optimizer)
        return float(memory.footprint(col.work(model, training), plan).optimizer[0]) / shapes.parameters(
            shapes.of(model)
        )

    assert states(Optimizer.ADAMW) == pytest.approx(12, rel=1e-3)
    assert states(Optimizer.SGD) == pytest.approx(8, rel=1e-3)
    assert states(Optimizer.ADAFACTOR) == pytest.approx(4, rel=1e-3)
    assert 8 < states(Optimizer.MUON) < 9


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
    for fused in (True, False):
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
