"""How fast the simulator is: the kernel on up to a million rigid jobs, and environment steps of `Cluster-v0`.

All in CPU seconds of one process on one core, without compiling (once for each state of the sources). The jobs are
drawn by the workload generator as in Philly, at 90 % load of 64 GPUs; timed is everything from the trace to the columns
of the outcome. The environments are the default clusters of 64 GPUs, side by side; actions are drawn evenly from those
that are allowed, which is not timed; whatever a step does is: observation, mask, the next episode where one is over.

    hack/bench/run simulator                            # as a part of everything that is measured
    .venv/bin/python -m hack.bench.simulator costs.png  # with a picture of cost against jobs
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from trimtab_lab import kernel
from trimtab_lab.environments.cluster import ClusterVectorEnv
from trimtab_lab.kernel import Discipline
from trimtab_lab.workloads import clusters
from trimtab_lab.workloads.generator import rigid_trace
from trimtab_policy.types import Snapshot

CLUSTER = "V100-SXM2-16GB=64x8"
GPUS, LOAD = 64, 0.9
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
COPIES = (1, 16, 64, 256)
STEPS = 200_000


class Cost(Struct, frozen=True):
    """One discipline on so many jobs."""

    discipline: Discipline
    jobs: int
    cpu_seconds: float


class Stepping(Struct, frozen=True):
    """So many clusters in one vector environment."""

    copies: int
    steps_per_second: float
    """Of one cluster each, per CPU second."""


class Speeds(Struct, frozen=True):
    """All that was measured."""

    kernel: list[Cost]
    cluster: list[Stepping]

    def of(self, discipline: Discipline) -> list[Cost]:
        """By number of jobs."""
        return [cost for cost in self.kernel if cost.discipline is discipline]

    def growth(self, discipline: Discipline) -> float:
        """Exponent of cost against jobs, by least squares of logarithms: 1 is linear."""
        costs = self.of(discipline)
        jobs, seconds = np.log([cost.jobs for cost in costs]), np.log([cost.cpu_seconds for cost in costs])
        return float(np.polyfit(jobs, seconds, 1)[0])


def measure(sizes: Sequence[int] = SIZES, copies: Sequence[int] = COPIES, count: int = STEPS) -> Speeds:
    """Every discipline on every number of jobs, and `count` steps of each vector of environments."""
    cluster = clusters.cluster(CLUSTER)
    for discipline in Discipline:
        _cost(discipline, 100, cluster)
    spent = [_cost(discipline, jobs, cluster) for discipline in Discipline for jobs in sizes]
    _stepping(1, 10)
    return Speeds(spent, [_stepping(each, count) for each in copies])


def _cost(discipline: Discipline, jobs: int, cluster: Snapshot) -> Cost:
    trace = rigid_trace("philly-like", jobs, GPUS, LOAD, seed=0)
    began = time.process_time()
    kernel.simulate(discipline, kernel.rigid(discipline, trace, cluster), kernel.pools(cluster))
    return Cost(discipline, jobs, time.process_time() - began)


def _stepping(copies: int, count: int) -> Stepping:
    env = ClusterVectorEnv(copies)
    random, spent = np.random.default_rng(0), 0.0
    _, info = env.reset(seed=0)
    rounds = max(1, count // copies)
    for _ in range(rounds):
        mask = info["action_mask"]
        actions = (mask * random.random(mask.shape, dtype=np.float32)).argmax(axis=1)
        began = time.process_time()
        *_, info = env.step(actions)
        spent += time.process_time() - began
    return Stepping(copies, rounds * copies / spent)


def goals(speeds: Speeds) -> Iterator[tuple[str, float, float, bool]]:
    """What, figure, goal, and whether more is better."""
    first = speeds.of(Discipline.FCFS)[-1]
    yield f"{first.jobs:,} rigid jobs under FCFS, CPU s", first.cpu_seconds, 60.0 * first.jobs / 1e6, False
    for discipline in Discipline:
        yield f"{discipline}: cost grows as jobs to the power of", speeds.growth(discipline), 1.2, False
    fastest = max(each.steps_per_second for each in speeds.cluster)
    yield "steps of Cluster-v0 per CPU second", fastest, 20_000.0, True


def costs(speeds: Speeds) -> Table:
    """CPU seconds of every discipline, for people."""
    jobs = sorted({cost.jobs for cost in speeds.kernel})
    heads = ("DISCIPLINE", *(f"{each:,}" for each in jobs), "JOBS/S", "GROWTH")
    table = Table(*heads, title="rigid jobs, CPU s", title_justify="left", box=None, pad_edge=False)
    for discipline in Discipline:
        row = speeds.of(discipline)
        cells = (f"{cost.cpu_seconds:.3g}" for cost in row)
        rate = f"{row[-1].jobs / row[-1].cpu_seconds:,.0f}"
        table.add_row(discipline, *cells, rate, f"jobs^{speeds.growth(discipline):.2f}")
    return table


def steps(speeds: Speeds) -> Table:
    """Steps of every vector of environments, for people."""
    table = Table("CLUSTERS", "STEPS/CPU S", title="Cluster-v0", title_justify="left", box=None, pad_edge=False)
    for each in speeds.cluster:
        table.add_row(str(each.copies), f"{each.steps_per_second:,.0f}")
    return table


def picture(speeds: Speeds, path: Path) -> None:
    """Cost against jobs, both logarithmic, with a line of what is linear."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 5), layout="constrained")
    for discipline in Discipline:
        found = speeds.of(discipline)
        label = f"{discipline} (jobs^{speeds.growth(discipline):.2f})"
        axes.loglog([cost.jobs for cost in found], [cost.cpu_seconds for cost in found], "o-", label=label, lw=1, ms=3)
    ends = np.array([min(cost.jobs for cost in speeds.kernel), max(cost.jobs for cost in speeds.kernel)])
    fastest = min(cost.cpu_seconds / cost.jobs for cost in speeds.kernel)
    axes.loglog(ends, ends * fastest, ":", color="grey", label="linear")
    axes.set(xlabel="jobs", ylabel="CPU seconds", title=f"Philly-like jobs, load {LOAD:g} of {GPUS} GPUs")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    measured = measure()
    Console().print(costs(measured), steps(measured))
    if len(sys.argv) > 1:
        picture(measured, Path(sys.argv[1]))
