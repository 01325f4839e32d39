"""The plans that a job could run under: the best of each GPU type, what it takes, and the chosen one taken apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from rich.columns import Columns
from rich.console import Group
from rich.table import Table

from trimtab.ui import charts, words
from trimtab.ui.output import spaced
from trimtab.ui.terminal import Text
from trimtab_policy.perf.breakdown import Breakdown
from trimtab_policy.specs import ParallelPlan, Prediction

ENERGY = "Energy is that of the GPUs at their rated power all the time: an upper estimate, without hosts and cooling."


class TypeChoice(Struct, frozen=True):
    """A GPU type, and the best that the job could do on it."""

    gpu_type: str
    gpus: int = 0
    """0 where no plan is possible; then the next three are None."""
    plan: ParallelPlan | None = None
    prediction: Prediction | None = None
    breakdown: Breakdown | None = None
    chosen: bool = False
    why_not: str = ""


def overview(choices: Sequence[TypeChoice], currency: str) -> Group:
    """All choices, why they lost, and the chosen one taken apart."""
    parts: list[Any] = [_table(choices, currency)] if any(choice.plan for choice in choices) else []
    if lost := [choice for choice in choices if choice.why_not]:
        parts.append(_reasons(lost))
    parts += [_apart(choice.breakdown) for choice in choices if choice.chosen and choice.breakdown]
    return spaced(parts)


def _table(choices: Sequence[TypeChoice], currency: str) -> Table:
    """Two lines a choice: a figure and what qualifies it, so that 80 columns are enough."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("GPUS\n", no_wrap=True)
    table.add_column("PLAN\n", overflow="fold")
    for name in ("STEP\n80 %", "TOKENS/S\nMFU", "MEMORY\nof", f"ENERGY PER\n10⁹ TOKENS{_priced(choices, currency)}"):
        table.add_column(name, justify="right", no_wrap=True)
    for choice in choices:
        if choice.plan and choice.prediction and choice.breakdown:
            style = "bold" if choice.chosen else ""
            table.add_row(*_row(choice, choice.plan, choice.prediction, choice.breakdown), style=style)
    return table


def _priced(choices: Iterable[TypeChoice], currency: str) -> str:
    """What the second line of that column is in, where there are prices."""
    return (
        f", {currency}"
        if any(each.breakdown and each.breakdown.cost_per_billion is not None for each in choices)
        else ""
    )


def _row(choice: TypeChoice, plan: ParallelPlan, prediction: Prediction, apart: Breakdown) -> tuple[str, ...]:
    mark = "→ " if choice.chosen else "  "
    cost = "" if apart.cost_per_billion is None else f"\n{_amount(apart.cost_per_billion)}"
    return (
        f"{mark}{choice.gpus} GPU{'s' if choice.gpus > 1 else ''}\n  {choice.gpu_type}",
        f"{plan.describe()}\nmicro-batch {plan.micro_batch}, recompute {plan.recompute.value.lower()}",
        f"{_seconds(prediction.step_seconds)}\n{_interval(apart.low, apart.high)}",
        f"{words.rate(prediction.tokens_per_second)}\n{apart.mfu:.0%}",
        f"{words.size(prediction.memory_bytes)}\n{words.size(apart.card_bytes)}",
        f"{_amount(apart.kwh_per_billion)} kWh{cost}",
    )


def _reasons(lost: Iterable[TypeChoice]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("WHY NOT", no_wrap=True)
    table.add_column(overflow="fold")
    for choice in lost:
        table.add_row(f"{choice.gpus}×{choice.gpu_type}" if choice.gpus else choice.gpu_type, choice.why_not)
    return table


def _apart(apart: Breakdown) -> Group:
    """Step time and memory by part, side by side where there is room."""
    time, space = sum(apart.step.values()), sum(apart.memory.values())
    sides = [
        _titled(f"Step: {_seconds(time)}", charts.bars(apart.step, _seconds)),
        _titled(
            f"Fullest GPU: {words.size(space)} of {words.size(apart.card_bytes)}",
            charts.bars(apart.memory, words.size),
        ),
    ]
    host = [Text(f"On the host: {words.size(apart.host_bytes)} for each GPU")] if apart.host_bytes else []
    return Group(Columns(sides, padding=(1, 4)), *host, "", Text(ENERGY, "dim"))


def _titled(title: str, table: Table) -> Table:
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    return table


def _seconds(seconds: float) -> str:
    """`2.3 ms`, `17.8 s`, `3m20s`: finer than a duration, to be compared."""
    if seconds >= 60:
        return words.duration(seconds)
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _interval(low: float, high: float) -> str:
    """`28.3–41.5`, in the unit of the longer one where they share it."""
    ends = _seconds(low), _seconds(high)
    number, unit = ends[0].partition(" ")[::2]
    return f"{number}–{ends[1]}" if unit and ends[1].endswith(f" {unit}") else "–".join(ends)


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
