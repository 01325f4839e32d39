"""The extender process: put together, run, and ended.

Two doors. The one that kube-scheduler knocks at has the four verbs, /inspect, and health and metrics beside them; with
`extender.client_ca` it answers nobody without a certificate. The other (`metrics.port`) has health and metrics only,
for a kubelet and a Prometheus that have none.

Nothing is kept but a copy of nodes and pods: replicas know the same, and one that ends takes nothing with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from trimtab import __version__
from trimtab.extender import page, tls
from trimtab.extender.pod_index import BooksWatch
from trimtab.extender.verbs import Verb, Verbs
from trimtab.extender.wire import WireError
from trimtab.kube.client import KubeClient
from trimtab.serving.guard import Busy, ConnectionGuard, ConnectionLimits, GuardedConnection
from trimtab.serving.listener import Listener, seats
from trimtab.serving.tls import loopback, of_server
from trimtab.settings import ExtenderSettings, Settings
from trimtab.telemetry import logs, metrics
from trimtab.telemetry.extender_metrics import EXTENDER_BLIND, EXTENDER_REQUESTS, EXTENDER_SECONDS
from trimtab.telemetry.ports import PortCounts
from trimtab.telemetry.scrapers import PATH, scrapers_of
from trimtab.telemetry.server import SEATS, Exposition, limits_of

log = structlog.get_logger(__name__)

Page = Callable[[web.BaseRequest], web.Response]


async def serve_extender(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises SettingsError for TLS files or ports that cannot be used."""
    tls.check(settings.extender)
    logs.configure(settings.log)
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    observer = metrics.KubeMetrics()
    async with await KubeClient.connect(settings.kube, observer=observer) as client:
        watch = BooksWatch(client, settings.reflector, observer)
        for reflector in watch.reflectors:
            metrics.watch_age(reflector.resource.plural, reflector.age_seconds)
        EXTENDER_BLIND.set_function(lambda: bool(watch.trouble))
        following = asyncio.create_task(watch.run(), name="caches")
        try:
            async with Extender(settings, watch, client).serving() as certificates:
                await _until(stop, following, certificates)
                log.info("stopping")
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


