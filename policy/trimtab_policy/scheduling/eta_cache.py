"""When those that wait were last expected to start: worked out anew only as often as is worth its cost.

Of hundreds of waiting jobs that is the dearest part of a decision, while hardly any of these times moves from one
round to the next, seconds later. Who was not asked about last is not kept waiting for it: then it is done anew for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from trimtab_policy.types import Eta

PART = 0.05
"""Of all time, so much may go into this at most, as long as nobody is new ..."""
LONGEST_SECONDS = 15.0
"""... but what is told is never older."""


class Times:
    """What was worked out last. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._etas: Mapping[str, Eta] = {}
        self._asked: frozenset[str] = frozenset()
        self._until = clock()

    def note(self, etas: Mapping[str, Eta], asked: Iterable[str], cost: float) -> None:
        """These jobs' times, by UID, for those of `asked` whose start is in sight. It took `cost` seconds."""
        self._etas, self._asked = etas, frozenset(asked)
        self._until = self._clock() + min(cost / PART, LONGEST_SECONDS)

    def recent(self, uids: Iterable[str]) -> Mapping[str, Eta] | None:
        """Times by UID; None where they are to be worked out anew for these jobs."""
        return self._etas if self._clock() < self._until and self._asked.issuperset(uids) else None
