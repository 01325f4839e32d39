"""Metrics of ports, for the registry of each process: who is connected, and who was cut off."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class PortMetrics:
    """Of all ports of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connections = Gauge("trimtab_connections", "Open connections, by port", ["port"], registry=registry)
        self.room = Gauge(
            "trimtab_connections_limit",
            "Connections accepted at the same time, by port",
            ["port"],
            registry=registry,
        )
        self.cut = Counter(
            "trimtab_connections_cut_total",
            "Connections cut off, by port and reason: too slow (silent, slow_request, slow_body, slow_reader,"
            " handshake), or too many (evicted, full, descriptors)",
            ["port", "reason"],
            registry=registry,
        )
        self.certificates = Counter(
            "trimtab_certificates_total",
            "Times that the files of a port's certificates changed, by result (taken, refused)",
            ["port", "result"],
            registry=registry,
        )


class PortCounts:
    """Those of one port (`trimtab.serving.guard.Counts`)."""

    def __init__(self, metrics: PortMetrics, port: str, room: int) -> None:
        self._open = metrics.connections.labels(port)
        self._open.set(0)
        metrics.room.labels(port).set(room)
        self._cut = metrics.cut
        self._certificates = metrics.certificates
        self._port = port
        for reason in ("evicted", "full", "descriptors"):  # an alert asks for their rates: they are there from 0 on
            metrics.cut.labels(port, reason)

    def opened(self) -> None:
        """A connection more."""
        self._open.inc()

    def closed(self) -> None:
        """A connection less."""
        self._open.dec()

    def cut(self, reason: str) -> None:
        """It was not its client that ended it."""
        self._cut.labels(self._port, reason).inc()

    def certificates(self, result: str) -> None:
        """The files of its certificate have changed."""
        self._certificates.labels(self._port, result).inc()
