"""`trimtab perf validate`: how far predicted step times are from measured ones.

`trimtab perf calibrate`: constants of the performance model from one's own measurements.

Both read a table of measured runs (CSV): `trimtab_policy.perf.measured` says which columns. scipy and matplotlib are
imported when something is fitted or drawn, and only then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import typer
from rich.console import Group

from trimtab import settings
from trimtab.commands import calibration
from trimtab.commands.options import OutputOption, reported
from trimtab.errors import UsageError
from trimtab.ui import accuracy as tables
from trimtab.ui import charts, output
from trimtab.ui.form import Output
from trimtab.ui.output import spaced
from trimtab.ui.progress import shares, step
from trimtab_policy.perf import accuracy, measured
from trimtab_policy.perf.accuracy import Accuracy
from trimtab_policy.perf.constants import Constants
from trimtab_policy.perf.forecast import Forecast, forecast
from trimtab_policy.perf.measured import MeasurementError, Measurements

app = typer.Typer(no_args_is_help=True, help="Hold the performance model against measured runs, or fit it to them.")

PUBLISHED = ("shared", "measured", "llm_training_throughput.csv")
"""Published measurements, beside a checkout: what is validated against when no file is named."""
FEWEST_GROUPS = 3
"""Groups of runs from which on leaving one out says something."""


class LeaveOut(StrEnum):
    """What a prediction's constants have not seen."""

    GROUP = "group"
    GPU = "gpu"


class PredictedRuns(NamedTuple):
    """Runs, what was predicted of them, and how good that was."""

    runs: Measurements
    said: Forecast
    found: Accuracy
    predicted_by: str


ConstantsOption = Annotated[
    Path | None, typer.Option("--constants", help="Constants to predict with; by default those of the settings.")
]


@app.command()
@reported()
def validate(
    file: Annotated[
        Path | None, typer.Argument(help="Table of measured runs (CSV); by default the published ones, if at hand.")
    ] = None,
    constants_file: ConstantsOption = None,
    cross_validate: Annotated[
        bool, typer.Option("--cross-validate", help="Predict every group of runs by constants fitted without it.")
    ] = False,
    leave_out: Annotated[
        LeaveOut | None, typer.Option(help="What to fit without: a group of runs, or a whole GPU generation.")
    ] = None,
    worst: Annotated[int, typer.Option(help="Show so many of the rows with the largest errors.", min=0)] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write a scatter plot (.png, .svg or .pdf).")] = None,
    form: OutputOption = Output.TABLE,
) -> None:
    """Show how far predicted step times are from measured ones: by source, by GPU, and in choosing plans.

    A row of the table is a run: source_kind, gpu_type, n_gpus, layers, hidden, heads, seq_len, global_batch and one of
    step_time_s and tokens_per_s_per_gpu must be there; tp, pp, cp, micro_batch, zero_or_fsdp, precision, ... may be.
    Fine-tunes have lora_rank, lora_targets, quantization, optimizer and offload.

    Examples: trimtab perf validate runs.csv --worst 10
    trimtab perf validate runs.csv --cross-validate --plot runs.png
    trimtab perf validate runs.csv --leave-out gpu -o json
    """
    case = _judged(
        _read(file or _published()), constants_file, leave_out or (LeaveOut.GROUP if cross_validate else None)
    )
    if plot:
        with _needs("matplotlib"), step(f"drawing {plot}"):
            _draw(plot, case)
    value = msgspec.to_builtins(case.found) | {
        "bias": _bias(case),
        "predicted_by": case.predicted_by,
        "peers": accuracy.PEERS,
        "skipped": case.runs.skipped,
    }
    if worst:
        value["worst"] = [dict(zip(WORST, row, strict=True)) for row in _worst(case, worst)]
    output.show(form, value, _report(case, worst))


@app.command()
@reported()
def calibrate(
    file: Annotated[Path, typer.Argument(help="Table of measured runs (CSV), columns as for `validate`.")],
    out: Annotated[Path, typer.Option(help="Where to write the constants.")] = Path("constants.yaml"),
    constants_file: ConstantsOption = None,
    form: OutputOption = Output.TABLE,
) -> None:
    """Fit the constants of the performance model to runs of your own, and show what that gains.

    The fit starts from the present constants and keeps to them where the runs say nothing. Judge it by the groups that
    it was not fitted to, not by the rows that it was. Ctrl-C leaves everything as it was.

    To use the result: `perf: {constants: FILE}` in the settings, or TRIMTAB_PERF__CONSTANTS=FILE.

    Example: trimtab perf calibrate runs.csv --out constants.yaml
    """
    runs, present = _read(file), calibration.read_calibration_file(constants_file or settings.load().perf.constants)
    with _needs("scipy"), shares(f"fitting {len(runs.seconds)} runs") as report:
        from trimtab_policy.perf import fit

        fitted = fit.fit(runs, start=present, progress=report)
    reports = {
        "before": accuracy.judge(runs, forecast(runs, present)),
        "after": accuracy.judge(runs, forecast(runs, fitted)),
    }
    if len(np.unique(runs.groups)) >= FEWEST_GROUPS:
        reports["cross_validated"] = accuracy.judge(runs, _left_out(runs, LeaveOut.GROUP, present))
    _write(fitted, out)
    output.show(form, reports | {"file": str(out)}, _comparison(runs, reports, out))


