"""kopf's traps, one by one: an imitation API server behind the fault proxy, kopf's clocks made short.

The back-off that keeps 75 s of errors from killing kopf is endless by construction; here kopf is given many times the
nine errors that its own settings survive.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.fakeserver import FakeApiServer
from tests.faultproxy import FaultProxy

from trimtab.controller.kopf_events import RESOURCES, Endless, Timing, Wakeups, credentials
from trimtab.kube.client import KubeClient
from trimtab.kube.connection import connect
from trimtab.kube.objects import JobObject
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import JOBS
from trimtab.settings import KubeSettings, ReflectorSettings

SHORT = Timing(
    request_seconds=1.0,
    watch_seconds=30.0,
    inactivity_seconds=0.5,
    ready_seconds=0.02,
    retries=Endless(first=(0.01,), then=0.02),
    restart_initial_seconds=0.02,
    restart_max_seconds=0.1,
)
WATCH = "llmtrainingjobs.*watch="
LIST = r"llmtrainingjobs\?fieldSelector="


class Bell:
    """What the controller's loop is to kopf: something to wake."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._loop.call_soon_threadsafe(self._rung.set)

    async def rings(self) -> None:
        """Wait for the next ring."""
        await self._rung.wait()
        self._rung.clear()


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(bookmark_seconds=0.2) as server:
        for kind in ("Namespace", "CustomResourceDefinition"):
            server.store.create(f"{kind.lower()}s", {"metadata": {"name": "some"}})
        yield server


