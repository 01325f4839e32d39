"""Adapters beside frozen weights, quantized ones, and what the host keeps: published counts, and what must hold."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace
from tests.policy.perf import runs as tables
from tests.policy.perf.architectures import cases

from trimtab_policy import catalog
from trimtab_policy.perf import breakdown, hardware, memory, model_flops, plan_arrays, plans, restarts, search, speed
from trimtab_policy.perf.measurements import MeasurementError
from trimtab_policy.perf.plan_arrays import Array, Work, columns, work
from trimtab_policy.perf.plans import InvalidPlan, Offer
from trimtab_policy.perf.speed import StepTime
from trimtab_policy.specs import (
    Adapters,
    AdapterTargets,
    GpuSpec,
    ModelSpec,
    Offload,
    Optimizer,
    OptimizerOffload,
    ParallelPlan,
    Precision,
    Quantization,
    Recompute,
    TrainingSpec,
)
from trimtab_policy.types import Requirements

LLAMA, LARGE = catalog.model("llama2-7b"), catalog.model("llama3-70b")
A100, A100_40, H100 = (catalog.gpu(name) for name in ("A100-SXM4-80GB", "A100-SXM4-40GB", "H100-SXM5-80GB"))
WHOLE = TrainingSpec(sequence_length=4096, global_batch_size=64, steps=100)
LORA = replace(WHOLE, adapters=Adapters(16))
QLORA = replace(WHOLE, adapters=Adapters(16, quantization=Quantization.NF4_DOUBLE))
ALONE, SHARDED = ParallelPlan(), ParallelPlan(data=8, zero_stage=3)
GIB = 1 << 30
Case = tuple[ModelSpec, TrainingSpec, ParallelPlan, GpuSpec]


def footprint(training: TrainingSpec, plan: ParallelPlan = ALONE, model: ModelSpec = LLAMA) -> memory.Memory:
    return memory.footprint(work(model, training), columns([plan]))


def step(training: TrainingSpec, plan: ParallelPlan = ALONE, model: ModelSpec = LLAMA) -> StepTime:
    machine = hardware.machine(A100, training.precision)
    return speed.step_time(work(model, training), columns([plan]), machine, 8)


# --- what a job says --------------------------------------------------------------------------------------------------
def test_a_training_without_these_is_written_as_it_was_before_they_were_there() -> None:
    written = msgspec.json.encode(WHOLE)
    assert written == (
        b'{"sequence_length":4096,"global_batch_size":64,"steps":100,"precision":"BF16","optimizer":"AdamW"}'
    )
    assert msgspec.json.decode(written, type=TrainingSpec) == WHOLE
    assert WHOLE.adapters is UNSET
    assert WHOLE.offload is UNSET


def test_a_fine_tune_is_read_as_it_was_written() -> None:
    offload = Offload(OptimizerOffload.HOST, weights=True, activations=True)
    tuned = replace(QLORA, optimizer=Optimizer.ADAMW_8BIT, offload=offload)
    assert msgspec.json.decode(msgspec.json.encode(tuned), type=TrainingSpec) == tuned


@pytest.mark.parametrize("rank", [0, -1, 1 << 20])
def test_a_rank_that_no_adapter_has_is_refused_by_name(rank: int) -> None:
    with pytest.raises(ValueError, match=r"adapters\.rank"):
        Adapters(rank)
    with pytest.raises(msgspec.ValidationError, match=r"adapters"):
        msgspec.convert(
            {"sequence_length": 1, "global_batch_size": 1, "steps": 1, "adapters": {"rank": rank}}, TrainingSpec
        )


# --- counts -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "targets", "count"),
    [  # trainable parameters that LitGPT and SWIFT print
        ("llama2-7b", AdapterTargets.QUERY_VALUE, 4_194_304),
        ("llama2-13b", AdapterTargets.QUERY_VALUE, 6_553_600),
        ("falcon-40b", AdapterTargets.QUERY_VALUE, 12_042_240),
        ("phi-1.5", AdapterTargets.QUERY_VALUE, 1_572_864),
        ("llama2-7b", AdapterTargets.ALL_LINEAR, 19_988_480),
    ],
)
def test_adapters_have_as_many_parameters_as_libraries_print(name: str, targets: AdapterTargets, count: int) -> None:
    training = replace(WHOLE, adapters=Adapters(8, targets))
    assert float(sum(memory.trained_per_gpu(work(catalog.model(name), training), columns([ALONE])))[0]) == count


def test_a_tensor_degree_divides_one_half_of_an_adapter() -> None:
    job = work(LLAMA, replace(WHOLE, adapters=Adapters(8, AdapterTargets.QUERY_VALUE)))
    divided = float(sum(memory.trained_per_gpu(job, columns([ParallelPlan(tensor=4)])))[0])
    assert divided == 32 * 8 * 2 * (4096 + 4096 / 4)


def test_bytes_of_a_quantized_number_are_those_of_the_paper() -> None:
    """Dettmers et al. 2023, section 3: scales take 0.5 bit a number, 0.127 bit where they are quantized themselves."""
    each = plan_arrays.QUANTIZED_BYTES
    assert 8 * each[Quantization.NF4] == 4.5
    assert 8 * each[Quantization.NF4_DOUBLE] == pytest.approx(4.127, abs=1e-3)


def test_8_bit_moments_take_a_quarter_of_those_in_fp32() -> None:
    full, low = (
        footprint(replace(WHOLE, optimizer=each)).optimizer for each in (Optimizer.ADAMW, Optimizer.ADAMW_8BIT)
    )
    parameters = float(model_flops.parameters(model_flops.of(LLAMA)))
    assert (full - low)[0] / parameters == pytest.approx(8 - 2 * (1 + 4 / 256), rel=1e-4)


# --- memory -----------------------------------------------------------------------------------------------------------
def test_only_adapters_have_gradients_and_moments() -> None:
    found, job = footprint(LORA), work(LLAMA, LORA)
    adapters = float(sum(memory.trained_per_gpu(job, columns([ALONE])))[0])
    assert found.gradients[0] == 4 * adapters
    assert found.optimizer[0] == 12 * adapters
    assert found.frozen[0] == pytest.approx(2 * catalog.parameters(LLAMA), rel=1e-3)


def test_quantization_is_for_matrices_of_layers_alone() -> None:
    outside = 2 * 2 * LLAMA.vocab_size * LLAMA.hidden_size
    matrices = catalog.parameters(LLAMA) - outside / 2
    for quantization, each in plan_arrays.QUANTIZED_BYTES.items():
        found = footprint(replace(WHOLE, adapters=Adapters(8, quantization=quantization)))
        assert found.frozen[0] == pytest.approx(outside + each * matrices, rel=1e-3)
        assert found.gathered[0] == 2 * LLAMA.hidden_size * LLAMA.ffn_hidden_size


def test_frozen_weights_are_sharded_but_for_what_lies_outside_of_layers() -> None:
    whole, sharded = (footprint(LORA, plan).frozen[0] for plan in (replace(SHARDED, zero_stage=2), SHARDED))
    outside = 2 * 2 * LLAMA.vocab_size * LLAMA.hidden_size
    assert sharded == pytest.approx(whole / 8 + outside)


def test_frozen_weights_have_their_copies_in_fp8_as_others_have() -> None:
    found = footprint(replace(LORA, precision=Precision.FP8))
    assert found.frozen[0] > 0.9 * 4 * catalog.parameters(LLAMA)


def test_scales_are_not_sharded() -> None:
    """bitsandbytes keeps them beside the weight, where FSDP and DeepSpeed do not look."""
    job = work(LLAMA, replace(WHOLE, adapters=Adapters(8, quantization=Quantization.NF4)))
    many = memory.footprint(job, columns([ParallelPlan(data=1 << 20, zero_stage=3)])).frozen[0]
    outside = 2 * 2 * LLAMA.vocab_size * LLAMA.hidden_size
    assert many == pytest.approx(outside + (catalog.parameters(LLAMA) - outside / 2) / 16, rel=1e-3)


def test_inputs_of_frozen_products_are_kept_where_an_adapter_reads_them() -> None:
    layers = [
        float(memory.layer_activations(work(LLAMA, each), columns([ALONE]))[0])
        for each in (
            replace(WHOLE, adapters=Adapters(8, AdapterTargets.QUERY_VALUE)),
            replace(WHOLE, adapters=Adapters(8, AdapterTargets.ALL_LINEAR)),
            WHOLE,
        )
    ]
    spared = 4096 * 2 * (LLAMA.hidden_size + LLAMA.ffn_hidden_size)
    inner = 4096 * 2 * 8
    assert layers[2] - layers[0] == spared - 2 * inner
    assert layers[1] - layers[2] == 7 * inner


def test_frozen_weights_leave_no_holes() -> None:
    found = footprint(LORA)
    rest = found.allocated - found.frozen
    assert found.required == pytest.approx(found.frozen + rest * (1 + memory.RESERVE) + memory.FRAMEWORK_BYTES)


OFFLOADS = st.builds(Offload, st.sampled_from(OptimizerOffload), st.booleans(), st.booleans())
ADAPTERS = st.builds(
    Adapters, st.sampled_from([1, 8, 64]), st.sampled_from(AdapterTargets), st.sampled_from(Quantization)
)


@given(cases(), OFFLOADS, st.one_of(st.just(UNSET), ADAPTERS))
def test_what_leaves_the_gpu_is_on_the_host(case: Case, offload: Offload, adapters: Adapters) -> None:
    model, training, plan, _ = case
    offload = replace(offload, activations=False)
    here = replace(training, adapters=adapters, offload=Offload())
    there = replace(training, adapters=adapters, offload=offload)
    rows = columns([plan])
    total = sum(memory.states(work(model, there), rows))
    found = memory.footprint(work(model, there), rows)
    resident = found.states + found.update
    host = memory.host_bytes(work(model, there), rows)
    assert (host >= 0).all()
    assert (host <= total * (1 + 1e-9)).all()
    assert (resident + host >= total * (1 - 1e-9) - found.activations - found.logits - found.gathered).all()
    assert memory.host_bytes(work(model, here), rows) == 0
    if offload.optimizer is OptimizerOffload.NONE and not offload.weights:
        assert found.allocated == memory.footprint(work(model, here), rows).allocated


@given(cases(), OFFLOADS, ADAPTERS)
def test_a_run_is_the_same_beside_others(case: Case, offload: Offload, adapters: Adapters) -> None:
    """What trains all weights is not touched by fine-tunes in other rows, nor the other way round."""
    model, training, plan, gpu = case
    each = [replace(training, adapters=adapters, offload=offload), training, replace(training, offload=offload)]
    jobs = [work(model, one) for one in each]
    rows = columns([plan] * 3)
    together = memory.footprint(plan_arrays.stack(jobs), rows).required
    assert together == pytest.approx([memory.footprint(job, columns([plan])).required[0] for job in jobs])
    machine = hardware.machine(gpu, training.precision)
    seconds = speed.step_time(plan_arrays.stack(jobs), rows, machine, 8).total
    assert seconds == pytest.approx([speed.step_time(job, columns([plan]), machine, 8).total[0] for job in jobs])


# --- speed ------------------------------------------------------------------------------------------------------------
def test_frozen_products_have_two_passes_in_place_of_three() -> None:
    training = replace(WHOLE, adapters=Adapters(1, AdapterTargets.QUERY_VALUE))
    plan = ParallelPlan(micro_batch=8)
    ratio = float(step(training, plan).compute[0] / step(WHOLE, plan).compute[0])
    assert 0.66 < ratio < 0.8


def test_gradients_of_adapters_alone_travel() -> None:
    slow = hardware.machine(A100, Precision.BF16)._replace(network=1e6)
    plan = columns([ParallelPlan(data=64, zero_stage=1)])
    whole, tuned = (speed.step_time(work(LLAMA, each), plan, slow, 8).data_communication[0] for each in (WHOLE, LORA))
    assert 0 < tuned < whole / 10


def test_quantized_weights_are_gathered_as_they_are_kept() -> None:
    slow = hardware.machine(A100, Precision.BF16)._replace(network=1e9)
    plan = columns([ParallelPlan(data=64, zero_stage=3)])
    plain, narrow = (speed.step_time(work(LARGE, each), plan, slow, 8).data_communication[0] for each in (LORA, QLORA))
    assert narrow < plain / 2.5


def test_quantization_costs_time_in_every_pass() -> None:
    once, again = (
        step(QLORA, replace(ALONE, recompute=each)).compute[0] - step(LORA, replace(ALONE, recompute=each)).compute[0]
        for each in (Recompute.NONE, Recompute.FULL)
    )
    assert again == pytest.approx(1.5 * once, rel=0.05)


@pytest.mark.parametrize(
    "offload",
    [Offload(OptimizerOffload.HOST), Offload(OptimizerOffload.PAGED), Offload(weights=True), Offload(activations=True)],
)
def test_what_is_offloaded_costs_time_over_a_slow_link_and_little_over_a_fast_one(offload: Offload) -> None:
    job, rows = work(LLAMA, replace(WHOLE, offload=offload)), columns([SHARDED])
    machine = hardware.machine(A100, Precision.BF16)
    slow, fast = (speed.step_time(job, rows, machine._replace(host=rate), 8) for rate in (1e8, 1e15))
    assert slow.host[0] > 10 * fast.host[0]
    assert slow.total - slow.host == pytest.approx(fast.total - fast.host)
    assert step(WHOLE, SHARDED).host == 0


def test_ranks_of_a_node_share_the_processor_that_steps() -> None:
    offload = replace(WHOLE, offload=Offload(OptimizerOffload.HOST))
    one, eight = (step(offload, ParallelPlan(data=count, zero_stage=3)).host[0] for count in (1, 8))
    assert eight == pytest.approx(one, rel=0.5)


def test_predictions_of_fine_tunes_are_less_sure() -> None:
    tuned, whole = (plans.predict(LLAMA, each, SHARDED, A100, 8).uncertainty for each in (LORA, WHOLE))
    assert tuned > whole


def test_a_frozen_weight_needs_four_flops_a_token() -> None:
    shape = model_flops.of(LLAMA)
    whole, frozen = (model_flops.training_flops_per_token(shape, 1, frozen=each) for each in (False, True))
    assert frozen / whole == pytest.approx(2 / 3, rel=1e-3)
    of_lora, of_all = (breakdown.utilisation(LLAMA, each, A100, 8, 1e4) for each in (LORA, WHOLE))
    assert 0.6 < of_lora / of_all < 0.8


# --- plans ------------------------------------------------------------------------------------------------------------
def requirements(low: int, high: int, **other: object) -> Requirements:
    return msgspec.convert({"gpus": {"low": low, "high": high}, **other}, Requirements)


def offered(model: ModelSpec, training: TrainingSpec, need: Requirements) -> list[ParallelPlan]:
    return [option.plan for option in plans.options(model, training, need, A100_40, 8)]


def test_70b_is_fine_tuned_in_4_bit_on_two_cards_where_16_bit_needs_more() -> None:
    """Two A100 with 40 GB: what Answer.AI and PEFT's documentation ran."""
    short = replace(QLORA, sequence_length=2048, global_batch_size=2)
    found = offered(LARGE, short, requirements(2, 2))
    assert found
    assert all(plan.zero_stage == 3 and plan.data == 2 for plan in found)
    assert not offered(LARGE, replace(short, adapters=Adapters(16)), requirements(2, 2))
    assert not offered(LARGE, replace(short, adapters=UNSET), requirements(2, 8))


