"""What ended a pod, or keeps it from starting, and who is to blame: from the words of kubelets and of the API server.

The cause decides who pays for the next attempt: the job (`maxRestarts`), or nobody. Where the words leave it open, the
job is innocent; a node is blamed only for what would hit any gang on it, for several blames keep it from others.

Kubelets and runtimes quote the job: its command, working directory, image, volumes, paths. Whoever writes those writes
the message. So mistakes in the command are looked for first, and a node is blamed only by words outside all quotation
marks, parentheses and paths. That what is left may still be forged, `observe/failures.py` reckons with.

    the pod's own reason    the kubelet has refused it (OutOfcpu, UnexpectedAdmissionError) or evicted it
    DisruptionTarget        why somebody has deleted it: a taint, a drain, a node that is gone
    a container's end       exit code, OOMKilled, or that it could not be started at all
    a container's waiting   an image or an object that it refers to is not there

Reasons as of Kubernetes 1.36 (pkg/kubelet: container/sync_result.go, images/types.go, eviction, preemption,
nodeshutdown; the Job controller's documentation on pod failure policies tells of DisruptionTarget).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from trimtab.api.history import FailureCause
from trimtab.kube.objects import ContainerStatus, PodObject

_FAILED: Final = "Failed"
POD_FAILED, POD_REFUSED, POD_DELETED = "PodFailed", "PodRefused", "PodDeleted"
OUT_OF_MEMORY, CANNOT_START = "OutOfMemory", "CannotStart"

TELLING: Final = (
    FailureCause.GPU,
    FailureCause.NODE,
    FailureCause.OUT_OF_MEMORY,
    FailureCause.USER_ERROR,
    FailureCause.OTHER,
    FailureCause.PROGRAM,
)
"""The first of these is why a gang has ended: programs end with errors because another part of their gang has ended."""

_OF_A_NODE: Final = ("Evicted", "NodeShutdown", "Terminated", "Shutdown", "NodeLost", "UnexpectedAdmissionError")
"""The kubelet's reasons that a node is to blame for. Others (OutOfcpu, NodeAffinity, TopologyAffinityError, Preempting)
say that this pod and this node do not go together now."""
_LOCAL_STORAGE: Final = re.compile(r"exceed(s|ed) (the|its) ")
"""Ends an eviction because the pod itself has used more than it may: no node is short of anything."""
_LOW_ON: Final = re.compile(r"low on resource: ([-a-z]+)")
_UNASKED: Final = ("pids", "inodes")
"""What no pod asks for: who has taken too much of it, the kubelet does not say. It may be the pod itself."""
_BEYOND_REQUEST: Final = re.compile(r"[Cc]ontainer (\S+) was using \S+, (request is|which exceeds its request of)")
"""In the words of an eviction: a container of this very pod had more than it had asked for. The kubelet says so of no
other pods, and of none that keeps to its request (`evictionMessage` in eviction/helpers.go)."""
_GPU_RUNTIME: Final = re.compile(r"nvidia|nvml|libcuda|\bCDI\b|amdgpu|adding custom device", re.IGNORECASE)
"""In a container runtime's own words: it is the node's driver or toolkit that stands in the way. Devices are never the
user's to name: `error gathering device information while adding custom device "/dev/kfd"` is of the device plugin's."""
_COMMAND: Final = re.compile(
    r"executable file|open executable|exec format error|chdir to|set in config\.json|unable to find (user|group)"
    r"|(?<!/)\bexec\S* .*(no such file or directory|permission denied|is a directory)",
    re.IGNORECASE,
)
"""In the words of runc and crun: what the job wants to run is not in its image, or cannot be run. All else (a full
disk, a shim that hangs, a mount that is gone) passes, or is the node's matter; a hook or shim is run by fork/exec."""
_QUOTED: Final = re.compile(r"""
    "(?:[^"\\]|\\.)*" | (?<!\w)'[^']*'(?!\w) | `[^`]*` | “[^”]*” | \([^()]*\)  # what is quoted, or in parentheses
    | \S*[/\\]\S*                                                             # a path
""", re.VERBOSE)  # fmt: skip
"""What may be the job's own words."""
_MOST_READ: Final = 4096
_UNBALANCED: Final = re.compile('["`“”()]')
"""Left after that, somebody else's quotation mark has closed one of the runtime's: the rest is not believed."""
_NO_IMAGE: Final = re.compile(r"not found|manifest unknown|denied|unauthorized|authorization failed|does not exist")
_DELETED_BECAUSE: Final = {
    "DeletionByTaintManager": FailureCause.NODE,
    "DeletionByPodGC": FailureCause.NODE,
    "TerminationByKubelet": FailureCause.NODE,
}
"""Reason of DisruptionTarget -> cause. A drain, or kube-scheduler's preemption, is nobody's failure."""
UNSTARTABLE: Final = frozenset({"InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed"})
"""Reasons why containers wait that pass only when somebody mends the job ..."""
CONFIG_ERROR: Final = "CreateContainerConfigError"
CONFIG_SECONDS: Final = 60.0
"""... and this one when it has lasted so long: a ConfigMap or Secret may come late, to the kubelet's cache, too."""
_PULLING: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"})
_EXITS: Final = {
    126: "the command is no program that can be run: correct command or image",
    127: "the command was not found: correct command or image",
}


