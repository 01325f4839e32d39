"""What `trimtab profile` found: each way to train beside its prediction, the fastest of them taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.columns import Columns
from rich.console import Group
from rich.table import Table

from trimtab.ui import charts, words
from trimtab.ui.output import spaced
from trimtab.ui.terminal import Text

if TYPE_CHECKING:
    from trimtab_lab.profiling.compare import ComparedPart, PredictedParts
    from trimtab_lab.profiling.run import ProfileReport, ProfileRow
    from trimtab_lab.profiling.trace import Operator

SHOWN = 10
"""Operators, or kernels; all of them are in the files."""

_PARTS = {
    "compute": "computing",
    "optimizer": "optimizer",
    "fixed": "framework, idle",
    "states": "weights, gradients, optimizer",
    "activations": "activations, logits, loss",
    "total": "total",
}


def overview(report: ProfileReport) -> Group:
    """Everything for people, from the whole to its parts, what qualifies it last."""
    recorded = report.recorded
    parts: list[Any] = [_title(report), _rows(report), _parts(report.parts), _classes(report)]
    parts.append(_operators("OPERATOR", recorded.operators, report))
    parts += [_operators("KERNEL", recorded.kernels, report)] if recorded.kernels else []
    parts.append(_loader(report))
    return spaced([*parts, *(Text(note, "dim") for note in report.notes)])


def _title(report: ProfileReport) -> Text:
    peak, gpu = report.gpu.peak_flops[report.precision], report.gpu
    rates = f"{words.rate(peak / 1e9)} GFLOP/s, {gpu.memory_bandwidth / 1e9:.3g} GB/s, {words.size(gpu.memory_bytes)}"
    return Text.assemble(
        (f"{report.preset}", "bold"),
        f", {report.layers} layers, {words.rate(report.parameters)} parameters, {report.batch_size} sequences of"
        f" {report.sequence_length} tokens a step, {report.precision}, on {gpu.name} ({rates})",
    )


def _rows(report: ProfileReport) -> Table:
    """Two lines for each way to train, so that 80 columns are enough; the one taken apart below is marked."""
    columns = ("STEP\nTOKENS/S", "PREDICTED\n80 %", "RATIO\n", "MEMORY\n", "PREDICTED\n", "RATIO\n")
    table = _table("  MICRO-BATCH\n  RECOMPUTE", *columns, left=0)
    for row in report.rows:
        chosen = row is report.fastest
        way = f"{'→' if chosen else ' '} {row.micro_batch}\n  {row.recompute.lower()}"
        table.add_row(way, *_figures(row), style="bold" if chosen else "")
    return table


def _figures(row: ProfileRow) -> tuple[str, ...]:
    said = row.predicted
    step = f"{seconds(said.step_seconds)}\n{_interval(said)}"
    if row.measured is None or row.step_ratio is None or row.memory_ratio is None:
        return "out of memory", step, "-", "-", size(said.allocated), "-"
    return (
        f"{seconds(row.measured.step_seconds)}\n{words.rate(row.measured.tokens_per_second)}",
        step,
        f"{row.step_ratio:.2f}",
        size(row.measured.allocated),
        size(said.allocated),
        f"{row.memory_ratio:.2f}",
    )


def _parts(parts: Sequence[ComparedPart]) -> Table:
    table = _table("OF THE FASTEST", "PART", "MEASURED", "PREDICTED", "RATIO", left=1)
    for part in parts:
        say = seconds if part.of == "step" else size
        name = _PARTS[part.name]
        figures = (say(part.measured), say(part.predicted), f"{part.ratio:.2f}")
        table.add_row(part.of, name, *figures, style="bold" if part.name == "total" else "")
    return table


def _classes(report: ProfileReport) -> Columns:
    """Measured seconds of one step by class of work, as bars."""
    table = charts.bars(report.recorded.classes, seconds)
    table.title, table.title_justify, table.title_style = "Time of a step by class of work", "left", "bold"
    return Columns([table])


def _operators(title: str, found: Sequence[Operator], report: ProfileReport) -> Table:
    """The ones that take most of a step."""
    step = sum(report.recorded.classes.values())
    table = _table(title, "CLASS", "CALLS", "TIME", "SHARE", left=1)
    for each in found[:SHOWN]:
        table.add_row(each.name, each.kind, f"{each.calls:.0f}", seconds(each.seconds), f"{each.seconds / step:.1%}")
    return table


def _loader(report: ProfileReport) -> Text:
    profile = report.profile
    return Text(
        f"A core prepares {words.rate(profile.tokens_per_core)} tokens/s (made-up text, tokenised in Python);"
        f" the process takes {size(profile.host_memory)} of the host's memory."
    )


def seconds(value: float) -> str:
    """`17.8 s`, `2.3 ms`, `40 µs`: three figures, to be compared."""
    unit, scale = _unit(value)
    return f"{value * scale:.3g} {unit}"


def _unit(value: float) -> tuple[str, float]:
    """A unit of time in which a value is at least 1, and how many of it a second has."""
    return next((each for each in (("s", 1.0), ("ms", 1e3)) if value * each[1] >= 1), ("µs", 1e6))


def _interval(said: PredictedParts) -> str:
    """The 80 % interval, in the unit of the step."""
    _, scale = _unit(said.step_seconds)
    return f"{said.low * scale:.3g}–{said.high * scale:.3g}"


def size(count: float) -> str:
    """`2.31 GiB`, `45.2 MiB`."""
    gib = count / (1 << 30)
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.1f} MiB"


def _table(*names: str, left: int) -> Table:
    """The first column and `left` more hold names, the others figures."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number <= left else "right", overflow="fold")
    return table
