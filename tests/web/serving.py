"""The console's server on a free port, before an API server that answers reviews as a table says."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any
from unittest.mock import AsyncMock, patch

import aiohttp
import msgspec
from tests.doctor.world import healthy
from tests.web.town import Town

from trimtab.doctor import show
from trimtab.doctor.examine import examine
from trimtab.errors import Unreachable
from trimtab.serving.listener import Listener
from trimtab.settings import Settings
from trimtab.web import answers
from trimtab.web.console import Console
from trimtab.web.rights import OwnRights, ReviewedRights
from trimtab.web.server import Place, Server


class ApiServer:
    """Knows tokens, and who may do what: `rights` has (user, resource, namespace), an empty namespace for all."""

    server = "https://api.example"

    def __init__(self, tokens: Mapping[str, str], rights: set[tuple[str, str, str]]) -> None:
        self.tokens, self.rights = dict(tokens), rights
        self.asked: list[dict[str, Any]] = []
        self.away = False

    async def request(self, method: str, path: str, *, body: dict[str, Any], deadline: float) -> bytes:
        if self.away:
            raise Unreachable("no answer")
        spec = body["spec"]
        self.asked.append(body)
        if body["kind"] == "TokenReview":
            user = self.tokens.get(spec["token"], "")
            told = {"username": user, "uid": f"uid-{user}", "groups": ["g"], "extra": {"scopes": ["s"]}}
            return msgspec.json.encode({"status": {"authenticated": bool(user), "user": told if user else {}}})
        asked = spec["resourceAttributes"]
        allowed = {(spec["user"], asked["resource"], each) for each in ("", asked["namespace"])} & self.rights
        return msgspec.json.encode({"status": {"allowed": bool(allowed)}})


class Visit:
    """Asks with a token."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str = "") -> None:
        self.session, self.url = session, url
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        async with self.session.get(f"{self.url}api/v1/{path}", headers=self.headers | headers) as answer:
            return answer.status, await answer.read()

    async def post(self, path: str, body: Any) -> tuple[int, bytes]:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with self.session.post(f"{self.url}api/v1/{path}", data=content, headers=self.headers) as answer:
            return answer.status, await answer.read()

    @contextlib.asynccontextmanager
    async def stream(self, since: str = "") -> AsyncIterator[aiohttp.ClientResponse]:
        query = f"?since={since}" if since else ""
        async with self.session.get(f"{self.url}api/v1/stream{query}", headers=self.headers) as answer:
            yield answer


class Site:
    """A console that has looked at a town."""

    def __init__(self, town: Town, console: Console, server: Server, session: aiohttp.ClientSession, url: str) -> None:
        self.town, self.console, self.server = town, console, server
        self.now = 0.0
        """Of the clock by which answers about rights are forgotten."""
        self._session, self.url = session, url

    def visit(self, token: str = "") -> Visit:
        return Visit(self._session, self.url + self.server.place.path, token)

    def look(self) -> None:
        """Look again, and tell those who follow."""
        moment = self.town.moment((self.console.moment.number if self.console.moment else 0) + 1)
        self.console.publish(moment, [*self.console.fed(moment)])


@contextlib.asynccontextmanager
async def site(
    api: ApiServer | None = None, place: Place | None = None, *, nodes: int = 16, connections: int = 64
) -> AsyncIterator[Site]:
    """Serve a town; to all who have the path where there is no API server that is asked about them."""
    client: Any = api or ApiServer({}, set())
    console = Console(client, Settings())
    for reflector in console._watch._needed:  # nobody runs them: the town is what is seen
        reflector.synced.set()
    made: Site | None = None
    rights = ReviewedRights(client, lambda: made.now if made else 0.0) if api else OwnRights()
    server = Server(console, rights, place or Place(), connections)
    listener = Listener(server.guard, "127.0.0.1", 0)
    await listener.open(None)
    well = healthy()
    examined = AsyncMock(return_value=msgspec.json.encode(show.value(well, examine(well))))
    try:
        with patch.object(answers, "doctor", examined):  # a town has no installation
            async with aiohttp.ClientSession() as session:
                made = Site(Town(nodes), console, server, session, listener.url)
                made.look()
                yield made
    finally:
        server.stop()
        await listener.close()
        console.close()