class PodEnding(Struct, frozen=True):
    """Why one pod does not go on."""

    cause: FailureCause
    reason: str
    """CamelCase: a condition reason, event reason and metric label."""
    message: str
    at_fault: bool = False
    """Whether its node is to blame."""
    time: float = 0.0
    """When it ended, by its node's clock, as a POSIX time; 0 where that is not told."""


def ending_of(pod: PodObject) -> PodEnding | None:
    """Why a pod that was deleted or has failed has; None for any other."""
    if pod.metadata.deletion_timestamp:
        return _deleted(pod)
    if pod.status.phase != _FAILED:
        return None
    return _by_kubelet(pod) if pod.status.reason else _by_itself(pod)


def cannot_start(pod: PodObject, seconds: float) -> PodEnding | None:
    """Why a pod that has been bound for so long will not start unless its user mends something; None where it may."""
    for container in _containers(pod):
        waiting = container.state.waiting
        if waiting and waiting.reason in ({*UNSTARTABLE, CONFIG_ERROR} if seconds >= CONFIG_SECONDS else UNSTARTABLE):
            what = f"container {container.name} cannot be started, {waiting.reason}: {waiting.message}"
            return PodEnding(FailureCause.USER_ERROR, waiting.reason, f"pod {pod.metadata.name}: {what}")
    return None


def not_started(stuck: Sequence[PodObject], gang: int, seconds: float) -> PodEnding:
    """Why some pods of a gang of so many have been bound for so long and do not run.

    An image that is not there is the user's matter. Where the other pods run, the node is to blame, unless the pod
    has a hook of its own to wait for. Else it may be anything that they share: a registry, a volume.
    """
    said = "; ".join(f"{pod.metadata.name} on {pod.spec.node_name}: {_in_words(pod)}" for pod in stuck[:3])
    others = f"; and {len(stuck) - 3} more" if len(stuck) > 3 else ""
    message = f"{len(stuck)} of {gang} pods do not run {seconds:.0f} s after they were bound: {said}{others}"
    pulls = [w.message for pod in stuck for c in _containers(pod) if (w := c.state.waiting) and w.reason in _PULLING]
    if any(_NO_IMAGE.search(text) for text in pulls):
        return PodEnding(FailureCause.USER_ERROR, "StartTimeout", f"{message}; correct the image, or imagePullSecrets")
    alone = len(stuck) < gang and not any(map(_waits_for_itself, stuck))
    return PodEnding(FailureCause.NODE if alone else FailureCause.OTHER, "StartTimeout", message, at_fault=alone)


def still_for(pod: PodObject, seconds: float, now: float) -> float:
    """For how long nothing has gone on in a pod that was bound so many seconds ago, at the POSIX time `now`.

    An init container that runs may take its time (it fetches weights, data), and what follows it has its own. A
    sidecar is none of these: it runs as long as the pod.
    """
    sidecars = {container.name for container in pod.spec.init_containers if container.restart_policy == "Always"}
    states = [each.state for each in pod.status.init_container_statuses if each.name not in sidecars]
    if any(state.waiting is None and state.terminated is None for state in states):
        return 0.0
    ends = [_posix(state.terminated.finished_at) for state in states if state.terminated]
    return min(seconds, now - max(ends, default=0.0))


def _deleted(pod: PodObject) -> PodEnding:
    message = f"pod {pod.metadata.name} was deleted"
    if pod.status.phase == _FAILED and pod.status.reason:  # its kubelet had ended it before
        return _by_kubelet(pod)
    for told in pod.status.conditions:
        if told.type == "DisruptionTarget" and told.status == "True":
            why = f"{message}, {told.reason}: {told.message}"
            if told.reason == "TerminationByKubelet" and (ending := _by_its_own_doing(told.message, why)):
                return ending
            cause = _DELETED_BECAUSE.get(told.reason, FailureCause.OTHER)
            if told.reason == "DeletionByTaintManager" and _stays_for_a_while(pod):
                cause = FailureCause.OTHER
            return PodEnding(cause, POD_DELETED, why, at_fault=cause is FailureCause.NODE)
    return PodEnding(FailureCause.OTHER, POD_DELETED, message)


def _stays_for_a_while(pod: PodObject) -> bool:
    """Whether it tolerates some taint for a time only: that it was deleted then is what it had asked for. Those that
    Trimtab adds have no end."""
    return any(each.toleration_seconds is not None for each in pod.spec.tolerations)


