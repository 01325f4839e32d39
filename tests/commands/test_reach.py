"""How far rights reach: what the API server grants is followed, in the whole cluster or in a namespace; no more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trimtab.commands.reach import EVERY, EVERYWHERE, Reach, reach
from trimtab.errors import Forbidden, Unreachable
from trimtab.kube.resources import JOBS, NODES, PODS, QUEUES

ALL = {("nodes", ""), ("pods", ""), ("llmtrainingjobs", ""), ("queues", ""), ("priorityclasses", ""), ("gpunodes", "")}


class ApiServer:
    """Grants (resource, namespace); an empty namespace for all. `verbs` are those that are granted."""

    def __init__(self, rights: set[tuple[str, str]], verbs: tuple[str, ...] = ("list", "watch")) -> None:
        self.rights, self.verbs, self.away = rights, verbs, False

    async def request(self, method: str, path: str, *, body: dict[str, Any], deadline: float) -> bytes:
        if self.away:
            raise Unreachable("no answer")
        assert path.endswith("/selfsubjectaccessreviews")
        asked = body["spec"]["resourceAttributes"]
        granted = {(asked["resource"], each) for each in ("", asked["namespace"])} & self.rights
        return msgspec.json.encode({"status": {"allowed": bool(granted) and asked["verb"] in self.verbs}})


async def test_who_may_see_everything_does() -> None:
    found = await reach(ApiServer(ALL), ["team"])
    assert found == EVERYWHERE
    assert (found.namespaces, found.left_out) == (None, "")


async def test_who_may_see_a_namespace_sees_that_and_is_told_what_is_left_out() -> None:
    found = await reach(ApiServer({("llmtrainingjobs", "team"), ("pods", "team"), ("queues", "")}), ["team", "other"])
    assert (found.of(JOBS), found.of(PODS), found.of(NODES), found.of(QUEUES)) == (("team",), ("team",), (), EVERY)
    assert found.namespaces == {"team"}
    assert found.left_out == "other namespaces, nodes"


async def test_who_may_list_but_not_watch_cannot_follow() -> None:
    with pytest.raises(Forbidden, match="neither in the whole cluster nor in namespace team"):
        await reach(ApiServer(ALL, verbs=("list",)), ["team"])


async def test_where_nobody_can_be_asked_everything_is_tried() -> None:
    away = ApiServer(set())
    away.away = True
    assert await reach(away, ["team"]) == EVERYWHERE


def test_what_is_not_named_is_not_followed() -> None:
    assert Reach({"pods": EVERY}).of(JOBS) == ()
