"""The process: on one's own machine (`trimtab ui`) or in a cluster (`trimtab web`), put together, run, and ended."""

from __future__ import annotations

import asyncio
import signal
import sys
import webbrowser
from collections.abc import Iterable

import structlog
from msgspec.structs import replace

from trimtab import __version__
from trimtab.commands import calibration
from trimtab.commands.reach import reach
from trimtab.errors import SettingsError
from trimtab.kube.client import KubeClient
from trimtab.printable import say
from trimtab.serving.listener import Listener, seats
from trimtab.serving.tls import loopback, of_server
from trimtab.settings import Settings
from trimtab.telemetry import logs, metrics
from trimtab.telemetry.ports import PortCounts
from trimtab.telemetry.scrapers import scrapers_of
from trimtab.telemetry.server import SEATS, TelemetryServer
from trimtab.web.console import Console
from trimtab.web.rights import OwnRights, ReviewedRights
from trimtab.web.server import Place, Server, local_place

LOOPBACK = "127.0.0.1"
LOCAL_CONNECTIONS = 256

log = structlog.get_logger(__name__)


async def show_locally(settings: Settings, port: int, namespaces: Iterable[str], *, browser: bool) -> None:
    """Serve the owner of the kubeconfig on this machine until SIGINT or SIGTERM, and open the page. Where they may not
    see all of the cluster, it shows these namespaces.

    Raises SettingsError for a port that is taken, or a kubeconfig that cannot be used; Forbidden where they may see no
    job.
    """
    logs.configure(settings.log.model_copy(update={"level": "warning"}))
    calibration.use(settings.perf)
    stop = _signals()
    async with await KubeClient.connect(settings.kube) as client:
        console = Console(client, settings, await reach(client, namespaces))
        server = Server(console, OwnRights(console.audience), local_place(), seats(LOCAL_CONNECTIONS))
        listener = Listener(server.guard, LOOPBACK, port, "--port")
        names = (f"{LOOPBACK}:{listener.port}", f"localhost:{listener.port}")
        server.place = replace(server.place, hosts=names)
        url = listener.url + server.place.path
        await listener.open(None)
        say(f"{url}\nCtrl-C ends it. Whoever has this address sees what your kubeconfig may see.")
        sys.stdout.flush()  # a script that waits for the address reads it from a file, or a pipe
        if browser:
            await asyncio.to_thread(webbrowser.open, url)
        await _serve(console, server, listener, stop)


async def serve_cluster(settings: Settings) -> None:
    """Serve all who have a token of the cluster, until SIGINT or SIGTERM. Raises SettingsError."""
    own = settings.web
    if not own.tls.certificate and not own.insecure and not loopback(own.host):
        raise SettingsError(
            "web: visitors send tokens, which plain HTTP shows to others: give web.tls, or set web.insecure where an"
            " ingress in front of it speaks TLS"
        )
    logs.configure(settings.log)
    calibration.use(settings.perf)
    stop, observer = _signals(), metrics.KubeMetrics()
    async with await KubeClient.connect(settings.kube, observer=observer) as client:
        console = Console(client, settings)
        room = seats(own.connections, SEATS)
        counts = PortCounts(metrics.PORTS, "web", room)
        server = Server(console, ReviewedRights(client), Place(), room, counts)
        listener = Listener(server.guard, own.host, own.port, "web.port")
        await listener.secure(of_server("web.tls", own.tls), counts.certificates)
        health = TelemetryServer(
            settings.metrics, lambda: "", server.unready, scrapers=scrapers_of(settings.metrics, client)
        )
        async with health:
            log.info("serving", version=__version__, page=listener.url, metrics=f"{health.url}/metrics")
            await _serve(console, server, listener, stop)


async def _serve(console: Console, server: Server, listener: Listener, stop: asyncio.Event) -> None:
    looking = asyncio.create_task(console.run(), name="console")
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait((looking, stopping), return_when=asyncio.FIRST_COMPLETED)
        if looking in done:
            looking.result()
    finally:
        server.stop()
        await listener.close()
        for task in (looking, stopping):
            task.cancel()
        await asyncio.gather(looking, stopping, return_exceptions=True)


def _signals() -> asyncio.Event:
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    return stop
