"""Standard input and output as a wire. Nobody else gets at them: what a library prints, or a program reads that signs
in for us, must not end up between messages."""

from __future__ import annotations

import asyncio
import os
import threading

LONGEST = 4 << 20
"""Bytes of a line: a manifest is a few kilobytes."""
PART = 1 << 16


class Stdio:
    """Lines of standard input, read by a thread that may wait for them; they are waited for when many are unread."""

    def __init__(self) -> None:
        self._in, self._out = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)  # whatever is printed goes to standard error
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(64)
        self._loop = asyncio.get_running_loop()
        # A daemon: it waits in read() for as long as the client says nothing, and must not keep the process.
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    async def line(self) -> bytes | None:
        """The next line, None at the end."""
        found = await self._lines.get()
        self._room.release()
        return found

    def send(self, message: bytes) -> None:
        """Write a line. Raises BrokenPipeError when nobody reads any more."""
        left = memoryview(message + b"\n")
        while left:
            left = left[os.write(self._out, left) :]

    def _read(self) -> None:
        line, too_long = bytearray(), False
        while part := self._part():
            *ended, rest = part.split(b"\n")
            for each in ended:
                line += each
                self._hand_over(line, too_long=too_long)
                line, too_long = bytearray(), False
            line += rest
            if len(line) > LONGEST:
                line, too_long = bytearray(), True
        self._hand_over(line, too_long=too_long)
        self._put(None)

    def _part(self) -> bytes:
        try:
            return os.read(self._in, PART)
        except OSError:
            return b""  # a terminal that is gone

    def _hand_over(self, line: bytearray, *, too_long: bool) -> None:
        if too_long or len(line) > LONGEST:
            self._put(b"")
        elif line.strip():  # blank lines say nothing
            self._put(bytes(line))

    def _put(self, line: bytes | None) -> None:
        self._room.acquire()
        self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
