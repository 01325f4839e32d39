"""Trained weights on disk: `NAME.safetensors` holds the arrays, `NAME.json` beside it the card that says what they are.

Neither file can run code when it is read. A card carries the SHA-256 of its arrays, and is written last: whatever is
cut short, mixed up or foreign is refused with one line that names the file and says what to do. Each file is replaced
at once, so that nobody ever sees half of one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as safetensors

Arrays = dict[str, NDArray[Any]]

ENV_FOLDER = "TRIMTAB_WEIGHTS"
"""Environment variable: a folder whose weights go before those of the package that have the same name."""

_CATALOGUE = ("gpus.yaml", "models.yaml")
"""Files below `data/` that tell what GPUs and models can do: what agents learned depends on them."""
_STORABLE = frozenset(
    ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
)
"""Types of numbers that both numpy and safetensors know."""


class WeightsError(ValueError):
    """A file of weights cannot be used: which one, why, and what to do, in one line."""


class ModelCard(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What weights are, where they come from, and how good they were."""

    agent: str
    task: str
    schema: str
    """Observations that they expect, such as `offers/1`."""
    catalogue: str
    """`catalogue_hash` when they were trained."""
    commit: str
    """Of the source that trained them; `unknown` outside a checkout."""
    seeds: tuple[int, ...]
    score: float
    """On seeds that were never trained on; higher is better."""
    score_name: str
    config: dict[str, Any]
    """The whole configuration of the training."""
    sha256: str = ""
    """Of the safetensors file; `save` fills it in."""

    @property
    def stale(self) -> bool:
        """Whether the catalogue has changed since: the weights can be used, but were made for other speeds."""
        return self.catalogue != catalogue_hash()


class Weights(NamedTuple):
    """Arrays by name, read-only, and what they are."""

    arrays: Arrays
    card: ModelCard


def save(path: Path, weights: Mapping[str, NDArray[Any]], card: ModelCard) -> ModelCard:
    """Write arrays to `path` (`.safetensors`) and their card beside it; returns the card with its SHA-256.

    Raises WeightsError when a value or the score is not finite or a type of array cannot be stored, OSError when
    nothing can be written.
    """
    path = _arrays_path(path)
    _check_finite(path, weights)
    _check_finite(path, {"score": np.array(card.score)})
    data = pack(path, weights)
    card = msgspec.structs.replace(card, sha256=hashlib.sha256(data).hexdigest())
    replace(path, data)
    replace(path.with_suffix(".json"), msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")
    return card


def load(source: str | Path, schema: str, names: Collection[str] = ()) -> Weights:
    """Read weights that expect observations of `schema` and consist of arrays of these names (any, if none are given).

    A Path, or a text with a slash or a suffix, is a file; any other text is a name (`named`). Raises
    WeightsError when they are absent or of another schema, were cut short or changed, are none of ours, or hold values
    that are not finite.
    """
    path = _found(source)
    card, data = _card(path.with_suffix(".json")), _read(path)
    if hashlib.sha256(data).hexdigest() != card.sha256:
        told = f"{len(data)} bytes whose SHA-256 is not that in {path.stem}.json"
        raise WeightsError(f"{path}: {told}: cut short or changed; copy both files again, or train anew")
    if card.schema != schema:
        told = f"{card.agent!r} learned from observations {card.schema!r}, here they are {schema!r}"
        raise WeightsError(f"{path}: {told}; train it for them, or name other weights")
    arrays = unpack(path, data)
    if names and arrays.keys() != set(names):
        raise WeightsError(f"{path}: {_difference(set(names), arrays)}; these are weights of another agent")
    _check_finite(path, arrays)
    return Weights(arrays, card)


def read_card(source: str | Path) -> ModelCard:
    """The card alone, for lists of what there is. Raises WeightsError without a card, or when it is none of ours."""
    return _card(_found(source).with_suffix(".json"))


def named(name: str) -> Path:
    """The safetensors file of this name: of the user's folder, else of the package. Raises WeightsError without."""
    path = _shipped_folder() / f"{name}.safetensors"
    if (own := os.environ.get(ENV_FOLDER)) and (theirs := Path(own) / path.name).is_file():
        return theirs
    if not path.is_file():
        known = ", ".join(shipped_names()) or "none"
        raise WeightsError(f"{path}: no weights of {name!r} come with this package (there are: {known}); train them")
    return path


def shipped_names() -> tuple[str, ...]:
    """Names of all weights that come with the package."""
    return tuple(sorted(path.stem for path in _shipped_folder().glob("*.safetensors")))


@cache
def catalogue_hash() -> str:
    """SHA-256 over the files that tell what GPUs and models can do."""
    digest = hashlib.sha256()
    for name in _CATALOGUE:
        digest.update((files("trimtab_policy") / "data" / name).read_bytes())
    return digest.hexdigest()


def pack(path: Path, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of a safetensors file. Raises WeightsError, naming `path`, for types of arrays that it cannot hold."""
    solid = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # each must lie in one piece
    for name, array in solid.items():
        if array.dtype.name not in _STORABLE:
            raise WeightsError(f"{path}: {name!r} holds {array.dtype}, which cannot be stored; use float32 or int64")
    return safetensors.save(solid)


def unpack(path: Path, data: bytes) -> Arrays:
    """The arrays of a safetensors file, read-only. Raises WeightsError, naming `path`, when it is none."""
    try:
        found: Arrays = safetensors.load(data)
    except (SafetensorError, ValueError, OverflowError) as error:
        raise WeightsError(f"{path}: no safetensors file ({_line(error)}); name another file") from error
    except KeyError as error:
        raise WeightsError(f"{path}: holds {error.args[0]} numbers, which numpy lacks; name another file") from error
    for name, array in found.items():
        if array.dtype.name not in _STORABLE:
            raise WeightsError(f"{path}: {name!r} holds {array.dtype}, which no weights are; name another file")
    return found


def replace(path: Path, data: bytes) -> None:
    """Write a file at once: whoever reads it, whatever is killed, there is the old one or the new one, whole."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _shipped_folder() -> Path:
    return Path(str(files("trimtab_policy") / "weights"))


def _found(source: str | Path) -> Path:
    if isinstance(source, str) and not ("/" in source or os.sep in source or Path(source).suffix):
        return named(source)
    return _arrays_path(Path(source))


def _arrays_path(path: Path) -> Path:
    """Either file of a pair may be named, or what their names have in common."""
    return path if path.suffix == ".safetensors" else path.with_name(f"{path.name.removesuffix('.json')}.safetensors")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        told = f"cannot be read ({error.strerror})"
        raise WeightsError(f"{path}: {told}; weights are NAME.safetensors and NAME.json: bring both") from error


def _card(path: Path) -> ModelCard:
    raw = _read(path)
    try:
        return msgspec.json.decode(raw, type=ModelCard)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: no card of trained weights ({_line(error)}); name another file") from error


def _check_finite(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise WeightsError(f"{path}: {name!r} holds values that are not finite; the training diverged: train anew")


def _difference(wanted: Collection[str], arrays: Collection[str]) -> str:
    parts = {"lacks": sorted(set(wanted) - set(arrays)), "has unknown": sorted(set(arrays) - set(wanted))}
    return " and ".join(f"{what} {', '.join(names)}" for what, names in parts.items() if names)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
