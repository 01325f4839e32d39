"""`trimtab train`: what it writes, what it tells, how it ends. A stub learns, mostly in this process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from trimtab.cli import app
from trimtab_lab.agents import recipe, seeds
from trimtab_lab.agents.train import Events, TrainingTask, learn
from trimtab_policy.learned import store

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = "task: point\ntraining: {segments: 12, learning_rate: 0.3}\n"


def here(tasks: Sequence[TrainingTask]) -> Events:
    """As in processes of their own, and sooner."""
    for task in tasks:
        yield from learn(task)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands are typed, with a configuration at hand; everything is written to `trimtab-training/stub-mine`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(recipe.AGENTS, "stub", "tests.stub_learner")
    monkeypatch.setattr(seeds, "one_by_one", here)
    (tmp_path / "mine.yaml").write_text(SETTINGS)
    return tmp_path / "trimtab-training" / "stub-mine"


def train(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["train", "stub", "--config", "mine.yaml", *map(str, arguments)])


def told(*arguments: str | Path) -> dict[str, Any]:
    result = train(*arguments, "-o", "json")
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


# --- what it writes and tells ----------------------------------------------------------------------------------------
def test_weights_of_the_best_seed_are_kept_and_name_all_seeds(folder: Path) -> None:
    answer = told("--seeds", "0,1,2")
    scores = {each["seed"]: each["score"] for each in answer["seeds"]}
    assert list(scores) == [0, 1, 2]
    best = max(scores, key=lambda seed: scores[seed])
    kept, own = store.load(folder / "stub", "stub/1"), store.load(folder / f"seed-{best}/stub", "stub/1")
    assert answer["best"] == best
    assert (kept.card.score, kept.card.seeds) == (scores[best], (best, *sorted({0, 1, 2} - {best})))
    assert kept.arrays["at"].tobytes() == own.arrays["at"].tobytes()
    assert answer["card"]["sha256"] == kept.card.sha256
    assert answer["weights"] == str(Path("trimtab-training/stub-mine/stub.safetensors"))


def test_everything_is_in_the_folder_that_was_named(tmp_path: Path) -> None:
    told("--seed", "7", "--out", tmp_path / "deep/inside")
    assert {path.name for path in (tmp_path / "deep/inside").iterdir()} == {
        "stub.safetensors", "stub.json", "curves.png", "seed-7",
    }  # fmt: skip
    names = {path.name.split(".")[0] for path in (tmp_path / "deep/inside/seed-7").iterdir()}
    assert names == {"checkpoint-000012", "checkpoint", "figures", "events", "stub"}


def test_the_curves_are_a_png(folder: Path) -> None:
    told("--seeds", "0,1")
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_people_get_a_table_and_where_files_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.ui.output.WIDE_ENOUGH", 80)
    shown = train("--seeds", "0,1").stdout
    assert max(map(len, shown.splitlines())) <= 80
    for word in ("BEST SCORE", "/12", "Score: minus the distance from the goal", "stub.safetensors", "curves.png"):
        assert word in shown


def test_a_log_gets_lines_with_return_loss_and_what_is_left() -> None:
    lines = train("--seeds", "0,1").stderr.splitlines()
    assert lines[0] == "seed 0: 0/12"
    assert [line.partition(" ")[0] for line in lines] == ["seed"] * len(lines)
    assert 8 <= sum(line.startswith("seed 1:") for line in lines) <= 12
    assert all(word in lines[3] for word in ("return -", "loss ", "best -", " left"))
    assert lines[-1].startswith("seed 1: 12/12")


def test_the_same_command_again_tells_the_same_and_trains_no_more(folder: Path) -> None:
    first = told()
    before = (folder / "seed-0/checkpoint.json").stat().st_mtime_ns
    assert told() == first
    assert (folder / "seed-0/checkpoint.json").stat().st_mtime_ns == before


def test_ray_is_asked_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def cluster(address: str) -> seeds.Work:
        asked.append(address)
        return here

    monkeypatch.setattr(seeds, "ray_cluster", cluster)
    told("--ray", "head:6379")
    assert asked == ["head:6379"]


# --- what is wrong is one line ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "absent.yaml"], "absent.yaml: cannot be read: No such file or directory; name another file"),
        (["--config", "moon"], "stub has no configuration 'moon': there are none; or name a file (FILE.yaml)"),
        (["--seeds", "0,x"], "--seeds: '0,x': write whole numbers with commas between, such as 0,1,2"),
        (["--seeds", ","], "--seeds: ',': write whole numbers with commas between, such as 0,1,2"),
        (["--out", "mine.yaml"], "--out: [Errno 20] Not a directory"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], said: str) -> None:
    result = train(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith(f"trimtab: {said}")


def test_an_unknown_agent_is_told_which_there_are() -> None:
    result = CliRunner().invoke(app, ["train", "alpha_zero"])
    assert result.exit_code == 2
    assert result.stderr.startswith("trimtab: unknown agent 'alpha_zero'; there are: dqn_cnn, q_learning")


def test_a_folder_with_another_training_is_refused(tmp_path: Path) -> None:
    told()
    (tmp_path / "mine.yaml").write_text(SETTINGS.replace("0.3", "0.1"))
    result = train()
    assert result.exit_code == 2
    assert "whose training.learning_rate is 0.3, not 0.1: choose another folder" in result.stderr


def test_a_training_that_diverges_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("training: {segments: 4, wrong: diverge}")
    result = train()
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "trimtab: stub, seed 0: the validation score after segment 4 is nan: the training diverged; "
        "lower its learning rate"
    )


@pytest.mark.parametrize(
    ("absent", "arguments", "extras"),
    [
        ("torch", ["dqn_cnn", "--config", "adlro"], "sim,train"),
        ("tensorboard", ["stub", "--config", "mine.yaml"], "sim,train"),
        ("matplotlib", ["stub", "--config", "mine.yaml"], "sim,train"),
        ("ray", ["stub", "--config", "mine.yaml", "--ray", "local"], "ray"),
    ],
)
def test_without_a_package_the_error_says_what_to_install(absent: str, arguments: list[str], extras: str) -> None:
    program = f"import sys; sys.modules[{absent!r}] = None; {BEGIN}; app(['train', *{arguments!r}])"
    done = subprocess.run([sys.executable, "-c", program], env=WITH_TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f"this needs {absent}" in done.stderr
    assert f"pip install 'trimtab[{extras}]'" in done.stderr
    assert "Traceback" not in done.stderr


# --- interrupted -----------------------------------------------------------------------------------------------------
BEGIN = (
    "from trimtab_lab.agents import recipe; recipe.AGENTS['stub'] = 'tests.stub_learner'; from trimtab.cli import app"
)
WITH_TESTS = os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_says_how_to_go_on_and_ends_where_the_others_end(
    tmp_path: Path, folder: Path, number: signal.Signals
) -> None:
    told("--out", "whole")
    command = [sys.executable, "-c", f"{BEGIN}; app(['train', 'stub', '--config', 'mine.yaml'])"]
    with subprocess.Popen(command, env=WITH_TESTS | {"STUB_SECONDS": "0.2"}, stderr=subprocess.PIPE, text=True) as run:
        while not (folder / "seed-0/checkpoint-000003.safetensors").exists():
            assert run.poll() is None
            time.sleep(0.01)
        run.send_signal(number)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    stopped = "trimtab: stopped; checkpoints are in trimtab-training/stub-mine: the same command goes on from there"
    assert said.splitlines()[-1] == stopped
    assert "Traceback" not in said
    told()
    assert (folder / "stub.safetensors").read_bytes() == (tmp_path / "whole/stub.safetensors").read_bytes()


def test_an_agent_without_offers_is_trained_on_what_it_has() -> None:
    assert recipe.default_task("rudder") == "rescaling"
    assert recipe.default_task("vdn") == "offers"
