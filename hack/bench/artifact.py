"""The simulator against the artifact of Sia (SOSP 2023): the same workloads, policies, cluster and rounds.

What the artifact's own simulator says is in `artifact.yaml`: it was run once, on its Heterogeneous cluster of 64 GPUs.
Its data is not ours to ship: the folder with its `profiles` and workloads is named on the command line, and without it
there is nothing to compare. Sia breaks ties between equal assignments in an order that its solver leaves open; they are
broken by several seeds here, and the spread of what comes of that stands beside the mean.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.table import Table

from trimtab_lab.evaluation import workers
from trimtab_lab.evaluation.scenario import Scenario, ScenarioResult

CLUSTER = "sia-heterogeneous"
FIGURES = {"avg_jct_h": "avg JCT", "makespan_h": "makespan", "gpu_hours_per_job": "GPU-h/job"}
GOALS = {"sia": 0.05, "pollux": 0.10}
"""How far off a policy may be; 3 % where nothing is said. Those of Sia are met by its mean over workloads."""
DEFAULT_GOAL = 0.03
TIE_SEEDS = (None, 1, 2, 3, 4)
_TIES = ("sia",)


class Reference(Struct, frozen=True):
    """What the artifact says."""

    policy: str
    workload: str
    """FAMILY-NUMBER."""
    avg_jct_h: float
    makespan_h: float
    gpu_hours_per_job: float
    restarts_per_job: float
    cpu_seconds: float


class Line(Struct, frozen=True):
    """One policy on one workload: means over tie seeds."""

    reference: Reference
    figures: dict[str, float]
    spread: float
    """Largest average JCT less the smallest, over the mean, of the tie seeds."""
    cpu_seconds: float

    def error(self, figure: str) -> float:
        """Relative to the artifact."""
        return self.figures[figure] / float(getattr(self.reference, figure)) - 1


def measure(data: Path, processes: int, *, only: str = "") -> list[Line]:
    """Every run of the artifact again; `only` names a policy."""
    wanted = {ref: [*_scenarios(ref, data)] for ref in references() if only in ("", ref.policy)}
    todo = [scenario for each in wanted.values() for scenario in each]
    found: dict[Scenario, ScenarioResult] = {}
    for outcome in workers.processes(processes)(todo):
        found[outcome.scenario] = outcome
        print(f"{len(found)} of {len(todo)} runs", end="\r", file=sys.stderr, flush=True)
    return [_line(reference, [found[scenario] for scenario in each]) for reference, each in wanted.items()]


def available(data: Path) -> bool:
    """Whether the artifact's data is there."""
    return (data / "profiles").is_dir()


def references() -> list[Reference]:
    """All runs of the artifact."""
    return msgspec.yaml.decode((Path(__file__).parent / "artifact.yaml").read_bytes(), type=list[Reference])


def table(lines: list[Line]) -> Table:
    """Our figures, and how far they are from the artifact's."""
    shown = Table(title="simulator against Sia's artifact", title_justify="left", box=None, pad_edge=False)
    for name in ("POLICY", "WORKLOAD", *FIGURES.values(), "RESTARTS", "CPU s", "TIES"):
        shown.add_column(name, justify="left" if name in ("POLICY", "WORKLOAD") else "right")
    for line in lines:
        ref = line.reference
        figures = (f"{line.figures[name]:.3g} ({line.error(name):+.1%})" for name in FIGURES)
        restarts = f"{line.figures['restarts_per_job']:.2f} ({ref.restarts_per_job:.2f})"
        ties = f"±{line.spread / 2:.1%}" if line.spread else ""
        shown.add_row(ref.policy, ref.workload, *figures, restarts, f"{line.cpu_seconds:.1f}", ties)
    return shown


def goals(lines: list[Line]) -> Iterator[tuple[str, float, float]]:
    """(what, how far off, goal): the mean over workloads for Sia, the worst workload for the others."""
    for policy in dict.fromkeys(line.reference.policy for line in lines):
        mine = [line for line in lines if line.reference.policy == policy]
        for figure, said in FIGURES.items():
            errors = [line.error(figure) for line in mine]
            off = abs(statistics.fmean(errors)) if policy in GOALS else max(map(abs, errors))
            yield f"{policy}: {said}", off, GOALS.get(policy, DEFAULT_GOAL)


def _scenarios(ref: Reference, data: Path) -> Iterator[Scenario]:
    family, _, number = ref.workload.rpartition("-")
    trace = data / family / f"workload-{number}.csv"
    for seed in TIE_SEEDS if ref.policy in _TIES else (None,):
        name = ref.policy if seed is None else f"{ref.policy}@{seed}"
        yield Scenario(name, str(trace), CLUSTER, profiles=str(data / "profiles"))


def _line(reference: Reference, outcomes: list[ScenarioResult]) -> Line:
    def mean(figure: str) -> float:
        return statistics.fmean(outcome.summary[figure] for outcome in outcomes)

    times = [outcome.summary["avg_jct_h"] for outcome in outcomes]
    figures = {name: mean(name) for name in (*FIGURES, "restarts_per_job")}
    return Line(reference, figures, (max(times) - min(times)) / mean("avg_jct_h"), mean("cpu_seconds"))
