"""`hack/slow`: a command with a part of the CPU, and nothing left of that afterwards."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from trimtab_local.checkout import checkout

SLOW = checkout() / "hack" / "slow"
BUSY = """
import time
began, spent = time.monotonic(), time.process_time()
while time.process_time() - spent < 0.4:
    pass
print((time.process_time() - spent) / (time.monotonic() - began))
"""


def slow(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(SLOW), *arguments], input=stdin, capture_output=True, text=True, check=False)


@pytest.fixture
def limited() -> None:
    """Skips where no group of processes can be limited."""
    tried = slow("0.5", "true")
    if tried.returncode == 2:
        pytest.skip(tried.stderr.strip())


def groups() -> set[Path]:
    return {path for path in Path("/sys/fs/cgroup").glob("**/trimtab-slow-*") if path.is_dir()}


@pytest.mark.usefixtures("limited")
def test_a_command_has_no_more_of_the_cpu_than_its_share() -> None:
    share = 0.2 / len(os.sched_getaffinity(0))
    had = float(slow(f"{share:.4f}", "python3", "-c", BUSY).stdout)
    assert had < 0.4, "of one CPU; it may have 0.2"


@pytest.mark.usefixtures("limited")
def test_it_ends_as_the_command_does_and_leaves_no_group_behind_though_something_runs_on() -> None:
    before = groups()
    ended = slow("0.5", "bash", "-c", "cat; sleep 60 >/dev/null 2>&1 & echo $!; exit 7", stdin="said\n")
    said, left = ended.stdout.split()
    subprocess.run(["kill", left], check=True)
    assert (ended.returncode, said, groups()) == (7, "said", before)


@pytest.mark.parametrize("arguments", [(), ("0.5",), ("0", "true"), ("1.5", "true"), ("half", "true"), ("-1", "true")])
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...]) -> None:
    refused = slow(*arguments)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: ")
