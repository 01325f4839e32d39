"""When the commands that take too long for CI were last run, on which commit, and how it came out.

Kept in `hack/last-runs.json`, which is committed: whoever comes next sees it without having run anything. Whole runs
only: a part, or a run that was interrupted, says nothing about the rest. CI's are not kept: it has logs of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

FILE = Path(__file__).resolve().parent / "last-runs.json"


def told(command: str, file: Path = FILE) -> str:
    """`hack/faults --all: last run 2026-11-27 on 3f9ac2d41b07: 1,004 crashes, 0 violations`."""
    found = _read(file).get(command)
    if found is None:
        return f"{command}: no whole run has been noted yet"
    return f"{command}: last run {found['date']} on {found['commit']}: {found['result']}"


def note(command: str, result: str, commit: str, file: Path = FILE) -> str:
    """Keep how a whole run came out that began on `commit`. Returns what to say about it; nothing is kept where CI
    runs."""
    if os.environ.get("CI"):
        return f"{command}: {result}"
    runs = _read(file)
    runs[command] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit, "result": result}
    file.write_text(json.dumps(runs, indent=2, sort_keys=True) + "\n")
    return f"{command}: {result}; noted in {file.name}: commit it, so that others see it"


def commit_now() -> str:
    """The commit that is checked out, and whether anything but these notes was changed. To be asked for when a run
    begins: when it ends, another may be."""
    changed = _git("status", "--porcelain", "--", ".", f":!{FILE.name}", f":!hack/{FILE.name}")
    return _git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")


def _read(file: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(FILE.parents[1]), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
