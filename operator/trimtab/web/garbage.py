"""Whose memory is given back when: the interpreter's collector, and large values that nobody needs any more.

Both hold the interpreter, and with it the event loop: the collector goes through all that is young (12 ms for a look at
4,000 nodes, 70 ms for those of a minute), and what was seen at a moment takes milliseconds to be taken apart. So looks,
which leave no cycles behind, are made without the collector and kept out of its sight; and a moment that is over is
taken apart in the thread, bit by bit.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

SWITCH_SECONDS = 0.0005
WHOLE_SECONDS = 600.0
"""Between two collections of everything, which hold the loop for as long as that takes (0.2 s at 4,000 nodes): what
connections leave behind while a look is made is found only then."""
DEEP = 3
"""So many levels of structs are taken apart: a moment, what is seen, and the snapshot in that."""
MANY = 256
"""Tables and tuples of more are taken apart, too, wherever they are."""


def calm() -> None:
    """Have the interpreter hold nobody up: what was listed stays, and is not worth looking for garbage in."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()


class Collector:
    """When garbage is looked for."""

    def __init__(self) -> None:
        self._whole = time.monotonic()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """For work that makes much and leaves no cycles: no garbage is looked for meanwhile, nor later in what it has
        made. Not from two threads at once."""
        if time.monotonic() - self._whole > WHOLE_SECONDS:
            gc.unfreeze()
            self._whole = time.monotonic()
        gc.collect()  # what has come since the last time: a little
        gc.disable()
        try:
            yield
        finally:
            gc.freeze()
            gc.enable()


def let_go(left: list[Any]) -> None:
    """Take values apart, and empty the list: what nobody else has is freed bit by bit, so that other threads get their
    turn in between."""
    bits = [(value, DEEP) for value in left]
    left.clear()
    while bits:
        value, deep = bits.pop()
        if deep and isinstance(value, Struct):
            bits += [(getattr(value, name), deep - 1) for name in value.__struct_fields__]
        elif isinstance(value, Mapping | tuple) and len(value) > MANY:
            bits += [(each, 0) for each in (value.values() if isinstance(value, Mapping) else value)]
        del value
