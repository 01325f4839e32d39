"""A port: it accepts what the guard behind it has room for.

Connections are accepted by ourselves and not by asyncio's server, which accepts a whole backlog before anybody is
asked, and tells the log of each one for which there was no file descriptor. A few at a time, so that a flood of them
leaves the loop to others in between.

The listening socket outlives its TLS: new certificates are for connections that come from then on, and no connection is
refused meanwhile. Connections made under the old ones end with their next answer, which says so to the client; at once
where the clients' authority has changed.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable

import structlog

from trimtab.errors import SettingsError
from trimtab.serving import tls as files_of_tls
from trimtab.serving.guard import ConnectionGuard
from trimtab.serving.tls import ServerTlsFiles

log = structlog.get_logger(__name__)

BACKLOG = 4096
"""The kernel keeps so many (or fewer, net.core.somaxconn) until they are accepted: a loop may be busy for a while."""
ACCEPTS = 32
"""At a time."""
PAUSE_SECONDS = 0.1
"""Before the next attempt, where there was no file descriptor."""
DESCRIPTORS = 224
"""File descriptors for everything but connections to our ports: the API server's 64 and more, watches, files, pipes."""


def seats(wanted: int, others: int = 0) -> int:
    """Connections that a port may have of the `wanted` ones, so that the process never runs out of file descriptors.

    `others` are those of the other ports of the process.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    left = soft - DESCRIPTORS - ACCEPTS - others
    return min(wanted, max(left, 16))


class Listener:
    """A port, behind which the guard is."""

    def __init__(self, guard: ConnectionGuard, host: str, port: int, setting: str = "") -> None:
        """Bind the port. `setting` names what else could be chosen. Raises SettingsError when it is not to be had."""
        wide = ":" in host
        family = socket.AF_INET6 if wide else socket.AF_INET
        both = wide and host == "::" and socket.has_dualstack_ipv6()
        self._guard = guard
        self._tls: ssl.SSLContext | None = None
        self._accepting = False
        self._following: asyncio.Task[None] | None = None
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
        except OSError as error:
            hint = f"set {setting}" if setting else "choose another"
            raise SettingsError(f"cannot listen on {host}, port {port}: {error}; {hint}") from error
        self._socket.setblocking(False)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """The same, as a URL without a path."""
        host, port = self._socket.getsockname()[:2]
        return f"{'https' if self._tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def secure(self, files: ServerTlsFiles, count: Callable[[str], None]) -> asyncio.Task[None]:
        """Accept connections with the TLS of these files, from now on with what they hold whenever they change.

        `count` is told of changes, as by `tls.follow`. Returns the task that follows the files: it ends by an error
        only, and with the port. Raises SettingsError for files that cannot be used; the port is closed then.
        """
        taken = files_of_tls.stamp(files)
        try:
            context = files_of_tls.context(files)
        except SettingsError:
            self._socket.close()
            raise
        await self.open(context)
        self._following = asyncio.create_task(files_of_tls.follow(files, taken, self.open, count), name="certificates")
        self._following.add_done_callback(_followed)
        return self._following

    async def open(self, tls: ssl.SSLContext | None, other_clients: bool = False) -> None:
        """Accept connections, from now on with this TLS. `other_clients`: who was let in before may not be by it."""
        again, self._tls = self._accepting, tls
        if again:
            self._guard.retire(now=other_clients)
        self._accept()

    async def close(self) -> None:
        """Accept no more, and answer what is in work."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._accepting:
            self._guard.loop.remove_reader(self._socket)
        self._accepting = False
        self._socket.close()
        await self._guard.close()

    def _accept(self) -> None:
        if self._socket.fileno() >= 0:
            self._accepting = True
            self._guard.loop.add_reader(self._socket, self._arrived)

    def _arrived(self) -> None:
        for _ in range(ACCEPTS):
            try:
                conn, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:  # it has gone again
                continue
            except OSError:  # no descriptor, or no memory
                self._guard.starved()
                self._guard.loop.remove_reader(self._socket)
                self._guard.loop.call_later(PAUSE_SECONDS, self._accept)
                return
            conn.setblocking(False)
            self._guard.welcome(conn, str(peer[0]), self._tls)


def _followed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("certificates are followed no more: this is a bug, please report it", exc_info=error)