@pytest.fixture
async def proxy(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(server.kubeconfig(tmp_path), tmp_path) as proxy:
        yield proxy


def job(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {}}


@asynccontextmanager
async def running(proxy: FaultProxy, bell: Bell, **options: Any) -> AsyncIterator[Wakeups]:
    wakeups = Wakeups(KubeSettings(kubeconfig=proxy.kubeconfig), bell.ring, lambda: 1.5, timing=SHORT, **options)
    wakeups.start()
    try:
        yield wakeups
    finally:
        await asyncio.to_thread(wakeups.stop)
        assert not wakeups.alive


async def until(condition: Callable[[], Any]) -> None:
    """Wait until it holds, or its awaited answer is true; the test's own timeout is the limit."""
    while True:
        answer = condition()
        if await answer if isawaitable(answer) else answer:
            return
        await asyncio.sleep(0.02)


async def watched(server: FakeApiServer, bell: Bell) -> None:
    """Wait until kopf has listed jobs and queues, and watches both: from then on, only changes ring."""
    await until(lambda: all(server.requests.count(f"GET {path}") >= 2 for path in RESOURCES))
    await asyncio.sleep(0.1)
    await bell.rings()


async def test_a_change_of_a_job_wakes_the_loop_from_kopfs_thread(server: FakeApiServer, proxy: FaultProxy) -> None:
    bell = Bell()
    server.store.create("llmtrainingjobs", job("before"))
    async with running(proxy, bell) as wakeups:
        await watched(server, bell)
        server.store.create("llmtrainingjobs", job("later"))
        await bell.rings()
        assert wakeups.restarts == 0
        assert await proxy.trace() == [], "on.event writes nothing"


async def test_many_times_more_errors_than_kopf_survives_by_itself_are_survived(
    server: FakeApiServer, proxy: FaultProxy
) -> None:
    """K1: by its own settings kopf ends after nine 5xx answers in a row."""
    bell = Bell()
    server.store.create("llmtrainingjobs", job("a"))
    await proxy.inject("status:503", path=LIST, count=40)
    async with running(proxy, bell) as wakeups:
        while await proxy.struck() < 40:
            await bell.rings()  # the list of queues succeeds at once, that of jobs at last
        assert wakeups.restarts == 0


async def test_an_error_in_the_stream_ends_kopf_and_it_is_started_again(
    server: FakeApiServer, proxy: FaultProxy
) -> None:
    """K2: any in-stream ERROR but 410 is fatal for kopf."""
    bell = Bell()
    await proxy.inject("werr:500", path=WATCH)
    async with running(proxy, bell) as wakeups:
        await until(lambda: wakeups.restarts)
        server.store.create("llmtrainingjobs", job("a"))
        await bell.rings()
        assert wakeups.restarts == 1


async def test_kopf_is_ended_by_force_when_it_does_not_end_after_a_fatal_error(
    server: FakeApiServer, proxy: FaultProxy
) -> None:
    """A watch that is just reconnecting swallows its cancellation: kopf waits for it for ever, and watches nothing."""
    bell = Bell()
    await proxy.inject("status:503", path="queues.*watch=", count=1_000_000)
    await proxy.inject("werr:500", path=WATCH)
    async with running(proxy, bell) as wakeups:
        await until(lambda: wakeups.restarts)
        server.store.create("llmtrainingjobs", job("a"))
        await bell.rings()


async def test_a_deletion_during_a_watch_gap_reaches_us_though_not_kopf(
    server: FakeApiServer, proxy: FaultProxy
) -> None:
    """K3: the reflector, from which the loop takes what it acts on, finds the deletion by comparing lists."""
    server.store.create("llmtrainingjobs", job("doomed"))
    server.store.create("llmtrainingjobs", job("again"))
    first = server.store.get("llmtrainingjobs", "team/again")["metadata"]["uid"]
    changes: list[tuple[str, str]] = []

    def on_change(old: JobObject | None, new: JobObject | None) -> None:
        changes.extend(("deleted", old.metadata.uid) for _ in [0] if old and not new)
        changes.extend(("added", new.metadata.uid) for _ in [0] if new and not old)

    async with await KubeClient.connect(KubeSettings(kubeconfig=proxy.kubeconfig)) as client:
        reflector = Reflector(client, JOBS, JobObject, ReflectorSettings(), on_change=on_change)
        reflecting = asyncio.create_task(reflector.run())
        await reflector.synced.wait()
        await proxy.inject("mute", path=WATCH)
        await until(proxy.sever)
        await until(proxy.struck)
        server.store.delete("llmtrainingjobs", "team/doomed")
        server.store.delete("llmtrainingjobs", "team/again")
        second = server.store.create("llmtrainingjobs", job("again"))["metadata"]["uid"]
        server.store.compact()
        await until(proxy.sever)
        await until(lambda: "team/doomed" not in reflector.items)
        reflecting.cancel()
    assert reflector.items["team/again"].metadata.uid == second
    assert changes[2:].count(("deleted", first)) == 1
    assert ("added", second) in changes


async def test_a_mute_watch_is_given_up_by_kopf_and_by_the_reflector(server: FakeApiServer, proxy: FaultProxy) -> None:
    async def both_struck() -> bool:
        return await proxy.struck() == 2

    bell = Bell()
    settings = ReflectorSettings(stall_seconds=0.5)
    await proxy.inject("mute", path=WATCH, count=2)
    async with (
        running(proxy, bell) as wakeups,
        await KubeClient.connect(KubeSettings(kubeconfig=proxy.kubeconfig)) as client,
    ):
        reflector = Reflector(client, JOBS, JobObject, settings, on_change=lambda old, new: None)
        reflecting = asyncio.create_task(reflector.run())
        await until(both_struck)
        server.store.create("llmtrainingjobs", job("unheard"))
        await bell.rings()
        await until(lambda: "team/unheard" in reflector.items)
        assert wakeups.restarts == 0
        reflecting.cancel()


async def test_kopf_waits_until_our_resources_are_served(server: FakeApiServer, proxy: FaultProxy) -> None:
    bell = Bell()
    served = False
    server.store.create("llmtrainingjobs", job("a"))
    async with running(proxy, bell, ready=lambda: served):
        await asyncio.sleep(0.1)
        assert not [line for line in server.requests if "llmtrainingjobs" in line]
        served = True
        await bell.rings()


async def test_a_missing_kubeconfig_is_waited_for(server: FakeApiServer, proxy: FaultProxy) -> None:
    bell = Bell()
    server.store.create("llmtrainingjobs", job("a"))
    hidden = proxy.kubeconfig.rename(proxy.kubeconfig.with_suffix(".hidden"))
    async with running(proxy, bell) as wakeups:
        await asyncio.sleep(0.2)
        hidden.rename(proxy.kubeconfig)
        await bell.rings()
        assert wakeups.alive


async def test_the_liveness_endpoint_tells_the_age_of_the_last_round(proxy: FaultProxy, unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}/healthz"
    async with running(proxy, Bell(), liveness_endpoint=url), aiohttp.ClientSession() as session:
        assert await answer(session, url) == {"round_age_seconds": 1.5}


async def answer(session: aiohttp.ClientSession, url: str) -> Any:
    """The JSON at a URL, once there is a server."""
    while True:
        try:
            async with session.get(url) as response:
                return await response.json()
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("spawned", [0, 1, 5])
async def test_stopping_before_kopf_has_started_leaves_nothing_behind(proxy: FaultProxy, spawned: int) -> None:
    """Also in the middle of spawning its tasks, of which kopf then tells nobody."""
    wakeups = Wakeups(KubeSettings(kubeconfig=proxy.kubeconfig), lambda: None, lambda: 0.0, timing=SHORT)
    wakeups.start()
    await until(lambda: not spawned or (wakeups._loop and len(asyncio.all_tasks(wakeups._loop)) > spawned))
    await asyncio.to_thread(wakeups.stop)
    assert not wakeups.alive
    assert wakeups._loop is None or not asyncio.all_tasks(wakeups._loop)


async def test_what_was_woken_is_forgotten_after_the_end(server: FakeApiServer, proxy: FaultProxy) -> None:
    """kopf may keep our handlers for ever; whoever stands for election again would hold every job twice."""
    server.store.create("llmtrainingjobs", job("a"))
    bell = Bell()
    woken = weakref.ref(bell)
    async with running(proxy, bell) as kept:
        await bell.rings()
    del bell
    gc.collect()
    assert woken() is None
    assert not kept.alive


async def test_kopf_is_told_our_credentials_and_when_to_ask_again(proxy: FaultProxy) -> None:
    info = credentials(await connect(KubeSettings(kubeconfig=proxy.kubeconfig)))
    async with info.aiohttp_session as session:
        assert (info.server, session.headers["Authorization"]) == (proxy.server, "Bearer sesame")
    assert info.expiration is not None


async def test_kopf_sees_no_more_than_the_metadata_of_what_changes(
    server: FakeApiServer, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of large objects are else decoded whole, with a worker for each at once."""
    seen: list[dict[str, Any]] = []
    bell = Bell()

    async def see(self: Wakeups, body: dict[str, Any], **_: object) -> None:
        seen.append(dict(body))

    monkeypatch.setattr(Wakeups, "_on_event", see)
    server.store.create("llmtrainingjobs", job("before"))
    async with running(proxy, bell):
        await watched(server, bell)  # it has rung for its lists: what was there before is found by who is woken
        server.store.create("llmtrainingjobs", job("later"))
        await until(lambda: seen)
    assert [body["metadata"]["name"] for body in seen] == ["later"]
    assert "spec" not in seen[0]


def test_the_pauses_between_attempts_never_end_and_start_anew_each_time() -> None:
    pauses = Endless(first=(1.0, 2.0), then=5.0)
    for _ in range(2):
        again = iter(pauses)
        assert [next(again) for _ in range(6)] == [1, 2, 5, 5, 5, 5]
