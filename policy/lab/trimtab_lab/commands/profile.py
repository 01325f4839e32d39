"""`trimtab profile gpt`: real training steps, measured, traced, and held against the performance model.

torch and gymnasium are imported when something is profiled, and only then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec.structs import replace

from trimtab import settings
from trimtab.commands import calibration, simulation
from trimtab.commands.options import OutputOption, reported
from trimtab.errors import TrimtabError, UsageError
from trimtab.ui import output
from trimtab.ui.form import Output
from trimtab.ui.output import spaced
from trimtab.ui.progress import progress, step
from trimtab.ui.terminal import Text
from trimtab_lab.ui import profiling as ui
from trimtab_policy import catalog
from trimtab_policy.specs import Precision, TrainingSpec

if TYPE_CHECKING:
    from trimtab_lab.profiling.measure import ProfiledTraining
    from trimtab_lab.profiling.run import ProfileReport

app = typer.Typer(no_args_is_help=True, help="Measure real training steps, and hold the performance model to them.")

SEQUENCE = {"cpu": 128, "cuda": 1024}
"""Tokens where none are asked for: on a processor a step should take seconds, not minutes."""


class TrainingDevice(StrEnum):
    """Where to train."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


@app.callback()
def profile() -> None:
    """Measure real training steps, and hold the performance model to them."""


@app.command()
@reported()
def gpt(
    preset: Annotated[str, typer.Option(help="A GPT of the catalogue: gpt2, gpt2-medium, gpt3-1.3b, ...")] = "gpt2",
    device: Annotated[
        TrainingDevice, typer.Option(help="auto: a CUDA device where there is one.")
    ] = TrainingDevice.AUTO,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a sequence; by default 1024, on a CPU 128.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences of one optimizer step.")] = 4,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences at once; by default all powers of two that divide the batch.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to time of each way to train.")] = 5,
    precision: Annotated[
        Precision | None,
        typer.Option(case_sensitive=False, help="Of products; by default BF16, FP16 on GPUs without, FP32 on a CPU."),
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Cut the model to so many layers.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and tokens.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the trace, the profile and the report.")] = Path(
        "trimtab-profile"
    ),
    form: OutputOption = Output.TABLE,
) -> None:
    """Train a small GPT for some steps with each micro-batch, with and without recomputation, and measure them.

    Weights and tokens are random: nothing is downloaded. Step time and memory are shown beside predicted ones.

    --out gets trace.json (for Perfetto), profile.json (profiles for trimtab/RLAlloc-v0) and report.json (all of it).

    Examples: trimtab profile gpt --preset gpt2 --device cuda --batch-size 32

    trimtab profile gpt --device cpu --sequence-length 64 --steps 3 -o json

    trimtab profile gpt --preset gpt2-medium --micro-batch 2 --precision bf16 --out medium
    """
    calibration.use(settings.load().perf)
    model = catalog.model(preset)
    model = replace(model, layers=layers) if layers else model
    # The recorder under torch.profiler tells its own events, and the lack of a GPU, on stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with simulation.input_errors(), _needs_torch():
        with step("loading torch"):
            from trimtab_lab.profiling import machine, run
            from trimtab_lab.profiling.measure import ProfiledTraining
            from trimtab_lab.profiling.training import precisions
        where = machine.device(device)
        length = sequence_length or min(SEQUENCE[where.type], model.learned_positions)
        training = TrainingSpec(length, batch_size, steps, precision or precisions(where)[0])
        found = _profiled(ProfiledTraining(model, training, where, seed), micro_batch, out)
    written = Text(f"In {out}: {', '.join(run.FILES)}", "dim")
    value = msgspec.to_builtins(found) | {"files": [str(out / name) for name in run.FILES]}
    output.show(form, value, spaced([ui.overview(found), written]))


def _profiled(case: ProfiledTraining, micro_batch: int | None, out: Path) -> ProfileReport:
    """Raises TrimtabError when nothing fits the device's memory."""
    from trimtab_lab.profiling import run

    if micro_batch and case.training.global_batch_size % micro_batch:
        raise UsageError(f"--micro-batch {micro_batch} must divide --batch-size {case.training.global_batch_size}")
    plans = run.plans(case.training.global_batch_size, micro_batch)
    with progress("training steps", run.steps(plans, case.training.steps)) as bar:
        try:
            return run.profile(case, plans, out, bar.advance)
        except run.OutOfMemory as error:
            raise TrimtabError(str(error)) from error
        except OSError as error:
            raise UsageError(f"cannot write {out}: {error.strerror}") from error


@contextmanager
def _needs_torch() -> Iterator[None]:
    """Say how to install what the operator does without."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"profiling needs torch and gymnasium: pip install 'trimtab[sim,train]' ({error})") from error
