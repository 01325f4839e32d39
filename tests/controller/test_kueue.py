"""Dealing with Kueue: who waits and who may have what, which gangs are stopped, what becomes of writes that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from tests.builders import A100, H100, JOB_SPEC, changed, node_object, placement, plan_of
from tests.devices import nvidia_gpu, slice_manifest
from tests.interop.tickets import admitted, condition, waiting

from trimtab import names
from trimtab.api.status import JobStatus, PendingStatus
from trimtab.apply.stops import StopOrder
from trimtab.apply.transitions import JobEvent
from trimtab.controller.cluster import Cluster
from trimtab.controller.kueue import admission as dealing
from trimtab.controller.kueue.admission import Kueue, Verdicts
from trimtab.controller.kueue.caches import KueueCaches
from trimtab.controller.kueue.cases import Cases
from trimtab.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound, Unreachable
from trimtab.interop.reply import Amend
from trimtab.kube import served_kinds
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.resources import RESOURCE_FLAVORS, WORKLOADS
from trimtab.observe.snapshot import ClusterObserver
from trimtab.settings import ReflectorSettings
from trimtab_policy.types import Bounds, PendingReason, StopCause

Json = dict[str, Any]


class Server:
    """Answers like an API server that knows Workloads, or fails with what it was given."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.calls: list[str] = []
        self.failures: list[Exception] = []
        self.version = 100

    async def create(self, path: str, obj: Json) -> bytes:
        self._called("create")
        if (there := f"{path}/{obj['metadata']['name']}") in self.objects:
            raise AlreadyExists("exists")
        return self._keep(there, obj | {"metadata": obj["metadata"] | {"uid": f"uid-{self.version}"}})

    async def get(self, path: str) -> bytes:
        self._called("get")
        return json.dumps(self.objects[path]).encode()

    async def merge_patch(self, path: str, patch: Json, *, subresource: str = "") -> bytes:
        self._called(f"patch {subresource}".strip())
        there = self.objects[path]
        if patch["metadata"]["resourceVersion"] != there["metadata"]["resourceVersion"]:
            raise Conflict("stale")
        return self._keep(path, there | {"status": there.get("status", {}) | patch.get("status", {})})

    async def delete(self, path: str, *, uid: str) -> bytes:
        self._called("delete")
        del self.objects[path]
        return b"{}"

    def _called(self, call: str) -> None:
        self.calls.append(call)
        if self.failures:
            raise self.failures.pop(0)

    def _keep(self, path: str, obj: Json) -> bytes:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = obj
        return json.dumps(obj).encode()


