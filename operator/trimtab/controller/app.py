"""The controller process: put together, run, and ended.

Three things run side by side: the caches, the leadership, and (while leading) the rounds. kopf has a thread of its own
and only wakes the rounds. The process is crash-only: it ends with an error whenever leadership is lost or a part of it
fails, and its successor goes on from what the cluster shows.
"""

from __future__ import annotations

import asyncio
import gc
import signal

import structlog

from trimtab import __version__
from trimtab.controller.choosing import Choosing
from trimtab.controller.cluster import Cluster
from trimtab.controller.decisions import Decisions
from trimtab.controller.gangs import Gangs
from trimtab.controller.leadership import Leadership
from trimtab.controller.recorder import Recorder
from trimtab.controller.rounds import Rounds, Wake
from trimtab.controller.shadow import ShadowMode
from trimtab.controller.views import Views
from trimtab.controller.wakeups import Wakeups
from trimtab.decide.choice import Choice
from trimtab.decide.engine import Engine
from trimtab.decide.remote import RemoteEngine
from trimtab.errors import LeadershipLost
from trimtab.kube.client import KubeClient
from trimtab.observe.snapshot import Observer
from trimtab.settings import PolicySettings, Settings
from trimtab.telemetry import logs, metrics
from trimtab.telemetry.server import TelemetryServer

log = structlog.get_logger(__name__)


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Ends the process with an error when leadership is lost or a part fails."""
    logs.configure(settings.log)
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    kube_metrics = metrics.KubeMetrics()
    async with (
        await KubeClient.connect(settings.kube, observer=kube_metrics) as client,
        await KubeClient.connect(settings.kube, observer=kube_metrics) as lease_client,
    ):
        await Controller(settings, client, Leadership(lease_client, settings.leadership)).run(stop)


class Controller:
    """All parts of one controller."""

    def __init__(self, settings: Settings, client: KubeClient, leadership: Leadership) -> None:
        self._settings = settings
        self._leadership = leadership
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wake = Wake()
        policy = settings.policy
        self._cluster = Cluster(client, settings.reflector, self._wake, metrics.KubeMetrics(), policy.config_map)
        self._recorder = Recorder(client, leadership.identity)
        engine = Engine()
        choosing = Choosing(_started(policy), self._cluster, engine, self._recorder)
        observer = Observer(settings.topology.levels)
        views = Views(self._cluster, observer, settings)
        self._gangs = Gangs(
            client,
            self._cluster,
            views,
            self._recorder,
            settings,
            leader_epoch=lambda: leadership.epoch,
            wake=self._wake,
            fail=self._fail,
        )
        self._shadow = ShadowMode(RemoteEngine(settings.perf.constants), self._gangs, settings, self._wake)
        decisions = Decisions(choosing, engine, self._shadow, self._gangs, self._recorder)
        self._rounds = Rounds(self._cluster, observer, decisions, self._gangs, views, self._recorder, settings.round)
        self._wakeups = Wakeups(settings.kube, self._wake.from_thread, self._rounds.age)
        client.before_write = leadership.check

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; raises what ended it otherwise."""
        log.info("starting", version=__version__, policy=self._settings.policy.name, fake=self._settings.fake.enabled)
        for reflector in self._cluster.reflectors:
            metrics.watch_age(reflector.resource.plural, reflector.age_seconds)
        async with TelemetryServer(self._settings.metrics, self._unhealthy, self._unready) as server:
            log.info("serving", metrics=f"{server.url}/metrics")
            parts = [
                asyncio.create_task(self._cluster.run(), name="caches"),
                asyncio.create_task(self._recorder.run(), name="events"),
                asyncio.create_task(self._lead(), name="lead"),
            ]
            try:
                await _first_of(stop, self._failed, parts)
            finally:
                await self._end(parts)

    async def _lead(self) -> None:
        await self._cluster.synced()
        gc.collect()
        gc.freeze()  # what is there now mostly stays: a full collection of it would stop the loop for 60 ms
        self._wakeups.start()  # kopf looks only once whether our resources are served: now they are
        await self._leadership.acquire()
        metrics.LEADER.set(1)
        metrics.LEADER_EPOCH.set(self._leadership.epoch)
        structlog.contextvars.bind_contextvars(leader_epoch=self._leadership.epoch)
        rounds = asyncio.create_task(self._rounds.run(self._wake), name="rounds")
        holding = asyncio.create_task(self._leadership.hold(), name="lease")
        try:
            await asyncio.wait((rounds, holding), return_when=asyncio.FIRST_COMPLETED)
            if rounds.done():
                rounds.result()
            raise LeadershipLost("the lease could not be renewed, or another controller has it")
        finally:
            rounds.cancel()
            holding.cancel()

    async def _end(self, parts: list[asyncio.Task[None]]) -> None:
        """Stop in order: no new rounds, running requests ended, and the lease given back for a successor."""
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await self._shadow.stop()
        await self._gangs.stop()
        await self._leadership.release()
        metrics.LEADER.set(0)
        await asyncio.to_thread(self._wakeups.stop)

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    def _unhealthy(self) -> str:
        """A leader whose rounds have stopped is to be restarted; a candidate only waits."""
        age = self._rounds.age()
        limit = self._settings.metrics.stale_round_seconds
        return f"the last round ended {age:.0f} s ago" if self._leadership.leading and age > limit else ""

    def _unready(self) -> str:
        missing = [r.resource.plural for r in self._cluster.reflectors if not r.synced.is_set()]
        return f"not listed yet: {', '.join(missing)}" if missing else ""


def _started(policy: PolicySettings) -> Choice:
    """Who decides unless a ConfigMap says otherwise."""
    return Choice(policy.name, policy.fallback, policy.shadow, policy.deadline_seconds)


async def _first_of(stop: asyncio.Event, failed: asyncio.Future[None], parts: list[asyncio.Task[None]]) -> None:
    """Wait for the signal to stop; raise what a part fails with before that."""
    stopping = asyncio.create_task(_wait(stop))
    watched: list[asyncio.Future[None]] = [stopping, failed, *parts]
    done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    for ended in done:
        ended.result()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