class Extender:
    """Answers requests at both doors."""

    def __init__(self, settings: Settings, watch: BooksWatch, client: KubeClient | None = None) -> None:
        self._settings: ExtenderSettings = settings.extender
        self._health = settings.metrics
        self._watch = watch
        self._stopping = False
        self.ports: tuple[int, int] = (0, 0)
        """Of kube-scheduler's door and of the other one."""
        self._scrapers = scrapers_of(settings.metrics, client)
        self._verbs = Verbs(watch, client if settings.extender.bind else None).by_path
        self._exposition = Exposition(metrics.REGISTRY)
        self._pages: dict[str, Page] = {"/metrics": self._metrics, "/healthz": _healthy, "/readyz": self._ready}
        self._limits = _limits(self._settings)
        self._counts = PortCounts(metrics.PORTS, "extender", self._limits.connections)
        self._guard = ConnectionGuard(self._answer, self._limits, self._counts, "extender")
        self._inspected = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[asyncio.Task[None]]:
        """Open both doors for the length of a block, then answer what is in work. Raises SettingsError.

        Yields the task that follows the certificates: it ends by an error only.
        """
        ours = tls.files(self._settings)
        main = Listener(self._guard, self._settings.host, self._settings.port, "extender.port")
        guard, counts = self._other_guard()
        health = Listener(guard, self._health.host, self._health.port, "metrics.port")
        self.ports = main.port, health.port
        changing = await main.secure(ours, self._counts.certificates)
        await health.secure(of_server("metrics.tls", self._health.tls, self._health.tls.client_ca), counts.certificates)
        where = {"kube_scheduler": main.url, "metrics": f"{health.url}/metrics"}
        log.info("serving", version=__version__, port=main.port, health_port=health.port, **where)
        if not self._settings.client_ca and not loopback(self._settings.host):
            log.warning("whoever reaches the port may ask, and read the names of all gangs: set extender.client_ca")
        try:
            yield changing
        finally:
            self._stopping = True
            await main.close()
            await health.close()

    # --- kube-scheduler's door --------------------------------------------------------------------------------------
    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if problem := self._forbidden(request):
            EXTENDER_REQUESTS.labels("none", 403).inc()
            return _text(403, problem)
        if (verb := self._verbs.get(request.path)) is not None:
            return await self._asked(verb, request)
        if request.path == "/inspect":
            return await self._inspect(request) if request.method == "GET" else _text(405, "GET only")
        if request.path == PATH and self._scrapers:  # here tokens might be shown in plain text
            return _text(404, f"metrics are told at port {self.ports[1]} (metrics.authentication)")
        return await self._answer_health(request)

    def _forbidden(self, request: web.BaseRequest) -> str:
        """What the client's certificate does not allow; empty when it does."""
        allowed, connection = self._settings.client_names, request.protocol
        if not allowed or not isinstance(connection, GuardedConnection) or connection.peer in allowed:
            return ""
        if connection.peer not in self._settings.inspect_names:
            return f"{connection.peer!r} is none of extender.client_names"
        return (
            "" if request.path == "/inspect" else f"{connection.peer!r} may only read /inspect (extender.inspect_names)"
        )

    async def _inspect(self, request: web.BaseRequest) -> web.Response:
        """One page at a time: each takes small turns, and many at once would add up to long ones."""
        async with self._inspected:
            return await page.inspect(request, self._watch)

    async def _asked(self, verb: Verb, request: web.BaseRequest) -> web.Response:
        """One of the four verbs, measured."""
        name = request.path[1:]
        started = time.perf_counter()
        response = _text(500, "a bug")
        try:
            response = await self._work(verb, request)
        finally:
            EXTENDER_REQUESTS.labels(name, response.status).inc()
            EXTENDER_SECONDS.labels(name).observe(time.perf_counter() - started)
        return response

    async def _work(self, verb: Verb, request: web.BaseRequest) -> web.Response:
        if request.method != "POST":
            return _text(405, "POST only")
        try:
            async with self._guard.work(self._guard.announced(request)):
                return web.Response(
                    body=await verb(await self._guard.body(request)), content_type="application/json", charset="utf-8"
                )
        except WireError as error:
            return _text(400, f"{request.path}: {error}")
        except web.HTTPRequestEntityTooLarge:
            most = f"{self._settings.largest_request:,} bytes at most (extender.largest_request)"
            hint = "with nodeCacheCapable: true kube-scheduler sends names of nodes and not whole nodes"
            return _last(_text(413, f"{most}; {hint}"))
        except TimeoutError:
            return _last(_text(408, f"the request did not arrive within {self._settings.request_seconds:g} s"))
        except Busy:
            response = _text(503, "too many requests are in work")
            response.headers["Retry-After"] = "1"
            return _last(response)

    # --- the other door ---------------------------------------------------------------------------------------------
    def _other_guard(self) -> tuple[ConnectionGuard, PortCounts]:
        limits = limits_of(seats(SEATS, self._limits.connections))
        counts = PortCounts(metrics.PORTS, "metrics", limits.connections)
        health = {"/healthz": lambda: "", "/readyz": self._unready}
        return ConnectionGuard(self._answer_health, limits, counts, "metrics", health), counts

    def _metrics(self, _: web.BaseRequest) -> web.Response:
        return web.Response(body=self._exposition.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _answer_health(self, request: web.BaseRequest) -> web.Response:
        found = self._pages.get(request.path)
        if found is None:
            return _text(404, f"there is no {request.path[:100]}")
        if request.method != "GET":
            return _text(405, "GET only")
        if request.path == PATH and self._scrapers and (refusal := await self._scrapers.refused(request)) is not None:
            return refusal
        return found(request)

    def _unready(self) -> str:
        """Without the API server the plans in pods can still be checked: not ready is who never knew the cluster."""
        return "stopping" if self._stopping else ("" if self._watch.synced else self._watch.trouble)

    def _ready(self, request: web.BaseRequest) -> web.Response:
        problem = self._unready()
        return _text(503 if problem else 200, problem or "ok")


def _healthy(request: web.BaseRequest) -> web.Response:
    return _text(200, "ok")


def _limits(settings: ExtenderSettings) -> ConnectionLimits:
    """kube-schedulers are few, and each has many connections: one address may have all of them."""
    room = seats(settings.connections, SEATS)
    return ConnectionLimits(room, room, settings.request_seconds, settings.largest_request, settings.concurrency)


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n")


def _last(response: web.Response) -> web.Response:
    """The rest of the request is not wanted: the connection ends with this answer."""
    response.force_close()
    return response


async def _until(stop: asyncio.Event, *tasks: asyncio.Task[None]) -> None:
    """Wait for the signal to stop; raises what ended one of the tasks before that."""
    stopping = asyncio.create_task(_wait(stop))
    done, _ = await asyncio.wait((stopping, *tasks), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    for ended in done:
        ended.result()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
