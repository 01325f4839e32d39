"""What the status of a running job tells of what it would cost to stop it, and whether it may be stopped at all.

Nothing here is remembered: when a gang was asked to stop last, how long it has run and when it saved its work stand in
the status, so that a controller that starts anew knows as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from trimtab import names
from trimtab.api import conditions
from trimtab.api.convert import to_degrees, to_grants, to_placement
from trimtab.api.history import StopRecord
from trimtab.api.status import PlanParallelism
from trimtab.api.v1alpha1 import ElasticPolicy
from trimtab.observe.jobs import JobFacts
from trimtab.observe.node_usage import Claim
from trimtab_policy.perf.restarts import restart_seconds
from trimtab_policy.perf.votes import by_namespace, consensus
from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.placement.limits import narrowed
from trimtab_policy.types import Bounds, Requirements, StopCause

HOUR = 3600.0
COMES_UP_SECONDS = 120.0
"""A gang whose pods are all bound should run so soon. One that does not (an image that is large, or not there) is the
cheapest to stop, because it has nothing to lose: who is entitled to its GPUs need not wait for it."""
GAVE_WAY = (StopCause.PREEMPTED, StopCause.RECLAIMED, StopCause.YIELDED, StopCause.MOVED, StopCause.RESIZED)
"""Stops that nobody but the scheduler wanted."""
LARGEST_RATIO = 10.0
"""Of what a restart took to what it should take, and of its inverse. When it began and when it was over, the training
says: one that says so late would be as good as done for hours, and not be touched."""
NODE_GPUS = 8
"""GPUs of a usual node, to guess on how many nodes a waiting job will load its checkpoint."""


class Running(Struct, frozen=True):
    """What a job's own object tells of the gang that it has, and of those that it had."""

    claims: tuple[Claim, ...] = ()
    """What its plan gives it, and what the plan after it will."""
    movable_from: float = 0.0
    """POSIX time from which the gang may be stopped for the good of others, or its own; infinite while it is being
    started or stopped."""
    stoppable_from: float | None = None
    """POSIX time from which a gang that does not run yet may be stopped for those who are entitled to its GPUs."""
    elastic: bool = False
    """Whether policies may do so."""
    returns: float | None = math.nan
    """When others may count on its GPUs because it is being stopped; None where they are taken already, NaN where it is
    not being stopped."""
    requirements: Requirements | None = None
    """Of what the spec allows, what its checkpoint can be loaded with."""
    restart_seconds: float = 0.0
    """From a request to stop until it computes again: as it was measured, else as modelled."""
    restart_ratio: float | None = None
    """What was measured over what the model says; None where nothing was."""
    namespace: str = ""
    since: float = math.inf
    """When the gang began to run as a whole; infinite while it does not."""
    saved: float = math.inf
    """When it saved its work last, as far as it reports that; at first, when it began."""
    served: dict[str, float] = {}
    """GPU-seconds of the gangs before it, as far as the status tells: of all types together."""
    holds: tuple[str, int] | None = None
    """GPU type and GPUs of the gang; None without one."""

    def lost_seconds(self, now: float) -> float:
        """Work that a stop would lose if nothing were saved first."""
        return max(0.0, now - self.saved)

    def served_until(self, now: float) -> dict[str, float]:
        """GPU-seconds that the job has held: by type those of this gang, and those of its earlier ones."""
        if now <= self.since or self.holds is None:
            return self.served
        gpu_type, gpus = self.holds
        return {**self.served, gpu_type: (now - self.since) * gpus}


class Mobility(Struct, frozen=True):
    """Which running jobs may be moved at all."""

    per_hour: int = 2
    """A job gives way to others at most so often in an hour."""
    most_runtime: float = 3600.0
    """A plan is kept for no longer than this at others' cost, whatever its job says."""
    elastic: bool = True
    """Whether jobs that say so (`elasticity.policy: Elastic`) are stopped, moved and resized by policies."""
    speedup: float = 1.0
    """Pods run so many times as fast as predicted: other than 1 only where they are fake."""
    fake: bool = False
    """Whether they are: then nothing is learnt from how soon they are back."""


