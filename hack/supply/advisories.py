"""Saved advisories of the format OSV, and a server on this machine that answers for them as OSV's own does.

So pip-audit needs no network: it asks for a distribution and a version, and gets the advisories that are about it.
"""

from __future__ import annotations

import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hack.requirements import normal
from packaging.version import InvalidVersion, Version

MAX_QUERY = 1 << 16
"""Bytes."""


def read(path: Path) -> list[dict[str, Any]]:
    """A file of one advisory or a list, a folder of such files, or a zip of them, as OSV publishes one for PyPI.

    Raises OSError, and ValueError for what is no advisory.
    """
    if path.is_dir():
        return [each for file in sorted(path.glob("**/*.json")) for each in read(file)]
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as packed:
            names = sorted(name for name in packed.namelist() if name.endswith(".json"))
            return [each for name in names for each in _parsed(packed.read(name), f"{path}:{name}")]
    return _parsed(path.read_bytes(), str(path))


def _parsed(text: bytes, where: str) -> list[dict[str, Any]]:
    found = json.loads(text)
    found = found if isinstance(found, list) else [found]
    for each in found:
        if not isinstance(each, dict) or "id" not in each or not isinstance(each.get("affected", []), list):
            raise ValueError(f"{where}: no advisory of the format OSV")
    return found


def about(advisories: list[dict[str, Any]], name: str, version: str) -> list[dict[str, Any]]:
    """Those that affect a version, by the evaluation that the format prescribes; withdrawn ones are not among them."""
    return [
        each
        for each in advisories
        if "withdrawn" not in each and any(_affects(part, name, version) for part in each.get("affected", []))
    ]


def _affects(part: dict[str, Any], name: str, version: str) -> bool:
    package = part.get("package", {})
    if package.get("ecosystem") != "PyPI" or normal(package.get("name", "")) != normal(name):
        return False
    asked = Version(version)
    if any(_version(each) == asked for each in part.get("versions", [])):
        return True
    ranges = [each for each in part.get("ranges", []) if each.get("type") == "ECOSYSTEM"]
    return any(_within(each.get("events", []), asked) for each in ranges)


def _version(text: str) -> Version | None:
    """None for what PyPI would not take today; no locked version can be it."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _within(events: list[dict[str, str]], asked: Version) -> bool:
    """Whether the last event at or before the version leaves it affected."""
    affected = False
    dated = [(_version("0.dev0" if at == "0" else at), kind) for event in events for kind, at in event.items()]
    for at, kind in sorted((at, kind) for at, kind in dated if at is not None):
        if kind == "introduced" and asked >= at:
            affected = True
        elif (kind == "fixed" and asked >= at) or (kind == "last_affected" and asked > at):
            affected = False
    return affected


@contextmanager
def served(advisories: list[dict[str, Any]]) -> Iterator[str]:
    """The address of OSV's `/v1/query` for these advisories, on a free port of the loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(min(int(self.headers.get("Content-Length", "0")), MAX_QUERY))
            asked = json.loads(body)
            # pip-audit compares names as the index writes them.
            vulns = json.dumps({"vulns": about(advisories, asked["package"]["name"], asked["version"])}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(vulns)))
            self.end_headers()
            self.wfile.write(vulns)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/query"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
