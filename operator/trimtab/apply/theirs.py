"""A gang whose pods another controller makes: that of a job of another kind, for which one of our own stands in. Pure.

    plan written -> where it has another shape than the job: that is suspended, and the shape written into it
                 -> the job is resumed, if we had suspended it -> its controller makes the pods, each behind our gate
                 -> pods of all ranks are there -> each is adopted: pinned to its node, and marked as part of the plan
                 -> once all are, bound as all pods of ours; for kube-scheduler, gates are taken away then

A pod that is adopted says by its labels whose gang it is of, and stays its own controller's: from then on it is what a
pod of ours is. Pods are not deleted to end such a gang: their controller would make others, and count a failure. The
job is suspended instead, with a note that it was we who did it. Only where it cannot be suspended, a PodGroup, pods of
the gang are deleted, and others are made that wait at the gate again. Pods that nothing of the job controls any more
(somebody has taken their owner away) would never end by suspending it: they are deleted, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct

from trimtab import names
from trimtab.api.status import JobStatus, Plan
from trimtab.apply import transitions
from trimtab.apply.actions import AdoptPod, ResumeJob, Step, SuspendJob
from trimtab.apply.gang_failures import FAILED, SUCCEEDED, GangFailure
from trimtab.kube.objects import Meta, PodObject

PODS_SECONDS = 120.0
"""A plan whose pods are not all there so long after it was written is given up: somebody else can use its GPUs."""
ORPHAN_SECONDS = 60.0
"""Age of a pod at which nobody is waited for any more who might control it."""
NOT_MADE = "PodsNotMade"
DIFFERENT = "PodsDiffer"


class TheirJob(Struct, frozen=True):
    """What a job of another kind says of itself, as far as its gang depends on it."""

    suspended: bool = False
    by_us: bool = False
    """It was suspended by Trimtab, and not by its user."""
    end: Literal["", "succeeded", "failed"] = ""
    """How it has ended, by its own controller's word; empty while it has not."""
    message: str = ""
    """What that says of it."""
    rests: bool = False
    """It is suspended by its controller's word, too."""
    shape: tuple[int, int] | None = None
    """Pods that it asks for, and GPUs of each, where its plan says both; None where they are its user's."""
    stays: bool = False
    """It cannot be suspended: its pods are deleted one by one, and whoever makes them makes others."""
    orphans: frozenset[str] = frozenset()
    """UIDs of pods of its gang that neither it controls nor what it controls: who suspends it does not end them."""
    waiting: Mapping[int, PodObject] = {}
    """Rank -> pod that its controller has made, behind our gate, and that is of no gang yet."""
    numbered: bool = True
    """Pods say which rank they are; else they have those that are left, in their order in `waiting`."""

    @property
    def suspended_by_user(self) -> bool:
        return self.suspended and not self.by_us

    def for_ranks(self, lacking: Sequence[int]) -> dict[int, PodObject]:
        """The pods that are waiting for these ranks, as many as there are."""
        if self.numbered:
            return {rank: self.waiting[rank] for rank in lacking if rank in self.waiting}
        return dict(zip(lacking, (self.waiting[number] for number in sorted(self.waiting)), strict=False))


def of_gang(pods: Iterable[PodObject], plan: Plan | None) -> tuple[PodObject, ...]:
    """Adopted pods that matter. Those of earlier plans that have ended stay as long as their job, for its controller
    counts them: they hold nothing, and nobody waits for them."""
    epoch = str(plan.epoch) if plan else ""
    return tuple(
        pod
        for pod in pods
        if pod.status.phase not in (SUCCEEDED, FAILED) or pod.metadata.labels.get(names.LABEL_EPOCH) == epoch
    )


def let_go(job: TheirJob, pods: Iterable[PodObject], why: str) -> Step:
    """Have these pods end: by suspending their job, which can be, unless they end anyhow."""
    if job.suspended or job.end or not any(pod.status.phase not in (SUCCEEDED, FAILED) for pod in pods):
        return ()
    return (SuspendJob(why),)


