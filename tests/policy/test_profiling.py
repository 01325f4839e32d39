"""Profiles of a small GPT: the model, its steps, what is recorded of them, the environment that reads the result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from trimtab_lab.environments.rlalloc import RLAllocEnv
from trimtab_lab.profiling import compare, gpt, loader, machine, measure, run, trace
from trimtab_lab.profiling.measure import RECORDED, WARM_UP, MeasuredPlan, ProfiledTraining
from trimtab_lab.profiling.run import ProfileReport
from trimtab_lab.profiling.training import Trainer, batch
from trimtab_policy import catalog
from trimtab_policy.perf import plans as perf
from trimtab_policy.perf.memory import RESERVE
from trimtab_policy.specs import ModelSpec, ParallelPlan, Precision, Recompute, TrainingSpec

CPU = torch.device("cpu")
TINY = replace(
    catalog.model("gpt2"),
    layers=2, hidden_size=64, attention_heads=4, kv_heads=4, head_dim=16, ffn_hidden_size=256, vocab_size=503,
    learned_positions=64,
)  # fmt: skip
TRAINING = TrainingSpec(sequence_length=32, global_batch_size=4, steps=2, precision=Precision.FP32)
CASE = ProfiledTraining(TINY, TRAINING, CPU)
STATES = 16
"""Bytes a parameter in 32 bit: weight, gradient, two moments."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def small_benchmarks() -> Iterator[None]:
    """The processor's rates, measured by less work than in earnest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "_WIDTH", 256)
        patch.setattr(machine, "_COPIED", 1 << 20)
        patch.setattr(loader, "_TEXT_WORDS", 2000)
        patch.setattr(loader, "_MERGES", 20)
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profile")


@pytest.fixture(scope="module")
def report(small_benchmarks: None, out: Path) -> ProfileReport:
    return run.profile(CASE, run.plans(4), out)


WHOLE = ParallelPlan(micro_batch=4)


def trainer(plan: ParallelPlan = WHOLE, seed: int = 0, **changes: object) -> Trainer:
    return Trainer(TINY, replace(TRAINING, **changes), plan, CPU, seed)


def gradients(plan: ParallelPlan) -> list[torch.Tensor]:
    made = trainer(plan)
    made.accumulate(batch(TINY, TRAINING))
    return [weight.grad for weight in made.model.parameters() if weight.grad is not None]


# --- the model -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", gpt.presets())
def test_every_preset_has_the_parameters_that_the_performance_model_counts(name: str) -> None:
    with torch.device("meta"):
        made = gpt.Gpt(catalog.model(name))
    assert sum(weight.numel() for weight in made.parameters()) == catalog.parameters(catalog.model(name))


def test_gpt2_is_the_published_one() -> None:
    assert catalog.parameters(catalog.model("gpt2")) == catalog.published_parameters()["gpt2"] == 124_439_808


@pytest.mark.parametrize(
    ("name", "why"),
    [("bert-base", "attends both ways"), ("llama3-8b", "no learned positions"), ("t5-base", "cross-attention")],
)
def test_other_architectures_are_refused_with_the_reason_and_what_would_do(name: str, why: str) -> None:
    with pytest.raises(gpt.NotGpt, match=f"{name} is no GPT .*{why}.*use one of gpt2, gpt2-medium"):
        gpt.Gpt(catalog.model(name))


def test_a_sequence_has_no_more_tokens_than_the_model_positions() -> None:
    with pytest.raises(ValueError, match="sequence_length must be 1 to 64 for gpt2: 65"):
        trainer(sequence_length=65)


def test_a_token_is_predicted_from_those_before_it_only() -> None:
    model, tokens = trainer().model, batch(TINY, TRAINING)[:, :-1]
    changed = tokens.clone()
    changed[:, 20] = (changed[:, 20] + 1) % TINY.vocab_size
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


# --- its steps -------------------------------------------------------------------------------------------------------
def test_a_batch_is_learned_by_heart() -> None:
    made, tokens = trainer(), batch(TINY, TRAINING)
    losses = [made.step(tokens) for _ in range(250)]
    assert losses[0] == pytest.approx(6.22, abs=0.1)  # ln 503: nothing is known yet
    assert losses[-1] < losses[0] / 3


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_micro_batches_add_up_to_the_gradients_of_the_whole_batch(micro_batch: int) -> None:
    parts, wholes = gradients(ParallelPlan(micro_batch=micro_batch)), gradients(WHOLE)
    for part, whole in zip(parts, wholes, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-6)


def test_recomputation_changes_no_gradient() -> None:
    plan = ParallelPlan(micro_batch=2)
    for kept, anew in zip(gradients(plan), gradients(replace(plan, recompute=Recompute.FULL)), strict=True):
        torch.testing.assert_close(kept, anew)


def test_half_precision_stays_near_full_precision() -> None:
    tokens = batch(TINY, TRAINING)
    half, full = trainer(precision=Precision.BF16), trainer()
    assert [half.step(tokens) for _ in range(5)] == pytest.approx([full.step(tokens) for _ in range(5)], rel=1e-2)


def test_a_seed_says_all() -> None:
    tokens = batch(TINY, TRAINING, seed=1)
    losses = [[made.step(tokens) for _ in range(3)] for made in (trainer(seed=1), trainer(seed=1), trainer(seed=2))]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]
    assert torch.equal(tokens, batch(TINY, TRAINING, seed=1))
    assert not torch.equal(tokens, batch(TINY, TRAINING, seed=2))


@pytest.mark.parametrize(
    ("plan", "changes", "said"),
    [
        (ParallelPlan(data=2), {}, "a profile is of one device, the plan is for 2: dp=2"),
        (ParallelPlan(micro_batch=3), {}, "micro_batch 3 must divide the batch of 4"),
        (ParallelPlan(recompute=Recompute.SELECTIVE), {}, "recompute must be None or Full"),
        (ParallelPlan(), {"optimizer": "SGD"}, "optimizer must be AdamW, got SGD"),
        (ParallelPlan(), {"adapters": {"rank": 8}}, "adapters must not be set"),
        (ParallelPlan(), {"offload": {"weights": True}}, "offload must not be set"),
        (ParallelPlan(), {"precision": Precision.FP8}, "precision FP8 cannot be trained on cpu: use one of FP32, BF16"),
    ],
)
def test_what_cannot_be_trained_is_refused(plan: ParallelPlan, changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        trainer(plan, **changes)


# --- memory ----------------------------------------------------------------------------------------------------------
def test_the_peak_is_the_most_that_was_alive_at_once(tmp_path: Path) -> None:
    moved = [(100, 1), (50, 2), (-100, 1), (-70, 9), (60, 3), (40, 1), (-50, 2)]  # 9 was there before
    events = [
        {"name": "[memory]", "ts": time, "args": {"Bytes": size, "Addr": address}}
        for time, (size, address) in enumerate(moved)
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": [*reversed(events), {"name": "aten::mm"}]}))
    assert trace.peak_bytes(file) == 150


def test_what_torch_allocates_is_watched() -> None:
    before = torch.zeros(1 << 20)
    with trace.watching(CPU) as watched:
        first = torch.zeros(1 << 18)
        second = first + 1
        del first, before
        third = second + 1
        del second, third
    assert watched.peak == pytest.approx(2 * 4 * (1 << 18), rel=0.01)


def test_recomputation_needs_less_memory_and_states_stay(report: ProfileReport) -> None:
    measured = {(row.micro_batch, row.recompute): row.measured for row in report.rows if row.measured}
    assert len(measured) == 6
    for micro_batch in (1, 2, 4):
        kept, anew = measured[micro_batch, Recompute.NONE], measured[micro_batch, Recompute.FULL]
        assert anew.allocated < kept.allocated
        assert kept.states == pytest.approx(STATES * catalog.parameters(TINY), rel=0.01)
        assert kept.first_loss == pytest.approx(anew.first_loss, rel=1e-5)
        assert kept.last_loss < kept.first_loss


def test_the_performance_model_expects_the_memory_that_is_allocated(report: ProfileReport) -> None:
    assert all(row.memory_ratio == pytest.approx(1, abs=0.1) for row in report.rows)


# --- what is recorded ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", trace.MATMUL),
        ("aten::mm", trace.MATMUL),
        ("mkldnn::_linear_pointwise", trace.MATMUL),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", trace.ATTENTION),
        ("aten::_efficient_attention_forward", trace.ATTENTION),
        ("aten::_fused_adamw_", trace.OPTIMIZER),
        ("Optimizer.step#AdamW.step", trace.OPTIMIZER),
        ("aten::_log_softmax_backward_data", trace.LOSS),
        ("aten::copy_", trace.COPIES),
        ("aten::_to_copy", trace.COPIES),
        ("aten::gelu_backward", trace.ELEMENTWISE),
        ("aten::native_layer_norm", trace.ELEMENTWISE),
        ("aten::add_", trace.ELEMENTWISE),
        ("aten::transpose", trace.FRAMEWORK),
        ("aten::empty_strided", trace.FRAMEWORK),
        ("autograd::engine::evaluate_function: AddmmBackward0", trace.FRAMEWORK),
    ],
)
def test_operators_have_a_class(name: str, kind: str) -> None:
    assert trace.kind(name) == kind


def test_classes_add_up_to_the_step(report: ProfileReport) -> None:
    fastest, classes = report.fastest, report.recorded.classes
    assert fastest.measured
    assert sum(classes.values()) == pytest.approx(fastest.measured.step_seconds, rel=0.01)
    assert {trace.MATMUL, trace.ATTENTION, trace.ELEMENTWISE, trace.LOSS, trace.OPTIMIZER} <= classes.keys()
    assert list(classes.values()) == sorted(classes.values(), reverse=True)


def test_a_gpu_that_waits_is_idle_in_the_frameworks_time() -> None:
    found = [trace.Operator("aten::mm", trace.MATMUL, 1, 0.3), trace.Operator("aten::add", trace.ELEMENTWISE, 1, 0.1)]
    assert trace.by_class(found, 1.0) == pytest.approx(
        {trace.FRAMEWORK: 0.6, trace.MATMUL: 0.3, trace.ELEMENTWISE: 0.1}
    )


def test_on_a_gpu_time_is_that_of_kernels_and_marked_ranges_are_none() -> None:
    def event(key: str, device: str, microseconds: float, marked: bool = False) -> SimpleNamespace:
        return SimpleNamespace(
            key=key, count=4, self_cpu_time_total=7.0, self_device_time_total=microseconds, is_user_annotation=marked,
            device_type=SimpleNamespace(name=device),
        )  # fmt: skip

    events = [
        event("aten::mm", "CPU", 2e6),
        event("aten::view", "CPU", 0.0),
        event("Optimizer.step#AdamW.step", "CUDA", 9e6, marked=True),
        event("ampere_sgemm_128x64_nn", "CUDA", 2e6),
    ]
    recorded: Any = SimpleNamespace(key_averages=lambda: events)
    assert trace.operators(recorded, torch.device("cuda"), 2) == (trace.Operator("aten::mm", trace.MATMUL, 2, 1.0),)
    assert trace.kernels(recorded, 2) == (trace.Operator("ampere_sgemm_128x64_nn", "kernel", 2, 1.0),)
    on_cpu = {each.name: each.seconds for each in trace.operators(recorded, CPU, 2)}
    assert on_cpu == pytest.approx({"aten::mm": 3.5e-6, "aten::view": 3.5e-6})


def test_the_trace_holds_the_steps_that_were_recorded(report: ProfileReport, out: Path) -> None:
    events = json.loads((out / run.TRACE).read_text())["traceEvents"]
    assert sum(event["name"] == "Optimizer.step#AdamW.step" for event in events) == RECORDED
    attention = [each for each in report.recorded.operators if "attention_for_cpu" in each.name]
    per_micro_batch = TINY.layers * TRAINING.global_batch_size / report.fastest.micro_batch
    assert {each.calls for each in attention if "evaluate" not in each.name} >= {per_micro_batch}
    assert report.recorded.kernels == ()


def test_parts_add_up_to_their_totals(report: ProfileReport) -> None:
    for of in (compare.STEP, compare.MEMORY):
        *parts, total = [part for part in report.parts if part.of == of]
        assert total.name == "total"
        assert sum(part.measured for part in parts) == pytest.approx(total.measured)
        assert sum(part.predicted for part in parts) == pytest.approx(total.predicted)
        assert all(part.ratio == part.measured / part.predicted for part in (*parts, total))


# --- the device and what is expected of it ---------------------------------------------------------------------------
def cuda_device(monkeypatch: pytest.MonkeyPatch, name: str, gib: int, capability: tuple[int, int]) -> None:
    major, minor = capability
    facts = SimpleNamespace(name=name, total_memory=gib << 30, major=major, minor=minor)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)


@pytest.mark.parametrize(
    ("driver", "gib", "canonical"),
    [("NVIDIA H100 80GB HBM3", 79, "H100-SXM5-80GB"), ("NVIDIA A100-SXM4-40GB", 39, "A100-SXM4-40GB")],
)
def test_a_gpu_is_found_in_the_catalogue_by_its_drivers_name(
    monkeypatch: pytest.MonkeyPatch, driver: str, gib: int, canonical: str
) -> None:
    cuda_device(monkeypatch, driver, gib, (8, 0))
    assert machine.spec(torch.device("cuda"), Precision.BF16) == catalog.gpu(canonical)


def test_a_gpu_that_nobody_knows_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_device(monkeypatch, "NVIDIA Abacus 9000", 80, (9, 0))
    found = machine.spec(torch.device("cuda"), Precision.BF16)
    assert (found.name, found.memory_bytes, found.source) == ("NVIDIA Abacus 9000", 80 << 30, catalog.ESTIMATED)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_cuda_device_that_is_not_there_is_not_promised() -> None:
    assert machine.device("auto") == CPU
    with pytest.raises(ValueError, match=r"no CUDA device was found .*use --device cpu"):
        machine.device("cuda")


def test_a_processor_is_what_was_measured_of_it(small_benchmarks: None) -> None:
    found = machine.measured(Precision.BF16)
    assert found.peak_flops.keys() == {Precision.BF16}
    assert found.peak_flops[Precision.BF16] > 1e8
    assert found.memory_bandwidth > 1e8
    assert found.memory_bytes == machine.host_memory() > 1 << 30


def test_the_step_is_predicted_as_plans_are(monkeypatch: pytest.MonkeyPatch) -> None:
    even = replace(catalog.model("gpt2"), vocab_size=50304)
    training, plan, gpu = replace(TRAINING, precision=Precision.BF16), ParallelPlan(), catalog.gpu("H100-SXM5-80GB")
    said = perf.predict(even, training, plan, gpu, 1, software=compare.SOFTWARE)
    found = compare.predict(even, training, plan, gpu)
    assert (found.step_seconds, found.low, found.high) == pytest.approx(
        (said.step_seconds, said.step_seconds_low, said.step_seconds_high)
    )
    odd = replace(even, vocab_size=50257)
    assert compare.predict(odd, training, plan, gpu).step_seconds > found.step_seconds


# --- the loader ------------------------------------------------------------------------------------------------------
def test_tokens_spell_the_text_and_are_fewer_than_its_bytes() -> None:
    tokenizer, text = loader.Tokenizer(loader.text(2000), 100), loader.text(500, seed=1) + " unheard-of: Ünïcode\n"
    tokens = list(tokenizer.encode(text))
    assert tokenizer.decode(tokens) == text
    assert len(tokens) < len(text.encode())
    assert list(tokenizer.encode(text)) == tokens


def test_pairs_are_merged_in_the_order_in_which_they_were_learned() -> None:
    tokenizer = loader.Tokenizer("aab aab aab ab", 2)  # first `a b` (4 times), then `a` with that
    assert list(tokenizer.encode("aab")) == [257]
    assert list(tokenizer.encode("ab")) == [256]
    assert list(tokenizer.encode("aa")) == [97, 97]


def test_batches_are_consecutive_tokens() -> None:
    parts = list(loader.collate(list(range(25)), batch=2, sequence=4))
    assert [part.tolist() for part in parts] == [
        [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]],
        [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]],
    ]


def test_few_words_make_most_of_the_text() -> None:
    words = loader.text(5000).split()
    counts = sorted((words.count(word) for word in set(words)), reverse=True)
    assert sum(counts[:100]) > len(words) / 2
    assert len(counts) > 500


# --- one profile -----------------------------------------------------------------------------------------------------
def test_all_micro_batches_that_divide_the_batch_are_tried_with_and_without_recomputation() -> None:
    tried = [(plan.micro_batch, plan.recompute) for plan in run.plans(12)]
    assert tried == [(size, again) for again in (Recompute.NONE, Recompute.FULL) for size in (1, 2, 4, 12)]
    assert {plan.micro_batch for plan in run.plans(12, 3)} == {3}


def test_progress_is_told_step_by_step(small_benchmarks: None, tmp_path: Path) -> None:
    done: list[None] = []
    plans = run.plans(1)
    run.profile(
        CASE._replace(training=replace(TRAINING, global_batch_size=1)), plans, tmp_path, lambda: done.append(None)
    )
    assert len(done) == run.steps(plans, TRAINING.steps) == 2 * (WARM_UP + 2) + WARM_UP + RECORDED


def test_more_memory_buys_speed_in_a_profile_or_is_left_out() -> None:
    def row(allocated: int, rate: float) -> MeasuredPlan:
        return MeasuredPlan(1.0, (1.0,), rate, allocated, 0, 1.0, 1.0)

    rows = [row(30, 5.0), row(10, 2.0), row(20, 1.0), row(30, 4.0), row(40, 5.0), row(50, 6.0)]
    assert run.front(rows) == ((10, 30, 50), (2.0, 5.0, 6.0))


def test_the_profile_is_of_what_was_measured(report: ProfileReport, out: Path) -> None:
    [found] = run.read_profile(out / run.PROFILE)
    assert found == report.profile
    measured = {row.measured.tokens_per_second: row.measured for row in report.rows if row.measured}
    needed = [round(measured[rate].allocated * (1 + RESERVE)) for rate in found.tokens_per_second]
    assert list(found.gpu_memory) == needed
    assert found.tokens_per_second[-1] == max(measured)
    assert all(a < b for a, b in pairwise(found.gpu_memory))


def test_the_environment_runs_jobs_of_the_profile_that_was_written(report: ProfileReport, out: Path) -> None:
    profiles = run.read_profile(out / run.PROFILE)
    env = RLAllocEnv(profiles=profiles, max_gpu_memory=3 * profiles[0].gpu_memory[-1], jobs=5)
    _, info = env.reset(seed=0)
    done = False
    while not done:
        state, reward, terminated, truncated, info = env.step(info["action_high"].astype("float32") / 2)
        assert state in env.observation_space
        assert reward <= 0
        done = terminated or truncated
    assert info["metrics"]["done"] == 5
    assert info["metrics"]["avg_slowdown"] >= 1


def test_what_is_no_profile_is_named(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text('{"name": "gpt2"}')
    with pytest.raises(ValueError, match=r"profile.json is no list of profiles: Expected `array`"):
        run.read_profile(file)
    with pytest.raises(ValueError, match="No such file"):
        run.read_profile(tmp_path / "absent.json")


# --- too little memory -----------------------------------------------------------------------------------------------
class SmallDevice(Trainer):
    """Has memory for micro-batches of 2 at most."""

    most, made = 2, 0

    def __init__(self, spec: ModelSpec, training: TrainingSpec, plan: ParallelPlan, *rest: object) -> None:
        type(self).made += 1
        if plan.micro_batch > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        super().__init__(spec, training, plan, *rest)  # type: ignore[arg-type]  # passed on as they came


def test_micro_batches_that_do_not_fit_are_left_out(
    monkeypatch: pytest.MonkeyPatch, small_benchmarks: None, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "Trainer", SmallDevice)
    monkeypatch.setattr(SmallDevice, "made", 0)
    larger = CASE._replace(training=replace(TRAINING, global_batch_size=8))
    found = run.profile(larger, run.plans(8), tmp_path)
    fits = {(row.micro_batch, row.recompute) for row in found.rows if row.measured}
    assert fits == {(size, again) for size in (1, 2) for again in Recompute if again is not Recompute.SELECTIVE}
    assert all(row.step_ratio is None for row in found.rows if not row.measured)
    assert SmallDevice.made == 2 * 3 + 1  # 8 was not tried after 4; the fastest was made once more, to be recorded


@pytest.mark.parametrize(("size", "hint"), [(4, "try --micro-batch 2"), (1, "try --sequence-length 16, or a smaller")])
def test_where_nothing_fits_it_is_said_what_to_try(
    monkeypatch: pytest.MonkeyPatch, small_benchmarks: None, tmp_path: Path, size: int, hint: str
) -> None:
    monkeypatch.setattr(measure, "Trainer", SmallDevice)
    monkeypatch.setattr(SmallDevice, "most", 0)
    with pytest.raises(run.OutOfMemory, match=f"out of memory: gpt2 with micro-batch {size} does not fit .*{hint}"):
        run.profile(CASE, run.plans(4, size), tmp_path)


def test_a_host_is_not_driven_out_of_its_memory(
    monkeypatch: pytest.MonkeyPatch, small_benchmarks: None, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "host_memory", lambda: STATES * catalog.parameters(TINY))
    monkeypatch.setattr(measure, "Trainer", SmallDevice)
    monkeypatch.setattr(SmallDevice, "made", 0)
    with pytest.raises(run.OutOfMemory):
        run.profile(CASE, run.plans(4), tmp_path)
    assert SmallDevice.made == 0


def test_other_errors_than_that_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Trainer, tokens: torch.Tensor) -> float:
        raise RuntimeError("device-side assert triggered")

    monkeypatch.setattr(Trainer, "step", broken)
    with pytest.raises(RuntimeError, match="device-side assert"):
        measure.measure(CASE, ParallelPlan(), lambda: None)
