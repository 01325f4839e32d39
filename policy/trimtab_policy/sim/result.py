"""What came out of a simulated run: a record per job, who held which GPUs when, and what the decisions cost.

Times are seconds from the start of the simulation. Everything that is measured (`metrics`, `bounds`), drawn or compared
is a function of these values.
"""

from __future__ import annotations

from msgspec import Struct

from trimtab_policy.types import NodeShare, Snapshot


class JobRecord(Struct, frozen=True):
    """One job, from submission to completion."""

    uid: str
    application: str
    submitted: float
    started: float | None
    """First time that it held GPUs; None if it never did before the run was cut off."""
    finished: float | None
    """None if it was still there when the run was cut off."""
    gpu_seconds: float
    """Time that its GPUs were held, restarts and rounds to their end included."""
    productive_gpu_seconds: float
    """The part of it in which it computed and whose work was not lost."""
    restarts: int
    """Starts after the first."""
    isolated_seconds: float
    """What it would take alone on its share of the cluster, for finish-time fairness; 0 where unknown."""
    queue: str = ""
    priority: int = 0
    deadline: float | None = None


class Span(Struct, frozen=True):
    """GPUs that one job held without a change."""

    job: int
    """Index into `Run.jobs`."""
    begin: float
    end: float
    gpu_type: str
    shares: tuple[NodeShare, ...]


class Run(Struct, frozen=True):
    """One simulated run of one policy on one workload."""

    policy: str
    cluster: Snapshot
    """The empty cluster."""
    jobs: tuple[JobRecord, ...]
    """In the order of the workload."""
    spans: tuple[Span, ...]
    """In the order of their ends."""
    end: float
    """When the last job finished, or the run was cut off."""
    decision_seconds: tuple[float, ...]
    """Wall-clock time of each decision."""
    cpu_seconds: float
    lost_gpu_seconds: float = 0.0
    """GPU time whose work failures took away."""
