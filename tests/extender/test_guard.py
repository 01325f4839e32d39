"""Clients that drip, stall, flood or lie, on real sockets: each is cut off in time, and others notice nothing."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from tests.extender.desk import LOCAL, Desk, desk, eventually, node, planned, pod

from trimtab.errors import SettingsError
from trimtab.serving.guard import ConnectionGuard, ConnectionLimits
from trimtab.serving.listener import Listener
from trimtab.telemetry.metrics import REGISTRY

PATIENCE = 0.3
ASKED = {"Pod": pod("stranger"), "NodeNames": ["gpu-1"]}


@pytest_asyncio.fixture
async def there(tmp_path: Path) -> AsyncIterator[Desk]:
    """An extender with little patience and little room."""
    limits = {"request_seconds": PATIENCE, "connections": 8, "concurrency": 4, "largest_request": 100_000}
    async with desk(tmp_path, ("nodes", node("gpu-1")), **limits) as made:
        yield made


def cut(reason: str) -> float:
    return REGISTRY.get_sample_value("trimtab_connections_cut_total", {"port": "extender", "reason": reason}) or 0


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server ends the connection."""
    said = bytearray()
    async with asyncio.timeout(20):
        try:
            while chunk := await reader.read(65536):
                said += chunk
        except ConnectionError:
            pass  # cut off is ended
    return bytes(said)


async def drip(writer: asyncio.StreamWriter, text: bytes) -> None:
    """One byte at a time, for as long as somebody listens."""
    for byte in text:
        if writer.is_closing():
            return
        writer.write(bytes([byte]))
        await asyncio.sleep(0.02)


async def serves(there: Desk) -> bool:
    return (await there.post("/filter", ASKED))[0] == 200


async def test_who_says_nothing_is_cut_off(there: Desk) -> None:
    before = cut("silent")
    reader, _writer = await there.dial()
    assert await ended(reader) == b""
    assert cut("silent") == before + 1


async def test_headers_that_drip_are_cut_off_on_a_new_connection_and_on_one_that_was_used(there: Desk) -> None:
    reader, writer = await there.dial()
    dripping = asyncio.create_task(drip(writer, b"POST /filter HTTP/1.1\r\n" + b"X-Slow: loris\r\n" * 1000))
    assert await ended(reader) == b""
    dripping.cancel()
    before = cut("slow_request")
    reader, writer = await there.dial()
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    dripping = asyncio.create_task(drip(writer, b"POST /filter HTTP/1.1\r\n" + b"X-Slow: loris\r\n" * 1000))
    assert (await ended(reader)).strip() == b"ok"
    assert cut("slow_request") == before + 1
    dripping.cancel()


async def test_a_body_that_drips_is_cut_off_and_told_so(there: Desk) -> None:
    before = cut("slow_body")
    reader, writer = await there.dial()
    writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n")
    dripping = asyncio.create_task(drip(writer, b" " * 90000))
    said = await ended(reader)
    assert said.startswith(b"HTTP/1.1 408 ")
    assert cut("slow_body") == before + 1
    dripping.cancel()


async def test_who_does_not_fetch_the_answer_is_cut_off(there: Desk) -> None:
    before = cut("slow_reader")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((LOCAL, there.extender.ports[0]))
        client.setblocking(False)
        body = json.dumps(ASKED | {"NodeNames": ["n" * 99_000]}).encode()
        request = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(client, request * 100))
        await eventually(lambda: cut("slow_reader") + cut("slow_request") > before)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    assert await serves(there)


async def test_a_connection_that_is_idle_between_requests_is_left_alone(there: Desk) -> None:
    reader, writer = await there.dial()
    for _ in range(2):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"ok\n")
        await asyncio.sleep(2 * PATIENCE)


async def test_slow_clients_take_nothing_from_others(there: Desk) -> None:
    writers = [(await there.dial())[1] for _ in range(4)]
    for writer in writers:
        writer.write(b"POST /filter HTTP/1.1\r\nX-Slow: ")
    for _ in range(20):
        assert await serves(there)
    for writer in writers:
        writer.close()


async def test_one_connection_too_many_takes_the_place_of_the_one_that_waits_longest(there: Desk) -> None:
    before = cut("evicted")
    open_ones = [await there.dial() for _ in range(8)]
    assert await serves(there)
    assert await ended(open_ones[0][0]) == b""
    assert cut("evicted") == before + 1
    for _, other in open_ones:
        other.close()
    await there.session.close()
    await eventually(lambda: not REGISTRY.get_sample_value("trimtab_connections", {"port": "extender"}))


