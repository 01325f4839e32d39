"""The tables of `trimtab get`, `trimtab plan`, `trimtab explain` and the demo."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trimtab.observe.jobs import JobFacts
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.snapshot import Observation
from trimtab.ui import words
from trimtab_policy.types import Alternative, Placement

STATE_STYLE = {
    "Running": "green",
    "Completed": "bold green",
    "Starting": "cyan",
    "Binding": "cyan",
    "Suspended": "dim",
}


def jobs(rows: Iterable[JobFacts], now: float, *, bars: bool = False, namespaces: bool = False) -> Table:
    """One line a job. `bars` draws progress as bars, for a live display."""
    table = _table("NAME", "TYPE", "GPUS", "PARALLELISM", "NODES", "PROGRESS", "STATE")
    for facts in rows:
        plan = facts.status.plan
        name = f"{facts.meta.namespace}/{facts.meta.name}" if namespaces else facts.meta.name
        done = words.progress(facts, now)
        state = words.state(facts)
        table.add_row(
            name,
            plan.gpu_type if plan else "-",
            str(plan.gpus) if plan else "-",
            f"{plan.mode} {plan.summary}" if plan else "-",
            words.nodes([node.name for node in plan.nodes]) if plan else "-",
            "-" if done is None else ProgressBar(100, done * 100, width=16) if bars else f"{done:.0%}",
            Text(state, STATE_STYLE.get(state, "yellow")),
        )
    return table


def nodes(observation: Observation) -> Table:
    """One line a GPU node."""
    table = _table("NAME", "GPU TYPE", "GPUS", "FREE", "TOPOLOGY", "STATE")
    free = {node.name: node.free_gpus for node in observation.snapshot.nodes}
    for facts in sorted(observation.nodes.values(), key=lambda facts: facts.name):
        table.add_row(
            facts.name,
            facts.gpu.name if facts.gpu else "unknown",
            str(facts.gpus),
            str(free.get(facts.name, "-")),
            "/".join(facts.topology) or "-",
            _node_state(facts),
        )
    return table


def choices(placement: Placement) -> Table:
    """The chosen plan of a job, and below it the ones that lost."""
    table = _table("", "GPUS", "PARALLELISM", "µBATCH", "RECOMPUTE", "STEP", "TOKENS/S", "MEMORY/GPU", "WHY NOT")
    chosen = Alternative(placement.gpu_type, placement.gpus, placement.plan, placement.prediction, "chosen")
    for position, choice in enumerate((chosen, *placement.alternatives)):
        table.add_row(
            "→" if position == 0 else "",
            f"{choice.gpus}×{choice.gpu_type}",
            f"{choice.plan.mode} {choice.plan.describe()}",
            str(choice.plan.micro_batch),
            choice.plan.recompute.value,
            words.duration(choice.prediction.step_seconds),
            words.rate(choice.prediction.tokens_per_second),
            words.size(choice.prediction.memory_bytes),
            choice.why_not,
            style="bold" if position == 0 else "",
        )
    return table


def pairs(rows: Sequence[tuple[str, str]]) -> Table:
    """Two columns without lines: a name and what is to be said about it."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


def _node_state(facts: NodeFacts) -> Text:
    if facts.unavailable:
        return Text(facts.unavailable, "yellow")
    remarks = ", ".join(problem.reason for problem in facts.problems)
    return Text(f"Ready ({remarks})" if remarks else "Ready", "green")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column in ("GPUS", "FREE", "STEP", "TOKENS/S", "MEMORY/GPU", "µBATCH")
        table.add_column(column, justify="right" if right else "left", no_wrap=column == "NAME", overflow="fold")
    return table
