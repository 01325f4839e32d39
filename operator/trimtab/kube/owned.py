"""Objects of one kind that others control, by what controls them: our jobs, or objects of any kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from trimtab.kube.objects import AnyObject, Controlling, Identity, Meta

Owner = TypeVar("Owner", bound=Hashable)


class OwnedBy(Generic[Owner]):
    """An index that a reflector feeds. `owner` says whose an object is; `on_change` is called whatever changes."""

    def __init__(self, on_change: Callable[[], None], owner: Callable[[Meta], Owner | None]) -> None:
        self._on_change = on_change
        self._owner = owner
        self.listener: Callable[[Owner], None] = lambda _: None
        """Hears whose objects have changed."""
        self._of: dict[Owner, dict[str, Meta]] = {}
        """Owner -> UID -> metadata; nothing is kept empty."""

    def of(self, owner: Owner) -> tuple[Meta, ...]:
        """Those that it controls."""
        return tuple(self._of.get(owner, {}).values())

    def changed(self, old: AnyObject | None, new: AnyObject | None) -> None:
        """Take news of an object: None stands for not being there."""
        if old and (owner := self._owner(old.metadata)):
            owned = self._of[owner]
            del owned[old.metadata.uid]
            if not owned:
                del self._of[owner]
            self.listener(owner)
        if new and (owner := self._owner(new.metadata)):
            self._of.setdefault(owner, {})[new.metadata.uid] = new.metadata
            self.listener(owner)
        self._on_change()


class OwnedObjects(OwnedBy[Identity]):
    """Those of our jobs."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        super().__init__(on_change, lambda meta: meta.job)


class ControlledObjects(OwnedBy[Controlling]):
    """Those of objects of any kind."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        super().__init__(on_change, lambda meta: meta.controller)
