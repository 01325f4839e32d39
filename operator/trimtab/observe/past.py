"""The jobs of the last hours as they turned out: what a monitor of policies lives again.

How long a job held GPUs is a fact that Trimtab has seen itself, so this is what its size is worked out from: seconds of
its gangs over the predicted seconds of a step. Neither the steps that it stated nor those that it reported count once
it has run. Of one that has never run, or waits again, only what it states is known.

Where a job had several gangs, all of them count as the last one. Jobs whose objects were deleted are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from trimtab.api.v1alpha1 import ElasticPolicy
from trimtab.observe import eligibility
from trimtab.observe.jobs import JobFacts
from trimtab.observe.nodes import NodeFacts
from trimtab.observe.snapshot import Observation
from trimtab_policy.perf.restarts import restart_seconds
from trimtab_policy.sim import monitor
from trimtab_policy.sim.monitor import MonitorRules
from trimtab_policy.types import Job, Snapshot

MOST_JOBS = 2000
"""More are not simulated, whatever time there is: those that came last count ..."""
MOST_SHARE = MonitorRules().most_share
"""... of one namespace no more than this part, then."""


def window(observation: Observation, seconds: float) -> Snapshot:
    """The cluster as it is, empty, and the jobs that were there within the last `seconds`, as `sim.monitor.window`."""
    now = observation.snapshot
    begin = now.time - seconds
    takes = {node.name: observation.nodes[node.name] for node in now.nodes if node.name in observation.nodes}
    return monitor.window(now, _jobs(observation, takes, begin), begin)


def there_since(observation: Observation, begin: float) -> int:
    """Jobs that were there from `begin` on, a POSIX time."""
    return sum(_ended(facts, observation.snapshot) > begin for facts in observation.jobs.values())


def _jobs(observation: Observation, takes: Mapping[str, NodeFacts], begin: float) -> Iterator[Job]:
    now = observation.snapshot
    shown = {job.uid: job for job in now.jobs}
    there = [
        (facts, steps)
        for uid, facts in observation.jobs.items()
        if uid not in observation.refused and _ended(facts, now) > begin and _understood(facts)
        if (steps := _steps(facts, now, begin)) is not None
    ]
    there.sort(key=lambda each: each[0].created)
    for facts, steps in monitor.latest(there, lambda each: each[0].meta.namespace, MOST_JOBS, MOST_SHARE):
        job = shown.get(facts.meta.uid) or _finished(facts, takes)
        yield replace(job, training=replace(job.training, steps=steps))


def _understood(facts: JobFacts) -> bool:
    return facts.spec is not None and facts.model is not None and facts.training is not None


def _ended(facts: JobFacts, now: Snapshot) -> float:
    """When it completed or failed; now where it has not."""
    ended = facts.status.completion_time
    return ended.timestamp() if ended and facts.finished else now.time


def _steps(facts: JobFacts, now: Snapshot, begin: float) -> int | None:
    """Steps that it made, or has to make, from `begin` on; None where nothing is known, or it never wanted any."""
    status, training = facts.status, facts.training
    if training is None:
        return None
    if status.plan is None or status.start_time is None:
        if facts.finished or facts.suspended:
            return None
        return max(1, training.steps - facts.steps_done())
    ran = _ended(facts, now) - max(begin, status.start_time.timestamp())
    steps = max(0.0, ran) * now.speedup / (status.plan.predicted.step_milliseconds / 1000)
    return max(1, round(steps))


def _finished(facts: JobFacts, takes: Mapping[str, NodeFacts]) -> Job:
    """A job that no snapshot shows any more, or that comes back later."""
    plan, terms, spec = facts.status.plan, facts.terms, facts.spec
    cost = 0.0
    if plan and facts.model and facts.training:
        cost = restart_seconds(facts.model, facts.training, plan.node_count)
    return facts.as_job(
        created=facts.created,
        priority=terms.priority if terms else 0,
        elastic=bool(spec and spec.elasticity.policy is ElasticPolicy.ELASTIC),
        eligible=eligibility.eligible(facts.template["spec"], tuple(takes.values())),
        restart_seconds=cost,
    )