async def test_one_request_too_many_is_told_to_come_back(there: Desk) -> None:
    open_ones = [await there.dial() for _ in range(4)]
    for _, writer in open_ones:
        writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
    await asyncio.sleep(PATIENCE / 3)
    async with there.session.post(there.url("/filter"), json=ASKED) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    for reader, writer in open_ones:
        await ended(reader)
        writer.close()
    assert await serves(there)


async def test_a_request_that_is_too_large_is_refused_with_what_to_do(there: Desk) -> None:
    status, text = await there.post("/filter", b" " * 100_001)
    assert status == 413
    assert "nodeCacheCapable: true" in text
    reader, writer = await there.dial()  # announced by nobody: chunked
    writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(2):
        writer.write(b"f000\r\n" + b" " * 0xF000 + b"\r\n")
    assert b"413 " in await reader.readline()


@pytest.mark.parametrize("coding", ["deflate", "gzip"])
async def test_what_is_small_only_while_it_is_packed_takes_no_memory(there: Desk, coding: str) -> None:
    bomb = bytes(64 << 20)
    packed = zlib.compress(bomb) if coding == "deflate" else gzip.compress(bomb, mtime=0)
    head = f"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Encoding: {coding}\r\nContent-Length: {len(packed)}\r\n\r\n"
    reader, writer = await there.dial()
    tracemalloc.start()
    try:
        writer.write(head.encode() + packed)
        answer = await reader.readline()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert b"413 " in answer or b"400 " in answer
    assert most < len(bomb) / 8
    assert await serves(there)


async def test_what_cannot_be_understood_is_refused_and_the_next_request_is_not(there: Desk) -> None:
    for body in (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"Pod": null}', b'{"NodeNames": []}', b"[" * 5000):
        assert (await there.post("/filter", body))[0] == 400
    assert (await there.post("/filter", {"Pod": {}, "NodeNames": {}}))[0] == 400
    broken = planned("job7-1-0", "gpu-1")
    broken["spec"]["containers"] = "none"
    assert (await there.post("/filter", {"Pod": broken, "NodeNames": ["gpu-1"]}))[0] == 400
    assert await serves(there)
    reader, writer = await there.dial()
    writer.write(b"this is not HTTP\r\n\r\n")
    assert b"400 " in await ended(reader)


async def test_every_path_has_its_method(there: Desk) -> None:
    assert (await there.get("/filter"))[0] == 405
    assert (await there.post("/healthz", b""))[0] == 405
    assert (await there.post("/inspect", b""))[0] == 405
    assert (await there.get("/"))[0] == 404


async def test_the_other_door_has_health_and_metrics_only(there: Desk) -> None:
    await serves(there)
    url = f"http://{LOCAL}:{there.extender.ports[1]}"
    for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/inspect", 404), ("/filter", 404)):
        async with there.session.get(url + path) as answer:
            assert answer.status == status
            if path == "/metrics":
                text = await answer.text()
            assert "Server" not in answer.headers
    assert 'trimtab_extender_requests_total{code="200",verb="filter"}' in text
    assert 'trimtab_extender_verdicts_total{pod="foreign",result="passed",verb="filter"}' in text
    assert "trimtab_extender_duration_seconds_bucket" in text


async def test_a_port_that_is_taken_is_said_in_one_line(there: Desk) -> None:
    taken = there.extender.ports[0]
    with pytest.raises(SettingsError, match=f"port {taken}"):
        Listener(ConnectionGuard(unasked, ConnectionLimits()), LOCAL, taken)


async def unasked(request: web.BaseRequest) -> web.Response:
    raise AssertionError


async def test_requests_in_work_are_answered_when_the_extender_stops(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        async with desk(tmp_path, ("nodes", node("gpu-1")), request_seconds=10) as there:
            port = there.extender.ports[0]
            await there.dial()
            reader, writer = await there.dial()
            body = json.dumps(ASKED).encode()
            writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
            async with session.get(there.url("/healthz")) as answer:  # by now the other request is being read
                assert answer.status == 200

            async def late() -> bytes:
                await asyncio.sleep(0.2)
                writer.write(body)
                return await ended(reader)

            answering = asyncio.create_task(late())
        said = await answering
    assert b"200 OK" in said
    assert b"Connection: close" in said
    with socket.socket() as client:
        assert client.connect_ex((LOCAL, port)) != 0
