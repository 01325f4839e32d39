"""The console's port: the page's files, what it asks for, and the stream that keeps it current.

Nothing that a visitor sends is believed: who they are says `Rights`, what they may see their audience. Answers are made
once for all who see the same; a stream hands over frames that are encoded already. Questions that take long are
answered by a process of their own, one at a time.
"""

from __future__ import annotations

import asyncio
import gzip
import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec
import structlog
from aiohttp import web
from msgspec import Struct

from trimtab import __version__
from trimtab.errors import ApiError, Forbidden, TrimtabError
from trimtab.kube.reviews import NotKnown, TooMany
from trimtab.serving.guard import Busy, ConnectionGuard, ConnectionLimits, Counts, GuardedConnection
from trimtab.web import answers, simulate
from trimtab.web.answers import NotAllowed, NotThere, Query
from trimtab.web.audience import redacted
from trimtab.web.channels import Channel, ping
from trimtab.web.console import Console, NotReady
from trimtab.web.rights import Rights, Visitor
from trimtab.web.static_files import StaticFiles
from trimtab.web.worker import Simulations, TooLong

API = "api/v1/"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LARGEST_BODY = 256 << 10
LARGEST_QUERY = 2048
REVIEW_SECONDS = 60.0
"""After which it is asked anew whether who reads a stream still may."""
WRITE_SECONDS = 20.0
"""A viewer that does not take what it is sent for so long is cut off."""
OF_ONE = 256
"""Streams of one visitor who has a name."""
ZIPPED = 2048
"""Answers that are longer are compressed, where the client takes that."""

log = structlog.get_logger(__name__)
Json = dict[str, Any]


class Place(Struct, frozen=True):
    """Where the page is, and by which names."""

    path: str = "/"
    """With a slash at both ends."""
    hosts: tuple[str, ...] = ()
    """Values of the Host header that are answered; empty for all."""


def local_place() -> Place:
    """A path that nobody guesses."""
    return Place(f"/{secrets.token_urlsafe(24)}/")


def limits(connections: int) -> ConnectionLimits:
    """Limits of the port: behind an ingress all viewers have one address."""
    return ConnectionLimits(connections, connections, 10.0, LARGEST_BODY, 64)


