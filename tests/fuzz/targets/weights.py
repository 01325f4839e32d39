"""Weights of policies from elsewhere: arrays that are finite and of their names, or one line that says why not."""

from __future__ import annotations

import copy
import hashlib
import json
import struct

import numpy as np
from tests.fuzz.draw import Draw, Json
from tests.fuzz.target import Target
from tests.fuzz.targets.files import folder, written

from trimtab_policy.learned import store
from trimtab_policy.learned.store import WeightsError

SCHEMA = "offers/1"
_CARD: Json = {
    "agent": "q_learning", "task": "x", "schema": SCHEMA, "catalogue": "c", "commit": "unknown", "seeds": [1, 2],
    "score": 0.5, "score_name": "jct", "config": {"a": {"b": 1}}, "sha256": "",
}  # fmt: skip
_HEADER: Json = {
    "__metadata__": {"format": "np"},
    "bins": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]},
    "q": {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 32]},
}
_TYPES = ("F32", "F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "C64", "F4", "x", "F8_E8M0", "F6_E2M3", "U64")
_ARRAYS = store.pack(folder() / "x", {"bins": np.arange(2), "q": np.zeros((2, 2), np.float32)})


def _arrays(draw: Draw) -> bytes:
    match draw.below(4):
        case 0:
            return _ARRAYS
        case 1:
            raw = bytearray(_ARRAYS)
            for _ in range(1 + draw.below(4)):
                raw[draw.below(len(raw))] = draw.byte()
            return bytes(raw)
        case 2:
            return draw.some(64)
    header = copy.deepcopy(_HEADER)
    if draw.chance(2):
        header["q"]["dtype"] = draw.pick(_TYPES)
        header["q"]["shape"] = draw.listed(lambda: draw.integer(0, 1 << 63))
    words = draw.encoded(draw.spoiled(draw.tweaked(header)))
    size = len(words) if not draw.chance(8) else draw.integer(0, (1 << 64) - 1)
    return struct.pack("<Q", size) + words + draw.some(32).ljust(draw.pick((32, 0, 31)), b"\x7f")


def run(data: bytes) -> None:
    """A pair of files, whose card knows what the arrays hash to."""
    draw = Draw(data)
    arrays = _arrays(draw)
    card = copy.deepcopy(_CARD) | {"sha256": hashlib.sha256(arrays).hexdigest()}
    words = draw.rest() if draw.chance(16) else draw.encoded(draw.spoiled(draw.tweaked(card, 1)))
    written("w.json", words)
    path = written("w.safetensors", arrays)
    try:
        found = store.load(path, SCHEMA, draw.pick((("bins", "q"), ())))
    except WeightsError as error:
        assert "w." in str(error)
        assert "\n" not in str(error)
        return
    for array in found.arrays.values():
        assert np.isfinite(array).all()
    again = store.unpack(path, store.pack(path, found.arrays))
    assert all(np.array_equal(again[name], array) for name, array in found.arrays.items())
    assert isinstance(found.card.stale, bool)
    assert json.dumps(found.card.config) is not None


TARGET = Target("weights of policies: safetensors and their cards", run)
