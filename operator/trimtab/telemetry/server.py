"""HTTP server for /metrics, /healthz and /readyz.

In plain text, or over TLS (`metrics.tls`); health is told in plain text to whoever asks so, for kubelets have no CA.
It runs in the event loop of the controller on purpose: a loop that is stuck cannot answer, and the kubelet restarts it.
Health is the heartbeat of our own rounds, never the API server's: otherwise its outage would become our crash loop.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from trimtab.serving.guard import Check, ConnectionGuard, ConnectionLimits
from trimtab.serving.listener import Listener, seats
from trimtab.serving.tls import MutualPair, of_server
from trimtab.telemetry.metrics import PORTS, REGISTRY
from trimtab.telemetry.ports import PortCounts, PortMetrics
from trimtab.telemetry.scrapers import PATH, Scrapers

SEATS = 256
"""Connections: many more than anybody needs, so that each of a flood of them stays for long enough to ask something."""
PACE = 50.0
"""Requests a second, those for health left out."""
SPARED = 4.0
"""Metrics are rendered anew after so many times as long as it took the last time; until then, all get the same."""


class Address(Protocol):
    """`HttpSettings`, or what has the same fields."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def tls(self) -> MutualPair: ...


class TelemetryServer:
    """`async with TelemetryServer(settings.metrics, healthy, ready) as server:` serves at `server.url`."""

    def __init__(
        self,
        settings: Address,
        healthy: Check,
        ready: Check,
        registry: CollectorRegistry = REGISTRY,
        ports: PortMetrics = PORTS,
        scrapers: Scrapers | None = None,
    ) -> None:
        self.url = ""
        self._settings = settings
        self._checks = {"/healthz": healthy, "/readyz": ready}
        self._exposition = Exposition(registry)
        self._ports = ports
        self._scrapers = scrapers

    async def __aenter__(self) -> TelemetryServer:
        limits = limits_of(seats(SEATS))
        counts = PortCounts(self._ports, "metrics", limits.connections)
        guard = ConnectionGuard(self._answer, limits, counts, "metrics", self._checks)
        tls = self._settings.tls
        self._listener = Listener(guard, self._settings.host, self._settings.port, "metrics.port")
        await self._listener.secure(of_server("metrics.tls", tls, tls.client_ca), counts.certificates)
        self.url = self._listener.url
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._listener.close()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        check = self._checks.get(request.path)
        if check is None and request.path != PATH:
            return _last(web.Response(status=404, text=f"there is no {request.path[:100]}\n"))
        if request.method not in ("GET", "HEAD"):
            return _last(web.Response(status=405, text="GET only\n", headers={"Allow": "GET, HEAD"}))
        if check is None:
            if self._scrapers and (refusal := await self._scrapers.refused(request)) is not None:
                return refusal
            return web.Response(body=self._exposition.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})
        problem = check()
        return web.Response(status=503 if problem else 200, text=(problem or "ok") + "\n")


def limits_of(room: int) -> ConnectionLimits:
    """Limits of a port for metrics and health with so many seats."""
    return ConnectionLimits(connections=room, per_address=max(room // 2, 1), keep_alive=False, pace=PACE)


class Exposition:
    """A registry as Prometheus reads it. However many read, most of the loop's time stays for others."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._text = b""
        self._until = 0.0

    def text(self) -> bytes:
        """The metrics of this moment, or of one shortly before."""
        started = time.monotonic()
        if started >= self._until:
            self._text = generate_latest(self._registry)
            ended = time.monotonic()
            self._until = ended + SPARED * (ended - started)
        return self._text


def _last(response: web.Response) -> web.Response:
    """Who asks this wants nothing that is here: the connection ends."""
    response.force_close()
    return response
