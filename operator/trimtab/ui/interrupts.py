"""Ctrl-C at any time: the first one unwinds everything in order, and no second one disturbs that."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, `kill`, and a terminal that was closed."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first signal into KeyboardInterrupt and ignore further ones. What was ignored (nohup) stays so."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    handled = {number: before for number in SIGNALS if (before := signal.getsignal(number)) != signal.SIG_IGN}
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, before in handled.items():
            signal.signal(number, before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off a signal until the end of the block."""
    arrived: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        signal.raise_signal(signal.Signals(arrived[0]))
