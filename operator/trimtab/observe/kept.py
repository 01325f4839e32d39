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
from collections.abc import Callable, Mapping, Set
from itertools import compress
from operator import is_, is_not
from typing import Any, Generic, TypeVar

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


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> Set[str]:
    """Keys of things that are new or gone, or other objects than before."""
    if before is now:
        return frozenset()
    others = compress(now, map(is_not, map(before.get, now), now.values()))
    return {*others, *(before.keys() - now.keys())}


class _Changes:
    """Which things have changed from one look to the next: of the same two looks, half a dozen steps ask it."""

    def __init__(self) -> None:
        self._last: tuple[Mapping[str, Any], Mapping[str, Any], dict[str, Any], Set[str]] = {}, {}, {}, frozenset()

    def between(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[dict[str, Any], Set[str]]:
        """Those that are new, or are other objects than before; and the keys of those that are gone."""
        known = self._last  # other threads may look as well: then each works out its own
        if known[0] is not before or known[1] is not now:
            others = changed(before, now)
            news = {key: thing for key, thing in now.items() if key in others} if others else {}
            known = self._last = before, now, news, others - now.keys()
        return known[2], known[3]


_changes = _Changes()


class Each(Generic[T]):
    """What each of many things says, by their keys: of a thing that is the very same as the last time nobody asks."""

    def __init__(self) -> None:
        self._things: Mapping[str, Any] = {}
        self._parts: tuple[object, ...] = ()
        self._said: dict[str, T] = {}

    def of(self, things: Mapping[str, Any], ask: Callable[[Any], T | None], *parts: object) -> dict[str, T]:
        """Key -> the answer of each thing that has one, in the order of the things. `parts` is what answers depend on
        besides. The very same result as the last time where no answer is another one."""
        same = len(parts) == len(self._parts) and all(map(is_, parts, self._parts))
        if same and things is self._things:
            return self._said
        known = self._said if same else {}
        others, left = _changes.between(self._things, things) if same else (things, frozenset())
        news = {key: ask(thing) for key, thing in others.items()}
        gone = known.keys() & left
        if not same or gone or not all(known.get(key) is said for key, said in news.items()):
            answers = known | news
            self._said = {key: said for key in things if (said := answers.get(key)) is not None}
        self._things, self._parts = things, parts  # last: where somebody fails to answer, all is as before
        return self._said
