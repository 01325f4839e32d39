"""Run the checks, one after another; what is done is kept, so that an interrupted run goes on from there."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from hack.gpu import launchers, smi, steps
from hack.gpu.verdicts import Missing, Outcome, Verdict, exit_code
from msgspec import Struct
from rich.console import Group, RenderableType

from trimtab.ui.form import Output
from trimtab.ui.output import folding_table, show, spaced
from trimtab.ui.progress import step
from trimtab.ui.terminal import Text
from trimtab_lab.profiling.training import precisions
from trimtab_local.checkout import checkout

ROOT = checkout()
FOLDER = ROOT / ".gpu-check"
KEPT, REPORT, LAUNCHERS = "kept.json", "report.json", "launchers"


class Check(StrEnum):
    """What can be checked by itself, in order."""

    AGENT = "agent"
    STEPS = "steps"
    TRAINER = "trainer"
    CALIBRATE = "calibrate"
    LAUNCHERS = "launchers"


class Kept(Struct):
    """What earlier runs found, on the same GPUs and of the same code."""

    machine: str = ""
    outcomes: dict[str, Outcome] = {}
    runs: dict[str, steps.FinishedRun] = {}


class Options(Struct, frozen=True):
    """What was asked for on the command line."""

    folder: Path
    python: Path | None
    megatron: Path | None


def main(
    only: Annotated[list[Check] | None, typer.Option(help="Just this check; may be repeated.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Do over what an earlier run has done.")] = False,
    install: Annotated[
        bool, typer.Option("--install", help="First install launchers into the folder (torchtitan, DeepSpeed, ...).")
    ] = False,
    python: Annotated[
        Path | None, typer.Option("--launchers", help="Python whose launchers are asked, instead of installed ones.")
    ] = None,
    megatron: Annotated[Path | None, typer.Option(help="Checkout of Megatron-LM, which is no package.")] = None,
    folder: Annotated[Path, typer.Option(help="Where results and launchers are kept.")] = FOLDER,
    form: Annotated[Output, typer.Option("--output", "-o", help="table, json or yaml.")] = Output.TABLE,
) -> None:
    """Hold Trimtab against the GPUs of this machine, half an hour in all.

    agent: its readings beside nvidia-smi's. steps: time and memory of a GPT, beside prediction and interval. trainer:
    the same of our trainer, on all GPUs. calibrate: what `trimtab perf calibrate` makes of three runs. launchers: the
    flags of gangs beside the parsers of torchrun, torchtitan, Megatron-LM and DeepSpeed; needs no GPU.

    Exit code 0 when all is well, 1 when something is not, 2 when something could not be checked: it says what is
    missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = Options(folder, python, megatron)
    if install:
        with step(f"installing launchers into {folder / LAUNCHERS}"):
            try:
                launchers.install(folder / LAUNCHERS)
            except Missing as missing:
                print(f"error: {missing}", file=sys.stderr)
                raise typer.Exit(2) from missing
    kept = read_kept(folder / KEPT, fingerprint())
    outcomes = [run_check(check, options, kept, again=again) for check in Check if not only or check in only]
    report = {"machine": kept.machine, "checks": [_plain(each) for each in outcomes]}
    (folder / REPORT).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    show(form, report, table(outcomes))
    raise typer.Exit(exit_code(outcomes))


def run_check(check: Check, options: Options, kept: Kept, *, again: bool = False) -> Outcome:
    """One check, or what is kept of it. Whatever is missing becomes its outcome."""
    if check in kept.outcomes and not again:
        return kept.outcomes[check]
    began = time.monotonic()
    try:
        with step(check.value):
            found = CHECKS[check](options, kept)
    except Missing as missing:
        return Outcome(check.value, missing=str(missing), seconds=round(time.monotonic() - began, 1))
    found = msgspec.structs.replace(found, seconds=round(time.monotonic() - began, 1))
    if not found.missing:
        kept.outcomes[check] = found
        write_kept(options.folder / KEPT, kept)
    return found


def _agent(options: Options, kept: Kept) -> Outcome:
    return Outcome("agent", tuple(smi.check_agent()))