class Server:
    """Answers requests."""

    def __init__(
        self, console: Console, rights: Rights, place: Place, connections: int, counts: Counts | None = None
    ) -> None:
        self.place = place
        self.guard = ConnectionGuard(
            self._answer,
            limits(connections),
            counts,
            "web",
            {"/healthz": lambda: "", "/readyz": lambda: self.unready() and "not ready"},
        )
        self._console, self._rights = console, rights
        self._files = StaticFiles()
        self._streams = Counter[str]()
        self._most_streams = max(1, connections // 2)
        self._simulations = Simulations()
        self._doctor: tuple[float, bytes] = (float("-inf"), b"")
        self._examining = asyncio.Lock()
        self.stopping = asyncio.Event()

    def unready(self) -> str:
        """Why nothing can be shown yet; empty when it can."""
        if self.stopping.is_set():
            return "stopping"
        return "" if self._console.moment else self._console.trouble or "the first look is not complete"

    # --- requests -----------------------------------------------------------------------------------------------------
    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._found(request)
        except NotAllowed as error:
            return _wrong(403, "Forbidden", str(error), f"ask for a role with: {error.needs}")
        except NotThere as error:
            return _wrong(404, "NotFound", str(error))
        except NotKnown as error:
            return _wrong(error.status, "Unauthorized", str(error), "send a token")
        except (TooMany, Busy) as error:
            return _wrong(429, "TooManyRequests", str(error) or "too much is in work: try again", after=5)
        except TooLong as error:
            return _wrong(504, "Timeout", str(error))
        except (NotReady, ApiError) as error:
            return _wrong(503, "Unavailable", str(error), after=2)
        except TrimtabError as error:
            return _wrong(400, "Invalid", str(error))
        except web.HTTPRequestEntityTooLarge:
            return _last(_wrong(413, "TooLarge", f"the body must have at most {LARGEST_BODY:,} bytes"))
        except TimeoutError:
            return _last(_wrong(408, "Timeout", "the request did not arrive in time"))

    async def _found(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if self.place.hosts and request.headers.get("Host", "") not in self.place.hosts:
            return _wrong(421, "Misdirected", "this is not the name of this host")
        if not path.startswith(self.place.path) or len(request.query_string) > LARGEST_QUERY:
            return _wrong(404, "NotFound", "there is nothing here")
        rest = path.removeprefix(self.place.path)
        if not rest.startswith(API):
            return self._file(request, rest)
        return await self._api(request, PurePosixPath(rest.removeprefix(API)).parts)

    def _file(self, request: web.BaseRequest, rest: str) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            return _wrong(405, "MethodNotAllowed", "GET only")
        found = self._files.find(rest)
        if found is None:
            return _wrong(404, "NotFound", "there is no such file")
        headers = HEADERS | {"Cache-Control": "no-cache", "ETag": found.etag}
        if request.headers.get("If-None-Match") == found.etag:
            return web.Response(status=304, headers=headers)
        body = found.content if request.method == "GET" else b""
        return web.Response(body=body, content_type=found.media_type, charset="utf-8", headers=headers)

    async def _api(self, request: web.BaseRequest, parts: tuple[str, ...]) -> web.StreamResponse:
        if not parts:
            return _wrong(404, "NotFound", "there is nothing here")
        posts = parts in (("plan",), ("whatif",))
        if request.method != ("POST" if posts else "GET"):
            return _wrong(405, "MethodNotAllowed", f"{'POST' if posts else 'GET'} only")
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            return _wrong(403, "Forbidden", "other pages may not ask")
        visitor = await self._visitor(request)
        if posts:
            return await self._simulated(request, visitor, parts[0])
        if parts == ("whoami",):
            return _json(request, self._whoami(visitor))
        if parts == ("doctor",):
            return _json(request, await self._examined(visitor, fresh=bool(request.query.get("fresh"))))
        if parts == ("stream",):
            return await self._stream(request, visitor)
        return await self._told(request, visitor, parts)

    async def _visitor(self, request: web.BaseRequest) -> Visitor:
        return await self._rights.visitor(request.headers, request.remote or "", self._console.namespaces)

    async def _told(self, request: web.BaseRequest, visitor: Visitor, parts: tuple[str, ...]) -> web.Response:
        found = answers.find(parts)
        if found is None:
            return _wrong(404, "NotFound", "there is nothing here")
        answer, rest = found
        query = Query(rest, tuple(sorted(request.query.items()))[:8])
        zipped = "gzip" in request.headers.get("Accept-Encoding", "")
        audience, settings = visitor.audience, self._console.settings

        def work(moment: Any) -> bytes:
            body = answers.encoded(answer, moment, audience, query, settings)
            return gzip.compress(body, 1, mtime=0) if zipped and len(body) > ZIPPED else body

        body = await self._console.answer((answer.__name__, audience, query, zipped), work, visitor.name)
        return _json(request, body, zipped=body[:2] == b"\x1f\x8b")

    def _whoami(self, visitor: Visitor) -> bytes:
        moment, spaces = self._console.moment, visitor.audience.namespaces
        jobs = moment.jobs if moment else []
        hidden = [key for key in jobs if not visitor.audience.sees(key.partition("/")[0])]
        return msgspec.json.encode(
            {
                "mode": self._rights.mode,
                "user": visitor.name,
                "server": self._console.server if visitor.can.doctor else "",
                "version": __version__,
                "can": visitor.can,
                "namespaces": None if spaces is None else sorted(spaces),
                "leftOut": {"namespaces": len({key.partition("/")[0] for key in hidden}), "jobs": len(hidden)},
                "unseen": self._console.reach.left_out,
                "trouble": self._console.trouble_for(visitor.audience),
            }
        )

    async def _examined(self, visitor: Visitor, *, fresh: bool) -> bytes:
        if not visitor.can.doctor:
            needs = "list and watch of nodes, gpunodes, queues and llmtrainingjobs in all namespaces"
            raise NotAllowed("you may not see what is wrong with the installation", needs)
        loop = asyncio.get_running_loop()
        async with self._examining:
            if loop.time() - self._doctor[0] > (5.0 if fresh else 30.0):
                self._doctor = (loop.time(), await answers.doctor(self._console.settings))
            return self._doctor[1]

    async def _simulated(self, request: web.BaseRequest, visitor: Visitor, kind: str) -> web.Response:
        if not (visitor.can.plan if kind == "plan" else visitor.can.whatif):
            needs = "list and watch of nodes and gpunodes.trimtab.dev"
            more = "" if kind == "plan" else ", and of llmtrainingjobs.trimtab.dev in all namespaces"
            raise NotAllowed(f"you may not ask for a {kind}", needs + more)
        async with self.guard.work(self.guard.announced(request)):
            body = await self.guard.body(request)
        asked = simulate.decoded(kind, body)
        moment, settings = self._console.ready(), self._console.settings
        policy = moment.deciders.policy or settings.policy.name
        question = simulate.question(asked, moment.seen, policy, moment.known, settings)
        value = await self._simulations.ask(question, visitor.name)
        names = moment.denied(visitor.audience)
        return _json(request, msgspec.json.encode(redacted(value, names)))

    # --- the stream ---------------------------------------------------------------------------------------------------
    async def _stream(self, request: web.BaseRequest, visitor: Visitor) -> web.StreamResponse:
        if self._streams.total() >= self._most_streams or (visitor.name and self._streams[visitor.name] >= OF_ONE):
            raise TooMany("too many streams are open: try again later")
        response = web.StreamResponse(headers=HEADERS | {"Cache-Control": "no-store"})
        response.content_type = "application/x-ndjson"
        self._streams[visitor.name] += 1
        try:
            channel = await self._console.channel(visitor.audience)
            await response.prepare(request)
            await self._send(request, response, visitor, channel)
        except (ConnectionError, TimeoutError):  # it has gone, or does not take what it is sent
            if isinstance(request.protocol, GuardedConnection):
                request.protocol.force_close()
        finally:
            self._streams[visitor.name] -= 1
            self._streams += Counter()  # without those that have none
        return response

    async def _send(
        self, request: web.BaseRequest, response: web.StreamResponse, visitor: Visitor, channel: Channel
    ) -> None:
        """Hand frames over until the viewer goes, we stop, or it may not read them any more."""
        loop, since = asyncio.get_running_loop(), request.query.get("since", "")
        reviewed, trouble = loop.time(), ""
        while not self.stopping.is_set():
            since, frames = await channel.behind(since, self._console.thread)
            if loop.time() - reviewed > REVIEW_SECONDS:
                if (refusal := await self._refusal(request, visitor)) is not None:
                    await response.write(refusal)
                    return
                reviewed = loop.time()
            now = self._console.trouble_for(visitor.audience)
            if now != trouble or not frames:
                frames.append(ping(since, now))
                trouble = now
            for frame in frames:
                async with asyncio.timeout(WRITE_SECONDS):
                    await response.write(frame)
            if since == channel.id:
                await channel.news()

    def stop(self) -> None:
        """Let streams end."""
        self.stopping.set()
        self._console.wake()

    async def _refusal(self, request: web.BaseRequest, visitor: Visitor) -> bytes | None:
        """The last line of a stream whose reader may not see it any more; None where they may."""
        status, message = 403, "what you may see has changed: connect again"
        try:
            if (await self._visitor(request)).audience == visitor.audience:
                return None
        except NotKnown as error:
            status, message = error.status, str(error)
        except Forbidden as error:
            message = str(error)
        except TrimtabError:  # nobody can be asked: what was true a minute ago is not shown for longer
            status, message = 503, "nobody can be asked whether you may see this: connect again"
        return msgspec.json.encode({"event": "denied", "status": status, "message": message}) + b"\n"


def _json(request: web.BaseRequest, body: bytes, *, zipped: bool = False) -> web.Response:
    headers = HEADERS | {"Cache-Control": "no-store", "Vary": "Accept-Encoding, Authorization"}
    if zipped:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, content_type="application/json", headers=headers)


def _wrong(status: int, reason: str, message: str, fix: str = "", *, after: int = 0) -> web.Response:
    told: Mapping[str, Any] = {"status": status, "reason": reason, "message": message, "help": fix}
    headers = HEADERS | {"Cache-Control": "no-store"} | ({"Retry-After": str(after)} if after else {})
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="trimtab"'
    body = msgspec.json.encode({"error": told})
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def _last(response: web.Response) -> web.Response:
    """The rest of the request is not wanted."""
    response.force_close()
    return response
