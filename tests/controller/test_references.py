"""Whether what jobs refer to is there: asked beside the rounds, in turns, and by dry runs where it must not be read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from msgspec.structs import replace
from tests.builders import job_object, placement, plan_of, snapshot

from trimtab.api.status import JobStatus
from trimtab.controller.jobs import references
from trimtab.controller.jobs.references import References
from trimtab.errors import AlreadyExists, ApiError, Forbidden, LeadershipLost, NotFound, Unreachable
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import JobObject
from trimtab.observe import jobs
from trimtab.observe.snapshot import Caches, ClusterObserver
from trimtab_policy.types import NEVER_STARTS, Pending, PendingReason

Object = dict[str, Any]
ALL: Object = {
    "serviceAccountName": "acts",
    "volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "keys", "secret": {"secretName": "keys"}},
        {"name": "conf", "configMap": {"name": "conf"}},
    ],
}
"""A pod that names one object of each kind."""
OBJECTS = {"persistentvolumeclaims": "data", "secrets": "keys", "configmaps": "conf", "serviceaccounts": "acts"}


class Server:
    """Has objects by path, and answers as an API server does."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.leaving: set[str] = set()
        self.failing: dict[str, ApiError] = {}
        """By plural."""
        self.asked: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def request(
        self, method: str, path: str, *, body: Any = None, params: Any = None, deadline: float | None = None
    ) -> bytes:
        if method == "POST":
            assert params == {"dryRun": "All"}, f"{path}: nothing is ever created"
            path = f"{path}/{body['metadata']['name']}"
        else:
            assert method == "GET"
            assert not {"secrets", "configmaps"} & set(path.split("/")), f"{path}: is never read"
        self.asked.append(path)
        await self.answers.wait()
        if failure := self.failing.get(path.split("/")[-2]):
            raise failure
        if (path in self.there) != (method == "GET"):
            raise (AlreadyExists if path in self.there else NotFound)("as the API server says it", status=409)
        gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if path in self.leaving else {}
        return json.dumps({"metadata": {"name": "n", "uid": "u", **gone}}).encode()


