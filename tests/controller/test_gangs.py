"""One job that we have a bug for holds up nobody else."""

from __future__ import annotations

import asyncio
import math
from typing import Any, cast

from trimtab.apply.steps import View
from trimtab.controller.gangs import Gangs
from trimtab.controller.views import Gang
from trimtab.settings import Settings
from trimtab.telemetry.metrics import REGISTRY


class Views:
    """Views that break for one job; remembers who was looked at."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def view(self, uid: str, gang: Gang) -> View | None:
        self.seen.append(uid)
        gang.due = 0.0
        if uid == "cursed":
            raise ZeroDivisionError
        return None


class NoJobs:
    """A cluster in which every job still exists."""

    def job(self, uid: str) -> object:
        return object()


def drivers(views: Views) -> Gangs:
    unused = cast(Any, None)
    return Gangs(
        unused, cast(Any, NoJobs()), cast(Any, views), unused, Settings(), leader_epoch=unused, wake=unused, fail=unused
    )


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
