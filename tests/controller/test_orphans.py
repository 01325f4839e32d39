"""Pods of jobs that are gone are deleted by us, and those of a job that we only do not see yet are not."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, cast

import msgspec
import pytest
from tests.builders import NOW, gang_pod, job_object, node_object

from trimtab.controller.cluster import Cluster
from trimtab.controller.jobs import orphans
from trimtab.controller.jobs.orphans import AT_ONCE, Orphans
from trimtab.controller.loop.priority_semaphore import PrioritySemaphore
from trimtab.controller.views import Views
from trimtab.errors import NotFound, Unreachable
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.resources import JOBS, PODS
from trimtab.observe.snapshot import ClusterObserver
from trimtab.settings import ReflectorSettings, Settings
from trimtab.telemetry.metrics import REGISTRY

ENDS = {"deletionTimestamp": "2026-01-02T03:04:05Z", "deletionGracePeriodSeconds": 30}


class Api:
    """Jobs as the API server's store has them, and what it was asked for."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}
        """Path -> UID."""
        self.asked: list[str] = []
        self.deleted: list[tuple[str, str, int | None]] = []
        """Path, UID and grace period."""
        self.trouble: list[Exception] = []
        """What the next requests end with."""

    async def get(self, path: str) -> bytes:
        self.asked.append(path)
        if self.trouble:
            raise self.trouble.pop(0)
        if path not in self.jobs:
            raise NotFound(path, status=404)
        return json.dumps({"metadata": {"uid": self.jobs[path]}}).encode()

    async def delete(self, path: str, *, uid: str, grace_seconds: int | None) -> None:
        if self.trouble:
            raise self.trouble.pop(0)
        self.deleted.append((path, uid, grace_seconds))


class Stand:
    """Pods on a cluster whose watches show what the test writes."""

    def __init__(self) -> None:
        unused: Any = None
        self.api = Api()
        self.now = NOW
        self.version = 0
        self.cluster = Cluster(unused, ReflectorSettings(), lambda: None, Silent())
        self.views = Views(self.cluster, ClusterObserver(()), Settings(), lambda: self.now)
        client: Any = self.api
        self.orphans = Orphans(client, self.cluster, self.views, PrioritySemaphore(8), lambda: None)
        self.show(self.cluster.nodes, node_object("n1"))

    def show(self, reflector: Any, made: Any) -> None:
        self.version += 1
        raw = json.loads(msgspec.json.encode(made))
        raw["metadata"]["resourceVersion"] = str(self.version)
        reflector.apply_written(json.dumps(raw).encode())

    def pod(self, job: str = "gone", rank: int = 0, node: str = "n1", **metadata: Any) -> None:
        self.show(self.cluster.pods, gang_pod(job, 1, rank, node, phase="Running", metadata=metadata))

    async def look(self) -> int:
        """Begin what there is to do and wait until it is done; the number of jobs that something was begun for."""
        self.orphans.advance()
        tasks = [gang.task for gang in self.orphans._left.values() if gang.task]
        await asyncio.gather(*tasks)
        return len(tasks)


@pytest.fixture
async def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    monkeypatch.setattr(orphans, "AGAIN_SECONDS", 0.0)
    return Stand()


def path(rank: int = 0, job: str = "gone") -> str:
    return PODS.path("default", f"{job}-1-{rank}")


JOB = JOBS.path("default", "gone")


async def test_the_pods_of_a_job_that_is_not_there_are_deleted_by_their_uids(stand: Stand) -> None:
    stand.pod()
    stand.pod(rank=1)
    await stand.look()
    assert stand.api.asked == [JOB]
    assert stand.api.deleted == [(path(), "pod-gone-1-0", 30), (path(1), "pod-gone-1-1", 30)]
    assert not await stand.look(), "what was answered is not asked for again while nothing has shown it yet"


async def test_one_by_the_jobs_name_that_is_another_job_is_no_reason_to_keep_them(stand: Stand) -> None:
    stand.api.jobs[JOB] = "uid-of-the-next"
    stand.show(stand.cluster.jobs, job_object("gone", uid="uid-of-the-next"))
    stand.pod()
    await stand.look()
    assert len(stand.api.deleted) == 1


