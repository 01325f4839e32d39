"""Reads the backend once a second, in a thread: a driver that hangs must not take the rest of the agent with it.

A driver that cannot be opened is tried again, for as long as it takes: drivers are installed and upgraded under
running agents. The thread is a daemon, since one that hangs in the kernel can be ended by nobody.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

from trimtab.agent.backend import Backend, BackendError, NodeReading

REOPEN_SECONDS: Final = 15.0
HUNG_SECONDS: Final = 15.0
"""A driver that has not answered for so long (and ten readings) is reported."""

OnReading = Callable[[NodeReading, float], None]
"""Called in the event loop with a reading, and the seconds that it took."""

log = structlog.get_logger(__name__)


class Sampler:
    """`start()` in a running event loop; readings come until `stop()`."""

    def __init__(self, backend: Backend, seconds: float, on_reading: OnReading) -> None:
        self._backend = backend
        self._seconds = seconds
        self._on_reading = on_reading
        self._stop = threading.Event()
        self._heard = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._loop = asyncio.get_running_loop()
        self._heard = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end, and wait a moment."""
        self._stop.set()
        self._thread.join(2.0)

    def silence(self) -> float:
        """Seconds since the backend answered last."""
        return time.monotonic() - self._heard

    def hung(self) -> str:
        """What to report when the driver does not answer; empty when it does."""
        silent = self.silence()
        if silent <= max(HUNG_SECONDS, 10 * self._seconds):
            return ""
        return "the driver does not answer: a call into it has not come back; look at the kernel log (dmesg)"

    # --- in the thread ----------------------------------------------------------------------------------------------
    def _run(self) -> None:
        opened = False
        due = time.monotonic()
        while not self._stop.is_set():
            started = time.monotonic()
            opened, reading = self._read(opened)
            self._tell(reading, time.monotonic() - started)
            due = max(due + (self._seconds if opened else REOPEN_SECONDS), time.monotonic())
            while (wait := due - time.monotonic()) > 0 and not self._stop.wait(min(wait, 1.0)):
                self._heard = time.monotonic()  # nobody asked the driver anything: waiting is no silence
        self._backend.close()

    def _read(self, opened: bool) -> tuple[bool, NodeReading]:
        try:
            if not opened:
                self._backend.open()
            return True, self._backend.read()
        except BackendError as error:
            return False, NodeReading(error=str(error))
        except Exception as error:  # a bug of a backend must not end the reports of the node
            log.exception("the backend failed", backend=self._backend.name)
            self._backend.close()
            return False, NodeReading(error=f"the {self._backend.name} backend failed: {error!r}")

    def _tell(self, reading: NodeReading, seconds: float) -> None:
        self._heard = time.monotonic()
        if not self._stop.is_set():
            self._loop.call_soon_threadsafe(self._on_reading, reading, seconds)
