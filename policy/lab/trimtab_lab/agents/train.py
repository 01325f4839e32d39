"""The training of any learner: segment by segment, with figures, checkpoints, validation, and the best weights kept.

A folder holds one training: its checkpoint, `figures.csv`, events for TensorBoard, and at the end AGENT.safetensors
with its card. The same training begun in the same folder goes on from the last checkpoint. Everything in the folder
follows from the checkpoint, and is written anew where it was cut short.
"""

from __future__ import annotations

import csv
import io
import math
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from trimtab_lab import provenance
from trimtab_lab.agents import checkpoint, recipe
from trimtab_lab.agents.checkpoint import Row, TrainingCheckpoint, TrainingState
from trimtab_lab.agents.learner import Learner
from trimtab_policy.learned import store
from trimtab_policy.learned.store import ModelCard

VALIDATIONS = 20
"""How often a training is validated, evenly over its segments."""
SCORE = "validation_score"


class TrainingError(ValueError):
    """A training cannot go on: which one, why, and what to do, in one line."""


class TrainingTask(NamedTuple):
    """One training. What it learns follows from agent, configuration and seed alone."""

    agent: str
    module: str
    """Where the agent is."""
    config: Struct
    """A `Config` of that module."""
    seed: int
    folder: Path


class TrainingStep(NamedTuple):
    """A training has come so far."""

    seed: int
    segment: int
    """Segments that are done: more than 0 at once where it was begun before."""
    segments: int
    row: Row
    best: float | None
    """Highest validation score so far."""


class TrainedAgent(NamedTuple):
    """A training that is done."""

    seed: int
    weights: Mapping[str, NDArray[Any]]
    """Those with the highest validation score."""
    card: ModelCard
    best_segment: int
    """Segments after which they were reached."""
    rows: tuple[Row, ...]
    """Figures of every segment: `segment`, `seconds` and `steps` so far, `return`, `loss`, `validation_...`."""


Events = Generator[TrainingStep | TrainedAgent, None, None]
"""Where a training begins, how far it is after every segment, and at last what was trained."""


def task(agent: str, source: str | Path, seed: int, folder: Path) -> TrainingTask:
    """The training of an agent as the configuration of this name or file says. Raises RecipeError, ImportError."""
    return TrainingTask(agent, recipe.module(agent), recipe.read_recipe(agent, source), seed, folder.resolve())


def train(agent: str, source: str | Path, seed: int, folder: Path) -> TrainedAgent:
    """Train in this process until it is done. Raises as `task` and `learn` do."""
    *_, last = learn(task(agent, source, seed, folder))
    assert isinstance(last, TrainedAgent)
    return last


def learn(task: TrainingTask) -> Events:
    """Train, and tell how far it is. Stopped at any moment, it goes on from its last checkpoint when it is begun anew.

    Raises CheckpointError when the folder holds another training or a damaged one, TrainingError when this one
    has no segments or diverges, OSError when the folder cannot be written, ImportError without what the agent needs.
    """
    agent = recipe.imported(task.module)
    _compute_with_one_thread()
    learner = agent.make(task.config, task.seed)
    if learner.segments < 1:
        raise TrainingError(f"{task.agent}: its configuration leaves nothing to train: {learner.segments} segments")
    task.folder.mkdir(parents=True, exist_ok=True)
    reached = _begun(task, learner)
    checkpoint.tidy(task.folder, reached.state)
    if reached.state.rows:  # killed between the last checkpoint and the figures, nothing else would write them
        _write_csv(task.folder, reached.state.rows)
    yield _step(task, learner, reached.state)
    with _events(task.folder, reached.state.rows) as write:
        for segment in range(reached.state.segment, learner.segments):
            reached = _next(task, learner, reached, segment)
            checkpoint.save(task.folder, reached)
            _write_csv(task.folder, reached.state.rows)
            write(reached.state.rows[-1])
            yield _step(task, learner, reached.state)
    yield _finished(task, learner, reached)


def _compute_with_one_thread() -> None:
    """Sums in another order are other numbers, and networks this small gain nothing by threads."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def _begun(task: TrainingTask, learner: Learner) -> TrainingCheckpoint:
    """The last checkpoint, to which the learner is brought, or the beginning."""
    state = TrainingState(agent=task.agent, seed=task.seed, config=_plain(task.config))
    found = checkpoint.load(task.folder)
    if not found:
        return TrainingCheckpoint(state, {}, {})
    for field, (before, now) in _differences(_identity(found.state), _identity(state)).items():
        told = f"{task.folder} holds a training whose {field} is {before!r}, not {now!r}"
        raise checkpoint.CheckpointError(f"{told}: choose another folder, or remove this one")
    learner.restore(found.learner)
    return found


def _identity(state: TrainingState) -> dict[str, Any]:
    return {"agent": state.agent, "seed": state.seed} | dict(_flat(state.config))


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """`{"training": {"gamma": 0.9}}` as `training.gamma`, 0.9."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    fields = dict.fromkeys((*now, *before))
    pairs = {field: (before.get(field), now.get(field)) for field in fields}
    return {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}


