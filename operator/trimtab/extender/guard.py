"""The door: an HTTP server that a slow, greedy or silent client cannot hold open.

aiohttp gives a connection a time to be idle between requests, but none to send its headers, its body, or to fetch the
answer; any of these, dripped, keeps a connection and its memory for good (slowloris). Here each has a deadline:

    silent          connected, and no complete request since
    slow_request    a request's headers have begun and do not end
    slow_body       its body does not end
    slow_reader     the answer is not fetched
    full            one connection too many

What is late is cut off and counted. A TLS handshake has the same deadline, by asyncio. Requests in work are limited by
number and by the bytes that they announced; more are answered with 503.

The listening socket outlives its TLS: new certificates mean a new listener on the same socket, so that no connection
is refused meanwhile. Connections made under the old ones end with their next answer, which says so to the client; at
once where the clients' authority has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

from aiohttp import web

from trimtab.errors import SettingsError
from trimtab.settings import ExtenderSettings
from trimtab.telemetry.extender_metrics import EXTENDER_CONNECTIONS, EXTENDER_CUT

IDLE_SECONDS = 120.0
"""Go closes connections that were idle for 90 s: it must be the first to, or it may write into a closed one."""
LINGER_SECONDS = 1.0
LARGEST_HEADER = 8190
BODIES = 128 << 20
"""Bytes of bodies in work at once."""
BACKLOG = 512

Answer = Callable[[web.BaseRequest], Awaitable[web.Response]]


class Busy(Exception):
    """Too much is in work already."""


class Connection(web.RequestHandler):
    """One connection, with an eye on the clock."""

    __slots__ = ("_answer_timer", "_guard", "_heard", "_request_timer", "_retiring", "_serving", "peer")

    def __init__(self, guard: Guard, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            guard,
            loop=loop,
            access_log=cast(Any, None),  # what its default, a logger, is tested for
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=LINGER_SECONDS,
            max_line_size=LARGEST_HEADER,
            max_field_size=LARGEST_HEADER,
        )
        self.peer = ""
        """Common name of the client's certificate; empty without one."""
        self._guard = guard
        self._serving = False
        self._retiring = False
        self._heard = False
        self._request_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    @property
    def retiring(self) -> bool:
        """Whether this connection ends after the request that it is in."""
        return self._retiring

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let it in, or not."""
        if not self._guard.admit(self):
            EXTENDER_CUT.labels("full").inc()
            cast(asyncio.Transport, transport).abort()
            return
        self.peer = _common_name(transport.get_extra_info("peercert") or {})
        super().connection_made(transport)
        self._request_timer = self._later(self._cut, "silent")

    def data_received(self, data: bytes) -> None:
        """The first bytes of a request start its clock."""
        self._heard = True
        if data and not self._serving and self._request_timer is None:
            self._request_timer = self._later(self._cut, "slow_request")
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget it."""
        self._guard.dismiss(self)
        for timer in (self._request_timer, self._answer_timer):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    def begin(self) -> None:
        """A request is complete but for its body."""
        self._serving = True
        if self._request_timer:
            self._request_timer.cancel()
            self._request_timer = None

    def end(self) -> None:
        """It has been answered: the answer is on its way."""
        self._serving = False
        if self._answer_timer:
            self._answer_timer.cancel()
        self._answer_timer = self._later(self._cut_reader)
        if self._retiring:
            self.close()

    def retire(self, *, now: bool) -> None:
        """End after the next answer; `now`: after the request that it is in, at once if it is in none."""
        self._retiring = True
        if not now or self._serving or (self._heard and self._request_timer) or self.transport is None:
            return
        if self.transport.get_write_buffer_size():
            self.close()  # as soon as the answer is written
        else:
            self.force_close()

    def cut(self, reason: str) -> None:
        """End at once."""
        if self.transport is not None:
            EXTENDER_CUT.labels(reason).inc()
            self.transport.abort()

    def _later(self, do: Callable[..., None], *what: str) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._guard.seconds, do, *what)

    def _cut(self, reason: str) -> None:
        self._request_timer = None
        self.cut(reason)

    def _cut_reader(self) -> None:
        self._answer_timer = None
        if self.transport is not None and self.transport.get_write_buffer_size():
            self.cut("slow_reader")
        elif self._retiring:
            self.force_close()


