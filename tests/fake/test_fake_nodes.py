"""Fake nodes and pods behave as if there were kubelets: `manifests/fake/stages.yaml` in a real KWOK."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trimtab_local.commands.fake_nodes import app
from trimtab_local.control_plane.cluster import LocalCluster

pytestmark = pytest.mark.cluster

PROFILE = {
    "name": "fake-node-tests",
    "pools": [
        {"name": "t4", "count": 2, "product": "Tesla-T4", "gpus": 4, "cpu": 48, "memory": "192Gi"},
        {"name": "mi300x", "count": 1, "product": "AMD_Instinct_MI300X_OAM", "gpus": 8, "cpu": 192, "memory": "2Ti"},
    ],
}
NODES = ["fnt-mi300x-0", "fnt-t4-0", "fnt-t4-1"]


class Cluster:
    """Shorthands of this file's tests."""

    def __init__(self, local: LocalCluster, profile: Path) -> None:
        self.kubectl = local.kubectl
        self._kubeconfig = str(local.kubeconfig)
        self.profile = profile

    def get(self, *what: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.kubectl("get", *what, "-o", "json"))
        return result

    def fake_nodes(self, *arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, "--kubeconfig", self._kubeconfig], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def apply(self) -> None:
        self.fake_nodes("apply", "-f", str(self.profile), "--prefix", "fnt-")

    def is_ready(self, node: str) -> bool:
        return bool(condition(self.get("node", node), "Ready")["status"] == "True")

    def run_pod(self, name: str, **annotations: str) -> None:
        keys = {f"pod-{stage}.stage.kwok.x-k8s.io/delay": delay for stage, delay in annotations.items()}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": keys},
            "spec": {
                "restartPolicy": "Never",
                "nodeName": "fnt-t4-0",
                "containers": [{"name": "train", "image": "none"}],
            },
        }
        self.kubectl("create", "-f", "-", stdin=json.dumps(pod))

    def await_phase(self, pod: str, phase: str) -> dict[str, Any]:
        until(lambda: self.get("pod", pod)["status"]["phase"] == phase)
        status: dict[str, Any] = self.get("pod", pod)["status"]
        return status


@pytest.fixture(scope="module")
def fake(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The session's cluster with three fake nodes."""
    path = tmp_path_factory.mktemp("profile") / "profile.yaml"
    path.write_text(yaml.safe_dump(PROFILE))
    fake = Cluster(cluster, path)
    fake.apply()
    until(lambda: all(fake.is_ready(node) for node in NODES))
    yield fake
    assert "deleted 3 fake nodes" in fake.fake_nodes("delete", "--profile", "fake-node-tests")


def test_nodes_become_ready_with_their_gpus(fake: Cluster) -> None:
    turing, instinct = fake.get("node", "fnt-t4-0"), fake.get("node", "fnt-mi300x-0")
    assert turing["status"]["allocatable"] == {"cpu": "48", "memory": "192Gi", "pods": "110", "nvidia.com/gpu": "4"}
    assert instinct["status"]["capacity"]["amd.com/gpu"] == "8"
    until(lambda: not fake.get("node", "fnt-t4-0")["spec"].get("taints"))


def test_applying_again_changes_nothing_and_heals_what_was_changed(fake: Cluster) -> None:
    uid = fake.get("node", "fnt-t4-1")["metadata"]["uid"]
    fake.kubectl("label", "node", "fnt-t4-1", "nvidia.com/gpu.memory=1", "--overwrite")
    fake.apply()
    node = fake.get("node", "fnt-t4-1")
    assert node["metadata"]["uid"] == uid
    assert node["metadata"]["labels"]["nvidia.com/gpu.memory"] != "1"
    assert fake.is_ready("fnt-t4-1")


def test_a_pod_completes_after_its_delay_even_if_it_is_touched_meanwhile(fake: Cluster) -> None:
    fake.run_pod("completes", complete="3s")
    running = fake.await_phase("completes", "Running")
    assert condition({"status": running}, "Ready")["status"] == "True"
    assert running["podIP"]
    fake.kubectl("annotate", "pod", "completes", "touched=yes")
    done = fake.await_phase("completes", "Succeeded")
    ended = done["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    assert ended["startedAt"] == running["startTime"]
    assert condition({"status": done}, "Ready")["reason"] == "PodCompleted"


def test_a_pod_that_is_told_to_fail_fails_first(fake: Cluster) -> None:
    fake.run_pod("fails", fail="1s", complete="2s")
    ended = fake.await_phase("fails", "Failed")["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (1, "Error")


def test_a_pod_without_a_delay_runs_until_it_is_deleted(fake: Cluster) -> None:
    fake.run_pod("endless")
    fake.run_pod("short", complete="1s")
    fake.await_phase("short", "Succeeded")
    assert fake.get("pod", "endless")["status"]["phase"] == "Running"
    fake.kubectl("delete", "pod", "endless", "--timeout=20s")


def test_a_node_is_not_ready_while_its_annotation_says_so(fake: Cluster) -> None:
    fake.kubectl("annotate", "node", "fnt-t4-1", "fake.trimtab.dev/not-ready=true")
    until(lambda: not fake.is_ready("fnt-t4-1"))
    fake.kubectl("annotate", "node", "fnt-t4-1", "fake.trimtab.dev/not-ready-")
    until(lambda: fake.is_ready("fnt-t4-1"))


def test_a_bad_profile_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: bad\npools: [{name: x}]")
    result = CliRunner().invoke(app, ["apply", "-f", str(path)])
    assert result.exit_code == 2
    assert "bad.yaml: pool 'x': Object missing required field `count`" in result.stderr


def condition(of: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next((c for c in of["status"].get("conditions", []) if c["type"] == kind), {"status": ""})
    return found


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "waited 30 s in vain"
        time.sleep(0.1)