def _by_kubelet(pod: PodObject) -> PodEnding:
    """The kubelet has refused or evicted the pod."""
    reason, said = pod.status.reason, f"pod {pod.metadata.name}: {pod.status.reason} {pod.status.message}".strip()
    if reason == "Evicted" and (ending := _by_its_own_doing(pod.status.message, said)):
        return ending
    if reason == "DeadlineExceeded":
        said += "; raise activeDeadlineSeconds in spec.template, or leave it out"
        return PodEnding(FailureCause.PROGRAM, POD_FAILED, said)
    return PodEnding(FailureCause.NODE, POD_REFUSED, said, at_fault=reason in _OF_A_NODE)


def _by_its_own_doing(message: str, said: str) -> PodEnding | None:
    """An eviction for what this pod has taken itself: it would be so on any other node."""
    short, beyond = _LOW_ON.search(message), _BEYOND_REQUEST.search(message)
    if short and short[1] in _UNASKED:
        return PodEnding(FailureCause.OTHER, POD_REFUSED, said)
    if short and beyond:
        what = f"{said}; container {beyond[1]} had more than it asks for"
        if short[1] == "memory":
            return PodEnding(FailureCause.OUT_OF_MEMORY, OUT_OF_MEMORY, f"{what}: raise spec.resources.memoryPerGpu")
        if short[1] == "ephemeral-storage":
            told = f"{what}: raise its ephemeral-storage request, or write less"
            return PodEnding(FailureCause.PROGRAM, POD_FAILED, told)
    if not short and _LOCAL_STORAGE.search(message):
        said += "; raise its ephemeral-storage limit, or the sizeLimit of its emptyDir"
        return PodEnding(FailureCause.PROGRAM, POD_FAILED, said)
    return None


def _by_itself(pod: PodObject) -> PodEnding:
    """Nobody deleted the pod, no kubelet refused or evicted it (it would give a reason): some container has failed."""
    endings = list(_container_endings(pod))
    if not endings:
        return PodEnding(FailureCause.PROGRAM, POD_FAILED, f"pod {pod.metadata.name} failed")
    return most_telling(endings)


def _container_endings(pod: PodObject) -> Iterator[PodEnding]:
    for container in _containers(pod):
        ended = container.state.terminated
        if ended is None or not (ended.exit_code or ended.reason == "OOMKilled"):
            continue
        cause, reason, how, at_fault = _how(ended.exit_code, ended.reason, ended.message)
        said = f"pod {pod.metadata.name}: container {container.name} {how}"
        yield PodEnding(cause, reason, said, at_fault, _posix(ended.finished_at))


def _how(code: int, reason: str, message: str) -> tuple[FailureCause, str, str, bool]:
    """Cause, reason, what to tell, and whether the node is to blame, of a container's end."""
    if reason == "OOMKilled":
        told = "ran out of host memory (OOMKilled): raise spec.resources.memoryPerGpu, or its own memory limit"
        return FailureCause.OUT_OF_MEMORY, OUT_OF_MEMORY, told, False
    if reason == "ContainerStatusUnknown":  # the kubelet has lost it: its machine was started anew
        return FailureCause.NODE, POD_FAILED, f"was lost by its node ({reason})", True
    if reason in ("StartError", "ContainerCannotRun"):
        cause = _of_a_start(message)
        return cause, CANNOT_START, f"could not be started ({reason}): {message}", cause is FailureCause.NODE
    how = f"exited with {code}" + (f" ({reason})" if reason else "")
    if code in _EXITS:
        return FailureCause.USER_ERROR, CANNOT_START, f"{how}: {_EXITS[code]}", False
    return FailureCause.PROGRAM, POD_FAILED, how, False


def _of_a_start(message: str) -> FailureCause:
    """Why a container runtime has refused to start a container."""
    message = message[:_MOST_READ]
    if _COMMAND.search(message):
        return FailureCause.USER_ERROR
    own = _QUOTED.sub(" ", message)
    blames = _GPU_RUNTIME.search(own) and not _UNBALANCED.search(own)
    return FailureCause.NODE if blames else FailureCause.OTHER


def most_telling(endings: Iterable[PodEnding]) -> PodEnding:
    """The one that explains the others: the gravest cause, and of those the first."""
    return min(endings, key=lambda ending: (TELLING.index(ending.cause), ending.time))


def _containers(pod: PodObject) -> tuple[ContainerStatus, ...]:
    return (*pod.status.init_container_statuses, *pod.status.container_statuses)


def _in_words(pod: PodObject) -> str:
    """What the kubelet says of a pod that does not run."""
    for container in _containers(pod):
        if waiting := container.state.waiting:
            return " ".join(filter(None, (waiting.reason, waiting.message)))
    return f"its kubelet says nothing but {pod.status.phase or 'Pending'}"


def _waits_for_itself(pod: PodObject) -> bool:
    """Whether it has a hook that runs before the pod does, for as long as it likes, or refers to what is not there."""
    waits = (container.state.waiting for container in _containers(pod))
    specs = *pod.spec.init_containers, *pod.spec.containers
    lacks = any(each and each.reason in (CONFIG_ERROR, *UNSTARTABLE) for each in waits)
    return lacks or any(each.lifecycle.post_start is not None for each in specs)


def _posix(timestamp: str | None) -> float:
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
