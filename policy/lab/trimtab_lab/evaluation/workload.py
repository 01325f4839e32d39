"""The jobs of a scenario: read or drawn, cut into windows, brought to a load; and what of them is left out.

What several scenarios share (a trace, its windows) is kept for the next one in the same process.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from trimtab_lab.evaluation.scenario import GENERATED, Scenario, estimates
from trimtab_lab.workloads import TraceReport, check_fits, clusters, generator, read_trace, windows
from trimtab_lab.workloads.clusters import gpus_by_type
from trimtab_lab.workloads.fits import check_estimates
from trimtab_lab.workloads.trace import BoolArray, Trace
from trimtab_policy.types import Job, Snapshot

CLUSTER_V0 = "cluster-v0"
"""The generator of the jobs that agents are trained on."""
_NO_STEPS = "--size-error: jobs of a trace state no steps; --estimates says what is known of their run times"


class WindowWorkload(NamedTuple):
    """Jobs of one window, whatever they are simulated as."""

    trace: Trace | None
    """None where jobs are those of the live API: `described`. Estimates are in it only where policies see them."""
    described: tuple[Job, ...]
    measured: BoolArray
    seed: int


@lru_cache(maxsize=8)
def workload(scenario: Scenario) -> WindowWorkload:
    """The jobs of the scenario, whatever its policy. Raises ValueError in one line for bad files, and wrong names."""
    cluster = clusters.cluster(scenario.cluster)
    if scenario.trace.startswith(GENERATED):
        return _generated(scenario, cluster)
    trace, _ = _usable(scenario)
    gpus = sum(node.gpus for node in cluster.nodes)
    if scenario.windows > 1:
        return _window(trace, gpus, scenario)
    if scenario.load is None:
        return WindowWorkload(trace, (), np.ones(len(trace), dtype=np.bool_), scenario.seed)
    return WindowWorkload(windows.rescale(trace, gpus, scenario.load), (), windows.middle(len(trace)), scenario.seed)


def left_out(scenario: Scenario) -> list[str]:
    """What is wrong with the workload and left out of it, in lines. Raises as `workload`."""
    if not scenario.trace.startswith(GENERATED):
        _, reports = _usable(scenario)
        return [line for report in reports if report.skipped for line in report.lines()]
    name, largest = (
        scenario.trace.removeprefix(GENERATED),
        max(gpus_by_type(clusters.cluster(scenario.cluster)).values()),
    )
    workload(scenario)
    found = generator.too_large(name, largest) if name in generator.rigid_names() else []
    sizes = ", ".join(map(str, found))
    return [f"{scenario.trace}: jobs of {sizes} GPUs are not drawn: {largest} of one type are there"] if found else []


def check_queues(scenario: Scenario) -> None:
    """Raises ValueError for a quota of a queue that the workload has not got; else as `workload`."""
    if not scenario.quotas:
        return
    if scenario.trace.startswith(GENERATED):
        name = scenario.trace.removeprefix(GENERATED)
        there = set() if name == CLUSTER_V0 else set(generator.queues(name))
    else:
        there = set(_usable(scenario)[0].queue)
    if absent := sorted({each.queue for each in scenario.quotas} - there):
        known = ", ".join(sorted(there - {""})) or "none"
        raise ValueError(f"--quota: no job is in queue {', '.join(absent)}; queues of {scenario.trace}: {known}")


def _usable(scenario: Scenario) -> tuple[Trace, tuple[TraceReport, ...]]:
    """The jobs of a file that can be simulated, with the estimates that policies see."""
    told, skip = estimates(scenario.estimates), scenario.skip_bad
    if scenario.size_error:
        raise ValueError(_NO_STEPS)
    trace, rows = _read(scenario.trace, skip)
    trace, fits = check_fits(trace, clusters.cluster(scenario.cluster), skip)
    if not told.users:
        return trace.without_estimates(), (rows, fits)
    if scenario.profiles:
        raise ValueError("--estimates user: jobs with --profiles bring no estimates of their users")
    trace, guessed = check_estimates(trace, skip)
    return trace, (rows, fits, guessed)


def _window(trace: Trace, gpus: int, scenario: Scenario) -> WindowWorkload:
    jobs, count, seed = scenario.window_jobs, scenario.windows, scenario.seed
    if scenario.load is None:
        piece = windows.cut(trace, jobs, count, seed)[scenario.window]
        return WindowWorkload(piece, (), windows.middle(len(piece)), seed + scenario.window)
    found = windows.windows(trace, gpus, scenario.load, jobs=jobs, count=count, seed=seed)[scenario.window]
    return WindowWorkload(found.trace, (), found.measured, found.seed)


def _generated(scenario: Scenario, cluster: Snapshot) -> WindowWorkload:
    """Every window is drawn by a seed of its own, and only what the cluster can run."""
    name, jobs, load = scenario.trace.removeprefix(GENERATED), scenario.window_jobs, scenario.load or 1.0
    seed = int(np.random.SeedSequence(scenario.seed).generate_state(scenario.windows)[scenario.window])
    if estimates(scenario.estimates).users:
        raise ValueError(f"--estimates user: jobs of {scenario.trace} have no users who estimate them")
    if name == CLUSTER_V0:
        from trimtab_lab.workloads import cluster_v0  # like all environments it needs gymnasium

        return WindowWorkload(None, tuple(cluster_v0.jobs(jobs, cluster, load, seed)), windows.middle(jobs), seed)
    if name in generator.llm_names():
        described = tuple(generator.llm_jobs(name, jobs, cluster, load, seed))
        return WindowWorkload(None, described, windows.middle(jobs), seed)
    if name not in generator.rigid_names():
        known = ", ".join([CLUSTER_V0, *generator.llm_names(), *generator.rigid_names()])
        raise ValueError(f"trace {scenario.trace}: there is no such generator, there are {known}")
    if scenario.size_error:
        raise ValueError(_NO_STEPS)
    have = gpus_by_type(cluster)
    trace = generator.rigid_trace(name, jobs, sum(have.values()), load, seed, largest=max(have.values()))
    return WindowWorkload(trace, (), windows.middle(len(trace)), seed)


@lru_cache(maxsize=4)
def _read(path: str, skip_bad: bool) -> tuple[Trace, TraceReport]:
    return read_trace(path, skip_bad=skip_bad)
