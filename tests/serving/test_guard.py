"""Crowds at a port, on real sockets: whoever comes with a request is answered, and nobody's memory or log fills."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs
from tests.extender.desk import eventually

from trimtab.serving import listener as listeners
from trimtab.serving.guard import Check, ConnectionGuard, ConnectionLimits
from trimtab.serving.listener import ACCEPTS, DESCRIPTORS, Listener, seats
from trimtab.serving.places import network
from trimtab_local.control_plane.pki import Authority

HERE, THERE = "127.0.0.1", "127.0.0.2"
ASK = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
FEW = ConnectionLimits(connections=32, per_address=16, seconds=60)


class Ledger:
    """What a port counts."""

    def __init__(self) -> None:
        self.open = self.most = 0
        self.cuts: Counter[str] = Counter()

    def opened(self) -> None:
        self.open += 1
        self.most = max(self.most, self.open)

    def closed(self) -> None:
        self.open -= 1

    def cut(self, reason: str) -> None:
        self.cuts[reason] += 1


class Port:
    """A guard that says "ok", and what it counts."""

    def __init__(self, limits: ConnectionLimits, health: Check | None = None) -> None:
        self.ledger = Ledger()
        self.hold = asyncio.Event()
        self.hold.set()
        self.working = self.answered = 0
        self.guard = ConnectionGuard(self.answer, limits, self.ledger, "test", {"/healthz": health} if health else {})
        self.listener = Listener(self.guard, HERE, 0)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.working += 1
        try:
            await self.hold.wait()
            await self.guard.body(request)
        finally:
            self.working -= 1
            self.answered += 1
        return web.Response(text="ok\n")

    async def ask(self, source: str = HERE, tls: ssl.SSLContext | None = None, asked: bytes = ASK) -> bytes:
        """First line of the answer to a request from this address; empty when it was cut off."""
        try:
            reader, writer = await asyncio.open_connection(
                HERE, self.listener.port, local_addr=(source, 0), ssl=tls, server_hostname=HERE if tls else None
            )
            with closing(writer):
                writer.write(asked)
                return await reader.readline()
        except OSError:
            return b""

    @contextmanager
    def crowd(self, count: int, source: str = THERE, sent: bytes = b"") -> Iterator[list[socket.socket]]:
        """So many connections that say this much and no more. The kernel takes them before anybody accepts."""
        made = []
        try:
            for _ in range(count):
                made.append(socket.create_connection((HERE, self.listener.port), source_address=(source, 0)))
                made[-1].sendall(sent)
            yield made
        finally:
            for each in made:
                each.close()


@asynccontextmanager
async def port(
    limits: ConnectionLimits = FEW, tls: ssl.SSLContext | None = None, health: Check | None = None
) -> AsyncIterator[Port]:
    made = Port(limits, health)
    await made.listener.open(tls)
    try:
        yield made
    finally:
        made.hold.set()
        await made.listener.close()


HALF = {
    "silent": b"",
    "half a line": b"GET /hea",
    "half the headers": b"GET /healthz HTTP/1.1\r\nX-Slow: loris\r\n",
    "half a body": b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
}


@pytest.mark.parametrize("sent", HALF.values(), ids=HALF)
async def test_a_crowd_that_asks_for_nothing_keeps_nobody_out(sent: bytes) -> None:
    async with port() as made:
        for _ in range(4):
            with made.crowd(100, THERE, sent):
                assert await made.ask(HERE) == b"HTTP/1.1 200 OK\r\n"
                assert await made.ask(THERE) == b"HTTP/1.1 200 OK\r\n", "also from behind the same address"
                assert made.ledger.open <= 17
        assert made.ledger.most <= 32
        assert made.ledger.cuts["evicted"] + made.ledger.cuts["full"] >= 300


async def test_many_addresses_together_have_no_more_than_all_the_room() -> None:
    async with port() as made:
        with made.crowd(30, "127.0.0.3"), made.crowd(30, "127.0.0.4"), made.crowd(30, "127.0.0.5"):
            assert await made.ask() == b"HTTP/1.1 200 OK\r\n"
            assert made.ledger.most <= 32


async def test_a_request_that_is_there_is_not_turned_away_for_one_that_is_not() -> None:
    async with port(ConnectionLimits(connections=4, per_address=4, seconds=60)) as made:
        with made.crowd(3, HERE, ASK) as asking, made.crowd(200):
            loop = asyncio.get_running_loop()
            for each in asking:
                each.setblocking(False)
                assert (await loop.sock_recv(each, 99)).startswith(b"HTTP/1.1 200 OK")


async def test_what_is_in_work_is_never_cut_off_and_one_too_many_is_refused() -> None:
    async with port(ConnectionLimits(connections=4, per_address=4, seconds=60)) as made:
        made.hold.clear()
        answers = [asyncio.create_task(made.ask()) for _ in range(4)]
        await eventually(lambda: made.working == 4)
        assert await made.ask() == b""
        assert made.ledger.cuts == {"full": 1}
        made.hold.set()
        assert await asyncio.gather(*answers) == [b"HTTP/1.1 200 OK\r\n"] * 4


async def test_idle_connections_make_room_after_those_that_wait() -> None:
    async with port(ConnectionLimits(connections=2, per_address=2, seconds=60)) as made:
        reader, writer = await asyncio.open_connection(HERE, made.listener.port)
        writer.write(ASK)
        await reader.readuntil(b"ok\n")
        with made.crowd(20):
            assert await made.ask() == b"HTTP/1.1 200 OK\r\n"
            writer.write(ASK)
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n", "it has been left alone"
        writer.close()


async def test_the_log_hears_of_a_crowd_once() -> None:
    async with port() as made:
        with capture_logs() as lines, made.crowd(300):
            assert await made.ask() == b"HTTP/1.1 200 OK\r\n"
        assert [(line["log_level"], line["port"]) for line in lines] == [("warning", "test")]


async def test_rubbish_is_answered_and_not_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with port() as made:
        for rubbish in (b"\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", b"G\xff / HTTP/9\r\n\r\n", b"x" * 9000):
            reader, writer = await asyncio.open_connection(HERE, made.listener.port)
            writer.write(rubbish)
            said = await reader.read()
            assert said.startswith(b"HTTP/1.")
            assert b" 400 " in said.partition(b"\r\n")[0]
            assert b"server:" not in said.lower()
            writer.close()
    assert caplog.records == []


async def test_a_process_without_file_descriptors_is_quiet_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "PAUSE_SECONDS", 0.01)
    real, failing = socket.socket.accept, [3]

    def accept(self: socket.socket) -> tuple[socket.socket, object]:
        if failing[0]:
            failing[0] -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return real(self)

    with monkeypatch.context() as patch, capture_logs() as lines:
        patch.setattr(socket.socket, "accept", accept)
        async with port() as made:
            assert await made.ask() == b"HTTP/1.1 200 OK\r\n"
            assert made.ledger.cuts["descriptors"] == 3
    assert len(lines) == 1


async def test_nothing_is_left_of_a_crowd() -> None:
    async with port() as made:
        descriptors = len(os.listdir("/proc/self/fd"))
        with made.crowd(200, sent=b"GET /"):
            await made.ask()
        await eventually(lambda: not made.ledger.open and len(os.listdir("/proc/self/fd")) <= descriptors)


async def test_health_is_answered_however_many_requests_wait_for_their_turn() -> None:
    trouble = [""]
    async with port(msgspec.structs.replace(FEW, pace=0.001), health=lambda: trouble[0]) as made:
        with made.crowd(100, THERE, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), made.crowd(100, HERE, ASK[:9]):
            for source in (HERE, THERE):
                assert await made.ask(source) == b"HTTP/1.1 200 OK\r\n"
            trouble[0] = "stuck"
            assert await made.ask() == b"HTTP/1.1 503 Service Unavailable\r\n"
            assert made.ledger.most <= 32


async def test_requests_are_read_in_turn_and_at_a_pace() -> None:
    async with port(ConnectionLimits(pace=100.0)) as made:
        answers = await asyncio.gather(*(made.ask() for _ in range(80)))
        assert answers == [b"HTTP/1.1 200 OK\r\n"] * 80


async def test_who_asks_most_waits_alone() -> None:
    """Requests that are complete, more of them than the pace allows, from as few addresses as can fill the port."""
    async with port(ConnectionLimits(connections=64, per_address=32, pace=20.0, seconds=60)) as made:
        with made.crowd(32, THERE, ASK), made.crowd(32, "127.0.0.3", ASK):
            for _ in range(2):
                assert await made.ask() == b"HTTP/1.1 200 OK\r\n"
            assert made.answered < 32, "most of the others still wait for their turn"


async def test_who_waits_for_a_turn_too_long_is_cut_off() -> None:
    async with port(ConnectionLimits(pace=0.001, seconds=0.2)) as made:
        assert await made.ask() == b"HTTP/1.1 200 OK\r\n"
        assert await made.ask() == b""
        assert made.ledger.cuts == {"full": 1}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority("servers")
    made.save(tmp_path / "ca.crt")
    made.issue(tmp_path / "server", "server", hosts=(HERE,))
    return made


@pytest.mark.usefixtures("authority")
@pytest.mark.parametrize(
    "sent",
    [b"", b"\x16\x03\x01\x02\x00\x01", ASK, b"\x16\x02", b"\x80\x01", b"\x16\x03\x01\x00\x02\x01\x01"],
    ids=repr,
)
async def test_half_a_handshake_keeps_nobody_out(sent: bytes, tmp_path: Path) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    client = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    async with port(tls=served) as made:
        with capture_logs() as lines, made.crowd(200, THERE, sent):
            assert await made.ask(HERE, client) == b"HTTP/1.1 200 OK\r\n"
            assert made.ledger.most <= 17
        assert len(lines) <= 1


def hello() -> bytes:
    """The whole beginning of a handshake."""
    sent = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname=HERE).do_handshake()
    return sent.read()


@pytest.mark.usefixtures("authority")
@pytest.mark.parametrize("count", [40, 200], ids=["as many as shake hands at once", "as many as there are places"])
async def test_a_handshake_that_is_begun_and_left_keeps_nobody_out(count: int, tmp_path: Path) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    client = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    async with port(ConnectionLimits(connections=100, per_address=100, seconds=600), tls=served) as made:
        with made.crowd(count, THERE, hello()):
            for _ in range(3):
                assert await made.ask(HERE, client) == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.usefixtures("authority")
async def test_over_tls_health_alone_is_told_in_plain_text(tmp_path: Path) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    client = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    async with port(tls=served, health=lambda: "") as made:
        assert await made.ask() == b"HTTP/1.1 200 OK\r\n"
        assert await made.ask(asked=b"GET /metrics HTTP/1.1\r\n\r\n") == b"HTTP/1.1 400 Bad Request\r\n"
        assert await made.ask(tls=client) == b"HTTP/1.1 200 OK\r\n"


def test_whose_connection_it_is() -> None:
    assert network("10.1.2.3") == "10.1.2.3"
    assert network("::ffff:10.1.2.3") == "10.1.2.3"
    assert network("2001:db8:1:2:3::4") == network("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert network("fe80::1%eth0") == "fe80::/64"
    assert network("") == ""


def test_no_port_has_more_room_than_the_process_has_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners.resource, "getrlimit", lambda _: (1024, 1024))
    assert seats(256) == 256
    assert seats(4096, 256) == 1024 - 256 - DESCRIPTORS - ACCEPTS
    monkeypatch.setattr(listeners.resource, "getrlimit", lambda _: (64, 64))
    assert seats(256) == 16
    monkeypatch.setattr(listeners.resource, "getrlimit", lambda _: (listeners.resource.RLIM_INFINITY,) * 2)
    assert seats(4096) == 4096
