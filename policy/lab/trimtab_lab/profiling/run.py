"""One profile: every way to train that is asked for is measured, the fastest is traced, all is compared and written.

Three files: `trace.json`, for chrome://tracing or Perfetto; `profile.json`, a list of `rlalloc_jobs.RlallocProfile`
that the environment `trimtab/RLAlloc-v0` takes as `profiles`; and `report.json`, all that is in `ProfileReport`.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from msgspec import Struct

from trimtab_lab.environments.rlalloc_jobs import RlallocProfile
from trimtab_lab.profiling import compare, loader, machine
from trimtab_lab.profiling.compare import ComparedPart, PredictedParts
from trimtab_lab.profiling.gpt import check
from trimtab_lab.profiling.measure import (
    RECORDED,
    WARM_UP,
    Advance,
    MeasuredPlan,
    ProfiledTraining,
    Recorded,
    measure,
    record,
)
from trimtab_lab.profiling.training import precisions
from trimtab_policy import catalog
from trimtab_policy.perf import memory
from trimtab_policy.specs import GpuSpec, ParallelPlan, Precision, Recompute

FILES = TRACE, PROFILE, REPORT = "trace.json", "profile.json", "report.json"
_MOST_OF_HOST = 0.8
"""Of a host's memory that a run on its processor may take: beyond that the system ends processes unasked."""

ON_CPU = (
    "The rates of products and of memory were measured on this processor just before. The comparison thus says whether"
    " the model counts work and bytes right and adds them up right. It says nothing about its predictions for GPUs: the"
    " shares of these rates that it expects to be reached were fitted on GPUs (trimtab perf validate)."
)
AUTOCAST = (
    "Under autocast weights and the residual stream stay in 32 bit; the model expects 16-bit weights with a 32-bit"
    " master copy, as Megatron-LM keeps them."
)
GRADIENT = (
    "At the end of the backward pass PyTorch holds the gradient of the matrix that embedding and output share up to"
    " three times more ({:.3g} MiB each), which shows where activations are smaller; the model counts it once, since"
    " Megatron-LM adds in place."
)
BUSY = "Others kept this host busy ({:.1f} runnable threads on {} processors): steps took longer than they need to."


class OutOfMemory(ValueError):
    """None of what was asked for fits; the message says what to try."""


class ProfileRow(Struct, frozen=True):
    """One way to train: what was predicted, and what was measured."""

    micro_batch: int
    recompute: Recompute
    predicted: PredictedParts
    measured: MeasuredPlan | None
    """None where the device has too little memory."""
    step_ratio: float | None
    """Measured over predicted, as the next."""
    memory_ratio: float | None


class ProfileReport(Struct, frozen=True):
    """All that a profile found; seconds and bytes."""

    preset: str
    layers: int
    parameters: int
    device: str
    gpu: GpuSpec
    """What the performance model was told of the device."""
    precision: Precision
    sequence_length: int
    batch_size: int
    rows: tuple[ProfileRow, ...]
    traced: int
    """Index of the row that was traced: the fastest."""
    parts: tuple[ComparedPart, ...]
    """Of that row."""
    recorded: Recorded
    profile: RlallocProfile
    notes: tuple[str, ...]
    torch: str
    """Its version."""

    @property
    def fastest(self) -> ProfileRow:
        return self.rows[self.traced]


def plans(batch_size: int, micro_batch: int | None = None) -> tuple[ParallelPlan, ...]:
    """Micro-batches of 1, 2, 4, ... and the whole batch, where they divide it (or just the given one), with and without
    recomputation."""
    powers = [1 << power for power in range(batch_size.bit_length())]
    sizes = [size for size in dict.fromkeys((*powers, batch_size)) if batch_size % size == 0]
    return tuple(
        ParallelPlan(micro_batch=size, recompute=recompute)
        for recompute in (Recompute.NONE, Recompute.FULL)
        for size in ([micro_batch] if micro_batch else sizes)
    )


def steps(plans: Sequence[ParallelPlan], timed: int) -> int:
    """Optimizer steps that a profile of these plans makes at most."""
    return len(plans) * (WARM_UP + timed) + WARM_UP + RECORDED


def profile(
    case: ProfiledTraining, plans: Sequence[ParallelPlan], out: Path, advance: Advance = lambda: None
) -> ProfileReport:
    """Measure, trace and compare; write the three files into a folder, which is made.

    Raises ValueError for what cannot be trained (see `training.Trainer`), OutOfMemory when nothing fits, OSError when
    the folder cannot be written.
    """
    _checked(case)
    out.mkdir(parents=True, exist_ok=True)
    at_start, notes = _resident_peak(), _notes(case)
    gpu = machine.spec(case.device, case.training.precision)
    rows = _rows(case, plans, gpu, advance)
    fitting = [(row, row.measured) for row in rows if row.measured]
    if not fitting:
        raise OutOfMemory(_too_large(case, plans, gpu))
    fastest, measured = max(fitting, key=lambda pair: pair[1].tokens_per_second)
    plan = ParallelPlan(micro_batch=fastest.micro_batch, recompute=fastest.recompute)
    recorded = record(case, plan, measured.step_seconds, out / TRACE, advance)
    host = at_start if case.device.type == "cpu" else _resident_peak()
    found = ProfileReport(
        preset=case.model.name,
        layers=case.model.layers,
        parameters=catalog.parameters(case.model),
        device=case.device.type,
        gpu=gpu,
        precision=case.training.precision,
        sequence_length=case.training.sequence_length,
        batch_size=case.training.global_batch_size,
        rows=rows,
        traced=rows.index(fastest),
        parts=compare.parts(
            fastest.predicted, measured.step_seconds, recorded.classes, measured.allocated, measured.states
        ),
        recorded=recorded,
        profile=_profile(case, [each for _, each in fitting], host),
        notes=notes,
        torch=str(torch.__version__),
    )
    (out / PROFILE).write_bytes(msgspec.json.format(msgspec.json.encode([found.profile]), indent=2))
    (out / REPORT).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2))
    return found