@pytest.mark.parametrize(
    ("training", "plan", "words"),
    [
        (QLORA, ParallelPlan(tensor=2), "divided over data ranks alone"),
        (QLORA, ParallelPlan(pipeline=2), "divided over data ranks alone"),
        (replace(WHOLE, adapters=Adapters(8, quantization=Quantization.INT8)), SHARDED, "INT8 cannot be sharded"),
        (replace(WHOLE, offload=Offload(weights=True)), ParallelPlan(data=8, zero_stage=1), "need ZeRO stage 3"),
        (replace(WHOLE, offload=Offload(activations=True)), ParallelPlan(pipeline=2), "exclude pipeline"),
    ],
)
def test_what_no_launcher_does_is_no_plan(training: TrainingSpec, plan: ParallelPlan, words: str) -> None:
    with pytest.raises(InvalidPlan, match=words):
        plans.check(LLAMA, training, plan, 8 if plan.gpus == 8 else plan.gpus)
    found = plans.options(LLAMA, training, requirements(1, 16), A100, 8)
    assert found
    for option in found:
        plans.check(LLAMA, training, option.plan, option.gpus_per_node, option.linked)


def test_adapters_beside_16_bit_weights_go_with_all_degrees() -> None:
    plans.check(LARGE, LORA, ParallelPlan(tensor=4, pipeline=2), 8)


