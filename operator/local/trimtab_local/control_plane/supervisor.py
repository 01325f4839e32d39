"""The process that holds a control plane: starts it, notices what dies, stops it in order.

    python -m trimtab_local.control_plane.supervisor NAME --lifeline | --detach [--options JSON]

All clusters run under a supervisor in a session of its own, so that no terminal and no thread of the caller can take a
component away; it prints its pid. With `--lifeline` it lives as long as its stdin is open: the caller holds the other
end of that pipe, and the kernel closes it however the caller ends. With `--detach` it is nobody's child and runs until
SIGTERM.

Its single thread starts all components, which the kernel kills should the supervisor itself be killed.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from trimtab.errors import LocalClusterError, TrimtabError
from trimtab.printable import say
from trimtab_local.checkout import checkout
from trimtab_local.control_plane.build import binaries
from trimtab_local.control_plane.components import (
    PORTS,
    Component,
    etcd,
    kube_apiserver,
    kube_controller_manager,
    kube_scheduler,
    kwok,
    prepare,
    second_scheduler,
    server_url,
)
from trimtab_local.control_plane.health import Probe
from trimtab_local.control_plane.kubeconfig import kubectl
from trimtab_local.control_plane.layout import ClusterPhase, ClusterState, Layout
from trimtab_local.control_plane.options import DEFAULTS, ClusterOptions
from trimtab_local.control_plane.process import ProcessId, spawn, stop, tail

READY_SECONDS = 90.0
"""Longest wait for one component; a busy 2-core machine needs a few seconds."""
STOP_SECONDS = 10.0
POLL_SECONDS = 0.05
PORT_ATTEMPTS = 3
PORT_TAKEN = "address already in use"


class Stopped(Exception):
    """Somebody asked us to end, by SIGTERM or by closing the lifeline."""


class Supervisor:
    """One start of one cluster."""

    def __init__(self, layout: Layout, lifeline: int | None, options: ClusterOptions) -> None:
        self._layout = layout
        self._options = options
        self._lifeline = lifeline
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._components: dict[str, Component] = {}
        self._ports: dict[str, int] = {}

    def run(self) -> None:
        """Start everything, then wait. Raises Stopped when asked to end, LocalClusterError when a component fails."""
        self._record(ClusterPhase.STARTING)
        for attempt in range(PORT_ATTEMPTS):
            try:
                self._start()
                break
            except PortTaken:
                if attempt == PORT_ATTEMPTS - 1:
                    raise
                self.stop()
        while True:
            self._record(ClusterPhase.READY)
            for name in self._wait(None):
                self._replace(name)

    def stop(self) -> None:
        """Stop all components, clients of the API server first, the store last."""
        store = [self._children.pop(name) for name in ("kube-apiserver", "etcd") if name in self._children]
        stop(list(self._children.values()), STOP_SECONDS)
        for child in store:
            stop([child], STOP_SECONDS)
        self._children.clear()

    def fail(self, message: str) -> None:
        """Record why the cluster is no more."""
        self._record(ClusterPhase.FAILED, message)

    def _start(self) -> None:
        layout, programs, stages = self._layout, binaries(), checkout() / "manifests" / "fake" / "stages.yaml"
        options = self._options
        shutil.rmtree(layout.etcd_data)
        layout.etcd_data.mkdir(mode=0o700)
        self._ports = ports = free_ports()
        prepare(layout, ports)
        api = kube_apiserver(layout, ports, programs, options)
        self._launch(etcd(layout, ports, programs), api)
        kubectl(layout.kubeconfig, "apply", "--server-side", "-f", str(checkout() / "hack/cluster/kwok-rbac.yaml"))
        self._launch(
            kube_controller_manager(layout, ports, programs, options),
            kube_scheduler(layout, ports, programs, options),
            kwok(layout, ports, programs, stages),
        )
        if options.second_scheduler:
            self._launch(second_scheduler(layout, ports, programs, options, options.second_scheduler))
        self._await_service_account(api)

    def _launch(self, *components: Component) -> None:
        """Start components together and wait until each is ready."""
        environment = {**os.environ, "GOGC": "75"}  # heaps grow by 75 %, not 100 %, between collections
        for component in components:
            log = self._layout.log(component.name)
            self._children[component.name] = spawn(component.argv, log, environment)
            self._components[component.name] = component
        self._record(ClusterPhase.STARTING)
        for component in components:
            self._until(f"{component.name} is ready", Probe(component).ready)

    def _await_service_account(self, api: Component) -> None:
        """A pod cannot be created before the controller manager has made its namespace's default ServiceAccount."""
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        self._until("the default ServiceAccount exists", lambda: Probe(api).get(path) == 200)

    def _until(self, what: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not done():
            if time.monotonic() > deadline:
                names = ", ".join(self._children)
                raise LocalClusterError(f"waited {READY_SECONDS:.0f} s until {what}; see the logs of {names}")
            for name in self._wait(POLL_SECONDS):
                self._report_death(name)

    def _wait(self, seconds: float | None) -> list[str]:
        """Sleep, but wake when components die, which are returned. Raises Stopped when the lifeline closes."""
        handles = {os.pidfd_open(child.pid): name for name, child in self._children.items()}
        lifeline = [] if self._lifeline is None else [self._lifeline]
        try:
            woken, _, _ = select.select([*handles, *lifeline], [], [], seconds)
        finally:
            for handle in handles:
                os.close(handle)
        if self._lifeline in woken:
            raise Stopped
        return [handles[handle] for handle in woken]

    def _replace(self, name: str) -> None:
        """Start a component again that has ended. Raises LocalClusterError where that is not wanted of it."""
        if name not in self._options.restarted:
            self._report_death(name)
        self._children.pop(name).wait()
        self._launch(self._components[name])

    def _report_death(self, name: str) -> NoReturn:
        status = self._children[name].wait()
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        log = self._layout.log(name)
        kind = PortTaken if PORT_TAKEN in tail(log) else LocalClusterError
        raise kind(f"{name} {how}; the end of {log}:\n{tail(log)}")

    def _record(self, phase: ClusterPhase, message: str = "") -> None:
        pids = {name: child.pid for name, child in self._children.items()}
        server = server_url(self._ports) if self._ports else ""
        self._layout.write_state(ClusterState(phase, ProcessId.of(os.getpid()), server, pids, message))


class PortTaken(LocalClusterError):
    """Somebody took a port between our choosing it and a component's binding it."""


def free_ports() -> dict[str, int]:
    """A free port for each purpose, no two alike. They stay free only until somebody takes them."""
    sockets = {purpose: socket.socket() for purpose in PORTS}
    try:
        for listener in sockets.values():
            listener.bind(("127.0.0.1", 0))
        return {purpose: listener.getsockname()[1] for purpose, listener in sockets.items()}
    finally:
        for listener in sockets.values():
            listener.close()


def supervise(layout: Layout, lifeline: int | None, options: ClusterOptions = DEFAULTS) -> int:
    """Run a cluster until it is asked to end (returns 0, leaves no file) or fails (returns 1, leaves its logs).

    Raises LocalClusterError when the cluster runs already.
    """
    layout.root.parent.mkdir(parents=True, exist_ok=True)
    with held(layout.lock):
        shutil.rmtree(layout.root, ignore_errors=True)  # of a cluster that failed or was killed: we hold its lock
        layout.create()
        return _supervise_locked(Supervisor(layout, lifeline, options), layout)


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """Hold a lock file that is gone afterwards. Raises LocalClusterError when somebody else holds it."""
    while True:
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LocalClusterError(f"another process holds {lock}: the cluster is running already") from None
            if not lock.exists() or not os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                continue  # its former holder removed the file after we had opened it
            try:
                yield
            finally:
                lock.unlink()
            return


def _supervise_locked(supervisor: Supervisor, layout: Layout) -> int:
    try:
        supervisor.run()
    except Stopped:
        supervisor.stop()
        shutil.rmtree(layout.root)
        layout.output.unlink(missing_ok=True)
    except (TrimtabError, OSError) as error:
        supervisor.stop()
        supervisor.fail(str(error))
        return 1
    return 0


def _raise_stopped(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # we are stopping; a second request would leave it half done
    raise Stopped


def main() -> int:
    """Entry point; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="trimtab_local.control_plane.supervisor")
    parser.add_argument("name")
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--lifeline", action="store_true", help="end when stdin is closed")
    way.add_argument("--detach", action="store_true", help="print the pid and go on in the background")
    parser.add_argument("--options", default="{}", help="ClusterOptions as JSON")
    arguments = parser.parse_args()
    options = msgspec.json.decode(arguments.options, type=ClusterOptions)
    if arguments.detach and os.fork():
        os._exit(0)
    say(str(os.getpid()))
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, _raise_stopped)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return supervise(Layout(arguments.name), sys.stdin.fileno() if arguments.lifeline else None, options)
    except TrimtabError as error:
        say(str(error), error=True)
        return 2


if __name__ == "__main__":
    sys.exit(main())
