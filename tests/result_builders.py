"""Outcomes of simulated runs, made up: what evaluations are aggregated, shown and kept from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trimtab_lab.evaluation.scenario import Scenario, ScenarioResult
from trimtab_lab.workloads import clusters
from trimtab_policy.sim.result import JobRecord, Span
from trimtab_policy.types import NodeShare

CLUSTER = "T4=8x4,A100-SXM4-40GB=8"
NODES = [node.name for node in clusters.cluster(CLUSTER).nodes]
FIGURES = (
    "jobs", "unfinished", "avg_jct_h", "p50_jct_h", "p90_jct_h", "p99_jct_h", "makespan_h", "gpu_hours_per_job",
    "restarts_per_job", "cpu_seconds", "utilisation", "p99_rho", "worst_slowdown", "decision_ms_p50",
)  # fmt: skip
SLOWNESS = {"fcfs": 4.0, "srtf": 2.0, "las": 3.0}
"""Policy -> average JCT in hours of window 0; window n takes n + 1 times as long under all of them."""


def scenario(policy: str = "fcfs", load: float | None = 0.7, window: int = 0, **changes: object) -> Scenario:
    """A run of a generated workload that is not looked at."""
    defaults: dict[str, object] = {"trace": "generator:philly-like", "cluster": CLUSTER, "windows": 4}
    return Scenario(policy=policy, load=load, window=window, **(defaults | changes))


def outcome(
    one: Scenario, hours: float | None = None, *, regime: str = "run times known", **figures: float
) -> ScenarioResult:
    """What such a run may give: an average JCT of `hours`, bounds of a half and a quarter of the fastest policy's."""
    average = (hours or SLOWNESS.get(one.policy, 1.0)) * (one.window + 1)
    known = dict.fromkeys(FIGURES, 1.0) | {"avg_jct_h": average, "unfinished": 0.0, "utilisation": 1 / average}
    bound = 1.0 * (one.window + 1)
    records, spans = drawn() if one.spans else ((), ())
    return ScenarioResult(
        scenario=one,
        regime=regime,
        summary=known | figures,
        bounds_h={"LB0": bound, "LB1": bound / 2},
        jct_h=(average / 2, average, 1.5 * average),
        jobs=records,
        held=spans,
    )


def drawn() -> tuple[tuple[JobRecord, ...], tuple[Span, ...]]:
    """Three jobs: one on a T4 node, one on all T4, one that moves from there to the A100s."""
    spans = (
        span(0, 0, 3600, {NODES[0]: 2}),
        span(1, 3600, 7200, {NODES[0]: 4, NODES[1]: 4}),
        span(2, 0, 3600, {NODES[0]: 2}),
        span(2, 3600, 10800, {NODES[2]: 8}),
    )
    records = tuple(
        JobRecord(f"job-{number}", "gpt2", 0.0, 0.0, end, 100.0, 90.0, number // 2, 50.0)
        for number, end in enumerate((3600.0, 7200.0, 10800.0))
    )
    return records, spans


def span(job: int, begin: float, end: float, gpus: dict[str, int]) -> Span:
    """GPUs that a job held, by node."""
    kind = "A100-SXM4-40GB" if NODES[2] in gpus else "T4"
    return Span(job, begin, end, kind, tuple(NodeShare(name, count) for name, count in gpus.items()))


def fake(scenarios: Sequence[Scenario]) -> Iterator[ScenarioResult]:
    """Carries scenarios out at once; the last comes first, as from a machine that is faster than the others."""
    return map(outcome, reversed(scenarios))
