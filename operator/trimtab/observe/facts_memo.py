"""What was made of each object, kept for as long as the object is the same: a look costs what has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from trimtab.telemetry.isolation import isolated

Object = TypeVar("Object")
Facts = TypeVar("Facts")


class FactsMemo(Generic[Object, Facts]):
    """Facts per object, computed anew only when the object was replaced by another one.

    `broken` says what is known of an object that cannot be made sense of (`isolation`).
    """

    def __init__(
        self, part: str, compute: Callable[[Object], Facts], broken: Callable[[Object, Exception], Facts]
    ) -> None:
        self._part, self._broken = part, broken
        self._understand = compute
        self._known: dict[int, tuple[Object, Facts]] = {}

    def _compute(self, item: Object) -> Facts:
        return isolated(self._part, lambda: self._understand(item), lambda error: self._broken(item, error))

    def one(self, item: Object) -> Facts:
        """Facts of one object."""
        known = self._known.get(id(item))
        if known is None or known[0] is not item:
            known = self._known[id(item)] = (item, self._compute(item))
        return known[1]

    def all(self, objects: Iterable[Object]) -> list[tuple[Object, Facts]]:
        """Facts of exactly these objects; those of all others are forgotten."""
        before, now = self._known, {}
        for item in objects:
            known = before.get(id(item))
            now[id(item)] = known if known is not None and known[0] is item else (item, self._compute(item))
        self._known = now
        return list(now.values())
