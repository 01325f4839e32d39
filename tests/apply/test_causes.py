"""Who is to blame for a pod that has ended or does not start: the words of kubelets, and what they mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import gang_pod

from trimtab.api.history import FailureCause
from trimtab.apply import causes
from trimtab.apply.causes import PodEnding
from trimtab.kube.objects import PodObject

USER, PROGRAM, MEMORY = FailureCause.USER_ERROR, FailureCause.PROGRAM, FailureCause.OUT_OF_MEMORY
NODE, OTHER = FailureCause.NODE, FailureCause.OTHER
EPHEMERAL = "Pod ephemeral local storage usage exceeds the total limit of containers 20Gi."
SIZE_LIMIT = 'Usage of EmptyDir volume "scratch" exceeds the limit "10Gi".'
PRESSURE = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 3Mi."
HOG = f"{PRESSURE} Container trainer was using 1900Gi, request is 0, has larger consumption of memory. "
OLD_HOG = "The node was low on resource: memory. Container trainer was using 1900Gi, which exceeds its request of 0. "
LOW_DISK = "The node was low on resource: ephemeral-storage. "
FULL_DISK = (
    f"{LOW_DISK}Container trainer was using 900Gi, request is 10Gi, has larger consumption of ephemeral-storage. "
)
NO_COMMAND = 'runc create failed: exec: "torchrn": executable file not found in $PATH'
NO_SCRIPT = 'unable to start container process: exec: "/job/run.sh": stat /job/run.sh: no such file or directory'
NO_PROGRAM = 'unable to start container process: exec: "/job/run.sh": permission denied'
NO_SPACE = "failed to create shim task: mkdir /run/containerd/io.containerd.runtime.v2.task: no space left on device"
NO_MOUNT = 'error mounting "/var/lib/kubelet/pods/x" to rootfs: no such file or directory'
NO_SHIM = "fork/exec /usr/bin/containerd-shim-runc-v2: permission denied"
NO_DRIVER = "nvidia-container-cli: initialization error: nvml error: driver not loaded"


def pod(**status: Any) -> PodObject:
    return gang_pod("job", 1, 1, "n1", phase="Failed", status=status)


def ended(
    code: int, reason: str = "", message: str = "", at: str | None = None, name: str = "trainer"
) -> dict[str, Any]:
    end = {"exitCode": code, "reason": reason, "message": message, "finishedAt": at}
    return {"name": name, "state": {"terminated": end}}


def waiting(reason: str, message: str = "") -> PodObject:
    told = [{"name": "trainer", "state": {"waiting": {"reason": reason, "message": message}}}]
    return gang_pod("job", 1, 1, "n1", status={"containerStatuses": told})


def ending(of: PodObject) -> PodEnding:
    found = causes.ending_of(of)
    assert found
    return found


# --- containers ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "reason", "message", "cause", "at_fault", "advice"),
    [
        (1, "Error", "", PROGRAM, False, "exited with 1 (Error)"),
        (143, "Error", "", PROGRAM, False, "exited with 143"),
        (137, "Error", "", PROGRAM, False, "exited with 137"),
        (137, "OOMKilled", "", MEMORY, False, "raise spec.resources.memoryPerGpu"),
        (0, "OOMKilled", "", MEMORY, False, "raise spec.resources.memoryPerGpu"),
        (126, "Error", "", USER, False, "correct command or image"),
        (127, "Error", "", USER, False, "command was not found"),
        (128, "StartError", NO_COMMAND, USER, False, "executable file not found"),
        (128, "StartError", NO_SCRIPT, USER, False, "no such file"),
        (126, "ContainerCannotRun", NO_PROGRAM, USER, False, "permission denied"),
        (128, "StartError", "exec /job/run.sh: exec format error", USER, False, "format"),
        (128, "StartError", "executable file `torchrn` not found in $PATH", USER, False, "torchrn"),
        (128, "StartError", NO_SPACE, OTHER, False, "no space left on device"),
        (128, "StartError", "failed to start containerd task: context deadline exceeded", OTHER, False, "deadline"),
        (128, "StartError", NO_MOUNT, OTHER, False, "error mounting"),
        (128, "StartError", NO_SHIM, OTHER, False, "containerd-shim"),
        (128, "StartError", NO_DRIVER, NODE, True, "driver not loaded"),
        (128, "ContainerCannotRun", "failed to inject CDI devices: unresolvable", NODE, True, "CDI"),
        (137, "ContainerStatusUnknown", "", NODE, True, "was lost by its node"),
    ],
)
def test_a_containers_end_tells_who_is_to_blame_and_what_to_do(
    code: int, reason: str, message: str, cause: FailureCause, at_fault: bool, advice: str
) -> None:
    found = ending(pod(containerStatuses=[ended(code, reason, message)]))
    assert (found.cause, found.at_fault) == (cause, at_fault)
    assert found.message.startswith("pod job-1-1: container trainer ")
    assert advice in found.message


FORGED = (
    'exec: "/x/nvidia-start": stat /x/nvidia-start: no such file or directory',
    'exec: "/opt/nvidia/nvidia_entrypoint.sh": no such file or directory',
    'runc create failed: unable to start container process: chdir to cwd ("/nvml error") set in config.json failed: x',
    'unable to start container process: error during container init: exec: "nvml error: driver not loaded": not found',
    "crun: executable file `x` nvidia-container-cli: nvml error: driver not loaded` not found in $PATH: No such file",
    "crun: chdir to `/x nvidia-container-cli: nvml error`: Permission denied",
    'error mounting "/var/lib/kubelet/pods/u/volumes/kubernetes.io~configmap/nvidia" to rootfs at "/usr/nvml": denied',
    "error mounting /var/lib/kubelet/pods/u/volume-subpaths/libcuda to rootfs at /usr/lib/nvidia/CDI: invalid argument",
    'failed to generate spec: failed to stat (/run/nvidia) "CDI" `nvml`: context deadline exceeded',
    'failed to generate container spec: mkdir "/a\\" nvidia-container-cli: nvml error": not a directory',
    "crun: mount `a` to ` nvidia-container-cli: nvml error: driver not loaded: Invalid argument",
    'mkdir nvml/error/driver: not a directory; image "nvcr.io/nvidia/pytorch" (nvidia)',
    "unable to find user nvidia-container-cli: no matching entries in passwd file",
    "exec /x/ nvidia-container-cli: initialization error: nvml error: driver not loaded: exec format error",
)


@pytest.mark.parametrize("message", FORGED)
def test_words_that_quote_the_job_blame_no_node(message: str) -> None:
    found = ending(pod(containerStatuses=[ended(128, "StartError", message)]))
    assert (found.cause in (USER, OTHER), found.at_fault) == (True, False)
    assert message in found.message


HONEST = (
    NO_DRIVER,
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init: error running prestart hook #0: exit status 1, "
    "stdout: , stderr: Auto-detected mode as 'legacy'\nnvidia-container-cli: initialization error: nvml error: driver "
    "not loaded: unknown",
    "failed to create containerd container: failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=0",
    "nvidia-container-cli: detection error: nvml error: unknown error: couldn't communicate with the driver",
    "nvidia-container-cli: mount error: file creation failed: /run/io/rootfs/usr/lib/libcuda.so.1: file exists",
    'error gathering device information while adding custom device "/dev/kfd": no such file or directory',
    "nvidia-container-runtime-hook: fork/exec /usr/bin/nvidia-container-cli: no such file or directory",
)


@pytest.mark.parametrize("message", HONEST)
def test_words_of_the_gpu_runtime_itself_do(message: str) -> None:
    found = ending(pod(containerStatuses=[ended(128, "StartError", message)]))
    assert (found.cause, found.at_fault) == (NODE, True)


@given(st.text(), st.sampled_from(['exec: "{}": no such file', 'chdir to cwd ("{}") set in config.json failed: x']))
def test_whatever_is_quoted_blames_nobody(text: str, message: str) -> None:
    said = message.replace("{}", text.replace("\\", "\\\\").replace('"', '\\"') + " nvml error")
    assert not ending(pod(containerStatuses=[ended(128, "StartError", said)])).at_fault


def test_a_failed_init_container_is_told_by_its_name() -> None:
    found = ending(pod(initContainerStatuses=[ended(127, name="fetch")], containerStatuses=[]))
    assert (found.cause, "container fetch" in found.message) == (USER, True)


def test_of_several_containers_the_one_that_explains_the_others_counts() -> None:
    both = [
        ended(1, "Error", at="2026-01-02T03:00:00Z"),
        ended(137, "OOMKilled", at="2026-01-02T03:00:09Z", name="loader"),
    ]
    assert ending(pod(containerStatuses=both)).cause is MEMORY
    errors = [ended(2, at="2026-01-02T03:00:09Z"), ended(3, at="2026-01-02T03:00:00Z", name="loader")]
    assert "loader exited with 3" in ending(pod(containerStatuses=errors)).message


def test_a_failed_pod_that_tells_nothing_has_failed_by_itself() -> None:
    assert ending(pod()) == PodEnding(PROGRAM, "PodFailed", "pod job-1-1 failed")


# --- kubelets ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("reason", "message", "cause", "at_fault"),
    [
        ("Evicted", PRESSURE, NODE, True),
        ("Evicted", HOG, MEMORY, False),
        ("Evicted", OLD_HOG, MEMORY, False),
        ("Evicted", FULL_DISK, PROGRAM, False),
        ("Evicted", LOW_DISK, NODE, True),
        ("Evicted", "The node was low on resource: pids. Threshold quantity: 1638, available: 9. ", OTHER, False),
        ("Evicted", "The node was low on resource: inodes. Threshold quantity: 9, available: 3. ", OTHER, False),
        ("Evicted", EPHEMERAL, PROGRAM, False),
        ("Evicted", SIZE_LIMIT, PROGRAM, False),
        ("NodeShutdown", "Pod was rejected as the node is shutting down.", NODE, True),
        ("Terminated", "Pod was terminated in response to imminent node shutdown.", NODE, True),
        ("UnexpectedAdmissionError", "Allocate failed due to no healthy devices present", NODE, True),
        ("OutOfnvidia.com/gpu", "Node didn't have enough resource", NODE, False),
        ("Preempting", "Preempted in order to admit critical pod", NODE, False),
        ("TopologyAffinityError", "Resources cannot be allocated with Topology locality", NODE, False),
        ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline", PROGRAM, False),
        ("SomethingNew", "in a later Kubernetes", NODE, False),
    ],
)
def test_a_refusal_or_eviction_is_the_nodes_matter_unless_the_pod_used_more_than_it_may(
    reason: str, message: str, cause: FailureCause, at_fault: bool
) -> None:
    found = ending(pod(reason=reason, message=message))
    assert (found.cause, found.at_fault) == (cause, at_fault)
    assert f"{reason} {message}".strip() in found.message


def test_an_eviction_for_its_own_memory_is_told_like_any_other_lack_of_memory() -> None:
    found = ending(pod(reason="Evicted", message=HOG))
    assert found.reason == "OutOfMemory"
    assert found.message.endswith("container trainer had more than it asks for: raise spec.resources.memoryPerGpu")


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("DeletionByTaintManager", NODE),
        ("DeletionByPodGC", NODE),
        ("TerminationByKubelet", NODE),
        ("EvictionByEvictionAPI", OTHER),
        ("PreemptionByScheduler", OTHER),
    ],
)
def test_why_a_pod_was_deleted_is_in_its_condition(reason: str, cause: FailureCause) -> None:
    told = [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "because"}]
    deleted = gang_pod(
        "job", 1, 1, "n1", metadata={"deletionTimestamp": "2026-01-02T03:04:05Z"}, status={"conditions": told}
    )
    found = ending(deleted)
    assert (found.cause, found.at_fault, found.reason) == (cause, cause is NODE, "PodDeleted")
    assert f"{reason}: because" in found.message


def deleted(message: str = "because", reason: str = "TerminationByKubelet", **pod_: Any) -> PodObject:
    told = [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]
    status = {"conditions": told} | pod_.pop("status", {})
    return gang_pod("job", 1, 1, "n1", metadata={"deletionTimestamp": "2026-01-02T03:04:05Z"}, status=status, **pod_)


@pytest.mark.parametrize(("message", "cause"), [(HOG, MEMORY), (FULL_DISK, PROGRAM), (SIZE_LIMIT, PROGRAM)])
def test_a_job_that_is_evicted_for_its_own_use_and_deletes_the_pod_blames_no_node(
    message: str, cause: FailureCause
) -> None:
    for of in (deleted(message), deleted(phase="Failed", status={"reason": "Evicted", "message": message})):
        found = ending(of)
        assert (found.cause, found.at_fault) == (cause, False)


def test_who_tolerates_a_taint_for_a_while_has_asked_to_be_deleted_then() -> None:
    stays = {"tolerations": [{"key": "x", "effect": "NoExecute", "tolerationSeconds": 5}]}
    found = ending(deleted(reason="DeletionByTaintManager", spec=stays))
    assert (found.cause, found.at_fault) == (OTHER, False)
    ours = {"tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]}
    assert ending(deleted(reason="DeletionByTaintManager", spec=ours)).at_fault


def test_a_pod_that_runs_has_no_ending() -> None:
    assert causes.ending_of(gang_pod("job", 1, 1, "n1", phase="Running")) is None
    assert causes.ending_of(gang_pod("job", 1, 1, "n1", phase="Succeeded")) is None


# --- pods that do not start ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("reason", ["InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed"])
def test_what_only_a_user_can_mend_is_not_waited_for(reason: str) -> None:
    found = causes.cannot_start(waiting(reason, "image 'Trainer:1'"), 0.0)
    assert found
    assert (found.cause, found.reason) == (USER, reason)
    assert "image 'Trainer:1'" in found.message


def test_a_secret_may_come_a_little_late() -> None:
    late = waiting("CreateContainerConfigError", 'secret "token" not found')
    assert causes.cannot_start(late, 59.0) is None
    found = causes.cannot_start(late, 60.0)
    assert found
    assert (found.cause, 'secret "token" not found' in found.message) == (USER, True)


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImagePull", "ContainerCreating", "CreateContainerError"])
def test_all_else_may_pass(reason: str) -> None:
    assert causes.cannot_start(waiting(reason), 3600.0) is None


@pytest.mark.parametrize(
    ("message", "gang", "cause", "at_fault"),
    [
        ("manifest for example.test/trainer:9 not found: manifest unknown", 1, USER, False),
        ("pull access denied, repository does not exist", 4, USER, False),
        ("dial tcp 10.0.0.1:443: i/o timeout", 1, OTHER, False),
        ("dial tcp 10.0.0.1:443: i/o timeout", 4, NODE, True),
    ],
)
def test_who_is_to_blame_for_a_gang_that_does_not_start(
    message: str, gang: int, cause: FailureCause, at_fault: bool
) -> None:
    found = causes.not_started([waiting("ImagePullBackOff", message)], gang, 1800.0)
    assert (found.cause, found.at_fault, found.reason) == (cause, at_fault, "StartTimeout")
    assert f"1 of {gang} pods do not run 1800 s" in found.message
    assert f"job-1-1 on n1: ImagePullBackOff {message}" in found.message


def test_who_has_a_hook_to_wait_for_waits_for_himself() -> None:
    hook = {"containers": [{"name": "trainer", "lifecycle": {"postStart": {"exec": {"command": ["sleep", "9999"]}}}}]}
    found = causes.not_started([gang_pod("job", 1, 1, "n1", spec=hook)], 4, 1800.0)
    assert (found.cause, found.at_fault) == (OTHER, False)
    without = {"containers": [{"name": "trainer", "lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}]}
    assert causes.not_started([gang_pod("job", 1, 1, "n1", spec=without)], 4, 1800.0).at_fault
    assert not causes.not_started([waiting("CreateContainerConfigError", "x")], 4, 1800.0).at_fault


def test_of_many_pods_that_do_not_start_a_few_are_named() -> None:
    found = causes.not_started([gang_pod("job", 1, rank, "n1") for rank in range(9)], 9, 60.0)
    assert "job-1-2 on n1: its kubelet says nothing but Pending; and 6 more" in found.message


# --- the cause of a gang -------------------------------------------------------------------------------------------
@given(
    st.lists(
        st.builds(PodEnding, st.sampled_from(FailureCause), st.just("R"), st.just("m"), st.booleans(), st.floats(0, 9)),
        min_size=1,
    )
)
def test_the_most_telling_of_many_endings_is_none_that_another_one_explains(found: list[PodEnding]) -> None:
    chosen = causes.most_telling(found)
    assert chosen in found
    for other in found:
        rank = causes.TELLING.index(other.cause) - causes.TELLING.index(chosen.cause)
        assert rank > 0 or (rank == 0 and other.time >= chosen.time)


def test_every_cause_has_its_place() -> None:
    assert set(causes.TELLING) == set(FailureCause)
