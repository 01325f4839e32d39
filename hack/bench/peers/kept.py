"""What of a race, or a stream, is done already: an interrupted one goes on where it ended.

Ratios come from one run, so what is kept is one as a whole, by the content of everything that takes part: another
line in a contestant, another module, another machine or another start of this one, and it begins anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from trimtab_local.checkout import checkout

T = TypeVar("T", bound=msgspec.Struct)
SOURCES = ("operator/trimtab", "operator/local/trimtab_local", "policy/trimtab_policy", "hack/bench")
BOOT = Path("/proc/sys/kernel/random/boot_id")


class Kept(Generic[T]):
    """The file of one of them."""

    def __init__(self, directory: Path, digest: str) -> None:
        self._path = directory / f"{digest}.json"

    def read(self, empty: T) -> T:
        """What is done; `empty` where nothing is."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=type(empty))
        except FileNotFoundError:
            return empty

    def write(self, done: T) -> None:
        """Keep it, in one step: whoever is killed meanwhile has what was there before."""
        self._path.parent.mkdir(exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(done))
        os.replace(partial, self._path)

    def forget(self) -> None:
        """Begin anew."""
        self._path.unlink(missing_ok=True)


def directory() -> Path:
    """Where races are kept."""
    return checkout() / ".bench-peers"


def digest(*about: str, programs: Iterable[Path] = ()) -> str:
    """Of everything that takes part. `about` is what else must be the same, `programs` the contestants' binaries."""
    whole = hashlib.sha256("\0".join((*about, str(os.cpu_count()), BOOT.read_text())).encode())
    for path in _sources():
        whole.update(path.read_bytes())
    for program in programs:
        found = program.stat()
        whole.update(f"{program} {found.st_size} {found.st_mtime_ns}".encode())
    return whole.hexdigest()[:16]


def _sources() -> list[Path]:
    top = checkout()
    python = [path for folder in SOURCES for path in (top / folder).rglob("*.py")]
    modules = [*(top / "hack" / "cluster").glob("go.*"), *Path(__file__).parent.rglob("go.*")]
    return sorted((*python, *modules))
