"""Simulated runs for the command line: from what was typed to scenarios, and from scenarios to outcomes.

Whatever is wrong with the input is said before the first run. Outcomes are kept as they come, so that the same command
goes on where it was stopped. Modules of the simulator are imported when they are used: the command line starts without
the packages that they need.
"""

from __future__ import annotations

import math
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer
from msgspec.structs import replace

from trimtab.commands import simulation
from trimtab.errors import TrimtabError, UsageError
from trimtab.printable import say
from trimtab.ui.interrupts import interruptible
from trimtab_lab.evaluation.contestant import CONTROLS, contestant
from trimtab_lab.ui import evaluation as ui
from trimtab_policy import policy as registry
from trimtab_policy.types import Quota

if TYPE_CHECKING:
    from trimtab_lab.evaluation.scenario import Scenario, ScenarioResult
    from trimtab_lab.evaluation.store import Store
    from trimtab_lab.evaluation.workers import Work

EXIT_INTERRUPTED = 130


class RunPlan(NamedTuple):
    """Which runs are wanted: every policy on every window at every load."""

    base: Scenario
    """What they have in common."""
    policies: tuple[str, ...]
    loads: tuple[float | None, ...]
    drawn: bool
    """Whether the first window at the first load is kept in detail."""

    def scenarios(self) -> list[Scenario]:
        """Window by window, so that policies can be compared early."""
        first = self.loads[0]
        return [
            replace(
                self.base, policy=policy, load=load, window=window,
                spans=self.drawn and window == 0 and load == first,
            )
            for window in range(self.base.windows)
            for load in self.loads
            for policy in self.policies
        ]  # fmt: skip


class RunOptions(NamedTuple):
    """What the command line says about runs, as typed."""

    policies: str
    trace: str
    cluster: str
    load: str = ""
    windows: int = 1
    window_jobs: int = 500
    seed: int = 0
    profiles: Path | None = None
    knowledge: str = "fit"
    estimates: str = "true"
    round_seconds: float | None = None
    mtbf_hours: float | None = None
    straggler_mtbf_hours: float | None = None
    quotas: tuple[str, ...] = ()
    skip_bad: bool = False
    elastic: float | None = None
    size_error: float = 0.0


def plan(asked: RunOptions, *, drawn: bool) -> RunPlan:
    """Raises UsageError in one line for whatever is wrong with it, or with the files that it names."""
    policies, wanted_loads = names(asked.policies), loads(asked.load)
    with simulation.extras(), simulation.input_errors():
        if drawn:
            import_module("matplotlib")  # better now than after hours of simulation
        from trimtab_lab.evaluation.scenario import Scenario
        from trimtab_policy.sim.failures import FailureModel

        base = Scenario(
            policy=policies[0],
            trace=asked.trace,
            cluster=asked.cluster,
            windows=asked.windows,
            window_jobs=asked.window_jobs,
            seed=asked.seed,
            profiles=str(asked.profiles or ""),
            knowledge=asked.knowledge,
            estimates=asked.estimates,
            round_seconds=asked.round_seconds,
            misfortunes=FailureModel(
                gpu_mtbf_seconds=_seconds(asked.mtbf_hours),
                straggler_mtbf_seconds=_seconds(asked.straggler_mtbf_hours),
            ),
            quotas=tuple(map(quota, asked.quotas)),
            skip_bad=asked.skip_bad,
            elastic=asked.elastic,
            size_error=asked.size_error,
        )
        _check(base)
    return RunPlan(base, policies, wanted_loads, drawn)


def _seconds(hours: float | None) -> float:
    return math.inf if hours is None else 3600 * hours


def _check(base: Scenario) -> None:
    """Raises ValueError for what is wrong with the cluster or the trace; says what is left out of it."""
    from trimtab_lab.evaluation import workload

    for line in workload.left_out(replace(base, policy="")):
        say(line, error=True)
    workload.check_queues(replace(base, policy=""))


