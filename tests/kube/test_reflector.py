"""The reflector's promise: whatever the connection does, its copy ends equal to what the server has, and the changes it
reported fold to that copy. Runs in virtual time against an in-memory API server that misbehaves on request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

import looptime
import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from tests.fakeserver import Refused, Store, bookmark

from trimtab.errors import ApiError, Overloaded, Unreachable
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.objects import Meta, NodeObject
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import NODES
from trimtab.settings import ReflectorSettings

SETTINGS = ReflectorSettings(stall_seconds=70, resync_seconds=300, page_size=2)


class Thing(msgspec.Struct, frozen=True):
    """An object with one field that we look at."""

    metadata: Meta
    value: int


class FlakySource:
    """An API server in memory. `fault` strikes at the next opportunity; `breakage` ends the running watch."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.faults: list[str] = []
        self.breakage = asyncio.Event()
        self.first_list: list[bytes] = []
        self.lists = 0
        self.watches = 0

    def inject(self, fault: str) -> None:
        """The first three strike a list, the others the running watch."""
        self.faults.append(fault)
        if fault not in ("list-503", "list-stale", "list-cut"):
            self.breakage.set()

    def _struck(self, *names: str) -> str:
        for name in self.faults:
            if name in names:
                self.faults.remove(name)
                return name
        return ""

    async def pages(self, path: str, page_size: int, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        self.lists += 1
        match self._struck("list-503", "list-stale", "list-cut"):
            case "list-503":
                raise Overloaded("busy", status=503, retry_after=1)
            case "list-stale" if self.first_list:
                for page in self.first_list:
                    yield page
                return
            case "list-cut":
                yield self._page(0, page_size)
                raise Unreachable("cut")
        pages = [self._page(start, page_size) for start in range(0, max(len(self.store.list("nodes")), 1), page_size)]
        self.first_list = self.first_list or pages
        for page in pages:
            yield page

    def _page(self, start: int, size: int) -> bytes:
        items = self.store.list("nodes")[start : start + size] or None  # so an API server says it of metadata alone
        return json.dumps({"metadata": {"resourceVersion": str(self.store.version)}, "items": items}).encode()

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[list[bytes], None]:
        self.watches += 1
        loop = asyncio.get_running_loop()
        end = loop.time() + float(params["timeoutSeconds"])
        since = int(params["resourceVersion"])
        dropping = False
        yield []
        while end - loop.time() > 0.01:  # virtual time does not resolve less
            self.breakage.clear()
            match self._struck("close", "cut", "gone", "error", "garble", "mute", "drop", "refuse"):
                case "close":
                    return
                case "cut":
                    raise Unreachable("connection reset")
                case "refuse":
                    raise ApiError("forbidden", status=403)
                case "gone":
                    yield [error_event(410, "Expired")]
                case "error":
                    yield [error_event(500, "InternalError")]
                case "garble":
                    yield [b'{"type":"ADDED","obj']
                case "mute":
                    await asyncio.sleep(10_000)
                case "drop":
                    dropping = True
            try:
                events = list(self.store.events("nodes", since))
            except Refused as refused:
                yield [json.dumps({"type": "ERROR", "object": refused.body}).encode()]
                return
            for version, event in events:
                if not dropping:
                    yield [json.dumps(event).encode()]
                since, dropping = version, False
            if not await self._news(min(60, end - loop.time())):
                yield [json.dumps(bookmark(self.store.version)).encode()]

    async def _news(self, seconds: float) -> bool:
        waits = [asyncio.ensure_future(event.wait()) for event in (self.store.changed, self.breakage)]
        try:
            done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        return bool(done)


def error_event(code: int, reason: str) -> bytes:
    return json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": code, "reason": reason}}).encode()


class Watcher(Silent):
    """A reflector at work, and everything that it reported."""

    def __init__(self) -> None:
        self.store = Store()
        self.source = FlakySource(self.store)
        self.folded: dict[str, Thing] = {}
        self.reports: list[str] = []
        self.errors: list[str] = []
        self.relists: list[str] = []
        self.reflector = Reflector(
            self.source,
            NODES,
            Thing,
            SETTINGS,
            on_change=self.on_change,
            observer=self,
            clock=asyncio.get_running_loop().time,
        )

    def on_change(self, old: Thing | None, new: Thing | None) -> None:
        """Fold the change, checking that it fits what was reported before."""
        if old is not None:
            assert self.folded.pop(old.metadata.key) == old
        if new is not None:
            assert new.metadata.key not in self.folded
            assert old is None or old.metadata.uid == new.metadata.uid, "another object is a deletion and a creation"
            assert old != new, "no change, no report"
            self.folded[new.metadata.key] = new
        kind = "deleted" if new is None else "added" if old is None else "changed"
        self.reports.append(f"{kind} {(new or old).metadata.name}")  # type: ignore[union-attr]  # one of them is set

    def watch_error(self, resource: str, reason: str) -> None:
        self.errors.append(reason)

    def relist(self, resource: str, reason: str) -> None:
        self.relists.append(reason)

    # what may happen on the server
    def put(self, name: str, value: object = 0) -> bytes:
        node = {"metadata": {"name": name}, "value": value}
        exists = ("nodes", name) in self.store.objects
        written = self.store.update("nodes", name, node) if exists else self.store.create("nodes", node)
        return json.dumps(written).encode()

    def delete(self, name: str) -> None:
        if ("nodes", name) in self.store.objects:
            self.store.delete("nodes", name)

    def truth(self) -> dict[str, tuple[str, int]]:
        return {obj["metadata"]["name"]: (obj["metadata"]["uid"], obj["value"]) for obj in self.store.list("nodes")}

    def belief(self) -> dict[str, tuple[str, int]]:
        return {name: (o.metadata.uid, o.value) for name, o in self.reflector.items.items()}


async def settle(watcher: Watcher) -> None:
    """Two resyncs, and time for all back-off."""
    await asyncio.sleep(2 * SETTINGS.resync_seconds + 400)


def virtually(scenario: Callable[[Watcher], Coroutine[Any, Any, None]]) -> Watcher:
    """Run a scenario with a running reflector, in virtual time; then let it settle and compare it with the server."""

    async def main() -> Watcher:
        watcher = Watcher()
        running = asyncio.create_task(watcher.reflector.run())
        await scenario(watcher)
        await settle(watcher)
        assert watcher.belief() == watcher.truth()
        assert watcher.folded == watcher.reflector.items
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        return watcher

    loop = looptime.new_event_loop()  # not asyncio.Runner: it would replace pytest-asyncio's current loop
    try:
        return loop.run_until_complete(main())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
FAULTS = ["close", "cut", "gone", "error", "garble", "mute", "drop", "refuse", "list-503", "list-stale", "list-cut"]
STEPS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.integers(0, 3)),
    st.tuples(st.just("own"), NAMES, st.sampled_from([0.0, 0.5, 90.0])),
    st.tuples(st.just("delete"), NAMES, st.none()),
    st.tuples(st.just("fault"), st.sampled_from(FAULTS), st.none()),
    st.tuples(st.just("compact"), st.none(), st.none()),
    st.tuples(st.just("sleep"), st.sampled_from([0.01, 1.0, 30.0, 200.0]), st.none()),
)


