"""Results on disk, one file a run, so that an interrupted evaluation goes on where it was.

A file is named after everything that its run depends on: the scenario, the bytes of the files that it reads, the source
of this package, its data and trained weights, and the versions of Python and of the packages that compute. Whatever of
these changes, the run is made again; nothing stale is ever read.
"""

from __future__ import annotations

import hashlib
import os
import platform
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import msgspec

from trimtab_policy.sim.evaluation.scenario import Outcome, Scenario

_PACKAGE = Path(__file__).resolve().parents[2]
_COMPUTE = ("numpy", "scipy", "highspy", "numba")
"""Packages whose next version may give other numbers."""
_SOURCES = ("**/*.py", "data/**/*", "weights/*")


class Store:
    """A folder of outcomes."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder. Raises OSError when it cannot be written."""
        self._folder = folder / "runs"
        self._folder.mkdir(parents=True, exist_ok=True)

    def get(self, scenario: Scenario) -> Outcome | None:
        """The outcome, if this very run was made before; a file that was cut short counts as none."""
        path = self._path(scenario)
        if not path.is_file():
            return None
        try:
            return msgspec.msgpack.decode(path.read_bytes(), type=Outcome)
        except msgspec.DecodeError:
            path.unlink()
            return None

    def put(self, outcome: Outcome) -> None:
        """Keep an outcome; nobody ever sees half of it."""
        path = self._path(outcome.scenario)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(msgspec.msgpack.encode(outcome))  # unlike JSON it knows infinity and NaN
        part.replace(path)

    def _path(self, scenario: Scenario) -> Path:
        digest = hashlib.sha256(msgspec.msgpack.encode(scenario))
        for file in scenario.files():
            digest.update(_content(file, _touched(file)))
        digest.update(code())
        return self._folder / f"{scenario.policy}-{digest.hexdigest()[:24]}.msgpack"


def _touched(path: str) -> float:
    """Latest change of a file, or of anything in a folder."""
    root = Path(path)
    return max(each.stat().st_mtime for each in (root, *root.rglob("*")))


@lru_cache(maxsize=64)
def _content(path: str, touched: float) -> bytes:
    root = Path(path)
    digest = hashlib.sha256()
    for file in sorted(each for each in (root, *root.rglob("*")) if each.is_file()):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.digest()


def code() -> bytes:
    """Digest of this package, its data and weights, followed by the versions of Python and of what computes."""
    return _source() + " ".join([platform.python_version(), *(f"{name}-{version(name)}" for name in _COMPUTE)]).encode()


@lru_cache(maxsize=1)
def _source() -> bytes:
    digest = hashlib.sha256()
    for file in sorted(each for pattern in _SOURCES for each in _PACKAGE.glob(pattern) if each.is_file()):
        digest.update(str(file.relative_to(_PACKAGE)).encode() + file.read_bytes())
    return digest.digest()
