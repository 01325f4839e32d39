"""`python -m hack.bench.crowd PORT COUNT HEX`: connections to a port of this machine that say these bytes and no more.

One that is cut off comes again. Tells when all have been made; and, once it is told to end, how many it made and has.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from itertools import cycle

HOST = "127.0.0.1"
SOURCES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
AT_ONCE = 64
"""That are being made."""
AGAIN_SECONDS = 5.0
"""After one was cut off, it comes again."""


class Crowd:
    """All of them."""

    def __init__(self, port: int, count: int, said: bytes) -> None:
        self.made = 0
        self.all_made = asyncio.Event()
        self._port = port
        self._count = count
        self._said = said
        self._open: set[socket.socket] = set()
        self._loop = asyncio.get_running_loop()
        self._sources = cycle(SOURCES)
        self._missing = asyncio.Semaphore(count)

    @property
    def held(self) -> int:
        """Connections that are open now."""
        return len(self._open)

    async def come(self) -> None:
        """Make what is missing, for ever."""
        while True:
            await self._missing.acquire()
            conn = socket.socket()
            conn.setblocking(False)
            try:
                conn.bind((next(self._sources), 0))
                async with asyncio.timeout(5):
                    await self._loop.sock_connect(conn, (HOST, self._port))
                conn.send(self._said)
            except (OSError, TimeoutError):
                conn.close()
                self._loop.call_later(AGAIN_SECONDS, self._missing.release)
                continue
            self._open.add(conn)
            self._loop.add_reader(conn, self._heard, conn)
            self.made += 1
            if self.made == self._count:
                self.all_made.set()

    def _heard(self, conn: socket.socket) -> None:
        try:
            if conn.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._loop.remove_reader(conn)
        self._open.remove(conn)
        conn.close()
        self._loop.call_later(AGAIN_SECONDS, self._missing.release)


async def main(port: int, count: int, said: bytes) -> None:
    """Until there is something to read on standard input."""
    crowd = Crowd(port, count, said)
    coming = [asyncio.create_task(crowd.come()) for _ in range(AT_ONCE)]
    await crowd.all_made.wait()
    print(flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(crowd.made, crowd.held, flush=True)
    for task in coming:
        task.cancel()
    await asyncio.gather(*coming, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])))
