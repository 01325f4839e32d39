"""The tables of `trimtab get` and the demo, and pairs of name and value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.progress_bar import ProgressBar
from rich.table import Table

from trimtab.observe.jobs import JobFacts
from trimtab.observe.snapshot import Observation
from trimtab.ui import words
from trimtab.ui.terminal import Text

STATE_STYLE = {
    "Running": "green",
    "Completed": "bold green",
    "Starting": "cyan",
    "Binding": "cyan",
    "Suspended": "dim",
}

NEVER_CUT = ("GPUS", "PROGRESS")


def jobs(
    rows: Iterable[JobFacts],
    progress: Callable[[JobFacts], float | None],
    *,
    bars: bool = False,
    namespaces: bool = False,
    policies: bool = False,
) -> Table:
    """One line a job; `progress` is a fraction. `bars` draws it, for a live display.

    `policies` says who decided, and what the shadow policy would have done where there is one.
    """
    rows = list(rows)
    watched = policies and any(facts.status.shadow for facts in rows)
    more = [*(["POLICY"] if policies else []), *(["SHADOW"] if watched else [])]
    table = _table("NAME", "TYPE", "GPUS", "PARALLELISM", "NODES", "PROGRESS", "STATE", *more)
    for facts in rows:
        plan, shadow = facts.status.plan, facts.status.shadow
        done = progress(facts)
        state = words.state(facts)
        table.add_row(
            _line(facts.meta.key if namespaces else facts.meta.name),
            _line(plan.gpu_type if plan else "-"),
            str(plan.gpus) if plan else "-",
            _line(words.parallelism(plan) if plan else "-"),
            _line(words.nodes([node.name for node in plan.nodes]) if plan else "-"),
            "-" if done is None else bar(done) if bars else f"{done:.0%}",
            _line(state, STATE_STYLE.get(state, "yellow")),
            *([_line(plan.policy if plan else "-")] if policies else []),
            *([_line(words.shadow_in_short(shadow) if shadow else "-")] if watched else []),
        )
    return table


def bar(done: float, width: int = 12) -> ProgressBar:
    """A bar that is full at 1."""
    return ProgressBar(1.0, done, width=width, finished_style="green")


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
            _node_state(observation, facts.name),
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


def _node_state(observation: Observation, name: str) -> Text:
    if unavailable := observation.snapshot.unavailable.get(name):
        return Text(unavailable, "yellow")
    remarks = ", ".join(dict.fromkeys(problem.reason for problem in observation.problems_of(name)))
    return Text(f"Ready ({remarks})" if remarks else "Ready", "green")


def _line(text: str, style: str = "") -> Text:
    """Text that is cut, not wrapped, where the terminal is too narrow."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column in ("GPUS", "FREE")
        table.add_column(column, justify="right" if right else "left", no_wrap=column in NEVER_CUT, overflow="fold")
    return table
