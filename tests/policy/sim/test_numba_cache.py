"""What is compiled once is not compiled again, wherever the sources lie, and is never run for other sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

import trimtab_lab
from trimtab_lab.numba_cache import keep

PROGRAM = """
import json
import numpy as np
from trimtab_lab.kernel import heap
heap.push(np.zeros(4), np.zeros(4, dtype=np.int64), 0, 1.0, 1)
print(json.dumps([heap.push.stats.cache_hits.total(), heap.push.stats.cache_path]))
"""


def run(lab: Path, home: Path) -> tuple[int, Path]:
    """A process of a checkout calls a function: how often it was found compiled, and the folder of its code."""
    paths = os.pathsep.join([str(lab), *sys.path])
    given = {**os.environ, "PYTHONPATH": paths, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=given, capture_output=True, text=True, check=True)
    hits, path = msgspec.json.decode(done.stdout, type=tuple[int, str])
    return hits, Path(path)


@pytest.fixture
def checkouts(tmp_path: Path) -> tuple[Path, Path]:
    """Two checkouts of the package."""
    ours = Path(trimtab_lab.__file__).parent
    for name in ("one", "two"):
        shutil.copytree(ours, tmp_path / name / "trimtab_lab", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "one", tmp_path / "two"


def test_a_second_checkout_finds_what_the_first_has_compiled(checkouts: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = checkouts
    assert run(one, tmp_path)[0] == 0
    assert run(two, tmp_path)[0] == 1

    changed = two / "trimtab_lab" / "kernel" / "queues.py"  # another file, whose functions call this one
    changed.write_text(f"{changed.read_text()}\n# changed\n")
    assert run(two, tmp_path)[0] == 0, "other sources, other code"


def test_code_that_nobody_runs_any_more_is_deleted(tmp_path: Path) -> None:
    now = time.time()
    old, young, used = (tmp_path / name for name in ("old", "young", "used"))
    for folder, days in ((old, 31), (young, 29), (used, 365)):
        folder.mkdir()
        os.utime(folder, (now - days * 86400.0,) * 2)
    keep(used)
    assert not old.exists()
    assert young.is_dir()
    assert used.stat().st_mtime > now - 60.0


def test_without_a_cache_of_the_user_it_lies_beside_the_package(checkouts: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    hits, path = run(checkouts[0], tmp_path)
    assert hits == 0
    assert path.is_relative_to(checkouts[0] / "trimtab_lab" / "__pycache__")
