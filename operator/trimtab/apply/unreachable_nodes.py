"""A node falls silent: whose failure was that, and how long does a job wait for pods that nobody can ask about.

Kubernetes calls a node NotReady 50 s after its last word, and whether its pods still compute then, nobody knows. Two
gangs of a job must never run at once: they would write over each other's checkpoints. But a gang computes with all of
its ranks or not at all. Once one rank is known to have ended, what is left of the gang cannot do another step, and may
be let go: after a while (its node may only be slow to answer), its pods are deleted by force, and the job goes on.

Its other ranks notice earlier than Kubernetes, and end with errors: for nearly a minute that looks like a failure of
the program. What was booked so is corrected once the node is known to be silent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from trimtab import names
from trimtab.api.history import FailureCause
from trimtab.api.status import JobStatus
from trimtab.apply.change import changed
from trimtab.apply.gang_failures import FAILED, NODE_LOST, SUCCEEDED
from trimtab.apply.transitions import JobEvent
from trimtab.kube.objects import PodObject
from trimtab.settings import FailureSettings

EXCUSED_SECONDS = 90.0
"""A program's failure that is followed by its node's silence within so long is the node's: Kubernetes waits for 50 s,
and programs notice a dead peer within seconds."""


def abandoned(
    pods: Iterable[PodObject], silent: Mapping[str, float], rules: FailureSettings, now: float
) -> dict[str, str]:
    """UID -> why, of pods that may be deleted by force: what is left of a gang on nodes that have been silent for long.

    `silent`: node -> POSIX time at which Kubernetes noticed.
    """
    return {
        pod.metadata.uid: f"pod {pod.metadata.name} is deleted by force: nothing was heard of node "
        f"{pod.spec.node_name} for {now - silent[pod.spec.node_name]:.0f} s, and {why}"
        for pod, why in _candidates(pods, silent, rules)
        if now >= silent[pod.spec.node_name] + rules.silent_node_seconds
    }


def due(pods: Iterable[PodObject], silent: Mapping[str, float], rules: FailureSettings, after: float) -> float:
    """POSIX time at which the first pod may be let go, of those later than `after`; infinite where none will be."""
    ends = (silent[pod.spec.node_name] + rules.silent_node_seconds for pod, _ in _candidates(pods, silent, rules))
    return min((end for end in ends if end > after), default=math.inf)


def excused(
    status: JobStatus, pods: Iterable[PodObject], silent: Mapping[str, float]
) -> tuple[JobStatus, JobEvent] | None:
    """The last failure was booked as the program's, and it was a node's that died: give the restart back.

    The pod on that node tells: no kubelet is there that would have ended it.
    """
    last = status.failures[-1] if status.failures else None
    if last is None or last.cause is not FailureCause.PROGRAM:
        return None
    failed = last.time.timestamp()
    nodes = {pod.spec.node_name for pod in pods if pod.metadata.labels.get(names.LABEL_EPOCH) == str(last.epoch)}
    guilty = sorted(node for node in nodes if node in silent and silent[node] - failed <= EXCUSED_SECONDS)
    if not guilty:
        return None
    corrected = last.model_copy(update={"cause": FailureCause.NODE, "reason": NODE_LOST, "node": guilty[0]})
    message = (
        f"node {guilty[0]} fell silent within {EXCUSED_SECONDS:.0f} s of the failure of plan {last.epoch}, "
        "which counts as the node's now: it uses up no restart"
    )
    after = changed(status, failures=(*status.failures[:-1], corrected), restarts=max(0, status.restarts - 1))
    return after, JobEvent("Warning", NODE_LOST, message, last.epoch)


def _candidates(
    pods: Iterable[PodObject], silent: Mapping[str, float], rules: FailureSettings
) -> list[tuple[PodObject, str]]:
    """Pods on silent nodes that will be let go, and why that is safe."""
    if rules.silent_nodes == "Wait":
        return []
    left = [pod for pod in pods if pod.status.phase not in (SUCCEEDED, FAILED)]
    ranks = Counter(pod.metadata.labels.get(names.LABEL_EPOCH) for pod in left)
    found = []
    for pod in left:
        if pod.spec.node_name not in silent:
            continue
        missing = _gang_size(pod) - ranks[pod.metadata.labels.get(names.LABEL_EPOCH)]
        if missing > 0:
            found.append((pod, f"{missing} of its gang of {_gang_size(pod)} pods have ended: it cannot compute alone"))
        elif rules.silent_nodes == "Always":
            found.append((pod, "failures.silent_nodes is Always"))
    return found


def _gang_size(pod: PodObject) -> int:
    """Pods of its gang; 0 where it does not say, being of an earlier version."""
    said = pod.metadata.annotations.get(names.ANNOTATION_GANG, "")
    return int(said) if len(said) < 10 and said.isascii() and said.isdigit() else 0
