"""One clock for everything: where pods are fake they run a thousand times as fast, and the rest of the world does not.

What a snapshot of such a cluster tells of running jobs (when they began, when they end) it tells by the clock on the
wall. What is predicted for those that wait is in the time of the cluster. Whoever lives such a snapshot on, as the
simulator does, needs one of both: that of the cluster, in which jobs run as fast as predicted.
"""

from __future__ import annotations

from msgspec.structs import replace

from trimtab_policy.types import Job, Snapshot

MOMENTS = (
    *("created", "started", "expected_finish", "deadline"),
    *("movable_from", "stoppable_from", "not_before", "waits_since"),
)
"""Fields of a job that are points in time."""


def as_predicted(snapshot: Snapshot) -> Snapshot:
    """The same in the time of the cluster: what is n seconds away on the wall is n times `speedup` seconds away."""
    if snapshot.speedup == 1:
        return snapshot
    return replace(snapshot, jobs=tuple(_stretched(job, snapshot) for job in snapshot.jobs), speedup=1.0)


def _stretched(job: Job, snapshot: Snapshot) -> Job:
    now, by = snapshot.time, snapshot.speedup
    told = {name: getattr(job, name) for name in MOMENTS}
    moments = {name: now + (moment - now) * by for name, moment in told.items() if moment is not None}
    served = {gpu_type: seconds * by for gpu_type, seconds in job.served.items()}
    return replace(job, **moments, served=served, lost_seconds=job.lost_seconds * by, resuming=job.resuming * by)
