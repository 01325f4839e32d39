"""A program fails, and a broken GPU is told of a moment later: whom the controller blames, and when."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.builders import (
    NOW,
    fault,
    gang_pod,
    gpu_reading,
    gpunode_object,
    job_object,
    leaving,
    node_object,
    placement,
    plan_of,
)

from trimtab.api.history import FailureCause
from trimtab.api.status import JobStatus
from trimtab.apply import transitions
from trimtab.apply.steps import JobContext, WriteStatus, next_step
from trimtab.controller import views
from trimtab.controller.cluster import Cluster
from trimtab.controller.views import HOLD_SECONDS, DriverState, Views
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.objects import NodeObject
from trimtab.observe import nodes
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.snapshot import ClusterObserver
from trimtab.settings import ReflectorSettings, Settings

META = job_object().metadata
GOING = {"deletionTimestamp": "2026-01-02T03:04:05Z", "resourceVersion": "9"}
NODES = ("n1", "n2")
BROKEN = [gpu_reading(index, "n2", faults=[fault(code=79)] if index == 3 else []) for index in range(8)]
EXITED = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": {"exitCode": 1}}}]}


class Stage:
    """A gang on two nodes, of which one program fails, and a clock that stands still unless it is moved."""

    def __init__(self, *, heard: bool = True) -> None:
        unused: Any = None
        self.now = 1000.0
        self.cluster = Cluster(unused, ReflectorSettings(), lambda: None, Silent())
        settings = Settings()
        self.gpunodes = GpuNodes(settings.telemetry, clock=self.monotonic, wall=self.time)
        self.views = Views(
            self.cluster, ClusterObserver((), self.gpunodes), settings, self.time, gpunodes=self.gpunodes
        )
        self.gang = DriverState()
        meta = job_object().metadata
        planned = transitions.planned(JobStatus(), meta, plan_of(placement(nodes=dict.fromkeys(NODES, 8))), NOW)
        running = transitions.scheduled(planned, meta, NOW, all_running=True)
        self.cluster.jobs.apply_written(msgspec.json.encode(job_object(status=running)))
        for rank, name in enumerate(NODES):
            self.cluster.nodes.apply_written(msgspec.json.encode(_numbered(node_object(name))))
            self.pod(rank, name)
            if heard:
                self.gpunodes.take(gpunode_object(name))
        self.look_at_gpus()

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return NOW + self.now

    def pod(self, rank: int, node: str, **status: Any) -> None:
        made = gang_pod("job", 1, rank, node, phase="Running", status=status)
        version = str(int(self.now) + bool(status))
        made = replace(made, metadata=replace(made.metadata, resource_version=version))
        self.cluster.pods.apply_written(msgspec.json.encode(made))

    def look_at_gpus(self) -> None:
        there = {name: facts for name in NODES if (facts := nodes.facts(node_object(name), ()))}
        self.gpunodes.look(there, lambda node: 8)

    def view(self) -> JobContext:
        found = self.views.sight("uid-job")
        assert found
        self.views.remember(self.gang, found)
        return self.views.view(self.gang, found)

    def blamed(self) -> FailureCause | None:
        """What the gang is given up for now, if it is."""
        written = [action.status for action in next_step(self.view()) if isinstance(action, WriteStatus)]
        return written[0].failures[-1].cause if written and written[0].failures else None


def _numbered(node: NodeObject) -> NodeObject:
    return replace(node, metadata=replace(node.metadata, resource_version="1"))


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()
    monkeypatch.setattr(views, "time", stage)
    return stage


async def test_a_program_that_fails_is_blamed_when_no_agent_has_told_of_a_broken_gpu_in_time(stage: Stage) -> None:
    stage.pod(0, "n1", **EXITED)
    assert stage.blamed() is None
    assert stage.gang.due == stage.time() + HOLD_SECONDS
    stage.now += HOLD_SECONDS - 1
    assert stage.blamed() is None
    stage.now += 1
    assert stage.blamed() is FailureCause.PROGRAM


async def test_a_gpu_that_breaks_on_another_node_of_the_gang_excuses_the_program_that_failed_first(
    stage: Stage,
) -> None:
    stage.pod(0, "n1", **EXITED)
    assert stage.blamed() is None
    stage.now += 1
    stage.gpunodes.take(gpunode_object("n2", BROKEN, observed=1))
    stage.look_at_gpus()
    assert stage.blamed() is FailureCause.GPU
    [action] = next_step(stage.view())
    assert isinstance(action, WriteStatus)
    assert (action.status.failures[-1].node, action.status.restarts) == ("n2", 0)


async def test_where_no_agent_reports_nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(heard=False)
    monkeypatch.setattr(views, "time", stage)
    stage.pod(0, "n1", **EXITED)
    assert stage.blamed() is FailureCause.PROGRAM


def test_nothing_but_the_end_of_its_pods_is_due_for_a_job_that_is_being_deleted() -> None:
    stage = Stage()
    stage.gang.due, stage.gang.binding_since = NOW, 1.0
    going = job_object(deletion_timestamp="2026-01-02T03:04:05Z", resource_version="2")
    stage.cluster.jobs.apply_written(msgspec.json.encode(going))
    assert stage.view().being_deleted
    assert (stage.gang.due, stage.gang.binding_since) == (math.inf, None)


def test_a_plan_is_given_up_where_those_it_waits_for_do_not_go_and_a_gang_that_runs_is_not() -> None:
    stage = Stage()
    plan = plan_of(placement(nodes={"n1": 8}), 2, waits_for=(leaving("old", 4),))
    planned = transitions.planned(JobStatus(), META, plan, NOW)
    stuck = gang_pod("old", 4, 0, "n1", phase="Running", metadata=GOING)
    stage.cluster.pods.apply_written(msgspec.json.encode(stuck))
    for version, status in enumerate((planned, transitions.scheduled(planned, META, NOW, all_running=True)), 2):
        written = job_object(status=status, resource_version=str(version))
        stage.cluster.jobs.apply_written(msgspec.json.encode(written))
        told = stage.view().setback
        assert (told.reason if told else None) == ("RoomNotMade" if status is planned else None)
