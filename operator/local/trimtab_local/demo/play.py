"""The run: jobs arrive, the controller decides, and we watch with the same eyes as the controller until all is over."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

from trimtab.controller.cluster import Cluster
from trimtab.controller.leadership import Lease
from trimtab.errors import NotFound, TrimtabError
from trimtab.kube.client import KubeClient
from trimtab.kube.metrics_hooks import Silent
from trimtab.kube.resources import LEASES
from trimtab.names import LEASE_NAME, SYSTEM_NAMESPACE
from trimtab.observe.snapshot import ClusterObserver
from trimtab.settings import KubeSettings, ReflectorSettings, TopologySettings
from trimtab_local.demo.history import History
from trimtab_local.demo.script import Arrival
from trimtab_local.demo.stage import Stage

LEAD_SECONDS = 30.0
RUN_SECONDS = 180.0
"""A run that is not over by then has a fault."""
FRAME_SECONDS = 0.1
CHECK_SECONDS = 1.0


class Screen(Protocol):
    """Shows the run as it goes."""

    def show(self, history: History) -> None:
        """Show this moment."""


async def await_leader(stage: Stage) -> None:
    """Wait until the controller leads. Raises TrimtabError when it does not get to."""
    deadline = time.monotonic() + LEAD_SECONDS
    async with await KubeClient.connect(KubeSettings(kubeconfig=stage.cluster.kubeconfig)) as client:
        while not await _led(client):
            stage.check()
            if time.monotonic() > deadline:
                raise TrimtabError(f"the controller did not lead after {LEAD_SECONDS:g} s; see {stage.controller_log}")
            await asyncio.sleep(FRAME_SECONDS)


async def play(stage: Stage, arrivals: Sequence[Arrival], screen: Screen) -> History:
    """Let the jobs arrive and watch until each has ended, or can never start.

    Raises TrimtabError when that takes unreasonably long, or when something that should run does not.
    """
    async with await KubeClient.connect(KubeSettings(kubeconfig=stage.cluster.kubeconfig)) as client:
        run = _Run(stage, arrivals, screen, client)
        try:
            async with asyncio.TaskGroup() as tasks:
                reflecting = tasks.create_task(run.cluster.run())
                tasks.create_task(run.arrive())
                await run.watch()
                reflecting.cancel()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return run.history


class _Run:
    """One run: jobs arrive on one side, and are watched on the other."""

    def __init__(self, stage: Stage, arrivals: Sequence[Arrival], screen: Screen, client: KubeClient) -> None:
        self.history = History()
        self._changed = asyncio.Event()
        self.cluster = Cluster(client, ReflectorSettings(), self._changed.set, Silent())
        self._stage = stage
        self._arrivals = arrivals
        self._expected = {arrival.job() for arrival in arrivals} - {""}
        self._screen = screen
        self._observer = ClusterObserver(TopologySettings().levels)
        self._noted = asyncio.Event()

    async def arrive(self) -> None:
        """Apply one manifest after the other, as `kubectl apply -f` does."""
        for arrival in self._arrivals:
            await asyncio.sleep(arrival.pause)
            manifest = msgspec.json.encode(arrival.manifest()).decode()
            await asyncio.to_thread(self._stage.cluster.kubectl, "apply", "-f", "-", stdin=manifest)
            while not self._decided(arrival.job()):
                self._noted.clear()
                await self._noted.wait()

    async def watch(self) -> None:
        """Look at every change until all is over."""
        began = checked = time.monotonic()
        while not self._over():
            self._look()
            now = time.monotonic()
            if now - checked > CHECK_SECONDS:
                checked = now
                self._stage.check()
            if now - began > RUN_SECONDS:
                left = self._expected - {name for name, trail in self.history.trails.items() if trail.over}
                names = ", ".join(sorted(left))
                raise TrimtabError(f"not ended after {RUN_SECONDS:g} s: {names}; see {self._stage.controller_log}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), FRAME_SECONDS)
            self._changed.clear()

    def _look(self) -> None:
        observation = self._observer.observe(self.cluster.caches(), time.time())
        self.history.note(observation, time.time())
        self._screen.show(self.history)
        self._noted.set()

    def _over(self) -> bool:
        trails = self.history.trails
        return self._expected <= trails.keys() and all(trail.over for trail in trails.values())

    def _decided(self, job: str) -> bool:
        trail = self.history.trails.get(job)
        return not job or (trail is not None and trail.decided)


async def _led(client: KubeClient) -> bool:
    try:
        raw = await client.get(LEASES.path(SYSTEM_NAMESPACE, LEASE_NAME))
    except NotFound:
        return False
    return bool(msgspec.json.decode(raw, type=Lease).spec.holder_identity)
