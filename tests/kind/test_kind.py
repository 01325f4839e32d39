"""What users do with a cluster, and what befalls one: each test is one of these. The last one takes Trimtab away.

In the order of the file, on one cluster; each test leaves it as it has found it. CI runs those that are essential,
`hack/test --kind --all` all of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.kind.conftest import GPUS, SILENT_SECONDS, WORKERS, Job, Kind
from tests.kind.jobs import SHARED, meeting, training

from trimtab.names import COMPLETE, PODS_READY, SYSTEM_NAMESPACE

pytestmark = [pytest.mark.kind, pytest.mark.timeout(3000)]

Submit = Callable[[dict[str, Any]], Job]
KEPT = ("gpunodes", "llmtrainingjobs", "queues")
"""CustomResourceDefinitions, which `helm uninstall` leaves (crds.keep)."""
STEPS = 50
TOLERANCE = 2e-4
"""Of losses near 5: sums in another order, float32."""


def nodes_of(pods: list[dict[str, Any]]) -> list[str]:
    return [pod["spec"].get("nodeName", "") for pod in pods]


def lives(pods: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """Of each pod: who it is, since when it runs, and how often it was started again."""
    return [
        (pod["metadata"]["uid"], pod["status"]["startTime"], each["restartCount"])
        for pod in pods
        for each in pod["status"]["containerStatuses"]
    ]


@pytest.mark.essential
def test_the_chart_comes_up_and_sees_the_gpus(kind: Kind) -> None:
    controller = kind.get("deployment", "trimtab-controller", "--namespace", SYSTEM_NAMESPACE)
    assert controller["status"]["availableReplicas"] == controller["spec"]["replicas"]
    agents = kind.get("daemonset", "trimtab-agent", "--namespace", SYSTEM_NAMESPACE)["status"]
    assert agents["numberReady"] == agents["desiredNumberScheduled"] == WORKERS
    reported = kind.eventually(
        lambda: len(found := kind.items("gpunodes")) == WORKERS and found, 60, "a report of every agent"
    )
    assert [len(each["status"]["gpus"]) for each in reported] == [GPUS] * WORKERS
    kind.helm("test", "trimtab", "--timeout=2m")


@pytest.mark.essential
def test_a_gang_of_two_pods_meets_on_two_nodes_and_ends(kind: Kind, submit: Submit) -> None:
    job = submit(meeting("meeting", seconds=3))
    job.wait(COMPLETE)
    pods = job.pods()
    assert len(set(nodes_of(pods))) == len(pods) == 2
    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * 2
    assert [job.said(pod).splitlines()[-1] for pod in pods] == ["rank 0 of 2 is done", "rank 1 of 2 is done"]
    assert job.epoch == 1


def test_an_upgrade_restarts_nothing(kind: Kind, submit: Submit) -> None:
    job = submit(meeting("upgraded", seconds=3600))
    job.wait(PODS_READY)
    before, controllers = lives(job.pods()), kind.system_pods("trimtab-controller")
    old = {pod["metadata"]["uid"] for pod in controllers}
    kind.upgrade("--set=log.level=debug")
    kind.eventually(
        lambda: old.isdisjoint(pod["metadata"]["uid"] for pod in kind.system_pods("trimtab-controller")),
        60,
        "the former controllers to end",
    )
    late = submit(meeting("late", seconds=1, gpus=1))  # when it ends, the new controller has looked at everything
    late.wait(COMPLETE)
    assert lives(job.pods()) == before
    assert job.has(PODS_READY)
    assert job.epoch == 1


@pytest.mark.parametrize("delay", [0.0, pytest.param(0.2, marks=pytest.mark.essential), 0.4])
def test_a_controller_that_dies_while_it_binds_leaves_no_half_gang(kind: Kind, submit: Submit, delay: float) -> None:
    """A gang is planned, made and bound within half a second: one of these moments is in the midst of it."""
    controller = kind.leader()
    job = submit(meeting(f"orphaned-{delay * 10:.0f}", seconds=1))
    time.sleep(delay)
    at_once = (f"--namespace={SYSTEM_NAMESPACE}", "--grace-period=0", "--force")
    kind.kubectl("delete", "pod", controller["metadata"]["name"], *at_once)
    job.wait(COMPLETE, 300)
    pods = job.pods()
    planned = [node["name"] for node in job.status["plan"]["nodes"]]
    assert sorted(nodes_of(pods)) == sorted(planned)
    assert {job.said(pod).splitlines()[-1] for pod in pods} == {"rank 0 of 2 is done", "rank 1 of 2 is done"}


def test_a_gang_that_loses_a_node_goes_on_elsewhere(kind: Kind, submit: Submit) -> None:
    """By itself, and the job does not pay for it. No kubelet ends the pod that is left; it is let go after a while, for
    its peer ends with an error as soon as it hears nothing, long before Kubernetes calls the node NotReady."""
    job = submit(meeting("moved", seconds=60))
    job.wait(PODS_READY)
    nodes, epoch = nodes_of(job.pods()), job.epoch
    controller = nodes_of([kind.leader()])
    lost = next(node for node in nodes if node not in controller)
    kind.run("docker", "stop", lost)
    try:
        kind.kubectl("wait", "--for=condition=Ready=Unknown", f"node/{lost}", "--timeout=120s")
        kind.eventually(lambda: nodes_of(job.pods()) == [lost], 60, "the pod on the other node to go")
        kind.eventually(lambda: job.epoch > epoch, SILENT_SECONDS + 60, "another plan")
        job.wait(PODS_READY)
        assert len(set(nodes_of(job.pods()))) == len(job.pods()) == 2
        assert lost not in nodes_of(job.pods())
        status = job.status
        assert [(each["cause"], each["node"]) for each in status["failures"]] == [("Node", lost)]
        assert status.get("restarts", 0) == 0
        assert "PodForced" in kind.kubectl("events", f"--for=llmtrainingjob/{job.name}")
    finally:
        kind.run("docker", "start", lost)
        kind.kubectl("wait", "--for=condition=Ready", f"node/{lost}", "--timeout=120s")
    job.wait(COMPLETE)
    # Its GPUs come back with it: nobody has to patch the node again by hand.
    back = f"--for=jsonpath={{.status.allocatable.nvidia\\.com/gpu}}={GPUS}"
    kind.kubectl("wait", back, f"node/{lost}", "--timeout=60s")


@pytest.fixture
def by_extender(kind: Kind) -> Iterator[None]:
    """Gangs are bound by a kube-scheduler that asks the extender, until the test is over."""
    on = ("--set=binding.mode=Extender", "--set=extender.enabled=true", "--set=scheduler.enabled=true")
    kind.upgrade(*on, "--set=scheduler.replicas=1", "--set=scheduler.podDisruptionBudget.enabled=false")
    yield
    kind.upgrade("--set=binding.mode=Direct", "--set=extender.enabled=false", "--set=scheduler.enabled=false")


@pytest.mark.usefixtures("by_extender")
def test_without_the_extender_nothing_is_bound_and_with_it_all(kind: Kind, submit: Submit) -> None:
    scale = ("scale", "deployment/trimtab-extender", f"--namespace={SYSTEM_NAMESPACE}")
    kind.kubectl(*scale, "--replicas=0")
    kind.eventually(lambda: not kind.system_pods("trimtab-extender"), 60, "the extender to go")
    job = submit(meeting("extended", seconds=1))
    kind.eventually(lambda: len(job.pods()) == 2, 60, "the gang's pods")
    kind.eventually(lambda: "FailedScheduling" in pod_events(kind, job), 60, "kube-scheduler to try")
    assert nodes_of(job.pods()) == ["", ""]
    kind.kubectl(*scale, "--replicas=2")
    job.wait(COMPLETE, 300)
    assert len(set(nodes_of(job.pods()))) == 2


def pod_events(kind: Kind, job: Job) -> str:
    """What was told about the pods of a job."""
    return "".join(kind.kubectl("events", f"--for=pod/{pod['metadata']['name']}") for pod in job.pods())


def test_a_training_is_resized_and_its_loss_goes_on_as_if_nobody_had(kind: Kind, submit: Submit, trainer: None) -> None:
    kind.run("docker", "exec", f"{kind.name}-worker", "sh", "-c", f"rm -rf {SHARED}/*")  # of an earlier run
    alone = submit(training("alone", steps=STEPS))
    alone.wait(COMPLETE, 300)
    undisturbed = history(kind, alone, "step")
    job = submit(training("resized", steps=STEPS))
    for gpus, step in ((4, 10), (2, 25)):
        reach(kind, job, step)
        size = {"spec": {"resources": {"gpus": {"min": gpus, "max": gpus}}}}
        kind.kubectl("patch", "ltj", job.name, "--type=merge", f"--patch={json.dumps(size)}")
    job.wait(COMPLETE, 300)
    assert [line["ranks"] for line in history(kind, job, "started")] == [2, 4, 2]
    steps = history(kind, job, "step")
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert [line["loss"] for line in steps] == pytest.approx([line["loss"] for line in undisturbed], abs=TOLERANCE)
    assert undisturbed[-1]["loss"] < undisturbed[0]["loss"] - 0.1
    assert not job.status.get("failures")


def reach(kind: Kind, job: Job, step: int) -> None:
    """Wait until a training has done that step."""
    kind.eventually(lambda: len(history(kind, job, "step")) >= step, 300, f"step {step} of {job.name}")


def history(kind: Kind, job: Job, event: str) -> list[dict[str, Any]]:
    """What a training has told, over all its gangs."""
    file = f"{SHARED}/{job.name}.jsonl"
    said = kind.run("docker", "exec", f"{kind.name}-worker", "cat", file, check=False)
    return [line for line in map(json.loads, said.splitlines()) if line["event"] == event]


def test_uninstalling_leaves_jobs_and_what_defines_them(kind: Kind, submit: Submit) -> None:
    job = submit(meeting("left", seconds=3600))
    job.wait(PODS_READY)
    before = lives(job.pods())
    kind.helm("uninstall", "trimtab", "--wait", "--timeout=3m")
    kinds = "deployments,daemonsets,jobs,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies"
    cluster = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
    ours = "app.kubernetes.io/instance=trimtab"
    left = kind.kubectl("get", f"{kinds},{cluster},crds", "--all-namespaces", "--selector", ours, "--output=name")
    crds = {f"customresourcedefinition.apiextensions.k8s.io/{name}.trimtab.dev" for name in KEPT}
    assert set(left.split()) == crds
    assert lives(job.pods()) == before
    assert job.has(PODS_READY)
