"""Which jobs of a trace can be simulated: a cluster can run them, and what policies shall be told is known."""

from __future__ import annotations

import numpy as np

from trimtab_lab.workloads.clusters import gpus_by_type
from trimtab_lab.workloads.table import TraceReport
from trimtab_lab.workloads.textfile import FileError
from trimtab_lab.workloads.trace import BoolArray, Trace
from trimtab_policy.types import Snapshot

TOO_LARGE = "gpus is more than the cluster has of any one type that the job may run on"
NO_ESTIMATE = "estimate is not known"
NO_SUCH_TYPE = "gpu_type is none that the cluster has"


def check_fits(trace: Trace, cluster: Snapshot, skip_bad: bool = False) -> tuple[Trace, TraceReport]:
    """The jobs that the cluster can run: it has a type that they may run on, and as many GPUs of it as they ask for.

    A job runs on one type at a time. Raises FileError for the first other job, unless those are to be skipped.
    """
    have = gpus_by_type(cluster)
    allowed = trace.gpu_types.values
    most = np.array(
        [max((have.get(name, 0) for name in types or have), default=0) for types in allowed], dtype=np.int64
    )
    room = most[trace.gpu_types.codes]
    absent, large = room == 0, (trace.gpus > room) & (room > 0)
    if not skip_bad:
        _complain(trace, absent | large, have)
    fitting = trace.take(~absent & ~large)
    counts = {NO_SUCH_TYPE: int(absent.sum()), TOO_LARGE: int(large.sum())}
    skipped = {reason: count for reason, count in counts.items() if count}
    return fitting, TraceReport(trace.source, "cluster", len(trace), len(fitting), skipped, {}, {})


def check_estimates(trace: Trace, skip_bad: bool = False) -> tuple[Trace, TraceReport]:
    """The jobs whose run time their user estimated. Raises FileError for the first other, unless those are skipped."""
    known = trace.estimate > 0
    if not (known.all() or skip_bad):
        at = int(np.argmin(known))
        problem = f"job {trace.name[at]} has none by its user: take --estimates true or a number, or skip such jobs"
        raise FileError(trace.source, int(trace.row[at]), "estimate", problem)
    told = trace.take(known)
    skipped = {NO_ESTIMATE: len(trace) - len(told)} if len(told) < len(trace) else {}
    return told, TraceReport(trace.source, "estimates", len(trace), len(told), skipped, {}, {})


def _complain(trace: Trace, bad: BoolArray, have: dict[str, int]) -> None:
    if not bad.any():
        return
    at = int(np.argmax(bad))
    job = next(iter(trace.take(slice(at, at + 1))))
    where = " or ".join(job.gpu_types) or "any type"
    there = ", ".join(f"{count} {name}" for name, count in have.items())
    problem = f"job {job.name} asks for {job.gpus} GPUs of {where}, the cluster has {there}: take a larger one or skip"
    raise FileError(trace.source, int(trace.row[at]), "gpus", f"{problem} such jobs")
