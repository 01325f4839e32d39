"""What the console knows at a moment, and what it answers: looks once a second at most, and nothing where nobody reads.

The event loop only hands over: looks, answers and frames are made in one thread, an answer once for each audience and
moment. An interpreter changes threads a thousand times a second then, so that requests are not kept waiting for those.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from trimtab.commands import learned
from trimtab.commands.cluster_watch import ClusterWatch
from trimtab.commands.live import deciders
from trimtab.commands.reach import EVERYWHERE, Reach
from trimtab.doctor.collect import OURS
from trimtab.doctor.inventory import Pod
from trimtab.errors import TrimtabError
from trimtab.kube.client import KubeClient
from trimtab.kube.listing import list_all
from trimtab.kube.resources import JOBS, NODES, PODS, QUEUES
from trimtab.kube.reviews import TooMany
from trimtab.observe.snapshot import Observation
from trimtab.settings import Settings
from trimtab.web import views
from trimtab.web.audience import EVERYTHING, Audience, Denied, denied
from trimtab.web.channels import IDLE_SECONDS, Channel
from trimtab.web.columns import Layout, Waits
from trimtab.web.deltas import Columns
from trimtab.web.garbage import Collector, calm, let_go
from trimtab_policy.perf.hierarchy import Learned

LOOK_SECONDS = 1.0
FORECAST_SECONDS = 10.0
ASK_SECONDS = 30.0
"""Between two questions who decides, and what jobs have taught."""
ANSWERS = 256
"""That are kept of one moment."""
ANSWER_BYTES = 32 << 20
"""Of all that are kept: which ones there are is up to visitors."""
ASKED_AT_ONCE = 8
"""Answers that are worked out for one visitor: it is one after the other, for all."""
OUT_OF_DATE = "what is shown may be out of date"

log = structlog.get_logger(__name__)
T = TypeVar("T")


class Moment(Struct, frozen=True):
    """All that is known at a moment."""

    number: int
    seen: Observation
    waits: Waits
    runs: views.Runs
    known: Learned
    deciders: views.Deciders
    columns: Columns
    jobs: list[str]
    """`namespace/name` of all that are seen."""
    namespaces: frozenset[str]
    """That have jobs or pods."""
    reach: Reach = EVERYWHERE
    """How much of the cluster is seen."""

    def denied(self, audience: Audience) -> Denied:
        """What an audience must not be told."""
        return denied(audience, self.jobs, self.namespaces)


class NotReady(TrimtabError):
    """The first look is not complete."""


class Console:
    """Looks at the cluster for as long as `run` does."""

    def __init__(self, client: KubeClient, settings: Settings, reach: Reach = EVERYWHERE) -> None:
        self.settings = settings
        self.reach = reach
        self.moment: Moment | None = None
        self._client = client
        self._changed = asyncio.Event()
        self._watch = ClusterWatch(client, settings, self._changed.set, reach=reach)
        self._layout = Layout(self._watch.job_of_pod)
        self._channels: dict[Audience, Channel] = {}
        self._threads = ThreadPoolExecutor(1, "look")
        self._collector = Collector()
        self._over: list[Any] = []
        """Moments and columns that nobody needs any more."""
        self._answers: dict[tuple[Any, ...], asyncio.Future[bytes]] = {}
        self._kept = 0
        """Bytes of `_answers`."""
        self._turn = asyncio.Lock()
        self._waiting = Counter[str]()
        """Answers that are being worked out, by who asked first."""
        self._runs: tuple[views.Runs, dict[str, str]] = ({}, {})
        self._forecast = 0.0
        self._known, self._deciders = Learned(), views.Deciders()
        self._failed = ""
        """Why the last look is an old one."""
        self._asked = ""
        """Why who decides is not known."""

    @property
    def trouble(self) -> str:
        """Why what is shown may be old; empty when all is well."""
        return self._watch.trouble or self._failed or self._asked

    def trouble_for(self, audience: Audience) -> str:
        """The same in words that any visitor may read."""
        return self.trouble if audience == EVERYTHING or not self.trouble else OUT_OF_DATE

    @property
    def audience(self) -> Audience:
        """What the process itself may see."""
        nodes, queues = self.reach.whole(NODES), self.reach.whole(QUEUES)
        return Audience(self.reach.namespaces, nodes, queues)

    @property
    def server(self) -> str:
        """Address of the API server."""
        return self._client.server

    @property
    def namespaces(self) -> frozenset[str]:
        """That have jobs."""
        return frozenset(key.partition("/")[0] for key in self.moment.jobs) if self.moment else frozenset()

    def ready(self) -> Moment:
        """The last look. Raises NotReady."""
        if self.moment is None:
            raise NotReady(self._watch.trouble or "the first look is not complete: try again in a moment")
        return self.moment

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch.run(), name="watch")
                tasks.create_task(self._ask(), name="who decides")
                await self._watch.synced()
                calm()
                trouble = ""
                while True:
                    self._changed.clear()
                    began = time.monotonic()
                    await self._look()
                    if self.trouble != trouble:
                        trouble = self.trouble
                        self.wake()
                    await asyncio.sleep(max(0.0, LOOK_SECONDS - (time.monotonic() - began)))
                    with contextlib.suppress(TimeoutError):  # time alone moves progress and starts
                        await asyncio.wait_for(self._changed.wait(), FORECAST_SECONDS)
        finally:
            self.close()

    async def thread(self, work: Callable[[], T]) -> T:
        """Have it done where looks are made, behind those that wait."""

        over, self._over = self._over, []

        def aside() -> T:
            with self._collector.aside():
                let_go(over)
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._threads, aside)

    async def answer(self, key: tuple[Any, ...], work: Callable[[Moment], bytes], visitor: str) -> bytes:
        """What is made of this moment, once for each key. Raises TooMany where a visitor waits for many already."""
        moment = self.ready()
        whole = (moment.number, *key)
        found = self._answers.get(whole)
        if found is None:
            if len(self._answers) >= ANSWERS or self._kept > ANSWER_BYTES:
                self._forget()
            if self._waiting[visitor] >= ASKED_AT_ONCE:
                raise TooMany(f"{ASKED_AT_ONCE} of your questions are being worked out: wait for their answers")
            found = self._answers[whole] = asyncio.ensure_future(self._worked_out(work, moment, visitor))
        return await asyncio.shield(found)

    async def _worked_out(self, work: Callable[[Moment], bytes], moment: Moment, visitor: str) -> bytes:
        self._waiting[visitor] += 1
        try:
            async with self._turn:  # a look waits for one answer at most, and never for all that are asked for
                made = await self.thread(lambda: work(moment))
        finally:
            self._waiting[visitor] -= 1
            self._waiting += Counter()  # without those that wait for none
        self._kept += len(made)
        return made

    def _forget(self) -> None:
        self._answers, self._kept = {}, 0

    async def channel(self, audience: Audience) -> Channel:
        """That of an audience."""
        moment, found = self.ready(), self._channels.get(audience)
        if found is None:
            found = self._channels[audience] = Channel(audience)
            frame = await self.thread(
                lambda: found.feed(moment.columns, moment.denied(audience), moment.seen.snapshot.time)
            )
            found.publish(frame or b"")
        await found.ready.wait()
        return found

    async def _look(self) -> None:
        look, late = self._watch.prepared(), time.monotonic() - self._forecast > FORECAST_SECONDS
        old = time.monotonic() - IDLE_SECONDS
        self._channels = {who: each for who, each in self._channels.items() if each.read > old}
        channels = self._read_channels()
        try:
            moment, frames = await self.thread(lambda: self._made(*look(), channels, forecast=late))
        except Exception as error:
            log.error("the cluster could not be looked at: this is a bug, please report it", exc_info=error)
            self._failed = f"the last look failed: {type(error).__name__}"
            return
        self._failed = ""
        if late:
            self._forecast = time.monotonic()
        self.publish(moment, frames)

    def publish(self, moment: Moment, frames: Iterable[tuple[Channel, bytes]]) -> None:
        """Answer by this moment from now on, and let viewers have the frames that tell of it."""
        self._forget()
        self._over.append(self.moment)
        self.moment = moment
        for channel, frame in frames:
            self._over += channel.publish(frame)

    def fed(self, moment: Moment, channels: Iterable[Channel] | None = None) -> Iterator[tuple[Channel, bytes]]:
        """Channels for which something is new at a moment, and the frames that tell of it."""
        for channel in self._read_channels() if channels is None else channels:
            frame = channel.feed(moment.columns, moment.denied(channel.audience), moment.seen.snapshot.time)
            if frame is not None:
                yield channel, frame

    def _read_channels(self) -> list[Channel]:
        return [each for each in self._channels.values() if each.number]

    def wake(self) -> None:
        """Have all who wait for frames look again."""
        for channel in self._channels.values():
            channel.wake()

    def close(self) -> None:
        """End the thread."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _made(
        self, seen: Observation, namespaces: frozenset[str], channels: list[Channel], *, forecast: bool
    ) -> tuple[Moment, list[tuple[Channel, bytes]]]:
        """In the thread."""
        if forecast:
            queues = self.settings.queues
            self._runs = views.expected_runs(seen, queues.reservations, queues.starvation_seconds)
        runs, kept = self._runs
        waits = views.waits_of(seen, kept)
        if not self.reach.whole(JOBS):
            waits = replace(waits, places={})  # among jobs of others that are not seen, nobody's place is known
        columns = self._layout.columns(seen, waits)
        jobs = [facts.meta.key for facts in seen.jobs.values()]
        number = self.moment.number + 1 if self.moment else 1
        moment = Moment(
            number, seen, waits, runs, self._known, self._deciders, columns, jobs, namespaces, self.reach
        )  # fmt: skip
        return moment, list(self.fed(moment, channels))

    async def _ask(self) -> None:
        """Find out now and then who decides, what jobs have taught, and who binds."""
        own, kube = self.settings, self.settings.kube
        while True:
            try:
                policy, chosen = await deciders(kube, own.policy, own.monitor)
                self._deciders = views.Deciders(policy, chosen)
                self._known = await learned.learned(kube, own.reports)
                if self.reach.whole(PODS):
                    own_pods = await list_all(self._client, PODS, Pod, [], params={"labelSelector": OURS})
                    self._watch.controllers(own_pods)
                self._asked = ""
            except (TrimtabError, msgspec.MsgspecError) as error:
                self._asked = f"who decides is not known: {error}"
            self._changed.set()
            await asyncio.sleep(ASK_SECONDS)
