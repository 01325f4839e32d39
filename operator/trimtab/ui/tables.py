"""The tables of `trimtab get` and the demo, and pairs of name and value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.progress_bar import ProgressBar
from rich.table import Table

from trimtab.observe.jobs import JobFacts
from trimtab.ui import words
from trimtab.ui.listing import Cell, Listing
from trimtab.ui.terminal import Text

if TYPE_CHECKING:  # numpy with it, which jobs alone do without
    from trimtab.observe.snapshot import Observation

STATE_STYLE = {
    "Running": "green",
    "Completed": "bold green",
    "Starting": "cyan",
    "Binding": "cyan",
    "Suspended": "dim",
}

LEAST_JOBS = ("SHADOW", "POLICY", "PRIORITY", "QUEUE", "PARALLELISM", "NODES", "AGE", "GPUS", "TYPE", "PROGRESS")
LEAST_NODES = ("TOPOLOGY", "FREE", "GPUS", "GPU TYPE")
"""Columns by how much a narrow terminal can do without them, those first that go first."""


def jobs(
    rows: Iterable[JobFacts],
    progress: Callable[[JobFacts], float | None],
    *,
    bars: bool = False,
    more: Collection[str] = (),
    now: float = 0.0,
    headers: bool = True,
) -> Listing:
    """One line a job; `progress` is a fraction. `bars` draws it, for a live display.

    `more` names columns that are not always wanted: NAMESPACE, AGE (at `now`), QUEUE, PRIORITY, POLICY. With POLICY
    goes what the shadow policy would have done, where there is one.
    """
    rows = list(rows)
    watched = "POLICY" in more and any(facts.status.shadow for facts in rows)
    asked = {*more, *(["SHADOW"] if watched else [])}
    columns = [name for name in (*_JOB, *(["SHADOW"] if watched else [])) if name in _ALWAYS or name in asked]
    table = Listing(columns, less=LEAST_JOBS, right=("GPUS",), headers=headers)
    for facts in rows:
        cells = _job(facts, progress(facts), now, bars)
        table.add(*(cells[name] for name in columns))
    return table


_JOB = (
    "NAMESPACE", "NAME", "TYPE", "GPUS", "PARALLELISM", "NODES", "PROGRESS", "AGE", "QUEUE", "PRIORITY", "STATE",
    "POLICY",
)  # fmt: skip
_ALWAYS = frozenset({"NAME", "TYPE", "GPUS", "PARALLELISM", "NODES", "PROGRESS", "STATE"})


def _job(facts: JobFacts, done: float | None, now: float, bars: bool) -> dict[str, Cell]:
    plan, shadow, state = facts.status.plan, facts.status.shadow, words.state(facts)
    terms = facts.terms
    return {
        "NAMESPACE": facts.meta.namespace,
        "NAME": facts.meta.name,
        "TYPE": plan.gpu_type if plan else "-",
        "GPUS": str(plan.gpus) if plan else "-",
        "PARALLELISM": words.parallelism(plan) if plan else "-",
        "NODES": words.nodes([node.name for node in plan.nodes]) if plan else "-",
        "PROGRESS": "-" if done is None else bar(done) if bars else f"{done:.0%}",
        "AGE": words.duration(max(0.0, now - facts.created)) if facts.created else "-",
        "QUEUE": (terms.queue if terms else facts.spec.queue if facts.spec else "") or "-",
        "PRIORITY": (facts.spec.priority_class_name if facts.spec else "") or "-",
        "STATE": Text(state, STATE_STYLE.get(state, "yellow")),
        "POLICY": plan.policy if plan else "-",
        "SHADOW": words.shadow_in_short(shadow) if shadow else "-",
    }


def bar(done: float, width: int = 12) -> ProgressBar:
    """A bar that is full at 1."""
    return ProgressBar(1.0, done, width=width, finished_style="green")


def nodes(observation: Observation, only: Collection[str] | None = None, *, headers: bool = True) -> Listing:
    """One line a GPU node; `only` those of these names."""
    columns = ("NAME", "GPU TYPE", "GPUS", "FREE", "TOPOLOGY", "STATE")
    table = Listing(columns, less=LEAST_NODES, right=("GPUS", "FREE"), sentences=True, headers=headers)
    free = {node.name: node.free_gpus for node in observation.snapshot.nodes}
    for facts in sorted(observation.nodes.values(), key=lambda facts: facts.name):
        if only is None or facts.name in only:
            table.add(
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