class Guard(web.Server):
    """Makes connections, counts them, and measures what they may take."""

    def __init__(self, answer: Answer, settings: ExtenderSettings) -> None:
        super().__init__(self._served, request_factory=self._request)
        self.seconds = settings.request_seconds
        self._answer = answer
        self._settings = settings
        self._loop_here = asyncio.get_running_loop()
        self._open: set[Connection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._requests = self._bytes = 0
        self._most_bytes = max(BODIES, settings.largest_request)

    def __call__(self) -> Connection:
        """A connection; asyncio calls this for each that it accepted."""
        return Connection(self, self._loop_here)

    def admit(self, connection: Connection) -> bool:
        """Count a connection in, unless there are too many."""
        if len(self._open) >= self._settings.connections:
            return False
        self._open.add(connection)
        self._empty.clear()
        EXTENDER_CONNECTIONS.inc()
        return True

    def dismiss(self, connection: Connection) -> None:
        """Count a connection out."""
        if connection in self._open:
            self._open.remove(connection)
            EXTENDER_CONNECTIONS.dec()
        if not self._open:
            self._empty.set()

    def retire(self, *, now: bool) -> None:
        """Let all connections end, as each of them does it."""
        for connection in tuple(self._open):
            connection.retire(now=now)

    async def close(self) -> None:
        """Answer what is in work, for as long as a request may take, and end."""
        self.retire(now=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), self.seconds)
        await self.shutdown(0.1)

    @contextlib.asynccontextmanager
    async def work(self, announced: int) -> AsyncIterator[None]:
        """Room for one request and the bytes of its body. Raises Busy."""
        if self._requests >= self._settings.concurrency or self._bytes + announced > self._most_bytes:
            raise Busy
        self._requests += 1
        self._bytes += announced
        try:
            yield
        finally:
            self._requests -= 1
            self._bytes -= announced

    async def body(self, request: web.BaseRequest) -> bytes:
        """The body of a request. Raises web.HTTPRequestEntityTooLarge, and TimeoutError when it is too slow."""
        if request.content.is_eof():  # most are small, and came with their headers
            return await request.read()
        async with asyncio.timeout(self.seconds):
            return await request.read()

    def announced(self, request: web.BaseRequest) -> int:
        """Bytes that a body may come to. Raises web.HTTPRequestEntityTooLarge."""
        most = self._settings.largest_request
        length = request.content_length
        if length is not None and length > most:
            raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=length)
        return most if length is None else length

    async def _served(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast(Connection, request.protocol)
        connection.begin()
        try:
            response = await self._answer(request)
        finally:
            connection.end()
        if connection.retiring:
            response.force_close()
        return response

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        most = self._settings.largest_request
        return web.BaseRequest(message, payload, protocol, writer, task, self._loop_here, client_max_size=most)


class Listener:
    """A port, behind which the guard is."""

    def __init__(self, guard: Guard, host: str, port: int) -> None:
        """Bind the port. Raises SettingsError when it is not to be had."""
        wide = ":" in host
        family = socket.AF_INET6 if wide else socket.AF_INET
        both = wide and host == "::" and socket.has_dualstack_ipv6()
        self._guard = guard
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
        except OSError as error:
            raise SettingsError(f"cannot listen on {host}, port {port}: {error}; choose another") from error
        self._socket.setblocking(False)
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    async def open(self, tls: ssl.SSLContext | None, other_clients: bool = False) -> None:
        """Accept connections, from now on with this TLS. `other_clients`: who was let in before may not be by it.

        Raises OSError, and goes on as before.
        """
        before, door = self._server, self._socket.dup()
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._guard,
                sock=door,
                ssl=tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=self._guard.seconds if tls else None,
                ssl_shutdown_timeout=1.0 if tls else None,
            )
        except OSError:
            door.close()
            raise
        if before:
            before.close()
            self._guard.retire(now=other_clients)

    async def close(self) -> None:
        """Accept no more, and answer what is in work."""
        if self._server:
            self._server.close()
        self._socket.close()
        await self._guard.close()


def _common_name(certificate: dict[str, Any]) -> str:
    """Of the subject of a certificate as `ssl` tells it."""
    fields = (pair for names in certificate.get("subject", ()) for pair in names)
    return next((str(value) for name, value in fields if name == "commonName"), "")
