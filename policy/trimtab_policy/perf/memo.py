"""What searches have found, kept up to a weight: those used last.

How much a search finds differs by a hundredfold from job to job, and what is found for hostile ones fills any number of
entries. So it is the options that are counted. May be used by several threads: a policy that was given up for being
late is still at work.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


class BoundedMemo(Generic[Key, Found]):
    """Values by key. `weigh` says what a value counts for, at least 1; together they count for at most `most`."""

    def __init__(self, most: int, weigh: Callable[[Found], int]) -> None:
        self._most, self._weigh = most, weigh
        self._kept: OrderedDict[Key, Found] = OrderedDict()
        self._lock = threading.Lock()
        self.weight = 0
        """Of all that is kept."""

    def __contains__(self, key: Key) -> bool:
        """Whether the value is kept."""
        return key in self._kept

    def get(self, key: Key, compute: Callable[[], Found]) -> Found:
        """The value of the key, computed where it is not kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = compute()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = found
                self.weight += max(1, self._weigh(found))
            while self.weight > self._most and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self.weight -= max(1, self._weigh(dropped))
        return found

    def clear(self) -> None:
        """Keep nothing any more."""
        with self._lock:
            self._kept.clear()
            self.weight = 0
