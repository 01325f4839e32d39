"""Metrics for those only whom the API server knows and lets: what it may answer, and what it is not asked twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from trimtab.agent.start import config_of
from trimtab.errors import Forbidden, Overloaded, SettingsError, Unreachable
from trimtab.kube import reviews
from trimtab.settings import HttpSettings, Settings
from trimtab.settings.section import MutualTlsSettings
from trimtab.telemetry.scrapers import Scrapers, scrapers_of
from trimtab.telemetry.server import TelemetryServer

LOCAL = HttpSettings(host="127.0.0.1", port=0, authentication="Kubernetes")
USER = {"username": "system:serviceaccount:monitoring:prometheus", "uid": "u1", "groups": ["g"], "extra": {"k": ["v"]}}
KNOWN: dict[str, Any] = {"authenticated": True, "user": USER, "audiences": ["https://kubernetes.default.svc"]}


class ApiServer:
    """Answers both reviews as it is told."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.token: Any = {"status": KNOWN}
        self.access: Any = {"status": {"allowed": True}}
        self.failure: Exception | None = None
        self.hold = asyncio.Event()
        self.hold.set()

    async def request(self, method: str, path: str, *, body: dict[str, Any], deadline: float) -> bytes:
        assert method == "POST"
        self.asked.append((path, msgspec.json.decode(msgspec.json.encode(body["spec"]))))
        await self.hold.wait()
        if self.failure:
            raise self.failure
        answer = self.token if path.endswith("/tokenreviews") else self.access
        return answer if isinstance(answer, bytes) else msgspec.json.encode(answer)


class Port:
    """A metrics port, and the API server that it asks."""

    def __init__(self) -> None:
        self.api = ApiServer()
        self.now = 0.0
        self.scrapers = Scrapers(self.api, lambda: self.now)
        self.server = TelemetryServer(LOCAL, healthy=lambda: "", ready=lambda: "", scrapers=self.scrapers)

    async def get(self, authorization: str | None = "Bearer good", path: str = "/metrics") -> tuple[int, str]:
        headers = {} if authorization is None else {"Authorization": authorization}
        async with (
            aiohttp.ClientSession() as session,
            session.get(self.server.url + path, headers=headers) as answer,
        ):
            assert ("WWW-Authenticate" in answer.headers) == (answer.status == 401)
            return answer.status, await answer.text()


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port()
    async with made.server:
        yield made


async def test_who_may_read_metrics_reads_them_and_is_asked_about_once_a_minute(port: Port) -> None:
    for port.now in (0.0, 30.0, 59.0):
        status, text = await port.get()
        assert (status, "trimtab_connections" in text) == (200, True)
    attributes = {"path": "/metrics", "verb": "get"}
    asked = {"user": USER["username"], **{k: USER[k] for k in ("uid", "groups", "extra")}}
    assert port.api.asked == [
        ("/apis/authentication.k8s.io/v1/tokenreviews", {"token": "good"}),
        ("/apis/authorization.k8s.io/v1/subjectaccessreviews", asked | {"nonResourceAttributes": attributes}),
    ]
    port.now = 61.0
    assert (await port.get())[0] == 200
    assert len(port.api.asked) == 4


async def test_health_is_told_to_all(port: Port) -> None:
    assert await port.get(None, "/healthz") == (200, "ok\n")
    assert await port.get("Bearer bad", "/readyz") == (200, "ok\n")
    assert port.api.asked == []


@pytest.mark.parametrize(
    "header", [None, "", "Bearer ", "Basic YTpi", "Bearer a b", "Bearer é", f"Bearer {'x' * 8193}"]
)
async def test_what_is_no_token_is_refused_and_nobody_is_asked(port: Port, header: str | None) -> None:
    status, text = await port.get(header)
    assert (status in (400, 401), "trimtab_" in text) == (True, False)
    assert port.api.asked == []


