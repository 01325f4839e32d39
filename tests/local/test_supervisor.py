"""Starts that go wrong, with components that are shell scripts: fast, and as wrong as we like."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from trimtab.errors import LocalClusterError, UsageError
from trimtab_local.checkout import checkout
from trimtab_local.control_plane.build import read_module
from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.components import PORTS
from trimtab_local.control_plane.layout import ClusterPhase
from trimtab_local.control_plane.process import ProcessId, tail, terminate
from trimtab_local.control_plane.supervisor import free_ports, held


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that do nothing in place of the built ones; clusters have their files below tmp_path."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    module = read_module(checkout() / "hack" / "cluster")
    directory = tmp_path / "cache" / "trimtab" / "bin" / module.digest
    directory.mkdir(parents=True)
    for name in module.names:
        script(directory / name, "exec sleep 60")
    return directory


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("keep", [False, True])
def test_a_component_that_ends_at_once_fails_the_start_with_its_last_words(programs: Path, keep: bool) -> None:
    script(programs / "etcd", "echo my disk is full; exit 3")
    cluster = LocalCluster("unlucky", keep=keep)
    with pytest.raises(LocalClusterError, match=r"(?s)etcd exited with status 3; the end of .*etcd\.log:\nmy disk"):
        cluster.start()
    assert cluster.status().phase is ClusterPhase.FAILED
    assert cluster.log("etcd").exists(), "the logs of a failure are kept until `down`"
    cluster.stop()
    assert list(cluster.kubeconfig.parents[1].iterdir()) == []


def test_a_port_that_was_taken_meanwhile_is_replaced(programs: Path, tmp_path: Path) -> None:
    script(programs / "etcd", f"echo $1 >>{tmp_path}/starts; echo 'bind: address already in use'; exit 1")
    with pytest.raises(LocalClusterError, match="address already in use"):
        LocalCluster("crowded").start()
    assert len((tmp_path / "starts").read_text().splitlines()) == 3


def test_a_missing_program_is_an_error_not_a_crash(programs: Path) -> None:
    (programs / "kube-apiserver").unlink()
    with pytest.raises(LocalClusterError, match="kube-apiserver"):
        LocalCluster("incomplete").start()


@pytest.mark.parametrize("name", ["", "../up", "Capital", "-dash", "x" * 41])
def test_names_that_could_leave_the_directory_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cluster name"):
        LocalCluster(name)


def test_stopping_what_does_not_run_does_nothing(programs: Path) -> None:
    LocalCluster("never").stop()
    assert LocalCluster("never").status().phase is ClusterPhase.ABSENT


def test_ports_differ() -> None:
    assert len(set(free_ports().values())) == len(PORTS)


def test_a_lock_has_one_holder_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held(path), pytest.raises(LocalClusterError, match="running already"), held(path):
        pass
    with held(path):
        assert path.exists()
    assert not path.exists()


def test_a_pid_that_was_reused_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        real = ProcessId.of(child.pid)
        terminate(ProcessId(child.pid, real.started - 1), grace=1)
        assert real.alive
        terminate(real, grace=10)
        assert not real.alive
    assert child.returncode == -15


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    command = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        terminate(ProcessId.of(child.pid), grace=0.2)
    assert child.returncode == -9


def test_our_own_process_is_alive() -> None:
    assert ProcessId.of(os.getpid()).alive


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_text("\n".join(f"line {number}" for number in range(100_000)))
    assert tail(log, 2) == "line 99998\nline 99999"
