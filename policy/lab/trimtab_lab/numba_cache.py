"""Compile to machine code that is kept on disk, and never run against sources that it was not made from."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import UserWideCacheLocator

from trimtab_policy.learned import guards, worth

F = TypeVar("F", bound=Callable[..., Any])

_HERE = Path(__file__).parent
KEPT_DAYS = 30.0
"""For which code is kept that nobody runs any more."""


def _state_of_sources() -> str:
    """A name for the present text of all modules that are compiled: those of the package that import this one, and what
    they compile of others."""
    texts = [path.read_bytes() for path in sorted(_HERE.rglob("*.py"))]
    found = b"".join(text for text in texts if b"numba_cache import" in text)
    others = (Path(guards.__file__), Path(worth.__file__))
    return hashlib.sha256(found + b"".join(path.read_bytes() for path in others)).hexdigest()[:16]


_STATE = _state_of_sources()


class CodeOfState(UserWideCacheLocator):  # type: ignore[misc]  # numba tells no types
    """In the cache of the user, by what the sources say and not by where they lie: numba's own locator has the path of
    the file in it, so that each checkout and each container compiles for a minute what another one has compiled."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        """The folder of a source file below numba's in the user's cache."""
        folder = Path(py_file).absolute().parent
        return os.path.join("trimtab", _STATE, f"{folder.parent.name}.{folder.name}")

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> Any:
        """A locator for a function of this file; None where the user has no cache that can be written."""
        found = super().from_function(py_func, py_file)
        if found is not None:
            keep(Path(found.get_cache_path()).parent)
        return found


def keep(state: Path) -> None:
    """Note that code of a state is used, and delete the folders of those that have not been for long."""
    now = time.time()
    with suppress(OSError):  # another process does the same, or may not: the next one does it
        if now - state.stat().st_mtime < 3600.0:
            return
        os.utime(state)
        for other in state.parent.iterdir():
            if now - other.stat().st_mtime > KEPT_DAYS * 86400.0:
                shutil.rmtree(other, ignore_errors=True)


def jit(function: F) -> F:
    """The same function as machine code, compiled at the first call that anybody makes of it and read from the user's
    cache later.

    numba renews what it keeps when the file of a function changes, not when that of another one does which is compiled
    into it. So every state of the sources has a cache of its own. Where the user has none that can be written, it lies
    beside the package.
    """
    config = numba.config
    before = config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES
    config.CACHE_DIR = str(_HERE / "__pycache__" / f"kernel-{_STATE}")
    config.CACHE_LOCATOR_CLASSES = f"{__name__}.{CodeOfState.__name__},UserProvidedCacheLocator"
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = before
