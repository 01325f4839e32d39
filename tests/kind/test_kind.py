"""What users do with a cluster, and what befalls one: each test is one of these. The last one takes Trimtab away.

In the order of the file, on one cluster; each test leaves it as it has found it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.kind.conftest import GPUS, WORKERS, Job, Kind

from trimtab.names import COMPLETE, PODS_READY, SYSTEM_NAMESPACE

pytestmark = [pytest.mark.kind, pytest.mark.timeout(3000)]

Submit = Callable[..., Job]
KEPT = ("gpunodes", "llmtrainingjobs", "queues")
"""CustomResourceDefinitions, which `helm uninstall` leaves (crds.keep)."""


def nodes_of(pods: list[dict[str, Any]]) -> list[str]:
    return [pod["spec"].get("nodeName", "") for pod in pods]


def lives(pods: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """Of each pod: who it is, since when it runs, and how often it was started again."""
    return [
        (pod["metadata"]["uid"], pod["status"]["startTime"], each["restartCount"])
        for pod in pods
        for each in pod["status"]["containerStatuses"]
    ]


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


def test_a_gang_of_two_pods_meets_on_two_nodes_and_ends(kind: Kind, submit: Submit) -> None:
    job = submit("meeting", seconds=3)
    job.wait(COMPLETE)
    pods = job.pods()
    assert len(set(nodes_of(pods))) == len(pods) == 2
    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * 2
    assert [job.said(pod).splitlines()[-1] for pod in pods] == ["rank 0 of 2 is done", "rank 1 of 2 is done"]
    assert job.epoch == 1


def test_an_upgrade_restarts_nothing(kind: Kind, submit: Submit) -> None:
    job = submit("upgraded", seconds=3600)
    job.wait(PODS_READY)
    before, controllers = lives(job.pods()), kind.system_pods("trimtab-controller")
    kind.upgrade("--set=log.level=debug")
    after = kind.system_pods("trimtab-controller")
    assert {pod["metadata"]["uid"] for pod in after}.isdisjoint(pod["metadata"]["uid"] for pod in controllers)
    late = submit("late", seconds=1, gpus=GPUS)  # that it ends shows that the new controller has looked at everything
    late.wait(COMPLETE)
    assert lives(job.pods()) == before
    assert job.has(PODS_READY)
    assert job.epoch == 1


def test_a_controller_that_dies_while_it_binds_leaves_no_half_gang(kind: Kind, submit: Submit) -> None:
    job = submit("orphaned", seconds=1)
    kind.eventually(job.pods, 60, "the first pod of the gang")
    for pod in kind.system_pods("trimtab-controller"):
        kind.kubectl(
            "delete", "pod", pod["metadata"]["name"], f"--namespace={SYSTEM_NAMESPACE}", "--grace-period=0", "--force"
        )
    job.wait(COMPLETE, 300)
    pods = job.pods()
    planned = [node["name"] for node in job.status["plan"]["nodes"]]
    assert sorted(nodes_of(pods)) == sorted(planned)
    assert {job.said(pod).splitlines()[-1] for pod in pods} == {"rank 0 of 2 is done", "rank 1 of 2 is done"}


def test_a_gang_that_loses_a_node_goes_on_elsewhere(kind: Kind, submit: Submit) -> None:
    job = submit("moved", seconds=60)
    job.wait(PODS_READY)
    nodes, epoch = nodes_of(job.pods()), job.epoch
    controller = nodes_of(kind.system_pods("trimtab-controller"))
    lost = next(node for node in nodes if node not in controller)
    kind.run("docker", "stop", lost)
    try:
        kind.eventually(lambda: job.epoch > epoch, 240, "another plan")
        job.wait(PODS_READY)
        now = [pod for pod in job.pods() if pod["metadata"]["labels"]["trimtab.dev/epoch"] == str(job.epoch)]
        assert len(set(nodes_of(now))) == len(now) == 2
        assert lost not in nodes_of(now)
    finally:
        kind.run("docker", "start", lost)
        kind.kubectl("wait", "--for=condition=Ready", f"node/{lost}", "--timeout=120s")
    job.wait(COMPLETE, 300)
    # Its GPUs come back with it: nobody has to patch the node again by hand.
    back = f"--for=jsonpath={{.status.allocatable.nvidia\\.com/gpu}}={GPUS}"
    kind.kubectl("wait", back, f"node/{lost}", "--timeout=60s")


def test_without_the_extender_nothing_is_bound_and_with_it_all(kind: Kind, submit: Submit) -> None:
    extender = ("--set=binding.mode=Extender", "--set=extender.enabled=true", "--set=scheduler.enabled=true")
    kind.upgrade(*extender, "--set=scheduler.replicas=1", "--set=scheduler.podDisruptionBudget.enabled=false")
    scale = ("scale", "deployment/trimtab-extender", f"--namespace={SYSTEM_NAMESPACE}")
    kind.kubectl(*scale, "--replicas=0")
    kind.eventually(lambda: not kind.system_pods("trimtab-extender"), 60, "the extender to go")
    job = submit("extended", seconds=1)
    kind.eventually(lambda: len(job.pods()) == 2 and job.pods(), 60, "the gang's pods")
    refused = ("events", "--for=ltj/extended")
    kind.eventually(lambda: "FailedScheduling" in pod_events(kind, job), 60, "kube-scheduler to try")
    assert nodes_of(job.pods()) == ["", ""], kind.kubectl(*refused)
    kind.kubectl(*scale, "--replicas=2")
    job.wait(COMPLETE, 300)
    assert len(set(nodes_of(job.pods()))) == 2
    kind.upgrade("--set=binding.mode=Direct", "--set=extender.enabled=false", "--set=scheduler.enabled=false")


def pod_events(kind: Kind, job: Job) -> str:
    """What was told about the pods of a job."""
    return "".join(kind.kubectl("events", f"--for=pod/{pod['metadata']['name']}") for pod in job.pods())


def test_uninstalling_leaves_jobs_and_what_defines_them(kind: Kind, submit: Submit) -> None:
    job = submit("left", seconds=3600)
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
