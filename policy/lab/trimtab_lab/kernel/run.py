"""From arrays back to values: a kernel's outcome as the `Run` that metrics, bounds and pictures are functions of.

Values are Python objects: about 2 µs per job, and as much per allocation. For a million jobs leave `spans` out (metrics
that need them, fragmentation and pictures, are then not to be had), or stay with `kernel.KernelResult`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from trimtab_lab import kernel
from trimtab_lab.kernel import Discipline, KernelResult
from trimtab_lab.kernel.heap import Floats
from trimtab_lab.rigid import RigidRules
from trimtab_lab.workloads.trace import Trace
from trimtab_policy.sim.result import JobRecord, Run, Span
from trimtab_policy.types import NodeShare, Snapshot


def run_kernel(
    discipline: Discipline, trace: Trace, cluster: Snapshot, rules: RigidRules | None = None, *, spans: bool = True
) -> Run:
    """What the engine finds for the policy of this name. `cluster` must be empty; raises as `kernel.simulate`."""
    rules = rules or RigidRules()
    first = rules.restart_seconds if rules.first_start_costs else 0.0
    given = kernel.rigid(discipline, trace, cluster, rules)
    outcome = kernel.simulate(
        discipline, given, kernel.pools(cluster), kernel.KernelRules(first, rules.restart_seconds)
    )
    return Run(
        policy=str(discipline),
        cluster=replace(cluster, jobs=()),
        jobs=_records(trace, cluster, rules, outcome),
        spans=_spans(cluster, outcome) if spans else (),
        end=float(outcome.finished.max(initial=0.0)),
        decision_seconds=(),
        cpu_seconds=outcome.cpu_seconds,
    )


def _records(trace: Trace, cluster: Snapshot, rules: RigidRules, outcome: KernelResult) -> tuple[JobRecord, ...]:
    stay = outcome.finished - trace.submitted
    contention = np.maximum(1.0, _company(trace.submitted, outcome.finished) / stay)
    columns = (
        trace.name.tolist(),
        [application or "job" for application in trace.application],
        trace.submitted.tolist(),
        outcome.started.tolist(),
        outcome.finished.tolist(),
        outcome.gpu_seconds.tolist(),
        outcome.productive_gpu_seconds.tolist(),
        outcome.restarts.tolist(),
        _isolated(trace, cluster, rules.type_speeds, contention).tolist(),
        trace.queue,
        [0] * len(trace),
        [None if np.isnan(deadline) else deadline for deadline in trace.deadline.tolist()],
    )
    return tuple(map(JobRecord, *columns))


def _company(submitted: Floats, finished: Floats) -> Floats:
    """Integral of the number of jobs in the system over each job's stay, (jobs,)."""
    times = np.concatenate([submitted, finished])
    order = np.argsort(times, kind="stable")
    present = np.cumsum(np.where(order < len(submitted), 1, -1))
    area = np.zeros(len(times))
    area[order[1:]] = np.cumsum(present[:-1] * np.diff(times[order]))
    return area[len(submitted) :] - area[: len(submitted)]


def _isolated(trace: Trace, cluster: Snapshot, speeds: Mapping[str, float], contention: Floats) -> Floats:
    """As `sim.active` has it: time alone on 1 / contention of the cluster, mean over the types, weighted by GPUs."""
    total, weights = np.zeros(len(trace)), np.zeros(len(trace))
    for name in cluster.gpu_types:
        gpus = sum(node.gpus for node in cluster.nodes if node.gpu_type == name)
        allowed = np.array([not types or name in types for types in trace.gpu_types.values])[trace.gpu_types.codes]
        rate = speeds.get(name, 1.0) * np.minimum(1.0, gpus / contention / trace.gpus)
        total += np.where(allowed, gpus * trace.seconds / rate, 0.0)
        weights += np.where(allowed, gpus, 0)
    return total / weights


def _spans(cluster: Snapshot, outcome: KernelResult) -> tuple[Span, ...]:
    """In the order of their ends."""
    types, names, spans = sorted(cluster.gpu_types), [node.name for node in cluster.nodes], outcome.spans
    parts = list(map(NodeShare, map(names.__getitem__, spans.node.tolist()), spans.gpus.tolist()))
    order = np.argsort(spans.end, kind="stable")
    columns = (spans.job, spans.begin, spans.end, spans.gpu_type, spans.first[:-1], spans.first[1:])
    rows = zip(*(column[order].tolist() for column in columns), strict=True)
    return tuple(Span(job, begin, end, types[kind], tuple(parts[at:to])) for job, begin, end, kind, at, to in rows)
