"""The page's own files: HTML, scripts and styles below `web/static`, and nothing that is not there."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path, PurePosixPath

from msgspec import Struct

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".json": "application/json",
    ".mjs": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain",
}  # fmt: skip
LARGEST = 1 << 20


class StaticFile(Struct, frozen=True):
    """A file as it is sent."""

    content: bytes
    media_type: str
    etag: str


class StaticFiles:
    """Files of a folder; read again when they change."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._known: dict[str, tuple[tuple[int, int], StaticFile]] = {}

    def find(self, path: str) -> StaticFile | None:
        """The file of a relative path; empty for the page itself. None where there is none of a kind that is sent."""
        wanted = PurePosixPath(path or "index.html")
        media_type = TYPES.get(wanted.suffix)
        if media_type is None or wanted.is_absolute() or any(part.startswith(".") for part in wanted.parts):
            return None
        file = self._folder / wanted
        try:
            told = file.stat()
            stamp = told.st_mtime_ns, told.st_size
            known = self._known.get(str(wanted))
            if known and known[0] == stamp:
                return known[1]
            if not file.is_file() or told.st_size > LARGEST or self._folder.resolve() not in file.resolve().parents:
                return None
            content = file.read_bytes()
        except OSError:
            return None
        found = StaticFile(content, media_type, f'"{sha256(content).hexdigest()[:32]}"')
        self._known[str(wanted)] = stamp, found
        return found
