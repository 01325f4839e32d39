"""Results on disk, one file a run, so that an interrupted evaluation goes on where it was.

A file is named after everything that its run depends on: the scenario, the bytes of the files that it reads, and what
computes it (`sources`): source, data, weights of the policy, versions of packages. Whatever of these changes, the run
is made again; nothing stale is ever read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from trimtab_lab.evaluation import sources
from trimtab_lab.evaluation.scenario import Scenario, ScenarioResult
from trimtab_lab.evaluation.workers import Work


class Store:
    """A folder of outcomes."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder. Raises OSError when it cannot be written."""
        self._folder = folder / "runs"
        self._folder.mkdir(parents=True, exist_ok=True)

    def get(self, scenario: Scenario) -> ScenarioResult | None:
        """The outcome, if this very run was made before; a file that was cut short counts as none."""
        path = self._path(scenario)
        if not path.is_file():
            return None
        try:
            return msgspec.msgpack.decode(path.read_bytes(), type=ScenarioResult)
        except msgspec.DecodeError:
            path.unlink()
            return None

    def put(self, outcome: ScenarioResult) -> None:
        """Keep an outcome; nobody ever sees half of it."""
        path = self._path(outcome.scenario)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(msgspec.msgpack.encode(outcome))  # unlike JSON it knows infinity and NaN
        part.replace(path)

    def _path(self, scenario: Scenario) -> Path:
        digest = hashlib.sha256(msgspec.msgpack.encode(scenario))
        for file in scenario.files():
            digest.update(_content(file, _touched(file)))
        digest.update(sources.of_run(scenario.policy))
        return self._folder / f"{scenario.policy}-{digest.hexdigest()[:24]}.msgpack"


def kept_or_made(
    scenarios: Sequence[Scenario], folder: Path, work: Work, progress: Callable[[str], None]
) -> Iterator[ScenarioResult]:
    """Outcomes that `folder` has, then those that are made now and kept there. Raises OSError, and what runs raise."""
    store = Store(folder)
    known = {scenario: outcome for scenario in scenarios if (outcome := store.get(scenario))}
    yield from known.values()
    missing = [scenario for scenario in scenarios if scenario not in known]
    progress(f"{len(known)} of {len(scenarios)} runs are there")
    for done, outcome in enumerate(work(missing) if missing else (), start=len(known) + 1):
        store.put(outcome)
        progress(f"{done} of {len(scenarios)} runs are there")
        yield outcome


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
