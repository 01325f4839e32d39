"""A dumped snapshot lived on under a policy: what would become of the jobs that are there, if no others came.

Running jobs go on where they are, and waiting ones are decided; all times are the cluster's (`tempo`). Jobs that no
policy can do anything for are set aside: those that would not even start alone on the cluster, and those that run on
nodes of which the snapshot knows nothing. What a job that is set aside holds, it holds to the end: its GPUs are not
free, and count against the quota of its queue.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from trimtab_policy import policy as registry
from trimtab_policy.placement.runtime import due, quiet
from trimtab_policy.sim import llm
from trimtab_policy.sim.llm import LlmRules
from trimtab_policy.sim.node_accounts import NodeAccounts
from trimtab_policy.sim.speedup import as_predicted
from trimtab_policy.types import Job, Placement, Snapshot

OWN_SPEEDS = "brings speeds of its own, which only the simulation that it comes from can explain"


class NothingToReplay(ValueError):
    """A snapshot without a job that a policy could decide about."""


class Case(Struct, frozen=True):
    """What a replay starts from."""

    snapshot: Snapshot
    """With the jobs that are replayed, and no others."""
    set_aside: dict[str, str]
    """Names of the other jobs -> why."""
    held: tuple[Job, ...] = ()
    """Those of them that hold GPUs, with nothing known but what they hold (`placement.runtime.quiet`)."""

    @property
    def cluster(self) -> Snapshot:
        """What the simulation begins with: the jobs that are replayed, and what the others hold."""
        return replace(self.snapshot, jobs=(*self.snapshot.jobs, *self.held))


def nothing(found: Case) -> NothingToReplay:
    """What to tell whoever wants to see jobs of which there are none."""
    told = "; ".join(f"{name}: {why}" for name, why in found.set_aside.items()) or "none waits or runs"
    return NothingToReplay(f"the snapshot has no job that a policy could run: {told}")


def sorted_out(snapshot: Snapshot) -> Case:
    """Which jobs can be replayed; it may be that none can."""
    snapshot = as_predicted(snapshot)
    reasons = {job.uid: _lost(snapshot, job, job.placement) for job in snapshot.jobs if job.placement}
    held = tuple(quiet(job) for job in snapshot.jobs if job.placement and reasons[job.uid])
    empty = _empty(snapshot, {uid for uid, why in reasons.items() if not why}, held)
    reasons |= {job.uid: _unplaceable(empty, job) for job in snapshot.jobs if not job.placement}
    jobs = tuple(job for job in snapshot.jobs if not reasons[job.uid])
    aside = {f"{job.namespace}/{job.name}": why for job in snapshot.jobs if (why := reasons[job.uid])}
    return Case(replace(snapshot, jobs=jobs), aside, held)


def jobs_of(start: Case, *, preempt: bool) -> list[llm.LlmJob]:
    """The jobs to simulate. Those that run are as fast as they are seen to be: they end when they are expected to."""
    now = start.snapshot
    made = llm.jobs(now.jobs, now, LlmRules(preemptible=preempt, restarts_told=True))
    for job, simulated in zip(now.jobs, made, strict=True):
        if job.placement and (end := due(job, now.time)) is not None:
            simulated.ends_in_sight(job.placement, end - now.time - job.resuming)
    return made


def _empty(snapshot: Snapshot, lives_on: Collection[str], held: tuple[Job, ...]) -> Snapshot:
    """The cluster without those jobs (UIDs), and with no others than those that are set aside and hold GPUs: neither
    their GPUs nor their quota are free."""
    accounts = NodeAccounts(snapshot)
    for job in snapshot.jobs:
        if job.placement and job.uid in lives_on:
            accounts.give(job, job.placement)
    return replace(snapshot, nodes=accounts.nodes, jobs=held)


def _lost(snapshot: Snapshot, job: Job, held: Placement) -> str:
    """Why a running job cannot be replayed; empty if it can."""
    if job.speeds is not None:
        return OWN_SPEEDS
    known = {node.name for node in snapshot.nodes}
    if gone := next((share.node for share in held.shares if share.node not in known), ""):
        return f"runs on {gone}, which takes no new pods: no policy changes that"
    return _unpredictable(snapshot, job, held)


def _unplaceable(empty: Snapshot, job: Job) -> str:
    """Why a waiting job cannot be replayed; empty if it can."""
    if job.speeds is not None:
        return OWN_SPEEDS
    alone = registry.load("fcfs").decide(replace(empty, jobs=(*empty.jobs, replace(job, not_before=empty.time))))
    return "" if alone.placements else alone.pending[0].message


def _unpredictable(snapshot: Snapshot, job: Job, held: Placement) -> str:
    """Why nobody can say how fast a running job is; empty if its speed is known."""
    if held.gpu_type not in {node.gpu_type for node in snapshot.nodes}:
        return f"runs on {held.gpu_type}, of which the snapshot has no node"
    [simulated] = llm.jobs((job,), snapshot)
    try:
        simulated.rate(held)
    except ValueError as error:
        return f"runs as cannot be predicted: {error}"
    return ""
