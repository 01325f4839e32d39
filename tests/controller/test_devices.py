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

from trimtab.controller import devices
from trimtab.controller.cluster import Cluster
from trimtab.controller.devices import DeviceCaches
from trimtab.errors import Forbidden, NotFound
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from trimtab.settings import ReflectorSettings

KINDS = (RESOURCE_SLICES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES)
JOB = job_object("job").metadata.identity


class DeviceServer:
    """An API server that serves these kinds once it is upgraded, and lists claims once we may."""

    def __init__(self, *, upgraded: bool = True, allowed: bool = True) -> None:
        self.upgraded, self.allowed = upgraded, allowed
        self.listed: list[str] = []

    async def get(self, path: str) -> bytes:
        if not self.upgraded:
            raise NotFound(path)
        return json.dumps({"resources": [{"name": kind.plural} for kind in KINDS]}).encode()

    async def pages(self, path: str, page_size: int, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        kind = path.rpartition("/")[2]
        if kind == RESOURCE_CLAIMS.plural and not self.allowed:
            raise Forbidden("not yours")
        self.listed.append(kind)
        one = slice_manifest("n1", [])
        one["metadata"] |= {"resourceVersion": "1", "uid": "u"}
        items = [one] if kind == RESOURCE_SLICES.plural else []
        yield json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[list[bytes]]:
        yield []
        await asyncio.Event().wait()


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
    monkeypatch.setattr(devices, "ASK_SECONDS", 0.01)
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
    assert cluster.claim_templates_of(JOB) == ()


async def test_a_template_is_the_jobs_that_controls_it(follow: Callable[[DeviceServer], Cluster]) -> None:
    cluster = follow(DeviceServer())
    await asyncio.wait_for(caches(cluster).known.wait(), 20)
    meta = {"name": "job-1", "namespace": "default", "uid": "t", "ownerReferences": [owned_by("job")]}
    forged = {**meta, "name": "x", "uid": "x", "ownerReferences": [owned_by("job", controller=False)]}
    for each in (meta, forged):
        caches(cluster).templates.apply_written(json.dumps({"metadata": {**each, "resourceVersion": "2"}}).encode())
    assert [template.name for template in cluster.claim_templates_of(JOB) or ()] == ["job-1"]


def test_nobody_follows_what_nobody_asked_for() -> None:
    unused: Any = None
    cluster = Cluster(unused, ReflectorSettings(), lambda: None, Silent())
    assert cluster.devices is None
    assert cluster.claim_templates_of(JOB) is None
