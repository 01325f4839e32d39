"""Words of kubelets and container runtimes: each end has one cause, and a node is blamed for what is a node's alone."""

from __future__ import annotations

import math
from datetime import datetime

import msgspec
from tests.builders import NOW
from tests.fuzz.draw import TIMES, Draw, Json
from tests.fuzz.target import Target

from trimtab.api.history import FailureCause
from trimtab.apply import causes
from trimtab.kube.objects import PodObject

REASONS = ("Error", "OOMKilled", "StartError", "ContainerCannotRun", "ContainerStatusUnknown", "Completed", "Evicted",
           "NodeShutdown", "Terminated", "Shutdown", "NodeLost", "UnexpectedAdmissionError", "OutOfcpu", "Preempting",
           "NodeAffinity", "TopologyAffinityError", "DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet",
           "PreemptionByScheduler", "EvictionByEvictionAPI", "ImagePullBackOff", "ErrImagePull", "InvalidImageName",
           "CreateContainerConfigError", "CrashLoopBackOff", "DeadlineExceeded", "")  # fmt: skip
MESSAGES = (
    "", 'exec: "/x/nvidia-start": stat /x/nvidia-start: no such file or directory',
    "failed to create containerd task: nvidia-container-cli: initialization error: nvml error: driver not loaded",
    "The node was low on resource: memory. Container trainer was using 9Gi, request is 1Gi, has larger consumption",
    "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.", "no such file or directory",
    "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 8, Available: 0",
    'failed to resolve reference "docker.io/x:1": not found', "manifest unknown", "permission denied", "CDI device",
    'chdir to cwd ("/nvidia") set in config.json failed: not a directory', "libcuda.so.1: cannot open shared object",
)  # fmt: skip
PHASES = ("Failed", "Pending", "Running", "Succeeded", "Unknown", "")


def _state(draw: Draw) -> Json:
    match draw.below(4):
        case 0 | 1:
            end = {
                "exitCode": draw.pick((1, 0, 126, 127, 137, 139, 255, -1, 1 << 31)),
                "reason": draw.text(usual=REASONS),
            }
            ended = {"finishedAt": draw.pick((*TIMES, None)), "message": draw.text(4096, usual=MESSAGES)}
            return {"terminated": end | ended}
        case 2:
            return {"waiting": {"reason": draw.text(usual=REASONS), "message": draw.text(4096, usual=MESSAGES)}}
    return {"running": {"startedAt": draw.pick(TIMES)}}


def _containers(draw: Draw) -> list[Json]:
    return draw.listed(lambda: {"name": draw.text(usual=("trainer",)), "state": _state(draw)}, 3)


def _pod(draw: Draw, rank: int) -> Json:
    conditions = draw.listed(
        lambda: {"type": draw.pick(("DisruptionTarget", "Ready", "PodScheduled")), "status": draw.pick(("True", "x")),
                 "reason": draw.text(usual=REASONS), "message": draw.text(usual=MESSAGES)}, 2,
    )  # fmt: skip
    status = {"phase": draw.pick(PHASES), "conditions": conditions, "containerStatuses": _containers(draw)}
    if draw.chance(3):
        status |= {"reason": draw.text(usual=REASONS), "message": draw.text(usual=MESSAGES)}
    if draw.chance(4):
        status["initContainerStatuses"] = _containers(draw)
    meta: Json = {"name": f"job-3-{rank}", "namespace": "default", "uid": f"pod-{rank}"}
    if draw.chance(4):
        meta["deletionTimestamp"] = draw.pick(TIMES)
    sidecar = {"name": "trainer", "restartPolicy": draw.pick(("Always", ""))}
    tolerations = [{"key": "x", "operator": "Exists", "tolerationSeconds": draw.integer()}] if draw.chance(6) else []
    return {
        "metadata": meta,
        "spec": {"nodeName": "n1", "initContainers": [sidecar], "tolerations": tolerations},
        "status": status,
    }


def _check_times(pod: PodObject) -> None:
    """Raises ValueError for times that the API server would not have taken."""
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    ends = [each.state.terminated.finished_at for each in statuses if each.state.terminated]
    for time in filter(None, (*ends, pod.metadata.deletion_timestamp)):
        if datetime.fromisoformat(time).tzinfo is None:
            raise ValueError(time)


def run(data: bytes) -> None:
    """A gang of a few pods, some of them at their end."""
    draw = Draw(data)
    pods: list[PodObject] = []
    for rank in range(1 + draw.below(3)):
        try:
            pod = msgspec.json.decode(draw.encoded(draw.spoiled(_pod(draw, rank))), type=PodObject)
            _check_times(pod)
            pods.append(pod)
        except (ValueError, RecursionError):  # the API server sends no such pod
            return
    seconds = draw.pick((0.0, 61.0, 1e9))
    for pod in pods:
        assert causes.still_for(pod, seconds, NOW) <= seconds
        for found in (causes.ending_of(pod), causes.cannot_start(pod, seconds)):
            if found:
                _check(found)
    if endings := [found for pod in pods if (found := causes.ending_of(pod))]:
        assert causes.most_telling(endings) in endings
    _check(causes.not_started(pods, len(pods) + draw.below(2), seconds))


def _check(ending: causes.PodEnding) -> None:
    assert ending.cause in causes.TELLING
    assert ending.reason
    assert ending.message
    assert math.isfinite(ending.time)
    assert not ending.at_fault or ending.cause in (FailureCause.NODE, FailureCause.GPU), ending


TARGET = Target("statuses of pods, in the words of kubelets and container runtimes", run)
