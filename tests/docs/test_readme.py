"""The commands of README and docs/, run as a newcomer would: in order, in one shell, from the root of the checkout.

The shell has nothing that a reader's has not, but for a home of its own for clusters and a browser that opens nothing.
So the text takes the ports and the files of /tmp that it takes on a reader's machine, and the tests of two checkouts
take turns. README's own commands come after the page that makes a cluster; what a reader ends with Ctrl-C is ended so.
At the end come the commands that stand within sentences (mentions.py).

Of the two headlines `./hack/demo` is run for real by a test of its own. `./hack/test` would run this test again: it is
only checked to be a script that bash can read.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.docs.pages import DOCS, ORDER, PAGES, ROOT, blocks

from trimtab.commands import cluster_option, planning
from trimtab.settings import DEFAULTS, PolicySettings, load
from trimtab.telemetry import agent_metrics, extender_metrics
from trimtab_local.control_plane.cluster import LocalCluster, local_clusters

README = PAGES[ROOT / "README.md"]
HEADLINES = ("./hack/demo\n", "./hack/test\n")
FIRST, *OTHERS, LAST = ORDER
"""The page that makes a cluster, and the one that ends it."""
BLOCKS = [
    *blocks("sh", FIRST),
    *(block for block in blocks("sh", ROOT / "README.md") if block not in HEADLINES),
    *(block for page in OTHERS for block in blocks("sh", page)),
    f"{sys.executable} -m tests.docs.mentions\n",
    *blocks("sh", LAST),
]
UNTIL_CTRL_C = {"trimtab ui": "Ctrl-C ends it", "trimtab top": "GPUs held"}
"""Commands that go on until somebody ends them, each with what they show first."""
LOGS = [Path(name) for name in re.findall(r" 2>(\S+\.log) &$", "".join(BLOCKS), re.MULTILINE)]
DOCUMENTS = [*sorted((ROOT / "hack").glob("**/*.md")), *sorted(DOCS.glob("**/*.md")), ROOT / "README.md"]


def ended(block: str) -> str:
    """A block whose commands that go on for ever are ended by Ctrl-C."""
    for command, shown in UNTIL_CTRL_C.items():
        block = re.sub(
            rf"^({command})(?= *(?:#|$))",
            rf"{sys.executable} -m tests.docs.attended '{shown}' \1",
            block,
            flags=re.MULTILINE,
        )
    return block


@pytest.fixture
def environment(state_home: Path) -> dict[str, str]:
    """As in a shell where nothing of ours is set up; clusters are out of the way."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("TRIMTAB_", "KUBECONFIG"))}
    return ours | {"XDG_STATE_HOME": str(state_home), "BROWSER": "true"}


@pytest.fixture
def turn() -> Iterator[None]:
    """What the README starts has its ports to itself: those of other checkouts wait until this one is done."""
    with (Path(tempfile.gettempdir()) / f"trimtab-readme-{os.getuid()}").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for process in DEFAULTS:
            port = load(process=process).metrics.port
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("", port))
                except OSError:
                    pytest.skip(f"port {port}, which the README's {process} takes, is taken by something else here")
        yield


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200


def test_the_two_headlines_are_told_first() -> None:
    assert blocks("sh", ROOT / "README.md")[:2] == list(HEADLINES)
    for headline in HEADLINES:
        subprocess.run(["bash", "-n", headline.strip()], cwd=ROOT, check=True)
        assert os.access(ROOT / headline.strip(), os.X_OK)


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_the_demo_completes_every_job_that_can_and_leaves_nothing(
    environment: dict[str, str],
) -> None:
    before = set(local_clusters())
    demo = subprocess.run(["./hack/demo"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "9 of 10 jobs completed" in demo.stdout
    assert "Why llama-405b-impossible cannot run\nNoFeasiblePlan" in demo.stdout
    queued = r"^.* s +[\w-]+ +(InsufficientGpus|WaitingForBetterGpus): \w+"
    assert re.search(queued, demo.stdout, re.MULTILINE), "nothing was seen to queue"
    assert set(local_clusters()) == before


@pytest.mark.cluster
@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("turn")
def test_all_other_commands_succeed_in_order(environment: dict[str, str], tmp_path: Path) -> None:
    script = "\n".join(["set -euo pipefail", *map(ended, BLOCKS)])
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
        assert shell.returncode == 0, "\n".join(path.read_text() for path in (log, *LOGS) if path.exists())
        assert "default" not in local_clusters(), "the last command should have stopped the cluster"
    finally:
        LocalCluster("default").stop()  # a controller that is left loses its lease, and with it its life


def test_its_jobs_run_for_longer_than_anybody_needs_to_read_on() -> None:
    """`replay` and `whatif` need some that are not done: whoever goes for a coffee in between has them, too."""
    [speedup] = re.findall(r"trimtab controller --fake-speedup (\S+)", PAGES[FIRST])
    fleet = cluster_option.snapshot(
        ",".join(f"{gpu_type}=64" for gpu_type in ("H100-SXM5-80GB", "MI300X", "V100-SXM2-16GB"))
    )
    samples = (path for path in sorted((ROOT / "manifests" / "samples").glob("*.yaml")) if "queue" not in path.name)
    jobs = [planning.manifest(path).as_job(created=0.0) for path in samples]
    decided = [planning.decide(replace(fleet, jobs=(job,)), job, PolicySettings().name).placement for job in jobs]
    seconds = sorted(placed.prediction.run_seconds / float(speedup) for placed in decided if placed)
    assert seconds[len(seconds) // 2] > 3600


def test_every_metric_it_names_exists() -> None:
    named = set(re.findall(r"`(trimtab_\w+)`", "".join(PAGES.values())))
    gpus = agent_metrics.GpuCollector(list, list).collect()
    families = (*extender_metrics.REGISTRY.collect(), *agent_metrics.REGISTRY.collect(), *gpus)
    known = {metric.name + ("_total" if metric.type == "counter" else "") for metric in families}
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
