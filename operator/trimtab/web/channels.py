"""What viewers are sent: one channel for each audience, whose frames are encoded once, however many read them.

A frame is a line of JSON. A channel keeps the last ones: who comes back with the number of the last frame that they
have goes on from there, and who has none of those that are kept gets a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from trimtab.web.audience import Audience, Denied, columns_for
from trimtab.web.deltas import Columns, diff

KEPT = 30
"""Frames of a channel."""
PING_SECONDS = 15.0
IDLE_SECONDS = 60.0
"""After which a channel that nobody reads is forgotten."""

_ENCODER = msgspec.json.Encoder()
SENTENCES = ("job.progress", "job.end", "job.low", "job.start", "job.high")
"""Columns that move by themselves: no answer has become another one because of them."""
Elsewhere = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Has work done in another thread."""


class Channel:
    """The frames of one audience. Made and fed in the thread that looks; read in the event loop."""

    def __init__(self, audience: Audience) -> None:
        self.audience = audience
        self.columns: Columns = {}
        """Of the frame that was published last."""
        self._next: Columns = {}
        self.number = 0
        self.read = time.monotonic()
        """When somebody last did."""
        self.ready = asyncio.Event()
        """Set once there is something to read."""
        self._epoch = secrets.token_hex(4)
        self._frames: deque[bytes] = deque(maxlen=KEPT)
        """The last deltas: the newest is the one that led to `number`."""
        self._snapshot: asyncio.Future[bytes] | None = None
        """What somebody is sent who has nothing: encoded once for each number, when it is first asked for."""
        self._time = self._next_time = 0.0
        self._event = asyncio.Event()

    def feed(self, every: Columns, names: Denied, moment: float) -> bytes | None:
        """Take the columns of another moment; the frame that tells of them (empty: the first), None where nothing has
        changed. What it tells counts once it is published."""
        columns = columns_for(self.audience, every, names)
        delta = diff(self.columns, columns)
        was, first = self._id(self.number), not self.columns
        if not delta and not first:
            return None
        self._next, self._next_time = columns, moment
        frame = _ENCODER.encode(
            {
                "event": "delta",
                "id": self._id(self.number + 1),
                "from": was,
                "time": moment,
                "columns": delta,
                "changed": changed(delta),
            }
        )
        return b"" if first else frame + b"\n"

    def publish(self, frame: bytes) -> list[Columns]:
        """Let viewers have it (event loop). What is returned nobody needs any more: it is to be freed elsewhere."""
        over = [self.columns]
        self.number, self.columns, self._time = self.number + 1, self._next, self._next_time
        if frame:
            self._frames.append(frame)
        else:
            self._frames.clear()
        self._snapshot = None
        self.wake()
        self.ready.set()
        return over

    def snapshot(self) -> bytes:
        """All of it, as a line."""
        return _snapshot(self.id, self._time, self.columns)

    def _id(self, number: int) -> str:
        return f"{self._epoch}.{number}"

    def _since(self, since: str) -> int | None:
        """The number that somebody has, if it can be gone on from."""
        epoch, _, text = since.partition(".")
        if epoch != self._epoch or not text.isascii() or not text.isdigit() or len(text) > 15:
            return None
        number = int(text)
        return number if self.number - len(self._frames) <= number <= self.number else None

    async def behind(self, since: str, elsewhere: Elsewhere) -> tuple[str, list[bytes]]:
        """What somebody has then and what they are to be sent who has what `since` names: nothing where that is all
        there is. Who reads too slowly, or has what nobody knows any more, gets a snapshot, which is encoded
        elsewhere: of 32,000 GPUs that takes milliseconds."""
        self.read = time.monotonic()
        at, now = self._since(since), self.id
        if at is not None:
            return now, list(self._frames)[len(self._frames) - (self.number - at) :]
        if self._snapshot is None:
            encode = partial(_snapshot, now, self._time, self.columns)
            self._snapshot = asyncio.ensure_future(elsewhere(encode))
        return now, [await asyncio.shield(self._snapshot)]

    @property
    def id(self) -> str:
        """What a reader has who has read everything."""
        return self._id(self.number)

    async def news(self) -> None:
        """Wait until there is something new, or for as long as readers are left without a sign of life."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PING_SECONDS):
                await self._event.wait()

    def wake(self) -> None:
        """Have all who wait look again."""
        event, self._event = self._event, asyncio.Event()
        event.set()


ANSWERS = ("overview", "nodes", "jobs", "queues", "timeline", "policies")
"""That may say something else than before."""


def changed(delta: dict[str, Any]) -> tuple[str, ...]:
    """Which answers a change of columns concerns."""
    if any(name.startswith("job.") and name not in SENTENCES for name in delta):
        return ANSWERS
    return ("overview", "nodes") if any(name.startswith("node.") or name == "gpu.job" for name in delta) else ()


def _snapshot(number: str, moment: float, columns: Columns) -> bytes:
    told = {"event": "snapshot", "id": number, "time": moment, "columns": columns, "changed": ANSWERS}
    return _ENCODER.encode(told) + b"\n"


def ping(number: str, trouble: str) -> bytes:
    """A sign of life."""
    return _ENCODER.encode({"event": "ping", "id": number, "time": time.time(), "trouble": trouble}) + b"\n"
