"""What the viewer sees during the run: a table that repaints itself, or plain lines where there is no terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table

from trimtab.observe.jobs import JobFacts
from trimtab.ui import tables, words
from trimtab.ui.terminal import Console, Text
from trimtab_local.demo.history import GpuUse, History, Trail

TYPES_PER_LINE = 2
FRAMES_PER_SECOND = 5


class LiveScreen:
    """One frame over the other; the last one stays."""

    def __init__(self, console: Console, speedup: float) -> None:
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._speedup = speedup
        self._painted = 0.0

    def __enter__(self) -> LiveScreen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, history: History) -> None:
        """Paint the moment, unless the last frame is too recent."""
        over = all(trail.over for trail in history.trails.values())
        if over or time.monotonic() - self._painted >= 1 / FRAMES_PER_SECOND:
            self._painted = time.monotonic()
            self._live.update(frame(history, self._speedup), refresh=True)


class PlainScreen:
    """A line for everything that happens."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, str] = {}

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, history: History) -> None:
        """Print what is new."""
        for name, trail in history.trails.items():
            state = words.state(trail.facts)
            if trail.decided and self._told.get(name) != state:
                self._told[name] = state
                self._console.print(f"{history.seconds:5.1f} s  {name:<22}{state}{_detail(trail)}", soft_wrap=True)


def frame(history: History, speedup: float) -> RenderableType:
    """The jobs, the GPUs by type, and what the waiting jobs wait for."""
    clock = f"{history.seconds:.1f} s, in the cluster {words.duration(history.seconds * speedup)}"
    jobs = [trail.facts for trail in history.trails.values()]
    waiting = [trail for trail in history.trails.values() if trail.planned is None and trail.facts.status.pending]
    parts: list[RenderableType] = [
        Text(clock, "dim"),
        tables.jobs(jobs, lambda facts: progress(history.trails[facts.meta.name], history.now, speedup), bars=True),
        Padding(_gpus(history.gpus), (1, 0)),
    ]
    parts += [Text.assemble((trail.name, "bold"), " ", _why(trail)) for trail in waiting]
    return Group(*parts)


def progress(trail: Trail, now: float, speedup: float) -> float | None:
    """Fraction of the predicted run that has passed since all pods ran; None for a job that does not run."""
    plan = trail.facts.status.plan
    if trail.ended is not None:
        return 1.0 if words.state(trail.facts) == "Completed" else None
    if plan is None or trail.running is None:
        return None
    return min(0.99, (now - trail.running) * speedup / max(1, plan.predicted.run_seconds))


def _gpus(gpus: dict[str, GpuUse]) -> Table:
    grid = Table.grid(padding=(0, 2))
    cells: list[RenderableType] = []
    for name, use in sorted(gpus.items()):
        share = use.held / use.total if use.total else 0.0
        cells += [name, tables.bar(share, 20), Text(f"{use.held}/{use.total}", justify="right")]
    per_line = 3 * TYPES_PER_LINE
    for start in range(0, len(cells), per_line):
        grid.add_row(*cells[start : start + per_line])
    return grid


def _why(trail: Trail) -> str:
    pending = trail.facts.status.pending
    return pending.message if pending else ""


def _detail(trail: Trail) -> str:
    """What to say beside the new state."""
    facts: JobFacts = trail.facts
    plan = facts.status.plan
    if trail.ended is not None:
        return ""
    if plan is None:
        return f": {_why(trail)}" if _why(trail) else ""
    where = words.nodes([node.name for node in plan.nodes])
    return f": {plan.gpus}×{plan.gpu_type}, {words.parallelism(plan)}, {where}" if trail.running is None else ""
