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
        """By `id`, which no other object has as long as this one is kept here."""
        self._present: list[Object] = []
        self._listed: list[tuple[Object, Facts]] = []

    def _compute(self, item: Object) -> Facts:
        return isolated(self._part, lambda: self._understand(item), lambda error: self._broken(item, error))

    def one(self, item: Object) -> Facts:
        """Facts of one object."""
        known = self._known.get(id(item))
        if known is None:
            known = self._known[id(item)] = (item, self._compute(item))
        return known[1]

    def all(self, objects: Iterable[Object]) -> list[tuple[Object, Facts]]:
        """Facts of exactly these objects; those of all others are forgotten. The very same list, which is not to be
        changed, as long as the objects are the same."""
        present = list(objects)
        if present == self._present:  # of the very same objects none is looked into: this is a comparison of addresses
            return self._listed
        ids = list(map(id, present))
        found = list(map(self._known.get, ids))
        listed = [known or (item, self._compute(item)) for known, item in zip(found, present, strict=True)]
        self._known = dict(zip(ids, listed, strict=True))
        self._present, self._listed = present, listed
        return listed
