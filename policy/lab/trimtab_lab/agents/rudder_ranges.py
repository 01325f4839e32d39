"""Weights of rudder whose files do not hold the ranges of training get them: what they were trained on is replayed.

    python -m trimtab_lab.agents.rudder_ranges OLD NEW

OLD is a file of weights of schema `options/1` with its card beside it, NEW where to write both for this version.
Windows and seed are those of the card. `trimtab train rudder` writes the ranges itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from msgspec.structs import replace

from trimtab_lab.agents.rudder import RudderConfig, make
from trimtab_policy.learned import rudder, store

BEFORE = "options/1"


def with_ranges(old: Path, new: Path) -> None:
    """Write the weights of `old` to `new`, with ranges.

    Raises WeightsError for what are no weights of rudder without ranges, ValueError for a card whose configuration is
    of another agent, OSError where nothing can be written.
    """
    arrays, card = store.load(old, BEFORE, tuple(rudder.SHAPES))
    learner = make(msgspec.convert(card.config, RudderConfig), card.seeds[0])
    network = rudder.Network(*(arrays[name].astype(float) for name in rudder.SHAPES))
    store.save(new, {**arrays, rudder.RANGES: learner.ranges(network)}, replace(card, schema=rudder.SCHEMA))


if __name__ == "__main__":
    with_ranges(Path(sys.argv[1]), Path(sys.argv[2]))
