"""Trainings: what is kept of them, and that killed ones end bit for bit where others end that were left alone."""

from __future__ import annotations

import csv
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from tests import kill_loop
from tests.stub_learner import Config, Stub, Training

from trimtab_lab.agents import checkpoint, recipe, seeds, train
from trimtab_lab.agents.checkpoint import CheckpointError
from trimtab_lab.agents.recipe import RecipeError
from trimtab_lab.agents.train import TrainedAgent, TrainingError, TrainingStep, TrainingTask
from trimtab_policy.learned import store

ROOT = Path(__file__).resolve().parents[3]


def task(folder: Path, seed: int = 3, **training: Any) -> TrainingTask:
    return TrainingTask("stub", "tests.stub_learner", Config(training=Training(**training)), seed, folder)


def trained(events: Iterator[TrainingStep | TrainedAgent]) -> list[TrainedAgent]:
    return [event for event in events if isinstance(event, TrainedAgent)]


def run(folder: Path, seed: int = 3, **training: Any) -> TrainedAgent:
    (only,) = trained(train.learn(task(folder, seed, **training)))
    return only


def stop_after(count: int, folder: Path, **training: Any) -> None:
    events = train.learn(task(folder, **training))
    for _ in range(count + 1):
        next(events)
    events.close()


def without_clock(rows: tuple[checkpoint.Row, ...]) -> list[checkpoint.Row]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def events(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Steps and values of all that TensorBoard would show."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (file,) = folder.glob("events.out.tfevents.*")
    found = [event for event in EventFileLoader(str(file)).Load() if event.HasField("summary")]
    return [(event.step, {value.tag: value.tensor.float_val[0] for value in event.summary.value}) for event in found]


# --- what is kept ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("segments", [1, 7, 20, 33, 200])
def test_validations_are_even_over_the_segments_and_the_last_one_is_validated(segments: int) -> None:
    due = [number + 1 for number in range(segments) if train._due(number, segments)]
    assert len(due) == min(segments, train.VALIDATIONS)
    assert due[-1] == segments
    assert np.ptp(np.diff([0, *due])) <= 1


def test_the_weights_of_the_best_validation_are_kept_and_not_the_last(tmp_path: Path) -> None:
    found = run(tmp_path, segments=12, learning_rate=0.3)
    scores = np.array([row["validation_score"] for row in found.rows], dtype=np.float64)
    assert found.best_segment == 1 + int(scores.argmax()) < 12
    again = Stub(Config(training=Training(segments=12, learning_rate=0.3)), 3)
    for segment in range(found.best_segment):
        again.learn(segment)
    assert np.array_equal(found.weights["at"], again.weights()["at"])
    assert found.card.score == scores.max() == again.validate()["score"]


def test_the_store_holds_the_best_weights_and_says_where_they_come_from(tmp_path: Path) -> None:
    found = run(tmp_path, segments=3)
    weights, card = store.load(tmp_path / "stub", "stub/1", ("at",))
    assert np.array_equal(weights["at"], found.weights["at"])
    assert (card.agent, card.task, card.seeds, card.stale) == ("stub", "point", (3,), False)
    assert (card.score, card.score_name) == (found.card.score, "minus the distance from the goal")
    assert card.config["training"]["segments"] == 3
    assert len(card.commit.rstrip("+")) == 40 or card.commit == "unknown"


def test_figures_of_every_segment_are_a_row_and_what_was_not_measured_is_empty(tmp_path: Path) -> None:
    found = run(tmp_path, segments=40)
    with (tmp_path / "figures.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["segment"] for row in rows] == [str(n + 1) for n in range(40)]
    assert [row["steps"] for row in rows[:3]] == ["3", "6", "9"]
    assert rows[0]["return"] == rows[0]["validation_score"] == ""
    assert float(rows[39]["validation_score"]) == found.rows[39]["validation_score"]
    assert [bool(row["validation_score"]) for row in rows] == 20 * [False, True]


def test_tensorboard_gets_every_figure_over_steps(tmp_path: Path) -> None:
    found = run(tmp_path, segments=3)
    shown = events(tmp_path)
    assert [step for step, _ in shown] == [3, 6, 9]
    assert shown[0][1].keys() >= {"training/loss", "validation/score", "validation/distance"}
    assert "training/return" not in shown[0][1]
    assert shown[2][1]["training/loss"] == pytest.approx(found.rows[2]["loss"])


def test_progress_begins_where_the_training_does(tmp_path: Path) -> None:
    steps = [event for event in train.learn(task(tmp_path, segments=4)) if isinstance(event, TrainingStep)]
    assert [(step.segment, step.segments) for step in steps] == [(n, 4) for n in range(5)]
    assert (steps[0].row, steps[0].best) == ({}, None)
    again = [event for event in train.learn(task(tmp_path, segments=4)) if isinstance(event, TrainingStep)]
    assert [step.segment for step in again] == [4]


# --- going on --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stopped", [0, 1, 5, 11, 12])
def test_a_training_that_was_stopped_ends_where_the_others_end(tmp_path: Path, stopped: int) -> None:
    whole = run(tmp_path / "whole", segments=12)
    stop_after(stopped, tmp_path / "cut", segments=12)
    cut = run(tmp_path / "cut", segments=12)
    assert (tmp_path / "cut/stub.safetensors").read_bytes() == (tmp_path / "whole/stub.safetensors").read_bytes()
    assert without_clock(cut.rows) == without_clock(whole.rows)
    assert [step for step, _ in events(tmp_path / "cut")] == [step for step, _ in events(tmp_path / "whole")]
    seconds = [row["seconds"] or 0.0 for row in cut.rows]
    assert seconds == sorted(seconds)


WHOLE = {"checkpoint-000012.safetensors", "checkpoint.json", "figures.csv", "stub.json", "stub.safetensors"}
"""What a training of `kill_loop.CONFIG` keeps, besides the events."""


def kept(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if "events" not in path.name}


@pytest.mark.parametrize("how", ["steps", "any"])
def test_a_training_that_is_killed_time_and_again_ends_bit_for_bit_where_the_others_end(
    tmp_path: Path, how: str
) -> None:
    (whole,) = trained(train.learn(kill_loop.task(tmp_path / "whole")))
    command = [sys.executable, "-m", "tests.kill_loop", str(tmp_path / "killed"), how]
    slow = os.environ | {"STUB_SECONDS": "0.05"} if how == "any" else os.environ  # else a fast machine is done too soon
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, env=slow)
    assert int(done.stdout) >= 3
    for name in ("stub.safetensors", "stub.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    (again,) = trained(train.learn(kill_loop.task(tmp_path / "killed")))
    assert without_clock(again.rows) == without_clock(whole.rows)
    assert kept(tmp_path / "killed") == WHOLE


def test_a_training_that_is_killed_at_any_step_of_its_end_keeps_all_that_others_keep(tmp_path: Path) -> None:
    (whole,) = trained(train.learn(kill_loop.task(tmp_path / "whole")))
    command = [sys.executable, "-m", "tests.kill_loop", str(tmp_path / "killed"), "last"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    assert int(done.stdout) == len(list((tmp_path / "killed").iterdir())) >= 20
    for folder in (tmp_path / "killed").iterdir():
        assert kept(folder) == WHOLE, folder.name
        for name in ("stub.safetensors", "stub.json"):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), folder.name
        with (folder / "figures.csv").open(newline="") as file:
            assert [row["segment"] for row in csv.DictReader(file)] == [str(row["segment"]) for row in whole.rows]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"learning_rate": 0.2}, "whose training.learning_rate is 0.1, not 0.2"),
        ({"seed": 4}, "whose seed is 3, not 4"),
    ],
)
def test_another_training_in_the_folder_is_refused_and_stays(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    stop_after(2, tmp_path, segments=4)
    before = checkpoint.load(tmp_path)
    with pytest.raises(CheckpointError, match=said) as error:
        run(tmp_path, **({"segments": 4} | change))
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)
    after = checkpoint.load(tmp_path)
    assert before is not None
    assert after is not None
    assert before.state == after.state