@pytest.mark.parametrize(
    "answer",
    [{"status": {"authenticated": False, "error": "no"}}, {}, {"status": {}}, {"status": {"authenticated": True}},
     {"status": KNOWN | {"authenticated": False}}, {"status": KNOWN | {"user": {"username": ""}}}],
    ids=str,
)  # fmt: skip
async def test_whom_the_api_server_does_not_know_is_refused(port: Port, answer: Any) -> None:
    port.api.token = answer
    for port.now in (0.0, 9.0):
        assert (await port.get())[0] == 401
    assert len(port.api.asked) == 1
    port.api.token, port.now = {"status": KNOWN}, 11.0
    assert (await port.get())[0] == 200


@pytest.mark.parametrize("answer", [{"status": {"allowed": False}}, {}, {"status": {"allowed": True, "denied": True}}])
async def test_who_may_not_read_metrics_is_told_so(port: Port, answer: Any) -> None:
    port.api.access = answer
    for port.now in (0.0, 9.0):
        status, text = await port.get()
        assert (status, "may not get /metrics" in text, "trimtab_connections" in text) == (403, True, False)
    assert len(port.api.asked) == 2
    port.api.access, port.now = {"status": {"allowed": True}}, 11.0
    assert (await port.get())[0] == 200


@pytest.mark.parametrize(
    "failure", [Unreachable("away"), Overloaded("busy", status=503), Forbidden("we may not ask", status=403)], ids=str
)
async def test_where_nobody_can_be_asked_only_those_who_are_known_are_let_in(port: Port, failure: Exception) -> None:
    assert (await port.get())[0] == 200
    port.api.failure, port.now = failure, 59.0
    assert (await port.get())[0] == 200
    for authorization in ("Bearer another", "Bearer another"):
        assert (await port.get(authorization))[0] == 503
    port.now = 61.0
    assert (await port.get())[0] == 503
    port.api.failure = None
    assert (await port.get())[0] == 200, "nobody's token is remembered as bad for it"


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[]", b'{"status": 7}', b'{"status": {"allowed": "yes"}}', b"\xff"]
)
async def test_an_answer_that_is_no_review_lets_nobody_in(port: Port, answer: bytes) -> None:
    port.api.access = answer
    assert (await port.get())[0] == 503
    port.api.access, port.api.token = {"status": {"allowed": True}}, answer
    assert (await port.get("Bearer another"))[0] in (401, 503)


async def test_rubbish_is_reviewed_slowly_and_keeps_nobody_out_who_is_known(port: Port) -> None:
    assert (await port.get())[0] == 200
    port.api.token = {"status": {"authenticated": False}}
    found = [(await port.get(f"Bearer rubbish-{number}"))[0] for number in range(reviews.STRIKES + 8)]
    assert found == [401] * reviews.STRIKES + [429] * 8
    assert (await port.get())[0] == 200
    port.api.token, port.now = {"status": KNOWN}, 60.5
    assert (await port.get())[0] == 200


async def test_only_so_many_are_asked_about_at_once(port: Port) -> None:
    port.api.hold.clear()
    waiting = [asyncio.create_task(port.get(f"Bearer t{number}")) for number in range(reviews.REVIEWS_AT_ONCE + 4)]
    done: set[asyncio.Task[tuple[int, str]]] = set()
    while len(done) < 4:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=0.05)
    assert {task.result()[0] for task in done} == {429}
    port.api.hold.set()
    assert sorted(status for status, _ in await asyncio.gather(*waiting)) == [200] * reviews.REVIEWS_AT_ONCE + [429] * 4


def test_tokens_are_not_asked_for_in_plain_text_beyond_this_machine() -> None:
    api = ApiServer()
    with pytest.raises(SettingsError, match=r"metrics\.authentication: .* plain text .*metrics\.tls"):
        scrapers_of(HttpSettings(authentication="Kubernetes"), api)
    with pytest.raises(SettingsError, match="no API server"):
        scrapers_of(LOCAL, None)
    secure = MutualTlsSettings(certificate=Path("a.crt"), key=Path("a.key"))
    assert scrapers_of(HttpSettings(authentication="Kubernetes", tls=secure), api)
    assert scrapers_of(LOCAL, api)
    assert scrapers_of(HttpSettings(), None) is None


def test_agents_say_that_they_cannot() -> None:
    with pytest.raises(SettingsError, match=r"metrics\.authentication: agents cannot"):
        config_of(Settings(metrics=LOCAL), "n1")
