"""Where things lie: the user's cache of binaries, the state of running clusters."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """The user's cache for built binaries; safe to delete."""
    return _base("XDG_CACHE_HOME", ".cache") / "trimtab"


def clusters_directory() -> Path:
    """One directory per local cluster that runs, or that failed and was not taken down yet."""
    return _base("XDG_STATE_HOME", ".local/state") / "trimtab" / "clusters"


def _base(variable: str, default: str) -> Path:
    """The XDG base directory; a relative value is to be ignored (XDG Base Directory Specification 0.8)."""
    value = os.environ.get(variable, "")
    return Path(value) if Path(value).is_absolute() else Path.home() / default
