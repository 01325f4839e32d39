"""One job that we have a bug for holds up nobody else."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.builders import job_object

from trimtab.apply.steps import JobContext
from trimtab.controller.jobs.gangs import MOST_TOLD, REST_SECONDS, Gangs
from trimtab.controller.views import DriverState, JobSight, Rest
from trimtab.kube.objects import Identity
from trimtab.settings import Settings
from trimtab.telemetry.metrics import REGISTRY
from trimtab_policy.types import Pending, PendingReason


class Views:
    """Views that break for one job; remembers who was looked at."""

    def __init__(self, due: float = 0.0) -> None:
        self.seen: list[str] = []
        self.due = due
        self.rests: dict[str, Rest] = {}

    def rest(self, uid: str, gang: DriverState) -> Rest | None:
        return self.rests.get(uid)

    def sight(self, uid: str) -> JobSight | None:
        self.seen.append(uid)
        return None

    def view(self, gang: DriverState, sight: JobSight) -> JobSight:
        return sight

    def remember(self, gang: DriverState, sight: JobSight | None) -> None:
        gang.due = self.due
        if self.seen[-1:] == ["cursed"]:
            raise ZeroDivisionError


class NoJobs:
    """A cluster in which every job still exists."""

    def job(self, uid: str) -> object:
        return object()

    def without_job(self) -> list[Identity]:
        return []


def drivers(views: Views, wall: Callable[[], float] = time.time, wake: Any = None) -> Gangs:
    unused, cluster, shown = cast(Any, None), cast(Any, NoJobs()), cast(Any, views)
    return Gangs(unused, cluster, shown, unused, Settings(), leader_epoch=unused, wake=wake, fail=unused, wall=wall)


def mistakes() -> float:
    return REGISTRY.get_sample_value("trimtab_driver_errors_total") or 0.0


async def test_a_job_whose_view_breaks_is_counted_and_the_others_go_on() -> None:
    views, before = Views(), mistakes()
    gangs = drivers(views)
    gangs.advance(["cursed", "blessed"])
    assert views.seen == ["cursed", "blessed"]
    assert mistakes() == before + 1


async def test_what_is_due_wakes_nobody_for_a_job_that_is_worked_at_or_breaks() -> None:
    gangs = drivers(Views())
    gangs.look("cursed")
    assert gangs.next_deadline() == math.inf
    gangs.look("blessed")
    assert gangs.next_deadline() == 0.0
    task = gangs._gang("blessed").task = asyncio.create_task(asyncio.sleep(0))
    assert gangs.next_deadline() == math.inf
    await task


async def test_a_job_that_only_waits_is_not_looked_at_again_and_again_while_nothing_happens() -> None:
    """Thousands may wait. What happens to one is seen at once, and what time alone changes, after a while."""
    views, now = Views(due=math.inf), 1000.0
    gangs = drivers(views, lambda: now)
    job, other = job_object("a"), job_object("b")
    views.rests = {"a": Rest(job, None, None), "b": Rest(other, None, None)}
    gangs.advance(["a", "b", "runs"])
    gangs.advance(["a", "b", "runs"])
    assert views.seen == ["a", "b", "runs", "runs"]
    views.rests["a"] = Rest(job, Pending("a", PendingReason.INSUFFICIENT_GPUS, "8 are free"), None)
    views.rests["b"] = Rest(job_object("b"), None, None)  # another version of it
    gangs.advance(["a", "b"])
    assert sorted(views.seen[4:]) == ["a", "b"]
    now += REST_SECONDS
    gangs.advance(["a", "b"])
    assert sorted(views.seen[6:]) == ["a", "b"]
    now -= REST_SECONDS / 2  # a clock that was set back must not keep it from being looked at
    gangs.advance(["a"])
    assert views.seen[8:] == ["a"]


async def test_a_job_that_only_waits_is_looked_at_when_its_time_has_come() -> None:
    views, now = Views(due=1005.0), 1000.0
    gangs = drivers(views, lambda: now)
    views.rests = {"a": Rest(job_object("a"), None, None)}
    gangs.look("a")
    gangs.look("a")
    assert views.seen == ["a"]
    now = 1005.0
    gangs.look("a")
    assert views.seen == ["a", "a"]


async def test_of_very_many_that_wait_only_some_are_told_at_a_time_and_nobody_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crowd of drivers in line for a turn would fill the memory. It is no hindrance to another namespace."""
    views, going = Views(due=math.inf), asyncio.Semaphore(0)
    names = [f"crowd-{i}" for i in range(MOST_TOLD + 3)]
    views.rests = {name: Rest(job_object(name, namespace="crowd"), None, None) for name in names}
    views.rests["other"] = Rest(job_object("other", namespace="other"), None, None)
    told: list[str] = []

    async def take(self: Gangs, view: JobContext, gang: DriverState, step: object) -> None:
        await going.acquire()
        told.append(str(view))

    monkeypatch.setattr(Gangs, "_take", take)
    monkeypatch.setattr("trimtab.controller.jobs.gangs.steps.next_step", lambda view: () if view in told else ("tell",))
    monkeypatch.setattr(Views, "sight", lambda self, uid: uid)
    ended = asyncio.Semaphore(0)
    gangs = drivers(views, wake=ended.release)
    gangs.advance([*names, "other"])
    assert sum(gangs._gang(name).task is not None for name in names) == MOST_TOLD
    assert gangs._gang("other").task is not None
    for _ in range(MOST_TOLD + 1):
        going.release()
        await ended.acquire()
    gangs.advance([*names, "other"])
    for _ in range(3):
        going.release()
        await ended.acquire()
    assert sorted(told) == sorted([*names, "other"])
    await gangs.stop()
    assert gangs._told.total() == 0


async def test_every_round_begins_elsewhere_so_that_the_last_in_line_are_told_too() -> None:
    views = Views()
    gangs, line = drivers(views), [f"job-{i:03}" for i in range(3 * MOST_TOLD)]
    for start in (0, MOST_TOLD, 2 * MOST_TOLD, 0):
        views.seen.clear()
        gangs.advance(line)
        assert views.seen == line[start:] + line[:start]


async def test_a_job_that_something_is_heard_of_is_looked_at_at_once() -> None:
    views, news = Views(), asyncio.Queue[str]()
    following = asyncio.create_task(drivers(views).follow(news))
    news.put_nowait("cursed")
    news.put_nowait("blessed")
    await asyncio.sleep(0)
    assert views.seen == ["cursed", "blessed"]
    following.cancel()
