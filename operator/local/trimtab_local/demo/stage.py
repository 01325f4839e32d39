"""Everything the demo needs to run: a control plane with our CRDs and rights, fake nodes, and the controller.

The controller is a process of its own with a ServiceAccount's token: it can do what manifests/rbac.yaml allows and no
more. Without `keep`, all that is started here ends with this process, however that ends: the cluster's supervisor
reads the end of its lifeline, the controller gets its parent's death signal. With `keep`, `take_down` ends it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from trimtab.errors import LocalClusterError, TrimtabError
from trimtab.kube.client import KubeClient
from trimtab.names import LEASE_NAME, SYSTEM_NAMESPACE
from trimtab.settings import KubeSettings
from trimtab.ui.interrupts import uninterrupted
from trimtab.ui.progress import Silence, step
from trimtab_local.checkout import checkout
from trimtab_local.control_plane.build import build
from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.kubeconfig import service_account_kubeconfig
from trimtab_local.control_plane.layout import ClusterPhase
from trimtab_local.control_plane.process import ProcessId, spawn, stop, tail, terminate
from trimtab_local.fake.apply import apply_nodes
from trimtab_local.fake.nodes import expand
from trimtab_local.fake.profile import FakeCluster, load_profile

KEPT = "demo"
"""Name of the cluster that `--keep` leaves; others are named after their process, so that demos run side by side."""
SERVICE_ACCOUNT = LEASE_NAME
KEPT_PROCESSES = ("controller", "console")
STOP_SECONDS = 10.0
PAGE_SECONDS = 30.0


class Stage:
    """A cluster with a controller at work."""

    def __init__(
        self, cluster: LocalCluster, controller: subprocess.Popen[bytes], profile: FakeCluster, page: str = ""
    ) -> None:
        self.cluster = cluster
        self.profile = profile
        self.page = page
        """Address of the console; empty without one."""
        self._controller = controller

    @property
    def controller_log(self) -> Path:
        return self.cluster.log("controller")

    def check(self) -> None:
        """Raise LocalClusterError, with the end of the log in question, unless everything runs."""
        self.cluster.check()
        if (status := self._controller.poll()) is not None:
            log = self.controller_log
            raise LocalClusterError(f"the controller ended with status {status}; the end of {log}:\n{tail(log)}")


@contextmanager
def stage(speedup: float, profile_name: str, policy: str, *, keep: bool, web: bool = False) -> Iterator[Stage]:
    """Start everything; stop it at the end of the block, unless it is to be kept and the block ends well."""
    build()
    cluster = LocalCluster(KEPT if keep else f"demo-{os.getpid()}", keep=keep)
    if keep and cluster.status().phase is ClusterPhase.READY:
        raise TrimtabError("a demo is still there from an earlier --keep: `hack/demo --stop` ends it")
    with ExitStack() as undo:
        with step("starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KWOK"):
            cluster.start()
            undo.callback(_stop_cluster, cluster)
        with step("applying manifests/crds and manifests/rbac.yaml"):
            _install(cluster)
        with uninterrupted():
            controller = _start_controller(cluster, speedup, policy, keep=keep)
            undo.callback(_stop_controller, controller)
        profile = load_profile(checkout() / "manifests" / "fake" / f"{profile_name}.yaml")
        with step(f"creating {profile.nodes} fake nodes with {profile.gpus} GPUs: {profile.description}"):
            asyncio.run(_create_nodes(cluster.kubeconfig, profile))
        page = ""
        if web:
            with uninterrupted():
                console = _start(cluster, "console", ["ui", f"--kubeconfig={cluster.kubeconfig}"], keep=keep)
                undo.callback(_stop_controller, console)
            with step("starting the console"):
                page = _page(cluster, console)
        yield Stage(cluster, controller, profile, page)
        if keep:
            undo.pop_all()


def _stop_controller(controller: subprocess.Popen[bytes]) -> None:
    with uninterrupted():
        stop([controller], STOP_SECONDS)


def _stop_cluster(cluster: LocalCluster) -> None:
    with uninterrupted(), step("stopping everything that was started"):
        cluster.stop()


def take_down() -> None:
    """End what `--keep` has left; does nothing when there is nothing."""
    cluster = LocalCluster(KEPT)
    for name in KEPT_PROCESSES:
        if (record := _record(cluster, name)).is_file():
            terminate(msgspec.json.decode(record.read_bytes(), type=ProcessId), STOP_SECONDS)
    cluster.stop()


def _install(cluster: LocalCluster) -> None:
    manifests = checkout() / "manifests"
    cluster.kubectl("apply", "--server-side", "-f", str(manifests / "crds"), "-f", str(manifests / "rbac.yaml"))
    cluster.kubectl("wait", "--for=condition=Established", "-f", str(manifests / "crds"), "--timeout=30s")


def _start_controller(cluster: LocalCluster, speedup: float, policy: str, *, keep: bool) -> subprocess.Popen[bytes]:
    kubeconfig = cluster.kubeconfig.with_name("controller.kubeconfig")
    service_account_kubeconfig(cluster.kubeconfig, SYSTEM_NAMESPACE, SERVICE_ACCOUNT, kubeconfig)
    words = ["controller", f"--kubeconfig={kubeconfig}", f"--policy={policy}", f"--fake-speedup={speedup}"]
    return _start(cluster, "controller", words, keep=keep)


def _start(cluster: LocalCluster, name: str, words: list[str], *, keep: bool) -> subprocess.Popen[bytes]:
    """Start a process of Trimtab."""
    command = [sys.executable, "-m", "trimtab", *words]
    ours = {"TRIMTAB_METRICS__HOST": "127.0.0.1", "TRIMTAB_METRICS__PORT": "0"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")} | ours
    log = cluster.log(name)
    if not keep:
        return spawn(command, log, environment)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    _record(cluster, name).write_bytes(msgspec.json.encode(ProcessId.of(process.pid)))
    return process


def _page(cluster: LocalCluster, console: subprocess.Popen[bytes]) -> str:
    """The address that the console has printed. Raises LocalClusterError when it does not."""
    log, deadline = cluster.log("console"), time.monotonic() + PAGE_SECONDS
    while console.poll() is None and time.monotonic() < deadline:
        found = [line for line in log.read_text().splitlines() if line.startswith("http://")] if log.exists() else []
        if found:
            return found[-1]
        time.sleep(0.1)
    raise LocalClusterError(f"the console did not say where it is; the end of {log}:\n{tail(log)}")


async def _create_nodes(kubeconfig: Path, profile: FakeCluster) -> None:
    async with await KubeClient.connect(KubeSettings(kubeconfig=kubeconfig)) as client:
        await apply_nodes(client, expand(profile), Silence())


def _record(cluster: LocalCluster, name: str) -> Path:
    """Which process is kept under this name."""
    return cluster.kubeconfig.with_name(f"{name}.json")
