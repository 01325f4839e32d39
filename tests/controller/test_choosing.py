"""Policies are changed while the controller runs, by a ConfigMap: what counts when, and what is told about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from tests.fakeserver import FakeApiServer

from trimtab.apply.transitions import JobEvent
from trimtab.controller import cluster
from trimtab.controller.cluster import Cluster
from trimtab.controller.event_recorder import EventRecorder
from trimtab.controller.loop.choosing import Choosing
from trimtab.decide.engine import Engine
from trimtab.kube.client import KubeClient
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.objects import Meta
from trimtab.settings import ConfigMapSettings, KubeSettings, ReflectorSettings
from trimtab.telemetry.metrics import REGISTRY
from trimtab_policy import policy
from trimtab_policy.policy import Policy, UnknownPolicy
from trimtab_policy.scheduling.choice import Choice

STARTED = Choice("best_fit", "fcfs")
KEY = "trimtab-system/trimtab-policy"


class Bench:
    """A choice that follows a ConfigMap of an API server of its own."""

    def __init__(self, server: FakeApiServer, client: KubeClient) -> None:
        self.server = server
        self.woken = asyncio.Event()
        self.broken: set[str] = set()
        """Policies that cannot be loaded."""
        self.cluster = Cluster(client, ReflectorSettings(), self.woken.set, Silent(), ConfigMapSettings())
        self.recorder = EventRecorder(client, "test")
        self.choosing = Choosing(STARTED, self.cluster, Engine(self._find), self.recorder)

    def _find(self, name: str) -> Policy:
        if name in self.broken:
            raise OSError(f"{name}.safetensors is truncated")
        return policy.load(name)

    async def apply(self, **data: str) -> Choice:
        """Write the ConfigMap, and let the next round look at it."""
        obj = {"metadata": {"namespace": "trimtab-system", "name": "trimtab-policy"}, "data": data}
        known = ("configmaps", KEY) in self.server.store.objects
        return await self._after(
            (lambda: self.server.store.update("configmaps", KEY, obj))
            if known
            else (lambda: self.server.store.create("configmaps", obj))
        )

    async def delete(self) -> Choice:
        return await self._after(lambda: self.server.store.delete("configmaps", KEY))

    async def _after(self, change: Callable[[], object]) -> Choice:
        self.woken.clear()
        change()
        async with asyncio.timeout(10):
            await self.woken.wait()
        return await self.choosing.look()

    async def told(self, count: int) -> list[tuple[str, str, str]]:
        """Type, reason and note of the events about the ConfigMap, once there are so many."""
        async with asyncio.timeout(10):
            while len(found := self._events()) < count:
                await self.server.store.changed.wait()
        assert len(found) == count
        return [(event["type"], event["reason"], event["note"]) for event in found]

    def _events(self) -> list[dict[str, Any]]:
        created = [event["object"] for _, event in self.server.store.events("events", 0) if event["type"] == "ADDED"]
        return [event for event in created if event["regarding"]["kind"] == "ConfigMap"]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with (
        FakeApiServer() as server,
        await KubeClient.connect(KubeSettings(kubeconfig=server.kubeconfig(tmp_path))) as client,
    ):
        server.store.create("configmaps", {"metadata": {"namespace": "kube-system", "name": "trimtab-policy"}})
        found = Bench(server, client)
        tasks = [asyncio.create_task(found.cluster.run()), asyncio.create_task(found.recorder.run())]
        await found.cluster.synced()
        yield found
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def in_use() -> set[tuple[str, str]]:
    """Policy and role of everything that the metric says is in use."""
    [family] = (family for family in REGISTRY.collect() if family.name == "trimtab_policy_info")
    return {(found.labels["policy"], found.labels["role"]) for found in family.samples}


async def test_without_a_config_map_it_is_as_started_whatever_there_is_in_other_namespaces(bench: Bench) -> None:
    assert await bench.choosing.look() == STARTED
    assert in_use() == {("best_fit", "policy"), ("fcfs", "fallback")}
    await bench.told(0)


async def test_a_config_map_changes_policies_and_its_deletion_takes_that_back(bench: Bench) -> None:
    before = sample("trimtab_policy_changes_total", result="applied")
    assert await bench.apply(policy="srtf", shadow="las", deadlineSeconds="1") == Choice("srtf", "fcfs", "las", 1.0)
    assert in_use() == {("srtf", "policy"), ("fcfs", "fallback"), ("las", "shadow")}
    assert await bench.apply(fallback="sjf") == Choice("best_fit", "sjf")
    assert await bench.delete() == STARTED
    assert await bench.told(3) == [
        (
            "Normal",
            "PolicyChanged",
            "srtf decides within 1 s, else fcfs; shadow: las (before: best_fit decides within 2 s, else fcfs)",
        ),
        (
            "Normal",
            "PolicyChanged",
            "best_fit decides within 2 s, else sjf (before: srtf decides within 1 s, else fcfs; shadow: las)",
        ),
        (
            "Normal",
            "PolicyChanged",
            "best_fit decides within 2 s, else fcfs (before: best_fit decides within 2 s, else sjf)",
        ),
    ]
    assert sample("trimtab_policy_changes_total", result="applied") == before + 3


async def test_what_is_not_understood_is_told_and_changes_nothing(bench: Bench) -> None:
    before = sample("trimtab_policy_changes_total", result="refused")
    good = await bench.apply(policy="srtf")
    assert await bench.apply(policy="strf", fallback="sjf") == good
    for _ in range(3):
        assert await bench.choosing.look() == good
    [_, (kind, reason, note)] = await bench.told(2)
    assert (kind, reason) == ("Warning", "PolicyNotUnderstood")
    assert "policy: 'strf' is not understood: unknown policy 'strf'; did you mean srtf, srsf?" in note
    assert "as before, srtf decides within 2 s, else fcfs" in note
    assert sample("trimtab_policy_changes_total", result="refused") == before + 1
    assert await bench.apply(policy="sjf") == Choice("sjf", "fcfs")


async def test_what_is_not_understood_at_first_sight_leaves_it_as_started(bench: Bench) -> None:
    assert await bench.apply(deadlineSeconds="tomorrow") == STARTED
    assert in_use() == {("best_fit", "policy"), ("fcfs", "fallback")}
    [(_, reason, _)] = await bench.told(1)
    assert reason == "PolicyNotUnderstood"


async def test_the_same_change_made_again_later_is_told_again(bench: Bench) -> None:
    for name in ("srtf", "best_fit", "srtf", "best_fit"):
        await bench.apply(policy=name)
    assert [note.split()[0] for _, _, note in await bench.told(4)] == ["srtf", "best_fit", "srtf", "best_fit"]


async def test_a_change_that_says_the_same_is_no_news(bench: Bench) -> None:
    await bench.apply(policy="best_fit")
    await bench.told(0)


async def test_a_policy_that_cannot_be_loaded_is_chosen_all_the_same_and_told(bench: Bench) -> None:
    bench.broken = {"srtf"}
    assert (await bench.apply(policy="srtf")).policy == "srtf"
    [_, (kind, reason, note)] = await bench.told(2)
    assert (kind, reason) == ("Warning", "PolicyUnavailable")
    assert "srtf cannot be loaded: srtf.safetensors is truncated; fcfs decides instead" in note


async def test_a_default_that_cannot_be_loaded_ends_nothing(bench: Bench) -> None:
    bench.broken = {"best_fit", "fcfs"}
    assert await bench.choosing.look() == STARTED


async def test_a_controller_is_not_started_with_a_policy_that_nobody_knows(bench: Bench) -> None:
    with pytest.raises(UnknownPolicy, match="nonsense"):
        Choosing(Choice("nonsense", "fcfs"), bench.cluster, Engine(), bench.recorder)


async def test_only_the_one_config_map_is_asked_for(bench: Bench) -> None:
    asked = {request for request in bench.server.requests if "configmaps" in request}
    assert asked == {"GET /api/v1/namespaces/trimtab-system/configmaps"}


async def test_a_config_map_that_may_not_be_read_does_not_keep_a_controller_from_leading(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "OPTIONAL_SECONDS", 0.01)
    forbidden = Cluster(cast(Any, None), ReflectorSettings(), bench.woken.set, Silent(), ConfigMapSettings())
    *others, config_maps = forbidden.reflectors
    for reflector in others:
        reflector.synced.set()
    async with asyncio.timeout(5):
        await forbidden.synced()
    assert not config_maps.synced.is_set()
    choosing = Choosing(STARTED, forbidden, Engine(policy.load), bench.recorder)
    assert await choosing.look() == STARTED


async def test_what_is_told_of_a_job_again_and_again_is_logged_and_counted_once(bench: Bench) -> None:
    meta = Meta(name="job", namespace="default", uid="uid-job")
    before = sample("trimtab_happenings_total", reason="PolicyFallback")
    with capture_logs() as logs:
        for message in ("sia failed", "sia failed", "sia failed", "sia failed otherwise"):
            bench.recorder.job(meta, JobEvent("Warning", "PolicyFallback", message, 1))
    assert [line["message"] for line in logs] == ["sia failed", "sia failed otherwise"]
    assert sample("trimtab_happenings_total", reason="PolicyFallback") == before + 2
