"""HTTP server for /metrics, /healthz and /readyz.

It runs in the event loop of the controller on purpose: a loop that is stuck cannot answer, and the kubelet restarts it.
Health is the heartbeat of our own rounds, never the API server's: otherwise its outage would become our crash loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from trimtab.errors import SettingsError
from trimtab.telemetry.metrics import REGISTRY

Check = Callable[[], str]
"""Says what is wrong; empty when all is well."""


class Address(Protocol):
    """`HttpSettings`, or what has the same two fields."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class TelemetryServer:
    """`async with TelemetryServer(settings.metrics, healthy, ready) as server:` serves at `server.url`."""

    def __init__(self, settings: Address, healthy: Check, ready: Check, registry: CollectorRegistry = REGISTRY) -> None:
        self.url = ""
        self._settings = settings
        app = web.Application()
        app.router.add_get("/metrics", _metrics(registry))
        app.router.add_get("/healthz", _answer(healthy))
        app.router.add_get("/readyz", _answer(ready))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)

    async def __aenter__(self) -> TelemetryServer:
        await self._runner.setup()
        host, port = self._settings.host, self._settings.port
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise SettingsError(f"metrics cannot be served on {host}:{port}: {error}; set metrics.port") from error
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()


def _metrics(registry: CollectorRegistry) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return answer


def _answer(check: Check) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        problem = check()
        return web.Response(status=503 if problem else 200, text=(problem or "ok") + "\n")

    return answer
