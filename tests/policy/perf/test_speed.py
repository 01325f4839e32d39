"""Step time: bounds by physics, the effects that published runs show, and what must hold for any architecture."""

from __future__ import annotations

from math import ceil

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.policy.perf.architectures import cases
from tests.policy.perf.runs import cells, runs

from trimtab_policy import catalog
from trimtab_policy.perf import constants, hardware, model_flops, speed
from trimtab_policy.perf.forecast import forecast
from trimtab_policy.perf.hardware import Software
from trimtab_policy.perf.plan_arrays import Array, PlanColumns, columns, work
from trimtab_policy.perf.speed import StepTime
from trimtab_policy.specs import GpuSpec, ModelSpec, ParallelPlan, Precision, Recompute, TrainingSpec

H100 = catalog.gpu("H100-SXM5-80GB")
A100 = catalog.gpu("A100-SXM4-80GB")
LLAMA_8B = catalog.model("llama3-8b")
LLAMA_70B = catalog.model("llama3-70b")
EAGER = hardware.software("megatron-lm")
"""Megatron of 2021: scores cross memory, and little hides behind anything."""


def seconds(
    model: ModelSpec, training: TrainingSpec, *plans: ParallelPlan, gpu: GpuSpec = H100, width: int = 8
) -> Array:
    return timed(model, training, columns(plans), gpu, width).total


def timed(
    model: ModelSpec,
    training: TrainingSpec,
    plans: PlanColumns,
    gpu: GpuSpec,
    width: int,
    software: Software | None = None,
    spread: float = 1.0,
) -> StepTime:
    machine = hardware.machine(gpu, training.precision, spread=spread)
    return speed.step_time(work(model, training), plans, machine, width, software)


@given(cases())
def test_a_step_is_never_faster_than_its_flops_at_peak(
    case: tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec],
) -> None:
    model, training, plan, gpu = case
    time = timed(model, training, columns([plan]), gpu, 8)
    form = model_flops.of(model)
    flops = model_flops.training_flops_per_token(form, training.sequence_length)
    # The output layer works on one stage only: it does not divide by the pipeline degree.
    flops -= 6 * model_flops.embedding_parameters(form) if plan.pipeline > 1 else 0
    peak = plan.gpus * gpu.peak_flops[training.precision]
    assert time.total[0] >= flops * training.tokens_per_step / peak


@given(cases())
def test_more_micro_batches_never_lower_the_throughput_beside_the_bubble(
    case: tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec],
) -> None:
    model, training, plan, gpu = case
    batches = np.array([training.global_batch_size * times for times in (1, 2, 3, 16)])
    runs = [msgspec.structs.replace(training, global_batch_size=int(batch)) for batch in batches]
    times = [timed(model, run, columns([plan]), gpu, 8) for run in runs]
    busy = np.array([time.total[0] - time.bubble[0] for time in times])
    assert (np.diff(batches / busy) >= -1e-12 * batches[1:] / busy[1:]).all()


@given(cases())
def test_every_part_is_finite_and_not_negative(case: tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec]) -> None:
    model, training, plan, gpu = case
    for width in (1, 4, 8):
        for software in (hardware.software(), EAGER):
            time = timed(model, training, columns([plan]), gpu, width, software=software)
            assert all(np.isfinite(part).all() and (part >= 0).all() for part in time)


@given(cases())
def test_recomputing_more_takes_longer(case: tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec]) -> None:
    model, training, plan, gpu = case
    none, selective, full = seconds(
        model, training, *(msgspec.structs.replace(plan, recompute=r) for r in Recompute), gpu=gpu
    )
    assert none <= selective * (1 + 1e-12)
    assert selective <= full * (1 + 1e-12)


@given(cases())
def test_sharding_more_is_never_faster_from_stage_1_on_nor_is_stage_0(
    case: tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec],
) -> None:
    """What `plan_space` relies on when it leaves stage 0 to models without copies: in software that gathers ahead."""
    model, training, plan, gpu = case
    stages = columns([msgspec.structs.replace(plan, zero_stage=z, shard=0) for z in range(4)])
    ahead = hardware.software()._replace(gather_overlap=1.0)
    zero, one, two, three = timed(model, training, stages, gpu, 8, ahead).total
    assert one <= min(zero, two) * (1 + 1e-12)
    assert two <= three * (1 + 1e-12)


@given(cases())
def test_a_narrower_way_through_the_network_never_helps(
    case: tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec],
) -> None:
    model, training, plan, gpu = case
    near = timed(model, training, columns([plan]), gpu, 4).total
    far = timed(model, training, columns([plan]), gpu, 4, spread=3.0).total
    assert (far >= near).all()