def _plain(config: Struct) -> dict[str, Any]:
    """As it comes back from JSON."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return plain


def _next(task: TrainingTask, learner: Learner, reached: TrainingCheckpoint, segment: int) -> TrainingCheckpoint:
    """Go through one segment, and validate where it is time."""
    began, state, best = time.monotonic(), reached.state, reached.best
    figures = learner.learn(segment)
    validation = learner.validate() if _due(segment, learner.segments) else {}
    spent = (state.rows[-1]["seconds"] or 0.0 if state.rows else 0.0) + time.monotonic() - began
    row = {"segment": segment + 1, "seconds": round(spent, 3), **figures}
    row |= {f"validation_{name}": value for name, value in validation.items()}
    state = replace(state, segment=segment + 1, rows=(*state.rows, _finite(row)))
    if validation:
        score = _checked(task, segment, validation["score"])
        if state.best is None or score > state.best:
            state = replace(state, best=score, best_segment=segment + 1)
            best = {name: np.array(array) for name, array in learner.weights().items()}
    return TrainingCheckpoint(state, learner.arrays(), best)


def _due(segment: int, segments: int) -> bool:
    """Whether one of the validations falls into this segment; the last always does."""
    return (segment + 1) * VALIDATIONS // segments > segment * VALIDATIONS // segments


def _checked(task: TrainingTask, segment: int, score: float) -> float:
    if not math.isfinite(score):
        told = f"{task.agent}, seed {task.seed}: the validation score after segment {segment + 1} is {score}"
        raise TrainingError(f"{told}: the training diverged; lower its learning rate")
    return float(score)


def _finite(row: Mapping[str, float]) -> Row:
    """What was not measured, such as the return while no episode ended, is not a number."""
    plain = {name: value if isinstance(value, int) else float(value) for name, value in row.items()}
    return {name: value if math.isfinite(value) else None for name, value in plain.items()}


def _step(task: TrainingTask, learner: Learner, state: TrainingState) -> TrainingStep:
    return TrainingStep(task.seed, state.segment, learner.segments, state.rows[-1] if state.rows else {}, state.best)


def _finished(task: TrainingTask, learner: Learner, reached: TrainingCheckpoint) -> TrainedAgent:
    """Write the best weights and what they are."""
    state = reached.state
    assert state.best is not None, "the last segment is validated"
    card = ModelCard(
        agent=task.agent,
        task=str(state.config["task"]),
        schema=learner.schema,
        catalogue=store.catalogue_hash(),
        commit=provenance.commit(),
        seeds=(task.seed,),
        score=state.best,
        score_name=recipe.score_name(task.module, state.config["task"]),
        config=state.config,
    )
    card = store.save(task.folder / f"{task.agent}.safetensors", reached.best, card)
    return TrainedAgent(task.seed, reached.best, card, state.best_segment, state.rows)


def _write_csv(folder: Path, rows: Sequence[Row]) -> None:
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), restval="")
    table.writeheader()
    table.writerows(rows)
    path, data = folder / "figures.csv", text.getvalue().encode()
    if not path.exists() or path.read_bytes() != data:  # a training that is done is left as it is
        store.replace(path, data)


@contextmanager
def _events(folder: Path, rows: Iterable[Row]) -> Iterator[Callable[[Row], None]]:
    """Writes rows as events for TensorBoard, over steps and over the time that was spent on the training.

    Events of an earlier process are replaced: some may not have reached the disk, or lie beyond the checkpoint.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    known = list(rows)
    began = time.time() - (known[-1]["seconds"] or 0.0 if known else 0.0)
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    writer = EventFileWriter(str(folder))

    def write(row: Row) -> None:
        values = [Summary.Value(tag=_tag(name), simple_value=value) for name, value in row.items() if value is not None]
        moment, step = began + (row["seconds"] or 0.0), int(row["steps"] or 0)
        writer.add_event(Event(wall_time=moment, step=step, summary=Summary(value=values)))
        writer.flush()

    try:
        for row in known:
            write(row)
        yield write
    finally:
        writer.close()


def _tag(name: str) -> str:
    """TensorBoard groups by what stands before the slash."""
    return name.replace("_", "/", 1) if name.startswith("validation_") else f"training/{name}"
