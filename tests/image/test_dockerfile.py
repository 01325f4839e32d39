"""What the Dockerfile promises can be read in it: who runs, what is pinned, and that all say the same version."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from hack import requirements

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FINAL = ("operator", "agent", "trainer")
OPERATOR_WITHOUT = ("scipy", "cffi", "pycparser")
AGENT_WITHOUT = ("numpy", "safetensors")


def instructions(text: str) -> list[tuple[str, str]]:
    """(`RUN`, its argument) and so on; lines that go on are joined."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*#.*\n", "", text))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Stage -> its instructions, in the order of the file."""
    found: dict[str, list[tuple[str, str]]] = {}
    for word, rest in instructions(DOCKERFILE):
        if word == "FROM":
            source, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()  # type: ignore[union-attr]  # or it is no stage
            found[name] = [(word, source)]
        elif found:
            found[list(found)[-1]].append((word, rest))
    return found


def values(stage: str, word: str) -> list[str]:
    """Arguments of one kind of instruction."""
    return [rest for kind, rest in stages()[stage] if kind == word]


@pytest.mark.parametrize("name", FINAL)
def test_an_image_runs_as_nobody_in_particular_and_needs_no_shell(name: str) -> None:
    assert values(name, "USER") == ["65532:65532"]
    assert values(name, "RUN") == []
    for command in values(name, "ENTRYPOINT") + values(name, "CMD"):
        assert all(isinstance(word, str) for word in json.loads(command))


@pytest.mark.parametrize("name", FINAL)
def test_an_image_says_what_it_is(name: str) -> None:
    labels = " ".join(values(name, "LABEL"))
    for label in ("title", "description", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in labels
    assert f'title="trimtab-{name}"' in labels
    assert 'version="${VERSION}"' in labels


def test_probes_belong_to_kubernetes() -> None:
    assert "HEALTHCHECK" not in {word for word, _ in instructions(DOCKERFILE)}


def test_the_base_is_the_official_image_unless_another_is_given() -> None:
    """By digest: a tag can be moved to anything."""
    before = [rest for word, rest in instructions(DOCKERFILE)[:2] if word == "ARG"]
    bases = [rest for rest in before if rest.startswith("BASE=")]
    assert len(bases) == 1
    assert re.fullmatch(r"BASE=python:3\.\d+-slim-\w+@sha256:[0-9a-f]{64}", bases[0])
    assert values("build", "FROM") == values("trainer", "FROM") == ["${BASE}"]
    assert values("operator", "FROM") == values("agent", "FROM") == ["scratch"]


def test_package_image_chart_and_manifests_have_one_version() -> None:
    version = PROJECT["version"]
    assert ("ARG", f"VERSION={version}") in instructions(DOCKERFILE)
    for path in (ROOT / "Dockerfile", *ROOT.glob("manifests/*.yaml")):
        assert set(re.findall(r"trimtab-(?:operator|agent|trainer):([\w.-]+)", path.read_text())) <= {version}, path
    chart = ROOT / "charts" / "trimtab" / "Chart.yaml"
    said = yaml.safe_load(chart.read_text())
    assert (said["version"], said["appVersion"]) == (version, version)


def test_what_the_images_install_is_locked() -> None:
    """And so is what builds them; that pip compares hashes is tested in tests/supply."""
    listed = [run for stage in stages() for run in values(stage, "RUN") if "hack/requirements.py" in run]
    assert len(listed) == 4
    assert "requirements.py --only-groups build,image " in values("build", "RUN")[0]
    assert "PIP_ONLY_BINARY=:all:" in " ".join(values("build", "ENV"))
    locked = requirements.read_lock(requirements.LOCK.read_text())
    every = [
        *requirements.requirements(["operator", "agent"]),
        *requirements.only(["torch", "numpy", "highspy", "clarabel"]),
    ]
    every += requirements.of_groups(["build", "image"])
    names = {each.name for each in requirements.needed(map(requirements.name_of, every), locked)}
    assert {"hatchling", "cyclonedx-bom", "torch", "aiohttp"} <= names


def test_every_stage_that_fetches_packages_is_told_from_where() -> None:
    """Without BuildKit, no stage inherits an ARG of the one that it is made from."""
    fetching = {name for name in stages() if any("pip" in run and "install " in run for run in values(name, "RUN"))}
    assert fetching == {"build", "operator-root", "agent-root", "trainer-root"}
    assert [name for name in fetching if not {"PIP_INDEX_URL", "PIP_CERT"} <= set(values(name, "ARG"))] == []


def test_what_is_copied_is_let_through_and_nothing_else() -> None:
    let = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = [rest.split()[:-1] for stage in stages() for rest in values(stage, "COPY") if "--from" not in rest]
    copied = {source for sources in copies for source in sources}
    assert [path for path in let if not (ROOT / path).exists()] == []
    assert {source for source in copied if not any(related(source, path) for path in let)} == set()
    assert {path for path in let if not any(related(path, source) for source in copied)} == set()


def related(one: str, other: str) -> bool:
    """Whether one of two paths is the other, or lies in it."""
    return Path(one).is_relative_to(other) or Path(other).is_relative_to(one)


def test_requirements_are_those_of_the_project() -> None:
    agent = {requirements.name_of(each) for each in requirements.requirements(["agent"], AGENT_WITHOUT)}
    assert {"h2", "nvidia-ml-py", "msgspec"} <= agent
    assert not agent & {*AGENT_WITHOUT, "kopf", "torch"}
    assert f"agent --without {','.join(AGENT_WITHOUT)}" in DOCKERFILE
    with pytest.raises(ValueError, match="nothing requires scikit-learn"):
        requirements.requirements(["agent"], ["scikit-learn"])
    with pytest.raises(ValueError, match="requires no scikit-learn"):
        requirements.only(["scikit-learn"])
    with pytest.raises(KeyError):
        requirements.requirements(["agents"])


def test_the_agent_runs_without_what_its_image_has_not() -> None:
    """Whatever it imports, when it starts and later: all modules of the package, with the missing ones forbidden."""
    program = f"""
import importlib, pkgutil, sys
sys.modules |= dict.fromkeys({[*AGENT_WITHOUT, "kopf", "kubernetes", "typer", "rich", "scipy"]!r})
import trimtab.agent
for module in pkgutil.walk_packages(trimtab.agent.__path__, "trimtab.agent."):
    importlib.import_module(module.name)
from trimtab.settings import load
print(len(sys.modules), load().agent.backend)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_operator_solves_without_what_its_image_has_not() -> None:
    """Clarabel is installed there without what it says that it needs."""
    assert f"operator --with highspy,clarabel --leave-out {','.join(OPERATOR_WITHOUT)} " in DOCKERFILE
    program = f"""
import sys
sys.modules |= dict.fromkeys({OPERATOR_WITHOUT!r})
import numpy as np
from trimtab_policy.solvers.conic import ConeProgram, solve
matrix, right = np.array([[-1.0], [-1.0], [1.0], [0.0]]), np.array([-3.0, 0.0, 0.0, 0.0])
print(*solve(ConeProgram(np.ones(1), matrix, right, linear=1)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(3.0, abs=1e-6)