class World:
    """Jobs, the server, and rounds that look."""

    def __init__(self) -> None:
        self.server, self.jobs, self.woken = Server(), dict[str, JobObject](), 0
        self.references = References(cast(KubeClient, self.server), self.jobs.values, jobs.facts, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def add(self, name: str, pod: Object | None = None, *, namespace: str = "default", **changes: Any) -> None:
        """A job whose template has this; `changes` as in `job_object`."""
        template = {"spec": {"containers": [{"name": "trainer", "image": "i:1"}], **(pod or {})}}
        spec = {"template": template} | changes.pop("spec", {})
        self.jobs[name] = job_object(name, spec, namespace=namespace, **changes)

    def make(self, plural: str, name: str, namespace: str = "default") -> str:
        path = f"/api/v1/namespaces/{namespace}/{plural}/{name}"
        self.server.there.add(path)
        return path

    def held(self) -> dict[str, Pending | None]:
        return {uid.removeprefix("uid-"): why for uid, why in self.references.look().items()}

    async def until(self, happened: Callable[[dict[str, Pending | None]], bool]) -> dict[str, Pending | None]:
        """Look again and again until it is so."""
        for _ in range(5000):
            if happened(held := self.held()):
                return held
            await asyncio.sleep(0.002)
        raise AssertionError(f"it did not come to that: {held}")

    async def answered(self) -> dict[str, Pending | None]:
        """Who is held once nobody is because of an answer that is missing."""
        return await self.until(lambda held: None not in held.values())


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """It looks again at once, and gives up nothing for being late."""
    for pause in ("MISSING_SECONDS", "THERE_SECONDS", "UNTOLD_SECONDS", "PACE_SECONDS"):
        monkeypatch.setattr(references, pause, 0.01)
    monkeypatch.setattr(references, "PATIENCE_SECONDS", 1000.0)
    world = World()
    task = asyncio.create_task(world.references.run())
    yield world
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_job_that_names_nothing_is_not_kept_waiting_at_all(world: World) -> None:
    world.add("plain")
    assert world.held() == {}
    assert world.server.asked == []


async def test_what_is_missing_is_told_with_its_field_and_the_job_goes_on_once_it_is_there(world: World) -> None:
    world.add("job", ALL)
    assert world.held() == {"job": None}, "asked first"
    told = (await world.answered())["job"]
    assert told
    assert told.reason is PendingReason.OBJECT_NOT_FOUND
    assert told.reason in NEVER_STARTS
    assert (
        "spec.template.spec.serviceAccountName: there is no ServiceAccount 'acts' in namespace default" in told.message
    )
    assert told.message.endswith("; and 1 more")
    kinds = ["ServiceAccount acts", "PersistentVolumeClaim data", "Secret keys", "ConfigMap conf"]
    assert list(told.blockers) == kinds
    for plural, name in OBJECTS.items():
        assert "job" in world.held(), f"{plural}: not before all are there"
        world.make(plural, name)
    woken = world.woken
    await world.until(lambda held: held == {})
    assert world.woken > woken, "a round follows at once"


async def test_what_is_taken_away_while_the_job_waits_is_missed(world: World) -> None:
    world.add("job", ALL)
    paths = {name: world.make(plural, name) for plural, name in OBJECTS.items()}
    assert await world.answered() == {}
    world.server.there.discard(paths["keys"])
    held = await world.until(bool)
    assert [why.blockers for why in held.values() if why] == [("Secret keys",)]


async def test_a_claim_that_is_being_deleted_is_there_no_more(world: World) -> None:
    world.add("job", {"volumes": ALL["volumes"][:1]})
    world.server.leaving.add(world.make("persistentvolumeclaims", "data"))
    [why] = (await world.answered()).values()
    assert why
    assert why.blockers == ("PersistentVolumeClaim data",)


async def test_what_only_another_namespace_has_is_missing(world: World) -> None:
    world.add("job", {"serviceAccountName": "acts"}, namespace="b")
    world.make("serviceaccounts", "acts", "a")
    [why] = (await world.answered()).values()
    assert why
    assert "in namespace b" in why.message


@pytest.mark.parametrize("refused", [Forbidden("no", status=403), Unreachable("no answer")])
async def test_where_the_api_server_does_not_tell_jobs_are_planned(world: World, refused: ApiError) -> None:
    world.add("job", ALL)
    for plural in OBJECTS:
        world.server.failing[plural] = refused
    assert await world.answered() == {}
    world.server.failing.clear()
    assert (await world.until(bool)).keys() == {"job"}, "and it is asked again"


async def test_nobody_waits_for_an_answer_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.server.answers.clear()
    world.add("job", ALL)
    assert world.held() == {"job": None}
    monkeypatch.setattr(references, "PATIENCE_SECONDS", 0.0)
    assert world.held() == {}


@pytest.mark.parametrize("name", ["../../secrets/x", "Data", "a?fieldManager=x"])
async def test_a_name_that_nothing_can_have_is_told_without_asking(world: World, name: str) -> None:
    world.add("job", {"serviceAccountName": name})
    [why] = world.held().values()
    assert why
    assert f"spec.template.spec.serviceAccountName: {name!r} is no name" in why.message
    assert world.server.asked == []


async def test_only_jobs_that_wait_for_gpus_are_asked_about(world: World) -> None:
    plan = plan_of(placement())
    world.add("runs", ALL, status=JobStatus(plan=plan, last_epoch=1))
    world.add("sleeps", ALL, spec={"suspend": True})
    world.add("leaves", ALL, deletion_timestamp="2026-01-02T03:00:00Z")
    world.add("of-others", ALL, spec={"managedBy": "example.test/other"})
    assert world.held() == {}
    world.add("runs", ALL, status=JobStatus(last_epoch=1))
    assert world.held() == {"runs": None}, "its gang was given up: what was there may have gone"


async def test_what_no_job_waits_for_any_more_is_forgotten_and_asked_no_more(world: World) -> None:
    world.add("job", ALL)
    await world.answered()
    del world.jobs["job"]
    assert world.held() == {}
    asked = len(world.server.asked)
    await asyncio.sleep(0.1)  # ten times as long as it takes to look again
    assert len(world.server.asked) <= asked + 2 * references.AT_ONCE, "but for what was on its way"
    world.add("job", ALL)
    assert world.held() == {"job": None}


async def test_namespaces_take_turns(world: World) -> None:
    """Who names a thousand objects keeps those of others waiting for one of them at most."""
    world.server.answers.clear()
    for index in range(50):
        many = [{"name": f"v{each}", "secret": {"secretName": f"s{index}-{each}"}} for each in range(20)]
        world.add(f"flood-{index}", {"volumes": many}, namespace="flood")
    world.held()
    await world.until(lambda _: len(world.server.asked) == references.AT_ONCE)
    world.add("small", {"serviceAccountName": "acts"}, namespace="small")
    world.make("serviceaccounts", "acts", "small")
    world.held()
    world.server.answers.set()
    await world.until(lambda held: "small" not in held)
    at = next(index for index, path in enumerate(world.server.asked) if "/small/" in path)
    assert at <= 2 * references.AT_ONCE


async def test_losing_the_lead_ends_it_with_that_very_error() -> None:
    world = World()
    world.server.failing["secrets"] = cast(ApiError, LeadershipLost("somebody else leads"))
    world.add("job", ALL)
    world.held()
    with pytest.raises(LeadershipLost):
        await asyncio.wait_for(world.references.run(), 20)


def test_who_is_held_back_without_a_reason_is_shown_to_no_policy_and_told_nothing() -> None:
    held, free = job_object("held"), job_object("free")
    caches = Caches(nodes=(), pods=(), jobs=(held, free))
    seen = ClusterObserver(()).observe(caches, snapshot(()).time, held_back={"uid-held": None})
    assert [job.uid for job in seen.snapshot.jobs] == ["uid-free"]
    assert seen.refused == {}
    why = Pending("uid-held", PendingReason.OBJECT_NOT_FOUND, "told")
    seen = ClusterObserver(()).observe(caches, snapshot(()).time, held_back={"uid-held": why, "gone": replace(why)})
    assert seen.refused == {"uid-held": why}