def read_running(facts: JobFacts, rules: Mobility) -> Running:
    """Everything of the above."""
    since, modelled, claims = _since(facts), _restart_seconds(facts), _claims(facts)
    measured = None if rules.fake or not modelled else measured_restart(facts)
    ratio = None if measured is None else max(1 / LARGEST_RATIO, min(LARGEST_RATIO, measured / modelled))
    return Running(
        claims=claims,
        movable_from=_movable_from(facts, rules),
        stoppable_from=_stoppable_from(facts, rules),
        elastic=rules.elastic and facts.spec is not None and facts.spec.elasticity.policy is ElasticPolicy.ELASTIC,
        returns=_returns(facts),
        requirements=startable(facts),
        restart_seconds=modelled if ratio is None else ratio * modelled,
        restart_ratio=ratio,
        namespace=facts.meta.namespace,
        since=since,
        saved=_saved(facts, since),
        served=_served(facts),
        holds=(claims[0].placement.gpu_type, claims[0].placement.gpus) if claims else None,
    )


def broken(facts: JobFacts, error: Exception) -> Running:
    """A job of which no more can be made than what its plan gives it: nobody touches it."""
    return Running(claims=_claims(facts), movable_from=math.inf, returns=None, requirements=facts.requirements)


def _claims(facts: JobFacts) -> tuple[Claim, ...]:
    plan, stop = facts.status.plan, facts.status.stop
    if plan is None or not facts.holds_gpus:
        return ()
    uid, own = facts.meta.uid, facts.meta.identity.digest
    after = [(left.digest, left.epoch) for left in plan.waits_for or () if left.digest]
    if plan.epoch > 1 and not conditions.holds(facts.status.conditions, names.GANG_SCHEDULED):
        after.append((own, plan.epoch - 1))  # pods of its own that are still ending
    found = [Claim(uid, plan.epoch, to_placement(uid, plan), tuple(after), to_grants(plan.terms))]
    if stop and stop.successor:
        then = stop.successor
        waits = *((left.digest, left.epoch) for left in then.waits_for or () if left.digest), (own, plan.epoch)
        found.append(Claim(uid, then.epoch, to_placement(uid, then), waits, to_grants(then.terms)))
    return tuple(found)


def _movable_from(facts: JobFacts, rules: Mobility) -> float:
    plan, status, spec = facts.status.plan, facts.status, facts.spec
    if plan is None or spec is None:
        return 0.0
    if status.stop or facts.suspended or not conditions.holds(status.conditions, names.PODS_READY):
        return math.inf
    ran = plan.created_time.timestamp() + min(spec.elasticity.min_runtime_seconds, rules.most_runtime)
    return max(ran, _again(facts, rules))


def _stoppable_from(facts: JobFacts, rules: Mobility) -> float | None:
    """While it comes: not before all of its pods have their nodes. Until then it may wait for others to leave, which
    would have been stopped for nothing."""
    status = facts.status
    bound = conditions.find(status.conditions, names.GANG_SCHEDULED) if status.plan else None
    if bound is None or bound.status != "True" or conditions.holds(status.conditions, names.PODS_READY):
        return None
    if status.stop or facts.suspended or not rules.per_hour:
        return None
    return max(bound.last_transition_time.timestamp() + COMES_UP_SECONDS, _again(facts, rules))


def _again(facts: JobFacts, rules: Mobility) -> float:
    """From when on it may give way again, which is not to happen too often."""
    stops = sorted({stop.epoch: stop.time.timestamp() for stop in _ended(facts) if gave_way(stop)}.values())
    if len(stops) < rules.per_hour:
        return 0.0
    return stops[-rules.per_hour] + HOUR if rules.per_hour else math.inf


