"""Checkpoints of trainings: whatever is killed at whatever moment, the last one is whole.

A checkpoint is a safetensors file named after its segment, and `checkpoint.json`, which names it and holds its SHA-256.
The arrays are written first; the moment at which the new `checkpoint.json` takes the place of the old one is the moment
at which the new checkpoint counts; only then the old arrays go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from trimtab_policy.learned import store

Row = dict[str, int | float | None]
"""Figures after one segment, by name; None: there was nothing to measure."""

NAME = "checkpoint.json"
_LEARNER, _BEST = "learner/", "best/"


class CheckpointError(ValueError):
    """A checkpoint cannot be gone on from: which one, why, and what to do, in one line."""


class TrainingState(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How far a training is."""

    agent: str
    seed: int
    config: dict[str, Any]
    segment: int = 0
    """Segments that are done."""
    rows: tuple[Row, ...] = ()
    """Figures of each of them."""
    best: float | None = None
    """Highest validation score so far."""
    best_segment: int = 0
    """Segments after which it was reached."""
    arrays: str = ""
    """File of the arrays; `save` fills it in, and the next."""
    sha256: str = ""


class TrainingCheckpoint(NamedTuple):
    """All that the next segment depends on, and the best weights so far."""

    state: TrainingState
    learner: Mapping[str, NDArray[Any]]
    best: Mapping[str, NDArray[Any]]


def save(folder: Path, checkpoint: TrainingCheckpoint) -> None:
    """Let `checkpoint` be the last one of `folder`. Raises WeightsError for arrays that cannot be stored, OSError."""
    path = folder / f"checkpoint-{checkpoint.state.segment:06d}.safetensors"
    arrays = {f"{_LEARNER}{name}": array for name, array in checkpoint.learner.items()}
    arrays |= {f"{_BEST}{name}": array for name, array in checkpoint.best.items()}
    data = store.pack(path, arrays)
    store.replace(path, data)
    state = replace(checkpoint.state, arrays=path.name, sha256=hashlib.sha256(data).hexdigest())
    store.replace(folder / NAME, msgspec.json.encode(state))
    tidy(folder, state)


def load(folder: Path) -> TrainingCheckpoint | None:
    """The last checkpoint of a folder, its arrays writable; None where there is none yet.

    Raises CheckpointError when it was damaged by other means than ours.
    """
    path = folder / NAME
    if not path.exists():
        return None
    advice = f"remove {folder} to begin anew"
    try:
        state = msgspec.json.decode(path.read_bytes(), type=TrainingState)
        data = (folder / state.arrays).read_bytes()
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise CheckpointError(f"{path}: no checkpoint of ours, or not all of it ({error}); {advice}") from error
    if hashlib.sha256(data).hexdigest() != state.sha256:
        raise CheckpointError(f"{folder / state.arrays}: was changed since it was written; {advice}")
    arrays = store.unpack(folder / state.arrays, data)
    return TrainingCheckpoint(state, _below(_LEARNER, arrays), _below(_BEST, arrays))


def _below(prefix: str, arrays: store.Arrays) -> store.Arrays:
    """Copies: learners go on in place."""
    return {name.removeprefix(prefix): np.array(array) for name, array in arrays.items() if name.startswith(prefix)}


def tidy(folder: Path, last: TrainingState) -> None:
    """Remove what no longer counts besides the `last` checkpoint: its predecessors, and what killed processes left.

    Who goes on needs it as well as who saves: after the last segment nobody saves any more.
    """
    for path in (*folder.glob(".*.part"), *folder.glob("checkpoint-*.safetensors")):
        if path.name != last.arrays:
            path.unlink()
