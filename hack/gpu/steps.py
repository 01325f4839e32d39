"""Real training steps on a GPU, in time and memory, against what the performance model says of them.

Two trainings: a GPT as torchtitan trains it without a compiler, on one GPU, by what `trimtab profile` measures with;
and the trainer of our image, by torchrun on all GPUs. Their runs are what `trimtab perf calibrate` is tried with.
"""

from __future__ import annotations

import csv
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
from hack.gpu.verdicts import Comparison, Missing, Outcome, tolerated_misses, within
from msgspec import Struct

from trimtab_lab.profiling import compare, machine
from trimtab_lab.profiling.measure import ProfiledTraining, measure
from trimtab_lab.profiling.training import precisions
from trimtab_local.checkout import checkout
from trimtab_policy import catalog
from trimtab_policy.perf import hardware, measured, memory, plan_arrays, plans
from trimtab_policy.specs import GpuSpec, ModelSpec, ParallelPlan, Precision, Recompute, TrainingSpec

TRAINER_WARM_UP = 5
"""Steps of the trainer that are not counted: kernels are chosen, and memory is found."""
TRAINER_SECONDS = 1800
CALIBRATING = 3
"""Runs that a calibration is made from; the others show what it is good for."""
GOAL = 0.10
"""Mean error of the other runs that a calibration may leave in any case, as in perf/RESULTS.md."""
SOURCE = "gpu-check"


class PlannedRun(Struct, frozen=True):
    """A training to measure."""

    preset: str
    """Of the catalogue."""
    sequence_length: int
    batch_size: int
    plan: ParallelPlan
    steps: int = 8
    """That are timed."""

    @property
    def name(self) -> str:
        again = ", recomputed" if self.plan.recompute is Recompute.FULL else ""
        return f"{self.preset}, {self.batch_size}×{self.sequence_length}, micro-batch {self.plan.micro_batch}{again}"


class FinishedRun(Struct, frozen=True):
    """A training that was measured, beside what was predicted."""

    run: PlannedRun
    precision: Precision
    seconds: float
    """Of a step: the median."""
    allocated: int
    """Bytes at most, by torch's allocator."""
    predicted: compare.PredictedParts


PLANNED = tuple(
    PlannedRun(preset, sequence, batch, ParallelPlan(micro_batch=micro, recompute=recompute))
    for preset, sequence, batch, micro, recompute in (
        ("gpt2", 1024, 32, 8, Recompute.NONE),
        ("gpt2-medium", 1024, 16, 4, Recompute.NONE),
        ("gpt3-760m", 2048, 8, 2, Recompute.FULL),
        ("gpt2-medium", 512, 32, 16, Recompute.FULL),
        ("gpt2-large", 1024, 8, 4, Recompute.NONE),
        ("gpt3-1.3b", 2048, 8, 1, Recompute.NONE),
        ("gpt3-1.3b", 2048, 16, 4, Recompute.FULL),
        ("gpt3-2.7b", 2048, 8, 2, Recompute.FULL),
    )
)
"""From small to large, so that the first of them fit on any GPU."""


def find_gpu() -> tuple[torch.device, GpuSpec]:
    """The first GPU. Raises Missing without one that torch can use."""
    try:
        device = machine.device("cuda")
    except ValueError as error:
        told, remedy = str(error).partition(":")[0], "run this on a node with a GPU and NVIDIA's driver"
        if torch.version.cuda is None:
            remedy = (
                "make a virtual environment of its own with a torch for CUDA (`pip install torch` on Linux) and what"
                " hack/setup installs, and start `python -m hack.gpu` of that one; nothing is installed unasked"
            )
        raise Missing(f"{told}: {remedy}") from error
    return device, machine.known(device)


def training_of(run: PlannedRun, precision: Precision) -> TrainingSpec:
    """What is trained, in the model's words."""
    return TrainingSpec(run.sequence_length, run.batch_size, run.steps, precision)


def fits(run: PlannedRun, precision: Precision, gpu: GpuSpec) -> bool:
    """Whether the performance model lets it on this GPU."""
    model = catalog.model(run.preset)
    return plans.fits(model, training_of(run, precision), run.plan, gpu, compare.SOFTWARE)


