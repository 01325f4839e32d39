"""What the controller remembers of a gang that kube-scheduler binds: a clock, refused nodes, and its latest words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.builders import owned_by

from trimtab.controller import views
from trimtab.controller.cluster import Cluster
from trimtab.controller.views import REFUSED_SECONDS, TAKEN_OVER_SECONDS, DriverState, Views
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.objects import Identity, PodObject
from trimtab.settings import BindingSettings, GangSettings, ReflectorSettings, Settings

JOB = Identity("default/job", "uid-job")


class Clock:
    """A monotonic clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1.7e9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(views, "time", clock)
    return clock


def of_mode(mode: Any, clock: Clock, seconds: float = 30.0) -> Views:
    unused: Any = None
    settings = Settings(
        binding=BindingSettings(mode=mode, timeout_seconds=seconds), gang=GangSettings(bind_timeout_seconds=seconds / 2)
    )
    return Views(unused, unused, settings, clock.time)


@pytest.mark.parametrize(
    ("mode", "pods", "limit"), [("Extender", 64, 30.0), ("Extender", 4096, 81.92), ("Direct", 4096, 15.0)]
)
def test_kube_scheduler_gets_more_time_for_a_gang_that_is_very_large(
    clock: Clock, mode: str, pods: int, limit: float
) -> None:
    gang = DriverState()
    of_mode(mode, clock).begin_binding(gang, pods)
    assert (gang.binding_since, gang.binding_limit) == (1000.0, limit)


def test_the_clock_of_a_gang_starts_once(clock: Clock) -> None:
    gang, by_scheduler = DriverState(), of_mode("Extender", clock)
    by_scheduler.begin_binding(gang, 8)
    clock.now += 5
    by_scheduler.begin_binding(gang, 8)
    assert gang.binding_since == 1000.0


@pytest.mark.parametrize(("ago", "left"), [(10.0, 20.0), (1e6, TAKEN_OVER_SECONDS), (-600.0, 30.0)])
def test_what_another_controller_released_has_only_the_time_that_is_left(clock: Clock, ago: float, left: float) -> None:
    gang, by_scheduler = DriverState(), of_mode("Extender", clock)
    by_scheduler.begin_binding(gang, 8, planned=clock.time() - ago)
    assert gang.binding_since is not None
    assert gang.binding_since + gang.binding_limit - clock.now == pytest.approx(left, abs=1e-5)


def test_refused_nodes_are_forgotten_each_in_its_time(clock: Clock) -> None:
    gang, by_scheduler = DriverState(), of_mode("Extender", clock)
    by_scheduler.refuse(gang, ["n1", "n2"])
    clock.now += REFUSED_SECONDS - 1
    by_scheduler.refuse(gang, ["n2"])
    assert by_scheduler.refused_nodes(gang) == {"n1", "n2"}
    clock.now += 1
    assert by_scheduler.refused_nodes(gang) == {"n2"}


def pod(version: int, message: str, reason: str = "Unschedulable") -> bytes:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    metadata = {"name": "job-1-0", "namespace": "default", "uid": "u", "resourceVersion": str(version)}
    status = {"phase": "Pending", "conditions": [condition]}
    return json.dumps({"metadata": {**metadata, "ownerReferences": [owned_by("job")]}, "status": status}).encode()


async def test_new_words_of_kube_scheduler_are_kept_and_wake_nobody() -> None:
    changes: list[None] = []
    unused: Any = None
    cluster = Cluster(unused, ReflectorSettings(), lambda: changes.append(None), Silent())

    def message() -> str:
        found: tuple[PodObject, ...] = cluster.pods_of(JOB.digest)
        return found[0].status.conditions[0].message

    cluster.pods.apply_written(pod(1, "0/5 nodes are available"))
    cluster.pods.apply_written(pod(2, "0/6 nodes are available"))
    assert (message(), len(changes)) == ("0/6 nodes are available", 1)
    cluster.pods.apply_written(pod(3, "connection refused", "SchedulerError"))
    assert (message(), len(changes)) == ("connection refused", 2)


async def test_where_nobody_asked_for_pod_groups_there_are_none() -> None:
    unused: Any = None
    assert Cluster(unused, ReflectorSettings(), lambda: None, Silent()).pod_groups_of(JOB) is None
    asked = Cluster(unused, ReflectorSettings(), lambda: None, Silent(), pod_groups=True)
    assert asked.pod_groups_of(JOB) is None, "not listed yet"
