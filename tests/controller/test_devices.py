"""ResourceSlices and claims: followed where they are served, and believed once all of them are there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import pytest
from tests.builders import job_object, owned_by
from tests.devices import slice_manifest

from trimtab.controller.cluster import Cluster
from trimtab.errors import Forbidden, NotFound
from trimtab.kube import served_kinds
from trimtab.kube.devices import DeviceCaches
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from trimtab.settings import ReflectorSettings

KINDS = (RESOURCE_SLICES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES)
JOB = job_object("job").metadata.identity


class DeviceServer:
    """An API server that serves these kinds once it is upgraded, and lists claims once we may."""

    def __init__(self, *, upgraded: bool = True, allowed: bool = True) -> None:
        self.upgraded, self.allowed = upgraded, allowed
        self.listed: list[str] = []
        self.asked = 0
        self.denials: list[Exception] = []
        """What is said next of which kinds there are."""
        self.ended = asyncio.Event()

    def remove(self) -> None:
        """Turn the API off: watches end, and there is nothing to list."""
        self.upgraded = False
        self.ended.set()

    async def get(self, path: str) -> bytes:
        self.asked += 1
        if self.denials:
            raise self.denials.pop(0)
        if not self.upgraded:
            raise NotFound(path)
        return json.dumps({"resources": [{"name": kind.plural} for kind in KINDS]}).encode()

    async def pages(self, path: str, page_size: int, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        kind = path.rpartition("/")[2]
        if not self.upgraded:
            raise NotFound(path)
        if kind == RESOURCE_CLAIMS.plural and not self.allowed:
            raise Forbidden("not yours")
        self.listed.append(kind)
        one = slice_manifest("n1", [])
        one["metadata"] |= {"resourceVersion": "1", "uid": "u"}
        template: dict[str, Any] = {
            "metadata": {"name": "job-1", "namespace": "default", "uid": "t", "resourceVersion": "1"}
        }
        template["metadata"]["ownerReferences"] = [owned_by("job")]
        items = {RESOURCE_SLICES.plural: [one], RESOURCE_CLAIM_TEMPLATES.plural: [template]}.get(kind, [])
        yield json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[list[bytes]]:
        yield []
        await self.ended.wait()
        raise NotFound(path)


async def listed(*reflectors: Reflector[Any]) -> None:
    async with asyncio.timeout(20):
        for reflector in reflectors:
            await reflector.synced.wait()


@pytest.fixture
async def follow() -> AsyncIterator[Callable[[DeviceServer], Cluster]]:
    running: list[asyncio.Task[None]] = []

    def start(server: DeviceServer) -> Cluster:
        settings = ReflectorSettings()
        cluster = Cluster(cast(Any, server), settings, lambda: None, Silent(), devices=True, claim_templates=True)
        assert cluster.devices
        running.append(asyncio.create_task(cluster.devices.run()))
        return cluster

    yield start
    for task in running:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def caches(cluster: Cluster) -> DeviceCaches:
    assert cluster.devices
    return cluster.devices


async def test_what_is_served_is_followed(follow: Callable[[DeviceServer], Cluster]) -> None:
    server = DeviceServer()
    cluster = follow(server)
    await asyncio.wait_for(caches(cluster).known.wait(), 20)
    assert sorted(server.listed) == sorted(kind.plural for kind in KINDS)
    assert [each.spec.node_name for each in cluster.caches().slices] == ["n1"]


async def test_where_it_is_not_served_nothing_is_asked_but_that_until_the_cluster_is_upgraded(
    follow: Callable[[DeviceServer], Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_kinds, "ASK_SECONDS", 0.01)
    server = DeviceServer(upgraded=False)
    cluster = follow(server)
    await asyncio.wait_for(caches(cluster).known.wait(), 20)
    assert (server.listed, list(cluster.caches().slices), cluster.claim_templates_of(JOB)) == ([], [], None)
    server.upgraded = True
    known = caches(cluster)
    await listed(known.slices, known.claims, known.classes, known.templates)
    assert len(list(cluster.caches().slices)) == 1


async def test_slices_do_not_count_while_the_claims_are_not_known(follow: Callable[[DeviceServer], Cluster]) -> None:
    server = DeviceServer(allowed=False)
    cluster = follow(server)
    await listed(caches(cluster).slices, caches(cluster).templates)
    assert list(cluster.caches().slices) == [], "GPUs of others would look free"
    assert not caches(cluster).known.is_set()
    assert cluster.claim_templates_of(JOB) is None
    server.allowed = True
    await listed(caches(cluster).claims)
    assert len(list(cluster.caches().slices)) == 1
    assert [each.name for each in cluster.claim_templates_of(JOB) or ()] == ["job-1"]


async def becomes(cluster: Cluster, presence: str) -> None:
    for _ in range(2000):
        if caches(cluster).presence == presence:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{caches(cluster).presence}, and not {presence}")


async def test_what_is_served_no_longer_is_forgotten_until_it_is_served_again(
    follow: Callable[[DeviceServer], Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_kinds, "ASK_SECONDS", 0.02)
    monkeypatch.setattr(served_kinds, "DOUBT_SECONDS", 0.01)
    server = DeviceServer()
    cluster = follow(server)
    for _ in range(2):
        await becomes(cluster, "Present")
        assert len(list(cluster.caches().slices)) == 1
        assert len(cluster.claim_templates_of(JOB) or ()) == 1
        server.remove()
        await becomes(cluster, "Absent")
        assert (list(cluster.caches().slices), cluster.claim_templates_of(JOB)) == ([], None)
        assert not caches(cluster).slices.items
        server.upgraded = True
        server.ended.clear()


@pytest.mark.parametrize("denials", [[NotFound("an old API server")] * 2, [Forbidden("not yours")] * 10])
async def test_one_api_server_that_does_not_know_them_or_an_answer_of_nobody_who_knows_changes_nothing(
    follow: Callable[[DeviceServer], Cluster], monkeypatch: pytest.MonkeyPatch, denials: list[Exception]
) -> None:
    monkeypatch.setattr(served_kinds, "ASK_SECONDS", 0.02)
    monkeypatch.setattr(served_kinds, "DOUBT_SECONDS", 0.01)
    server = DeviceServer()
    cluster = follow(server)
    await becomes(cluster, "Present")
    server.denials += denials
    asked = server.asked
    async with asyncio.timeout(20):
        while server.asked < asked + len(denials) + 2:
            assert len(list(cluster.caches().slices)) == 1
            await asyncio.sleep(0.01)
    assert caches(cluster).presence == "Present"


async def test_what_a_slice_said_before_it_could_not_be_read_does_not_count(
    follow: Callable[[DeviceServer], Cluster],
) -> None:
    cluster = follow(DeviceServer())
    await asyncio.wait_for(caches(cluster).known.wait(), 20)
    [name] = caches(cluster).slices.items
    caches(cluster).slices.unreadable[name] = "devices: expected an array"
    assert list(cluster.caches().slices) == []


async def test_a_template_is_the_jobs_that_controls_it(follow: Callable[[DeviceServer], Cluster]) -> None:
    cluster = follow(DeviceServer())
    await asyncio.wait_for(caches(cluster).known.wait(), 20)
    forged = {"name": "x", "namespace": "default", "uid": "x", "ownerReferences": [owned_by("job", controller=False)]}
    caches(cluster).templates.apply_written(json.dumps({"metadata": {**forged, "resourceVersion": "2"}}).encode())
    assert [template.name for template in cluster.claim_templates_of(JOB) or ()] == ["job-1"]


def test_nobody_follows_what_nobody_asked_for() -> None:
    unused: Any = None
    cluster = Cluster(unused, ReflectorSettings(), lambda: None, Silent())
    assert cluster.devices is None
    assert cluster.claim_templates_of(JOB) is None


class TaintRuleServer(DeviceServer):
    """One that serves DeviceTaintRules, and nothing else of that group."""

    async def get(self, path: str) -> bytes:
        return json.dumps({"resources": [{"name": DEVICE_TAINT_RULES.plural}]}).encode()

    async def pages(self, path: str, page_size: int, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        if not path.endswith(DEVICE_TAINT_RULES.plural):
            raise NotFound(path)
        rule = {
            "metadata": {"name": "broken", "resourceVersion": "1", "uid": "r"},
            "spec": {"deviceSelector": {"pool": "n1"}, "taint": {"key": "k", "effect": "NoSchedule"}},
        }
        yield json.dumps({"metadata": {"resourceVersion": "1"}, "items": [rule]}).encode()


async def test_taint_rules_are_followed_where_they_are_served() -> None:
    cluster = Cluster(cast(Any, TaintRuleServer()), ReflectorSettings(), lambda: None, Silent(), devices=True)
    assert cluster.taint_rules
    assert list(cluster.caches().taint_rules) == []
    task = asyncio.create_task(cluster.taint_rules.run())
    await asyncio.wait_for(cluster.taint_rules.known.wait(), 20)
    assert [each.metadata.name for each in cluster.caches().taint_rules] == ["broken"]
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
