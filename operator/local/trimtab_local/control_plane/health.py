"""Ask a component whether it is ready."""

from __future__ import annotations

import http.client
import ssl

from trimtab_local.control_plane.components import HOST, Component

ANSWER_SECONDS = 5.0


class Probe:
    """A verified TLS client of one component."""

    def __init__(self, component: Component) -> None:
        self._component = component
        self._tls = ssl.create_default_context(cafile=str(component.server_ca))
        stem = component.client
        self._tls.load_cert_chain(stem.with_suffix(".crt"), stem.with_suffix(".key"))

    def ready(self) -> bool:
        """Whether the component says that it is ready."""
        return self.get(self._component.health) == 200

    def get(self, path: str) -> int:
        """Status code of a GET; 0 when nothing answers (yet)."""
        connection = http.client.HTTPSConnection(HOST, self._component.port, timeout=ANSWER_SECONDS, context=self._tls)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()
