"""The guard of a port: an HTTP server that slow, greedy, silent or many clients cannot hold open.

aiohttp gives a connection a time to be idle between requests, but none to send its headers, its body, or to fetch the
answer; any of these, dripped, keeps a connection and its memory for good (slowloris). Here each has a deadline:

    silent          connected, and not a byte since
    slow_request    a request's headers have begun and do not end; over TLS, a handshake
    slow_body       its body does not end
    slow_reader     the answer is not fetched

and connections have a number, in all and of one address. One too many does not go away: whoever comes last may be the
kubelet that asks whether we live. It takes the place of another:

    evicted         the one that has waited longest for a request to be complete; or, of those that are between two
                    requests, in a body or fetching an answer, the longest
    full            the last of those whose request waits for its turn, where these are the many; where requests are in
                    work in all places, the new one itself
    descriptors     the process has no file descriptor left

A connection costs little until a request is complete: a socket, its place in a dict and the bytes that came. Only then
does it get what aiohttp has for one, or a handshake; so many a second and no more, in the order in which they came, for
the loop is not ours alone. Questions for our health need none of it: they are answered from here, in plain text also
where a port speaks TLS, for kubelets ask without. What is cut off is counted, and told in the log once a minute at
most. Requests in work are limited by number and by the bytes that they announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, cast

import structlog
from aiohttp import web
from msgspec import Struct

from trimtab.serving.places import Places, Rank, network

IDLE_SECONDS = 120.0
"""Go closes connections that were idle for 90 s: it must be the first to, or it may write into a closed one."""
LINGER_SECONDS = 1.0
LARGEST_HEADER = 8190
BODIES = 128 << 20
"""Bytes of bodies in work at once."""
TOLD_SECONDS = 60.0
"""Between two lines in the log about connections for which there was no room."""
_HANDSHAKE, _TLS, _RECORD = 22, 3, 5
"""First and second byte of a TLS record that begins a handshake, and how long its header is."""
_LETTERS = tuple(bytes([letter]) for letter in b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""With one of these begins a request in plain text."""
_AGAIN_SECONDS = 0.05
_QUICK = b"HTTP/1.1 %b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
_SECRET = _QUICK % (b"400 Bad Request", 26, b"this port speaks TLS only\n")
MANY_PARTS = 16
"""Who has more than such a part of all connections makes room for others first."""
CROWDED = ("evicted", "full", "descriptors")
"""Reasons that tell of too many connections, and not of one that is too slow."""

log = structlog.get_logger(__name__)

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Check = Callable[[], str]
"""Says what is wrong; empty when all is well."""


class ConnectionLimits(Struct, frozen=True):
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
    """In work at once, of those that take `ConnectionGuard.work`."""
    keep_alive: bool = True
    """A connection may serve several requests."""
    pace: float = 200.0
    """Connections a second whose first request is read; half as many may come at once, and those behind them wait."""
    handshakes: int = 32
    """Over TLS, that are under way at once."""


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


