"""When a job's own object asks its gang to stop: its spec was edited away, or a fake trainer has been heard. And whose
pods a plan waits for, and for how long.

Pure functions of what was observed, for `controller.views`. Stops that a decision wants come from the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from msgspec import Struct

from trimtab import names
from trimtab.api import conditions
from trimtab.api.convert import to_placement
from trimtab.api.status import Leaving, Plan, StopRequest
from trimtab.apply.causes import CONFIG_SECONDS
from trimtab.apply.gang_failures import SUCCEEDED, GangFailure
from trimtab.apply.stops import StopOrder
from trimtab.apply.transitions import GangReport
from trimtab.kube.objects import PodObject
from trimtab.observe.jobs import JobFacts
from trimtab.observe.pods import OVERSTAY_SECONDS, TERMINAL, epoch_of
from trimtab.observe.queues import Queues
from trimtab.plan import fake
from trimtab_policy.placement.capacity import ALL_TYPES
from trimtab_policy.placement.limits import user_limits
from trimtab_policy.types import Requirements, StopCause


class Edited(Struct, frozen=True):
    """The spec was edited so that the standing plan is no longer allowed."""

    epoch: int
    why: str
    until: float
    """POSIX time at which the plan is replaced; infinite where it stays all the same."""

    def order(self, now: float) -> StopOrder | None:
        """The order to stop, once it is time."""
        if now < self.until:
            return None
        return StopOrder(epoch=self.epoch, cause=StopCause.SPEC_CHANGED, message=self.why)

    def note(self, now: float) -> str:
        """What is said while the gang runs on."""
        if now >= self.until:
            return ""
        if self.until == math.inf:
            return self.why
        return f"{self.why}; it is replaced at {datetime.fromtimestamp(self.until, UTC):%Y-%m-%dT%H:%M:%SZ}"


def edited(facts: JobFacts, queues: Callable[[], Queues] = Queues) -> Edited | None:
    """Whether the standing plan no longer meets the spec, and when it is replaced for that.

    A gang that runs keeps its plan for `minRuntimeSeconds`; and of many edits in a row not each one ends a gang.
    """
    plan, spec = facts.status.plan, facts.spec
    if plan is None or spec is None or facts.requirements is None or facts.finished:
        return None
    broken = _broken(facts, facts.requirements, plan) or _refused(facts, plan, queues)
    if broken is None:
        return _counted(facts, plan)
    begun = [record.time for record in facts.status.stops if record.cause is StopCause.SPEC_CHANGED]
    begun += [plan.created_time] if conditions.holds(facts.status.conditions, names.PODS_READY) else []
    latest = max((moment.timestamp() for moment in begun), default=-math.inf)
    why = f"the plan no longer meets the spec: {broken}"
    return Edited(plan.epoch, why, latest + spec.elasticity.min_runtime_seconds)


def _broken(facts: JobFacts, allowed: Requirements, plan: Plan) -> str | None:
    """What the spec does not allow any more, or asks for otherwise."""
    if plan.observed_generation == facts.meta.generation:
        return None
    for _, why in user_limits(allowed, to_placement(facts.meta.uid, plan)):
        return why
    if plan.terms and plan.terms.cpu_millis_per_gpu != allowed.cpu_milli_per_gpu:
        return f"its pods have {plan.terms.cpu_millis_per_gpu}m CPUs per GPU, other than spec.resources.cpusPerGpu"
    if plan.terms and plan.terms.memory_bytes_per_gpu != allowed.memory_per_gpu:
        had = plan.terms.memory_bytes_per_gpu
        return f"its pods have {had} bytes of memory per GPU, other than spec.resources.memoryPerGpu"
    return None


def _refused(facts: JobFacts, plan: Plan, queues: Callable[[], Queues]) -> str | None:
    """Why the queue that the spec names by now would not have the gang. That of the plan keeps it, whatever becomes of
    that queue."""
    named = facts.spec.queue if facts.spec else None
    if plan.terms is None or not named or named == plan.terms.queue:
        return None
    lines = queues()
    if refusal := lines.refusal(facts):
        return refusal.message
    for limit in lines.by_name[named].quotas:
        if limit.gpu_type in (ALL_TYPES, plan.gpu_type) and limit.gpus < plan.gpus:
            return f"spec.queue: Queue {named} has {limit.gpus} GPUs of type {limit.gpu_type}, this gang {plan.gpus}"
    return None


def _counted(facts: JobFacts, plan: Plan) -> Edited | None:
    """What is said of a gang that goes on although its job names another queue."""
    named = facts.spec.queue if facts.spec else None
    if plan.terms is None or not named or named == plan.terms.queue:
        return None
    against = f"queue {plan.terms.queue}" if plan.terms.queue else "no queue"
    return Edited(plan.epoch, f"spec.queue is {named} now: the gang counts against {against} until it ends", math.inf)


def grace(facts: JobFacts, order: StopOrder | None, most: float) -> float:
    """Seconds that a gang is given to save its state: what its spec asks for, at others' cost no more than `most`."""
    wanted = float(facts.spec.elasticity.checkpoint.grace_seconds) if facts.spec else 0.0
    for_others = order is not None and (order.beneficiary or order.cause in (StopCause.EVICTED, StopCause.IDLE))
    return min(wanted, most) if for_others and not facts.suspended else wanted


