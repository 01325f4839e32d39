"""The trainer image as gangs run it: a container per pod, no rights, no writes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.image.conftest import LOCKED, Docker, inspected

pytestmark = [pytest.mark.image, pytest.mark.timeout(1800)]

LARGEST = 1e9
"""Bytes, unpacked, of the image with Debian's PyTorch."""
STEPS = 30
TOLERANCE = 2e-4
"""Of losses near 5: sums in another order, float32, over the steps of a run."""
PATIENCE = 120.0
Line = dict[str, Any]


def lines(text: str, event: str = "step") -> list[Line]:
    """What the script logged under that name."""
    told = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in told if line["event"] == event]


def test_it_says_who_runs_and_what_it_is_and_is_small(docker: Docker, trainer: str) -> None:
    image = inspected(docker, trainer)
    assert image["Config"]["User"] == "65532:65532"
    assert image["Config"]["Labels"]["org.opencontainers.image.version"] == trainer.partition(":")[2]
    assert image["Size"] <= LARGEST


def test_the_bill_of_materials_lists_pytorch(docker: Docker, trainer: str) -> None:
    command = ("python3", "-c", "print(open('/usr/share/sbom/trimtab-trainer.cdx.json').read())")
    bill = json.loads(docker("run", "--rm", *LOCKED, trainer, *command).stdout)
    assert {"torch", "numpy"} <= {each["name"] for each in bill["components"]}


def test_it_trains_where_it_can_write_to_tmp_alone(docker: Docker, trainer: str) -> None:
    command = ("torchrun", "--nproc-per-node=2", "/opt/trimtab/train.py", "--checkpoints=/tmp/checkpoints", "--steps=3")
    locked = (*LOCKED, "--tmpfs=/tmp", "--shm-size=256m")
    done = docker("run", "--rm", *locked, trainer, *command)
    assert [line["step"] for line in lines(done.stdout)] == [1, 2, 3]
    assert lines(done.stdout, "done") == [{"event": "done", "step": 3, "epoch": 0, "ranks": 2}]


class Gang:
    """Containers on a network of their own, with storage that they share."""

    def __init__(self, docker: Docker, image: str, network: str, shared: Path) -> None:
        self._docker, self._image, self._network, self._shared = docker, image, network, shared
        self._request = shared / "request"
        self.pods: list[str] = []

    def start(self, epoch: int, pods: int, ranks_per_pod: int, *arguments: str, **plan: object) -> None:
        """A gang as `trimtab.plan` would have it: static rendezvous, every rank a process of torchrun."""
        self._request.write_text("")
        self.pods = [f"{self._network}-{epoch}-{rank}" for rank in range(pods)]
        told = {"EPOCH": epoch, "STEPS": STEPS, "CHECKPOINT_FILE": "/shared/request", "PRECISION": "FP32", **plan}
        twins = {"NNODES": pods, "NPROC_PER_NODE": ranks_per_pod, "MASTER_ADDR": self.pods[0], "MASTER_PORT": 29500}
        given = {f"TRIMTAB_{name}": value for name, value in told.items()}
        given |= {f"PET_{name}": value for name, value in twins.items()}
        options = (*LOCKED[:-1], f"--network={self._network}", "--tmpfs=/tmp", f"--volume={self._shared}:/shared")
        environment = [f"--env={name}={value}" for name, value in given.items()]
        script = ("torchrun", "/opt/trimtab/train.py", "--checkpoints=/shared/checkpoints", *arguments)
        for rank, pod in enumerate(self.pods):
            named = ("--detach", f"--name={pod}", f"--env=PET_NODE_RANK={rank}")
            self._docker("run", *named, *options, *environment, self._image, *script)

    def ask(self, step: int) -> None:
        """Ask for a checkpoint as the kubelet does, once that step is done."""
        deadline = time.monotonic() + PATIENCE
        while not any(line["step"] >= step for line in lines(self.log())):
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.2)
        self._request.write_text("2030-01-01T00:00:00Z")

    def log(self) -> str:
        """What its first pod says."""
        return self._docker("logs", self.pods[0]).stdout

    def ended(self) -> str:
        """The first pod's log, when all have ended well; they are gone then."""
        codes = self._docker("wait", *self.pods).stdout.split()
        log = self.log()
        assert codes == ["0"] * len(self.pods), log + self._docker("logs", self.pods[0]).stderr
        self.remove()
        return log

    def remove(self) -> None:
        """What is left of them."""
        self._docker("rm", "--force", "--volumes", *self.pods, check=False)


@pytest.fixture
def gang(docker: Docker, trainer: str, tmp_path: Path) -> Iterator[Callable[[str], Gang]]:
    """gang(name) -> none yet, with storage of its own; its pods and its network are gone after the test."""
    made: list[tuple[str, Gang]] = []

    def make(name: str) -> Gang:
        # A name of this run's own: what another run left, that was killed, is in nobody's way.
        network, shared = f"trimtab-test-{os.getpid()}-{name}", tmp_path / name
        shared.mkdir()
        shared.chmod(0o777)
        docker("network", "create", network)
        made.append((network, Gang(docker, trainer, network, shared)))
        return made[-1][1]

    tmp_path.chmod(0o755)
    yield make
    for network, each in made:
        each.remove()
        docker("network", "rm", network)


def test_from_2_ranks_to_4_and_back_the_loss_goes_on_as_if_nobody_had_stopped_it(gang: Callable[[str], Gang]) -> None:
    alone = gang("alone")
    alone.start(1, 1, 1)
    undisturbed = [line["loss"] for line in lines(alone.ended())]
    assert len(undisturbed) == STEPS
    assert undisturbed[-1] < undisturbed[0] - 0.1

    resized, told, resumed = gang("resized"), "", 0
    for epoch, ranks_per_pod, until in ((1, 1, 5), (2, 2, 5), (3, 1, None)):
        slow = () if until is None else ("--pause=0.3",)
        resized.start(epoch, 2, ranks_per_pod, *slow, RESUME_STEP=resumed)
        if until is not None:
            resized.ask(resumed + until)
        log = resized.ended()
        assert lines(log, "started")[-1]["step"] == resumed
        resumed, told = lines(log)[-1]["step"], told + log

    assert [(line["epoch"], line["ranks"]) for line in lines(told, "started")] == [(1, 2), (2, 4), (3, 2)]
    assert [line["step"] for line in lines(told)] == list(range(1, STEPS + 1))
    assert [line["loss"] for line in lines(told)] == pytest.approx(undisturbed, abs=TOLERANCE)
