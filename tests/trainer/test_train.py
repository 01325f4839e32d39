"""The training script of the samples: stopped, resized and started again, it trains as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hack.trainer import train

pytestmark = pytest.mark.timeout(600)
"""Seconds on a quiet machine, minutes on a busy one: every rank imports PyTorch."""

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "hack" / "trainer" / "train.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
STEPS, GLOBAL_BATCH = 24, 16
TOLERANCE = 2e-4
"""Of losses near 5: sums in another order, float32, over the steps of a run."""
PATIENCE = 240.0
Line = dict[str, Any]


def free_port() -> int:
    """One that nobody listens on. torchrun binds it seconds later: it is not of those that the kernel hands out to
    whoever wants any, above 32,767, or another test could have it by then."""
    while True:
        port = random.SystemRandom().randrange(16_384, 32_768)
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port


class Storage:
    """What pods share: checkpoints, the log, and the file in which they find a request to stop."""

    def __init__(self, root: Path) -> None:
        self.checkpoints, self.log, self.request = root / "checkpoints", root / "log", root / "checkpoint-requested"
        self.request.touch()

    def lines(self, event: str = "step") -> list[Line]:
        """What was logged under that name so far."""
        text = self.log.read_text() if self.log.exists() else ""
        told = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in told if line["event"] == event]

    def losses(self) -> list[float]:
        """By step; the steps are 1, 2, 3, ... without a gap, none twice."""
        assert [line["step"] for line in self.lines()] == list(range(1, len(self.lines()) + 1))
        return [line["loss"] for line in self.lines()]


def environment(storage: Storage, **more: object) -> dict[str, str]:
    """What the pod of a gang has in it, as `trimtab.plan` makes it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRIMTAB_", "PET_"))}
    kept.pop("RANK", None)
    given = {"GLOBAL_BATCH_SIZE": GLOBAL_BATCH, "STEPS": STEPS, "SEQUENCE_LENGTH": 32, "PRECISION": "FP32"}
    given |= {"CHECKPOINT_FILE": str(storage.request)}
    told = {f"TRIMTAB_{name}": str(value) for name, value in given.items()} | {n: str(v) for n, v in more.items()}
    return kept | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"} | told


