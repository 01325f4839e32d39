"""A copy of Kueue's Workloads and ResourceFlavors, for as long as Kueue is installed.

Kueue may come and go while the controller runs. Whether it is there is asked now and then, and soon when its objects
cannot be read any more; while it is not, nothing of what was known of it counts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Literal

import structlog

from trimtab.controller.discovery import serves_kueue
from trimtab.kube.client import KubeClient
from trimtab.kube.metrics_hooks import FactsObserver
from trimtab.kube.objects import FlavorObject, Identity, WorkloadObject
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import RESOURCE_FLAVORS, WORKLOADS
from trimtab.settings import ReflectorSettings

ASK_SECONDS = 30.0
"""Between two questions whether Kueue is installed."""
DOUBT_SECONDS = 1.0
"""The same while its objects cannot be read."""

log = structlog.get_logger(__name__)

Presence = Literal["Unknown", "Absent", "Present"]


class KueueCaches:
    """What is known of Kueue. `on_change` is called for every change."""

    def __init__(
        self, client: KubeClient, settings: ReflectorSettings, on_change: Callable[[], None], observer: FactsObserver
    ) -> None:
        self._client = client
        self._on_change = on_change
        self._names: dict[Identity, str] = {}
        self.presence: Presence = "Unknown"
        """Present once all its objects have been listed."""
        self.known = asyncio.Event()
        """Set once it is no longer unknown."""
        self.workloads: Reflector[WorkloadObject] = Reflector(
            client, WORKLOADS, WorkloadObject, settings, on_change=self._workload_changed, observer=observer
        )
        self.flavors: Reflector[FlavorObject] = Reflector(
            client, RESOURCE_FLAVORS, FlavorObject, settings, on_change=lambda old, new: on_change(), observer=observer
        )

    def workload_of(self, job: Identity) -> WorkloadObject | None:
        """The Workload that the job controls, if there is one."""
        name = self._names.get(job)
        return self.workloads.items.get(name) if name else None

    @property
    def owners(self) -> tuple[str, ...]:
        """UIDs of all who control a Workload."""
        return tuple(job.uid for job in self._names)

    async def run(self) -> None:
        """Follow Kueue until cancelled."""
        while True:
            if not await serves_kueue(self._client):
                self._set("Absent")
                await asyncio.sleep(ASK_SECONDS)
                continue
            for reflector in (self.workloads, self.flavors):
                reflector.synced.clear()  # of an earlier installation
            async with asyncio.TaskGroup() as tasks:
                following = [tasks.create_task(each.run()) for each in (self.workloads, self.flavors)]
                await self._while_served()
                for task in following:
                    task.cancel()

    async def _while_served(self) -> None:
        """Say when everything has been listed; return when Kueue is gone."""
        while True:
            if await self._synced():
                self._set("Present")
                await self._quiet()
            if not await serves_kueue(self._client):
                return

    async def _synced(self) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DOUBT_SECONDS):
                await self.workloads.synced.wait()
                await self.flavors.synced.wait()
                return True
        return False

    async def _quiet(self) -> None:
        """Return after a while, or when something cannot be read."""
        for _ in range(int(ASK_SECONDS / DOUBT_SECONDS)):
            await asyncio.sleep(DOUBT_SECONDS)
            if self.trouble:
                return

    @property
    def trouble(self) -> str:
        """Why the copy may be out of date right now; empty when all is well."""
        return self.workloads.trouble or self.flavors.trouble

    def _set(self, presence: Presence) -> None:
        if presence == self.presence:
            return
        log.info("Kueue", was=self.presence, now=presence)
        self.presence = presence
        self.known.set()
        self._on_change()

    def _workload_changed(self, old: WorkloadObject | None, new: WorkloadObject | None) -> None:
        if old and (job := old.metadata.job):
            self._names.pop(job, None)
        if new and (job := new.metadata.job):
            self._names[job] = new.metadata.key
        self._on_change()


async def settled(caches: KueueCaches, seconds: float) -> None:
    """Wait until it is known whether Kueue is there, but only a while."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(caches.known.wait(), seconds)
