"""What the extender costs a kube-scheduler: time per filter request, at 5,000 nodes.

A real `Extender` in a process of its own, fed with nodes and pods by its own reflectors from lists in memory, is asked
200 times a second over 64 connections in turn, whether or not it has answered the last time. Four kinds of request take
turns with a fifth, which goes to the peer: an aiohttp application that reads the same 86 kB and answers `{}`; nobody on
this stack can be faster.

    ours        a pod of a gang, and the names of all nodes
    pinned      the same pod as it is in practice: node affinity has left one name
    refused     a pod of a gang whose node is full: the longest answer, and it waits for news before it is given
    foreign     a pod of somebody else's, and the names of all nodes: they go back as they came

Times are from the first byte written to the last byte read, by the client.

    python -m hack.bench.extender serve | peer        (what the bench starts)
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from aiohttp import web
from hack.bench.percentiles import Spread, spread
from msgspec import Struct

from trimtab import names
from trimtab.extender.app import Extender
from trimtab.extender.pod_index import BooksWatch
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.resources import NODES
from trimtab.settings import ExtenderSettings, HttpSettings, ReflectorSettings, Settings

HOST = "127.0.0.1"
RATE, ROUNDS = 200.0, 5
FULL_NODE = 1
"""Index of the node that a pod fills."""

KINDS = ("ours", "pinned", "refused", "foreign", "peer")
Object = dict[str, Any]


class Size(Struct, frozen=True):
    """How large the cluster is, and how long it is asked."""

    nodes: int
    requests: int
    """Of each kind."""
    connections: int


FULL = Size(nodes=5000, requests=2000, connections=64)
TINY = Size(nodes=50, requests=20, connections=4)


class Times(Struct):
    """Milliseconds by kind of request."""

    ours: Spread
    pinned: Spread
    refused: Spread
    foreign: Spread
    peer: Spread
    nodes: int

    def ratio(self, kind: str) -> float:
        """Median over the peer's."""
        found: Spread = getattr(self, kind)
        return found.p50 / self.peer.p50


# --- the cluster in memory -------------------------------------------------------------------------------------------
class Still:
    """A source of nodes and pods in which nothing ever happens."""

    def __init__(self, nodes: int) -> None:
        full = _pod("full", labels={}, place="", bound=node_name(FULL_NODE))
        self._nodes = _list([_node(node_name(i)) for i in range(nodes)])
        self._pods = _list([full])

    async def pages(self, path: str, page_size: int, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        """All there is."""
        yield self._nodes if path == NODES.path() else self._pods

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[list[bytes], None]:
        """Nothing."""
        yield []
        await asyncio.Event().wait()


def node_name(index: int) -> str:
    """As clouds call them."""
    return f"gpu-node-{index:05}"


def _list(items: Sequence[Object]) -> bytes:
    return msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": items})


def _node(name: str) -> Object:
    allocatable = {"cpu": "128", "memory": "1Ti", "pods": "110", names.NVIDIA_GPU: "8"}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": labels}, "status": status}


def _pod(name: str, labels: Mapping[str, str], place: str, bound: str = "") -> Object:
    asked = {names.NVIDIA_GPU: "8", "cpu": "64", "memory": "512Gi"}
    owner = {"apiVersion": names.API_VERSION, "kind": names.JOB_KIND, "name": "job7", "uid": "j", "controller": True}
    environment = [{"name": f"VARIABLE_{i}", "value": "value " * 4} for i in range(20)]
    container = {"name": "trainer", "image": "example.com/trainer:1", "env": environment}
    return {
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "uid": name,
            "resourceVersion": "1",
            "labels": dict(labels),
            "annotations": {names.ANNOTATION_NODE: place} if place else {},
            "ownerReferences": [owner] if place else [],
        },
        "spec": {
            "containers": [container | {"resources": {"limits": asked, "requests": asked}}],
            "schedulerName": names.SCHEDULER_NAME,
            "tolerations": [{"key": names.NVIDIA_GPU, "operator": "Exists"}],
            **({"nodeName": bound} if bound else {}),
        },
        "status": {"phase": "Running" if bound else "Pending"},
    }


# --- servers ---------------------------------------------------------------------------------------------------------
async def serve(nodes: int) -> None:
    """The extender, until stdin ends; prints its port."""
    settings = Settings(
        extender=ExtenderSettings(host=HOST, port=0), metrics=HttpSettings(host=HOST, port=0), reflector=QUIET
    )
    watch = BooksWatch(Still(nodes), settings.reflector, Silent())
    following = asyncio.create_task(watch.run())
    extender = Extender(settings, watch)
    async with extender.serving():
        await asyncio.gather(*(reflector.synced.wait() for reflector in watch.reflectors))
        await _until_stdin_ends(extender.ports[0])
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


