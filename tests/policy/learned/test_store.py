"""Weights on disk: what is saved comes back bit for bit, and whatever else lies there is refused in one clear line."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msgspec.structs import asdict, replace
from numpy.typing import NDArray
from safetensors.numpy import save as safetensors

from trimtab_lab.evaluation import sources
from trimtab_policy.learned import store
from trimtab_policy.learned.store import ModelCard, WeightsError

CARD = ModelCard(
    agent="q_learning",
    task="offers",
    schema="offers/1",
    catalogue=store.catalogue_hash(),
    commit="5eed",
    seeds=(2, 0, 1),
    score=-3.25,
    score_name="mean return",
    config={"task": "offers", "training": {"gamma": 0.9, "layers": [64, 64]}},
)
WEIGHTS = {"first": np.arange(6, dtype=np.float32).reshape(2, 3), "second": np.array([1, 2])}
TYPES = [np.bool_, np.int8, np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64]

finite = st.sampled_from(TYPES).flatmap(
    lambda kind: arrays.arrays(
        kind,
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements={"allow_nan": False, "allow_infinity": False} if np.issubdtype(kind, np.floating) else None,
    )
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Weights as they should be."""
    path = tmp_path / "q_learning.safetensors"
    store.save(path, WEIGHTS, CARD)
    return path


def refusal(source: str | Path, schema: str = "offers/1", names: tuple[str, ...] = ()) -> str:
    with pytest.raises(WeightsError) as error:
        store.load(source, schema, names)
    line = str(error.value)
    assert "\n" not in line
    return line


# --- what is saved comes back ----------------------------------------------------------------------------------------
@given(weights=st.dictionaries(st.text(min_size=1, max_size=8), finite, max_size=4))
def test_arrays_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, weights: dict[str, NDArray[Any]]
) -> None:
    path = tmp_path_factory.mktemp("weights") / "any.safetensors"
    store.save(path, weights, CARD)
    found = store.load(path, "offers/1").arrays
    assert found.keys() == weights.keys()
    for name, array in weights.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def test_arrays_in_any_order_of_memory_and_of_bytes_keep_their_values(tmp_path: Path) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    weights = {"turned": whole.T, "every other": whole[::2, ::3], "big endian": whole.astype(">f4")}
    store.save(tmp_path / "any", weights, CARD)
    found = store.load(tmp_path / "any", "offers/1").arrays
    assert all(np.array_equal(found[name], array) for name, array in weights.items())


def test_the_card_comes_back_with_the_digest_of_the_arrays(file: Path) -> None:
    card = store.load(file, "offers/1").card
    assert card == replace(CARD, sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    assert store.read_card(file) == card


@pytest.mark.parametrize("name", ["q_learning", "q_learning.json", "q_learning.safetensors"])
def test_a_pair_is_named_by_either_file_or_by_what_they_share(file: Path, name: str) -> None:
    assert store.load(file.parent / name, "offers/1").card.agent == "q_learning"
    assert store.load(f"{file.parent}/{name}", "offers/1").card.agent == "q_learning"


def test_arrays_that_are_wanted_by_name_are_all_there(file: Path) -> None:
    assert store.load(file, "offers/1", ("first", "second")).arrays.keys() == WEIGHTS.keys()


def test_another_catalogue_is_said_and_is_no_error(tmp_path: Path) -> None:
    store.save(tmp_path / "old", WEIGHTS, replace(CARD, catalogue="other"))
    assert store.load(tmp_path / "old", "offers/1").card.stale
    assert not CARD.stale


# --- what is refused -------------------------------------------------------------------------------------------------
def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def other_arrays(path: Path) -> None:
    path.write_bytes(safetensors({"model.embed": np.ones(3)}))


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(WEIGHTS))


@pytest.mark.parametrize("damage", [cut, flip, other_arrays, pickled])
def test_arrays_that_are_not_those_of_the_card_are_refused(file: Path, damage: Callable[[Path], None]) -> None:
    damage(file)
    assert f"{file}: {file.stat().st_size} bytes whose SHA-256 is not that in q_learning.json" in refusal(file)
    assert "train anew" in refusal(file)


@pytest.mark.parametrize(
    "text",
    [b"", b'{"agent": "q_le', b"\x80\x04pickle", b"[]", b'{"name": "package", "version": "1.0"}', b"null", b"\xff"],
)
def test_a_card_that_is_none_is_refused(file: Path, text: bytes) -> None:
    card = file.with_suffix(".json")
    card.write_bytes(text)
    assert refusal(file).startswith(f"{card}: no card of trained weights (")


