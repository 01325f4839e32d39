"""A training job of another kind as one value: what it states, where, and what it leaves open."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from trimtab.foreign import models
from trimtab.foreign.arguments import Run, Stated
from trimtab.foreign.kinds import Json, Pods

LEAST: Final = ("model", "sequence_length", "global_batch_size", "steps", "gpus")
"""Fields that a plan needs."""
COUNTED = re.compile(r"[0-9][0-9_]{0,18}", re.ASCII)
"""A number as configs write it."""
RANGE = re.compile(r"([0-9]{1,6})-([0-9]{1,6})", re.ASCII)
"""From the fewest to the most, both included."""


class ForeignJob(Struct, frozen=True):
    """A training job of another kind."""

    kind: str
    name: str
    namespace: str
    fields: dict[str, Stated]
    """What it states, by the names of `trainers.yaml`, numbers as texts, with what follows from it for sure."""
    unknown: dict[str, str]
    """Fields that it sets to what is known only when it runs: where."""
    trainer: str
    launchers: tuple[str, ...]
    runs: tuple[dict[str, Stated], ...]
    """Where it starts several that differ: what each of them states. `fields` has what they agree on, then."""
    notes: tuple[str, ...]
    refused: str = ""
    """Why it is no training of an LLM, or cannot be planned for; empty for most."""
    unsupported: str = ""
    """Accelerators that Trimtab does not plan for."""
    pods: tuple[Pods, ...] = ()
    run: Run | None = None
    image: str = ""
    source: Json = {}
    """The object itself; empty for a script."""
    derived: tuple[str, ...] = ()
    """Fields that are computed from others."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Fields that a plan needs and nothing states."""
        lacking = [field for field in LEAST if field not in self.fields]
        if "steps" in lacking and self.fields.keys() & {"tokens"}:
            lacking.remove("steps")
        model = self.fields.get("model")
        if "model" in lacking or (model and not models.preset(model.value)):
            shaped = all(field in self.fields for field in models.NEEDED)
            lacking = [field for field in lacking if field != "model"] + ([] if shaped else ["model"])
        return tuple(lacking)


def bounds(text: str) -> tuple[int, int] | None:
    """The fewest and the most of a range; None for all else."""
    match = RANGE.fullmatch(text)
    return (int(match[1]), int(match[2])) if match else None


def number(fields: Mapping[str, Stated], name: str) -> int:
    """The number that a field states; 0 where it states none."""
    stated = fields.get(name)
    return int(stated.value) if stated and COUNTED.fullmatch(stated.value) else 0
