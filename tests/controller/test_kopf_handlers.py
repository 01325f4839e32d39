"""Our kopf handlers against kmock, the mock server of kopf's author: what they listen to, and that they only wake."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import kmock as mock
import pytest
import yaml

from trimtab import names
from trimtab.controller.kopf_events import Wakeups
from trimtab.kube.resources import JOBS, QUEUES, Resource
from trimtab.settings import KubeSettings

KINDS = {
    "v1/namespaces": "Namespace",
    "v1/events": "Event",
    "v1/pods": "Pod",
    "v1/nodes": "Node",
    "apiextensions.k8s.io/v1/customresourcedefinitions": "CustomResourceDefinition",
    f"{names.API_VERSION}/{names.JOB_PLURAL}": names.JOB_KIND,
    f"{names.API_VERSION}/{names.QUEUE_PLURAL}": names.QUEUE_KIND,
}
NAMESPACED = {"Pod", "Event", names.JOB_KIND}


@pytest.fixture
def served(kmock: Any, tmp_path: Path) -> Iterator[KubeSettings]:
    """A kubeconfig for the mock server, which serves what a cluster serves and kopf looks for."""
    for key, kind in KINDS.items():
        verbs = {"list", "watch", "get", "create"}
        kmock.resources[key] = mock.ResourceInfo(
            kind=kind, singular=kind.lower(), namespaced=kind in NAMESPACED, verbs=verbs
        )
    entry = {"cluster": "mock", "user": "mock"}
    content = {
        "current-context": "mock",
        "clusters": [{"name": "mock", "cluster": {"server": str(kmock.url).rstrip("/")}}],
        "users": [{"name": "mock", "user": {}}],
        "contexts": [{"name": "mock", "context": entry}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    yield KubeSettings(kubeconfig=path)
    # kopf leaves connections to the garbage collector when it is stopped: they must not be found in a later test.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize(
    ("resource", "kind", "namespace"), [(JOBS, names.JOB_KIND, "team-a"), (QUEUES, names.QUEUE_KIND, "")]
)
async def test_a_new_object_of_ours_wakes_the_loop_and_nothing_is_written(
    kmock: Any, served: KubeSettings, resource: Resource, kind: str, namespace: str
) -> None:
    woken = asyncio.Event()
    loop = asyncio.get_running_loop()
    with Wakeups(served, lambda: loop.call_soon_threadsafe(woken.set), lambda: 0.0):
        await happens(lambda: any(r.params.get("watch") and r.url.path == resource.path() for r in kmock))
        meta = {"name": "one", "uid": "u1", **({"namespace": namespace} if namespace else {})}
        obj = {"apiVersion": names.API_VERSION, "kind": kind, "metadata": meta, "spec": {}}
        async with (
            aiohttp.ClientSession(kmock.url) as session,
            session.post(resource.path(namespace), json=obj) as answer,
        ):
            assert answer.status in (200, 201)
        async with asyncio.timeout(20):
            await woken.wait()
    ours = [request for request in kmock if "kopf" in request.headers.get("User-Agent", "")]
    assert {request.method.value for request in ours} == {"GET"}, "kopf only reads"
    watched = {request.url.path for request in ours if request.params.get("watch")}
    assert watched == {JOBS.path(), QUEUES.path()}, "pods and nodes come through our own reflector"


async def happens(what: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(20):
        while not what():  # noqa: ASYNC110 - the mock server has no event to wait for
            await asyncio.sleep(0.05)