@pytest.mark.parametrize(
    "training",
    [LORA, QLORA, replace(LORA, offload=Offload(OptimizerOffload.HOST, activations=True))],
)
def test_the_search_finds_the_fastest_of_all(training: TrainingSpec) -> None:
    need, gangs = requirements(1, 32), [(1, 8), (2, 8), (4, 8)]
    found = search.table(LARGE, training, need, gangs)
    machines = [hardware.machine(gpu, training.precision) for gpu in (A100, H100)]
    room = np.array([A100.memory_bytes, H100.memory_bytes], dtype=np.float64)
    every, best = search.fitting(found, machines, room), search.fastest(found, machines, room)
    assert len(best.seconds)

    def least(machine: int, gang: int) -> Array:
        here = (every.machine == machine) & (found.gang[every.pair] == gang)
        return every.seconds[here].min()

    for machine, pair, seconds in zip(best.machine, best.pair, best.seconds, strict=True):
        assert seconds == pytest.approx(least(machine, found.gang[pair]))


def test_what_is_offloaded_has_to_find_room_in_the_memory_that_pods_ask_for() -> None:
    training = replace(WHOLE, offload=Offload(OptimizerOffload.HOST, weights=True))
    held = memory.host_bytes(work(LLAMA, training), columns([SHARDED]))[0]
    enough = requirements(8, 8, memory_per_gpu=round(held) + GIB)
    little = requirements(8, 8, memory_per_gpu=round(held) // 2)
    assert plans.options(LLAMA, training, enough, A100, 8)
    assert not plans.options(LLAMA, training, little, A100, 8)
    why = plans.why_none(LLAMA, training, little, A100, 8)
    assert f"{held / GIB:.0f} GiB per GPU in the host's memory" in why
    assert plans.options(LLAMA, WHOLE, little, A100, 8), "without offloading it is all the same"


def test_a_breakdown_tells_frozen_weights_and_the_host_apart() -> None:
    training = replace(LORA, offload=Offload(activations=True))
    found = breakdown.breakdown(LLAMA, training, SHARDED, A100, 8)
    assert sum(found.memory.values()) == pytest.approx(
        plans.predict(LLAMA, training, SHARDED, A100, 8).memory_bytes, abs=1
    )
    assert found.memory["frozen"] > 100 * found.memory["weights"]
    assert found.host_bytes > 0
    assert "host" in found.step


def test_types_are_searched_together_as_alone() -> None:
    offers = (Offer(A100, 8), Offer(A100_40, 8))
    together = plans.options_by_type(LLAMA, QLORA, requirements(1, 8), offers)
    assert together == tuple(plans.options(LLAMA, QLORA, requirements(1, 8), offer.gpu, 8) for offer in offers)


# --- restarts and tables ----------------------------------------------------------------------------------------------
def test_a_checkpoint_has_the_adapters_alone_and_a_restart_loads_frozen_weights_once() -> None:
    whole, tuned = (restarts.checkpoint_bytes(LARGE, each) for each in (WHOLE, LORA))
    assert tuned < whole / 100
    of_all, of_adapters = (restarts.restart_seconds(LARGE, each, 1) for each in (WHOLE, LORA))
    loading = 2 * catalog.parameters(LARGE) / restarts.STORAGE_BANDWIDTH
    assert loading < of_adapters < of_all / 5


def test_tables_of_runs_say_how_a_model_is_fine_tuned() -> None:
    said = {
        "lora_rank": 8,
        "lora_targets": "attention",
        "quantization": "nf4",
        "optimizer": "adamw8bit",
        "offload": "paged activations",
    }
    (tuned,) = _works(tables.cells(**said))
    (whole,) = _works(tables.cells())
    form, tuning = tuned.format, tuned.tuning
    assert (tuning.rank, tuning.query_value, tuning.key_output, tuning.block) == (8, 1, 1, 0)
    assert tuning.frozen == plan_arrays.QUANTIZED_BYTES[Quantization.NF4]
    assert (tuning.optimizer_host, tuning.optimizer_paged, tuning.weights_host, tuning.activations_host) == (0, 1, 0, 1)
    assert form.moments == 2 * (1 + 4 / 256)
    assert not whole.tuning.unusual


def _works(*rows: dict[str, str]) -> list[Work]:
    found = tables.runs(*rows)
    return [plan_arrays.Work(*map(_first, found.work))] if rows else []


def _first(column: object) -> object:
    return type(column)(*(value[0] for value in column)) if isinstance(column, tuple) else column[0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("column", "cell"),
    [("quantization", "3-bit"), ("lora_targets", "some"), ("offload", "disk"), ("optimizer", "Lion")],
)
def test_words_that_mean_nothing_are_refused_by_column(column: str, cell: str) -> None:
    with pytest.raises(MeasurementError, match=f"column {column}: '{cell}'"):
        tables.runs(tables.cells(lora_rank=8, **{column: cell}))


def test_rows_without_a_time_are_for_those_who_look_at_memory() -> None:
    cells = tables.cells(step_time_s="", mem_gb_per_gpu=20)
    assert not len(tables.runs(cells).seconds)
    runs = tables.measured.collect([cells], timed=False)
    assert np.isnan(runs.seconds).all()
    assert runs.memory == 20e9
