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
