"""`LocalCluster`: a control plane of your own for the length of a `with` block, or until `trimtab cluster down`.

    with LocalCluster("demo") as cluster:
        subprocess.run(["kubectl", "--kubeconfig", cluster.kubeconfig, "get", "nodes"])

Clusters of different names run side by side. All real work is done by a supervisor process
(`trimtab_local.control_plane.supervisor`); this is its caller's side.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import msgspec

from trimtab.errors import LocalClusterError
from trimtab_local.control_plane.build import binaries
from trimtab_local.control_plane.kubeconfig import kubectl
from trimtab_local.control_plane.layout import ClusterPhase, ClusterState, Layout
from trimtab_local.control_plane.options import DEFAULTS, ClusterOptions, ExtenderFiles
from trimtab_local.control_plane.process import ProcessId, tail, terminate
from trimtab_local.control_plane.supervisor import POLL_SECONDS, READY_SECONDS

START_SECONDS = 3 * READY_SECONDS
STOP_SECONDS = 30.0
"""The supervisor stops its components in this time; after it, the kernel does."""


class LocalCluster:
    """A cluster by name. Nothing runs before `start`.

    With `keep` the cluster outlives this process and the `with` block, and only `stop` (or `trimtab cluster down`)
    ends it. Without, it ends with this process, even if that is killed.
    """

    def __init__(self, name: str, *, keep: bool = False, options: ClusterOptions = DEFAULTS) -> None:
        self.name = name
        self._keep = keep
        self._options = options
        self._layout = Layout(name)
        self._supervisor: ProcessId | None = None
        self._child: subprocess.Popen[bytes] | None = None
        """The supervisor, which lives as long as we hold its stdin. None for a kept cluster: that is nobody's child."""

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the cluster's administrator; exists once the cluster is ready."""
        return self._layout.kubeconfig

    @property
    def extender_files(self) -> ExtenderFiles:
        """Certificates for an extender and the scheduler that asks it; they exist once the cluster starts."""
        return self._layout.extender_files

    @property
    def binaries(self) -> Path:
        """Directory of kubectl and the other programs."""
        return binaries()

    def start(self) -> None:
        """Start the control plane and wait until it is ready.

        Raises LocalClusterError when it runs already, was not built, or a component fails (with the end of its log).
        """
        if self.status().phase in (ClusterPhase.STARTING, ClusterPhase.READY):
            raise LocalClusterError(
                f"cluster {self.name} is running already: `trimtab cluster down --name {self.name}` stops it"
            )
        binaries()
        self._layout.root.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._await_ready(self._spawn_supervisor())
        except LocalClusterError:
            self._end_supervisor()  # the logs stay, to be read
            raise
        except BaseException:  # Ctrl-C, too, must leave nothing behind
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the cluster, whoever started it, and remove its files. Does nothing when there is none."""
        self._end_supervisor()
        self._remove()

    def status(self) -> ClusterState:
        """What is known of the cluster now."""
        state = self._layout.read_state()
        if state.phase in (ClusterPhase.STARTING, ClusterPhase.READY) and not (
            state.supervisor and state.supervisor.alive
        ):
            message = f"its supervisor was killed; {self._supervisor_log()}"
            return msgspec.structs.replace(state, phase=ClusterPhase.FAILED, message=message)
        return state

    def check(self) -> None:
        """Raise LocalClusterError, with the end of the log in question, unless all components run."""
        if (state := self.status()).phase is not ClusterPhase.READY:
            raise LocalClusterError(f"cluster {self.name} is {state.phase}: {state.message}".removesuffix(": "))

    def kubectl(self, *arguments: str, stdin: str = "", timeout: float = 60) -> str:
        """Output of kubectl as the cluster's administrator. Raises LocalClusterError with what it complained of."""
        return kubectl(self.kubeconfig, *arguments, stdin=stdin, timeout=timeout)

    def log(self, component: str) -> Path:
        """Log file of a component, or of the `supervisor`."""
        return self._layout.log(component)

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.check()
        finally:
            if not self._keep:
                self.stop()

    async def __aenter__(self) -> LocalCluster:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _spawn_supervisor(self) -> ProcessId:
        way, stdin = ("--detach", subprocess.DEVNULL) if self._keep else ("--lifeline", subprocess.PIPE)
        command = [sys.executable, "-m", "trimtab_local.control_plane.supervisor", self.name, way]
        command += ["--options", msgspec.json.encode(self._options).decode()]
        with self._layout.output.open("wb") as log:
            self._child = child = subprocess.Popen(
                command, stdin=stdin, stdout=subprocess.PIPE, stderr=log, cwd="/", start_new_session=True
            )
        assert child.stdout is not None  # asked for above
        said = child.stdout.readline()
        if self._keep:
            child.stdout.close()
            child.wait()  # the supervisor has left it
            self._child = None
        try:
            self._supervisor = ProcessId.of(int(said or 0))
            return self._supervisor
        except ProcessLookupError:
            raise LocalClusterError(f"cluster {self.name} did not start: {self._supervisor_log()}") from None

    def _await_ready(self, supervisor: ProcessId) -> None:
        """Poll the record until it says ready: it may be that of a former supervisor still."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            running = supervisor.alive  # asked before the record is read: its last words must not be missed
            state = self._layout.read_state()
            ours = state.supervisor == supervisor
            if ours and state.phase is ClusterPhase.READY:
                return
            if not running:
                message = state.message if ours and state.message else self._supervisor_log()
                raise LocalClusterError(f"cluster {self.name} did not start: {message}")
            if time.monotonic() > deadline:
                raise LocalClusterError(f"cluster {self.name} is not ready after {START_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def _end_supervisor(self) -> None:
        if self._child is not None and self._supervisor is None:
            with contextlib.suppress(ProcessLookupError):  # interrupted before it could tell its pid
                os.killpg(self._child.pid, signal.SIGTERM)
        elif supervisor := self._supervisor or self._layout.read_state().supervisor:
            terminate(supervisor, STOP_SECONDS)
        if self._child is not None:
            self._child.communicate()  # closes the lifeline and reaps
        self._supervisor = self._child = None

    def _remove(self) -> None:
        """Remove what a supervisor that failed or was killed left; others clean up themselves."""
        if self.status().phase in (ClusterPhase.STARTING, ClusterPhase.READY):
            return
        shutil.rmtree(self._layout.root, ignore_errors=True)
        self._layout.output.unlink(missing_ok=True)

    def _supervisor_log(self) -> str:
        return f"the end of {self._layout.output}:\n{tail(self._layout.output)}"


def local_clusters() -> dict[str, ClusterState]:
    """All clusters that run, or that failed and were not taken down, by name."""
    directory = Layout("any").root.parent
    names = sorted(path.name for path in directory.iterdir() if path.is_dir()) if directory.is_dir() else []
    return {name: LocalCluster(name).status() for name in names}