def _runs(options: Options, kept: Kept) -> list[steps.FinishedRun]:
    """All runs that fit the GPU, each kept as soon as it is measured."""
    device, gpu = steps.find_gpu()
    precision = precisions(device)[0]
    for run in steps.PLANNED:
        if run.name not in kept.runs and steps.fits(run, precision, gpu):
            with step(run.name):
                kept.runs[run.name] = steps.measure_run(run, device, gpu)
            write_kept(options.folder / KEPT, kept)
    return [kept.runs[run.name] for run in steps.PLANNED if run.name in kept.runs]


def _steps(options: Options, kept: Kept) -> Outcome:
    return steps.judge_runs(_runs(options, kept))


def _trainer(options: Options, kept: Kept) -> Outcome:
    device, gpu = steps.find_gpu()
    shape, precision = steps.TrainerShape(), precisions(device)[0]
    run = steps.run_trainer(shape, steps.torch.cuda.device_count(), precision)
    return steps.judge_trainer(shape, run, precision, gpu)


def _calibrate(options: Options, kept: Kept) -> Outcome:
    _, gpu = steps.find_gpu()
    return steps.check_calibration(_runs(options, kept), gpu, options.folder)


def _launchers(options: Options, kept: Kept) -> Outcome:
    return launchers.check_launchers(options.folder / LAUNCHERS, options.python, options.megatron)


CHECKS: dict[Check, Callable[[Options, Kept], Outcome]] = {
    Check.AGENT: _agent,
    Check.STEPS: _steps,
    Check.TRAINER: _trainer,
    Check.CALIBRATE: _calibrate,
    Check.LAUNCHERS: _launchers,
}


# --- what is kept ---------------------------------------------------------------------------------------------------
def fingerprint() -> str:
    """GPUs and driver of this machine, and the code that is checked: what was found of others is done over."""
    try:
        gpus = smi.ask_nvidia_smi(["--query-gpu=uuid,name,driver_version", "--format=csv,noheader"])
    except Missing:
        gpus = "no GPUs"
    told = "; ".join(line.strip() for line in gpus.splitlines())
    return f"{told} | code {hashlib.sha256(_code()).hexdigest()[:12]}"


def _code() -> bytes:
    """Every file that is or may become part of the checkout, by content."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "hack", "operator", "policy"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    names = sorted(listed.stdout.decode().splitlines())
    return b"".join(hashlib.sha256((ROOT / name).read_bytes()).digest() for name in names if (ROOT / name).is_file())


def read_kept(path: Path, machine: str) -> Kept:
    """What earlier runs found; nothing of another machine or code, nor of a file that was cut off."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    except (OSError, msgspec.DecodeError):
        return Kept(machine)
    return kept if kept.machine == machine else Kept(machine)


def write_kept(path: Path, kept: Kept) -> None:
    """All of it or nothing."""
    half = path.with_suffix(".part")
    half.write_bytes(msgspec.json.encode(kept))
    half.replace(path)


# --- what is told ---------------------------------------------------------------------------------------------------
def _plain(outcome: Outcome) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(outcome)
    return {"verdict": outcome.verdict.value, **plain}


def table(outcomes: Sequence[Outcome]) -> RenderableType:
    """For people: every check with its rows, those first that are not as they should be."""
    return spaced([_part(each) for each in outcomes])


def _part(outcome: Outcome) -> Group:
    title = Text(
        f"{outcome.check}: {outcome.verdict.value}", "bold red" if outcome.verdict is Verdict.MISSED else "bold"
    )
    if not outcome.rows:
        return Group(title, Text(outcome.missing))
    rows = folding_table("", "MEASURED", "EXPECTED", "GOOD ENOUGH", "", "")
    for row in sorted(outcome.rows, key=lambda row: row.met is not False):
        good = "" if row.low is None else f"{say(row.low, row.unit)} to {say(row.high, row.unit)}"
        met = {True: "met", False: "missed", None: ""}[row.met]
        rows.add_row(
            *map(Text, (row.what, say(row.measured, row.unit), say(row.expected, row.unit), good, met, row.note))
        )
    remarks = [Text(outcome.missing)] if outcome.missing else []
    return Group(title, rows, *remarks, *([Text(outcome.note, "dim")] if outcome.note else []))


def say(value: float | str | None, unit: str) -> str:
    """A figure as people write it."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    match unit:
        case "bytes":
            return f"{value / 2**30:.3g} GiB"
        case "Hz":
            return f"{value / 1e6:.4g} MHz"
        case "share":
            return f"{100 * value:.3g} %"
        case _:
            return f"{value:.4g} {unit}".rstrip()


if __name__ == "__main__":
    typer.run(main)
