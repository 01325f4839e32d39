"""The README's way from nothing to a first job on a cluster with kubelets, and back: its own words, in order."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.docs.pages import blocks
from tests.kind.conftest import GPUS, ROOT, Kind

from trimtab.names import SYSTEM_NAMESPACE

pytestmark = [pytest.mark.kind, pytest.mark.timeout(3000)]

BLOCKS = blocks("sh cluster")
TELL = "set -euo pipefail; PS4='+ ${SECONDS}s '"
"""Each command is written down with when it began, for whoever looks what takes so long."""
PARTS = ("hack/kind/images", "helm upgrade --install", "kubectl apply", "helm upgrade trimtab", "kubectl delete ltj")
"""How the blocks begin."""


@pytest.fixture
def nothing(kind: Kind) -> Iterator[Kind]:
    """No release, no CRDs."""
    kind.run("helm", "uninstall", "trimtab", "--namespace", SYSTEM_NAMESPACE, "--ignore-not-found", "--wait")
    kind.kubectl("delete", "crd", "--selector=app.kubernetes.io/instance=trimtab", "--ignore-not-found")
    kind.kubectl("delete", "namespace", SYSTEM_NAMESPACE, "--ignore-not-found")
    yield kind
    kind.kubectl("delete", "pvc", "checkpoints", "--ignore-not-found")


@pytest.mark.essential
def test_the_way_has_all_its_parts() -> None:
    assert [block.startswith(part) for block, part in zip(BLOCKS, PARTS, strict=True)] == [True] * len(PARTS)


@pytest.mark.essential
@pytest.mark.usefixtures("trainer")
def test_install_first_job_tune_and_uninstall_as_the_readme_has_it(nothing: Kind, tmp_path: Path) -> None:
    script, log, values = "\n".join([TELL, *BLOCKS]), tmp_path / "output", tmp_path / "values.yaml"
    usual = yaml.safe_load((ROOT / "hack/kind/values.yaml").read_text())
    usual["agent"]["profile"]["gpus"] = GPUS
    values.write_text(yaml.safe_dump(usual))
    with log.open("w") as output:
        shell = subprocess.run(
            ["bash", "-xc", script],
            cwd=ROOT,
            env=nothing.environment | {"REGISTRY": "", "VALUES": str(values)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    said = log.read_text()
    assert shell.returncode == 0, f"{said[-6000:]}\n{nothing.state()}"
    assert re.search(r"^\d+ ok$", said, re.MULTILINE), "the doctor has nothing to say of a new installation"
    assert '{"event": "done", "step": 60' in said, "the first job's log is shown, to its end"
    left = nothing.kubectl("get", "crds,clusterroles,namespaces", "--output=name")
    assert "trimtab" not in left.replace("/trimtab-tests", "")
