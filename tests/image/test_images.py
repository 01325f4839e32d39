"""The images as they run in a cluster: as nobody, without capabilities, with a root that cannot be written to."""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.image.conftest import LOCKED, Docker, inspected

pytestmark = [pytest.mark.image, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
LARGEST = {"operator": 250e6, "agent": 120e6}
"""Bytes, unpacked."""
SLIM = sorted(LARGEST)
FILE_OF_NO_PACKAGE = {"sh", "bash", "dash", "busybox", "apt", "dpkg", "perl", "pip", "pip3", "su", "mount"}
SAMPLE = (ROOT / "manifests" / "samples" / "llama3-8b.yaml").read_text()


@pytest.fixture(scope="session")
def files(docker: Docker, images: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Image -> a tar of all its files."""
    found = {}
    for name in SLIM:
        path = tmp_path_factory.mktemp("files") / f"{name}.tar"
        container = docker("create", images[name]).stdout.strip()
        docker("export", "--output", str(path), container)
        docker("rm", container)
        found[name] = path
    return found


@pytest.mark.parametrize("name", SLIM)
def test_an_image_is_small(name: str, docker: Docker, images: dict[str, str]) -> None:
    assert inspected(docker, images[name])["Size"] <= LARGEST[name]


@pytest.mark.parametrize("name", SLIM)
def test_an_image_says_who_runs_and_what_it_is(name: str, docker: Docker, images: dict[str, str]) -> None:
    config = inspected(docker, images[name])["Config"]
    assert config["User"] == "65532:65532"
    assert not config.get("Healthcheck")
    assert config["Labels"]["org.opencontainers.image.version"] == images[name].partition(":")[2]


@pytest.mark.parametrize("name", SLIM)
def test_there_is_no_shell_and_nothing_to_install_with(name: str, files: dict[str, Path]) -> None:
    with tarfile.open(files[name]) as tar:
        members = tar.getmembers()
    names = {Path(member.name).name for member in members if member.isfile() or member.issym()}
    assert not names & FILE_OF_NO_PACKAGE
    assert not [member.name for member in members if "/site-packages/pip" in member.name or "setuptools" in member.name]
    assert not [member.name for member in members if member.mode & 0o6000]
    writable = [member.name for member in members if member.mode & 0o002 and not member.issym()]
    assert set(writable) <= {"tmp", "dev/console"}


@pytest.mark.parametrize("name", SLIM)
def test_every_module_is_compiled(name: str, files: dict[str, Path]) -> None:
    with tarfile.open(files[name]) as tar:
        paths = {Path(member.name) for member in tar.getmembers() if member.isfile()}
    sources = {
        path for path in paths if path.suffix == ".py" and path.parts[0] != "etc"
    }  # linked to, and compiled there
    compiled = {path.parent.parent / f"{path.name.partition('.')[0]}.py" for path in paths if path.suffix == ".pyc"}
    assert len(sources) > 500
    assert sources - compiled == set()


@pytest.mark.parametrize("name", SLIM)
def test_the_bill_of_materials_lists_what_is_installed(
    name: str, docker: Docker, images: dict[str, str], files: dict[str, Path]
) -> None:
    with tarfile.open(files[name]) as tar:
        bill = json.load(tar.extractfile(f"usr/share/sbom/trimtab-{name}.cdx.json"))  # type: ignore[arg-type]  # a file
        packages = {Path(member.name).name for member in tar.getmembers() if "dpkg/status.d/" in member.name}
    program = "from importlib.metadata import distributions as d; print(*(f'{x.name}=={x.version}' for x in d()))"
    installed = python(docker, images[name], program).split()
    listed = {f"{each['name']}=={each['version']}" for each in bill["components"]}
    assert {each.lower() for each in installed if not each.startswith("trimtab==")} <= {each.lower() for each in listed}
    assert bill["metadata"]["component"]["name"] == "trimtab"
    assert "libc6" in packages


def python(docker: Docker, image: str, program: str) -> str:
    """What a program prints in a locked-down container."""
    return docker("run", "--rm", *LOCKED, "--entrypoint=python", image, "-c", program).stdout


def test_the_command_line_is_there(docker: Docker, images: dict[str, str]) -> None:
    told = docker("run", "--rm", *LOCKED, images["operator"], "--help").stdout
    assert "controller" in told
    assert "extender" in told
    version = docker("run", "--rm", *LOCKED, images["operator"], "version").stdout
    assert version.strip() == f"trimtab {images['operator'].partition(':')[2]}"


@pytest.mark.parametrize("policy", ["gavel", "vdn", "sac_imitation"])
def test_policies_decide_and_learned_ones_do_so_with_their_weights(
    policy: str, docker: Docker, images: dict[str, str]
) -> None:
    """The fallback would answer for one that cannot: the reason says who decided."""
    command = ("plan", "-f", "/dev/stdin", "--gpus", "H100-SXM5-80GB=32", "--policy", policy, "-o", "json")
    done = docker("run", "--rm", "--interactive", *LOCKED, images["operator"], *command, stdin=SAMPLE)
    assert f"chosen by {policy}" in json.loads(done.stdout)["decision"]["reason"]


def test_no_policy_has_a_problem(docker: Docker, images: dict[str, str]) -> None:
    listed = json.loads(docker("run", "--rm", *LOCKED, images["operator"], "policies", "-o", "json").stdout)
    assert {"best_fit", "dqn_cnn", "q_learning", "sarsa"} <= set(listed)
    assert {name: each["problem"] for name, each in listed.items() if each["problem"]} == {}


@pytest.mark.parametrize(
    ("process", "words"),
    [("controller", "there is no kubeconfig file"), ("extender", "give extender.certificate and key")],
)
def test_what_is_missing_is_said(process: str, words: str, docker: Docker, images: dict[str, str]) -> None:
    done = docker("run", "--rm", *LOCKED, images["operator"], process, check=False)
    assert done.returncode == 1
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_the_agent_answers_its_probes(
    docker: Docker, images: dict[str, str], container: Callable[..., str], tmp_path: Path
) -> None:
    """With fake GPUs, and an API server that it waits for: nothing it needs is missing, and it stays."""
    config = tmp_path / "kubeconfig"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: u, user: {token: none}}]\n"
    )
    config.chmod(0o644)
    tmp_path.chmod(0o755)
    environment = {
        "TRIMTAB_AGENT__BACKEND": "fake",
        "TRIMTAB_AGENT__PROFILE": "/profile.yaml",
        "TRIMTAB_KUBE__KUBECONFIG": "/kubeconfig",
        "NODE_NAME": "node-0",
    }
    name = container(
        images["agent"],
        *(f"--env={key}={value}" for key, value in environment.items()),
        f"--volume={config}:/kubeconfig:ro",
        f"--volume={ROOT / 'manifests/agents/h100x8.yaml'}:/profile.yaml:ro",
    )
    program = "from urllib.request import urlopen as u; print(u('http://127.0.0.1:8082/{}').read().decode())"
    deadline = time.monotonic() + 30
    while (asked := docker("exec", name, "python", "-c", program.format("healthz"), check=False)).returncode:
        assert time.monotonic() < deadline, docker("logs", name).stderr
        time.sleep(0.5)
    assert asked.stdout.strip()
    metrics = docker("exec", name, "python", "-c", program.format("metrics")).stdout
    assert "trimtab_agent_" in metrics
    docker("stop", "--time=10", name)
    assert docker("inspect", "--format={{.State.ExitCode}}", name).stdout.strip() == "0"