def measure_run(run: PlannedRun, device: torch.device, gpu: GpuSpec, model: ModelSpec | None = None) -> FinishedRun:
    """Train it. `model` replaces that of the catalogue. Raises Missing where it does not fit after all."""
    model, precision = model or catalog.model(run.preset), precisions(device)[0]
    training = training_of(run, precision)
    found = measure(ProfiledTraining(model, training, device), run.plan, lambda: None)
    if found is None:
        raise Missing(f"{run.name}: the memory of {gpu.name} is taken, by whom `nvidia-smi` says")
    predicted = compare.predict(model, training, run.plan, gpu)
    return FinishedRun(run, precision, found.step_seconds, found.allocated, predicted)


def judge_runs(runs: Sequence[FinishedRun]) -> Outcome:
    """Step times by their intervals, of which some may miss; memory by the reserve that plans are given."""
    times = [
        within(f"{each.run.name}: step", each.seconds, each.predicted.step_seconds, each.predicted.low,
               each.predicted.high, "s")
        for each in runs
    ]  # fmt: skip
    held = [_memory(f"{each.run.name}: memory", each.allocated, each.predicted.allocated) for each in runs]
    outside, too_much = sum(row.met is False for row in times), any(row.met is False for row in held)
    allowed = tolerated_misses(len(times))
    note = f"{len(times) - outside} of {len(times)} inside their 80 % interval; {allowed} may be outside"
    return Outcome("steps", tuple(times + held), note=note, tolerated=0 if too_much else min(outside, allowed))


def _memory(what: str, allocated: float, expected: float) -> Comparison:
    room = memory.RESERVE * expected
    return within(what, allocated, expected, expected - room, expected + room, "bytes", f"±{memory.RESERVE:.0%}")


# --- the trainer of our image ---------------------------------------------------------------------------------------
class TrainerShape(Struct, frozen=True):
    """Options of hack/trainer/train.py."""

    layers: int = 12
    width: int = 2048
    heads: int = 16
    sequence: int = 1024
    per_rank: int = 8
    """Sequences of a step and rank, all at once."""
    steps: int = 25

    def model(self) -> ModelSpec:
        """As the performance model sees it."""
        shape = (self.layers, self.width, self.heads, self.heads, self.width // self.heads, 4 * self.width, 256)
        return ModelSpec("trainer", *shape, gated_ffn=False, learned_positions=self.sequence, biases=True)


class TrainerRun(Struct, frozen=True):
    """What the trainer logged."""

    seconds: float
    """Of a step: the median without the first ones."""
    peak: int | None
    """Bytes at most, by torch's allocator; None on a CPU."""
    ranks: int


def run_trainer(shape: TrainerShape, ranks: int, precision: Precision) -> TrainerRun:
    """Start it by torchrun on so many GPUs of this machine (or processes). Raises Missing where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
            str(checkout() / "hack" / "trainer" / "train.py"),
            *(f"--checkpoints={folder}", f"--every={10 * shape.steps}", f"--global-batch={ranks * shape.per_rank}"),
            *(f"--{name}={getattr(shape, name)}" for name in ("layers", "width", "heads", "sequence", "steps")),
            f"--zero={3 if ranks > 1 else 0}",
        ]
        env = {"TRIMTAB_PRECISION": precision.value, "OMP_NUM_THREADS": "1"}
        done = _run(command, env, TRAINER_SECONDS)
    return parse_trainer(done)


def _run(command: Sequence[str], env: dict[str, str], seconds: float) -> str:
    folders = [str(checkout() / "operator"), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), **env}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=given, check=False)
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{Path(command[-1]).name} took more than {seconds:g} s") from error
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise Missing(f"{' '.join(command[:3])} ended with {done.returncode}: {last}")
    return done.stdout


def parse_trainer(text: str) -> TrainerRun:
    """What the trainer logged, as JSON lines. Raises ValueError where it did not finish."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    steps = [float(line["seconds"]) for line in lines if line["event"] == "step"][TRAINER_WARM_UP:]
    done = next((line for line in lines if line["event"] == "done"), None)
    if done is None or not steps:
        raise ValueError(f"the trainer did not finish: {len(lines)} lines, the last is {lines[-1:]}")
    return TrainerRun(median(steps), done.get("peak_memory"), int(done["ranks"]))


def judge_trainer(shape: TrainerShape, run: TrainerRun, precision: Precision, gpu: GpuSpec) -> Outcome:
    """The trainer's step and memory beside the model's."""
    model, ranks = shape.model(), run.ranks
    training = TrainingSpec(shape.sequence, ranks * shape.per_rank, shape.steps, precision)
    plan = ParallelPlan(data=ranks, micro_batch=shape.per_rank, zero_stage=3 if ranks > 1 else 0)
    said = plans.predict(model, training, plan, gpu, ranks, software=compare.SOFTWARE)
    loss = hardware.facts(compare.SOFTWARE).loss_bytes
    held = memory.footprint(plan_arrays.work(model, training), plan_arrays.columns([plan]), loss_bytes=loss)
    rows = [within("step", run.seconds, said.step_seconds, said.step_seconds_low, said.step_seconds_high, "s")]
    if run.peak is not None:
        rows.append(_memory("memory", run.peak, float(held.allocated[0])))
    return Outcome("trainer", tuple(rows), note=f"{ranks} ranks, {model.layers} layers of width {model.hidden_size}")


# --- calibration ----------------------------------------------------------------------------------------------------
def table_row(finished: FinishedRun, gpu: GpuSpec, model: ModelSpec | None = None) -> dict[str, str]:
    """A run as `trimtab perf calibrate` wants it (columns: `measured.COLUMNS`)."""
    run, model = finished.run, model or catalog.model(finished.run.preset)
    cells: dict[str, object] = {
        "source_kind": SOURCE,
        "gpu_type": gpu.name,
        "n_gpus": 1,
        "gpus_per_node": 1,
        "model": run.preset,
        "layers": model.layers,
        "hidden": model.hidden_size,
        "heads": model.attention_heads,
        "kv_heads": model.kv_heads,
        "ffn_hidden": model.ffn_hidden_size,
        "glu": 0,
        "tied_emb": 1,
        "vocab": model.vocab_size,
        "seq_len": run.sequence_length,
        "global_batch": run.batch_size,
        "micro_batch": run.plan.micro_batch,
        "zero_or_fsdp": "none",
        "act_recompute": run.plan.recompute.value.lower(),
        "precision": finished.precision.value.lower(),
        "framework": "torchtitan",
        "notes": "eager",
        "step_time_s": f"{finished.seconds:.6g}",
        "mem_gb_per_gpu": f"{finished.allocated / 1e9:.4g}",
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m}",
    }
    return {name: str(value) for name, value in cells.items()}


