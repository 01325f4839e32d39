"""Compile to machine code that is kept on disk, and never run against sources that it was not made from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from trimtab_policy.learned import guards, worth

F = TypeVar("F", bound=Callable[..., Any])

_HERE = Path(__file__).parent


def _state_of_sources() -> str:
    """A name for the present text of all modules that are compiled: those of the package that import this one, and what
    they compile of others."""
    texts = [path.read_bytes() for path in sorted(_HERE.rglob("*.py"))]
    found = b"".join(text for text in texts if b"numba_cache import" in text)
    others = (Path(guards.__file__), Path(worth.__file__))
    return hashlib.sha256(found + b"".join(path.read_bytes() for path in others)).hexdigest()[:16]


_CACHE = str(_HERE / "__pycache__" / f"kernel-{_state_of_sources()}")


def jit(function: F) -> F:
    """The same function as machine code, compiled at its first call in a checkout and read from the cache later.

    numba renews what it keeps when the file of a function changes, not when that of another one does which is compiled
    into it. So every state of the sources has a cache of its own. Where the package lies on a read-only disk, numba
    keeps it with the user's caches.
    """
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _CACHE
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    finally:
        numba.config.CACHE_DIR = before
