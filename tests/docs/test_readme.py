"""The README's commands, run as a newcomer would: in order, in one shell, from the root of the checkout.

Of the two headlines `./hack/demo` is run for real by a test of its own. `./hack/test` would run this test again: it is
only checked to be a script that bash can read.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from trimtab.checkout import checkout
from trimtab.local.cluster import LocalCluster, local_clusters
from trimtab.telemetry.metrics import REGISTRY

ROOT = checkout()
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
HEADLINES = ("./hack/demo\n", "./hack/test\n")
DOCUMENTS = [*sorted((ROOT / "hack").glob("**/*.md")), ROOT / "README.md"]


@pytest.fixture
def environment(state_home: Path) -> dict[str, str]:
    """As in a shell where nothing of ours is set up: clusters out of the way, metrics on any port."""
    ours = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    return ours | {"XDG_STATE_HOME": str(state_home), "TRIMTAB_METRICS__PORT": "0"}


def test_the_two_headlines_are_told_first() -> None:
    assert BLOCKS[:2] == list(HEADLINES)
    for headline in HEADLINES:
        subprocess.run(["bash", "-n", headline.strip()], cwd=ROOT, check=True)
        assert os.access(ROOT / headline.strip(), os.X_OK)


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_the_demo_completes_every_job_that_can_and_leaves_nothing(environment: dict[str, str]) -> None:
    before = set(local_clusters())
    demo = subprocess.run(["./hack/demo"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "9 of 10 jobs completed" in demo.stdout
    assert "Why llama-405b-impossible cannot run\nNoFeasiblePlan" in demo.stdout
    assert re.search(r"llama3-8b +InsufficientGpus: needs at least", demo.stdout), "nothing was seen to queue"
    assert set(local_clusters()) == before


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_all_other_commands_succeed_in_order(environment: dict[str, str], tmp_path: Path) -> None:
    script = "\n".join(["set -euo pipefail", *(block for block in BLOCKS if block not in HEADLINES)])
    log = tmp_path / "output"
    try:
        with log.open("w") as output:
            shell = subprocess.run(
                ["bash", "-xc", script],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        assert shell.returncode == 0, log.read_text()
        assert "default" not in local_clusters(), "the last command should have stopped the cluster"
    finally:
        LocalCluster("default").stop()  # a controller that is left loses its lease, and with it its life


def test_every_metric_it_names_exists() -> None:
    named = set(re.findall(r"`(trimtab_\w+)`", README))
    known = {metric.name + ("_total" if metric.type == "counter" else "") for metric in REGISTRY.collect()}
    assert named
    assert named <= known


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_its_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_files_it_names_exist(document: Path) -> None:
    for name in re.findall(r"`((?:operator|policy|tests|hack|manifests)/[\w./-]+)`", document.read_text()):
        assert (ROOT / name).exists(), name
