"""HTTP server for /metrics, /healthz and /readyz.

It runs in the event loop of the controller on purpose: a loop that is stuck cannot answer, and the kubelet restarts it.
Health is the heartbeat of our own rounds, never the API server's: otherwise its outage would become our crash loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from trimtab.settings import HttpSettings
from trimtab.telemetry.metrics import REGISTRY

Check = Callable[[], str]
"""Says what is wrong; empty when all is well."""


class TelemetryServer:
    """`async with TelemetryServer(settings.metrics, healthy, ready) as server:` serves at `server.url`."""

    def __init__(self, settings: HttpSettings, healthy: Check, ready: Check) -> None:
        self.url = ""
        self._settings = settings
        app = web.Application()
        app.router.add_get("/metrics", _metrics)
        app.router.add_get("/healthz", _answer(healthy))
        app.router.add_get("/readyz", _answer(ready))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)

    async def __aenter__(self) -> TelemetryServer:
        await self._runner.setup()
        await web.TCPSite(self._runner, self._settings.host, self._settings.port).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _answer(check: Check) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        problem = check()
        return web.Response(status=503 if problem else 200, text=(problem or "ok") + "\n")

    return answer