def due(facts: JobFacts, change: Edited | None, run: fake.FakeRun | None) -> float:
    """POSIX time at which the job's next step changes though nothing else does; infinite where it will not."""
    stop = facts.status.stop
    if stop is None:
        return change.until if change else math.inf
    saved = fake.answers_at(facts.meta, _told_at(stop)) if run else math.inf
    return min(stop.deadline_time.timestamp(), saved)


def start_due(facts: JobFacts, now: float, timeout: float) -> float:
    """POSIX time at which pods that are bound and do not run are to be judged (again); infinite where none are."""
    bound = conditions.find(facts.status.conditions, names.GANG_SCHEDULED)
    if bound is None or bound.status != "True" or conditions.holds(facts.status.conditions, names.PODS_READY):
        return math.inf
    began = bound.last_transition_time.timestamp()
    later = [moment for moment in (began + CONFIG_SECONDS, began + timeout) if moment > now]
    return min(later, default=now + max(1.0, timeout / 10))  # init containers have their time, and end unheard


def answer(facts: JobFacts, run: fake.FakeRun | None, pods: Iterable[PodObject], now: float) -> GangReport | None:
    """What a fake gang says that was asked to save its state: once it has done so, or its time is over.

    Nothing before: what is noted of the standing plan's gang counts as where it began (`fake.run_of`).
    """
    plan, stop = facts.status.plan, facts.status.stop
    if plan is None or stop is None or run is None or all(pod.status.phase == SUCCEEDED for pod in pods):
        return None
    said = fake.answer(facts.meta, run, _told_at(stop), now)
    if not said.done and now < stop.deadline_time.timestamp():
        return None
    return GangReport(
        epoch=plan.epoch,
        step=said.step,
        steps=run.steps,
        received=now,
        step_seconds=run.step_seconds,
        checkpoint_step=said.saved,
        checkpoint_time=now if said.done else None,
        acknowledged=said.done,
    )


def _told_at(stop: StopRequest) -> float:
    """From when on the gang has its time."""
    return (stop.renewed_time or stop.requested_time).timestamp()


def held_by(plan: Plan, pods_of: Callable[[str], Iterable[PodObject]]) -> Iterator[tuple[Leaving, PodObject]]:
    """Pods that still hold GPUs which the plan waits for: on its nodes, or on their way."""
    nodes = {"", *(node.name for node in plan.nodes)}
    for left in plan.waits_for or ():
        for pod in pods_of(left.digest or ""):
            if pod.spec.node_name in nodes and pod.status.phase not in TERMINAL and epoch_of(pod) <= left.epoch:
                yield left, pod


def leaving(plan: Plan, pods_of: Callable[[str], Iterable[PodObject]]) -> tuple[str, ...]:
    """Jobs (`namespace/name`) whose pods still hold GPUs that the plan waits for: on its nodes, or on their way."""
    return tuple(dict.fromkeys(left.job for left, _ in held_by(plan, pods_of)))


def without_room(plan: Plan, pod: PodObject, holder: JobFacts | None, now: float, most: float) -> GangFailure | None:
    """Why a plan waits for this pod no longer; None while it may still go in time.

    It has its grace to save its state, of which nobody waits for more than `most` seconds, and once it is deleted its
    grace to end. `holder` is the job whose pod it is, None where it is gone.
    """
    if pod.ends is not None:  # it may have been over before the plan was made, which has not waited for so long
        what, end = "is being deleted", max(pod.ends, plan.created_time.timestamp())
    else:
        what, end = "is not deleted", plan.created_time.timestamp()
        end += min(most, holder.spec.elasticity.checkpoint.grace_seconds if holder and holder.spec else 0.0)
        if holder and (stop := holder.status.stop):
            end = max(end, min(stop.deadline_time.timestamp(), _told_at(stop) + most))
    if now < end + OVERSTAY_SECONDS:
        return None
    where = f"on {pod.spec.node_name}" if pod.spec.node_name else "without a node"
    why = f"pod {pod.metadata.key} {where} {what} and still there {now - end:.0f} s after its time was over"
    return GangFailure("RoomNotMade", f"{why}: it holds GPUs that the plan was to have")


def left(facts: JobFacts) -> float:
    """Part of the steps that the next gang of the job has to do."""
    return 1 - facts.steps_done() / facts.training.steps if facts.training else 1.0


def saved_step(facts: JobFacts) -> int:
    """Step of the last checkpoint that is known of; 0 where none is."""
    observed = facts.status.observed
    return (observed.last_checkpoint_step or 0) if observed else 0
