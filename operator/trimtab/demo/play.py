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
from trimtab.demo.history import History
from trimtab.demo.script import Arrival
from trimtab.demo.stage import Stage
from trimtab.errors import NotFound, TrimtabError
from trimtab.kube.client import KubeClient
from trimtab.kube.observer import Silent
from trimtab.kube.resources import LEASES
from trimtab.names import LEASE_NAME, SYSTEM_NAMESPACE
from trimtab.observe.snapshot import Observation, Observer
from trimtab.settings import KubeSettings, ReflectorSettings, TopologySettings

LEAD_SECONDS = 30.0
RUN_SECONDS = 180.0
"""A run that is not over by then has a fault."""
FRAME_SECONDS = 0.1
CHECK_SECONDS = 1.0


class Screen(Protocol):
    """Shows the run as it goes."""

    def show(self, observation: Observation, history: History) -> None:
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

    Raises TrimtabError when that takes unreasonably long or something that should run does not.
    """
    async with await KubeClient.connect(KubeSettings(kubeconfig=stage.cluster.kubeconfig)) as client:
        changed = asyncio.Event()
        cluster = Cluster(client, ReflectorSettings(), changed.set, Silent())
        watching = asyncio.create_task(cluster.run())
        arriving = asyncio.create_task(_arrive(stage, arrivals))
        try:
            async with asyncio.timeout(LEAD_SECONDS):
                await cluster.synced()
            expected = {arrival.job() for arrival in arrivals} - {""}
            return await _watch(stage, cluster, changed, expected, arriving, screen)
        finally:
            for task in (watching, arriving):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


async def _watch(
    stage: Stage,
    cluster: Cluster,
    changed: asyncio.Event,
    expected: set[str],
    arriving: asyncio.Task[None],
    screen: Screen,
) -> History:
    history, observer = History(), Observer(TopologySettings().levels)
    began = checked = time.monotonic()
    while True:
        observation = observer.observe(cluster.caches(), time.time())
        history.note(observation, time.time())
        screen.show(observation, history)
        if arriving.done():
            arriving.result()
            if expected <= history.trails.keys() and all(trail.over for trail in history.trails.values()):
                return history
        now = time.monotonic()
        if now - checked > CHECK_SECONDS:
            checked = now
            stage.check()
        if now - began > RUN_SECONDS:
            left = ", ".join(name for name, trail in history.trails.items() if not trail.over)
            raise TrimtabError(f"after {RUN_SECONDS:g} s these jobs have not ended: {left}; see {stage.controller_log}")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), FRAME_SECONDS)
        changed.clear()


async def _arrive(stage: Stage, arrivals: Sequence[Arrival]) -> None:
    """Apply each manifest at its time, as `kubectl apply -f` does."""
    began = time.monotonic()
    for arrival in arrivals:
        await asyncio.sleep(max(0.0, began + arrival.seconds - time.monotonic()))
        manifest = msgspec.json.encode(arrival.manifest()).decode()
        await asyncio.to_thread(stage.cluster.kubectl, "apply", "-f", "-", stdin=manifest)


async def _led(client: KubeClient) -> bool:
    try:
        raw = await client.get(LEASES.path(SYSTEM_NAMESPACE, LEASE_NAME))
    except NotFound:
        return False
    return bool(msgspec.json.decode(raw, type=Lease).spec.holder_identity)
