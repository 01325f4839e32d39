"""Where a number comes from: the commit of the source that made it, and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def commit() -> str:
    """Of the checkout that this file is part of; with a plus when tracked files were changed since, else `unknown`."""
    here = Path(__file__)
    try:
        _git(here.parent, "ls-files", "--error-unmatch", here.name)  # an environment may lie in some other checkout
        return _git(here.parent, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine() -> str:
    """For people: `2 CPUs (Xeon), Python 3.12.1`."""
    return f"{os.cpu_count()} CPUs ({_processor()}), Python {platform.python_version()}"


def _processor() -> str:
    try:
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _git(folder: Path, *command: str) -> str:
    return subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True, check=True).stdout.strip()