async def test_those_of_a_job_that_is_seen_are_not_even_asked_about(stand: Stand) -> None:
    stand.show(stand.cluster.jobs, job_object("gone"))
    stand.pod()
    assert not await stand.look()
    assert not stand.api.asked


async def test_those_of_a_job_that_its_watch_does_not_show_yet_stay_and_it_is_asked_for_again(stand: Stand) -> None:
    stand.api.jobs[JOB] = "uid-gone"
    stand.pod()
    assert await stand.look() == await stand.look() == 1
    assert stand.api.asked == [JOB, JOB]
    del stand.api.jobs[JOB]
    await stand.look()
    assert len(stand.api.deleted) == 1


@pytest.mark.parametrize("failing", [1, 2], ids=["the question", "the deletion"])
async def test_what_the_api_server_did_not_answer_is_done_again(stand: Stand, failing: int) -> None:
    stand.pod()
    if failing == 2:
        stand.api.jobs = cast(Any, Breaks(stand.api))
    else:
        stand.api.trouble = [Unreachable("no answer")]
    assert await stand.look() == 1
    assert not stand.api.deleted
    stand.api.jobs = {}
    assert await stand.look() == 1
    assert len(stand.api.deleted) == 1


class Breaks:
    """No job is there, and the request after the question for it ends without an answer."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def __contains__(self, path: str) -> bool:
        self._api.trouble = [Unreachable("no answer")]
        return False


async def test_a_pod_that_ends_already_is_left_to_do_so(stand: Stand) -> None:
    stand.pod(**ENDS)
    assert not await stand.look()


async def test_on_a_node_that_is_gone_it_is_deleted_by_force_as_nobody_else_would_end_it(stand: Stand) -> None:
    stand.pod(node="gone-node", **ENDS)
    await stand.look()
    assert stand.api.deleted == [(path(), "pod-gone-1-0", 0)]


async def test_a_pod_that_keeps_being_there_is_looked_at_again_in_time(stand: Stand) -> None:
    stand.pod(**ENDS)
    await stand.look()
    assert stand.now < stand.orphans.next_deadline() < math.inf


async def test_a_namespace_that_goes_with_thousands_takes_its_turn(stand: Stand) -> None:
    for number in range(AT_ONCE + 3):
        stand.pod(f"gone-{number:03}")
    assert await stand.look() == AT_ONCE
    assert await stand.look() == 3
    assert len(stand.api.deleted) == AT_ONCE + 3


async def test_jobs_that_are_there_and_cannot_be_read_are_in_nobodys_way(stand: Stand) -> None:
    for number in range(AT_ONCE):
        stand.pod(f"odd-{number:03}")
        stand.api.jobs[JOBS.path("default", f"odd-{number:03}")] = f"uid-odd-{number:03}"
    stand.pod()
    assert await stand.look() == await stand.look() == AT_ONCE
    assert [each[0] for each in stand.api.deleted] == [path()]


async def test_jobs_are_forgotten_when_their_pods_are_gone(stand: Stand) -> None:
    stand.pod()
    await stand.look()
    assert stand.orphans._left
    stand.cluster.pods._cache.remove(stand.cluster.pods.items["default/gone-1-0"].metadata)
    await stand.look()
    assert not stand.orphans._left
    assert stand.orphans.next_deadline() == math.inf


async def test_a_job_that_we_have_a_bug_for_holds_up_nobody_else(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    look, before = stand.views.last_sight, REGISTRY.get_sample_value("trimtab_driver_errors_total") or 0.0

    def broken(meta: Any, status: Any) -> Any:
        if meta.name == "cursed":
            raise ZeroDivisionError
        return look(meta, status)

    monkeypatch.setattr(stand.views, "last_sight", broken)
    stand.pod("cursed")
    stand.pod("blessed")
    assert await stand.look() == 1
    assert [each[0] for each in stand.api.deleted] == [path(job="blessed")]
    assert REGISTRY.get_sample_value("trimtab_driver_errors_total") == before + 1