def write_table(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """As CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [name for name in measured.COLUMNS if name in rows[0]])
        writer.writeheader()
        writer.writerows(rows)


def check_calibration(runs: Sequence[FinishedRun], gpu: GpuSpec, folder: Path) -> Outcome:
    """Calibrate from the first three runs by the command that users have, and predict the others.

    Raises Missing with too few runs, or a GPU that tables cannot name.
    """
    if len(runs) <= CALIBRATING:
        raise Missing(f"{len(runs)} runs were measured: {CALIBRATING} to calibrate from, and at least one to judge by")
    if not catalog.is_known(gpu.name):
        raise Missing(f"the catalogue does not know {gpu.name}, and tables of runs name GPUs by it")
    few, rest, constants = (folder / name for name in ("calibrate.csv", "others.csv", "constants.yaml"))
    rows = [table_row(each, gpu) for each in runs]
    write_table(few, rows[:CALIBRATING])
    write_table(rest, rows[CALIBRATING:])
    _perf("calibrate", str(few), "--out", str(constants))
    before = _perf("validate", str(rest))["overall"]["mape"]
    after = _perf("validate", str(rest), "--constants", str(constants))["overall"]["mape"]
    return judge_calibration(float(before), float(after), len(rest.read_text().splitlines()) - 1)


def judge_calibration(before: float, after: float, others: int) -> Outcome:
    """Mean errors of the runs that were not calibrated with, as shares."""
    goal = max(before / 2, GOAL)
    rows = (
        Comparison("mean error of the others, before", before, None, "share"),
        within("mean error of the others, after", after, goal, 0.0, goal, "share", "half of before, or 10 %"),
    )
    return Outcome("calibrate", rows, note=f"{CALIBRATING} runs to calibrate from, {others} to judge by")


def _perf(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "trimtab", "perf", *arguments, "-o", "json"]
    found: dict[str, Any] = msgspec.json.decode(_run(command, {}, TRAINER_SECONDS))
    return found
