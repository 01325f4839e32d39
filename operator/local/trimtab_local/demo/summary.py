"""What the run has shown: times per job, GPUs by type, every decision with its reason. Pure: history in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table

from trimtab.ui import tables, words
from trimtab.ui.terminal import Text
from trimtab_local.demo.history import History, Trail

COLUMNS = (
    *("\nJOB", "\nGPUS"),
    *("HERE\nQUEUED", "\nSTART", "\nRAN", "\nJCT"),
    *("CLUSTER\nQUEUED", "\nRAN", "\nPREDICTED", "\nJCT"),
)


def summary(history: History, speedup: float) -> RenderableType:
    """All of it."""
    return Group(
        _title("Times"),
        _times(history, speedup),
        Text(_about_times(speedup), "dim"),
        _title("GPUs, over the whole run", above=1),
        _gpus(history, speedup),
        _title("Decisions", above=1),
        tables.pairs([(trail.name, decision(trail)) for trail in _planned(history)]),
        *_hopeless(history),
        Text(),
        _totals(history, speedup),
    )


def decision(trail: Trail) -> str:
    """Why a job runs as it does, and before that, why it had to wait."""
    plan = trail.facts.status.plan
    said = f"{plan.reason} ({plan.policy})" if plan else ""
    return f"waited: {trail.waited_for.message}; then {said}" if trail.waited_for else said


def _times(history: History, speedup: float) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in COLUMNS[:2] else "right", no_wrap=True)
    for trail in _planned(history):
        plan = trail.facts.status.plan
        queued, ran, jct = trail.queued_seconds(), trail.running_seconds(), trail.completion_seconds()
        table.add_row(
            trail.name,
            f"{plan.gpus}×{plan.gpu_type}" if plan else "-",
            *(_seconds(value) for value in (queued, trail.starting_seconds(), ran, jct)),
            *(_scaled(value, speedup) for value in (queued, ran)),
            words.duration(plan.predicted.run_seconds) if plan else "-",
            _scaled(jct, speedup),
        )
    return table


def _about_times(speedup: float) -> str:
    return (
        f"HERE was measured, CLUSTER is {speedup:,g} times that. Only training is sped up, the control plane is not;\n"
        "and a fake pod's start is known to the second only, so that it may end up to a second early."
    )


def _gpus(history: History, speedup: float) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, use in sorted(history.gpus.items()):
        share = history.utilisation(name)
        hours = words.rate(use.held_seconds * speedup / 3600)
        grid.add_row(
            name, f"{use.total} GPUs", tables.bar(share, 30), f"{share:.0%} held by jobs", f"{hours} GPU hours"
        )
    return grid


def _hopeless(history: History) -> Iterator[RenderableType]:
    for trail in history.trails.values():
        pending = trail.facts.status.pending
        if trail.hopeless and pending:
            yield _title(f"Why {trail.name} cannot run", above=1)
            said = [(pending.reason.value, pending.message)]
            said += [("blocked by", blocker) for blocker in pending.blockers]
            said += [("what helps", hint) for hint in pending.alternatives]
            yield tables.pairs(said)


def _totals(history: History, speedup: float) -> Text:
    completed = [trail for trail in history.trails.values() if words.state(trail.facts) == "Completed"]
    queued = fmean(_known(trail.queued_seconds() for trail in completed))
    jct = fmean(_known(trail.completion_seconds() for trail in completed))
    pods = sum(len(trail.facts.status.plan.nodes) for trail in completed if trail.facts.status.plan)
    return Text(
        f"{len(completed)} of {len(history.trails)} jobs completed in {history.seconds:.1f} s "
        f"({words.duration(history.seconds * speedup)} in the cluster), {pods} pods bound; on average "
        f"{queued:.1f} s queued ({_scaled(queued, speedup)}), JCT {jct:.1f} s ({_scaled(jct, speedup)}).",
        "bold",
    )


def _planned(history: History) -> list[Trail]:
    return [trail for trail in history.trails.values() if trail.planned is not None]


def _known(values: Iterator[float | None]) -> Sequence[float]:
    return [value for value in values if value is not None] or [0.0]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _scaled(value: float | None, speedup: float) -> str:
    return "-" if value is None else words.duration(value * speedup)


def _title(text: str, above: int = 0) -> Text:
    return Text("\n" * above + text, "bold cyan")