def test_a_card_with_something_missing_or_added_is_refused(file: Path) -> None:
    card = file.with_suffix(".json")
    whole = json.loads(card.read_text())
    card.write_text(json.dumps({key: value for key, value in whole.items() if key != "schema"}))
    assert "`schema`" in refusal(file)
    card.write_text(json.dumps(whole | {"trust_remote_code": True}))
    assert "`trust_remote_code`" in refusal(file)


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_half_a_pair_is_refused(file: Path, suffix: str) -> None:
    missing = file.with_suffix(suffix)
    missing.unlink()
    assert refusal(file).startswith(f"{missing}: cannot be read (No such file or directory)")
    missing.mkdir()
    assert "Is a directory" in refusal(file)


def test_weights_for_other_observations_are_refused(file: Path) -> None:
    said = f"{file}: 'q_learning' learned from observations 'offers/1', here they are 'adlro/1'"
    assert refusal(file, "adlro/1").startswith(said)


def test_weights_of_another_agent_are_refused(file: Path) -> None:
    said = f"{file}: lacks third and has unknown second; these are weights of another agent"
    assert refusal(file, names=("first", "third")) == said


def with_its_digest(path: Path, data: bytes) -> None:
    """A card that vouches for anything."""
    path.write_bytes(data)
    card = replace(CARD, sha256=hashlib.sha256(data).hexdigest())
    path.with_suffix(".json").write_text(json.dumps(asdict(card)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_when_read_and_when_written(file: Path, value: float) -> None:
    bad = {"good": np.zeros(2), "bad": np.array([0.0, value])}
    with pytest.raises(WeightsError, match="'bad' holds values that are not finite"):
        store.save(file, bad, CARD)
    assert store.load(file, "offers/1").arrays.keys() == WEIGHTS.keys()  # as before
    with_its_digest(file, safetensors(bad))
    assert refusal(file).startswith(f"{file}: 'bad' holds values that are not finite")


def test_a_score_that_is_not_finite_is_refused(file: Path) -> None:
    with pytest.raises(WeightsError, match="'score' holds values that are not finite"):
        store.save(file, WEIGHTS, replace(CARD, score=float("nan")))


@pytest.mark.parametrize("data", [b"", b"{}", pickle.dumps(WEIGHTS), safetensors(WEIGHTS)[:-1], b"\xff" * 64])
def test_what_is_no_safetensors_file_is_refused_whatever_the_card_says(file: Path, data: bytes) -> None:
    with_its_digest(file, data)
    assert refusal(file).startswith(f"{file}: no safetensors file (")


def test_numbers_that_numpy_lacks_are_refused(file: Path) -> None:
    header = json.dumps({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    with_its_digest(file, len(header).to_bytes(8, "little") + header + b"\0\0")
    assert refusal(file).startswith(f"{file}: holds BF16 numbers, which numpy lacks")


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([object()]), np.array([1j])])
def test_what_safetensors_cannot_hold_is_refused_by_name(tmp_path: Path, array: NDArray[Any]) -> None:
    path = tmp_path / "any.safetensors"
    with pytest.raises(WeightsError, match=r"any\.safetensors: 'strange' holds .*, which cannot be stored"):
        path.write_bytes(store.pack(path, {"strange": array}))
    assert not path.exists()


def test_weights_that_do_not_come_with_the_package_are_refused_by_name() -> None:
    said = refusal("alpha_zero")
    assert "no weights of 'alpha_zero' come with this package" in said
    assert all(name in said for name in store.shipped_names())


def test_weights_in_the_users_folder_go_before_those_of_the_package(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = store.load(file, CARD.schema)
    shipped = store.shipped_names()[0]
    for suffix in (".safetensors", ".json"):
        file.with_suffix(suffix).rename(file.with_name(shipped + suffix))
    before = sources.of_run(shipped)
    monkeypatch.setenv(store.ENV_FOLDER, str(file.parent))
    assert store.named(shipped) == file.with_name(f"{shipped}.safetensors")
    assert store.load(shipped, CARD.schema).card == mine.card
    sources._digest.cache_clear()
    assert sources.of_run(shipped) != before, "runs that were kept are of other weights"
    sources._digest.cache_clear()
    monkeypatch.delenv(store.ENV_FOLDER)
    assert store.named(shipped).parent.name == "weights"


# --- how it is written -----------------------------------------------------------------------------------------------
def test_a_disk_that_is_full_leaves_what_was_there(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    before = {path.name: path.read_bytes() for path in file.parent.iterdir()}
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.save(file, {"first": np.zeros(1)}, CARD)
    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == before


def test_reading_weights_needs_neither_torch_nor_the_simulator() -> None:
    absent = "{'torch', 'gymnasium', 'numba', 'scipy'}"
    check = f"import sys, trimtab_policy.learned.store; assert not {absent} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
