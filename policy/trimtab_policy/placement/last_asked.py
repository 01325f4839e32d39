"""What was worked out of the objects that were asked about last, told apart by identity, or by likeness.

One decision asks the same of one snapshot in half a dozen places, which do not know of each other.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

About = TypeVar("About")
Found = TypeVar("Found")


class LastAsked(Generic[About, Found]):
    """Keeps the last results of a function of one object, and these objects, so that no other one has their identity.
    From any thread."""

    def __init__(self, make: Callable[[About], Found], kept: int) -> None:
        """`make` is called with a lock held: it leaves what takes long to be worked out when it is asked for."""
        self._make, self._most = make, kept
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[About, Found]] = OrderedDict()

    def of(self, about: About) -> Found:
        """What was made of this very object."""
        with self._lock:
            if id(about) not in self._kept:
                self._kept[id(about)] = about, self._make(about)
            self._kept.move_to_end(id(about))
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return self._kept[id(about)][1]


class LastAlike(Generic[About, Found]):
    """Keeps the last results of a function, so that of things that are alike there is the very same one. From any
    thread: two that ask at once may each get their own."""

    def __init__(
        self, alike: Callable[[About, About], bool], make: Callable[[About, Found | None], Found], kept: int
    ) -> None:
        """`make` is given the latest result, too, of which it may take what is still true."""
        self._alike, self._make, self._most = alike, make, kept
        self._kept: tuple[tuple[About, Found], ...] = ()
        """The latest first."""

    def of(self, about: About) -> Found:
        """What was made of this, or of one that is like it."""
        kept = self._kept
        found = next((each for each in kept if self._alike(each[0], about)), None)
        if found is None:
            found = about, self._make(about, kept[0][1] if kept else None)
        self._kept = (found, *(each for each in kept if each is not found))[: self._most]
        return found[1]