def test_more_data_parallel_gpus_are_never_slower_for_a_compute_bound_job() -> None:
    training = TrainingSpec(8192, 2048, 1)
    plans = [ParallelPlan(data=d, zero_stage=3) for d in (8, 16, 32, 64, 128, 256)]
    times = seconds(LLAMA_8B, training, *plans)
    assert (np.diff(times) < 0).all()
    assert times[0] / times[3] == pytest.approx(8, rel=0.15)


def test_the_bubble_shrinks_with_micro_batches_and_with_interleaving() -> None:
    plan = columns([ParallelPlan(tensor=8, pipeline=8)])
    model = msgspec.structs.replace(LLAMA_70B, vocab_size=1000)  # the output layer would unbalance the last stage

    def bubble(batch: int, chunks: float = 1.0) -> float:
        interleaved, quiet = plan._replace(virtual=np.array([chunks])), hardware.software()._replace(contention=0.0)
        time = timed(model, TrainingSpec(4096, batch, 1), interleaved, H100, 8, quiet)
        return float(time.bubble[0] / (time.compute[0] + time.layer_communication[0]))

    assert bubble(64) < bubble(8)
    assert bubble(8, chunks=5.0) < bubble(8) / 2
    # (p - 1)/m of the ideal time, Narayanan et al. 2021, section 2.2.1
    assert bubble(8) == pytest.approx(7 / 8, rel=0.01)


def test_tensor_parallelism_inside_a_node_beats_tensor_parallelism_across_nodes() -> None:
    training, plan = TrainingSpec(4096, 32, 1), columns([ParallelPlan(tensor=8, data=4)])
    inside = timed(LLAMA_70B, training, plan, A100, 8)
    across = timed(LLAMA_70B, training, plan, A100, 4)
    assert inside.layer_communication[0] < across.layer_communication[0] / 2


def test_tensor_collectives_wait_where_stages_meet_over_the_network() -> None:
    """In proportion to the tensor degree, per layer and micro-batch, and not where all stages share a link."""
    software, training = hardware.software("nanotron"), TrainingSpec(4096, 64, 1)
    small = msgspec.structs.replace(LLAMA_8B, hidden_size=1024, ffn_hidden_size=2048)  # the host sets its pace

    def waits(tensor: int, width: int) -> float:
        plan = columns([ParallelPlan(tensor=tensor, pipeline=2, data=8)])
        loud, quiet = (
            timed(small, training, plan, H100, width, each) for each in (software, software._replace(contention=0.0))
        )
        return float(loud.layer_communication[0] - quiet.layer_communication[0]) / (16 * 8)

    assert waits(8, 256) == waits(1, 8) == 0
    assert waits(8, 8) == pytest.approx(8 * software.contention, rel=0.1)
    assert waits(8, 8) == pytest.approx(2 * waits(4, 8), rel=0.1)


def test_nothing_contends_while_a_pipeline_fills_and_drains() -> None:
    loud = hardware.software("nanotron")
    small = msgspec.structs.replace(LLAMA_8B, hidden_size=1024, ffn_hidden_size=2048, vocab_size=1000)
    plan = columns([ParallelPlan(tensor=8, pipeline=4, data=8)])
    bubbles = [
        timed(small, TrainingSpec(4096, 64, 1), plan, H100, 8, each).bubble[0]
        for each in (loud, loud._replace(contention=0.0))
    ]
    assert bubbles[0] == pytest.approx(bubbles[1])


@given(
    layers=st.integers(1, 96),
    stages=st.integers(1, 32),
    vocabulary=st.sampled_from([1000, 32_000, 131_072, 1_000_000]),
)
def test_balanced_stages_are_as_short_as_any_split_makes_them(layers: int, stages: int, vocabulary: int) -> None:
    assume(stages <= layers)
    model = msgspec.structs.replace(LLAMA_8B, layers=layers, vocab_size=vocabulary)
    plan = columns([ParallelPlan(pipeline=stages)])
    software = hardware.software("nanotron")

    def longest(model: ModelSpec, plan: PlanColumns) -> float:
        time = timed(model, TrainingSpec(4096, 1, 1), plan, H100, 1024, software)
        return float(time.compute[0] + time.layer_communication[0])

    two, three = (longest(msgspec.structs.replace(model, layers=n), columns([ParallelPlan()])) for n in (2, 3))
    layer = three - two
    head = two - 2 * layer
    splits = (
        max(ceil((layers - last) / max(1, stages - 1)) * layer, last * layer + head) for last in range(layers + 1)
    )
    best = min(splits) if stages > 1 else layers * layer + head
    assert longest(model, plan) == pytest.approx(best, rel=1e-6)


