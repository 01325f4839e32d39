"""The root file systems of images, and the wrapper of runc: what they copy, and what they leave alone."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from hack.image import root

ROOT = Path(__file__).resolve().parents[2]


def wrapper() -> ModuleType:
    """hack/kind/runc-bounded as a module."""
    loader = SourceFileLoader("runc_bounded", str(ROOT / "hack" / "kind" / "runc-bounded"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def image(tmp_path: Path) -> root.Root:
    """An empty root."""
    target = tmp_path / "image"
    target.mkdir()
    return root.Root(target)


def test_a_file_lies_where_it_lay_with_every_link_on_the_way(tmp_path: Path, image: root.Root) -> None:
    real = tmp_path / "usr" / "lib"
    real.mkdir(parents=True)
    (real / "libx.so.1.2").write_text("x")
    (real / "libx.so.1").symlink_to("libx.so.1.2")
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "absolute").symlink_to(real)
    image.add(tmp_path / "lib" / "libx.so.1")
    image.add(tmp_path / "absolute" / ".." / "lib" / "libx.so.1")
    there = image.target / tmp_path.relative_to("/")
    assert os.readlink(there / "lib") == "usr/lib"
    assert os.readlink(there / "absolute") == str(real)
    assert os.readlink(there / "usr/lib/libx.so.1") == "libx.so.1.2"
    assert (there / "lib/libx.so.1").read_text() == "x"
    assert image.taken == {real / "libx.so.1.2"}


def test_a_tree_goes_without_what_nobody_imports(tmp_path: Path, image: root.Root) -> None:
    package = tmp_path / "package"
    for name in ("tests/test_it.py", "__init__.py", "core.h", "data/empty", "client/api/x.py", "api/y.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).touch()
    image.add_tree(package, {"tests", "client/api"}, (".h",))
    there = image.target / package.relative_to("/")
    kept = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
    assert kept == {"__init__.py", "data/empty", "api/y.py"}


def test_all_libraries_of_a_program_are_found(image: root.Root) -> None:
    image.add(Path(os.path.realpath(sys.executable)))
    root.libraries(image)
    names = {path.name.partition(".so")[0] for path in image.taken}
    assert {"libc", "libgcc_s"} <= names
    assert any(name.startswith("ld-linux") for name in names)


def test_the_interpreter_starts_where_there_is_nothing_else(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root may change the root directory")
    venv, target = tmp_path / "venv", tmp_path / "image"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    command = [sys.executable, str(ROOT / "hack" / "image" / "root.py"), str(venv), str(target)]
    subprocess.run(command, check=True)
    program = "import asyncio, ctypes, decimal, lzma, sqlite3, ssl, sys; print(ssl.__cached__, sys.prefix)"
    program += "; assert ssl.create_default_context().get_ca_certs()"
    command = ["/usr/sbin/chroot", str(target), f"{venv}/bin/python", "-B", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={})
    assert done.returncode == 0, done.stderr
    cached, prefix = done.stdout.split()
    assert (target / cached.lstrip("/")).is_file()
    assert prefix == str(venv)
    names = {path.name for path in target.rglob("*") if not path.is_dir()}
    assert not names & {"sh", "bash", "dash", "apt", "dpkg", "pip", "setuptools", "ensurepip", "su"}
    assert list((target / "var/lib/dpkg/status.d").glob("libc6")) or not Path("/var/lib/dpkg/status").exists()


def test_no_container_asks_for_what_the_machine_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, became = wrapper(), []
    wanted = {"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE", "CAP_KILL"], "effective": ["CAP_SYS_RESOURCE"]}
    (tmp_path / "config.json").write_text(json.dumps({"process": {"capabilities": wanted}, "root": {"path": "/"}}))
    (tmp_path / "process.json").write_text(json.dumps({"capabilities": wanted}))
    monkeypatch.setattr(module, "lacking", lambda: {"CAP_SYS_RESOURCE"})
    monkeypatch.setattr(module.shutil, "which", lambda *_, **__: "/sbin/runc")
    monkeypatch.setattr(module.os, "execv", lambda path, arguments: became.append((path, arguments)))
    flags = ["create", "--bundle", str(tmp_path), f"--process={tmp_path}/process.json", "name"]
    monkeypatch.setattr(sys, "argv", ["runc-bounded", *flags])
    module.main()
    assert became == [("/sbin/runc", ["/sbin/runc", *flags])]
    left = {"bounding": ["CAP_CHOWN", "CAP_KILL"], "effective": []}
    whole = json.loads((tmp_path / "config.json").read_text())
    assert whole == {"process": {"capabilities": left}, "root": {"path": "/"}}
    assert json.loads((tmp_path / "process.json").read_text()) == {"capabilities": left}


def test_what_is_lacking_is_what_the_kernel_says() -> None:
    module = wrapper()
    status = Path("/proc/self/status").read_text()
    bound = int(next(line for line in status.splitlines() if line.startswith("CapBnd")).split()[1], 16)
    assert len(module.lacking()) == len(module.NAMES) - (bound & (1 << len(module.NAMES)) - 1).bit_count()
    assert len(module.NAMES) == 41
