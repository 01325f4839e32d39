"""Snapshots replayed: what a policy, named as a contestant, makes of the jobs that are there."""

from __future__ import annotations

from trimtab_lab.evaluation import controls
from trimtab_lab.evaluation.contestant import Decider, contestant
from trimtab_policy.sim.controller import SimulatedController
from trimtab_policy.sim.engine import SimRules, Watch, simulate
from trimtab_policy.sim.replay import Case, jobs_of, nothing, sorted_out
from trimtab_policy.sim.result import Run
from trimtab_policy.types import Snapshot


def case(snapshot: Snapshot) -> Case:
    """Which jobs can be replayed. Raises NothingToReplay when none of them can."""
    found = sorted_out(snapshot)
    if not found.snapshot.jobs:
        raise nothing(found)
    return found


def live_on(start: Case, policy: str, *, preempt: bool = False, watch: Watch | None = None) -> Run:
    """Simulate from the moment of the snapshot, which is 0, until all jobs are done.

    The policy, named as a contestant, decides under the controller unless it is to decide as in its paper. With
    `preempt` all jobs count as elastic: a policy may stop, move and resize them, at the price of a restart. Raises
    UnknownPolicy, and what `simulate` raises.
    """
    who = contestant(policy)
    decides = controls.load(who.name)
    if who.decider is Decider.PAPER:
        return simulate(decides, jobs_of(start, preempt=preempt), start.cluster, SimRules(), watch)
    controller = SimulatedController(decides, elastic=lambda job: preempt or job.elastic, begin=start.cluster)
    return simulate(controller, jobs_of(start, preempt=True), start.cluster, SimRules(), watch)
