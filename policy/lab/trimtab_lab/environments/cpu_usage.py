"""Real CPU usage of servers over days, as shipped in `data/cpu` (its README says whose they are and what was changed).

The readings are five minutes apart.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files

import numpy as np
from numpy.typing import NDArray

SECONDS = 300.0
"""Between two readings."""


@cache
def names() -> tuple[str, ...]:
    """The series, by name."""
    return tuple(sorted(_all()))


def read_cpu_usage(name: str) -> NDArray[np.float64]:
    """(readings,) share of the CPU that was busy, 0 to 1. Raises ValueError with the known names for any other."""
    found = _all().get(name)
    if found is None:
        raise ValueError(f"series: no CPU-usage series {name!r}, known are {', '.join(names())}")
    return found


@cache
def _all() -> dict[str, NDArray[np.float64]]:
    with (
        as_file(files("trimtab_lab") / "data" / "cpu" / "usage.npz") as path,
        np.load(path, allow_pickle=False) as stored,
    ):
        found = {name: stored[name] / 10_000 for name in stored.files}
    for values in found.values():
        values.setflags(write=False)
    return found
