"""Copies of kinds that the API server may serve or not: followed while it does, forgotten when it does so no longer.

Clusters are upgraded, and what others install may come and go, while the controller runs. Whether the kinds are served
is asked now and then, and soon when their objects cannot be read any more. Nothing counts before all of them have been
listed once, nor once they are gone: what is remembered of a kind that nobody keeps any more is true of nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import structlog

from trimtab.kube.client import KubeClient
from trimtab.kube.discovery import serves
from trimtab.kube.reflector import Reflector

ASK_SECONDS = 30.0
"""Between two questions whether the kinds are served."""
DOUBT_SECONDS = 1.0
"""The same while their objects cannot be read."""
SURE_TIMES = 3
"""A server that says so often in a row that it serves them no longer is believed: while a cluster is being upgraded,
one of its API servers may know a kind that another one does not."""

log = structlog.get_logger(__name__)

Presence = Literal["Unknown", "Absent", "Present"]


class ServedKinds:
    """Kinds of one API version. `what` is their name in the log; `on_change` is called when they come or go.

    `beside` are followed as long as these, whether they are of that version or not.
    """

    def __init__(
        self,
        client: KubeClient,
        what: str,
        on_change: Callable[[], None],
        *reflectors: Reflector[Any],
        beside: Sequence[Reflector[Any]] = (),
    ) -> None:
        self._client = client
        self._what = what
        self._told = on_change
        self._kinds = tuple(reflector.resource for reflector in reflectors)
        self._reflectors = (*reflectors, *beside)
        self.presence: Presence = "Unknown"
        """Present once all objects have been listed."""
        self.known = asyncio.Event()
        """Set once it is no longer unknown."""

    @property
    def listed(self) -> bool:
        """Whether all objects have been listed since the kinds are served."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    @property
    def trouble(self) -> str:
        """Why the copy may be out of date right now; empty when all is well."""
        return next((each.trouble for each in self._reflectors if each.trouble), "")

    async def run(self) -> None:
        """Follow them until cancelled."""
        while True:
            if await self._serves():
                async with asyncio.TaskGroup() as tasks:
                    following = [tasks.create_task(each.run()) for each in self._reflectors]
                    await self._while_served()
                    for task in following:
                        task.cancel()
            self._set("Absent")
            for reflector in self._reflectors:
                reflector.forget()
            await asyncio.sleep(ASK_SECONDS)

    async def _serves(self) -> bool | None:
        return await serves(self._client, *self._kinds)

    async def _while_served(self) -> None:
        """Say when everything has been listed; return when the kinds are gone."""
        patience = DOUBT_SECONDS
        while True:
            if await self._synced(patience):
                self._set("Present")
                await self._quiet()
                patience = DOUBT_SECONDS
            else:
                patience = min(2 * patience, ASK_SECONDS)
            if await self._gone():
                return

    async def _gone(self) -> bool:
        for _ in range(SURE_TIMES):
            if await self._serves() is not False:  # None: nobody says so
                return False
            await asyncio.sleep(DOUBT_SECONDS)
        return True

    async def _synced(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for reflector in self._reflectors:
                    await reflector.synced.wait()
                return True
        return False

    async def _quiet(self) -> None:
        """Return after a while, or when something cannot be read."""
        for _ in range(max(1, int(ASK_SECONDS / DOUBT_SECONDS))):
            await asyncio.sleep(DOUBT_SECONDS)
            if self.trouble:
                return

    def _set(self, presence: Presence) -> None:
        if presence == self.presence:
            return
        log.info("kinds that may be served", what=self._what, was=self.presence, now=presence)
        self.presence = presence
        self.known.set()
        self._told()