async def perform(watcher: Watcher, step: tuple[str, Any, Any]) -> None:
    match step:
        case ("put", name, value):
            watcher.put(name, value)
        case ("own", name, delay):
            answer = watcher.put(name, int(delay))
            asyncio.get_running_loop().call_later(delay, watcher.reflector.apply_written, answer)
        case ("delete", name, _):
            watcher.delete(name)
        case ("fault", fault, _):
            watcher.source.inject(fault)
        case ("compact", _, _):
            watcher.store.compact()
        case ("sleep", seconds, _):
            await asyncio.sleep(seconds)


@given(st.lists(STEPS, max_size=40))
@example([("put", "a", 1), ("sleep", 1.0, None), ("fault", "mute", None), ("delete", "a", None), ("put", "a", 2)])
@example([("own", "a", 90.0), ("delete", "a", None), ("sleep", 200.0, None)])
@example([("put", "a", 1), ("sleep", 1.0, None), ("fault", "drop", None), ("delete", "a", None)])
def test_whatever_happens_the_copy_ends_equal_to_the_server(steps: list[tuple[str, Any, Any]]) -> None:
    async def scenario(watcher: Watcher) -> None:
        for step in steps:
            await perform(watcher, step)

    virtually(scenario)


def test_a_new_list_keeps_the_objects_that_have_not_changed() -> None:
    """Else every object was in memory twice for a moment, and all that is remembered of it computed anew."""

    async def scenario(watcher: Watcher) -> None:
        for name in ("a", "b", "c"):
            watcher.put(name, 1)
        await asyncio.sleep(1)
        before, lists = dict(watcher.reflector.items), watcher.source.lists
        watcher.source.inject("drop")
        watcher.put("b", 2)
        await asyncio.sleep(2 * SETTINGS.resync_seconds)
        assert watcher.source.lists > lists
        kept = {name: watcher.reflector.items[name] is thing for name, thing in before.items()}
        assert kept == {"a": True, "b": False, "c": True}
        assert watcher.reflector.items["b"].value == 2

    virtually(scenario)


