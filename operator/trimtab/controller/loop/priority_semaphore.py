"""Who writes next when more writes wait than may be in flight: what completes a gang goes before what begins one.

Without an order all gangs would creep forward together, every one of them half there until the last moment. With it
they are bound one after the other, each within the time that its own bindings take. What only tells why a job waits
comes last, and never takes all places: somebody with thousands of waiting jobs has thousands of such words.

Among equals, namespaces take turns (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996, with equal weights
and writes of one size), so that nobody's many writes are in the way of somebody else's few; within a namespace, and
for what completes gangs, it is who came first.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum

PART_FOR_WORDS = 4
"""Of so many places one is for words, if there is more than one."""


class Urgency(IntEnum):
    """Lower goes first."""

    COMPLETE = 0
    """Bindings of a gang whose pods exist, deletions, which free GPUs, and words to gangs whose time is running."""
    REPORT = 1
    """Statuses of gangs; a plan in a status holds its GPUs."""
    BEGIN = 2
    """Objects of a gang of which nothing runs yet."""
    EXPLAIN = 3
    """Statuses of jobs that only wait."""


_Waiter = tuple[Urgency, int, int, asyncio.Future[None]]


class PrioritySemaphore:
    """A semaphore that lets the most urgent in first, and among equals whose namespace has had the fewest turns."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._free_for_words = max(1, limit // PART_FOR_WORDS)
        self._waiting: list[_Waiter] = []
        self._words: list[_Waiter] = []
        """Of those who wait, the ones that explain."""
        self._arrival = itertools.count()
        self._served = dict.fromkeys(Urgency, 0)
        """Number that the turn given last had among those of its namespace: who comes new begins there."""
        self._last: dict[tuple[Urgency, str], int] = {}
        """Number of the last turn that was asked for, while anybody waits."""

    @asynccontextmanager
    async def turn(self, urgency: Urgency, namespace: str) -> AsyncIterator[None]:
        """Wait for a turn, hold it for the length of a `with` block."""
        words = urgency is Urgency.EXPLAIN
        await self._enter(urgency, namespace)
        try:
            yield
        finally:
            self._leave(words=words)

    async def _enter(self, urgency: Urgency, namespace: str) -> None:
        words = urgency is Urgency.EXPLAIN
        if self._free and (not words or self._free_for_words):  # then nobody waits who could go instead
            self._take(words=words)
            return
        waiter = asyncio.get_running_loop().create_future()
        line = self._words if words else self._waiting
        heapq.heappush(line, (urgency, self._number(urgency, namespace), next(self._arrival), waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # the turn had been given to us
                self._leave(words=words)
            raise

    def _number(self, urgency: Urgency, namespace: str) -> int:
        if urgency is Urgency.COMPLETE:
            return 0
        if not self._waiting and not self._words:
            self._last.clear()
        number = max(self._served[urgency], self._last.get((urgency, namespace), 0) + 1)
        self._last[urgency, namespace] = number
        return number

    def _take(self, *, words: bool) -> None:
        self._free -= 1
        self._free_for_words -= words

    def _leave(self, *, words: bool) -> None:
        self._free += 1
        self._free_for_words += words
        while self._free:
            line = self._waiting or (self._words if self._free_for_words else [])
            if not line:
                return
            urgency, number, _, waiter = heapq.heappop(line)
            if not waiter.done():
                self._served[urgency] = max(self._served[urgency], number)
                self._take(words=urgency is Urgency.EXPLAIN)
                waiter.set_result(None)
