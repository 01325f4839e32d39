"""What was worked out of the objects that were asked about last, told apart by identity.

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
