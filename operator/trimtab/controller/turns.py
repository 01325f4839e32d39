"""Who writes next when more writes wait than may be in flight: what completes a gang goes before what begins one.

Without an order all gangs would creep forward together, every one of them half there until the last moment. With it
they are bound one after the other, each within the time that its own bindings take.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum


class Urgency(IntEnum):
    """Lower goes first."""

    COMPLETE = 0
    """Bindings of a gang whose pods exist, deletions, which free GPUs, and words to gangs whose time is running."""
    REPORT = 1
    """Statuses; a plan in a status holds its GPUs."""
    BEGIN = 2
    """Objects of a gang of which nothing runs yet."""


class Turns:
    """A semaphore that lets the most urgent in first, and among equals who came first."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: list[tuple[Urgency, int, asyncio.Future[None]]] = []
        self._arrival = itertools.count()

    @asynccontextmanager
    async def turn(self, urgency: Urgency) -> AsyncIterator[None]:
        """Wait for a turn, hold it for the length of a `with` block."""
        await self._enter(urgency)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, urgency: Urgency) -> None:
        if self._free:  # then nobody waits
            self._free -= 1
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (urgency, next(self._arrival), waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # the turn had been given to us
                self._leave()
            raise

    def _leave(self) -> None:
        while self._waiting:
            *_, waiter = heapq.heappop(self._waiting)
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1