def left_alone(job: TheirJob, pods: Iterable[PodObject], now: float) -> tuple[PodObject, ...]:
    """Those of pods that are to end which nobody ends. What has made them may be seen a moment after them."""
    return tuple(
        pod
        for pod in pods
        if pod.metadata.uid in job.orphans
        and pod.status.phase not in (SUCCEEDED, FAILED)
        and now >= _born(pod) + ORPHAN_SECONDS
    )


def _born(pod: PodObject) -> float:
    """POSIX seconds."""
    return datetime.fromisoformat(pod.metadata.creation_timestamp).timestamp() if pod.metadata.creation_timestamp else 0


def take_in(job: TheirJob, plan: Plan, by_rank: Mapping[int, PodObject]) -> Step:
    """Bring the pods of the plan into the gang, once all are there; `by_rank` has those that are in it already.

    Where the job asks for other pods, it is suspended, and resumed with these: in one write, so that no controller ever
    sees half of it, and only once nothing of its former pods is left.
    """
    lacking = [rank for rank in range(len(plan.nodes)) if rank not in by_rank]
    if not lacking:
        return ()
    planned = other_shape(job, plan)
    if job.suspended:
        waits = not job.by_us or (planned and (job.waiting or not job.rests))
        return () if waits else (ResumeJob(planned),)
    if planned:
        return (SuspendJob(f"Shaped: it is to have {planned[0]} pods of {planned[1]} GPUs"),)
    pods = job.for_ranks(lacking)
    if len(pods) < len(lacking):
        return ()
    leader = _address(by_rank.get(0) or pods.get(0))
    return tuple(AdoptPod(pod.metadata.name, pod.metadata.uid, rank, leader) for rank, pod in pods.items())


def other_shape(job: TheirJob, plan: Plan) -> tuple[int, int] | None:
    """Pods of the plan, and GPUs of each, where the job has to say other ones first: those that it has made go."""
    shape = (len(plan.nodes), plan.nodes[0].gpus)
    return None if job.shape in (None, shape) else shape


def _address(pod: PodObject | None) -> str:
    """Name by which the others of its Service find a pod; empty where it is of none."""
    named = pod is not None and pod.spec.hostname and pod.spec.subdomain
    return f"{pod.spec.hostname}.{pod.spec.subdomain}" if pod and named else ""


def never_made(job: TheirJob, plan: Plan, pods: Iterable[PodObject], now: float) -> GangFailure | None:
    """Its controller does not make the pods that the plan is for."""
    here = list(pods)
    of_plan = [pod for pod in here if pod.metadata.labels.get(names.LABEL_EPOCH) == str(plan.epoch)]
    ranks = {pod.metadata.labels.get(names.LABEL_RANK) for pod in of_plan}
    open_ranks = [rank for rank in range(len(plan.nodes)) if str(rank) not in ranks]
    lacking = len(open_ranks) - len(job.for_ranks(open_ranks))
    if len(of_plan) < len(here) or lacking <= 0 or now < plan.created_time.timestamp() + PODS_SECONDS:
        return None  # pods of an earlier plan are still ending, and so nobody makes others
    why = f"{lacking} of {len(plan.nodes)} pods are not there {PODS_SECONDS:g} s after the plan was made"
    return GangFailure(NOT_MADE, f"{why}: see the events of the job that this one stands in for")


def different(pod: PodObject, gpus: int, plan: Plan, rank: int) -> GangFailure | None:
    """Why a pod is not the one that the plan is for, which counts its GPUs; `gpus` is what it asks for of the plan's
    resource. The node is left out of the next plans: there, GPUs are asked for otherwise."""
    node = plan.nodes[rank]
    if gpus == node.gpus:
        return None
    message = f"pod {pod.metadata.name} asks for {gpus} {plan.gpu_resource}, and its plan is for {node.gpus}"
    return GangFailure(DIFFERENT, message, refused=(node.name,))


def ended(job: TheirJob, status: JobStatus, meta: Meta, now: float) -> JobStatus:
    """The status of the stand-in once the job has ended, by its controller's word."""
    if job.end == "succeeded":
        return transitions.completed(status, meta, now)
    failure = GangFailure("JobFailed", job.message or "the job has failed")
    return transitions.failed(status, meta, failure, "its own controller does not try again", now)
