"""A training job of another kind in a cluster, in the terms of our own: what advice and placement both begin with."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab import names
from trimtab.errors import UsageError
from trimtab.foreign.convert import to_own
from trimtab.foreign.kinds import Json
from trimtab.foreign.read import read_objects


def own_spec(documents: Sequence[Json]) -> tuple[Json, tuple[str, ...]]:
    """The spec of an LLMTrainingJob that says the same as the first of these objects, and what there is to note.

    Its pods need not be ones that could run. Raises UsageError naming what the object does not say, or what contradicts
    what.
    """
    meta = documents[0]["metadata"]
    name = f"{documents[0]['kind']} {meta['name']}"
    job = read_objects(documents, name)
    converted = to_own(job, runnable=False)
    spec = converted.documents[0]["spec"]
    if queue := meta["annotations"].get(names.ANNOTATION_QUEUE):
        spec["queue"] = queue
    classes = {str(pods.spec["priorityClassName"]) for pods in job.pods if pods.spec.get("priorityClassName")}
    if len(classes) > 1:
        raise UsageError(f"{name}: its pods name several classes in priorityClassName: {', '.join(sorted(classes))}")
    if classes:
        spec["priorityClassName"] = classes.pop()
    return spec, converted.notes
