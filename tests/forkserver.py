"""Controllers in a tenth of the time: processes forked from one that has imported everything already.

Tests start hundreds of controllers and extenders, and most of a start is Python reading modules, some two seconds. What
is forked runs the same command line as `trimtab controller`, with memory, sockets and a process ID of its own, and dies
of SIGKILL as any other. Nothing has run before the fork: no event loop, no thread, no connection.

    shared().spawn(["controller", "--config", "settings.yaml"], log, directory)

Their wall clock may be wrong (`Forge.ahead`), and be set while they run (signals `FORTH` and `BACK`): time-machine
changes what Python says of it, in that process alone. The monotonic clock goes on undisturbed, as on a machine whose
clock is set. OpenSSL asks the kernel itself: certificates are judged by the real time.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import time_machine
from msgspec import Struct

STEP_SECONDS = 600.0
"""By how much the signals below set a clock."""
FORTH, BACK = signal.SIGUSR1, signal.SIGUSR2


class Ran(Struct, frozen=True):
    """What became of a command."""

    returncode: int
    stdout: str
    stderr: str
    cpu_seconds: float
    """Its own, from the fork on."""


class Forge:
    """The process that forks."""

    ahead: float | None = None
    """Seconds by which the wall clock of who is forked from now on is ahead; None: it is the real one, and stays so."""

    def __enter__(self) -> Forge:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forkserver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            env=environment,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def spawn(
        self,
        arguments: Sequence[str],
        log: Path,
        directory: Path,
        environment: Mapping[str, str] | None = None,
        program: str = "trimtab",
        outcome: Path | None = None,
    ) -> Forged:
        """`trimtab ARGUMENTS` (or `faultproxy`), its output at the end of `log`; its environment is ours unless another
        one is given. With `outcome` stderr is apart, and how it ended is kept: see `run`."""
        assert self._process.stdin
        assert self._process.stdout
        asked = {
            "program": program,
            "arguments": list(arguments),
            "log": str(log),
            "directory": str(directory),
            "ahead": self.ahead,
            "environment": dict(os.environ if environment is None else environment),
            "outcome": str(outcome or ""),
        }
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        return Forged(int(self._process.stdout.readline()))

    def run(self, arguments: Sequence[str], directory: Path, seconds: float = 300.0) -> Ran:
        """`trimtab ARGUMENTS`, waited for. Raises subprocess.TimeoutExpired."""
        with tempfile.TemporaryDirectory() as folder:
            said, outcome = Path(folder) / "stdout", Path(folder) / "outcome"
            self.spawn(arguments, said, directory, outcome=outcome).wait(seconds)
            code, cpu_seconds = outcome.read_text().split()
            return Ran(int(code), said.read_text(), _beside(said).read_text(), float(cpu_seconds))


@cache
def shared() -> Forge:
    """One for all tests of this process, started by the first that needs it. Its clock is the real one."""
    forge = Forge().__enter__()
    atexit.register(forge.__exit__, None, None, None)
    return forge


class Forged:
    """A forked process, with the part of `subprocess.Popen` that is needed; it is nobody's child but the forge's."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)
        self._ended = False

    def poll(self) -> int | None:
        if not self._ended and select.select([self._handle], [], [], 0)[0]:
            self._ended = True
            os.close(self._handle)
        return 0 if self._ended else None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        limit = time.monotonic() + (timeout or 60.0)
        while self.poll() is None:
            if time.monotonic() > limit:
                raise subprocess.TimeoutExpired("trimtab", timeout or 60.0)
            time.sleep(0.01)
        return 0


def serve() -> None:
    """Fork what stdin asks for, a line of JSON each, and print its process ID."""
    from tests import faultproxy

    import trimtab.cli
    import trimtab.commands.controller
    import trimtab.commands.doctor
    import trimtab.commands.extender
    import trimtab.controller.app
    import trimtab.doctor.examine

    programs = {"trimtab": trimtab.cli.main, "faultproxy": faultproxy.main}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead leave no zombies
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            log, outcome = Path(asked["log"]), asked["outcome"]
            _become(log, _beside(log) if outcome else log, asked["directory"], asked["environment"])
            if asked["ahead"] is not None:
                _set_clock(asked["ahead"])
            sys.argv = [asked["program"], *asked["arguments"]]
            if outcome:
                _tell(programs[asked["program"]], Path(outcome))
            programs[asked["program"]]()
            os._exit(0)  # it never gets here: the command line ends the process
        print(pid, flush=True)


def _tell(program: Callable[[], None], outcome: Path) -> NoReturn:
    """Run it to its end, and write its exit code and CPU seconds. The command line prints tracebacks itself."""
    code: object = 0
    try:
        program()
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    if not isinstance(code, int):
        code = 0 if code is None else 1
    outcome.write_text(f"{code} {time.process_time()}")
    os._exit(code)


def _beside(log: Path) -> Path:
    """Where stderr goes that is apart."""
    return log.with_suffix(".stderr")


def _become(log: Path, errors: Path, directory: str, environment: Mapping[str, str]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    more = environment.get("PYTHONPATH", "").split(os.pathsep)  # a distribution with policies of its own, say
    sys.path[1:1] = [each for each in more if each and each not in sys.path]
    random.seed()  # else all that are forked would wait for the same random times
    outputs = [os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) for path in (log, errors)]
    for number, wanted in enumerate((os.open(os.devnull, os.O_RDONLY), *outputs)):
        os.dup2(wanted, number)
    os.chdir(directory)


def _set_clock(ahead: float) -> None:
    """From here on this process has another wall clock, which `FORTH` and `BACK` set."""
    clock = time_machine.travel(time.time() + ahead, tick=True).start()
    signal.signal(FORTH, lambda *_: clock.shift(STEP_SECONDS))
    signal.signal(BACK, lambda *_: clock.shift(-STEP_SECONDS))


if __name__ == "__main__":
    serve()
