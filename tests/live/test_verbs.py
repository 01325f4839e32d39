"""`submit`, `suspend`, `resume`, `scale`, `cancel`, `logs` and `queue` against a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from trimtab.cli import app
from trimtab_local.control_plane.cluster import LocalCluster

pytestmark = pytest.mark.cluster

NAMESPACE = "verbs"


class Desk:
    """Somebody at the command line, in a namespace without a controller."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def ran(self, *words: str, rc: int = 0) -> Result:
        environment = {"KUBECONFIG": str(self.cluster.kubeconfig)}
        found = CliRunner(env=environment).invoke(app, words, prog_name="trimtab")
        assert found.exit_code == rc, found.output
        return found

    def spec(self, name: str) -> dict[str, Any]:
        found = self.cluster.kubectl("get", "ltj", name, "-n", NAMESPACE, "-o", "json")
        spec: dict[str, Any] = json.loads(found)["spec"]
        return spec

    def names(self) -> list[str]:
        return self.cluster.kubectl("get", "ltj", "-n", NAMESPACE, "-o", "name").split()

    def submit(self, name: str, *words: str, rc: int = 0) -> Result:
        given = ("--model", "gpt2", "--steps", "1000", "--gpus", "2-8", "--image", "trainer:1", "-n", NAMESPACE)
        return self.ran("submit", *given, "--name", name, *words, rc=rc)


@pytest.fixture(scope="module")
def desk(cluster: LocalCluster) -> Iterator[Desk]:
    cluster.kubectl("create", "namespace", NAMESPACE)
    yield Desk(cluster)
    cluster.kubectl("delete", "ltj", "--all", "-n", NAMESPACE)


def test_submit_creates_the_job(desk: Desk) -> None:
    found = desk.submit("made", "--", "torchrun", "train.py")
    assert found.stdout == "llmtrainingjob.trimtab.dev/made created\n"
    spec = desk.spec("made")
    assert spec["resources"]["gpus"] == {"min": 2, "max": 8}
    assert spec["template"]["spec"]["containers"][0]["command"] == ["torchrun", "train.py"]
    assert "already exists" in desk.submit("made", rc=1).stderr
    assert "metadata.name" in desk.submit("Made", rc=1).stderr


def test_dry_run_creates_nothing(desk: Desk) -> None:
    desk.submit("unmade", "--dry-run")
    assert "llmtrainingjob.trimtab.dev/unmade" not in desk.names()


def test_suspend_resume_and_scale_change_the_spec(desk: Desk) -> None:
    desk.submit("first"), desk.submit("second")
    assert "first suspended" in desk.ran("suspend", f"{NAMESPACE}/first", f"{NAMESPACE}/second").stdout
    assert desk.spec("first")["suspend"] is desk.spec("second")["suspend"] is True
    desk.ran("resume", "first", "-n", NAMESPACE)
    assert not desk.spec("first").get("suspend")
    desk.ran("scale", f"{NAMESPACE}/first", "--gpus", "4-16")
    assert desk.spec("first")["resources"]["gpus"] == {"min": 4, "max": 16}
    assert "--gpus '16-4'" in desk.ran("scale", f"{NAMESPACE}/first", "--gpus", "16-4", rc=2).stderr


def test_cancel_deletes_all_or_none(desk: Desk) -> None:
    desk.submit("gone"), desk.submit("also-gone")
    told = desk.ran("cancel", "gone", "also-gon", "-n", NAMESPACE, rc=1).stderr
    assert f"there is no LLMTrainingJob {NAMESPACE}/also-gon; did you mean also-gone" in told
    assert "llmtrainingjob.trimtab.dev/gone" in desk.names()
    desk.ran("cancel", "gone", "also-gone", "-n", NAMESPACE)
    assert not {"llmtrainingjob.trimtab.dev/gone", "llmtrainingjob.trimtab.dev/also-gone"} & set(desk.names())


def test_the_queue_shows_who_waits_in_line(desk: Desk) -> None:
    desk.submit("waits")
    rows = json.loads(desk.ran("queue", "-o", "json").stdout)
    mine = [row for row in rows if row["job"] == f"{NAMESPACE}/waits"]
    assert [row["reason"] for row in mine] == ["InsufficientGpus"]
    assert [row["place"] for row in rows] == sorted(row["place"] for row in rows)
    assert desk.ran("queue").stdout.splitlines()[0].split()[:2] == ["PLACE", "JOB"]
    assert "there is no queue nosuch" in desk.ran("queue", "nosuch", rc=1).stderr


def test_logs_say_what_is_missing(desk: Desk) -> None:
    desk.submit("silent")
    assert f"{NAMESPACE}/silent has no pod of rank 0" in desk.ran("logs", f"{NAMESPACE}/silent", rc=1).stderr
    assert f"there is no LLMTrainingJob {NAMESPACE}/nosuch" in desk.ran("logs", f"{NAMESPACE}/nosuch", rc=1).stderr
