"""kopf's part: wake the controller's loop when one of our own resources changes.

kopf 1.45.2 watches LLMTrainingJobs and Queues through `on.event`, which writes nothing, and its handlers only wake the
loop. What the loop then acts on comes from our reflectors. That is because kopf's own bookkeeping cannot be trusted
with state; each of these was reproduced and is covered by a test:

    K1  it gives up after nine 5xx answers in a row      endless back-off
    K2  any ERROR in a stream but 410 ends it            supervised: restarted, counted
    -   while ending it may hang                         its tasks are ended one by one
    K3  deletions missed during a relist never arrive    the reflector finds them
    -   a watch that went silent                         inactivity timeout, and the reflector's own

It runs in a thread with an event loop of its own, where it finds no signals to handle. We spawn its tasks and end them
ourselves, because kopf's own way out can take for ever: a watch that is just connecting takes the cancellation for a
pause and goes on (`clients/api.py`, `stream`), and kopf waits for it, watching nothing else. Its last resort against
that, SIGKILL to our process after ten minutes, is switched off.
"""

from __future__ import annotations

import asyncio
import datetime
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any

import aiohttp
import kopf
import structlog
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from msgspec import Struct

from trimtab.errors import SettingsError
from trimtab.kube.backoff import Backoff
from trimtab.kube.connection import ApiConnection, connect
from trimtab.names import GROUP, JOB_PLURAL, QUEUE_PLURAL, VERSION
from trimtab.settings import KubeSettings
from trimtab.telemetry import metrics

CREDENTIALS_SECONDS = 600.0
HEALTHY_SECONDS = 60.0
"""An operator that ran for so long before it ended is restarted at once."""

NONE = "metadata.name=none.of.them"
"""Field selector of kopf's lists."""
IDLE_SECONDS = 0.1
"""kopf's worker for an object, and what it has seen of it, stays for so long after an event."""
RESOURCES = tuple(f"/apis/{GROUP}/{VERSION}/{plural}" for plural in (JOB_PLURAL, QUEUE_PLURAL))
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""What the Accept header of a watch says for no more than metadata."""

SECONDS_TO_CLEAN_UP, SECONDS_TO_END, ROUNDS_TO_END = 2.0, 0.2, 5

log = structlog.get_logger(__name__)


class Endless:
    """Pauses between attempts, without an end. kopf iterates it anew for every request, so it is no generator."""

    def __init__(self, first: tuple[float, ...] = (0.5, 1, 2, 3), then: float = 5.0) -> None:
        self._first = first
        self._then = then

    def __iter__(self) -> Iterator[float]:
        yield from self._first
        while True:
            yield self._then


class Timing(Struct, frozen=True):
    """kopf's clocks; only tests change them."""

    request_seconds: float = 10.0
    connect_seconds: float = 3.0
    watch_seconds: int = 240
    """Whole seconds: the API server parses `timeoutSeconds` as an integer."""
    inactivity_seconds: float = 70.0
    """Longer than the API server's pause between bookmarks (a minute), shorter than its memory of events (75 s)."""
    ready_seconds: float = 1.0
    retries: Endless = Endless()
    restart_initial_seconds: float = 0.5
    restart_max_seconds: float = 30.0


