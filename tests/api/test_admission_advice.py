"""What an author is told though nothing is refused, as kubectl shows it: on the real API server."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders import MOMENT, placement, plan_of

from trimtab.api.status import JobStatus
from trimtab.doctor.checks.admission import ADVICE
from trimtab_local.control_plane.build import binaries
from trimtab_local.control_plane.kubeconfig import kubectl

pytestmark = pytest.mark.cluster

Manifest = dict[str, Any]
CONTAINERS = "spec.template.spec.containers"
PATIENCE = 30.0
"""Seconds until the API server has compiled a policy that it was just given."""


def with_env(*variables: str) -> Manifest:
    env = [{"name": name, "value": "1"} for name in variables]
    return {CONTAINERS: [{"name": "trainer", "image": "trainer:1", "env": env}]}


def warnings(kubeconfig: Path, manifest: Manifest, *arguments: str) -> str:
    """What kubectl says beside its answer; the request has to pass."""
    command = [str(binaries() / "kubectl"), "--kubeconfig", str(kubeconfig), "apply", "--server-side", "-f", "-"]
    told = subprocess.run(
        [*command, *arguments], input=json.dumps(manifest), capture_output=True, text=True, check=True, timeout=60
    )
    return told.stderr


@pytest.fixture(scope="module")
def advised(kubeconfig: Path, repository: Path, job: Callable[..., Manifest]) -> Iterator[Path]:
    """The cluster with the policy in force, and with none of those that refuse."""
    every = yaml.safe_load_all((repository / "manifests" / "admission.yaml").read_text())
    ours = yaml.safe_dump_all([each for each in every if each["metadata"]["name"] == ADVICE])
    kubectl(kubeconfig, "apply", "--server-side", "-f", "-", stdin=ours)
    probe, until = job(with_env("RANK")) | {"metadata": {"name": "probe"}}, time.monotonic() + PATIENCE
    while "RANK" not in warnings(kubeconfig, probe, "--dry-run=server"):
        assert time.monotonic() < until, "the policy never comes into force"
        time.sleep(0.2)
    yield kubeconfig
    kubectl(kubeconfig, "delete", "-f", "-", stdin=ours)


def test_variables_that_the_plan_decides_about_are_named_with_their_container(
    advised: Path, job: Callable[..., Manifest]
) -> None:
    told = warnings(advised, job(with_env("WORLD_SIZE", "NCCL_DEBUG", "MASTER_ADDR")), "--dry-run=server")
    assert told.startswith("Warning: ")
    assert "spec.template.spec: env WORLD_SIZE, MASTER_ADDR of container trainer" in told
    assert "read PET_* and TRIMTAB_*" in told
    assert warnings(advised, job(with_env("NCCL_DEBUG")), "--dry-run=server") == ""


def test_other_limits_of_a_job_that_has_a_plan_say_when_they_count(advised: Path, job: Callable[..., Manifest]) -> None:
    manifest = job() | {"metadata": {"name": "runs", "namespace": "default"}}
    assert warnings(advised, manifest) == ""
    status = JobStatus(plan=plan_of(placement(nodes={"n1": 8}), 1, now=MOMENT), last_epoch=1).to_wire()
    patch = json.dumps({"status": status})
    kubectl(advised, "patch", "ltj", "runs", "--subresource=status", "--type=merge", "-p", patch)

    def allowed(low: int, high: int) -> str:
        manifest["spec"]["resources"]["gpus"] = {"min": low, "max": high}
        return warnings(advised, manifest, "--dry-run=server")

    assert "the job has 8 GPUs; that plan is no longer allowed, and is replaced once" in allowed(4, 4)
    assert "the job has 8 GPUs; what it may have now counts from its next plan on" in allowed(8, 32)
    assert allowed(2, 16) == ""
    kubectl(advised, "delete", "ltj", "runs")
