"""The fake backend: a simulated node, from a profile that is read again when it changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import structlog

from trimtab.agent.backend import BackendError, NodeReading
from trimtab.agent.profile import FakeNode, load_profile
from trimtab.agent.simulation import SimulatedNode

POLL_SECONDS: Final = 0.05

log = structlog.get_logger(__name__)


class FakeBackend:
    """`trimtab.agent.backend.Backend` of a profile."""

    name: Literal["fake"] = "fake"

    def __init__(self, path: Path, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._node = node
        self._clock = clock
        self._simulated: SimulatedNode | None = None
        self._changed = 0
        self._closed = False

    def open(self) -> None:
        """Read the profile. Raises BackendError."""
        profile = load_profile(self._path)
        self._simulated = SimulatedNode(profile, profile.spec, self._node)
        self._changed = self._modified()
        self._closed = False

    def read(self) -> NodeReading:
        """The readings of now; does not come back while the profile says that the driver hangs."""
        if self._simulated is None:
            return NodeReading(error="the fake backend is not open")
        self._reread(self._simulated)
        while self._simulated.hanging(self._clock()) and not self._closed:
            time.sleep(POLL_SECONDS)
            self._reread(self._simulated)
        return self._simulated.read(self._clock())

    def close(self) -> None:
        """Let go; ends a call that hangs."""
        self._closed = True

    def _reread(self, simulated: SimulatedNode) -> None:
        if (modified := self._modified()) == self._changed:
            return
        self._changed = modified
        try:
            profile = load_profile(self._path)
        except BackendError as error:
            log.error("the changed profile cannot be used, going on with the old one", reason=str(error))
            return
        if _machine(profile) != _machine(simulated.profile):
            self._simulated = simulated = SimulatedNode(profile, profile.spec, self._node)
        simulated.profile, simulated.running, simulated.faults = profile, profile.running, profile.faults

    def _modified(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0


def _machine(profile: FakeNode) -> tuple[object, ...]:
    return (profile.product, profile.gpus, profile.seed, profile.nvlinks)
