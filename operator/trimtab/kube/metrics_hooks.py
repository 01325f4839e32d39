"""What happened between us and the API server, for whoever counts it (`trimtab.telemetry` does)."""

from __future__ import annotations

from typing import Protocol


class FactsObserver(Protocol):
    """Receives facts; must be quick and must not raise."""

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A request ended: verb as in RBAC, resource as `pods/binding`, HTTP status (0: no answer)."""

    def relist(self, resource: str, reason: str) -> None:
        """A reflector listed all objects: start, resync, gone, error."""

    def watch_error(self, resource: str, reason: str) -> None:
        """A list or watch failed: gone, error, stalled, stale, unreachable, or the class of the API error."""

    def bad_object(self, kind: str, reason: str) -> None:
        """An object could not be read as the kind that it is listed under."""


class Silent:
    """The observer that nobody listens to."""

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Ignore it."""

    def relist(self, resource: str, reason: str) -> None:
        """Ignore it."""

    def watch_error(self, resource: str, reason: str) -> None:
        """Ignore it."""

    def bad_object(self, kind: str, reason: str) -> None:
        """Ignore it."""
