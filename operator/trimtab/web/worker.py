"""Starts the process that answers one plan or what-if, and ends it when it takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import OrderedDict
from typing import Any

import msgspec

from trimtab.errors import TrimtabError, UsageError
from trimtab.kube.reviews import TooMany
from trimtab.web import simulate

SECONDS = 60.0
A_MINUTE = 6
"""Questions of one visitor."""
REMEMBERED = 1024
LARGEST = 64 << 20
"""Bytes of an answer."""


class TooLong(TrimtabError):
    """No answer in time."""


class Simulations:
    """One question at a time."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._busy = asyncio.Lock()
        self._asked: OrderedDict[str, list[float]] = OrderedDict()

    async def ask(self, question: simulate.Question, visitor: str) -> Any:
        """The answer. Raises TooMany, TooLong, UsageError for what makes no sense, and TrimtabError."""
        if self._busy.locked():
            raise TooMany("another plan or what-if is being worked out: try again in a few seconds")
        self._count(visitor)
        async with self._busy:
            try:
                async with asyncio.timeout(self._seconds):
                    content = await _run(question)
            except TimeoutError as error:
                raise TooLong(f"it took longer than {self._seconds:g} s: ask with fewer jobs or nodes") from error
        told = await asyncio.to_thread(_decoded, content)
        if "wrong" in told:
            raise (UsageError if told.get("asked") else TrimtabError)(str(told["wrong"]))
        return told["value"]

    def _count(self, visitor: str) -> None:
        if not visitor:  # one's own machine
            return
        now = time.monotonic()
        times = [moment for moment in self._asked.pop(visitor, []) if moment > now - 60.0]
        self._asked[visitor] = times
        if len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)
        if len(times) >= A_MINUTE:
            raise TooMany(f"{A_MINUTE} plans and what-ifs a minute are answered: try again later")
        times.append(now)


async def _run(question: simulate.Question) -> bytes:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trimtab.web.simulate",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        reading = asyncio.gather(whole(process.stdout), whole(process.stderr))
        with contextlib.suppress(ConnectionError):  # it has ended: its last words say why
            for part in simulate.parts(question):
                process.stdin.write(part)
                await process.stdin.drain()
                await asyncio.sleep(0)
            process.stdin.close()
        content, said = await reading
        if await process.wait() or not content:
            last = said.decode(errors="replace").strip().rpartition("\n")[2]
            raise TrimtabError(f"it could not be worked out, which is a bug: {last[:300]}")
        return content
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def whole(stream: asyncio.StreamReader) -> bytes:
    """All that comes until its end: a pipe hands over 64 KiB at a time. Raises TrimtabError for more than `LARGEST`."""
    parts, size = list[bytes](), 0
    while part := await stream.read(1 << 20):
        parts.append(part)
        size += len(part)
        if size > LARGEST:
            raise TrimtabError("the answer is too large: ask with fewer jobs or nodes")
    return b"".join(parts)


def _decoded(content: bytes) -> Any:
    return msgspec.json.decode(content)
