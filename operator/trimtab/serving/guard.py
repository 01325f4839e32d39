"""The guard of a port: an HTTP server that slow, greedy, silent or many clients cannot hold open.

aiohttp gives a connection a time to be idle between requests, but none to send its headers, its body, or to fetch the
answer; any of these, dripped, keeps a connection and its memory for good (slowloris). Here each has a deadline:

    silent          connected, and not a byte since
    slow_request    a request's headers have begun and do not end; over TLS, a handshake
    slow_body       its body does not end
    slow_reader     the answer is not fetched

and connections have a number, in all and of one address. One too many does not go away: whoever comes last may be the
kubelet that asks whether we live. It takes the place of another:

    evicted         the one that waited longest for a request to be complete; then, of those that are between two
                    requests, in a body or fetching an answer, again the longest
    full            none: requests are in work in all of them, and the new one is closed at once
    descriptors     the process has no file descriptor left

A connection costs little until a request is complete: a socket, its place in a dict and the bytes that came. Only then
does it get what aiohttp has for one. What is cut off is counted, and told in the log once a minute at most. Requests in
work are limited by number and by the bytes that they announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from enum import IntEnum
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol, cast

import structlog
from aiohttp import web
from msgspec import Struct

IDLE_SECONDS = 120.0
"""Go closes connections that were idle for 90 s: it must be the first to, or it may write into a closed one."""
LINGER_SECONDS = 1.0
LARGEST_HEADER = 8190
BODIES = 128 << 20
"""Bytes of bodies in work at once."""
TOLD_SECONDS = 60.0
"""Between two lines in the log about connections for which there was no room."""
CROWDED = ("evicted", "full", "descriptors")
"""Reasons that tell of too many connections, and not of one that is too slow."""

log = structlog.get_logger(__name__)

Answer = Callable[[web.BaseRequest], Awaitable[web.Response]]


class Limits(Struct, frozen=True):
    """What the clients of one port may take."""

    connections: int = 256
    """Open ones in all ..."""
    per_address: int = 128
    """... and of one IPv4 address, or one IPv6 network of 64 bits."""
    seconds: float = 5.0
    """For the headers of a request, for its body, and to fetch the answer: each."""
    largest_request: int = 16 << 10
    """Bytes of a body."""
    requests: int = 64
    """In work at once, of those that take `Guard.work`."""
    keep_alive: bool = True
    """A connection may serve several requests."""


class Counts(Protocol):
    """Where it is counted what happens at a port."""

    def opened(self) -> None:
        """A connection more."""

    def closed(self) -> None:
        """A connection less."""

    def cut(self, reason: str) -> None:
        """It was not its client that ended it."""


class Uncounted:
    """For ports whose metrics nobody reads."""

    def opened(self) -> None: ...

    def closed(self) -> None: ...

    def cut(self, reason: str) -> None: ...


class Busy(Exception):
    """Too much is in work already."""


class Rank(IntEnum):
    """Who makes room first."""

    WAITING = 0
    IDLE = 1
    HEADERS = 2
    BODY = 3
    FETCHING = 4
    WORKING = 5
    """Never does."""


class Seat:
    """One connection's place, from its acceptance to its end."""

    __slots__ = ("_guard", "_head", "_peer", "_task", "address", "connection", "rank", "since", "socket", "tls")

    def __init__(self, guard: Guard, conn: socket.socket, address: str, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self.socket: socket.socket | None = conn
        self.tls = tls
        self.rank = Rank.WAITING
        self.since = time.monotonic()
        self.connection: Connection | None = None
        self._guard = guard
        self._head = b""
        self._task: asyncio.Task[None] | None = None

    def wait(self) -> None:
        """Look what is there already, and whenever something comes."""
        if not self.look() and self.socket is not None:
            self._guard.loop.add_reader(self.socket, self.look)

    def look(self) -> bool:
        """Whether a request is complete by now, as far as its headers go: then it is being read."""
        conn = self.socket
        if conn is None:
            return False
        try:
            came = conn.recv(1, socket.MSG_PEEK) if self.tls else conn.recv(LARGEST_HEADER + 1 - len(self._head))
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            came = b""
        if not came:
            self.end()
            return False
        if not self.tls:
            self._head += came
            if len(self._head) <= LARGEST_HEADER and b"\r\n\r\n" not in self._head and b"\n\n" not in self._head:
                return False
        self._guard.loop.remove_reader(conn)
        self.move(Rank.HEADERS)
        self._task = self._guard.loop.create_task(self._adopt(conn))
        self._task.add_done_callback(self._adopted)
        return True

    def move(self, rank: Rank) -> None:
        """It has come to another state of its life."""
        self.rank = rank
        self.since = time.monotonic()
        self._guard.moved(self)

    def standing(self) -> Rank:
        """As `rank`, but for answers that are still on their way."""
        transport = self.connection.transport if self.connection else None
        if self.rank is Rank.IDLE and transport is not None and transport.get_write_buffer_size():
            return Rank.FETCHING
        return self.rank

    def cut(self, reason: str) -> None:
        """End it, for this reason."""
        self._guard.count(reason)
        self.end()

    def end(self) -> None:
        """End it at once, whatever state it is in."""
        self._guard.dismiss(self)  # at once: it makes room for one, and not for all that come in the same moment
        if self.connection is not None:
            if self.connection.transport is not None:
                self.connection.transport.abort()
        elif self._task is not None:
            self._task.cancel()
        elif self.socket is not None:
            self._guard.loop.remove_reader(self.socket)
            self.socket.close()
            self.socket = None

    def late(self) -> str:
        """Why it is to be cut off, while it waits for its first request."""
        return "slow_request" if self._head else "silent"

    async def _adopt(self, conn: socket.socket) -> None:
        """Give it what aiohttp has for a connection; over TLS, after a handshake."""
        head, self._head = self._head, b""
        seconds = self._guard.limits.seconds if self.tls else None
        try:
            await self._guard.loop.connect_accepted_socket(
                lambda: Connection(self._guard, self, head),
                conn,
                ssl=self.tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=1.0 if self.tls else None,
            )
        except (OSError, TimeoutError) as error:  # no handshake, or none in time
            self._guard.count("slow_request" if isinstance(error, ConnectionAbortedError) else "handshake")
        else:
            self.socket = None  # the transport has it

    def _adopted(self, task: asyncio.Task[None]) -> None:
        """Also where the task was cancelled before it began: then nobody else closes the socket."""
        self._task = None
        if self.socket is not None:
            self.socket.close()
            self.socket = None
            self._guard.dismiss(self)
        if not task.cancelled() and (error := task.exception()):
            log.error("a connection could not be taken: this is a bug, please report it", exc_info=error)


class Connection(web.RequestHandler):
    """One connection from its first request on, with an eye on the clock."""

    __slots__ = (
        "_answer_timer",
        "_guard",
        "_head",
        "_heard",
        "_request_timer",
        "_retiring",
        "_seat",
        "_serving",
        "peer",
    )

    def __init__(self, guard: Guard, seat: Seat, head: bytes = b"") -> None:
        super().__init__(
            guard,
            loop=guard.loop,
            access_log=cast(Any, None),  # what its default, a logger, is tested for
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=LINGER_SECONDS,
            max_line_size=LARGEST_HEADER,
            max_field_size=LARGEST_HEADER,
            auto_decompress=False,  # none of our clients compresses
        )
        self.peer = ""
        """Common name of the client's certificate; empty without one."""
        self._guard = guard
        self._seat = seat
        self._head = head
        self._serving = False
        self._retiring = not guard.limits.keep_alive
        self._heard = False
        self._request_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    @property
    def retiring(self) -> bool:
        """Whether this connection ends after the request that it is in."""
        return self._retiring

    @property
    def seat(self) -> Seat:
        """Its place among the others."""
        return self._seat

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Read what came before it was made."""
        self._seat.connection = self
        self.peer = _common_name(transport.get_extra_info("peercert") or {})
        super().connection_made(transport)
        self._request_timer = self._later(self._cut, "slow_request" if self._head else "silent")
        if self._head:
            head, self._head = self._head, b""
            self.data_received(head)

    def data_received(self, data: bytes) -> None:
        """The first bytes of a request start its clock."""
        self._heard = True
        if data and not self._serving and self._request_timer is None:
            self._seat.move(Rank.HEADERS)
            self._request_timer = self._later(self._cut, "slow_request")
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget it."""
        self._guard.dismiss(self._seat)
        self._seat.connection = None
        for timer in (self._request_timer, self._answer_timer):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What is no HTTP is answered, and not told in the log: anybody may send it, as often as they like."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        answer = web.Response(status=status, text="this is no HTTP request\n")
        answer.force_close()
        return answer

    def begin(self) -> None:
        """A request is complete but for its body."""
        self._serving = True
        self._seat.move(Rank.WORKING)
        if self._request_timer:
            self._request_timer.cancel()
            self._request_timer = None

    def end(self) -> None:
        """It has been answered: the answer is on its way."""
        self._serving = False
        self._seat.move(Rank.IDLE)
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

    def _later(self, do: Callable[..., None], *what: str) -> asyncio.TimerHandle:
        return self._guard.loop.call_later(self._guard.limits.seconds, do, *what)

    def _cut(self, reason: str) -> None:
        self._request_timer = None
        self._seat.cut(reason)

    def _cut_reader(self) -> None:
        self._answer_timer = None
        if self.transport is not None and self.transport.get_write_buffer_size():
            self._seat.cut("slow_reader")
        elif self._retiring:
            self.force_close()


class Request(web.BaseRequest):
    """A request whose answer does not say what answers."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.popall("Server", None)


class Guard(web.Server):
    """Seats connections, counts them, and measures what they may take."""

    def __init__(self, answer: Answer, limits: Limits, counts: Counts | None = None, name: str = "") -> None:
        super().__init__(self._served, request_factory=self._request)
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self._answer = answer
        self._counts = counts or Uncounted()
        self._name = name
        self._seats: dict[Seat, None] = {}
        """In the order in which they came to the state that they are in."""
        self._of: dict[str, dict[Seat, None]] = {}
        """The same, by address."""
        self._empty = asyncio.Event()
        self._empty.set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._requests = self._bytes = 0
        self._most_bytes = max(BODIES, limits.largest_request)
        self._crowded = 0
        self._told = float("-inf")

    # --- seats --------------------------------------------------------------------------------------------------------
    def welcome(self, conn: socket.socket, peer: str, tls: ssl.SSLContext | None) -> None:
        """Seat a connection that was accepted, in another one's place if need be; or close it."""
        address = network(peer)
        own, limits = self._of.get(address, {}), self.limits
        crowded = len(own) >= limits.per_address and not self._evict(own)
        if crowded or (len(self._seats) >= limits.connections and not self._evict(self._seats)):
            conn.close()
            self.count("full")
            return
        seat = Seat(self, conn, address, tls)
        self._seats[seat] = None
        self._of.setdefault(address, {})[seat] = None
        self._empty.clear()
        self._counts.opened()
        if self._sweeping is None:
            self._sweeping = self.loop.call_later(limits.seconds / 4, self._sweep)
        seat.wait()

    def moved(self, seat: Seat) -> None:
        """A seat has come to another state: it is the last of those in it."""
        if seat in self._seats:
            for among in (self._seats, self._of[seat.address]):
                del among[seat]
                among[seat] = None

    def dismiss(self, seat: Seat) -> None:
        """Count a connection out."""
        if seat in self._seats:
            del self._seats[seat]
            self._counts.closed()
            own = self._of[seat.address]
            del own[seat]
            if not own:
                del self._of[seat.address]
        if not self._seats:
            self._empty.set()

    def starved(self) -> None:
        """The process has no file descriptor left: one of ours goes, if it can be spared."""
        if not self._evict(self._seats, "descriptors"):
            self.count("descriptors")

    def count(self, reason: str) -> None:
        """Count what was cut off, and tell of it now and then."""
        self._counts.cut(reason)
        if reason not in CROWDED:
            return
        self._crowded += 1
        now = time.monotonic()
        if now - self._told >= TOLD_SECONDS:
            log.warning(
                "more connections than there is room for",
                port=self._name,
                last=reason,
                cut=self._crowded,
                open=len(self._seats),
                addresses=len(self._of),
            )
            self._told, self._crowded = now, 0

    def _evict(self, among: Iterable[Seat], reason: str = "evicted") -> bool:
        """End the one of these that is the least loss. Whether there was one."""
        for seat in tuple(among):  # most floods end with the first of them
            if seat.rank is not Rank.WAITING:
                continue
            if not seat.look():  # not even now
                if seat in self._seats:
                    seat.cut(reason)
                return True
        left = [seat for seat in among if seat.standing() is not Rank.WORKING]
        if not left:
            return False
        min(left, key=Seat.standing).cut(reason)
        return True

    def _sweep(self) -> None:
        """Cut off who has not come to a request in time."""
        self._sweeping = None
        late = time.monotonic() - self.limits.seconds
        for seat in tuple(self._seats):
            if seat.rank is Rank.WAITING and seat.since <= late and not seat.look() and seat in self._seats:
                seat.cut(seat.late())
        if self._seats:
            self._sweeping = self.loop.call_later(self.limits.seconds / 4, self._sweep)

    def retire(self, *, now: bool) -> None:
        """Let all connections end, as each of them does it; `now`: also those that have not come to a request."""
        for seat in tuple(self._seats):
            if seat.connection is not None:
                seat.connection.retire(now=now)
            elif now:
                seat.end()

    async def close(self) -> None:
        """Answer what is in work, for as long as a request may take, and end."""
        self.retire(now=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), self.limits.seconds)
        if self._sweeping is not None:
            self._sweeping.cancel()
        await self.shutdown(0.1)
        for seat in tuple(self._seats):
            seat.end()

    # --- requests -----------------------------------------------------------------------------------------------------
    @contextlib.asynccontextmanager
    async def work(self, announced: int) -> AsyncIterator[None]:
        """Room for one request and the bytes of its body. Raises Busy."""
        if self._requests >= self.limits.requests or self._bytes + announced > self._most_bytes:
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
        seat = cast(Connection, request.protocol).seat
        seat.move(Rank.BODY)
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await request.read()
        except TimeoutError:
            self.count("slow_body")
            raise
        finally:
            seat.move(Rank.WORKING)

    def announced(self, request: web.BaseRequest) -> int:
        """Bytes that a body may come to. Raises web.HTTPRequestEntityTooLarge."""
        most = self.limits.largest_request
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
        most = self.limits.largest_request
        return Request(message, payload, protocol, writer, task, self.loop, client_max_size=most)


def network(peer: str) -> str:
    """Whose connection it is: an IPv4 address, or an IPv6 network of 64 bits, of which one machine has all."""
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if not isinstance(address, IPv6Address):
        return peer
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64)) + "/64"


def _common_name(certificate: dict[str, Any]) -> str:
    """Of the subject of a certificate as `ssl` tells it."""
    fields = (pair for names in certificate.get("subject", ()) for pair in names)
    return next((str(value) for name, value in fields if name == "commonName"), "")
