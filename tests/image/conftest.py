"""A Docker daemon and the images, for the tests that run them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trimtab

ROOT = Path(__file__).resolve().parents[2]
Docker = Callable[..., "subprocess.CompletedProcess[str]"]
"""docker(*arguments, stdin="", check=True) -> how it ended."""
LOCKED = ("--read-only", "--user=65532:65532", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none")
"""What Pod Security `restricted` asks for, and a root that nobody can write to. No /tmp either."""


@pytest.fixture(scope="session")
def docker() -> Docker:
    """The command line of a daemon that answers."""

    def run(*arguments: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(["docker", *arguments], input=stdin, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
        return done

    try:
        answered = run("version", check=False).returncode == 0
    except FileNotFoundError:
        answered = False
    if not answered:
        pytest.skip('no Docker daemon answers: eval "$(hack/kind/docker up)" starts one')
    return run


@pytest.fixture(scope="session")
def images(docker: Docker) -> dict[str, str]:
    """Target -> name of the image: `operator` and `agent`."""
    return {target: built(target) for target in ("operator", "agent")}


@pytest.fixture(scope="session")
def trainer(docker: Docker) -> str:
    """Name of the image `trainer`."""
    return built("trainer")


def built(target: str) -> str:
    """Name of an image, built if anything has changed; with $TRIMTAB_IMAGES_BUILT, taken as it is."""
    if not os.environ.get("TRIMTAB_IMAGES_BUILT"):
        command = [ROOT / "hack" / "kind" / "images", target]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        assert done.stdout.split() == [f"trimtab-{target}:{trimtab.__version__}"]
    return f"trimtab-{target}:{trimtab.__version__}"


@pytest.fixture
def container(docker: Docker) -> Iterator[Callable[..., str]]:
    """container(image, *options, command=()) -> id of a running one, locked down; gone after the test."""
    made: list[str] = []

    def start(image: str, *options: str, command: tuple[str, ...] = ()) -> str:
        made.append(docker("run", "--detach", *LOCKED, *options, image, *command).stdout.strip())
        return made[-1]

    yield start
    for name in made:
        docker("rm", "--force", "--volumes", name)


def inspected(docker: Docker, image: str) -> dict[str, Any]:
    """What `docker image inspect` says."""
    return dict(json.loads(docker("image", "inspect", image).stdout)[0])