class Wakeups:
    """kopf in a thread of its own.

    `wake` is called from that thread at every event of our resources: it must be thread-safe and quick
    (`loop.call_soon_threadsafe(event.set)`). `ready` says whether our resources are served; kopf looks for them only
    once, at its start, and therefore starts only then. `round_age` is reported at `liveness_endpoint`
    (`http://host:port/path`), if one is given.
    """

    def __init__(
        self,
        settings: KubeSettings,
        wake: Callable[[], None],
        round_age: Callable[[], float],
        *,
        ready: Callable[[], bool] = lambda: True,
        liveness_endpoint: str | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.restarts = 0
        """Times that kopf ended without being asked to."""
        self._settings = settings
        self._wake = wake
        self._ready = ready
        self._round_age = round_age
        self._liveness_endpoint = liveness_endpoint
        self._timing = timing or Timing()
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._operator: asyncio.Task[None] | None = None
        self._sessions: list[aiohttp.ClientSession] = []
        """All that kopf was given in this life: it does not close them when it ends in the middle of its start."""
        self._thread = threading.Thread(target=self._supervise, name="kopf", daemon=True)

    def __enter__(self) -> Wakeups:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the thread; once only."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """Stop kopf and wait for its end. A thread that does not end is left behind; it dies with the process."""
        self._stopping.set()
        if self._loop is not None and self._operator is not None:
            with suppress(RuntimeError):  # closed: kopf is between two lives, and there will not be another
                self._loop.call_soon_threadsafe(self._operator.cancel)
        if self.alive:
            self._thread.join(timeout_seconds)
        if self.alive:
            log.warning("kopf did not stop in time", seconds=timeout_seconds)
        # kopf keeps our handlers after its end, and through them it would keep all that the loop holds.
        self._wake, self._ready, self._round_age = _nothing, _not_served, _no_age

    @property
    def alive(self) -> bool:
        """Whether the supervising thread runs; kopf may be between two lives."""
        return self._thread.is_alive()

    # --- in the thread ----------------------------------------------------------------------------------------------
    def _supervise(self) -> None:
        backoff = Backoff(self._timing.restart_initial_seconds, self._timing.restart_max_seconds)
        while not self._stopping.is_set():
            started = time.monotonic()
            error = self._live()
            if self._stopping.is_set():
                return
            if time.monotonic() - started > HEALTHY_SECONDS:
                backoff.reset()
            self.restarts += 1
            metrics.KOPF_RESTARTS.labels(type(error).__name__).inc()
            wait = backoff.next()
            log.error("kopf ended, starting it again", reason=repr(error), wait=wait)
            self._stopping.wait(wait)

    def _live(self) -> Exception | None:
        """Run kopf until it ends; return what killed it, if anything did."""
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._operate())
        except asyncio.CancelledError:
            return None
        except Exception as error:  # noqa: BLE001  (whatever kills kopf: to survive it is what we are here for)
            return error
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
        return None

    async def _operate(self) -> None:
        """Until one of kopf's tasks ends (none should), or `stop` cancels this one."""
        self._loop, self._operator = asyncio.get_running_loop(), asyncio.current_task()
        if self._stopping.is_set():  # stop() came before there was anything to cancel
            return
        tasks: Collection[asyncio.Task[None]] = ()
        try:
            tasks = await kopf.spawn_tasks(
                registry=self._registry(),
                settings=self._kopf_settings(),
                clusterwide=True,
                standalone=True,
                liveness_endpoint=self._liveness_endpoint,
            )
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(tasks or _others())  # stop() may come while kopf spawns: then it tells us of none
            while self._sessions:
                await self._sessions.pop().close()
        for task in ended:
            task.result()

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.startup(registry=registry)(self._wait_until_served)
        kopf.on.login(registry=registry)(self._login)
        kopf.on.probe(registry=registry, id="round_age_seconds")(self._probe)
        for plural in (JOB_PLURAL, QUEUE_PLURAL):
            kopf.on.event(GROUP, VERSION, plural, registry=registry)(self._on_event)
        return registry

    def _kopf_settings(self) -> kopf.OperatorSettings:
        timing = self._timing
        settings = kopf.OperatorSettings()
        settings.process.ultimate_exiting_timeout = None
        settings.networking.error_backoffs = timing.retries
        settings.networking.enforce_retry_after = True
        settings.networking.request_timeout = timing.request_seconds
        settings.networking.connect_timeout = timing.connect_seconds
        settings.watching.server_timeout = timing.watch_seconds
        settings.watching.client_timeout = timing.watch_seconds + timing.request_seconds
        settings.watching.inactivity_timeout = timing.inactivity_seconds
        settings.queueing.idle_timeout = IDLE_SECONDS
        settings.execution.default_backoff = timing.ready_seconds
        settings.scanning.disabled = True
        settings.posting.enabled = False
        settings.persistence.diffbase_storage = _NothingToCompare()
        return settings

    # --- handlers ---------------------------------------------------------------------------------------------------
    async def _wait_until_served(self, **_: object) -> None:
        if not self._ready():
            raise kopf.TemporaryError("our resources are not served yet", delay=self._timing.ready_seconds)

    async def _on_event(self, **_: object) -> None:
        self._wake()

    async def _probe(self, **_: object) -> float:
        return self._round_age()

    async def _login(self, **_: object) -> kopf.AiohttpSession:
        try:
            found = credentials(await connect(self._settings), lambda: self._wake())
        except SettingsError as error:
            raise kopf.TemporaryError(str(error), delay=self._timing.ready_seconds) from error
        self._sessions = [session for session in self._sessions if not session.closed]
        self._sessions.append(found.aiohttp_session)
        return found


class _NothingToCompare(kopf.AnnotationsDiffBaseStorage):  # type: ignore[misc]  # kopf tells no types
    """kopf copies every object that it sees, whole, to tell its handlers what has changed. Ours do not ask."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:
        return kopf.BodyEssence({})


def _nothing() -> None:
    """Who is to be woken after the end."""


def _not_served() -> bool:
    return False


def _no_age() -> float:
    return 0.0


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    """End kopf's own tasks, which clean up, and then one by one those that they have left behind.

    A watch takes its cancellation for a pause when its pause-waiter is cancelled with it: hence the order.
    """
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=SECONDS_TO_CLEAN_UP)
    for _ in range(ROUNDS_TO_END):
        left = _others()
        for task in sorted(left, key=lambda task: task.get_name().startswith("pause-waiter")):
            task.cancel()
            await asyncio.wait({task}, timeout=SECONDS_TO_END)
        if not left:
            return
    log.warning("kopf left tasks behind", tasks=[task.get_name() for task in _others()])


def _others() -> set[asyncio.Task[Any]]:
    """All tasks of this loop but the one that asks."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


def credentials(connection: ApiConnection, listed: Callable[[], None] = _nothing) -> kopf.AiohttpSession:
    """Our credentials as a session, which kopf closes; they expire, so that kopf asks for rotated ones.

    Must be called where an event loop runs. Of our resources the session lists none and watches the metadata; `listed`
    is called after every list.
    """

    async def ask(request: ClientRequest, handle: ClientHandlerType) -> ClientResponse:
        request.server_hostname = connection.tls_server_name
        if request.url.path not in RESOURCES:
            return await handle(request)
        if "watch" in request.url.query:
            request.headers["Accept"] = METADATA
            return await handle(request)
        request.url = request.url.update_query(fieldSelector=NONE)
        answer = await handle(request)
        if answer.ok:
            listed()
        return answer

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=connection.ssl_context()),
        headers={"Authorization": connection.authorization} if connection.authorization else None,
        proxy=connection.proxy,
        middlewares=(ask,),
    )
    expiration = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=CREDENTIALS_SECONDS)
    return kopf.AiohttpSession(server=connection.server, aiohttp_session=session, expiration=expiration)
