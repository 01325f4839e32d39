"""What a look has made, kept for the next one: a look costs what has changed since.

Rounds ask the same questions again and again, and of almost everything the answer is that of the last time. So each
step of a look says what it makes something of, and makes it anew only where one of these is another object than before.
This goes from step to step: with a job that arrives the jobs are others, but not the claims of those that run, and so
it is no reason to count GPUs again.

Two rules follow. Nothing that is kept, or that something is made of, is ever changed in place. And what depends on the
time as well has to say until when it holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import is_
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """The last result of one step. `until` says of a result at which time (POSIX seconds) it is to be made anew though
    nothing else has changed."""

    def __init__(self, until: Callable[[T], float] = lambda _: math.inf) -> None:
        self._until = until
        self._made: tuple[tuple[object, ...], float, float, T] | None = None
        """Of what, when, for how long, and the result itself."""

    def of(self, parts: tuple[object, ...], make: Callable[[], T], now: float = 0.0) -> T:
        """The very same result as the last time, where that was made of the very same parts and its time has not come;
        else what `make` returns. A clock that was set back makes it anew, too."""
        known = self._made
        if known and known[1] <= now < known[2] and len(known[0]) == len(parts) and all(map(is_, known[0], parts)):
            return known[3]
        made = make()
        self._made = parts, now, self._until(made), made
        return made


class Same(Generic[T]):
    """Makes one object of equal ones, so that what is made anew and has come out as before changes nothing."""

    def __init__(self) -> None:
        self._last: list[T] = []

    def of(self, value: T) -> T:
        """The earlier one where they are equal."""
        if not self._last or self._last[0] != value:
            self._last = [value]
        return self._last[0]