class World:
    """A job of 4 to 8 GPUs that names a LocalQueue, two nodes, and a Kueue that says what the test wants."""

    def __init__(self) -> None:
        self.server = Server()
        self.cluster = Cluster(
            cast(Any, self.server), ReflectorSettings(), lambda: None, Silent(), kueue=True, devices=True
        )
        assert self.cluster.kueue
        self.caches = self.cluster.kueue
        self.caches.presence = "Present"
        self.told: list[JobEvent] = []
        self.orders: list[StopOrder] = []
        self.promised: set[str] = set()
        self.cases = Cases(self.cluster, self.caches, ClusterObserver(()))
        self.kueue = Kueue(
            cast(Any, self.server),
            self.cluster,
            self.caches,
            self.cases,
            cast(Any, self),
            order_stop=lambda uid, order: self.orders.append(order),
            promised=lambda: self.promised,
            fail=lambda error: pytest.fail(str(error)),
        )
        self.node("n1")
        self.node("n2")
        self.write_job()
        self.flavor({})

    def job(self, meta: Any, happening: JobEvent) -> None:
        """The recorder's part."""
        self.told.append(happening)

    def node(self, name: str, gpu_type: str | None = A100, **changes: Any) -> None:
        made = node_object(name, gpu_type, **changes)
        raw = {
            "metadata": {"name": name, "uid": name, "labels": made.metadata.labels, "resourceVersion": self._next()},
            "status": {"allocatable": made.status.allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        self.cluster.nodes.apply_written(json.dumps(raw).encode())

    def write_job(self, status: JobStatus | None = None, **changes: Any) -> None:
        meta = {"name": "job", "namespace": "team", "uid": "uid-job", "labels": {names.LABEL_KUEUE_QUEUE: "gpus"}}
        spec = changed(JOB_SPEC, {"resources.gpus.min": 4} | changes)
        raw = {"metadata": meta | {"resourceVersion": self._next()}, "spec": spec}
        raw["status"] = status.to_wire() if status else {}
        self.cluster.jobs.apply_written(json.dumps(raw).encode())

    def flavor(self, labels: dict[str, str]) -> None:
        raw = {"metadata": {"name": "a100", "resourceVersion": self._next()}, "spec": {"nodeLabels": labels}}
        self.caches.flavors.apply_written(json.dumps(raw).encode())

    def claimed(self, *nodes: str) -> None:
        """Nodes with eight H100, of which only slices speak, and of a class without an extended resource."""
        devices = self.cluster.devices
        assert devices
        gpus = [nvidia_gpu(index) for index in range(8)]
        for name in nodes:
            made = {"metadata": {"name": name, "uid": name, "resourceVersion": self._next()}}
            ready = {
                "conditions": [{"type": "Ready", "status": "True"}],
                "allocatable": {"cpu": "128", "memory": "1Ti"},
            }
            self.cluster.nodes.apply_written(json.dumps(made | {"status": ready}).encode())
            slices = slice_manifest(name, gpus)
            slices["metadata"]["resourceVersion"] = self._next()
            devices.slices.apply_written(json.dumps(slices).encode())
        of = {"metadata": {"name": names.NVIDIA_DRIVER, "resourceVersion": self._next()}, "spec": {}}
        devices.classes.apply_written(json.dumps(of).encode())
        for each in (devices.slices, devices.claims, devices.classes):
            each.synced.set()
        devices.presence = "Present"

    async def asks(self) -> None:
        """A round, until nobody writes any more."""
        self.kueue.look()
        self.kueue.advance()
        await self.rest()

    async def rest(self) -> None:
        while tasks := [task for task in asyncio.all_tasks() if task.get_name().startswith("kueue ")]:
            await asyncio.gather(*tasks)

    def says(self, status: Json) -> None:
        """Kueue writes the status of the job's Workload."""
        (path,) = self.server.objects
        written = self.server._keep(path, self.server.objects[path] | {"status": status})
        self.caches.workloads.apply_written(written)

    def look(self) -> Verdicts:
        return self.kueue.look()

    def waits(self) -> str:
        """Why the job is held back."""
        pending = self.kueue.look().held_back["uid-job"]
        assert pending.reason is PendingReason.WAITING_FOR_ADMISSION
        return pending.message

    def _next(self) -> str:
        self.server.version += 1
        return str(self.server.version)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.kueue.stop()


def planned(nodes: dict[str, int], **changes: Any) -> JobStatus:
    return JobStatus(plan=plan_of(placement(nodes=nodes)), last_epoch=1, **changes)


async def test_gpus_of_a_device_class_are_seen_at_the_first_look_asked_for_and_had(world: World) -> None:
    """No round has been before: what a node has by its slices must not look like nothing."""
    world.claimed("c1", "c2", "c3")
    await world.asks()
    [workload] = world.server.objects.values()
    [podset] = workload["spec"]["podSets"]
    [container] = podset["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {names.CLASS_RESOURCES[0]: "1"}
    world.says(admitted(6))
    limited = world.look().limited["uid-job"].requirements
    assert limited
    assert limited.gpu_types == (H100,), "of other types none is called so"
    assert world.cases.types(names.NVIDIA_GPU) == {A100}


async def test_what_was_asked_for_stays_while_it_is_not_known_which_devices_there_are() -> None:
    before, after = World(), World()
    before.claimed("c1", "c2", "c3")
    await before.asks()
    [(path, workload)] = before.server.objects.items()
    after.server.objects, after.server.version = {path: workload}, before.server.version
    after.caches.workloads.apply_written(json.dumps(workload).encode())
    await after.asks()
    assert after.server.calls == []
    devices = after.cluster.devices
    assert devices
    devices.presence = "Absent"
    after.cases.refresh()
    assert isinstance(after.kueue._next("uid-job"), Amend), "no node has such GPUs"


async def test_a_job_asks_waits_and_is_limited_to_what_it_gets(world: World) -> None:
    assert "is being asked" in world.waits()
    await world.asks()
    assert world.server.calls == ["create"]
    assert "has not looked at" in world.waits()
    world.says(waiting())
    assert world.waits() == "Kueue (WaitingForQuota): no quota left"
    world.says(admitted(6))
    verdicts = world.look()
    assert verdicts.held_back == {}
    limited = verdicts.limited["uid-job"]
    assert limited.requirements
    assert limited.requirements.gpus == Bounds(4, 6)
    assert world.look().limited["uid-job"] is limited


async def test_flavors_limit_nodes_through_the_template_of_which_pods_are_made(world: World) -> None:
    await world.asks()
    world.says(admitted(8))
    world.flavor({"pool": "a"})
    facts = world.look().limited["uid-job"]
    assert facts.template["spec"]["nodeSelector"] == {"pool": "a"}
    assert world.cases.template(world_facts(world))["spec"]["nodeSelector"] == {"pool": "a"}


def world_facts(world: World) -> Any:
    (facts,) = world.kueue._cases.labelled()
    return facts


async def test_a_missing_flavor_holds_back_and_stops_nobody(world: World) -> None:
    await world.asks()
    world.says(admitted(8) | {"admission": {"clusterQueue": "c", "podSetAssignments": [other_flavor(8)]}})
    assert "ResourceFlavor other, which does not exist" in world.waits()
    world.write_job(planned({"n1": 8}))
    await world.asks()
    assert world.orders == []


def other_flavor(count: int) -> Json:
    return {"name": "main", "flavors": {names.NVIDIA_GPU: "other"}, "count": count}


async def test_where_gpus_are_called_differently_the_admitted_ones_count(world: World) -> None:
    labels = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"}
    world.node("n3", None, labels=labels, allocatable={names.NVIDIA_GPU: None, names.AMD_GPU: "8"})
    await world.asks()
    world.says(admitted(8))
    facts = world.look().limited["uid-job"]
    assert facts.requirements
    assert facts.requirements.gpu_types == (A100,)


async def test_a_gang_is_stopped_for_what_a_workload_says_and_only_then(world: World) -> None:
    world.write_job(planned({"n1": 8}))
    await world.asks()
    assert world.orders == []  # asked, and not looked at yet
    world.says(waiting("Inadmissible", "ClusterQueue c is inactive"))
    await world.asks()
    assert [(order.cause, order.epoch) for order in world.orders] == [(StopCause.EVICTED, 1)]
    assert world.orders[0].message == "Kueue (Inadmissible): ClusterQueue c is inactive"


@pytest.mark.parametrize(
    ("count", "labels", "message"),
    [
        (4, {}, "its plan has 8 GPUs, Kueue admits 4"),
        (8, {"pool": "a"}, "node n1 does not belong to what Kueue admits"),
    ],
)
async def test_a_gang_beyond_its_admission_is_stopped(
    world: World, count: int, labels: dict[str, str], message: str
) -> None:
    world.write_job(planned({"n1": 8}))
    await world.asks()
    world.flavor(labels)
    world.says(admitted(count))
    await world.asks()
    assert [order.message for order in world.orders] == [message]


async def test_while_it_is_not_known_whether_kueue_is_there_jobs_wait_and_gangs_run(world: World) -> None:
    world.caches.presence = "Unknown"
    assert "it is not known yet whether Kueue is installed" in world.waits()
    world.write_job(planned({"n1": 8}))
    await world.asks()
    assert (world.look(), world.orders, world.server.calls) == (Verdicts(), [], [])


async def test_without_kueue_the_label_means_nothing_but_to_those_who_waited(world: World) -> None:
    world.caches.presence = "Absent"
    assert world.look() == Verdicts()
    assert [each.reason for each in world.told] == [names.REASON_KUEUE_MISSING]
    world.write_job(JobStatus(pending=PendingStatus(reason=PendingReason.WAITING_FOR_ADMISSION, message="asked")))
    assert "Kueue is no longer installed" in world.waits()


async def test_a_refused_request_is_told_and_tried_again_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.server.failures = [Forbidden("admission webhook denied the request: no LocalQueue")]
    await world.asks()
    await world.asks()
    assert world.server.calls == ["create"]
    assert "no LocalQueue" in world.waits()
    assert [each.reason for each in world.told] == [names.REASON_KUEUE_REFUSED]
    assert 0 < world.kueue.next_deadline() <= dealing.RETRY_SECONDS
    later = dealing.time.monotonic() + 31
    monkeypatch.setattr(dealing.time, "monotonic", lambda: later)
    await world.asks()
    assert world.server.calls == ["create", "create"]
    assert "has not looked at" in world.waits()


async def test_a_workload_of_somebody_else_by_our_name_is_left_alone(world: World) -> None:
    await world.asks()
    (path,) = world.server.objects
    world.server.objects[path]["metadata"]["ownerReferences"][0]["uid"] = "somebody"
    other = World()
    other.server.objects = world.server.objects
    await other.asks()
    assert other.server.calls == ["create", "get"]
    assert "belongs to somebody else" in other.waits()


async def test_a_request_whose_answer_was_lost_is_found_again(world: World) -> None:
    await world.asks()
    successor = World()
    successor.server.objects = world.server.objects
    await successor.asks()
    assert successor.server.calls == ["create", "get"]
    assert "has not looked at" in successor.waits()


async def test_trouble_on_the_way_is_told_and_overcome(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing.Backoff, "next", lambda self, retry_after: 0.0)
    world.server.failures = [Unreachable("webhook is down"), ApiError("500")]
    await world.asks()
    assert world.server.calls == ["create", "create", "create"]


async def test_who_was_overtaken_by_kueue_looks_again(world: World) -> None:
    await world.asks()
    world.says(admitted(8, condition("Evicted", True, "Preempted", "make room")))
    (path,) = world.server.objects
    world.server._keep(path, world.server.objects[path])  # Kueue writes once more, and we have not heard of it
    await world.asks()
    assert world.server.calls == ["create", "patch status", "get", "patch status"]


async def test_quota_is_kept_while_a_plan_is_about_to_be_written(world: World) -> None:
    await world.asks()
    world.says(admitted(8, condition("Evicted", True, "Preempted", "make room")))
    world.promised = {"uid-job"}
    await world.asks()
    assert world.server.calls == ["create"]


async def test_a_job_that_names_a_missing_priority_class_does_not_ask_yet(world: World) -> None:
    world.write_job(priorityClassName="later")
    await world.asks()
    assert world.server.calls == []


async def test_a_checkpoint_that_needs_its_degrees_again_needs_as_many_gpus(world: World) -> None:
    saved = plan_of(placement(nodes={"n1": 8})).parallelism
    world.write_job(JobStatus(degrees=saved), **{"elasticity.checkpoint.resharding": False})
    await world.asks()
    (workload,) = world.server.objects.values()
    assert (workload["spec"]["podSets"][0]["count"], "minCount" in workload["spec"]["podSets"][0]) == (8, False)
    world.says(admitted(6))  # of an earlier, smaller request
    assert "Kueue has admitted 6 GPUs, the job needs 8" in world.waits()


async def test_a_suspended_job_withdraws_once(world: World) -> None:
    await world.asks()
    world.write_job(suspend=True)
    await world.asks()
    await world.asks()
    assert world.server.calls == ["create", "delete"]


# --- coming and going ------------------------------------------------------------------------------------------------
class Cluster404:
    """An API server on which Kueue is installed, removed, and installed again."""

    def __init__(self) -> None:
        self.installed = asyncio.Event()
        self.removed = asyncio.Event()

    def install(self) -> None:
        self.installed.set()
        self.removed.clear()

    def remove(self) -> None:
        self.installed.clear()
        self.removed.set()

    async def get(self, path: str) -> bytes:
        if not self.installed.is_set():
            raise NotFound(path)
        return json.dumps({"resources": [{"name": WORKLOADS.plural}, {"name": RESOURCE_FLAVORS.plural}]}).encode()

    async def pages(self, path: str, page_size: int, params: Json) -> AsyncIterator[bytes]:
        await self.get(path)
        yield b'{"metadata": {"resourceVersion": "1"}, "items": []}'

    async def watch(self, path: str, params: Json) -> AsyncIterator[list[bytes]]:
        yield []
        await self.removed.wait()
        raise NotFound(path)


async def test_kueue_may_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_kinds, "ASK_SECONDS", 0.02)
    monkeypatch.setattr(served_kinds, "DOUBT_SECONDS", 0.01)
    server, news = Cluster404(), asyncio.Event()
    kept = KueueCaches(cast(Any, server), ReflectorSettings(), news.set, Silent())
    assert kept.presence == "Unknown"
    running = asyncio.create_task(kept.run())
    try:
        for act, presence in ((lambda: None, "Absent"), (server.install, "Present"), (server.remove, "Absent")) * 2:
            cast(Callable[[], None], act)()
            async with asyncio.timeout(10):
                while kept.presence != presence:
                    await news.wait()
                    news.clear()
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
