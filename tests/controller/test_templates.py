"""Templates of jobs that wait are tried in dry runs: what can never be a pod is told, and nothing else holds a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from tests.builders import job_object, placement, plan_of

from trimtab import names
from trimtab.api.status import JobStatus
from trimtab.controller.jobs import templates
from trimtab.controller.jobs.templates import Templates
from trimtab.errors import Forbidden, Invalid, LeadershipLost, Overloaded
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import JobObject
from trimtab.observe import jobs
from trimtab.plan.objects import trial
from trimtab_policy.types import Pending, PendingReason

Object = dict[str, Any]
UNKNOWN = Invalid('strict decoding error: unknown field "spec.containers[0].comand"', status=400)
BAD = Invalid("spec.containers[0].ports[0].containerPort: Invalid value: 99999", status=422)


class World:
    """Jobs, and an API server that answers as it is told."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobObject] = {}
        self.answers: dict[tuple[str, str], Exception] = {}
        """By job and `fieldValidation`: what is said against its pod."""
        self.asked: list[tuple[str, str]] = []
        self.woken = 0
        self.templates = Templates(cast(KubeClient, self), self.jobs.values, jobs.facts, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    async def request(self, method: str, path: str, *, body: Any, params: Any, deadline: float) -> bytes:
        assert (method, params["dryRun"]) == ("POST", "All")
        asked = body["metadata"]["labels"][names.LABEL_JOB], params["fieldValidation"]
        self.asked.append(asked)
        await asyncio.sleep(0)
        if answer := self.answers.get(asked):
            raise answer
        return b"{}"

    def add(self, name: str, **meta: Any) -> None:
        self.jobs[name] = job_object(name, meta.pop("spec", None), **meta)

    def held(self) -> dict[str, Pending | None]:
        return {uid.removeprefix("uid-"): why for uid, why in self.templates.look().items()}

    async def until(self, happened: Callable[[], bool]) -> None:
        for _ in range(5000):
            self.held()
            if happened():
                return
            await asyncio.sleep(0.002)
        raise AssertionError(f"it did not come to that: {self.asked}, {self.held()}")


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Nobody is waited for."""
    for pause in ("WAIT_SECONDS", "AGAIN_SECONDS", "SWEEP_SECONDS"):
        monkeypatch.setattr(templates, pause, 0.0)
    world = World()
    task = asyncio.create_task(world.templates.run())
    yield world
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    "answers",
    [
        {("job", "Strict"): BAD},
        {("job", "Strict"): UNKNOWN},
        {("job", "Strict"): BAD, ("job", "Ignore"): BAD},
    ],
)
async def test_what_can_never_be_a_pod_is_told_and_goes_on_with_another_spec(world: World, answers: Any) -> None:
    world.answers.update(answers)
    world.add("job")
    await world.until(lambda: bool(world.held()))
    why = world.held()["job"]
    assert why
    assert why.reason is PendingReason.INVALID_SPEC
    assert why.message.startswith("spec.template: ")
    assert str(answers["job", "Strict"]) in why.message
    assert world.woken == 1, "once, however often it is tried"
    world.answers.clear()
    world.add("job", generation=2)
    assert world.held() == {}


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {("job", "Strict"): Forbidden("exceeded quota", status=403)},
        {("job", "Strict"): Overloaded("later", status=503)},
        {("job", "Strict"): Invalid("a webhook knows no dry runs", status=400), ("job", "Ignore"): UNKNOWN},
        {("job", "Strict"): UNKNOWN, ("job", "Ignore"): Overloaded("later", status=503)},
    ],
)
async def test_what_may_pass_with_time_holds_no_job(world: World, answers: Any) -> None:
    world.answers.update(answers)
    world.add("job")
    await world.until(lambda: ("job", "Strict") in world.asked)
    await asyncio.sleep(0.01)
    assert world.held() == {}
    assert len(world.asked) <= 2, "and it is not tried again"


async def test_a_template_that_was_refused_is_tried_again(world: World) -> None:
    """By another admission controller, say, or another version of Kubernetes."""
    world.answers["job", "Strict"] = BAD
    world.add("job")
    await world.until(lambda: bool(world.held()))
    world.answers.clear()
    await world.until(lambda: not world.held())


async def test_jobs_that_do_not_wait_are_not_tried(world: World) -> None:
    world.add("runs", status=JobStatus(plan=plan_of(placement()), last_epoch=1))
    world.add("sleeps", spec={"suspend": True})
    world.add("stands-in", spec={"managedBy": names.MANAGED_BY_STAND_IN})
    world.add("waits")
    await world.until(lambda: bool(world.asked))
    assert {job for job, _ in world.asked} == {"waits"}


async def test_a_job_that_is_planned_at_once_costs_nothing(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr(templates, "WAIT_SECONDS", 1000.0)
    world.add("job")
    world.held()
    await asyncio.sleep(0.02)
    assert world.asked == []


async def test_namespaces_take_turns(world: World) -> None:
    for index in range(100):
        world.add(f"flood-{index}", namespace="flood")
    world.add("small", namespace="small")
    await world.until(lambda: ("small", "Strict") in world.asked)
    assert world.asked.index(("small", "Strict")) <= templates.MOST_OF_A_NAMESPACE


async def test_losing_the_lead_ends_it_with_that_very_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "WAIT_SECONDS", 0.0)
    world = World()
    world.answers["job", "Strict"] = LeadershipLost("somebody else leads")
    world.add("job")
    world.held()
    with pytest.raises(LeadershipLost):
        await asyncio.wait_for(world.templates.run(), 20)


async def test_a_template_that_makes_no_sense_to_us_keeps_nobody_from_being_tried(world: World) -> None:
    world.add("odd", spec={"template": {"spec": {"containers": [{"name": "t", "image": "i"}], "volumes": 7}}})
    world.add("job")
    await world.until(lambda: ("job", "Strict") in world.asked)
    assert world.held() == {}


def test_the_pod_that_is_tried_is_the_template_as_it_was_written() -> None:
    meta = job_object("job").metadata
    spec = {
        "containers": [{"name": "t", "image": "i", "comand": ["x"], "volumeMounts": [{"name": "trimtab-shm"}]}],
        "serviceAccountName": "acts",
    }
    annotations = {"a": "b", names.ANNOTATION_CHECKPOINT: "x"}
    pod = trial(meta, {"metadata": {"labels": {"team": "x"}, "annotations": annotations}, "spec": spec})
    assert pod["spec"]["containers"] == spec["containers"]
    assert pod["spec"]["volumes"] == [{"name": "trimtab-shm", "emptyDir": {}}], "what a plan adds may be mounted"
    assert pod["metadata"]["annotations"] == {"a": "b"}
    assert pod["metadata"]["labels"]["team"] == "x"
    assert pod["metadata"]["labels"][names.LABEL_REACH] == "template", "admission looks at it as at a gang's"
    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == (names.JOB_KIND, "job", "uid-job")
