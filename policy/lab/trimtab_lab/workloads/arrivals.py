"""When jobs arrive: Poisson, in bursts, in the rhythm of days and weeks, or all at once.

Every process is a unit Poisson process whose clock is bent (time change): first by the bursts, then by the rhythm. So
the mean rate is the stated one, and the same draws give the same jobs at any rate.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.random import Generator

from trimtab_lab.workloads.trace import FloatArray

HOUR, WEEK = 3600.0, 604_800.0


class Arrivals(Struct, frozen=True, forbid_unknown_fields=True):
    """A process of arrivals, whatever its mean rate. Time 0 is midnight before a Monday."""

    batch: bool = False
    """All at 0."""
    burst_share: float = 0.0
    """Part of the time in which jobs come more often; 0 for no bursts."""
    burst_ratio: float = 1.0
    """How much more often."""
    burst_seconds: float = HOUR
    """Mean length of a burst."""
    hours: tuple[float, ...] = ()
    """Relative rates of the 24 hours of a day; empty for no rhythm."""
    weekend: float = 1.0
    """Rate on Saturday and Sunday relative to the other days."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the field."""
        if not 0 <= self.burst_share < 1:
            raise ValueError(f"burst_share must be in [0, 1), got {self.burst_share}")
        if not (self.burst_ratio >= 1 and self.burst_seconds > 0):
            raise ValueError(
                f"burst_ratio must be >= 1 and burst_seconds > 0, got {self.burst_ratio}, {self.burst_seconds}"
            )
        if self.hours and (len(self.hours) != 24 or min(self.hours) < 0 or not sum(self.hours) > 0):
            raise ValueError(f"hours must be 24 rates >= 0 that are not all 0, got {self.hours}")
        if not self.weekend >= 0:
            raise ValueError(f"weekend must be >= 0, got {self.weekend}")


def times(arrivals: Arrivals, count: int, per_second: float, draw: Generator) -> FloatArray:
    """When each of `count` jobs arrives, in seconds, ascending; `per_second` is the mean rate over weeks."""
    unit = np.cumsum(draw.exponential(size=count))
    if arrivals.batch:
        return np.zeros(count)
    clock = unit / per_second
    if arrivals.burst_share:
        clock = _with_bursts(arrivals, clock, draw)
    return _with_rhythm(arrivals, clock) if arrivals.hours or arrivals.weekend != 1 else clock


def _with_bursts(arrivals: Arrivals, clock: FloatArray, draw: Generator) -> FloatArray:
    """Bend a clock so that it runs faster in bursts: the two states alternate, each for an exponential time."""
    share, ratio = arrivals.burst_share, arrivals.burst_ratio
    calm_rate = 1 / (1 + share * (ratio - 1))
    rates = np.array([ratio * calm_rate, calm_rate])
    lengths = arrivals.burst_seconds * np.array([1.0, (1 - share) / share])
    first = int(draw.random() >= share)
    edges, passed = np.zeros(1), np.zeros(1)
    while passed[-1] <= clock[-1]:
        states = (np.arange(len(edges) - 1, len(edges) + 999) + first) % 2
        stays = draw.exponential(lengths[states])
        edges = np.append(edges, edges[-1] + np.cumsum(stays))
        passed = np.append(passed, passed[-1] + np.cumsum(stays * rates[states]))
    return np.interp(clock, passed, edges)


def _with_rhythm(arrivals: Arrivals, clock: FloatArray) -> FloatArray:
    """Bend a clock so that it runs at the rates of the hours of a week, at 1 on average."""
    day = np.array(arrivals.hours or (1.0,) * 24)
    week = np.concatenate([day] * 5 + [day * arrivals.weekend] * 2)
    passed = np.append(0.0, np.cumsum(week / week.mean() * HOUR))
    passed[-1] = WEEK
    weeks, rest = np.divmod(clock, WEEK)
    return np.asarray(weeks * WEEK + np.interp(rest, passed, np.arange(len(passed)) * HOUR), dtype=np.float64)