def gave_way(stop: StopRecord) -> bool:
    """Whether it was for somebody else: a job is not to have too many of these. What it gains by itself costs others
    nothing that they would have to make good."""
    return stop.cause in GAVE_WAY and stop.beneficiary is not None


def _returns(facts: JobFacts) -> float | None:
    stop = facts.status.stop
    if stop is None:
        return math.nan
    return None if stop.beneficiary or stop.successor else stop.deadline_time.timestamp()


def startable(facts: JobFacts) -> Requirements | None:
    """What the spec allows, and its checkpoint can be loaded with."""
    allowed, saved = facts.requirements, pinned(facts)
    if allowed is None:
        return None
    if saved is not None:
        return narrowed(allowed, to_degrees(saved))
    last = _degrees(facts)
    if last is None or allowed.zero_stage is not None or allowed.zero_stages.admits(last.zero_stage):
        return allowed
    # Its checkpoint has the format of Megatron-FSDP, see `to_requirements`.
    return replace(allowed, zero_stages=Bounds(2, 3))


def pinned(facts: JobFacts) -> PlanParallelism | None:
    """The degrees that the next gang must have as well: those of its checkpoint, or of the gang that runs, for that
    will save one when it is asked to stop. None where checkpoints can be resharded, or there is none."""
    return None if facts.spec is None or facts.spec.elasticity.checkpoint.resharding else _degrees(facts)


def _degrees(facts: JobFacts) -> PlanParallelism | None:
    status = facts.status
    runs = status.plan if conditions.holds(status.conditions, names.PODS_READY) else None
    return runs.parallelism if runs else status.degrees


def measured_restart(facts: JobFacts) -> float | None:
    """Seconds from a request to stop until the job computed again: the median of its own stops; None without any."""
    known = [
        record.save_seconds + record.start_seconds
        for record in facts.status.stops
        if record.save_seconds is not None and record.start_seconds is not None
    ]
    return float(median(known)) if known else None


class UsualRatio:
    """What restarts cost here over what the model says, for jobs that were never stopped: as those of their own
    namespace took, else as several other namespaces agree; 1 where they do not."""

    def __init__(self, jobs: Iterable[Running] = ()) -> None:
        known = ((job.namespace, job.restart_ratio) for job in jobs if job.restart_ratio is not None)
        self._own = by_namespace(known)
        self._all = consensus(self._own.values(), neutral=1.0)

    def of(self, namespace: str) -> float:
        """That of a job of this namespace."""
        return self._own.get(namespace, self._all)


def _restart_seconds(facts: JobFacts) -> float:
    if facts.model is None or facts.training is None or facts.requirements is None:
        return 0.0
    plan = facts.status.plan
    nodes = plan.node_count if plan else math.ceil(facts.requirements.gpus.high / NODE_GPUS)
    return restart_seconds(facts.model, facts.training, nodes)


def _since(facts: JobFacts) -> float:
    ready = conditions.find(facts.status.conditions, names.PODS_READY) if facts.status.plan else None
    return ready.last_transition_time.timestamp() if ready and ready.status == "True" else math.inf


def _saved(facts: JobFacts, since: float) -> float:
    plan, observed = facts.status.plan, facts.status.observed
    told = observed.last_checkpoint_time if plan and observed and observed.epoch == plan.epoch else None
    return max(since, told.timestamp()) if told else since


def _served(facts: JobFacts) -> dict[str, float]:
    status, stops = facts.status, _ended(facts)
    if not stops or status.start_time is None or status.degrees is None:
        return {}
    seconds = stops[-1].time.timestamp() - status.start_time.timestamp()
    return {ALL_TYPES: max(0.0, seconds) * to_degrees(status.degrees).gpus}


def _ended(facts: JobFacts) -> list[StopRecord]:
    """Requests to stop that gangs before this one have met. One that was taken back is kept, too, and cost little."""
    plan = facts.status.plan
    return [stop for stop in facts.status.stops if plan is None or stop.epoch < plan.epoch]
