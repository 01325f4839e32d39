"""A copy of all objects of one kind, and what changes in it. Pure: `reflector` does the talking.

Three sources write to it: lists, watch events, and the answers to our own writes. All carry resourceVersions, and the
rule is that an object never goes back in time. From it follows that
  - whatever is missing from a list has been deleted, unless it is younger than the list;
  - an object of the same name and another UID is a deletion and a creation;
  - the answer to an own write counts only until the watch has passed it, so that it cannot revive a deleted object.

`on_change(old, new)` is called for every change that we can see: `(None, new)` created, `(old, None)` deleted. Folding
the calls gives `items`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from trimtab.kube.objects import Meta


class HasMetadata(Protocol):
    """Any Kubernetes object."""

    @property
    def metadata(self) -> Meta: ...


T = TypeVar("T", bound=HasMetadata)
OnChange = Callable[[T | None, T | None], None]


class Cache(Generic[T]):
    """Objects by `namespace/name`."""

    def __init__(self, on_change: OnChange[T]) -> None:
        self.items: dict[str, T] = {}
        self.version = 0
        """resourceVersion up to which list and watch have told us everything."""
        self._on_change = on_change

    def replace(self, listed: Mapping[str, T], unreadable: Mapping[str, str], version: int) -> None:
        """Take a complete list of resourceVersion `version`; `unreadable` objects exist but could not be decoded.

        A version older than what was seen means that the cluster's history was rewound (etcd restored from a backup):
        then everything counts as listed, whatever its age.
        """
        rewound = version < self.version
        for key, old in list(self.items.items()):
            if key not in listed and key not in unreadable and (rewound or old.metadata.version <= version):
                self._drop(key)
        for obj in listed.values():
            self._put(obj, rewound)
        self.version = version

    def clear(self) -> None:
        """Forget everything: nobody keeps these objects any more."""
        for key in list(self.items):
            self._drop(key)
        self.version = 0

    def put(self, obj: T) -> None:
        """Take an ADDED or MODIFIED event."""
        self._put(obj)
        self.advance(obj.metadata.version)

    def remove(self, gone: Meta) -> None:
        """Take a DELETED event; its resourceVersion is that of the deletion."""
        old = self.items.get(gone.key)
        if old is not None and old.metadata.version <= gone.version:
            self._drop(gone.key)
        self.advance(gone.version)

    def advance(self, version: int) -> None:
        """Take a bookmark: nothing else happened up to this version."""
        self.version = max(self.version, version)

    def written(self, obj: T) -> None:
        """Take the answer to an own create, update or patch, ahead of the watch."""
        if obj.metadata.version > self.version:
            self._put(obj)

    def displace(self, other: Meta) -> None:
        """An object that we cannot decode has the name of one that we hold: if it is another one, ours is gone."""
        old = self.items.get(other.key)
        if old is not None and old.metadata.uid != other.uid and old.metadata.version < other.version:
            self._drop(other.key)

    def _put(self, obj: T, rewound: bool = False) -> None:
        key = obj.metadata.key
        old = self.items.get(key)
        if old is not None and obj.metadata.version <= old.metadata.version and not rewound:
            return
        if old is not None and old.metadata.uid != obj.metadata.uid:
            self._drop(key)
            old = None
        self.items[key] = obj
        if obj != old:
            self._on_change(old, obj)

    def _drop(self, key: str) -> None:
        self._on_change(self.items.pop(key), None)
