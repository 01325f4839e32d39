"""An extender that says whatever a test wants it to say; notes what it was asked."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trimtab_local.control_plane.options import ExtenderFiles

Answer = Callable[[dict[str, Any]], bytes]


def every_node(asked: dict[str, Any]) -> bytes:
    """What an extender without an opinion says."""
    return json.dumps({"NodeNames": asked["NodeNames"]}).encode()


def no_node(asked: dict[str, Any]) -> bytes:
    """What an extender says that refuses."""
    return json.dumps({"NodeNames": [], "FailedNodes": dict.fromkeys(asked["NodeNames"], "not by me")}).encode()


class StandIn:
    """Answers /filter over TLS, only to the scheduler's certificate."""

    def __init__(self, files: ExtenderFiles, answer: Answer = every_node) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer = answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(asked)
                body = outer.answer(asked)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.ca))
        context.load_cert_chain(files.certificate, files.key)
        context.verify_mode = ssl.CERT_REQUIRED
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
