"""What the reading of one job may cost, all in all: a stranger wrote it, and all that unfolds is paid for from one sum.

`reading` begins a budget, and is the same one wherever it is called again within: nothing that is nested starts with a
fresh one. Steps and characters are counted, no clock, so that the same text always gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

MOST_STEPS: Final = 20_000
MOST_CHARACTERS: Final = 3_000_000
"""That are read or made. Of the public samples (`tests.foreign.score`), the largest takes a seventeenth of it."""
OF_ITEM: Final = 16
"""Characters that a word in a list counts as besides its own: what it takes to keep it."""
_SHOWN: Final = 80


class TooLong(ValueError):
    """A job's text is longer than anybody writes one, nested deeper, or unfolds to more."""


class Budget:
    """What is left of it."""

    def __init__(self) -> None:
        self.steps = 0
        self.characters = 0

    def step(self, cost: int = 1) -> None:
        """Count commands that are walked through. Raises TooLong."""
        self.steps += cost
        if self.steps > MOST_STEPS:
            raise TooLong("its loops and functions unfold to more than anybody wrote")

    def charge(self, characters: int, what: str = "its variables") -> None:
        """Count characters before they are read or made; `what` unfolds to them. Raises TooLong naming that."""
        self.characters += characters
        if self.characters > MOST_CHARACTERS:
            raise TooLong(f"{what[:_SHOWN]} unfold to more than anybody wrote: {MOST_CHARACTERS:,} characters in all")


_CURRENT: ContextVar[Budget | None] = ContextVar("budget of the reading", default=None)


@contextmanager
def reading() -> Iterator[Budget]:
    """The budget of the reading that goes on, or a new one where none does."""
    if (current := _CURRENT.get()) is not None:
        yield current
        return
    token = _CURRENT.set(budget := Budget())
    try:
        yield budget
    finally:
        _CURRENT.reset(token)


def charge(characters: int, what: str) -> None:
    """Count characters of the reading that goes on; outside of any there is nothing to share. Raises TooLong."""
    if (current := _CURRENT.get()) is not None:
        current.charge(characters, what)
    elif characters > MOST_CHARACTERS:
        raise TooLong(f"{what[:_SHOWN]} unfold to more than anybody wrote: {MOST_CHARACTERS:,} characters in all")