def read_profile(file: Path) -> tuple[RlallocProfile, ...]:
    """The profiles of a file that `profile` wrote. Raises ValueError naming the file when it is none."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=tuple[RlallocProfile, ...])
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{file} is no list of profiles: {error}") from error


def _checked(case: ProfiledTraining) -> None:
    """Refuse before anything is measured what could not be trained."""
    check(case.model, case.training.sequence_length)
    if case.training.precision not in (usable := precisions(case.device)):
        raise ValueError(f"precision must be {' or '.join(usable)} on {case.device.type}: {case.training.precision}")


def _rows(
    case: ProfiledTraining, plans: Sequence[ParallelPlan], gpu: GpuSpec, advance: Advance
) -> tuple[ProfileRow, ...]:
    """Every plan measured; where a micro-batch does not fit no larger one is tried with as little recomputation."""
    rows: list[ProfileRow] = []
    for plan in plans:
        predicted = compare.predict(case.model, case.training, plan, gpu)
        alike = [row for row in rows if row.recompute is plan.recompute and row.micro_batch < plan.micro_batch]
        crowded = case.device.type == "cpu" and predicted.allocated > _MOST_OF_HOST * gpu.memory_bytes
        hopeless = crowded or any(row.measured is None for row in alike)
        measured = None if hopeless else measure(case, plan, advance)
        rows.append(_row(plan, predicted, measured))
    return tuple(rows)


def _row(plan: ParallelPlan, predicted: PredictedParts, measured: MeasuredPlan | None) -> ProfileRow:
    if measured is None:
        return ProfileRow(plan.micro_batch, plan.recompute, predicted, None, None, None)
    step = measured.step_seconds / predicted.step_seconds
    return ProfileRow(
        plan.micro_batch, plan.recompute, predicted, measured, step, measured.allocated / predicted.allocated
    )


def _too_large(case: ProfiledTraining, plans: Sequence[ParallelPlan], gpu: GpuSpec) -> str:
    """What to try instead: the largest micro-batch that is expected to fit, or else shorter sequences."""
    least = min(plan.micro_batch for plan in plans)
    smaller = [size for size in range(1, least) if case.training.global_batch_size % size == 0]
    fitting = [size for size in smaller if _expected(case, size, gpu) <= gpu.memory_bytes]
    hint = (
        f"try --micro-batch {max(fitting)}"
        if fitting
        else f"try --sequence-length {max(1, case.training.sequence_length // 2)}, or a smaller preset"
    )
    room = f"{gpu.memory_bytes / (1 << 30):.1f} GiB"
    return f"out of memory: {case.model.name} with micro-batch {least} does not fit {gpu.name} ({room}): {hint}"


def _expected(case: ProfiledTraining, micro_batch: int, gpu: GpuSpec) -> int:
    plan = ParallelPlan(micro_batch=micro_batch, recompute=Recompute.FULL)
    return compare.predict(case.model, case.training, plan, gpu).allocated


def front(measured: Sequence[MeasuredPlan]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """(bytes allocated, tokens/s), both ascending: what is slower than something that needs no more is left out."""
    points: list[tuple[int, float]] = []
    for each in sorted(measured, key=lambda one: (one.allocated, -one.tokens_per_second)):
        if not points or each.tokens_per_second > points[-1][1]:
            points.append((each.allocated, each.tokens_per_second))
    amounts, rates = zip(*points, strict=True)
    return amounts, rates


def _profile(case: ProfiledTraining, measured: Sequence[MeasuredPlan], host_memory: int) -> RlallocProfile:
    """What can be had with how much memory.

    It is counted as the performance model does for what a card must have: the reserve against fragmentation, and on a
    GPU what driver and framework take, on top of what is allocated.
    """
    driver = memory.FRAMEWORK_BYTES if case.device.type == "cuda" else 0.0
    amounts, rates = front(measured)
    needed = tuple(round(amount * (1 + memory.RESERVE) + driver) for amount in amounts)
    batch, sequence = case.training.global_batch_size, case.training.sequence_length
    return RlallocProfile(
        case.model.name, needed, rates, loader.tokens_per_core(batch, sequence, case.seed), host_memory
    )


def _resident_peak() -> int:
    """Bytes that this process has had in memory at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def _notes(case: ProfiledTraining) -> tuple[str, ...]:
    """What qualifies the comparison; asked for before anything runs, which would keep the host busy itself."""
    on_cpu, half = case.device.type == "cpu", case.training.precision is not Precision.FP32
    vocabulary = 4 * case.model.vocab_size * case.model.hidden_size / (1 << 20)
    waiting, processors = os.getloadavg()[0], os.cpu_count() or 1
    notes = {
        ON_CPU: on_cpu,
        BUSY.format(waiting, processors): on_cpu and waiting > processors / 2,
        GRADIENT.format(vocabulary): True,
        AUTOCAST: half,
    }
    return tuple(note for note, holds in notes.items() if holds)
