"""An extender that is down, slow, wrong, restarted or one of two: no gang is placed without it, none stays half."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.live.extender.conftest import EXTENDER, NewExtender
from tests.live.extender.front import Front
from tests.live.extender.gangs import bound, epoch, gang, gone, planned_nodes, released, rolled_back, runs_whole
from tests.live.extender.process import ExtenderProcess
from tests.live.extender.stand_in import Answer, StandIn
from tests.live.harness import ControllerProcess, Live, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

GATES_ALONE: dict[str, dict[str, Any]] = {"binding": {**EXTENDER["binding"], "pod_groups": "Never"}}
"""Without PodGroups kube-scheduler binds pod by pod, so that gangs can be caught half bound."""


def garbage(asked: dict[str, Any]) -> bytes:
    return b"<html>bad gateway</html>"


def invented(asked: dict[str, Any]) -> bytes:
    return json.dumps({"NodeNames": ["no-such-node"]}).encode()


def failing(asked: dict[str, Any]) -> bytes:
    return json.dumps({"Error": "the books are closed"}).encode()


def nothing(asked: dict[str, Any]) -> bytes:
    return b"{}"


WRONG = [
    (garbage, "invalid character '<'"),
    (invented, "not found in the input node list"),
    (failing, "the books are closed"),
    (nothing, "nodes are available"),
]


@pytest.mark.parametrize(("answer", "words"), WRONG, ids=[answer.__name__ for answer, _ in WRONG])
async def test_a_wrong_answer_binds_nothing_and_blames_no_node(
    live: Live,
    controller: ControllerProcess,
    extender: ExtenderProcess,
    front: Front,
    stand_in: Callable[[Answer], StandIn],
    answer: Answer,
    words: str,
) -> None:
    job = f"answer-{answer.__name__}"
    stand_in(answer)
    live.apply(gang(job, 2))
    assert "0 of 2 pods" in await rolled_back(live, job, "BindTimeout", words)
    assert bound(live, job) == []
    front.to(extender.port)
    await runs_whole(live, job)
    assert sorted(planned_nodes(live, job))[0].startswith("wide"), "any node may be tried again"
    await live.gone(job)


async def test_a_gang_is_not_placed_without_an_extender(
    live: Live, controller: ControllerProcess, extender: ExtenderProcess, front: Front
) -> None:
    front.down()
    live.apply(gang("down", 2))
    await rolled_back(live, "down", "BindTimeout", "/filter")
    assert bound(live, "down") == []
    front.to(extender.port)
    await runs_whole(live, "down")
    await live.gone("down")


async def test_a_gang_is_not_placed_by_an_extender_that_answers_too_late(
    live: Live, controller: ControllerProcess, extender: ExtenderProcess, front: Front
) -> None:
    front.delay = 1.5  # httpTimeout is 1 s
    live.apply(gang("late", 2))
    await rolled_back(live, "late", "BindTimeout", "/filter")
    assert bound(live, "late") == []
    front.delay = 0.0
    await runs_whole(live, "late")
    await live.gone("late")


async def test_a_gang_that_is_half_bound_when_its_time_is_over_is_taken_back_as_a_whole(
    live: Live, extender: ExtenderProcess, front: Front, tmp_path: Path
) -> None:
    front.delay = 0.2  # for one pod after another: 32 take longer than the 5 s that they have
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **GATES_ALONE):
        live.apply(gang("half", 32))
        message = await rolled_back(live, "half", "BindTimeout", seconds=30)
        front.delay = 0.0
        assert " 0 of 32" not in message
        await runs_whole(live, "half")
        assert len(bound(live, "half")) == 32
        assert epoch(live, "half") > 1
        await live.gone("half")


async def test_an_extender_that_is_killed_and_started_again_while_a_gang_is_bound_delays_it(
    live: Live,
    fresh_scheduler: None,
    extender: ExtenderProcess,
    new_extender: NewExtender,
    front: Front,
    tmp_path: Path,
) -> None:
    settings = {**GATES_ALONE, "binding": {**GATES_ALONE["binding"], "timeout_seconds": 60}}
    mortal = new_extender()
    front.to(mortal.port)
    front.delay = 0.05
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **settings):
        live.apply(gang("survivor", 64))
        await eventually(lambda: len(bound(live, "survivor")) >= 3, what="the first pods to be bound", pause=0)
        mortal.kill()
        assert len(bound(live, "survivor")) < 64
        front.delay = 0.0
        front.to(extender.port)
        await runs_whole(live, "survivor", 60)
        assert (len(bound(live, "survivor")), epoch(live, "survivor")) == (64, 1)
        await live.gone("survivor")


async def test_two_extenders_behind_one_address_are_as_good_as_one_and_either_may_die(
    live: Live, controller: ControllerProcess, extender: ExtenderProcess, new_extender: NewExtender, front: Front
) -> None:
    other = new_extender()
    before = extender.asked()
    front.to(extender.port, other.port)
    for job in ("first", "second", "third"):
        live.apply(gang(job, 8))
        await runs_whole(live, job)
        front.cut()  # kube-scheduler keeps its connection otherwise
    assert extender.asked() > before
    assert other.asked() > 0
    other.kill()
    live.apply(gang("fourth", 8), gang("fifth", 8))
    for job in ("fourth", "fifth"):
        await runs_whole(live, job)
    await gone(live, "first", "second", "third", "fourth", "fifth")


async def test_a_controller_that_is_killed_while_kube_scheduler_binds_leaves_its_successor_to_take_the_gang_back(
    live: Live, extender: ExtenderProcess, front: Front, tmp_path: Path
) -> None:
    front.down()
    mortal = ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **EXTENDER).start()
    live.apply(gang("orphan", 8))
    await released(live, "orphan", 8)
    mortal.signal(signal.SIGKILL)
    await mortal.died()
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **EXTENDER):
        await rolled_back(live, "orphan", "BindTimeout")
        front.to(extender.port)
        await runs_whole(live, "orphan")
        await live.gone("orphan")
