"""Stands where a Service would: one address, and behind it as many extenders as there are, or none.

It forwards bytes and knows nothing of what they say, so that TLS is between kube-scheduler and the extender. It runs in
threads, because it must outlive the event loop of a single test.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from contextlib import suppress


class Front:
    """A TCP proxy on a port of its own: `to(port, ...)`, `down()`, and `delay` seconds before anything is passed on."""

    def __init__(self) -> None:
        self.delay = 0.0
        self._lock = threading.Lock()
        self._backends: tuple[int, ...] = ()
        self._turn = itertools.count()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def to(self, *ports: int) -> None:
        """Send new connections to these ports in turn, and end all others."""
        with self._lock:
            self._backends = ports
        self.cut()

    def down(self) -> None:
        """Nobody is behind the address."""
        self.to()

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            ending, self._open = self._open, set()
        for connection in ending:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.down()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                backends = self._backends
            if not backends:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", backends[next(self._turn) % len(backends)]))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if asks and self.delay:
                    time.sleep(self.delay)
                sink.sendall(data)
        for connection in (source, sink):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        source.close()
        with self._lock:
            self._open.discard(source)
