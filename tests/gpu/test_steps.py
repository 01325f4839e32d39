"""Real steps, tiny and on a processor, through the path that a GPU takes; and how such runs are judged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hack.gpu import steps
from hack.gpu.steps import FinishedRun, PlannedRun, TrainerShape, judge_runs, judge_trainer, measure_run, parse_trainer
from hack.gpu.verdicts import Missing, Verdict
from msgspec.structs import replace

from trimtab_lab.profiling import compare, gpt, machine
from trimtab_policy import catalog
from trimtab_policy.perf import measured
from trimtab_policy.perf.memory import RESERVE
from trimtab_policy.specs import ParallelPlan, Precision, Recompute

CPU = torch.device("cpu")
H100 = catalog.gpu("H100-SXM5-80GB")
TINY = replace(
    catalog.model("gpt2"),
    layers=2, hidden_size=64, attention_heads=4, kv_heads=4, head_dim=16, ffn_hidden_size=256, vocab_size=503,
    learned_positions=64,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def finished(run: PlannedRun = steps.PLANNED[0], times: float = 1.0, memory: float = 1.0) -> FinishedRun:
    """A run on an H100 that took so many times as long, and so much memory, as predicted."""
    said = compare.predict(catalog.model(run.preset), steps.training_of(run, Precision.BF16), run.plan, H100)
    return FinishedRun(run, Precision.BF16, times * said.step_seconds, round(memory * said.allocated), said)


def test_a_tiny_model_is_trained_and_its_memory_is_as_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_WIDTH", 256)
    monkeypatch.setattr(machine, "_COPIED", 1 << 20)
    run = PlannedRun("gpt2", 32, 4, ParallelPlan(micro_batch=4), steps=2)
    found = measure_run(run, CPU, machine.measured(Precision.FP32), TINY)
    assert found.precision is Precision.FP32
    assert found.seconds > 0
    assert found.allocated == pytest.approx(found.predicted.allocated, rel=RESERVE)


def test_every_planned_run_is_a_gpt_that_an_h100_can_train_and_has_a_name_of_its_own() -> None:
    assert len({run.name for run in steps.PLANNED}) == len(steps.PLANNED) > steps.CALIBRATING
    for run in steps.PLANNED:
        gpt.check(catalog.model(run.preset), run.sequence_length)
        assert run.batch_size % run.plan.micro_batch == 0
        assert steps.fits(run, Precision.BF16, H100)


def test_a_small_gpu_gets_the_first_of_the_runs() -> None:
    t4 = catalog.gpu("T4-16GB") if catalog.is_known("T4-16GB") else replace(H100, memory_bytes=15 << 30)
    fitting = [steps.fits(run, Precision.FP16, t4) for run in steps.PLANNED]
    assert fitting[0]
    assert not fitting[-1]


@pytest.mark.parametrize(
    ("times", "memory", "verdict"),
    [
        ([1.0, 1.0, 1.0, 1.0], 1.0, Verdict.MET),
        ([1.0, 1.0, 1.0, 9.0], 1.0, Verdict.MET),  # an 80 % interval may miss one of four
        ([9.0, 9.0, 9.0, 1.0], 1.0, Verdict.MISSED),
        ([0.1, 0.1, 0.1, 0.1], 1.0, Verdict.MISSED),
        ([1.0, 1.0, 1.0, 1.0], 1.0 + 1.5 * RESERVE, Verdict.MISSED),
    ],
)
def test_runs_are_judged_by_their_intervals_and_memory_by_the_reserve(
    times: list[float], memory: float, verdict: Verdict
) -> None:
    outcome = judge_runs([finished(run, each, memory) for run, each in zip(steps.PLANNED, times, strict=False)])
    assert outcome.verdict is verdict


def test_the_trainer_of_the_image_runs_under_torchrun_and_is_read() -> None:
    shape = TrainerShape(layers=1, width=32, heads=2, sequence=16, per_rank=2, steps=steps.TRAINER_WARM_UP + 2)
    run = steps.run_trainer(shape, 1, Precision.FP32)
    assert run.ranks == 1
    assert run.seconds > 0
    assert run.peak is None or torch.cuda.is_available()


def test_the_trainers_model_has_the_parameters_that_the_performance_model_counts() -> None:
    from hack.trainer.train import Gpt

    shape = TrainerShape(layers=2, width=64, heads=4, sequence=32)
    made = sum(weight.numel() for weight in Gpt(shape.layers, shape.width, shape.heads, shape.sequence).parameters())
    # The model counts no bias of the last projection of bytes, nor the trainer's own.
    assert catalog.parameters(shape.model()) == pytest.approx(made, rel=0.01)


def logged(seconds: list[float], **done: object) -> str:
    lines = [{"event": "step", "seconds": each} for each in seconds]
    return "\n".join(["warning: not JSON", *map(json.dumps, [*lines, {"event": "done", "ranks": 2, **done}])])


def test_the_first_steps_of_the_trainer_do_not_count() -> None:
    run = parse_trainer(logged([9.0] * steps.TRAINER_WARM_UP + [1.0, 2.0, 3.0], peak_memory=7))
    assert (run.seconds, run.peak, run.ranks) == (2.0, 7, 2)


@pytest.mark.parametrize("text", ["", logged([1.0]), '{"event": "step", "seconds": 1.0}\n' * 9])
def test_a_trainer_that_did_not_finish_is_no_measurement(text: str) -> None:
    with pytest.raises(ValueError, match="did not finish"):
        parse_trainer(text)


def test_the_trainer_is_judged_by_interval_and_reserve() -> None:
    shape = TrainerShape()
    [step, memory] = judge_trainer(shape, steps.TrainerRun(1.0, 10**9, 4), Precision.BF16, H100).rows
    assert isinstance(step.expected, float)
    assert isinstance(memory.expected, float)
    good = steps.TrainerRun(step.expected, round(memory.expected), 4)
    assert judge_trainer(shape, good, Precision.BF16, H100).verdict is Verdict.MET
    for bad in (replace(good, seconds=20 * good.seconds), replace(good, peak=2 * round(memory.expected))):
        assert judge_trainer(shape, bad, Precision.BF16, H100).verdict is Verdict.MISSED


def test_a_program_that_fails_is_told_with_its_last_words() -> None:
    shape = TrainerShape(layers=1, width=30, heads=4)
    with pytest.raises(Missing, match="torch"):
        steps.run_trainer(shape, 1, Precision.FP32)


# --- calibration -----------------------------------------------------------------------------------------------------
def test_runs_are_read_back_as_what_was_run(tmp_path: Path) -> None:
    runs = [finished(run) for run in steps.PLANNED]
    steps.write_table(tmp_path / "runs.csv", [steps.table_row(run, H100) for run in runs])
    read = measured.read_measured(tmp_path / "runs.csv")
    assert read.skipped == {}
    assert set(read.software) == {compare.SOFTWARE}
    assert read.seconds.tolist() == pytest.approx([run.seconds for run in runs], rel=1e-5)
    assert read.plans.micro_batch.tolist() == [run.run.plan.micro_batch for run in runs]
    again = [bool(value) for value in read.plans.recompute > 0]
    assert again == [run.run.plan.recompute is Recompute.FULL for run in runs]


def test_three_runs_of_a_slow_gpu_calibrate_the_others(tmp_path: Path) -> None:
    """By the real commands: all runs take 1.6 times as long as predicted, and three of them teach that."""
    outcome = steps.check_calibration([finished(run, 1.6) for run in steps.PLANNED], H100, tmp_path)
    before, after = (float(str(row.measured)) for row in outcome.rows)
    assert before > 0.2
    assert after < before / 2
    assert outcome.verdict is Verdict.MET


def test_too_few_runs_are_no_calibration(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="3 runs"):
        steps.check_calibration([finished()] * 3, H100, tmp_path)


def test_a_gpu_that_tables_cannot_name_is_not_calibrated(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="Abacus"):
        steps.check_calibration([finished()] * 4, replace(H100, name="Abacus 9000"), tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [(0.5, 0.2, Verdict.MET), (0.5, 0.3, Verdict.MISSED), (0.05, 0.09, Verdict.MET), (0.05, 0.2, Verdict.MISSED)],
)
def test_a_calibration_has_to_halve_the_error_or_leave_little(before: float, after: float, verdict: Verdict) -> None:
    assert steps.judge_calibration(before, after, 5).verdict is verdict
