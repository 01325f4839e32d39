"""Opens NVML, reads, and opens it again after the driver came, went or changed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final, Literal

from trimtab.agent.backend import BackendError, NodeReading
from trimtab.agent.nvml import library
from trimtab.agent.nvml.session import Changed, Remembered, Session

RETRY_SECONDS: Final = 10.0
"""So often a driver that is not there, or does not work, is tried again."""
RESTART_SECONDS: Final = 60.0
"""A mismatch of driver and library that lasts so long does not mend itself while this process runs."""


class NvmlBackend:
    """The GPUs of NVIDIA's driver. `clock` gives seconds that never go back."""

    name: Literal["nvml"] = "nvml"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nvml: Any = None
        self._session: Session | None = None
        self._remembered = Remembered()
        self._error = ""
        self._tried_at = -math.inf
        self._mismatch_since = math.inf

    @property
    def needs_restart(self) -> bool:
        """Whether only a new process can read the GPUs again: its container gets the library of the new driver."""
        return self._clock() - self._mismatch_since >= RESTART_SECONDS

    def open(self) -> None:
        """Load and initialise NVML, and find the GPUs. Raises BackendError, which says what to do."""
        self.close()
        now = self._tried_at = self._clock()
        try:
            self._nvml = library.load()
            self._session = Session(self._nvml, self._remembered, now)
        except BackendError as problem:
            self._fail(problem, now)
            raise
        self._error, self._mismatch_since = "", math.inf

    def read(self) -> NodeReading:
        """Everything now. What is wrong with the driver is the reading's `error`; it is tried again later."""
        now = self._clock()
        try:
            if self._session is None:
                if now - self._tried_at < RETRY_SECONDS:
                    return NodeReading(error=self._error)
                self.open()
            return self._read(now)
        except BackendError as problem:
            self._fail(problem, now)
            return NodeReading(error=self._error)

    def close(self) -> None:
        """Let go of NVML and its library. What is known of the GPUs is kept for the next `open`."""
        if self._session:
            self._session.close()
        if self._nvml:
            library.unload(self._nvml)
        self._session = self._nvml = None

    def _read(self, now: float) -> NodeReading:
        assert self._session
        try:
            return self._session.read(now)
        except Changed:
            self.open()
            return self._session.read(now)

    def _fail(self, problem: BackendError, now: float) -> None:
        self.close()
        self._error, self._tried_at = str(problem), now
        mismatch = isinstance(problem, library.DriverGone) and problem.code == library.VERSION_MISMATCH
        self._mismatch_since = min(self._mismatch_since, now) if mismatch else math.inf