def test_of_a_kind_without_objects_a_list_is_a_list() -> None:
    async def scenario(watcher: Watcher) -> None:
        await asyncio.sleep(1)
        assert watcher.reflector.synced.is_set()
        assert not watcher.reflector.items

    virtually(scenario)


def test_deletions_during_a_gap_are_found_by_the_next_list() -> None:
    """kopf's trap K3: after 410 it never hears of them. A re-created object is a deletion and a creation."""

    async def scenario(watcher: Watcher) -> None:
        watcher.put("gone")
        watcher.put("again")
        await watcher.reflector.synced.wait()
        watcher.source.inject("mute")
        await asyncio.sleep(1)
        watcher.delete("gone")
        watcher.delete("again")
        watcher.put("again")
        watcher.store.compact()

    watcher = virtually(scenario)
    assert watcher.reports == ["added again", "added gone", "deleted gone", "deleted again", "added again"]
    assert watcher.relists[:2] == ["start", "gone"]


def test_an_error_in_the_stream_leads_to_a_new_list_with_growing_pauses() -> None:
    """kopf's trap K2: it dies."""

    async def scenario(watcher: Watcher) -> None:
        await watcher.reflector.synced.wait()
        for _ in range(6):
            watcher.source.inject("error")
        await asyncio.sleep(20)
        watcher.put("late")

    watcher = virtually(scenario)
    assert watcher.errors == ["error"] * 6
    assert watcher.relists[:7] == ["start"] + ["error"] * 6


def test_a_mute_watch_is_noticed_and_replaced() -> None:
    async def scenario(watcher: Watcher) -> None:
        await watcher.reflector.synced.wait()
        watcher.source.inject("mute")
        await asyncio.sleep(1)
        watcher.put("unheard")
        await asyncio.sleep(SETTINGS.stall_seconds - 2)
        assert watcher.reports == []
        assert watcher.reflector.age_seconds() > SETTINGS.stall_seconds - 2
        await asyncio.sleep(2)
        assert watcher.reports == ["added unheard"]
        assert watcher.errors == ["stalled"]

    virtually(scenario)


def test_a_minute_of_errors_is_survived_without_listing_again() -> None:
    async def scenario(watcher: Watcher) -> None:
        await watcher.reflector.synced.wait()
        for _ in range(9):
            watcher.source.inject("cut")
        await asyncio.sleep(75)
        assert watcher.reflector.trouble == ""

    watcher = virtually(scenario)
    assert watcher.errors == ["unreachable"] * 9
    assert watcher.relists[:2] == ["start", "resync"]


def test_a_lost_event_is_healed_by_the_resync() -> None:
    async def scenario(watcher: Watcher) -> None:
        watcher.put("a")
        await watcher.reflector.synced.wait()
        watcher.source.inject("drop")
        await asyncio.sleep(1)
        watcher.delete("a")
        await asyncio.sleep(1)
        assert "a" in watcher.reflector.items

    assert virtually(scenario).reports == ["added a", "deleted a"]


