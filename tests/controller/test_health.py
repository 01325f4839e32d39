"""What is written and told of judgements, when, and what an agent's report wakes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from hack.bench.simulated_cluster import World
from tests.builders import NOW, fault, gpu_reading, gpunode_object, node_object
from tests.live.harness import eventually

from trimtab import names
from trimtab.apply.transitions import JobEvent
from trimtab.controller.cluster import Cluster
from trimtab.controller.nodes import health
from trimtab.controller.nodes.health import Health, conditions
from trimtab.errors import ApiError, LeadershipLost, NotFound, Overloaded
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.resources import GPUNODES
from trimtab.observe import telemetry
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.health import WITHDRAWN, HealthCondition
from trimtab.observe.snapshot import Caches, ClusterObserver
from trimtab.settings import ReflectorSettings, TelemetrySettings

SETTINGS = TelemetrySettings(grace_seconds=30, recovery_seconds=300)
BROKEN = [gpu_reading(index, faults=[fault(code=79)] if index == 3 else []) for index in range(8)]


class Bench:
    """A controller's part in this, with the API server played."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answers: list[ApiError] = []
        """What goes wrong, one request after the other."""
        self.written: list[dict[str, Any]] = []
        self.told: list[str] = []
        self.gpunodes: None = None
        """As of `Cluster`."""
        self.heard = GpuNodes(SETTINGS, clock=lambda: self.now, wall=lambda: NOW + self.now)
        self.observer = ClusterObserver((), self.heard)
        this = cast(Any, self)
        self.health = Health(this, this, self.heard, this)

    async def apply(self, path: str, body: dict[str, Any], *, subresource: str) -> bytes:
        """As of `KubeClient`."""
        assert (path, subresource) == (GPUNODES.path(name=body["metadata"]["name"]), "status")
        if self.answers:
            raise self.answers.pop(0)
        self.written.append(body)
        return b"{}"

    def gpu_node(self, name: str, uid: str, happening: JobEvent) -> None:
        """As of `EventRecorder`."""
        self.told.append(f"{name} {happening.type} {happening.reason}")

    def report(self, name: str = "n1", gpus: int | list[dict[str, Any]] = 8, **changes: Any) -> None:
        conditions = [each for body in self.written[-1:] for each in body["status"]["conditions"]]
        self.heard.take(gpunode_object(name, gpus, conditions=conditions, **changes))

    def round(self) -> None:
        self.health.tell(self.observer.observe(Caches([node_object("n1"), node_object("n2")], [], []), NOW))

    def conditions(self) -> list[tuple[str, str]]:
        return [(c["status"], c["reason"]) for body in self.written for c in body["status"]["conditions"]]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        writing = asyncio.create_task(self.health.run())
        try:
            yield
        finally:
            writing.cancel()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(health, "PAUSE_SECONDS", 0.0)
    return Bench()


async def until(bench: Bench, count: int) -> None:
    await eventually(lambda: len(bench.written) >= count, what=lambda: str(bench.written), pause=0.01)


# --- conditions ----------------------------------------------------------------------------------------------------
async def test_nothing_but_the_condition_is_applied_and_only_to_that_very_object(bench: Bench) -> None:
    async with bench.running():
        bench.report(gpus=BROKEN)
        bench.round()
        await until(bench, 1)
    [body] = bench.written
    [condition] = body["status"].pop("conditions")
    assert body == {
        "apiVersion": "trimtab.dev/v1alpha1",
        "kind": "GPUNode",
        "metadata": {"name": "n1", "uid": "gpunode-n1"},
        "status": {},
    }
    assert condition.pop("message").startswith("GPU 3: XID 79")
    assert condition == {
        "type": "Healthy",
        "status": "False",
        "reason": "XidFatal",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }


async def test_a_condition_is_written_when_it_changes_and_its_time_moves_with_its_status(bench: Bench) -> None:
    async with bench.running():
        for count, (after, changes) in enumerate(
            [(0, {}), (10, {"gpus": BROKEN}), (20, {"bootId": "second"}), (300, {"bootId": "second"})], start=1
        ):
            bench.now += after
            bench.report(observed=count, **changes)
            bench.round()
            bench.round()
            await until(bench, count)
            bench.report(observed=count, **changes)  # the watch shows what was written
            bench.round()
    assert bench.conditions() == [
        ("True", "NoFaults"),
        ("False", "XidFatal"),
        ("Unknown", "Recovering"),
        ("True", "NoFaults"),
    ]
    times = [body["status"]["conditions"][0]["lastTransitionTime"] for body in bench.written]
    assert times == ["2026-01-02T03:04:05Z", "2026-01-02T03:04:15Z", "2026-01-02T03:04:35Z", "2026-01-02T03:09:35Z"]
    assert bench.told == ["n1 Warning XidFatal", "n1 Normal Recovering", "n1 Normal NoFaults"]


async def test_what_could_not_be_written_is_written_later(bench: Bench) -> None:
    bench.answers = [Overloaded("wait"), ApiError("again")]
    async with bench.running():
        bench.report()
        bench.round()
        await until(bench, 1)
    assert bench.conditions() == [("True", "NoFaults")]


async def test_an_object_that_is_gone_is_let_go(bench: Bench) -> None:
    bench.answers = [NotFound("gone")]
    async with bench.running():
        bench.report("n1")
        bench.report("n2")
        bench.round()
        await until(bench, 1)
        await asyncio.sleep(0)
    assert [body["metadata"]["name"] for body in bench.written] == ["n2"]


async def test_whoever_lost_the_leadership_writes_no_more(bench: Bench) -> None:
    bench.answers = [cast(Any, LeadershipLost("somebody else leads"))]
    bench.report()
    bench.round()
    with pytest.raises(LeadershipLost):
        await bench.health.run()


# --- what wakes a round --------------------------------------------------------------------------------------------
def as_object(name: str, **changes: Any) -> dict[str, Any]:
    made = gpunode_object(name, **changes)
    return {"metadata": {"name": name}, "status": json.loads(bytes(made.status))}


async def test_a_heartbeat_of_an_agent_wakes_nobody_and_a_fault_does() -> None:
    wakes: list[str] = []
    world = World([])
    world.put(GPUNODES, as_object("n1"))
    heard = GpuNodes(SETTINGS)
    source, observer = cast(Any, world), Silent()
    cluster = Cluster(source, ReflectorSettings(), lambda: wakes.append("wake"), observer, gpunodes=heard)
    following = asyncio.create_task(cluster.run())
    try:
        await cluster.synced()
        assert cluster.gpunodes
        wakes.clear()
        [known] = world.items(GPUNODES)
        for number in range(1, 4):
            status = {**known["status"], "observedTime": f"report {number}"}
            world.tell(GPUNODES, {**known, "status": status})
        await eventually(lambda: b"report 3" in bytes(_status(cluster)), pause=0.01)
        assert wakes == []
        broken = as_object("n1", gpus=BROKEN, observed=4)
        world.tell(GPUNODES, {**known, "status": broken["status"]})
        await eventually(lambda: wakes == ["wake"], what=lambda: str(wakes), pause=0.01)
    finally:
        following.cancel()


def _status(cluster: Cluster) -> bytes:
    assert cluster.gpunodes
    return bytes(cluster.gpunodes.items["n1"].status)


@pytest.mark.parametrize("contained", [False, True])
def test_what_a_new_controller_needs_to_know_is_a_condition_and_not_a_word(contained: bool) -> None:
    """Whether the broken GPUs had been taken away: whatever the message says of that."""
    said = conditions(HealthCondition("False", names.REASON_XID_FATAL, WITHDRAWN, contained), NOW)
    assert [each["type"] for each in said] == ["Healthy", "FaultContained"][: 1 + contained]
    judged = telemetry.read_telemetry(gpunode_object(conditions=said)).judged
    assert judged
    assert (judged.contained, judged.message, judged.since) == (contained, WITHDRAWN, NOW)