@pytest.mark.parametrize("text", [b"", b"{}", b'{"agent": "stub", "seed": 3, "config": {}, "arrays": "../x"}', b"\xff"])
def test_a_checkpoint_that_is_none_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "checkpoint.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=r"checkpoint\.json: no checkpoint of ours, or not all of it") as error:
        run(tmp_path)
    assert f"remove {tmp_path}" in str(error.value)


def test_a_checkpoint_that_was_changed_is_refused(tmp_path: Path) -> None:
    stop_after(2, tmp_path)
    (arrays,) = tmp_path.glob("checkpoint-*.safetensors")
    arrays.write_bytes(arrays.read_bytes()[:-8] + b"8 bytes.")
    with pytest.raises(CheckpointError, match=f"{arrays.name}: was changed since it was written"):
        run(tmp_path)


def test_a_training_that_diverges_says_so_and_its_last_checkpoint_is_good(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="stub, seed 3: the validation score after segment 4 is nan"):
        run(tmp_path, segments=4, wrong="diverge")
    kept = checkpoint.load(tmp_path)
    assert kept is not None
    assert kept.state.segment == 3
    assert np.isfinite(kept.learner["at"]).all()


def test_a_training_without_segments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="leaves nothing to train: 0 segments"):
        run(tmp_path, segments=0)


# --- elsewhere -------------------------------------------------------------------------------------------------------
@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stub, by processes that Ray starts."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def tasks(folder: Path) -> list[TrainingTask]:
    return [task(folder / str(seed), seed, segments=5) for seed in (0, 1)]