def names(text: str) -> tuple[str, ...]:
    """Policies as typed, with commas between: `evaluation.contestant` says how each is written. Raises UsageError."""
    wanted = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if not wanted:
        raise UsageError(f"--policies: name at least one of {', '.join(registry.names())}")
    for name in wanted:
        try:
            base = contestant(name).name
        except ValueError as error:
            raise UsageError(f"--policies: {error}") from error
        if base not in {*registry.names(), *CONTROLS}:
            raise UsageError(f"--policies: unknown policy {base!r}; registered are: {', '.join(registry.names())}")
    return wanted


def loads(text: str) -> tuple[float | None, ...]:
    """Offered loads as typed; none: as the trace has it. Raises UsageError."""
    found: list[float | None] = []
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            value = float(part)
        except ValueError as error:
            raise UsageError(
                f"--load: {part!r} is no number: write loads with commas between, such as 0.7,1.3"
            ) from error
        if not 0 < value < 100:
            raise UsageError(f"--load: {part} is out of range: 1 is all that the cluster can deliver")
        found.append(value)
    return tuple(dict.fromkeys(found)) or (None,)


def quota(text: str) -> Quota:
    """What one queue may hold, as typed. Raises UsageError."""
    from trimtab_policy.sim import gputypes

    head, _, gpus = text.rpartition("=")
    queue, _, kind = head.rpartition(":")
    if not (queue and kind and gpus.isdecimal()):
        raise UsageError(f"--quota: {text!r}: write QUEUE:TYPE=GPUS, such as research:T4=8, or * for all types")
    try:
        return Quota(queue, kind if kind == "*" else gputypes.resolve(kind).name, int(gpus))
    except gputypes.UnknownGpu as error:
        raise UsageError(f"--quota: {text!r}: {error.args[0]}") from error


def work(jobs: int, ray: str | None) -> Work:
    """Where runs are made."""
    with simulation.extras():
        from trimtab_lab.evaluation import workers

        return workers.ray_cluster(ray) if ray else workers.processes(jobs)


def outcomes(scenarios: Sequence[Scenario], make: Work, folder: Path | None) -> list[ScenarioResult]:
    """All outcomes, in the order of the scenarios: those that are kept in `folder`, and those that are made now.

    Ends the program with 130 when it is interrupted; what is ready by then is kept.
    """
    kept = _store(folder) if folder else None
    ready = {scenario: known for scenario in scenarios if kept and (known := kept.get(scenario))}
    missing = [scenario for scenario in scenarios if scenario not in ready]
    todo, done = (Counter(each.policy for each in some) for some in (scenarios, ready))
    try:
        with interruptible(), ui.runs(todo, done) as advance, run_errors():
            for outcome in make(missing) if missing else ():
                if kept:
                    kept.put(outcome)
                ready[outcome.scenario] = outcome
                advance(outcome.scenario.policy)
    except KeyboardInterrupt:
        stop_children()
        told = f"; {len(ready)} of {len(scenarios)} runs are kept in {folder}: the same command goes on from there"
        say(f"\ntrimtab: stopped{told if folder else ''}", error=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    return [ready[scenario] for scenario in scenarios]


@contextmanager
def run_errors() -> Iterator[None]:
    """As `simulation.run_errors`, for runs that are held against bounds and may be made elsewhere."""
    with simulation.extras():
        from trimtab_lab.bounds import BelowBound
        from trimtab_lab.evaluation.metrics import InconsistentRun

    try:
        with simulation.run_errors(BelowBound, InconsistentRun):
            yield
    except ConnectionError as error:
        raise UsageError(f"--ray: {error}") from error
    except BrokenExecutor as error:
        told = f"a process that made runs died, perhaps for want of memory: use fewer --jobs ({error})"
        raise TrimtabError(told) from error


def _store(folder: Path) -> Store:
    from trimtab_lab.evaluation.store import Store

    try:
        return Store(folder)
    except OSError as error:
        raise UsageError(f"--out: cannot write {folder}: {error.strerror}") from error


def stop_children() -> None:
    """Runs that were begun are of no use any more, and would be waited for."""
    for child in multiprocessing.active_children():
        child.terminate()
