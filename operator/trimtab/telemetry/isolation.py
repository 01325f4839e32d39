"""What one object makes fail costs that object, and what a part of a round makes fail costs that part: never the round.

Nobody is to be able to stop everybody by an input that we did not think of. So whatever is done for each object in
turn, and each part of a round that others can do without, is done here: what it raises is told (log, metric), and the
rest goes on. That is no way to handle errors which are expected; each of these is a bug.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

TELL_SECONDS = 300.0
"""A part that goes on failing in the same way is logged so often; it is counted each time."""
MOST_TOLD = 256

T = TypeVar("T")
_told: OrderedDict[tuple[str, str, str], float] = OrderedDict()


def isolated(part: str, work: Callable[[], T], otherwise: Callable[[Exception], T], about: str = "") -> T:
    """What the work returns; where it raises, what `otherwise` makes of the error.

    `part` is a word of a short list, a metric label; `about` names the object that it was done for, if it is one.
    """
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever it is, it costs this part or this object, and is told
        told(part, error, about)
        return otherwise(error)


async def isolated_wait(part: str, work: Awaitable[T]) -> T | None:
    """The same for a part that takes a while; None where it raises."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - the other parts of a round go on; it is counted and told
        told(part, error)
        return None


def told(part: str, error: Exception, about: str = "") -> None:
    """Count an error that was isolated, and log it unless the same was logged a moment ago."""
    import structlog  # both are large, and a command that looks once mostly comes never here

    from trimtab.telemetry import metrics

    metrics.ISOLATED_ERRORS.labels(part).inc()
    key, now = (part, about, type(error).__name__), time.monotonic()
    if now - _told.get(key, -TELL_SECONDS) < TELL_SECONDS:
        return
    _told[key] = now
    _told.move_to_end(key)
    if len(_told) > MOST_TOLD:
        _told.popitem(last=False)
    structlog.get_logger(__name__).error(
        "isolated: this is a bug, please report it", part=part, about=about, exc_info=error
    )