@contextlib.contextmanager
def started(
    storage: Storage, env: Mapping[str, str], *arguments: str, launcher: tuple[str, ...] = TORCHRUN
) -> Iterator[subprocess.Popen[str]]:
    """A process of the script; it has ended when this has."""
    own = ["--checkpoints", str(storage.checkpoints), "--history", str(storage.log)]
    command = [*launcher, str(SCRIPT), *own, *arguments]
    with subprocess.Popen(command, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> int:
    """The exit code of a process that comes to its end; what it said where that is a failure."""
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode in (0, 143), errors
    return process.returncode


def ask(storage: Storage, step: int, processes: list[subprocess.Popen[str]]) -> None:
    """Ask for a checkpoint as the kubelet does, once that step is done."""
    deadline = time.monotonic() + PATIENCE
    while not any(line["step"] >= step for line in storage.lines()):
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes), "ended before it was asked to"
        time.sleep(0.02)
    storage.request.write_text("2030-01-01T00:00:00Z")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of one rank that nobody disturbs."""
    storage = Storage(tmp_path_factory.mktemp("undisturbed"))
    with started(storage, environment(storage, TRIMTAB_MICRO_BATCH_SIZE=8), launcher=(sys.executable,)) as process:
        assert ended(process) == 0
    return storage.losses()


def test_what_the_interpreter_does_at_its_end_is_no_failure_of_the_training(tmp_path: Path) -> None:
    """Threads of gloo have been seen to abort there, after everything was saved."""
    storage = Storage(tmp_path)
    (tmp_path / "sitecustomize.py").write_text("import atexit, os\natexit.register(os.abort)\n")
    aborting = environment(storage, PYTHONPATH=tmp_path)
    with started(storage, aborting, "--steps", "1", launcher=(sys.executable,)) as process:
        assert ended(process) == 0
    assert len(storage.losses()) == 1


def test_it_learns(undisturbed: list[float]) -> None:
    assert len(undisturbed) == STEPS
    assert undisturbed[-1] < undisturbed[0] - 0.1


def test_from_2_ranks_to_4_and_back_the_loss_curve_is_that_of_a_run_that_nobody_stopped(
    tmp_path: Path, undisturbed: list[float]
) -> None:
    storage = Storage(tmp_path)
    slow = ("--pause", "0.4", "--keep", "9")

    # Two pods with one rank each, without torchrun: they end with the code that says why.
    port, resumed = free_port(), 0
    twins = {"PET_NNODES": 2, "PET_NPROC_PER_NODE": 1, "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}
    plan = {"TRIMTAB_EPOCH": 1, "TRIMTAB_MICRO_BATCH_SIZE": 3, "TRIMTAB_ZERO_STAGE": 3}
    pods = [environment(storage, PET_NODE_RANK=rank, **twins, **plan) for rank in range(2)]
    with contextlib.ExitStack() as gang:
        python = (sys.executable,)
        processes = [gang.enter_context(started(storage, pod, *slow, launcher=python)) for pod in pods]
        ask(storage, 3, processes)
        assert [ended(process) for process in processes] == [143, 143]
    resumed = storage.lines("stopped")[-1]["step"]

    # Four ranks under torchrun, which ends with 0; weights and optimizer are divided by four now, in groups of two.
    storage.request.write_text("")
    plan = {"TRIMTAB_EPOCH": 2, "TRIMTAB_ZERO_STAGE": 2, "TRIMTAB_SHARD": 2, "TRIMTAB_RESUME_STEP": resumed}
    pod = environment(storage, PET_NNODES=1, PET_NPROC_PER_NODE=4, PET_MASTER_PORT=free_port(), **plan)
    with started(storage, pod, *slow) as process:
        ask(storage, resumed + 3, [process])
        assert ended(process) == 0
    assert storage.lines("started")[-1]["step"] == resumed
    resumed = storage.lines("stopped")[-1]["step"]

    # Two ranks with whole copies (DDP), to the end.
    storage.request.write_text("")
    plan = {"TRIMTAB_EPOCH": 3, "TRIMTAB_ZERO_STAGE": 0, "TRIMTAB_MICRO_BATCH_SIZE": 4, "TRIMTAB_RESUME_STEP": resumed}
    pod = environment(storage, PET_NNODES=1, PET_NPROC_PER_NODE=2, PET_MASTER_PORT=free_port(), **plan)
    with started(storage, pod) as process:
        assert ended(process) == 0

    assert storage.losses() == pytest.approx(undisturbed, abs=TOLERANCE)
    assert [(line["epoch"], line["ranks"]) for line in storage.lines("started")] == [(1, 2), (2, 4), (3, 2)]
    assert [line["step"] for line in storage.lines("done")] == [STEPS]


def test_a_kill_costs_what_was_done_since_the_last_checkpoint_and_no_half_one_is_loaded(
    tmp_path: Path, undisturbed: list[float]
) -> None:
    storage, python = Storage(tmp_path), (sys.executable,)
    with started(storage, environment(storage), "--pause", "0.1", "--every", "5", launcher=python) as process:
        while not any(line["step"] >= 7 for line in storage.lines()):
            assert process.poll() is None
            time.sleep(0.02)
    half = storage.checkpoints / "step-00000010"
    half.mkdir(exist_ok=True)
    (half / ".metadata").unlink(missing_ok=True)
    (half / "__7_0.distcp").write_text("of a rank that was killed")
    storage.log.unlink()
    with started(storage, environment(storage), "--every", "5", launcher=python) as process:
        assert ended(process) == 0
    assert storage.lines("started")[-1]["step"] == 5
    losses = [line["loss"] for line in storage.lines()]
    assert losses == pytest.approx(undisturbed[5:], abs=TOLERANCE)
    assert sorted(path.name for path in storage.checkpoints.iterdir()) == ["step-00000020", f"step-000000{STEPS}"]


def test_sigterm_is_a_request_too(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    with started(storage, environment(storage), "--pause", "0.1", launcher=(sys.executable,)) as process:
        while not storage.lines():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 143
    step = storage.lines("stopped")[-1]["step"]
    assert step < STEPS
    assert (storage.checkpoints / f"step-{step:08d}" / ".metadata").is_file()


def test_a_checkpoint_older_than_what_was_told_is_refused(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    with started(storage, environment(storage, TRIMTAB_RESUME_STEP=7), launcher=(sys.executable,)) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "step 7 was saved, and the newest checkpoint" in errors
    assert not storage.lines()


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"TRIMTAB_TP": "2"}, "TRIMTAB_TP=2: only data is divided here"),
        ({"TRIMTAB_PRECISION": "FP8"}, "it is BF16 or FP32 here"),
        ({"TRIMTAB_GLOBAL_BATCH_SIZE": "16"}, "5 heads do not divide a width of 64"),
    ],
)
def test_plans_that_it_cannot_follow_are_refused(
    plan: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--checkpoints", "/nowhere", *(["--heads", "5"] if "heads" in words else [])]
    with pytest.raises(SystemExit) as refused:
        train.options_of(given, plan)
    assert refused.value.code == 2
    assert words in capsys.readouterr().err


def test_more_ranks_than_one_per_pod_need_torchrun() -> None:
    with pytest.raises(SystemExit, match="8 ranks per pod: start this script with torchrun"):
        train.join({"PET_NPROC_PER_NODE": "8"}, 1.0)


def test_a_pytorch_that_cannot_divide_weights_on_cpus_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's, for one."""
    options = train.options_of(["--checkpoints", "/x", "--zero", "2"], {})
    monkeypatch.delattr(torch.cpu.Stream, "record_event")
    with pytest.raises(SystemExit, match=r"needs PyTorch 2\.7.*set spec\.parallelism\.zeroStage to 0"):
        train.build(options, torch.device("cpu"))


def test_options_are_those_of_the_plan() -> None:
    plan = {"STEPS": 7, "GLOBAL_BATCH_SIZE": 64, "MICRO_BATCH_SIZE": 4, "SEQUENCE_LENGTH": 128, "ZERO_STAGE": 3}
    options = train.options_of(["--checkpoints", "/x"], {f"TRIMTAB_{name}": str(plan[name]) for name in plan})
    assert (options.steps, options.global_batch, options.micro_batch) == (7, 64, 4)
    assert (options.sequence, options.zero, options.shard) == (128, 3, 0)


def test_a_sample_follows_from_its_number_alone(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(SCRIPT.read_bytes())
    for source in (None, text):
        samples, again = (train.Samples(32, seed=5, text=source) for _ in range(2))
        assert samples.batch(3, 8).tolist() == [again[number].tolist() for number in range(3, 11)]
        assert len({tuple(sample.tolist()) for sample in samples.batch(0, 64)}) > 60
        assert samples[0].tolist() != train.Samples(32, seed=6, text=source)[0].tolist()
    text.write_bytes(b"short")
    with pytest.raises(ValueError, match="has 5 bytes, and one sample alone needs 33"):
        train.Samples(32, seed=5, text=text)
