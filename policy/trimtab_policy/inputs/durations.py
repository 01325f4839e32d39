"""Durations as people write them: `2s`, `5m`, `1h30m`, `250ms`, `7d`; a number alone is seconds."""

from __future__ import annotations

import re

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
"""One with units."""
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)


def seconds(text: str) -> float:
    """Seconds of a duration. Raises ValueError."""
    if re.match(PATTERN, text, re.ASCII):
        return sum(float(number) * UNITS[unit] for number, unit in _PART.findall(text))
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no duration: write seconds, or 2s, 5m, 1h30m") from None
