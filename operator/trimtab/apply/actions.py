"""The writes that a job's next step may consist of, as values. Each may be sent again without harm."""

from __future__ import annotations

from msgspec import Struct

from trimtab.api.status import JobStatus
from trimtab.apply.stops import StopResult
from trimtab.apply.transitions import JobEvent


class WriteStatus(Struct, frozen=True):
    """Replace the status; `happening` is what users and metrics are told once it is written."""

    status: JobStatus
    happening: JobEvent | None = None
    refused: tuple[str, ...] = ()
    """Nodes that kube-scheduler would not take for the plan that is given up."""
    outcome: StopResult | None = None
    """How a request to stop has come out."""


class CreateService(Struct, frozen=True):
    """Create the headless Service of the gang."""


class CreatePod(Struct, frozen=True):
    """Create the pod of a node rank."""

    rank: int


class BindPod(Struct, frozen=True):
    """Bind a pod to the node that the plan gives it."""

    name: str
    uid: str
    node: str


class ReleasePod(Struct, frozen=True):
    """Take our gate away from a pod, so that kube-scheduler binds it (to the one node that it is pinned to)."""

    name: str
    uid: str


class AdoptPod(Struct, frozen=True):
    """Make a pod that another controller has made, and that waits behind our gate, the one of a node rank."""

    name: str
    uid: str
    rank: int
    leader: str = ""
    """Where the pod of rank 0 can be reached; empty where it does not say it."""


class SuspendJob(Struct, frozen=True):
    """Suspend the job of another kind that this one stands in for: its controller ends the pods."""

    why: str


class ResumeJob(Struct, frozen=True):
    """Let the job of another kind go on that was suspended by us: its controller makes the pods."""

    shape: tuple[int, int] | None = None
    """So many pods, and GPUs of each, which the job is to say from then on; None where it keeps its own."""


class CreatePodGroup(Struct, frozen=True):
    """Tell kube-scheduler that the pods of the standing plan are one gang."""


class DeletePodGroup(Struct, frozen=True):
    """Delete the PodGroup of a plan that stands no more."""

    name: str
    uid: str


class CreateClaimTemplate(Struct, frozen=True):
    """Create the ResourceClaimTemplate by which the pods of the standing plan claim their GPUs."""


class DeleteClaimTemplate(Struct, frozen=True):
    """Delete the ResourceClaimTemplate of a plan that stands no more. Claims that were made from it stay, each as long
    as its pod."""

    name: str
    uid: str


class CreateComputeDomain(Struct, frozen=True):
    """Create the ComputeDomain of the standing plan: its nodes share an NVLink domain."""


class DeleteComputeDomain(Struct, frozen=True):
    """Delete the ComputeDomain of a plan that stands no more."""

    name: str
    uid: str


class AnnotatePod(Struct, frozen=True):
    """Tell a pod by when it is to have saved its state (RFC 3339); the empty text takes that back."""

    name: str
    uid: str
    deadline: str


class DeletePod(Struct, frozen=True):
    """Delete a pod that no plan wants; `force` when its node is gone and nobody would confirm the end."""

    name: str
    uid: str
    force: bool = False
    why: str = ""
    """What users are told of it, where its node may come back."""
    grace: int = 30
    """Seconds that it has to end, by its own spec. They are said in any case: else whoever had deleted it before, with
    any time that he liked, would have the last word."""


Action = (
    WriteStatus
    | CreateService
    | CreatePod
    | CreatePodGroup
    | CreateClaimTemplate
    | CreateComputeDomain
    | BindPod
    | ReleasePod
    | AdoptPod
    | SuspendJob
    | ResumeJob
    | AnnotatePod
    | DeletePod
    | DeletePodGroup
    | DeleteClaimTemplate
    | DeleteComputeDomain
)
Step = tuple[Action, ...]