def test_jobs_of_several_units_wait_for_paths_between_them() -> None:
    """Nothing inside a unit or a link domain; else at every crossing of a pipeline, without one once a step.

    Of p micro-batches under way each waits at p - 1 crossings, there and back: 2 (p - 1)/p a micro-batch.
    """
    slow = hardware.software()._replace(far_wait=2.0)
    training, still = TrainingSpec(4096, 2048, 1), slow._replace(far_wait=0.0)

    def waits(plan: ParallelPlan, width: int = 8) -> float:
        times = [timed(LLAMA_8B, training, columns([plan]), H100, width, each) for each in (slow, still)]
        return float((times[0].total - times[1].total)[0]) / (1 + stragglers(times[1]))

    def stragglers(time: StepTime) -> float:
        return float((time.stragglers / (time.total - time.stragglers))[0])

    assert waits(ParallelPlan(data=32, tensor=8)) == pytest.approx(0)
    assert waits(ParallelPlan(data=64, tensor=8), width=512) == pytest.approx(0)
    assert waits(ParallelPlan(data=64, tensor=8)) == pytest.approx(2.0 / 2)
    assert waits(ParallelPlan(data=128, tensor=8)) == pytest.approx(2.0 * 3 / 4)
    micro_batches = 2048 / 32
    assert waits(ParallelPlan(data=32, tensor=8, pipeline=2)) == pytest.approx(micro_batches * 2.0 / 2)
    assert waits(ParallelPlan(data=16, tensor=8, pipeline=4)) == pytest.approx(2 * micro_batches * 2.0 * 3 / 4)


def test_renewed_weights_are_waited_for_where_they_are_not_gathered_ahead() -> None:
    training = TrainingSpec(4096, 64, 1)
    zero, one = (columns([ParallelPlan(data=64, zero_stage=stage)]) for stage in (0, 1))
    ahead, late = (hardware.software()._replace(data_overlap=1.0, gather_overlap=share) for share in (1.0, 0.0))

    def waits(plan: PlanColumns, software: Software) -> float:
        return float(timed(LLAMA_8B, training, plan, H100, 8, software).data_communication[0])

    assert waits(zero, late) == waits(zero, ahead) == waits(one, ahead) == 0
    gathered = 2 * model_flops.parameters(model_flops.of(LLAMA_8B))
    assert waits(one, late) > gathered * 63 / 64 / (8 * H100.network_bandwidth)


def test_nothing_hides_what_zero_1_moves_where_gradients_are_summed_after_the_passes() -> None:
    """As many bytes as stage 0 moves, and the weights; stage 0 itself goes along with the backward pass."""
    training = TrainingSpec(4096, 64, 1)
    zero, one = (columns([ParallelPlan(data=64, zero_stage=stage)]) for stage in (0, 1))
    late = hardware.software("nanotron")._replace(data_overlap=1.0, gather_overlap=1.0)
    others = late._replace(late_reduction=0.0)

    def waits(plan: PlanColumns, software: Software) -> float:
        return float(timed(LLAMA_8B, training, plan, H100, 8, software).data_communication[0])

    assert waits(zero, late) == waits(zero, others) == waits(one, others) == 0
    moved = (2 * 4 + 2) * model_flops.parameters(model_flops.of(LLAMA_8B))
    copies = late.unflatten * 64 * 6 * LLAMA_8B.layers
    assert waits(one, late) > moved * 63 / 64 / (8 * H100.network_bandwidth) + copies
    assert waits(one, late._replace(unflatten=0.0)) == pytest.approx(waits(one, late) - copies)


@pytest.mark.parametrize(("bucket", "messages"), [(0.0, LLAMA_8B.layers), (1e7, None)])
def test_sums_between_nodes_go_up_and_down_a_tree(bucket: float, messages: float | None) -> None:
    """Once per bucket of gradients, or per layer: hops grow with the logarithm of the nodes."""
    software = hardware.software()._replace(data_overlap=0.0, messages=1.0, bucket=bucket)
    machine, run = hardware.machine(H100, Precision.BF16), work(LLAMA_8B, TrainingSpec(4096, 1024, 1))
    sums = messages or model_flops.parameters(model_flops.of(LLAMA_8B)) / bucket

    def hops(data: int) -> float:
        plan = columns([ParallelPlan(data=data)])
        times = [speed.step_time(run, plan, machine._replace(hop=hop), 8, software) for hop in (1.0, 0.0)]
        return float((times[0].data_communication - times[1].data_communication)[0])

    assert hops(8) == 0
    assert hops(64) == pytest.approx(2 * sums * 3)
    assert hops(512) == pytest.approx(2 * hops(64))