@pytest.mark.usefixtures("importable")
def test_seeds_are_the_same_here_in_other_processes_and_on_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    work = {"one by one": seeds.one_by_one, "on ray": seeds.ray_cluster("local")}
    here = [run(tmp_path / "here" / str(seed), seed, segments=5) for seed in (0, 1)]
    for name, carry_out in work.items():
        there = sorted(trained(carry_out(tasks(tmp_path / name))), key=lambda each: each.seed)
        for one, other in zip(here, there, strict=True):
            assert (other.card, other.best_segment) == (one.card, one.best_segment)
            assert without_clock(other.rows) == without_clock(one.rows)


def test_trainings_on_ray_ask_for_a_gpu_where_there_are_any() -> None:
    assert seeds._gpus({"CPU": 8.0}) == seeds._gpus({"CPU": 8.0, "GPU": 0.0}) == 0
    assert seeds._gpus({"CPU": 8.0, "GPU": 4.0}) == 1


def test_a_training_that_is_closed_leaves_no_process(tmp_path: Path) -> None:
    running = seeds.one_by_one([task(tmp_path, segments=100, seconds=60)])
    next(running)
    (child,) = multiprocessing.active_children()
    running.close()
    assert not child.is_alive()


def test_what_is_wrong_is_said_by_other_processes_in_the_same_words(tmp_path: Path) -> None:
    stop_after(1, tmp_path)
    with pytest.raises(CheckpointError, match="whose seed is 3, not 4: choose another folder"):
        list(seeds.one_by_one([task(tmp_path, 4)]))


def test_a_process_that_dies_is_missed(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"the process that trained seed 3 died \(7\)"):
        list(seeds.one_by_one([task(tmp_path, wrong="die")]))


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """Else a training that was killed and begun anew would meet itself."""
    program = f"from tests.policy.agents import test_train as t; t.train_for_ever(t.Path('{tmp_path}'))"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = Path(f"/proc/{int(parent.stdout.readline())}/stat")
        assert " Z " not in child.read_text()
        parent.kill()
        parent.communicate(timeout=60)  # until the child, which holds the other end as well, has closed it
    assert not child.exists() or " Z " in child.read_text()


def train_for_ever(folder: Path) -> None:
    """Prints the number of the process that trains."""
    for _ in seeds.one_by_one([task(folder, segments=100, seconds=60)]):
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)


# --- configurations --------------------------------------------------------------------------------------------------
@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(recipe.AGENTS, "stub", "tests.stub_learner")
    return "stub"


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.yaml"
    file.write_text(text)
    return file


def test_a_configuration_is_read_from_a_file(tmp_path: Path, stub: str) -> None:
    file = written(tmp_path, "task: point\ntraining:\n  learning_rate: 1e-3\n  segments: 5\n")
    wanted = Config("point", Training(segments=5, learning_rate=1e-3))
    assert recipe.read_recipe(stub, file) == recipe.read_recipe(stub, str(file)) == wanted
    assert recipe.read_recipe(stub, written(tmp_path, "# all as usual")) == Config()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("training: {learning_rate: fast}", "Expected `float`, got `str` - at `$.training.learning_rate`"),
        ("training: {segment: 3}", "Object contains unknown field `segment` - at `$.training`"),
        ("- 1", "Expected `object`, got `array`"),
        ("training: {segments: 1", "line 1, column 1"),
    ],
)
def test_a_wrong_configuration_is_one_line_with_file_and_field(tmp_path: Path, stub: str, text: str, said: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(RecipeError) as error:
        recipe.read_recipe(stub, file)
    assert str(error.value).startswith(f"{file}: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_not_there_is_said(tmp_path: Path, stub: str) -> None:
    with pytest.raises(RecipeError, match=r"absent\.yaml: cannot be read: No such file"):
        recipe.read_recipe(stub, tmp_path / "absent.yaml")
    with pytest.raises(RecipeError, match="stub has no configuration 'moon': there are none; or name a file"):
        recipe.read_recipe(stub, "moon")
    with pytest.raises(RecipeError, match="unknown agent 'alpha_zero'; there are: dqn_cnn, q_learning"):
        recipe.read_recipe("alpha_zero", "offers")


SHIPPED = [(agent, name) for agent in recipe.agents() for name in recipe.tasks(agent)]


@pytest.mark.parametrize(("agent", "name"), SHIPPED)
def test_shipped_configurations_are_of_their_task(agent: str, name: str) -> None:
    assert msgspec.to_builtins(recipe.read_recipe(agent, name))["task"] == name


def test_a_score_is_a_mean_return_unless_the_agent_says_what_it_is(stub: str) -> None:
    assert recipe.score_name(recipe.module(stub), "point") == "minus the distance from the goal"
    assert recipe.score_name(recipe.module(stub), "other") == recipe.MEAN_RETURN


def test_configurations_differ_where_they_do() -> None:
    one = train._plain(Config())
    other = train._plain(replace(Config(), training=Training(size=17)))
    assert train._differences(dict(train._flat(one)), dict(train._flat(other))) == {"training.size": (16, 17)}
