"""What is written to a Workload next: a pure function of the job and of what the Workload says.

    none there                         ask                      Create
    edited while it waits              ask otherwise            Amend
    evicted, and no pod is left        give the quota back      Tell
    of no use for the edited job       withdraw, to ask anew    Withdraw
    suspended, or no label any more    withdraw                 Withdraw
    running, or no longer              PodsReady                Tell
    on fewer GPUs than admitted        reclaimablePods          Tell
    ended                              Finished                 Tell

On eviction Kueue leaves it to a job's integration to say when its quota is free: QuotaReserved becomes False only when
no pod of the gang is left, for until then the GPUs are not (Kueue 0.19, jobframework/reconciler.go, step 6). Nothing is
kept from one look to the next: a controller that dies between two writes goes on from what it reads. Statuses are
patched over the very version that they were derived from.
"""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import Struct

from trimtab import names
from trimtab.interop import request
from trimtab.interop.request import KueueRequest
from trimtab.interop.workload import (
    ADMITTED,
    EVICTED,
    FINISHED,
    PODS_READY,
    PODSET,
    QUOTA_RESERVED,
    REQUEUED,
    Json,
    Workload,
    WorkloadCondition,
)

_REQUEUED_AT_ONCE = ("Preempted", "NodeFailures")
"""Evictions after which a Workload is in line again without anybody's doing."""
_MESSAGE_LIMIT = 1024
"""Bytes of a condition's message that Kueue keeps."""


class Create(Struct, frozen=True):
    """Create this Workload."""

    workload: Json


class Amend(Struct, frozen=True):
    """Merge this into the Workload, unless it has changed meanwhile."""

    patch: Json


class Tell(Struct, frozen=True):
    """Merge this into its status, unless it has changed meanwhile."""

    patch: Json


class Withdraw(Struct, frozen=True):
    """Delete the Workload with this UID."""

    uid: str


Write = Create | Amend | Tell | Withdraw


class WorkloadPair(Struct, frozen=True, kw_only=True):
    """A job and its Workload, as far as the next write depends on them."""

    workload: Workload | None
    ask: KueueRequest | None
    """None for a job that wants nothing of Kueue: suspended, or without the label (any more)."""
    living: bool
    """It has a plan, or pods."""
    running: bool = False
    """All pods of its gang run."""
    gpus: int = 0
    """Of its plan."""
    elastic: bool = False
    """It may want more GPUs while it runs."""
    ended: tuple[bool, str] | None = None
    """Whether it has completed (else: failed for good), and a word on that."""
    now: float = 0.0
    """POSIX seconds."""


def next_write(case: WorkloadPair) -> Write | None:
    """What to write now; None when there is nothing until something changes."""
    workload, ask = case.workload, case.ask
    if workload is None:
        return Create(request.workload(ask)) if ask and case.ended is None else None
    if workload.meta.deletion_timestamp or workload.holds(FINISHED):
        return None
    if case.ended is not None:
        return None if case.living else _finish(workload, *case.ended, case.now)
    if workload.reserved and workload.holds(EVICTED):
        return None if case.living else _give_back(workload, case.now)
    if ask is None or (workload.reserved and not request.serves(workload, ask)):
        return None if case.living else Withdraw(workload.meta.uid)
    if not workload.reserved:
        return None if request.asks(workload, ask) else _amend(workload, ask)
    return _report(workload, case)


def _amend(workload: Workload, ask: KueueRequest) -> Amend:
    wanted = request.spec(ask)
    meta = {
        "resourceVersion": workload.meta.resource_version,
        "annotations": {names.ANNOTATION_ASKED: request.digest(wanted)},
    }
    return Amend({"metadata": meta, "spec": {"priorityClassRef": None, **wanted}})


def _finish(workload: Workload, completed: bool, message: str, now: float) -> Tell:
    reason = "Succeeded" if completed else "Failed"
    return _tell(workload, now, (FINISHED, True, reason, message))


def _give_back(workload: Workload, now: float) -> Tell:
    """The quota of an evicted job whose last pod is gone."""
    evicted = workload.condition(EVICTED)
    reason, message = (evicted.reason, evicted.message) if evicted else ("", "")
    said = [
        (REQUEUED, reason in _REQUEUED_AT_ONCE, reason, message),
        (QUOTA_RESERVED, False, "Pending", message),
        (ADMITTED, False, "NoReservation", "The workload has no reservation"),
    ]
    if workload.holds(PODS_READY):
        said.append((PODS_READY, False, "WaitForStart", "Not all pods are ready or succeeded"))
    patch = _tell(workload, now, *said).patch
    patch["status"] |= {"admission": None, "reclaimablePods": None}
    if since := _admitted_since(workload):
        past = workload.status.get("accumulatedPastExecutionTimeSeconds", 0)
        patch["status"]["accumulatedPastExecutionTimeSeconds"] = past + max(0, int(now - since))
    return Tell(patch)


def _report(workload: Workload, case: WorkloadPair) -> Tell | None:
    """Whether the gang of an admitted job runs, and the GPUs that it will not need while it does."""
    changes: Json = {}
    ready = workload.condition(PODS_READY)
    if case.running != workload.holds(PODS_READY) and (case.running or ready):
        changes = _tell(workload, case.now, _readiness(ready, case.running)).patch["status"]
    if case.running and not case.elastic and case.gpus < workload.gpus:
        others = [each for each in workload.status.get("reclaimablePods", ()) if each["name"] != PODSET]
        changes["reclaimablePods"] = [*others, {"name": PODSET, "count": workload.count - case.gpus}]
    return Tell(_over(workload, changes)) if changes else None


def _readiness(before: WorkloadCondition | None, running: bool) -> tuple[str, bool, str, str]:
    """PodsReady with Kueue's own reasons: the first start of an admission, and every later one."""
    again = before is not None and before.reason in ("WaitForRecovery", "Recovered")
    if running:
        message = "All pods reached readiness and the workload is running"
        return PODS_READY, True, "Recovered" if again else "Started", message
    return PODS_READY, False, "WaitForRecovery", "At least one pod has failed, waiting for recovery"


def _tell(workload: Workload, now: float, *said: tuple[str, bool, str, str]) -> Tell:
    """A patch of the status that sets these conditions (type, status, reason, message) and keeps all others."""
    conditions: dict[str, Json] = {each["type"]: each for each in workload.status.get("conditions", ())}
    for kind, value, reason, message in said:
        before, status = conditions.get(kind, {}), "True" if value else "False"
        moved = before.get("status") != status
        conditions[kind] = {
            "type": kind,
            "status": status,
            "reason": reason or "Unknown",
            "message": message.encode()[:_MESSAGE_LIMIT].decode(errors="ignore"),
            "observedGeneration": workload.meta.generation,
            "lastTransitionTime": _moment(now) if moved else before["lastTransitionTime"],
        }
    return Tell(_over(workload, {"conditions": list(conditions.values())}))


def _over(workload: Workload, changes: Json) -> Json:
    return {"metadata": {"resourceVersion": workload.meta.resource_version}, "status": changes}


def _admitted_since(workload: Workload) -> float | None:
    """POSIX time of its admission; None where it is not admitted."""
    condition = workload.condition(ADMITTED)
    if condition is None or condition.status != "True" or not condition.last_transition_time:
        return None
    return datetime.fromisoformat(condition.last_transition_time).timestamp()


def _moment(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
