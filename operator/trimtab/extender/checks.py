"""May this pod go there? The whole judgement of the extender, as pure functions.

A pod is ours when an LLMTrainingJob controls it, by its ownerReference: labels and annotations alone are anybody's. All
others pass untouched. A pod of ours goes to the node that the plan wrote into its annotation and nowhere else, as long
as that node is there, takes pods, and has its GPUs free.

kube-scheduler has counted the GPUs by then. Our own count is for the day when somebody tells it not to
(`ignoredByScheduler`), and because neither it nor pods/binding asks what a plan wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from trimtab import names
from trimtab.extender.wire import PodMeta
from trimtab.kube.objects import Meta


class Because(StrEnum):
    """Why a pod was refused, as the metric tells it."""

    NO_PLAN = "no_plan"
    ELSEWHERE = "elsewhere"
    UNKNOWN_NODE = "unknown_node"
    UNAVAILABLE = "unavailable"
    FULL = "full"


class PlaceClaim(Struct, frozen=True):
    """A pod of ours and the place that it claims."""

    namespace: str
    job: str
    uid: str
    """Of the pod."""
    node: str
    """Empty where the pod names none."""

    @property
    def gang(self) -> str:
        """The gang in words."""
        return f"gang {self.namespace}/{self.job}"


class GpuAvailability(Struct, frozen=True):
    """What is known of a node, and what a pod would find there."""

    unavailable: str
    """Why it takes no pods; empty when it does."""
    gpus: int
    free: int | None
    """GPUs that no other pod holds; None where kube-scheduler alone knows."""


class Ledger(Protocol):
    """What `pod_index.PodIndex` knows."""

    def availability(self, node: str, uid: str) -> GpuAvailability | None:
        """The node as this pod would find it; None when there is no such node."""


class AdmissionResult(Struct, frozen=True):
    """Refused with reasons, or not at all."""

    because: Because | None = None
    node: str = ""
    """Said of the node of the plan."""
    others: str = ""
    """Said of all other nodes."""

    @property
    def by_ledger(self) -> bool:
        """Whether only our copy of the cluster speaks against it, which may be a moment behind kube-scheduler's."""
        return self.because in (Because.UNKNOWN_NODE, Because.UNAVAILABLE, Because.FULL)


PASSED = AdmissionResult()


def claim(meta: PodMeta | Meta) -> PlaceClaim | None:
    """What a pod claims; None when it is not ours."""
    job = _job_of(meta)
    if job is None:
        return None
    node = (meta.annotations or {}).get(names.ANNOTATION_NODE)
    return PlaceClaim(meta.namespace or "", job, meta.uid or "", node or "")


def _job_of(meta: PodMeta | Meta) -> str | None:
    """Name of the job whose gang the pod is of, as `Meta.job` tells it; None where it is of none."""
    labels = meta.labels or {}
    if labels.get(names.LABEL_MANAGED) == "true":  # made by another controller
        return (labels.get(names.LABEL_JOB) or None) if labels.get(names.LABEL_JOB_UID) else None
    owner = next((owner for owner in meta.owner_references or () if owner.controller), None)
    if owner is None or owner.kind != names.JOB_KIND or not (owner.api_version or "").startswith(f"{names.GROUP}/"):
        return None
    return owner.name or ""


def judge(claim: PlaceClaim, gpus: int, offered: Callable[[str], bool], ledger: Ledger | None) -> AdmissionResult:
    """Whether a pod that asks for `gpus` may go where it claims its place to be.

    `offered` says whether a node is among those that kube-scheduler would take. Without a `ledger`, because the one we
    have cannot be trusted now, only the plan is looked at: kube-scheduler counts for itself.
    """
    if not claim.node:
        nowhere = f"a pod of {claim.gang} has no place in a plan"
        return AdmissionResult(Because.NO_PLAN, nowhere, nowhere)
    others = f"{claim.gang} has its place on {claim.node}"
    if not offered(claim.node):
        return AdmissionResult(Because.ELSEWHERE, others, others)
    if ledger is None:
        return PASSED
    found = ledger.availability(claim.node, claim.uid)
    because, why = _objection(found, gpus)
    return AdmissionResult(because, f"{claim.node}, the place of {claim.gang}, {why}", others) if because else PASSED


def _objection(found: GpuAvailability | None, gpus: int) -> tuple[Because | None, str]:
    if found is None:
        return Because.UNKNOWN_NODE, "does not exist"
    if found.unavailable:
        return Because.UNAVAILABLE, f"is {found.unavailable}"
    if found.free is not None and gpus > found.free:
        return Because.FULL, f"has {found.free} of {found.gpus} GPUs free, and {gpus} are needed"
    return None, ""
