"""The controller process: put together, run, and ended.

Three things run side by side: the caches, the leadership, and (while leading) the rounds. kopf has a thread of its own
and only wakes the rounds. It is crash-only: whenever leadership is lost or a part of it fails, all of it ends, and its
successor, in the same process or in another one, goes on from what the cluster shows.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from trimtab import __version__, names
from trimtab.controller.advice.advisor import Advisor
from trimtab.controller.cluster import Cluster
from trimtab.controller.event_recorder import EventRecorder
from trimtab.controller.jobs.attention import Attention
from trimtab.controller.jobs.evictions import Evictions
from trimtab.controller.jobs.gangs import Gangs
from trimtab.controller.jobs.idle import IdleJobs
from trimtab.controller.jobs.queues import QueueStatusWriter
from trimtab.controller.jobs.references import References
from trimtab.controller.jobs.screening import Screening
from trimtab.controller.jobs.templates import Templates
from trimtab.controller.kopf_events import Wakeups
from trimtab.controller.kueue.admission import Kueue
from trimtab.controller.kueue.caches import KueueCaches
from trimtab.controller.kueue.cases import Cases
from trimtab.controller.leadership import Leadership
from trimtab.controller.loop.accounting import Accounting
from trimtab.controller.loop.choosing import Choosing
from trimtab.controller.loop.decisions import Decisions
from trimtab.controller.loop.monitor import Monitor
from trimtab.controller.loop.rounds import Rounds, Wake
from trimtab.controller.loop.shadow import ShadowMode
from trimtab.controller.nodes.health import Health
from trimtab.controller.nodes.stragglers import StragglerMoves
from trimtab.controller.other_jobs import OtherJobs
from trimtab.controller.place.placer import Placer
from trimtab.controller.place.their_jobs import TheirJobs
from trimtab.controller.reports.calibration import Calibration
from trimtab.controller.views import Views, own_template
from trimtab.decide.engine import Engine
from trimtab.decide.remote import RemoteEngine
from trimtab.errors import LeadershipLost
from trimtab.kube.client import KubeClient
from trimtab.kube.clock import ClusterClock
from trimtab.observe.failures import Failures
from trimtab.observe.gpunodes import GpuNodes
from trimtab.observe.running import Mobility
from trimtab.observe.snapshot import ClusterObserver
from trimtab.observe.stragglers import StragglerRules, Stragglers
from trimtab.settings import PolicySettings, Settings, TelemetrySettings
from trimtab.telemetry import logs, metrics
from trimtab.telemetry.scrapers import Scrapers, scrapers_of
from trimtab.telemetry.server import TelemetryServer
from trimtab_policy.scheduling.choice import Choice

WRONG_SECONDS = 5.0
"""A clock that is so far off the API server's is told of."""
SETTLED = 1.25
"""Of the time that it takes to find a straggler, and a gang's steps teach something: nodes report late."""

log = structlog.get_logger(__name__)


