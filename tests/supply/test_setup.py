"""`hack/setup` installs what is asked for, once, and everything or nothing of it counts.

A copy of it runs on a `.venv` whose Python only writes down what it is asked: real installations take minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hack.requirements import read_lock

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    *("hack/setup", "hack/demo", "hack/requirements.py", "hack/constraints.txt"),
    *("pyproject.toml", "policy/lab/pyproject.toml", "operator/local/pyproject.toml"),
)
PYTHON = f"""#!/usr/bin/env bash
case "$*" in
    "-m pip --version" | -c*) exit 0 ;;
    hack/requirements.py*) exec {sys.executable} "$@" ;;
    *) echo "$*" >>calls ;;
esac
if [[ -e broken && "$*" == *" install "* ]]; then exit 1; fi
if [[ "$*" =~ --target\\ ([^ ]+) ]]; then
    mkdir -p "${{BASH_REMATCH[1]}}/bin"
    cp uv "${{BASH_REMATCH[1]}}/bin/uv"
fi
"""
UV = """#!/usr/bin/env bash
echo "uv $*" >>calls
[[ ! -e broken && ! -e unreachable ]]
"""


class Checkout:
    def __init__(self, root: Path) -> None:
        self.root = root
        for name in COPIED:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
        browser = root / "hack" / "web" / "browser"  # the real one would install packages of this machine
        browser.parent.mkdir(exist_ok=True)
        browser.write_text("#!/bin/sh\necho browser >>calls\nexit 1\n")
        browser.chmod(0o755)
        python = root / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(PYTHON)
        python.chmod(0o755)
        (root / "uv").write_text(UV)
        (root / "uv").chmod(0o755)

    def run(self, *command: str) -> tuple[int, list[str]]:
        """The exit code, and what the Python of `.venv` was asked."""
        calls = self.root / "calls"
        calls.write_text("")
        ended = subprocess.run(command, cwd=self.root, capture_output=True, text=True, env=os.environ | {"PYTHON": ""})
        return ended.returncode, calls.read_text().splitlines()

    def wanted(self) -> set[str]:
        return {each.name for each in read_lock((self.root / ".venv" / "wanted.txt").read_text())}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


BROWSER = "browser"
"""Is tried, and setup goes on without where it cannot be had."""
OTHERS = "-m hack.kind.programs others"
BUILD = "-m trimtab_local.control_plane.build"
HEAVY = {"torch", "ray", "scipy", "numba", "matplotlib", "pytest", "mypy"}


def test_the_demo_has_a_small_part_and_setup_adds_the_rest_to_it(checkout: Checkout) -> None:
    code, calls = checkout.run("hack/setup", "--demo")
    assert (code, len(calls), calls[-1]) == (0, 4, BUILD)
    small = checkout.wanted()
    assert {"kopf", "highspy", "cryptography", "typer"} <= small
    assert not small & HEAVY
    assert "policy/lab" not in calls[2]
    assert checkout.run("hack/setup", "--demo") == (0, [BUILD])

    code, calls = checkout.run("hack/setup")
    assert (code, calls[3:]) == (0, [BROWSER, OTHERS, BUILD])
    assert checkout.wanted() > small | HEAVY
    assert "--editable policy/lab" in calls[2]


def test_where_everything_is_installed_the_demo_installs_nothing(checkout: Checkout) -> None:
    assert len(checkout.run("hack/setup")[1]) == 6
    assert checkout.run("hack/setup", "--demo") == (0, [BUILD])
    assert checkout.run("hack/setup") == (0, [BUILD])


def test_what_is_installed_is_what_the_lock_names_with_its_hashes_and_nothing_is_built(checkout: Checkout) -> None:
    for arguments in ([], ["--demo"]):
        _, calls = Checkout(checkout.root / ("all" if not arguments else "demo")).run("hack/setup", *arguments)
        for call in calls[:2]:  # pip has uv, which has the rest
            assert {"--no-deps", "--require-hashes", "--only-binary"} <= set(call.split())
        assert {"uv", "--no-deps", "--no-build-isolation"} <= set(calls[2].split())


def test_where_uv_finds_no_way_pip_installs_the_same(checkout: Checkout) -> None:
    (checkout.root / "unreachable").touch()
    code, calls = checkout.run("hack/setup", "--demo")
    assert (code, len(calls), calls[-1]) == (0, 6, BUILD)
    for by_uv, by_pip in (calls[1:3], calls[3:5]):
        assert by_uv.startswith("uv pip install ")
        assert by_pip.startswith("-m pip ")
        same = slice(by_pip.index("--no-deps"), None)
        assert by_uv.endswith(by_pip[same])


@pytest.mark.parametrize(("then", "calls"), [(["--demo"], 4), ([], 6)])
def test_an_installation_that_was_interrupted_is_done_again(checkout: Checkout, then: list[str], calls: int) -> None:
    checkout.run("hack/setup", "--demo")
    (checkout.root / "broken").touch()
    assert checkout.run("hack/setup")[0] == 1
    (checkout.root / "broken").unlink()
    assert len(checkout.run("hack/setup", *then)[1]) == calls
    assert checkout.run("hack/setup", *then) == (0, [BUILD])


def test_a_change_of_what_is_wanted_is_installed(checkout: Checkout) -> None:
    checkout.run("hack/setup")
    with (checkout.root / "pyproject.toml").open("a") as file:
        file.write("# another one\n")
    assert len(checkout.run("hack/setup", "--demo")[1]) == 4
    assert len(checkout.run("hack/setup")[1]) == 6


def test_an_argument_that_it_does_not_know_installs_nothing(checkout: Checkout) -> None:
    assert checkout.run("hack/setup", "--dmeo") == (2, [])


@pytest.mark.parametrize(
    ("user", "apt", "code", "asked", "said"),
    [
        (1000, 0, 1, [], "as root: apt-get install chromium-headless-shell"),
        (0, 100, 1, ["update"], "apt-get could not install chromium-headless-shell"),
        (0, 0, 0, ["update", "install"], "installing Debian's chromium-headless-shell"),
    ],
)
def test_chromium_is_installed_where_that_can_be_and_else_what_to_do_is_said(
    tmp_path: Path, user: int, apt: int, code: int, asked: list[str], said: str
) -> None:
    shutil.copytree(ROOT / "hack" / "web", tmp_path / "hack" / "web")
    stubs = {
        "bin/id": f"echo {user}", "bin/apt-get": f"echo $1 >>{tmp_path}/asked; exit {apt}", "hack/vendor": "exit 0",
    }  # fmt: skip
    for name, does in stubs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "dirname", "env", "sh"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    run = [tmp_path / "hack" / "web" / "browser"]
    ended = subprocess.run(run, capture_output=True, text=True, env={"PATH": str(tmp_path / "bin")})
    assert (ended.returncode, said in ended.stderr) == (code, True), ended.stderr
    calls = tmp_path / "asked"
    assert (calls.read_text().split() if calls.exists() else []) == asked
