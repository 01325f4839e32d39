"""What a check found: measured beside expected, and whether that is good enough."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import comb

from msgspec import Struct

COVERAGE = 0.8
"""Of the interval of a predicted step time."""
DOUBT = 0.05
"""A check fails where an honest interval would hold so few runs less often than this."""


class Missing(Exception):
    """What a check needs is not on this machine. The message says what, and what to do."""


class Verdict(StrEnum):
    """Of a check."""

    MET = "met"
    MISSED = "missed"
    NOT_RUN = "not run"


class Comparison(Struct, frozen=True):
    """One thing that was measured, beside what was expected of it."""

    what: str
    measured: float | str | None
    """None where it could not be read."""
    expected: float | str | None
    unit: str = ""
    """`s`, `bytes`, `share` or a unit that is told as it is; empty for text and counts."""
    low: float | None = None
    """What is good enough, as is `high`; None where it has to be equal, or where nothing is asked."""
    high: float | None = None
    met: bool | None = None
    """None for a row that is there to explain others."""
    note: str = ""


class Outcome(Struct, frozen=True):
    """What one check found."""

    check: str
    rows: tuple[Comparison, ...] = ()
    missing: str = ""
    """Why it was not run, or not all of it; empty where it was."""
    seconds: float = 0.0
    note: str = ""
    tolerated: int = 0
    """Rows that may be missed: of intervals that hold four runs of five, some do not hold theirs."""

    @property
    def verdict(self) -> Verdict:
        if sum(row.met is False for row in self.rows) > self.tolerated:
            return Verdict.MISSED
        return Verdict.NOT_RUN if self.missing else Verdict.MET


def within(
    what: str, measured: float, expected: float, low: float, high: float, unit: str, note: str = ""
) -> Comparison:
    """A number that is good enough between `low` and `high`, ends included."""
    return Comparison(what, measured, expected, unit, low, high, low <= measured <= high, note)


def tolerated_misses(runs: int, coverage: float = COVERAGE, doubt: float = DOUBT) -> int:
    """Runs of so many that may lie outside their intervals: more would happen to honest intervals less often than
    `doubt`.

    >>> [tolerated_misses(runs) for runs in (1, 2, 3, 6, 12)]
    [1, 1, 2, 3, 5]
    """
    for misses in range(runs + 1):
        more = sum(
            comb(runs, k) * (1 - coverage) ** k * coverage ** (runs - k) for k in range(misses + 1, runs + 1)
        )  # fmt: skip
        if more < doubt:
            return misses
    return runs


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """1 where something was found that is not as it should be, 2 where something could not be looked at, else 0."""
    verdicts = {each.verdict for each in outcomes}
    return 1 if Verdict.MISSED in verdicts else 2 if Verdict.NOT_RUN in verdicts else 0
