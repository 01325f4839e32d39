"""What time it is in the cluster: as the API server says, carried on by a clock that never jumps.

Times in objects are compared with our own all the time: when a deleted pod should have ended, by when a gang is to have
saved its state (which a controller before us may have written), when a job may be tried again. The wall clock of this
machine may be minutes off, and may be set while we run. Every answer of the API server has a `Date` (RFC 9110, 6.6.1),
in whole seconds and from some moment between question and answer. That bounds how far our monotonic clock is from its
time; the estimate is moved into these bounds where it lies outside, and not at all where it does not. Of many answers
the bounds soon leave a few milliseconds, in whichever direction this machine is wrong; a machine whose clock is right
to the second goes by its own.

Several API servers whose clocks differ by more than a second pull it to and fro by that much, as they do the times in
objects.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import lru_cache

DATE_SECONDS = 1.0
"""A `Date` is cut to whole seconds: it was up to so much later."""


class ClusterClock:
    """POSIX time as the API server has it; until the first answer, as this machine has it."""

    def __init__(self, wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._clock = clock
        self._offset = wall() - clock()
        """Of the cluster's time from the monotonic clock."""

    def now(self) -> float:
        """POSIX seconds."""
        return self._clock() + self._offset

    def ahead(self) -> float:
        """Seconds by which the wall clock of this machine is ahead of the cluster's."""
        return self._wall() - self.now()

    def hear(self, date: str | None, asked: float) -> None:
        """Take note of the `Date` of an answer that has just begun to arrive; `asked` at this monotonic time.

        What is no such date says nothing.
        """
        said = _posix(date) if date else None
        if said is None:
            return
        earliest, latest = said - self._clock(), said + DATE_SECONDS - asked
        self._offset = min(max(self._offset, earliest), latest)


@lru_cache(maxsize=8)
def _posix(date: str) -> float | None:
    """Seconds of an HTTP date, e.g. `Sun, 22 Nov 2026 11:36:30 GMT`; many answers of one second have the same."""
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None
