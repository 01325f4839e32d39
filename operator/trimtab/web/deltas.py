"""Columns, and what has changed between two moments of them: pure functions, `apply(old, diff(old, new)) == new`.

A column is a flat list of numbers or texts. What has changed of one is told as gaps between the indices that changed,
and their values, unless the whole column takes less; an index at the end of the column appends.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

Column = list[Any]
Columns = dict[str, Column]
Delta = dict[str, dict[str, Any]]

WHOLE = 2
"""A change of more than one in so many values is told as the whole column."""


def diff(old: Mapping[str, Column], new: Mapping[str, Column]) -> Delta:
    """What makes `new` of `old`, which has the same columns or fewer."""
    found: Delta = {}
    for name, now in new.items():
        was = old.get(name)
        if was is None:
            found[name] = {"all": now}
        elif was is not now and was != now:
            found[name] = _changed(was, now)
    return found


def _changed(was: Column, now: Column) -> dict[str, Any]:
    if len(now) < len(was):
        return {"all": now}
    at = [index for index, (before, after) in enumerate(zip(was, now, strict=False)) if before != after]
    at += range(len(was), len(now))
    if WHOLE * len(at) > len(now):
        return {"all": now}
    gaps = [after - before for before, after in pairwise((-1, *at))]
    return {"at": gaps, "to": [now[index] for index in at]}


def apply(old: Mapping[str, Column], delta: Mapping[str, Mapping[str, Any]]) -> Columns:
    """The columns after a change, as a page works them out. `old` stays as it is."""
    after = dict(old)
    for name, change in delta.items():
        if "all" in change:
            after[name] = list(change["all"])
            continue
        column, index = list(after[name]), -1
        for gap, value in zip(change["at"], change["to"], strict=True):
            index += gap
            if index == len(column):
                column.append(value)
            else:
                column[index] = value
        after[name] = column
    return after
