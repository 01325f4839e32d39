"""Whether the cluster knows PodGroups, and Kueue: only a plain yes counts, and only versions that we know."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trimtab.errors import ApiError, Forbidden, NotFound, Unreachable
from trimtab.kube import discovery
from trimtab.kube.discovery import pod_group_kind, serves
from trimtab.kube.resources import POD_GROUPS, POD_GROUPS_BETA, RESOURCE_FLAVORS, WORKLOADS


class Server:
    """Gives these answers, one after the other."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.asked: list[str] = []
        self._answers = list(answers)

    async def get(self, path: str) -> bytes:
        self.asked.append(path)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def kinds(*names: str) -> bytes:
    return json.dumps(
        {"kind": "APIResourceList", "resources": [{"name": name, "kind": "X"} for name in names]}
    ).encode()


ALPHA, BETA = "/apis/scheduling.k8s.io/v1alpha2", "/apis/scheduling.k8s.io/v1beta1"
NO: Any = NotFound("no such version")


@pytest.mark.parametrize(
    ("answer", "served"),
    [
        (kinds("podgroups", "podgroups/status", "workloads"), POD_GROUPS),
        (kinds("workloads"), None),
        (b"{}", None),
        (b"<html>", None),
        (NO, None),
        (Forbidden("not yours"), None),
    ],
)
async def test_pod_groups_are_served_where_a_version_that_we_know_lists_them(answer: Any, served: Any) -> None:
    server: Any = Server(NO, answer)
    assert await pod_group_kind(server) == served
    assert server.asked == [BETA, ALPHA]


async def test_of_two_versions_of_pod_groups_the_newer_one_is_spoken() -> None:
    server: Any = Server(kinds("podgroups", "workloads"))
    assert await pod_group_kind(server) == POD_GROUPS_BETA
    assert server.asked == [BETA]


async def test_a_server_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery.Backoff, "next", lambda self, retry_after: 0.0)
    server: Any = Server(Unreachable("down"), ApiError("500"), kinds("podgroups"))
    assert await pod_group_kind(server) == POD_GROUPS_BETA


@pytest.mark.parametrize(
    ("answer", "served"),
    [
        (kinds("workloads", "resourceflavors"), True),
        (kinds("workloads"), False),
        (NO, False),
        (Forbidden("not yours"), None),
        (b"<html>", None),
    ],
)
async def test_kinds_are_served_where_the_version_that_we_know_lists_them_all(answer: Any, served: bool | None) -> None:
    server: Any = Server(answer)
    assert await serves(server, WORKLOADS, RESOURCE_FLAVORS) == served
    assert server.asked == ["/apis/kueue.x-k8s.io/v1beta2"]