async def run_controller(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Ends the process with an error when a part fails.

    Who has lost the leadership, because the API server was away or somebody else has it, forgets everything and stands
    for election again: as after an exit, but without the growing pauses in which a kubelet starts containers.
    """
    logs.configure(settings.log)
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    while not stop.is_set():
        try:
            async with candidate(settings) as controller:
                await controller.run(stop)
        except LeadershipLost as lost:
            log.warning("standing for election again", because=str(lost))
        gc.unfreeze()  # what is forgotten refers to itself in circles, and the next candidacy holds as much again
        gc.collect()


@asynccontextmanager
async def candidate(settings: Settings) -> AsyncIterator[Controller]:
    """A controller for one candidacy, with connections and memory of its own. It writes only while it leads."""
    kube_metrics = metrics.KubeMetrics()
    clock = ClusterClock()
    async with await KubeClient.connect(settings.kube, observer=kube_metrics, clock=clock) as lease_client:
        leadership = Leadership(lease_client, settings.leadership)
        connecting = KubeClient.connect(
            settings.kube, observer=kube_metrics, before_write=leadership.check, clock=clock
        )
        async with await connecting as client, _letting_in(settings, kube_metrics) as scrapers:
            yield Controller(settings, client, leadership, scrapers)


@asynccontextmanager
async def _letting_in(settings: Settings, observer: metrics.KubeMetrics) -> AsyncIterator[Scrapers | None]:
    """Who decides about scrapers, if anybody does. It has a connection of its own: the others write as leader only, and
    renew the lease."""
    if settings.metrics.authentication == "None":
        yield None
        return
    async with await KubeClient.connect(settings.kube, observer=observer) as client:
        yield scrapers_of(settings.metrics, client)


class Controller:
    """All parts of one controller. `client` writes only as long as `leadership` holds."""

    def __init__(
        self, settings: Settings, client: KubeClient, leadership: Leadership, scrapers: Scrapers | None = None
    ) -> None:
        self._settings = settings
        self._scrapers = scrapers
        self._leadership = leadership
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wake = Wake()
        self._clock = client.clock
        policy, wall = settings.policy, client.clock.now
        gpunodes = GpuNodes(settings.telemetry, wall=wall)
        heard = gpunodes if settings.telemetry.enabled else None
        self._cluster = self._copies(client, heard)
        self._placing_news = asyncio.Event()
        """A job of another kind that is to be placed has changed."""
        self._recorder = EventRecorder(client, leadership.identity, wall)
        engine = Engine()
        self._health = Health(client, self._cluster, gpunodes, self._recorder)
        self._tally = QueueStatusWriter(client, self._cluster, lambda: leadership.epoch, settings.queues.status_seconds)
        observer, caches = _observer(settings, heard), self._cluster.kueue
        self._news: asyncio.Queue[str] = asyncio.Queue()
        """UIDs of jobs that reports speak of."""
        self._calibration = self._listening(client, observer)
        self._idle = IdleJobs(settings, self._calibration.progress.heard)
        cases = Cases(self._cluster, caches, observer, wall) if caches else None
        their_jobs = TheirJobs(client, self._cluster)
        views = self._views_of(observer, heard, cases, their_jobs)
        attention = Attention(settings.round.sweep_seconds)
        self._cluster.listen(attention.attend)
        self._gangs = Gangs(
            client,
            self._cluster,
            views,
            self._recorder,
            settings,
            leader_epoch=lambda: leadership.epoch,
            wake=self._wake,
            fail=self._fail,
            wall=wall,
            their_jobs=their_jobs,
            attention=attention,
        )
        self._placer = self._placing(client, observer)
        self._shadow = ShadowMode(RemoteEngine(settings.perf.constants), self._gangs, settings, self._wake)
        self._monitor = Monitor(RemoteEngine(settings.perf.constants), client, self._recorder, settings, self._wake)
        self._kueue = self._interop(client, caches, cases) if caches and cases else None
        self._advisor = self._advice(client)
        jobs = self._cluster.jobs.items.values
        self._looking: list[Screening] = [Templates(client, jobs, observer.job, self._wake)]
        if settings.gang.check_references:
            self._looking.append(References(client, jobs, observer.job, self._wake))
        choosing = Choosing(_started(policy), self._cluster, engine, self._recorder)
        self._rounds = self._rounds_of(choosing, engine, observer, views)
        self._wakeups = Wakeups(settings.kube, self._wake.from_thread, self._rounds.age)

    def _views_of(
        self, observer: ClusterObserver, heard: GpuNodes | None, cases: Cases | None, their_jobs: TheirJobs
    ) -> Views:
        """What the steps of jobs depend on."""
        return Views(
            self._cluster,
            observer,
            self._settings,
            self._clock.now,
            gpunodes=heard,
            progress=self._calibration.progress,
            template=cases.template if cases else own_template,
            idle=self._idle.found,
            theirs=their_jobs.of,
        )

    def _copies(self, client: KubeClient, gpunodes: GpuNodes | None) -> Cluster:
        """Of all that the cluster has, as far as it is looked at."""
        settings, binding = self._settings, self._settings.binding
        return Cluster(
            client,
            settings.reflector,
            self._wake,
            metrics.KubeMetrics(),
            settings.policy.config_map,
            pod_groups=binding.mode == "Extender" and binding.pod_groups == "Auto",
            kueue=settings.interop.kueue == "Auto",
            gpunodes=gpunodes,
            devices=True,
            claim_templates=binding.mode == "Extender",
            other_jobs=self._placed(client),
        )

    def _rounds_of(self, choosing: Choosing, engine: Engine, observer: ClusterObserver, views: Views) -> Rounds:
        """What decides, and carries out."""
        decisions = Decisions(
            choosing,
            engine,
            self._shadow,
            self._gangs,
            self._recorder,
            Evictions(self._gangs, views),
            self._settings,
            self._calibration.corrected,
            self._monitor,
        )
        return Rounds(
            self._cluster,
            observer,
            decisions,
            self._gangs,
            views,
            self._recorder,
            self._settings.round,
            self._health,
            StragglerMoves() if self._settings.telemetry.straggler_moves else None,
            self._kueue,
            self._tally,
            self._clock.now,
            self._advisor,
            Accounting(self._settings.idle.utilization, self._settings.round.sweep_seconds, self._cluster.job_of_pod),
            self._idle,
            self._looking,
        )

    def _advice(self, client: KubeClient) -> Advisor | None:
        """What tells jobs of other kinds what would be decided about them, where that is wanted."""
        if self._settings.interop.other_kinds == "Never":
            return None
        return Advisor(
            client,
            OtherJobs(
                client,
                self._settings.reflector,
                lambda: None,
                metrics.KubeMetrics(),
                names.LABEL_ADVISE,
                lambda row: bool(row.roles),
            ),
            RemoteEngine(self._settings.perf.constants),
            self._recorder,
            self._settings,
            priority_classes=lambda: self._cluster.priority_classes.items.values(),
            correct=self._calibration.corrected,
        )

    def _placed(self, client: KubeClient) -> OtherJobs | None:
        """Jobs of other kinds that are to be placed, where that is wanted."""
        if self._settings.interop.place == "Never":
            return None
        settings, observer = self._settings.reflector, metrics.KubeMetrics()
        return OtherJobs(
            client,
            settings,
            self._job_changed,
            observer,
            names.LABEL_MANAGED,
            lambda row: row.place is not None,
            pods=True,
        )

    def _job_changed(self) -> None:
        """News of one of these jobs: its stand-in may have to change, and its gang."""
        self._wake()
        self._placing_news.set()

    def _placing(self, client: KubeClient, observer: ClusterObserver) -> Placer | None:
        """What keeps stand-ins for them."""
        jobs, binding = self._cluster.other_jobs, self._settings.binding
        if jobs is None:
            return None
        return Placer(client, self._cluster, jobs, self._recorder, binding, observer.job, self._placing_news)

    def _listening(self, client: KubeClient, observer: ClusterObserver) -> Calibration:
        """What hears trainings and learns from them."""
        telemetry = self._settings.telemetry
        return Calibration(
            self._settings.reports,
            client,
            self._cluster,
            observer,
            self._recorder,
            news=self._news.put_nowait,
            leading=lambda: self._leadership.leading,
            settle_seconds=SETTLED * telemetry.straggler_seconds if telemetry.enabled else 0.0,
            wall=client.clock.now,
        )

    def _interop(self, client: KubeClient, caches: KueueCaches, cases: Cases) -> Kueue:
        """What deals with Kueue."""
        gangs = self._gangs
        return Kueue(
            client,
            self._cluster,
            caches,
            cases,
            self._recorder,
            order_stop=gangs.order_stop,
            promised=lambda: {claim.job for claim in gangs.promised()},
            fail=self._fail,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; raises what ended it otherwise."""
        log.info("starting", version=__version__, policy=self._settings.policy.name, fake=self._settings.fake.enabled)
        metrics.CLOCK_AHEAD.set_function(self._clock.ahead)
        for reflector in self._cluster.reflectors:
            metrics.watch_age(reflector.resource.plural, reflector.age_seconds)
        server = TelemetryServer(self._settings.metrics, self._unhealthy, self._unready, scrapers=self._scrapers)
        async with server:
            log.info("serving", metrics=f"{server.url}/metrics")
            parts = [
                asyncio.create_task(self._cluster.run(), name="caches"),
                asyncio.create_task(self._recorder.run(), name="events"),
                asyncio.create_task(self._calibration.run(), name="reports"),
                asyncio.create_task(self._lead(), name="lead"),
            ]
            if self._advisor:
                parts.append(asyncio.create_task(self._advisor.jobs.run(), name="other kinds"))
            try:
                await _first_of(stop, self._failed, parts)
            finally:
                await self._end(parts)

    async def _lead(self) -> None:
        await self._cluster.synced()
        if abs(ahead := self._clock.ahead()) >= WRONG_SECONDS:
            log.warning("this machine's clock is wrong: the API server's is gone by", seconds_ahead=round(ahead, 1))
        _settle_memory()
        self._wakeups.start()  # kopf looks only once whether our resources are served: now they are
        await self._leadership.acquire()
        self._rounds.last_round = time.monotonic()  # a candidate has none: it is measured from here on
        metrics.LEADER.set(1)
        metrics.LEADER_EPOCH.set(self._leadership.epoch)
        structlog.contextvars.bind_contextvars(leader_epoch=self._leadership.epoch)
        tasks = [asyncio.create_task(self._leadership.hold(), name="lease")]
        try:
            await self._calibration.load()
            await self._monitor.load()
            tasks += [
                asyncio.create_task(self._rounds.run(self._wake), name="rounds"),
                asyncio.create_task(self._health.run(), name="health"),
                asyncio.create_task(self._tally.run(), name="queues"),
                asyncio.create_task(self._gangs.follow(self._news), name="news"),
            ]
            if self._advisor:
                tasks.append(asyncio.create_task(self._advisor.run(), name="advice"))
            tasks += [asyncio.create_task(each.run(), name=type(each).__name__) for each in self._looking]
            if self._placer:
                tasks.append(asyncio.create_task(self._placer.run(), name="place"))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            raise LeadershipLost("the lease could not be renewed, or another controller has it")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            metrics.stand_back()

    async def _end(self, parts: list[asyncio.Task[None]]) -> None:
        """Stop in order: no new rounds, running requests ended, and the lease given back for a successor."""
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await self._shadow.stop()
        await self._monitor.stop()
        if self._advisor:
            await self._advisor.stop()
        await self._gangs.stop()
        if self._kueue:
            await self._kueue.stop()
        await self._calibration.stop()
        await self._leadership.release()
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
        missing = [r.resource.plural for r in self._cluster.needed if not r.synced.is_set()]
        return f"not listed yet: {', '.join(missing)}" if missing else ""


def _settle_memory() -> None:
    """What is there now mostly stays: a full collection of it would stop the loop for 60 ms. What an earlier term of
    this process had put aside in the same way goes."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _observer(settings: Settings, gpunodes: GpuNodes | None) -> ClusterObserver:
    """Who reads the cluster."""
    return ClusterObserver(
        settings.topology.levels,
        gpunodes,
        _stragglers(settings.telemetry),
        _mobility(settings),
        failures=_failures(settings),
        considered=settings.queues.considered_per_queue,
        allocates=settings.binding.mode == "Extender",
    )


def _failures(settings: Settings) -> Failures:
    """Who judges which nodes end one gang after another."""
    share, apart = settings.telemetry.excluded_share, settings.gang.node_grace_seconds
    return Failures(settings.failures, share=share, apart=apart)


def _mobility(settings: Settings) -> Mobility:
    """Which running jobs may be moved."""
    speedup = settings.fake.speedup if settings.fake.enabled else 1.0
    giving, elastic = settings.preemption, settings.elasticity.enabled
    return Mobility(giving.per_job_per_hour, giving.most_runtime_seconds, elastic, speedup, settings.fake.enabled)


def _stragglers(telemetry: TelemetrySettings) -> Stragglers:
    """Who judges which GPUs are slow."""
    return Stragglers(
        StragglerRules(telemetry.straggler_speed, telemetry.straggler_seconds, telemetry.recovery_seconds)
    )


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
