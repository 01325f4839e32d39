"""`trimtab get` and completion with the habits of kubectl, as people see them: against a real API server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from tests.live.harness import training_job
from typer.testing import CliRunner

from trimtab.cli import app
from trimtab_local.control_plane.cluster import LocalCluster

pytestmark = pytest.mark.cluster

ONE, OTHER = "get-team-a", "get-team-b"
JOBS = {ONE: ("llama", "gpt"), OTHER: ("llama",)}


@pytest.fixture(scope="module")
def jobs(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A kubeconfig whose context names the first of two namespaces, each with jobs."""
    path = tmp_path_factory.mktemp("get") / "config"
    content = yaml.safe_load(cluster.kubeconfig.read_text())
    content["contexts"][0]["context"]["namespace"] = ONE
    path.write_text(yaml.safe_dump(content))
    for namespace, names in JOBS.items():
        cluster.kubectl("create", "namespace", namespace)
        for name in names:
            job = training_job(name)
            job["metadata"] |= {"namespace": namespace, "labels": {"kind": name}}
            cluster.kubectl("apply", "-f", "-", stdin=json.dumps(job))
    yield path
    for namespace in JOBS:
        cluster.kubectl("delete", "ltj", "--all", "-n", namespace)


def ran(kubeconfig: Path, *words: str, rc: int = 0, **environment: str) -> Result:
    found = CliRunner(env={"KUBECONFIG": str(kubeconfig), **environment}).invoke(app, words, prog_name="trimtab")
    assert found.exit_code == rc, found.output
    return found


def names(found: Result) -> list[str]:
    return [line.split()[0] for line in found.stdout.splitlines()]


def test_the_namespace_is_that_of_the_context_until_another_is_asked_for(jobs: Path) -> None:
    assert sorted(names(ran(jobs, "get", "jobs", "--no-headers"))) == ["gpt", "llama"]
    assert names(ran(jobs, "get", "ltj", "-n", OTHER)) == ["NAME", "llama"]
    everywhere = ran(jobs, "get", "job", "-A").stdout.splitlines()
    assert everywhere[0].split()[:2] == ["NAMESPACE", "NAME"]
    assert sorted({line.split()[0] for line in everywhere[1:] if line.startswith("get-team")}) == [ONE, OTHER]


def test_what_o_name_prints_can_be_asked_for(jobs: Path) -> None:
    assert names(ran(jobs, "get", "ltj/llama", "--no-headers")) == ["llama"]
    printed = ran(jobs, "get", "jobs", "gpt", "-o", "name").stdout.strip()
    assert names(ran(jobs, "get", printed, "--no-headers")) == ["gpt"]
    assert "No such command" in ran(jobs, "get", "pods/llama", rc=2).stderr


def test_by_name_and_by_label(jobs: Path) -> None:
    assert names(ran(jobs, "get", "job", "gpt", "--no-headers")) == ["gpt"]
    assert names(ran(jobs, "get", "job", f"{OTHER}/llama", "gpt", "--no-headers")) == [OTHER, ONE]
    assert names(ran(jobs, "get", "jobs", "-l", "kind=gpt", "--no-headers")) == ["gpt"]
    assert ran(jobs, "get", "jobs", "-o", "name", "-l", "kind=gpt").stdout == "llmtrainingjob.trimtab.dev/gpt\n"


def test_forms(jobs: Path) -> None:
    assert ran(jobs, "get", "job", "gpt", "-o", "jsonpath={.namespace}/{.name}").stdout == f"{ONE}/gpt\n"
    listed = ran(jobs, "get", "jobs", "-o", 'jsonpath={range .items[*]}{.name}{"\\n"}{end}').stdout
    assert sorted(listed.split()) == ["gpt", "llama"]
    assert json.loads(ran(jobs, "get", "job", "gpt", "-o", "json").stdout)["name"] == "gpt"
    assert [each["name"] for each in json.loads(ran(jobs, "get", "jobs", "-n", OTHER, "-o", "json").stdout)] == [
        "llama"
    ]
    assert {"QUEUE", "PRIORITY", "POLICY"} <= set(ran(jobs, "get", "jobs", "-o", "wide").stdout.splitlines()[0].split())
    assert all(line == line.rstrip() for line in ran(jobs, "get", "jobs").stdout.splitlines())


