"""A policy, or a command, of another distribution: one line in its `pyproject.toml`, and nothing of ours is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "acme-scheduling"
version = "1.0"

[project.entry-points."trimtab.policies"]
acme = "acme:Acme"
acme_broken = "acme_missing:Policy"
acme_silent = "acme:Silent"
best_fit = "acme:Acme"

[project.entry-points."trimtab.commands"]
acme = "acme:hello"
acme-broken = "acme_missing:hello"
version = "acme:hello"
plan = "acme:hello"
"""
MODULE = '''
from trimtab_policy.policy import Kind, load


class Acme:
    """Decides as `fcfs`."""

    name = "acme"
    kind = Kind.RULE
    source = "Acme Corp."

    def decide(self, snapshot):
        decision = load("fcfs").decide(snapshot)
        return type(decision)(self.name, decision.placements, decision.pending, decision.stops)


class Silent:
    """Does not say what kind of policy it is."""

    name = "acme_silent"


def hello(name: str = "you") -> None:
    """Say hello."""
    print("hello", name)
'''


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip has put the distribution into."""
    project, target = tmp_path_factory.mktemp("acme"), tmp_path_factory.mktemp("site")
    (project / "pyproject.toml").write_text(PROJECT + '[tool.hatch.build.targets.wheel]\ninclude = ["acme.py"]\n')
    (project / "acme.py").write_text(MODULE)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", target, project], check=True)
    return target


def trimtab(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line of a Python that has the distribution."""
    path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "trimtab", *arguments]
    env = os.environ | {"PYTHONPATH": path, "COLUMNS": "120"}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_its_policy_is_listed_and_decides(installed: Path) -> None:
    asked = ("-f", "manifests/samples/gpt2-124m.yaml", "--gpus", "T4=8", "--policy", "acme", "-o", "json")
    answer = trimtab(installed, "plan", *asked)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["decision"]["gpu_type"] == "T4"


def test_a_policy_that_does_not_say_what_it_is_or_cannot_be_imported_is_told_as_such(installed: Path) -> None:
    asked = ("plan", "-f", "manifests/samples/gpt2-124m.yaml", "--gpus", "T4=8", "--policy")
    for name, told in (("acme_broken", "cannot be imported from acme_missing:Policy"), ("acme_silent", "needs `kind`")):
        answer = trimtab(installed, *asked, name)
        assert answer.returncode == 1
        assert told in " ".join(answer.stderr.split())
        assert "Traceback" not in answer.stderr


def test_its_command_is_a_command_of_trimtab(installed: Path) -> None:
    assert trimtab(installed, "acme", "--name", "world").stdout == "hello world\n"
    shown = trimtab(installed, "--help").stdout
    assert "Say hello." in shown
    assert "cannot be imported from acme_missing:hello" in " ".join(shown.replace("│", "").split())
    for options in ((), ("--name", "world", "now")):  # whatever it takes: what is wrong is that it is not there
        broken = trimtab(installed, "acme-broken", *options)
        assert (broken.returncode, broken.stdout) == (1, "")
        assert "cannot be imported from acme_missing:hello" in " ".join(broken.stderr.split())
        assert "Traceback" not in broken.stderr


def test_nobody_takes_the_place_of_what_is_ours(installed: Path) -> None:
    assert trimtab(installed, "version").stdout.startswith("trimtab ")
    assert "hello" not in trimtab(installed, "plan", "--help").stdout
    script = "from trimtab_policy import policy; print(policy.entry('best_fit').source)"
    path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": path}, capture_output=True)
    assert done.stdout.decode().strip() == "Trimtab"