def _read(file: Path) -> Measurements:
    """Raises UsageError naming file, row and column, or when no row can be used."""
    try:
        runs = measured.read_measured(file)
    except MeasurementError as error:
        raise UsageError(str(error)) from error
    if not len(runs.seconds):
        name, reason = next(iter(runs.skipped.items()), ("it", "has no rows"))
        raise UsageError(f"{file}: no row can be used; {name}: {reason}")
    return runs


def _published() -> Path:
    """Raises UsageError when there is no such table."""
    path = Path(__file__).resolve().parents[4].joinpath(*PUBLISHED)
    if not path.is_file():
        raise UsageError(
            "name a table of measured runs: a CSV file with the columns "
            f"{', '.join(measured.NEEDED)} and step_time_s or tokens_per_s_per_gpu"
        )
    return path


@contextmanager
def _needs(package: str) -> Iterator[None]:
    """Say how to install what only fitting and drawing need."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"this needs {package}: pip install 'trimtab[perf]' ({error})") from error


def _judged(runs: Measurements, constants: Path | None, leave_out: LeaveOut | None) -> PredictedRuns:
    if leave_out:
        said, by = _left_out(runs, leave_out), f"constants fitted without the {leave_out} of each run"
    else:
        used = calibration.read_calibration_file(constants or settings.load().perf.constants)
        said, by = forecast(runs, used), f"constants {used.source or 'of unknown origin'}"
    return PredictedRuns(runs, said, accuracy.judge(runs, said), by)


def _left_out(runs: Measurements, what: LeaveOut, start: Constants | None = None) -> Forecast:
    """Every row predicted by constants that were fitted without its group, or without its GPU generation.

    They start from `start`, which must not have seen these runs; by default from what is believed without any.
    """
    folds = runs.groups if what is LeaveOut.GROUP else np.array([gpu.architecture for gpu in runs.gpus])
    count = len(np.unique(folds))
    if count < 2:
        raise UsageError(f"there is nothing left to fit without the only {what} of these runs")
    with _needs("scipy"), shares(f"fitting without each {what}") as report:
        from trimtab_policy.perf import fit

        return fit.cross_validate(runs, folds, report, start=start)


def _write(fitted: Constants, out: Path) -> None:
    """All of it or nothing. Raises UsageError when the directory cannot be written."""
    half = out.with_name(f".{out.name}.part")
    try:
        fitted.save(half)
        half.replace(out)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from error


def _draw(path: Path, case: PredictedRuns) -> None:
    try:
        charts.plot(path, case.runs.sources.tolist(), case.runs.seconds, case.said.seconds, case.found)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot draw {path}: {error}") from error


def _bias(case: PredictedRuns) -> dict[str, dict[str, float]]:
    error = accuracy.relative_error(case.runs.seconds, case.said)
    return {"sources": accuracy.bias(case.runs.sources, error), "gpus": accuracy.bias(case.runs.gpu_names, error)}


WORST = ("row", "source", "gpu", "measured_seconds", "predicted_seconds")


def _worst(case: PredictedRuns, count: int) -> list[tuple[str, str, str, float, float]]:
    runs, predicted = case.runs, case.said.seconds
    order = np.argsort(-np.abs(np.log(predicted / runs.seconds)), kind="stable")[:count]
    return [
        (runs.names[i], str(runs.sources[i]), str(runs.gpu_names[i]), float(runs.seconds[i]), float(predicted[i]))
        for i in order
    ]


def _report(case: PredictedRuns, worst: int) -> Group:
    """Everything for people, the picture first and the sum of it last."""
    found, bias = case.found, _bias(case)
    parts: list[Any] = [
        charts.ErrorChart(case.runs.seconds, case.said.seconds),
        tables.errors("SOURCE", found.sources, bias["sources"]),
        tables.errors("GPU", found.gpus, bias["gpus"]),
    ]
    parts += [tables.ranking(found.ranking)] if found.ranking else []
    parts += [tables.peers()]
    parts += [tables.worst(_worst(case, worst))] if worst else []
    parts += [tables.skipped(case.runs.skipped)] if case.runs.skipped else []
    return spaced([*parts, tables.summary(found.overall, case.predicted_by)])


def _comparison(runs: Measurements, reports: dict[str, Accuracy], out: Path) -> Group:
    names = {
        "before": "before",
        "after": "after, on the rows that were fitted",
        "cross_validated": "after, every group by constants fitted without it",
    }
    parts: list[Any] = [tables.before_and_after({names[name]: report for name, report in reports.items()})]
    if "cross_validated" not in reports:
        groups = len(np.unique(runs.groups))
        parts.append(f"Too few groups of runs ({groups}) to tell how good the constants are for others.")
    elif reports["cross_validated"].overall.mape >= reports["before"].overall.mape:
        parts.append("On runs that were not fitted the new constants are no better: keep the old ones.")
    return spaced([*parts, f"Written to {out}. To use it: TRIMTAB_PERF__CONSTANTS={out}"])