def test_what_there_is_not_is_told(jobs: Path) -> None:
    assert (
        "there is no namespace get-team-c; did you mean get-team-"
        in ran(jobs, "get", "jobs", "-n", "get-team-c", rc=1).stderr
    )
    assert "did you mean llama?" in ran(jobs, "get", "job", "lama", rc=1).stderr
    assert f"there is no LLMTrainingJob {OTHER}/gpt" in ran(jobs, "explain", f"{OTHER}/gpt", rc=1).stderr
    assert f"no jobs found in namespace {ONE}" in ran(jobs, "get", "jobs", "-l", "kind=none").stderr
    assert "there is no queue nosuch" in ran(jobs, "get", "queue", "nosuch", rc=1).stderr
    assert "there is no node nosuch" in ran(jobs, "get", "node", "nosuch", rc=1).stderr
    assert "two namespaces" in ran(jobs, "explain", f"{OTHER}/gpt", "-n", ONE, rc=2).stderr


def test_a_job_is_explained_by_the_name_that_get_prints(jobs: Path) -> None:
    assert json.loads(ran(jobs, "explain", f"{OTHER}/llama", "-o", "json").stdout)["job"] == f"{OTHER}/llama"
    assert json.loads(ran(jobs, "explain", "gpt", "-o", "json").stdout)["job"] == f"{ONE}/gpt"


def interrupted(cluster: LocalCluster, *words: str | Path) -> tuple[int, list[str]]:
    """Exit code and lines of a watch of jobs that is sent SIGINT once it has told of a change."""
    with subprocess.Popen([*words, "--watch", "-o", "name"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline().rstrip() for _ in JOBS[ONE]]
            cluster.kubectl("label", "ltj", "gpt", "-n", ONE, "--overwrite", f"seen-by={process.pid}")
            lines.append(process.stdout.readline().rstrip())
            process.send_signal(signal.SIGINT)
            lines += process.stdout.read().splitlines()
            return process.wait(60), lines
        finally:
            process.kill()


def test_a_watch_tells_the_same_as_that_of_kubectl_and_ends_alike(jobs: Path, cluster: LocalCluster) -> None:
    theirs = interrupted(cluster, cluster.binaries / "kubectl", "--kubeconfig", jobs, "get", "ltj")
    ours = interrupted(cluster, sys.executable, "-m", "trimtab", "get", "jobs", "--kubeconfig", jobs)
    assert (ours[0], sorted(ours[1])) == (theirs[0], sorted(theirs[1]))
    assert ours[1][-1] == "llmtrainingjob.trimtab.dev/gpt"


def test_nodes_are_watched_with_the_reflectors_of_the_console(jobs: Path, cluster: LocalCluster) -> None:
    """A node that takes no pods any more is another row, and one that is deleted is gone."""
    name = "get-watched"
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(node))
    allocatable = {"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    status = {"status": {"allocatable": allocatable, "capacity": allocatable}}
    cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
    words = [sys.executable, "-m", "trimtab", "get", "nodes", "-w", "--kubeconfig", jobs]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        rows = (line.split() for line in process.stdout if line.startswith(name))
        assert next(rows)[-1] != "Gone"
        cluster.kubectl("cordon", name)
        assert "cordoned" in " ".join(next(rows))
        cluster.kubectl("delete", "node", name)
        assert next(rows)[-1] == "Gone"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("trimtab explain l", ["llama"]),
        (f"trimtab get jobs {OTHER}/", [f"{OTHER}/llama"]),
        ("trimtab explain llama --policy fc", ["fcfs"]),
        ("trimtab get jobs -o js", ["json", "jsonpath="]),
        ("trimtab plan --gpus T4=8,H100-P", ["T4=8,H100-PCIE-80GB"]),
    ],
)
def test_completion(jobs: Path, words: str, offered: list[str]) -> None:
    asked = {"_TRIMTAB_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert ran(jobs, **asked).stdout.split() == offered
