"""A training job of another kind in a cluster, in the terms of our own: what advice and placement both begin with."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.foreign.convert import to_own
from trimtab.foreign.job import ForeignJob
from trimtab.foreign.kinds import Json
from trimtab.foreign.read import read_objects


def own_spec(documents: Sequence[Json]) -> tuple[Json, tuple[str, ...], ForeignJob]:
    """The spec of an LLMTrainingJob that says the same as the first of these objects, what there is to note, and what
    was read.

    Its pods need not be ones that could run. Raises UsageError naming what the object does not say, or what contradicts
    what.
    """
    name = f"{documents[0]['kind']} {documents[0]['metadata']['name']}"
    read = read_objects(documents, name)
    converted = to_own(read, runnable=False)
    return converted.documents[0]["spec"], converted.notes, read