def test_a_stale_list_is_refused() -> None:
    async def scenario(watcher: Watcher) -> None:
        watcher.put("a")
        await watcher.reflector.synced.wait()
        watcher.delete("a")
        await asyncio.sleep(1)
        watcher.source.inject("list-stale")
        watcher.source.inject("error")

    watcher = virtually(scenario)
    assert watcher.reports == ["added a", "deleted a"]
    assert watcher.errors == ["error", "stale"]


def test_a_rewound_history_is_taken_after_a_while() -> None:
    """etcd restored from a backup: all versions are older than what was seen, and stay so."""

    async def scenario(watcher: Watcher) -> None:
        watcher.put("kept")
        watcher.put("lost")
        await watcher.reflector.synced.wait()
        watcher.delete("lost")
        watcher.put("kept", 1)
        await asyncio.sleep(1)
        watcher.store.version = 50
        watcher.store.history.clear()
        watcher.store.objects.clear()
        watcher.put("kept")
        watcher.source.inject("error")

    watcher = virtually(scenario)
    assert watcher.errors.count("stale") > 10
    assert watcher.reports[-2:] == ["deleted kept", "added kept"]


def test_the_answer_to_an_own_write_is_seen_at_once_and_reported_once() -> None:
    async def scenario(watcher: Watcher) -> None:
        await watcher.reflector.synced.wait()
        watcher.reflector.apply_written(watcher.put("mine"))
        assert watcher.reports == ["added mine"]

    assert virtually(scenario).reports == ["added mine"]


def test_a_late_answer_does_not_revive_what_was_deleted_meanwhile() -> None:
    async def scenario(watcher: Watcher) -> None:
        await watcher.reflector.synced.wait()
        answer = watcher.put("mine")
        watcher.delete("mine")
        await asyncio.sleep(1)
        watcher.reflector.apply_written(answer)
        assert not watcher.reflector.items

    assert virtually(scenario).reports == ["added mine", "deleted mine"]


def test_a_change_that_we_do_not_look_at_is_not_reported() -> None:
    async def scenario(watcher: Watcher) -> None:
        watcher.put("a")
        await watcher.reflector.synced.wait()
        heartbeat = {**watcher.store.get("nodes", "a"), "status": {"heartbeat": 1}}
        watcher.store.update("nodes", "a", heartbeat)
        await asyncio.sleep(1)
        assert watcher.reflector.items["a"].metadata.version == watcher.store.version

    assert virtually(scenario).reports == ["added a"]


def test_a_malformed_object_stops_nothing_is_named_and_keeps_its_last_readable_state() -> None:
    async def scenario(watcher: Watcher) -> None:
        watcher.put("bad", 1)
        watcher.put("worse", "from the start")
        await watcher.reflector.synced.wait()
        assert list(watcher.reflector.unreadable) == ["worse"]
        watcher.put("bad", "seven")
        watcher.put("good", 3)
        await asyncio.sleep(1)
        assert watcher.reflector.unreadable["bad"] == "Expected `int`, got `str` - at `$.value`"
        assert {name: thing.value for name, thing in watcher.reflector.items.items()} == {"bad": 1, "good": 3}
        await settle(watcher)
        assert "bad" in watcher.reflector.items
        watcher.put("bad", 7)
        watcher.delete("worse")
        await asyncio.sleep(1)
        assert not watcher.reflector.unreadable

    virtually(scenario)


def test_an_unreadable_object_that_took_a_name_over_displaces_the_one_before() -> None:
    async def scenario(watcher: Watcher) -> None:
        watcher.put("a", 1)
        await watcher.reflector.synced.wait()
        watcher.delete("a")
        watcher.put("a", "unreadable")
        watcher.source.inject("gone")
        await asyncio.sleep(1)
        assert not watcher.reflector.items
        watcher.delete("a")

    virtually(scenario)


def test_heartbeats_of_a_node_are_no_change() -> None:
    def node(beat: str, version: str) -> bytes:
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": beat}
        meta = {"name": "n", "uid": "u", "resourceVersion": version}
        return json.dumps({"metadata": meta, "status": {"conditions": [ready], "images": [beat]}}).encode()

    decode = msgspec.json.Decoder(NodeObject).decode
    assert decode(node("10:00", "1")) == decode(node("10:05", "2"))
