"""What a target is, and how one input is judged.

A target takes bytes and asserts what must hold whatever they are; every exception that it lets out is a finding, and so
is an input that takes longer than its deadline, in CPU time: how fast the machine is, or how busy, decides nothing.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
DEADLINE = 10.0
"""CPU seconds of one input, unless its target has another one: far above what the slowest takes, instrumented."""
LONGEST = 4096
"""Bytes of an input."""


class Target(NamedTuple):
    """Something that reads what strangers send."""

    about: str
    run: Callable[[bytes], None]
    deadline: float = DEADLINE


NAMES = (
    "calibration",
    "devices",
    "extender",
    "foreign",
    "gpunodes",
    "jobs",
    "kubelets",
    "profiles",
    "queues",
    "reports",
    "rudder",
    "shapes",
    "snapshots",
    "text",
    "tokens",
    "traces",
    "weights",
    "workloads",
)
"""Each is a module of `tests.fuzz.targets` with a `TARGET`. (`rounds` is no target of bytes: `tests.fuzz.__main__`.)"""


class Late(AssertionError):
    """An input took longer than it may."""


def load(name: str) -> Target:
    """The target of this name; what it tests is imported only now."""
    target: Target = import_module(f"tests.fuzz.targets.{name}").TARGET
    return target


def execute(target: Target, data: bytes) -> None:
    """Feed one input. Raises whatever the target lets out, and Late."""
    begun = time.thread_time()
    target.run(data)
    if (took := time.thread_time() - begun) > target.deadline:
        raise Late(f"took {took:.1f} s of CPU, more than {target.deadline:g} s")


# --- the kept corpus --------------------------------------------------------------------------------------------------
def kept(name: str) -> Iterator[bytes]:
    """Inputs of a target that are kept: one in a line of base64 (of URLs), remarks begin with #."""
    path = CORPUS / f"{name}.txt"
    for line in path.read_text().splitlines() if path.exists() else ():
        if line and not line.startswith("#"):
            yield base64.urlsafe_b64decode(line)


def crashes_kept(name: str) -> list[str]:
    """The lines of the corpus that may not be dropped: crashes of the past, below the remark of each."""
    path = CORPUS / f"{name}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    begin = next((at for at, line in enumerate(lines) if line.startswith("# crash")), len(lines))
    return lines[begin:]


def keep(name: str, inputs: Iterable[bytes], *, remark: str = "") -> None:
    """Write the corpus: these inputs, or with a remark, what is there and below the remark these crashes."""
    before = crashes_kept(name)
    found = list(kept(name)) if remark else list(inputs)
    crashes = {base64.urlsafe_b64decode(line) for line in before if not line.startswith("#")}
    lines = [_line(data) for data in sorted({*found} - crashes, key=lambda data: (len(data), data))]
    if remark:
        before += [f"# crash: {remark}", *map(_line, inputs)]
    (CORPUS / f"{name}.txt").write_text("\n".join([*lines, *before]) + "\n")


def _line(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()
