"""Processes that cannot outlive us, and are never mistaken for others.

A child is in a process group of its own, so that Ctrl-C in the terminal reaches only whoever may stop it in order, and
the kernel kills it when its parent dies, even by SIGKILL. That death signal belongs to the parent *thread*: `spawn` is
for single-threaded processes, which also makes its code between fork and exec safe.

A process is named by its pid and the time it started: a pid alone may have been given to somebody else since.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ProcessId(Struct, frozen=True):
    """A pid that cannot be confused after it was reused."""

    pid: int
    started: int
    """Clock ticks from boot to the start of the process (proc(5), /proc/PID/stat field 22)."""

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The process that has this pid now. Raises ProcessLookupError."""
        if (started := _started(pid)) is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, started)

    @property
    def alive(self) -> bool:
        """Whether the process runs; a zombie does not."""
        return _started(self.pid) == self.started


def spawn(argv: Sequence[str | Path], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a child that dies with us; its output is appended to `log`."""
    parent = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    with log.open("ab") as output:
        return subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            process_group=0,
            preexec_fn=die_with_parent,
        )


def stop(children: Sequence[subprocess.Popen[bytes]], grace: float) -> None:
    """Ask all children to end, kill those that have not after `grace` seconds, and reap them."""
    for child in children:
        child.terminate()
    for child in children:
        try:
            child.wait(grace)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def terminate(process: ProcessId, grace: float) -> None:
    """End a process, child or not: SIGTERM, then SIGKILL after `grace` seconds. Returns once it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if not process.alive:  # the pid is somebody else's now; from here on the handle cannot change its owner
            return
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, None)):
            signal.pidfd_send_signal(handle, number)
            if select.select([handle], [], [], seconds)[0]:
                return
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log; empty when there is none."""
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 64 * 1024))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


def _started(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the command name before it may hold blanks and brackets
    return None if state in "ZX" else int(fields[18])
