"""The local control plane lives, dies and fails as `trimtab cluster` promises."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.errors import LocalClusterError
from trimtab_local.control_plane.cluster import LocalCluster, local_clusters
from trimtab_local.control_plane.kubeconfig import kubectl as kubectl_as
from trimtab_local.control_plane.kubeconfig import service_account_kubeconfig
from trimtab_local.control_plane.layout import ClusterPhase, ClusterState
from trimtab_local.control_plane.options import ClusterOptions

pytestmark = pytest.mark.cluster

COMPONENTS = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"}


def test_the_session_cluster_runs_all_components(cluster: LocalCluster) -> None:
    cluster.check()
    assert set(cluster.status().components) == COMPONENTS
    assert json.loads(cluster.kubectl("get", "--raw", "/version"))["gitVersion"] == "v1.36.3"


def test_clusters_run_side_by_side_and_leave_nothing(cluster: LocalCluster, state_home: Path) -> None:
    with LocalCluster("second") as second:
        second.kubectl("create", "namespace", "only-here")
        assert "only-here" not in cluster.kubectl("get", "namespaces")
        assert set(local_clusters()) >= {"second", cluster.name}
        processes = _processes(second.status())
    _assert_gone(processes)
    assert not _files(state_home, "second")


def test_a_machine_without_a_network_can_have_one(state_home: Path) -> None:
    alone = ["unshare", "--net", "--map-root-user", "bash", "-c"]
    loopback = "ip link set lo up"
    try:
        subprocess.run([*alone, loopback], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine cannot be cut off from its network for a test: {error}")
    trimtab = f"{sys.executable} -m trimtab cluster"
    here = subprocess.run(
        [*alone, f"{loopback} && {trimtab} up --name offline && {trimtab} down --name offline"],
        env=os.environ | {"XDG_STATE_HOME": str(state_home)},
        capture_output=True,
        text=True,
    )
    assert here.returncode == 0, here.stdout + here.stderr
    assert not _files(state_home, "offline")


def test_a_name_is_taken_only_once(cluster: LocalCluster) -> None:
    with pytest.raises(LocalClusterError, match="running already"):
        LocalCluster(cluster.name).start()
    cluster.check()


def test_a_service_account_may_do_nothing_that_it_was_not_granted(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.kubectl("create", "serviceaccount", "nobody", "--namespace", "default")
    kubeconfig = tmp_path / "nobody.kubeconfig"
    service_account_kubeconfig(cluster.kubeconfig, "default", "nobody", kubeconfig)
    assert kubeconfig.stat().st_mode & 0o077 == 0
    identity = kubectl_as(kubeconfig, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
    assert identity == "system:serviceaccount:default:nobody"
    with pytest.raises(LocalClusterError, match="forbidden"):
        kubectl_as(kubeconfig, "get", "nodes")


def test_kwok_may_not_read_secrets(cluster: LocalCluster) -> None:
    assert cluster.kubectl("auth", "can-i", "list", "nodes", "--as=system:kwok").strip() == "yes"
    with pytest.raises(LocalClusterError):
        cluster.kubectl("auth", "can-i", "list", "secrets", "--as=system:kwok")


def test_a_client_that_does_not_know_the_authority_refuses_the_server(cluster: LocalCluster) -> None:
    with pytest.raises(urllib.error.URLError) as caught:
        urllib.request.urlopen(f"{cluster.status().server}/readyz", context=ssl.create_default_context(), timeout=10)
    assert isinstance(caught.value.reason, ssl.SSLCertVerificationError)


def test_nobody_is_anonymous(cluster: LocalCluster) -> None:
    trusting = ssl.create_default_context(cafile=str(cluster.kubeconfig.parent / "pki" / "ca.crt"))
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{cluster.status().server}/readyz", context=trusting, timeout=10)
    assert caught.value.code == 401
    caught.value.close()


def test_the_end_of_a_component_is_the_end_of_the_cluster_unless_it_is_to_be_started_again(state_home: Path) -> None:
    broken = LocalCluster("broken", options=ClusterOptions(restarted=("kube-scheduler",)))
    broken.start()
    before = broken.status().components
    os.kill(before["kube-scheduler"], signal.SIGKILL)
    _until(lambda: broken.status().components["kube-scheduler"] != before["kube-scheduler"])
    _until(lambda: broken.status().phase is ClusterPhase.READY)
    after = broken.status().components
    assert after == before | {"kube-scheduler": after["kube-scheduler"]}
    processes = _processes(broken.status())
    os.kill(after["kwok"], signal.SIGKILL)
    _until(lambda: broken.status().phase is ClusterPhase.FAILED)
    with pytest.raises(LocalClusterError, match=r"(?s)kwok was killed by SIGKILL; the end of .*\.log:\n\S"):
        broken.check()
    _assert_gone(processes)
    broken.stop()
    assert broken.status().phase is ClusterPhase.ABSENT


def test_a_cluster_dies_with_its_owner_even_by_sigkill(state_home: Path) -> None:
    begin = "from trimtab_local.control_plane.cluster import LocalCluster"
    script = f"{begin}; LocalCluster('orphan').start(); print('up'); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        processes = _processes(LocalCluster("orphan").status())
        owner.kill()
    _assert_gone(processes)
    _until(lambda: not _files(state_home, "orphan"))


def test_ctrl_c_during_the_start_leaves_nothing(state_home: Path) -> None:
    script = "from trimtab_local.control_plane.cluster import LocalCluster; LocalCluster('hasty').start()"
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL) as owner:
        _until(lambda: len(LocalCluster("hasty").status().components) == 2)
        processes = _processes(LocalCluster("hasty").status())
        owner.send_signal(signal.SIGINT)
    _assert_gone(processes)
    assert not _files(state_home, "hasty")


def test_components_die_with_a_killed_supervisor_and_the_name_can_be_used_again(state_home: Path) -> None:
    first = LocalCluster("again", keep=True)
    first.start()
    state = first.status()
    processes = _processes(state)
    assert state.supervisor is not None
    os.kill(state.supervisor.pid, signal.SIGKILL)
    _assert_gone(processes)
    assert "supervisor was killed" in first.status().message
    with LocalCluster("again") as second:
        second.check()


async def test_a_kept_cluster_outlives_its_block_until_it_is_stopped(state_home: Path) -> None:
    async with LocalCluster("kept", keep=True) as kept:
        processes = _processes(kept.status())
    assert LocalCluster("kept").status().phase is ClusterPhase.READY
    LocalCluster("kept").stop()
    _assert_gone(processes)


def _files(state_home: Path, name: str) -> list[Path]:
    return [path for path in (state_home / "trimtab" / "clusters").iterdir() if name in path.name]


def _processes(state: ClusterState) -> list[Path]:
    assert state.supervisor is not None
    return [Path("/proc", str(pid)) for pid in (state.supervisor.pid, *state.components.values())]


def _assert_gone(processes: list[Path]) -> None:
    """Zombies of other people's children do not count: the kernel keeps them until their parent looks."""
    _until(lambda: not any(_runs(process) for process in processes))


def _runs(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited 30 s in vain"
        time.sleep(0.05)
