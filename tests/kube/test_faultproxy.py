"""The fault proxy does what its rules say, so that tests which rely on it test something."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.fakeserver import FakeApiServer
from tests.faultproxy import FaultProxy

from trimtab import errors
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import NODES, PODS
from trimtab.settings import KubeSettings

POD = {"kind": "Pod", "metadata": {"name": "p", "namespace": "team"}, "spec": {}}


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(bookmark_seconds=0.05) as server:
        yield server


@pytest.fixture
async def proxy(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(server.kubeconfig(tmp_path), tmp_path) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(KubeSettings(kubeconfig=proxy.kubeconfig, request_timeout=5)) as client:
        yield client


async def test_calls_pass_through_with_the_callers_token_and_writes_are_traced(
    client: KubeClient, server: FakeApiServer, proxy: FaultProxy
) -> None:
    await client.create(PODS.path("team"), POD)
    with pytest.raises(errors.AlreadyExists):
        await client.create(PODS.path("team"), POD)
    uid = server.store.get("pods", "team/p")["metadata"]["uid"]
    await client.bind("team", "p", uid, "node-1")
    await client.delete(PODS.path("team", "p"), uid=uid)
    assert [(c.method, c.kind, c.name, c.status) for c in await proxy.trace()] == [
        ("POST", "Pod", "p", 201),
        ("POST", "Pod", "p", 409),
        ("POST", "Binding", "p", 201),
        ("DELETE", "", "p", 200),
    ]
    assert server.authorizations == {"Bearer sesame"}


async def test_the_nth_matching_call_is_answered_with_the_status(client: KubeClient, proxy: FaultProxy) -> None:
    await proxy.inject("status:503", method="POST", path="/pods", nth=2)
    await client.create(PODS.path("team"), POD)
    with pytest.raises(errors.Overloaded, match="injected ServiceUnavailable"):
        await client.create(PODS.path("team"), POD)
    with pytest.raises(errors.AlreadyExists):
        await client.create(PODS.path("team"), POD)
    assert [(c.fault, c.status) for c in await proxy.trace()] == [(None, 201), ("status:503", None), (None, 409)]


async def test_drop_reply_loses_the_answer_of_a_write_that_happened(
    client: KubeClient, server: FakeApiServer, proxy: FaultProxy
) -> None:
    await proxy.inject("drop-reply")
    with pytest.raises(errors.Unreachable):
        await client.create(PODS.path("team"), POD)
    assert server.store.get("pods", "team/p")["metadata"]["name"] == "p"


@pytest.mark.parametrize(("action", "happened"), [("kill-before", False), ("kill-after", True)])
async def test_the_victim_is_killed_before_or_after_the_write(
    action: str, happened: bool, client: KubeClient, server: FakeApiServer, proxy: FaultProxy
) -> None:
    victim = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
    await proxy.victim(victim.pid)
    await proxy.inject(action)
    with pytest.raises(errors.Unreachable):
        await client.create(PODS.path("team"), POD)
    assert await victim.wait() == -9
    assert (("pods", "team/p") in server.store.objects) is happened


async def test_a_stale_list_is_the_first_one_seen(client: KubeClient, server: FakeApiServer, proxy: FaultProxy) -> None:
    await client.get(NODES.path())
    server.store.create("nodes", {"metadata": {"name": "new"}})
    await proxy.inject("stale-list")
    assert json.loads(await client.get(NODES.path()))["items"] == []
    assert len(json.loads(await client.get(NODES.path()))["items"]) == 1


async def test_watches_can_end_in_errors_lose_events_and_be_severed(
    client: KubeClient, server: FakeApiServer, proxy: FaultProxy
) -> None:
    async def first_events(count: int) -> list[str]:
        seen: list[str] = []
        async with aclosing(client.watch(NODES.path(), {"resourceVersion": "100"})) as stream:
            async for lines in stream:
                seen += [json.loads(line)["type"] for line in lines]
                if len(seen) >= count:
                    break
        return seen[:count]

    server.store.create("nodes", {"metadata": {"name": "n"}})
    await proxy.inject("werr:500", path="watch")
    assert await first_events(1) == ["ERROR"]
    await proxy.inject("drop-event:ADDED", path="watch")
    assert await first_events(1) == ["BOOKMARK"]
    assert await first_events(2) == ["ADDED", "BOOKMARK"]
    await proxy.inject("mute", path="watch")
    muted = asyncio.create_task(first_events(1))
    while not muted.done():
        await proxy.sever()
        await asyncio.wait({muted}, timeout=0.02)
    with pytest.raises(errors.Unreachable):
        await muted


async def test_an_unknown_action_is_refused(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match="action must be one of"):
        await proxy.inject("explode")