def test_narrow_heads_attend_slower_at_the_same_flops() -> None:
    training, plan = TrainingSpec(32768, 8, 1), columns([ParallelPlan(data=8)])
    wide, narrow = (
        timed(
            msgspec.structs.replace(LLAMA_8B, head_dim=width, attention_heads=4096 // width, kv_heads=1024 // width),
            training, plan, H100, 8,
        ).compute[0]
        for width in (128, 64)
    )  # fmt: skip
    assert 1.03 < narrow / wide < 1.5


def test_more_smaller_experts_cost_more_than_their_flops() -> None:
    """Routing copies a token to each of its experts, and their products are narrower."""
    training, plan = TrainingSpec(4096, 256, 1), columns([ParallelPlan(data=8, expert=8, micro_batch=4)])
    model = catalog.model("qwen3-30b-a3b")
    few, many = (
        timed(msgspec.structs.replace(model, experts_per_token=k, ffn_hidden_size=6144 // k), training, plan, H100, 8)
        for k in (2, 8)
    )
    assert many.compute[0] > 1.1 * few.compute[0]
    assert many.layer_communication[0] > 2 * few.layer_communication[0]


def test_cuda_graphs_lower_the_floor_of_small_layers() -> None:
    value = constants.load().lookup("Hopper", "megatron-core", "")
    facts = hardware.facts("megatron-core")
    eager, captured = (hardware.practised(value, facts._replace(captured=share)) for share in (0.0, 1.0))
    assert captured.launch_seconds < eager.launch_seconds / 2
    assert captured.expert_time == 1 < eager.expert_time


def test_a_group_between_nodes_has_as_many_adapters_as_it_has_ranks_on_a_node() -> None:
    """Galvatron's measurements on 2 x 8 GPUs: 44.7, 20.8, 16.2, 8.1 GB/s for 8, 4, 2, 1 ranks per node."""
    machine = hardware.machine(A100, Precision.BF16)
    inner = np.array([1.0, 2.0, 4.0, 8.0])
    outside = speed.group_bandwidth(machine, 16 / inner, inner, np.array([8.0]))
    assert outside / machine.network == pytest.approx([8, 4, 2, 1])
    inside = speed.group_bandwidth(machine, np.array([8.0]), np.array([1.0]), np.array([8.0]))
    assert inside == pytest.approx(machine.link)


def test_small_layers_cost_what_their_launch_costs() -> None:
    tiny = ModelSpec("tiny", 12, 256, 4, 4, 64, 1024, 1000)
    time = timed(tiny, TrainingSpec(128, 1, 1), columns([ParallelPlan()]), H100, 1)
    assert time.compute[0] == pytest.approx(12 * hardware.software().launch_seconds, rel=0.05)


def test_fp8_is_faster_than_bf16_but_not_twice_as_fast() -> None:
    def run(precision: Precision) -> float:
        return float(seconds(LLAMA_8B, TrainingSpec(8192, 64, 1, precision), ParallelPlan(data=8, zero_stage=1))[0])

    assert 1.1 < run(Precision.BF16) / run(Precision.FP8) < 2


# Narayanan et al. 2021 (SC21), table 1, with micro-batches and interleaving of Megatron-LM's examples/sc21: layers,
# hidden, heads, batch, GPUs, t, p, v, b, achieved TFLOP/s per GPU.
SC21 = {
    "1.7B": (24, 2304, 24, 512, 32, 1, 1, 1, 16, 137),
    "3.6B": (30, 3072, 32, 512, 64, 2, 1, 1, 16, 138),
    "39B": (48, 8192, 64, 1536, 512, 8, 2, 1, 4, 138),
    "145B": (80, 12288, 96, 2304, 1536, 8, 8, 2, 2, 148),
    "1T": (128, 25600, 160, 3072, 3072, 8, 64, 1, 1, 163),
}


@pytest.mark.parametrize("name", SC21)
def test_step_times_of_megatron_on_a100_are_met_within_ten_percent(name: str) -> None:
    layers, h, heads, batch, gpus, t, p, v, b, tflops = SC21[name]
    s, vocabulary = 2048, 51200
    shape = {"layers": layers, "hidden": h, "heads": heads, "ffn_hidden": 4 * h, "vocab": vocabulary, "glu": 0}
    plan = {"n_gpus": gpus, "tp": t, "pp": p, "vpp": v, "micro_batch": b, "sp": 0, "zero_or_fsdp": "DDP"}
    run = {"seq_len": s, "global_batch": batch, "precision": "fp16", "act_recompute": "full", "tied_emb": 1}
    found = runs(cells(framework="Megatron-LM", date="2021-04", **shape, **plan, **run))
    # The paper's own count, equation 3: full recomputation and the whole square of the attention scores.
    flops = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (16 * layers * h))
    assert forecast(found, constants.load()).seconds[0] == pytest.approx(flops / gpus / (tflops * 1e12), rel=0.10)


def test_a_precision_that_the_gpu_lacks_is_an_error_that_lists_the_ones_it_has() -> None:
    with pytest.raises(ValueError, match="V100-SXM2-16GB does not support BF16: use one of FP16, FP32"):
        seconds(LLAMA_8B, TrainingSpec(1024, 8, 1), ParallelPlan(data=8), gpu=catalog.gpu("V100-SXM2-16GB"))
