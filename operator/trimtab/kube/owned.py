"""Objects of one kind that jobs control, by job."""

from __future__ import annotations

from collections.abc import Callable

from trimtab.kube.objects import AnyObject, Identity, Meta


class OwnedObjects:
    """An index that a reflector feeds. `on_change` is called whatever changes."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._of: dict[Identity, dict[str, Meta]] = {}
        """Job -> UID -> metadata; nothing is kept empty."""

    def of(self, job: Identity) -> tuple[Meta, ...]:
        """Those that the job controls."""
        return tuple(self._of.get(job, {}).values())

    def changed(self, old: AnyObject | None, new: AnyObject | None) -> None:
        """Take news of an object: None stands for not being there."""
        if old and (job := old.metadata.job):
            of_owner = self._of[job]
            del of_owner[old.metadata.uid]
            if not of_owner:
                del self._of[job]
        if new and (job := new.metadata.job):
            self._of.setdefault(job, {})[new.metadata.uid] = new.metadata
        self._on_change()