QUIET = ReflectorSettings(stall_seconds=3600)


async def peer() -> None:
    """An aiohttp application that reads and answers `{}`, until stdin ends; prints its port."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b"{}", content_type="application/json")

    app = web.Application(client_max_size=8 << 20)
    app.router.add_post("/filter", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    await _until_stdin_ends(runner.addresses[0][1])
    await runner.cleanup()


async def _until_stdin_ends(port: int) -> None:
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def _server(what: str, nodes: int) -> AsyncIterator[int]:
    """A server as a process, by its port."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hack.bench.extender", what, str(nodes)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin  # asked for above
    assert process.stdout
    try:
        while not (line := await process.stdout.readline()).strip().isdigit():
            if not line:
                raise RuntimeError(f"the {what} of the extender's bench did not start")
        yield int(line)
    finally:
        process.stdin.close()
        await process.wait()


# --- the client ------------------------------------------------------------------------------------------------------
class Line(asyncio.BufferedProtocol):
    """One connection, which costs as little as Python lets it: what is measured is the other end."""

    def __init__(self) -> None:
        self._buffer = bytearray(1 << 20)
        self._filled = self._whole = 0
        self._answered: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def dial(cls, port: int) -> Line:
        """A connection to a server on this machine."""
        _, line = await asyncio.get_running_loop().create_connection(cls, HOST, port)
        return line

    async def ask(self, request: bytes) -> float:
        """Milliseconds until the whole answer is there. Raises RuntimeError for any answer but 200."""
        assert self._transport  # set before `dial` returns
        self._filled = self._whole = 0
        self._answered = asyncio.get_running_loop().create_future()
        started = time.perf_counter()
        self._transport.write(request)
        await self._answered
        took = time.perf_counter() - started
        if not self._buffer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"answered with {bytes(self._buffer[: min(self._filled, 300)])!r}")
        return 1000 * took

    def close(self) -> None:
        """Hang up."""
        if self._transport:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered and not self._answered.done():
            self._answered.set_exception(RuntimeError(f"the connection ended before the answer: {exc}"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if not self._whole and (end := self._buffer.find(b"\r\n\r\n", 0, self._filled)) > 0:
            head = bytes(self._buffer[:end]).lower()
            self._whole = end + 4 + int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if self._whole and self._filled >= self._whole and self._answered and not self._answered.done():
            self._answered.set_result(None)


async def _asked(port: int, request: bytes, count: int, connections: int) -> list[float]:
    """Milliseconds of `count` requests, over all connections in turn."""
    free: asyncio.Queue[Line] = asyncio.Queue()
    for _ in range(connections):
        line = await Line.dial(port)
        await line.ask(request)  # connections are made before the clock starts
        free.put_nowait(line)

    async def one() -> float:
        line = await free.get()
        took = await line.ask(request)
        free.put_nowait(line)
        return took

    pending = []
    due = time.perf_counter()
    for _ in range(count):
        due += 1 / RATE
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        pending.append(asyncio.create_task(one()))
    took = await asyncio.gather(*pending)
    while not free.empty():
        free.get_nowait().close()
    return list(took)


def _requests(nodes: int) -> dict[str, bytes]:
    everywhere = [node_name(i) for i in range(nodes)]
    here, full = node_name(nodes // 2), node_name(FULL_NODE)
    labels = {names.LABEL_JOB: "job7", names.LABEL_EPOCH: "1", names.LABEL_RANK: "0"}
    asked = {
        "ours": (_pod("job7-1-0", labels, here), everywhere),
        "pinned": (_pod("job7-1-0", labels, here), [here]),
        "refused": (_pod("job7-1-0", labels, full), everywhere),
        "foreign": (_pod("other", {}, ""), everywhere),
    }
    made = {kind: _request({"Pod": pod, "Nodes": None, "NodeNames": offered}) for kind, (pod, offered) in asked.items()}
    return made | {"peer": made["foreign"]}


def _request(args: Object) -> bytes:
    body = msgspec.json.encode(args)
    head = f"POST /filter HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def measure(size: Size) -> Times:
    """All kinds of request, in turns."""
    took: dict[str, list[float]] = {}
    async with _server("serve", size.nodes) as extender, _server("peer", size.nodes) as beside:
        for _ in range(ROUNDS):
            for kind, request in _requests(size.nodes).items():
                port = beside if kind == "peer" else extender
                count = max(size.requests // ROUNDS, 1)
                took.setdefault(kind, []).extend(await _asked(port, request, count, size.connections))
    return Times(**{kind: spread(times) for kind, times in took.items()}, nodes=size.nodes)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[2])) if sys.argv[1] == "serve" else peer())
