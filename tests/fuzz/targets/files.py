"""A folder in memory for targets that read files."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

_MEMORY = Path("/dev/shm")


@cache
def folder() -> Path:
    """It is removed when the process ends."""
    made = Path(tempfile.mkdtemp(prefix="trimtab-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def written(name: str, content: bytes) -> Path:
    """A file with this content."""
    path = folder() / name
    path.write_bytes(content)
    return path