class Seat:
    """One connection's place, from its acceptance to its end."""

    __slots__ = (
        "_guard",
        "_head",
        "_paused",
        "_task",
        "address",
        "connection",
        "rank",
        "seated",
        "since",
        "socket",
        "tls",
    )

    def __init__(self, guard: ConnectionGuard, conn: socket.socket, address: str, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self.socket: socket.socket | None = conn
        self.tls = tls
        self.rank = Rank.WAITING
        self.seated = True
        self.since = time.monotonic()
        self.connection: GuardedConnection | None = None
        self._guard = guard
        self._head = b""
        self._paused = False
        self._task: asyncio.Task[None] | None = None

    def wait(self) -> None:
        """Look what is there already, and whenever something comes."""
        self.look()
        if self.rank is Rank.WAITING and self.socket is not None and not self._paused:
            self._guard.loop.add_reader(self.socket, self.look)

    def look(self) -> None:
        """See whether a request is complete by now, as far as its headers go: then it waits for its turn."""
        conn = self.socket
        if conn is None or self.rank is not Rank.WAITING:
            return
        try:
            first = self._head[:1] or (conn.recv(1, socket.MSG_PEEK) if self.tls else b"")
            secret = self.tls is not None and not (self._guard.tells_health and first in _LETTERS)
            came = conn.recv(LARGEST_HEADER, socket.MSG_PEEK) if secret else conn.recv(LARGEST_HEADER + 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            came, secret = b"", False
        if not came:
            self.end()
        elif secret:
            self._greeted(conn, came)
        else:
            self._asked(conn, came)

    def _asked(self, conn: socket.socket, came: bytes) -> None:
        """What came is plain text."""
        self._head += came
        whole = b"\r\n\r\n" in self._head or b"\n\n" in self._head or len(self._head) > LARGEST_HEADER
        if not whole:
            return
        quick = self._guard.quick(self._head) or (_SECRET if self.tls else b"")
        if not quick:
            self._ready(conn)
            return
        with contextlib.suppress(OSError):  # who is gone needs no answer
            conn.send(quick)
            conn.shutdown(socket.SHUT_WR)
        self.end()

    def _greeted(self, conn: socket.socket, came: bytes) -> None:
        """What came is to be the beginning of a handshake: a record that is whole is worth one."""
        if came[0] != _HANDSHAKE or (len(came) > 1 and came[1] != _TLS):
            self.cut("handshake")
        elif len(came) < _RECORD or len(came) < min(_RECORD + int.from_bytes(came[3:_RECORD]), LARGEST_HEADER):
            if not self._paused:  # what was looked at is still there: it would be told of again and again
                self._paused = True
                self._guard.loop.remove_reader(conn)
                self._guard.loop.call_later(_AGAIN_SECONDS, self._again)
        else:
            self._ready(conn)

    def _again(self) -> None:
        self._paused = False
        self.wait()

    def _ready(self, conn: socket.socket) -> None:
        self._guard.loop.remove_reader(conn)
        self.move(Rank.READY)
        self._guard.ready()

    def begin(self) -> None:
        """Read the request, or shake hands."""
        self.move(Rank.HEADERS)
        if self.socket is not None:
            self._task = self._guard.loop.create_task(self._adopt(self.socket))
            self._task.add_done_callback(self._adopted)

    def move(self, rank: Rank) -> None:
        """It has come to another state of its life."""
        self._guard.moving(self, rank)
        self.since = time.monotonic()

    def fetching(self) -> bool:
        """Whether a part of the answer is still on its way."""
        transport = self.connection.transport if self.connection else None
        return transport is not None and transport.get_write_buffer_size() > 0

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
        return "full" if self.rank is Rank.READY else "slow_request" if self._head else "silent"

    async def _adopt(self, conn: socket.socket) -> None:
        """Give it what aiohttp has for a connection; over TLS, after a handshake."""
        head, self._head = self._head, b""
        seconds = self._guard.limits.seconds if self.tls else None
        try:
            await self._guard.loop.connect_accepted_socket(
                lambda: GuardedConnection(self._guard, self, head),
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
        self._guard.adopted(self)
        if self.socket is not None:
            self.socket.close()
            self.socket = None
            self._guard.dismiss(self)
        if not task.cancelled() and (error := task.exception()):
            log.error("a connection could not be taken: this is a bug, please report it", exc_info=error)


class GuardedConnection(web.RequestHandler):
    """One connection from its first request on, with an eye on the clock."""

    __slots__ = ("_guard", "_head", "_heard", "_read_timer", "_request_timer", "_retiring", "_seat", "_serving", "peer")

    def __init__(self, guard: ConnectionGuard, seat: Seat, head: bytes = b"") -> None:
        super().__init__(
            guard,
            loop=guard.loop,
            access_log=cast(Any, None),  # what its default, a logger, is tested for
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=LINGER_SECONDS if guard.limits.keep_alive else 0.0,
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
        self._read_timer: asyncio.TimerHandle | None = None

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
        for timer in (self._request_timer, self._read_timer):
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
        if self._read_timer:
            self._read_timer.cancel()
        self._read_timer = self._later(self._cut_reader)
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
        self._read_timer = None
        if self.transport is not None and self.transport.get_write_buffer_size():
            self._seat.cut("slow_reader")
        elif self._retiring:
            self.force_close()


class Request(web.BaseRequest):
    """A request whose answer does not say what answers."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.popall("Server", None)


class ConnectionGuard(web.Server):
    """Seats connections, counts them, and measures what they may take."""

    def __init__(
        self,
        answer: Answer,
        limits: ConnectionLimits,
        counts: Counts | None = None,
        name: str = "",
        health: Mapping[str, Check] = MappingProxyType({}),
    ) -> None:
        """`health` is answered without further ado, by path."""
        super().__init__(self._served, request_factory=self._request)
        self._health = {f"GET {path} HTTP/1.".encode(): check for path, check in health.items()}
        self._pumping: asyncio.TimerHandle | None = None
        self._line: dict[str, None] = {}
        """Addresses with requests that wait for a turn, in the order of their turns: who sends many waits alone."""
        self._shaking: dict[str, dict[Seat, None]] = {}
        """Connections that are being taken, over TLS by a handshake, by address: the oldest first."""
        self._spent = self._at = 0.0
        """Turns that were given and are not paid for by the time that passed, at that time."""
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self._answer = answer
        self._counts = counts or Uncounted()
        self._name = name
        self._seats: Places[Seat] = Places()
        self._of: dict[str, Places[Seat]] = {}
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
        own, limits = self._of.get(address), self.limits
        crowded = own is not None and own.taken >= limits.per_address and not self._evict(own)
        if crowded or (self._seats.taken >= limits.connections and not self._make_room()):
            conn.close()
            self.count("full")
            return
        seat = Seat(self, conn, address, tls)
        self._seats.add(seat)
        self._of.setdefault(address, Places()).add(seat)
        self._empty.clear()
        self._counts.opened()
        if self._sweeping is None:
            self._sweeping = self.loop.call_later(limits.seconds / 4, self._sweep)
        seat.wait()

    def moving(self, seat: Seat, rank: Rank) -> None:
        """A seat comes to another state: it is the last of those in it."""
        places = (self._seats, self._of[seat.address]) if seat.seated else ()
        for each in places:
            each.remove(seat)
        seat.rank = rank
        for each in places:
            each.add(seat)
        if rank is Rank.READY and seat.seated:
            self._line.setdefault(seat.address)

    @property
    def tells_health(self) -> bool:
        """Whether questions for it are answered here."""
        return bool(self._health)

    def quick(self, head: bytes) -> bytes:
        """The answer to a question for our health; empty for all others."""
        for asked, check in self._health.items():
            if head.startswith(asked):
                problem = check()
                text = f"{problem or 'ok'}\n".encode()
                status = b"503 Service Unavailable" if problem else b"200 OK"
                return _QUICK % (status, len(text), text)
        return b""

    def ready(self) -> None:
        """A request is complete: it is read when its turn comes."""
        if self._pumping is None:
            self._pump()

    def adopted(self, seat: Seat) -> None:
        """A handshake has ended, or there was none to be made."""
        self._shaken(seat)
        self.ready()

    def _shaken(self, seat: Seat) -> None:
        own = self._shaking.get(seat.address, {})
        own.pop(seat, None)
        if not own:
            self._shaking.pop(seat.address, None)

    def _pump(self) -> None:
        """Give turns, as many as there are."""
        self._pumping = None
        now, pace = time.monotonic(), self.limits.pace
        self._spent, self._at = max(0.0, self._spent - (now - self._at) * pace), now
        while (seat := self._next()) is not None:
            if self._spent >= pace / 2:
                self._pumping = self.loop.call_later(1.0 / pace, self._pump)
                return
            if seat.tls and self._shakes() >= self.limits.handshakes:
                oldest = next(iter(self._most_shaking()))
                self._shaken(oldest)
                oldest.cut("handshake")
            del self._line[seat.address]
            self._shaking.setdefault(seat.address, {})[seat] = None
            seat.begin()
            self._spent += 1.0
            if (own := self._of.get(seat.address)) and own.first(Rank.READY):
                self._line[seat.address] = None

    def _next(self) -> Seat | None:
        """Whose turn it is: one of each address, over and over, and of one address the oldest. None also where nobody
        may shake hands now: then `adopted` goes on."""
        for address in list(self._line):
            own = self._of.get(address)
            seat = own.first(Rank.READY) if own else None
            if seat is None:
                del self._line[address]
            elif not seat.tls or self._may_shake(seat):
                return seat
        return None

    def _may_shake(self, seat: Seat) -> bool:
        """Whether there is room for its handshake, or who has several under way is to make some: a handshake that was
        begun and is not gone on with costs its client nothing."""
        if self._shakes() < self.limits.handshakes:
            return True
        return len(self._most_shaking()) > len(self._shaking.get(seat.address, ())) + 1

    def _shakes(self) -> int:
        return sum(map(len, self._shaking.values()))

    def _most_shaking(self) -> dict[Seat, None]:
        return max(self._shaking.values(), key=len)

    def dismiss(self, seat: Seat) -> None:
        """Count a connection out."""
        if seat.seated:
            seat.seated = False
            self._seats.remove(seat)
            self._counts.closed()
            own = self._of[seat.address]
            own.remove(seat)
            if not own.taken:
                del self._of[seat.address]
        if not self._seats.taken:
            self._empty.set()

    def starved(self) -> None:
        """The process has no file descriptor left: one of ours goes, if it can be spared."""
        if not self._make_room("descriptors"):
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
                open=self._seats.taken,
                addresses=len(self._of),
            )
            self._told, self._crowded = now, 0

    def _make_room(self, reason: str = "evicted") -> bool:
        """End a connection that has not come to a request; else one of the address that has most, where that is many;
        else the least loss among all."""
        least = self._seats.least()
        if least is not None and least.rank is not Rank.WAITING:
            most = max(self._of.values(), key=lambda own: own.taken)
            if most.taken > self.limits.connections // MANY_PARTS and self._evict(most, reason):
                return True
        return self._evict(self._seats, reason)

    def _evict(self, among: Places[Seat], reason: str = "evicted") -> bool:
        """End the one of these that is the least loss. Whether there was one."""
        while (seat := among.least()) is not None:
            waits = seat.rank is Rank.WAITING
            if waits:
                seat.look()  # not even now?
            if seat.seated and waits == (seat.rank is Rank.WAITING):
                seat.cut("full" if seat.rank is Rank.READY else reason)
            if not seat.seated:
                return True
        return False

    def _sweep(self) -> None:
        """Cut off who has not come to a request, or to a turn, in time."""
        self._sweeping = None
        late = time.monotonic() - self.limits.seconds
        for seat in self._seats.all(Rank.WAITING, Rank.READY):
            if seat.since <= late:
                seat.look()
                if seat.seated and seat.rank in (Rank.WAITING, Rank.READY) and seat.since <= late:
                    seat.cut(seat.late())
        if self._seats.taken:
            self._sweeping = self.loop.call_later(self.limits.seconds / 4, self._sweep)

    def retire(self, *, now: bool) -> None:
        """Let all connections end, as each of them does it; `now`: also those that have not come to a request."""
        for seat in self._seats.all():
            if seat.connection is not None:
                seat.connection.retire(now=now)
            elif now:
                seat.end()

    async def close(self) -> None:
        """Answer what is in work, for as long as a request may take, and end."""
        self.retire(now=True)
        with contextlib.suppress(TimeoutError):  # who has not fetched his answer by then is cut off below
            await asyncio.wait_for(self._empty.wait(), self.limits.seconds)
        for timer in (self._sweeping, self._pumping):
            if timer is not None:
                timer.cancel()
        await self.shutdown(0.1)
        for seat in self._seats.all():
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
        seat = cast(GuardedConnection, request.protocol).seat
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
        connection = cast(GuardedConnection, request.protocol)
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


def _common_name(certificate: dict[str, Any]) -> str:
    """Of the subject of a certificate as `ssl` tells it."""
    fields = (pair for names in certificate.get("subject", ()) for pair in names)
    return next((str(value) for name, value in fields if name == "commonName"), "")
