"""What distributions that are installed offer to Trimtab, by their entry points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

OWN = "trimtab"
"""What the names of our own distributions begin with: nobody else's offer takes the place of one of theirs."""


@cache
def offered(group: str) -> Mapping[str, EntryPoint]:
    """Name -> where it is. Of two of one name the one of a distribution of ours counts, else the first by its value."""
    found = sorted(entry_points(group=group), key=lambda each: (not _is_ours(each), each.value))
    return {each.name: each for each in reversed(found)}


def _is_ours(each: EntryPoint) -> bool:
    name = each.dist.name if each.dist else ""
    return name == OWN or name.startswith(f"{OWN}-")
