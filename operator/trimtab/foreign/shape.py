"""The shape of a gang whose pods another controller makes, where its kind leaves that open: how many pods there are,
and how many GPUs each asks for, written into a suspended job by the paths of its row. Pure functions.

What the user gave is never lost: a note on the job (`names.ANNOTATION_SHAPED`) has, for each field that was changed,
what stood there and what was written. Where something else stands now, the user has written it, and his word counts.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from trimtab import names
from trimtab.foreign.expansion import known
from trimtab.foreign.job import ForeignJob, bounds
from trimtab.foreign.kinds import (
    FieldPath,
    Json,
    Pods,
    at,
    environment_of,
    field_path,
    mapping,
    pods_of,
    value_at,
    whole,
)
from trimtab.foreign.tables import Kind, trainers

Note = dict[FieldPath, tuple[Any, Any]]
"""Where in the object -> what stood there, and what was written; None for nothing."""
Choice = Literal["", "ours", "theirs"]
_COUNTING = ("nodes", "gpus_per_node", "gpus", "data", "data_shard", "data_replicate")
"""What a program can be told that holds for one number of GPUs only."""
_NUMBER = re.compile(r"[0-9]+(:[0-9]+)?", re.ASCII)
_INDEX = re.compile(r"[0-9]{1,9}", re.ASCII)
"""In a note, which anybody who may write the job can forge: of more digits there is no list."""


class Given(Struct, frozen=True):
    """A job as its user has it."""

    document: Json
    choice: Choice = ""
    """Who chooses its shape: `ours` within a range that he gives; `theirs` where he gives one, and has written over
    what we had chosen; empty where nobody has asked us to."""
    note: Note = {}
    """What we have written into it, and stands there."""


def given(document: Json, kind: str, row: Kind, said: str) -> Given:
    """Take what Trimtab has written out of a job again; `said` is its note, empty where it has none."""
    ranged = bounds(str(at(document, "metadata.annotations").get(names.STATED["gpus"], ""))) is not None
    note = _read(said)
    if row.shape is None or not (ranged or note):
        return Given(document)
    if note and not (set(note) <= set(_now(document, kind, row)) and _stands(document, note)):
        return Given(_fixed(document), "theirs" if ranged else "")
    before = _with(document, {place: was for place, (was, _) in note.items()})
    return Given(before, "ours" if ranged or note else "", note)


def shape_of(document: Json, kind: str, row: Kind) -> tuple[int, int]:
    """Pods of its gang, and GPUs of each."""
    gang = _gang(document, kind, row)
    return sum(pods.count or 0 for pods in gang), max((pods.accelerators or 0 for pods in gang), default=0)


def written(document: Json, kind: str, row: Kind, said: str, nodes: int, gpus: int) -> tuple[Json, str | None]:
    """The job with so many pods of so many GPUs, and its note: None where all stands as its user gave it."""
    before = given(document, kind, row, said).document
    old_nodes, old_gpus = shape_of(before, kind, row)
    values = _now(before, kind, row)
    wanted: dict[FieldPath, Any] = {}
    for place, count in _places_of_count(before, kind, row):
        wanted[place] = count + nodes - old_nodes if nodes != old_nodes else values[place]
    for place in _places_of_gpus(before, kind, row):
        wanted[place] = str(gpus) if gpus != old_gpus else values[place]
    note = {place: [values[place], value] for place, value in wanted.items() if value != values[place]}
    found = {_pointer(place): change for place, change in note.items()}
    return _with(before, wanted), msgspec.json.encode(found).decode() if found else None


def problems(document: Json, kind: str, row: Kind, job: ForeignJob) -> Iterator[str]:
    """Why the shape of a job cannot be chosen though its user gives a range: what would contradict a plan, by name."""
    asked = names.STATED["gpus"]
    if row.shape is None:
        yield f"{asked} is a range, and the number of its pods cannot be changed: state one number, or none"
        return
    gang = _gang(document, kind, row)
    if sum(not row.shape.role or pods.role == row.shape.role for pods in gang) != 1:
        yield f"{asked} is a range, and it has no {row.shape.role or 'one role'} whose number could be changed"
    stay = sum(pods.count or 0 for pods in gang if row.shape.role not in ("", pods.role))
    if stay > 1:
        yield f"{asked} is a range, and {stay} pods of its gang are of roles whose number stays: one at most can be"
    each = job.fields["gpus_per_node"]
    free = bounds(each.value) is not None
    if free and not row.shape.gpus:
        yield f"{each.source} is a range, and the GPUs of its pods cannot be changed"
    if free and any(len(_asking(pods)) != 1 for pods in gang):
        yield f"{each.source} is a range, and several containers of a pod ask for GPUs"
    own = max((pods.accelerators or 0 for pods in gang), default=0)
    if not free and whole(each.value) != own:
        yield f"{each.source} is {each.value}, and its pods ask for {own} GPUs"
    told = whole(at(document, row.processes)) if row.processes else None
    if free and told is not None and told != own:
        yield f"{row.processes} is {told}, and its pods have {own} GPUs"
    for field, value, where in _told(job, gang):
        if field != "gpus_per_node" or free or whole(value) != own:
            yield f"{where} says {value}, and {asked} is a range: take it out, trimtab.launch hands over the plan"


def _told(job: ForeignJob, gang: Sequence[Pods]) -> Iterator[tuple[str, str, str]]:
    """What the program of a gang is told that holds for one number of GPUs: the field, its value, and where."""
    for run in job.runs:
        whole_batch = run.keys() & {"global_batch_size", "global_batch_tokens"}
        of_batch = [] if whole_batch else ["micro_batch_size"]  # it would be another batch with other GPUs
        of_batch += ["gradient_accumulation"] if "micro_batch_size" in run else []
        for field in (*_COUNTING, *of_batch):
            if field in run and _NUMBER.fullmatch(run[field].value):
                yield field, run[field].value, run[field].source
    containers = [each for pods in gang for each in pods.containers]
    variables = {name: value for each in containers for name, value in environment_of(each).items()}
    for field, called in trainers().counts.items():
        for name in called:
            if name in variables and known(variables[name]) and _NUMBER.fullmatch(variables[name]):
                yield field, variables[name], f"environment {name}"


# --- where it stands --------------------------------------------------------------------------------------------------
def _gang(document: Json, kind: str, row: Kind) -> list[Pods]:
    return [pods for pods in pods_of(document, kind, row, ()) if pods.accelerators]


def _now(document: Json, kind: str, row: Kind) -> dict[FieldPath, Any]:
    """Every place that may be written, and what stands there."""
    counts = (place for place, _ in _places_of_count(document, kind, row))
    return {place: value_at(document, place) for place in (*counts, *_places_of_gpus(document, kind, row))}


def _places_of_count(document: Json, kind: str, row: Kind) -> Iterator[tuple[FieldPath, int]]:
    """With how many pods there are by it."""
    if row.shape is None:
        return
    for pods in _gang(document, kind, row):
        if row.shape.role in ("", pods.role):
            yield from ((field_path(path, pods.keys), pods.count or 0) for path in row.shape.count)


def _places_of_gpus(document: Json, kind: str, row: Kind) -> Iterator[FieldPath]:
    if row.shape is None or not row.shape.gpus:
        return
    gang = _gang(document, kind, row)
    for pods in gang:
        template = field_path(pods.path, pods.keys)
        for index in _asking(pods):
            resources = mapping(pods.containers[index].get("resources"))
            for table in ("limits", "requests"):
                if pods.resource in mapping(resources.get(table)):
                    yield (*template, "spec", "containers", index, "resources", table, pods.resource)
    if row.processes and whole(at(document, row.processes)) is not None:
        yield field_path(row.processes)


def _asking(pods: Pods) -> list[int]:
    """Which of its containers ask for GPUs."""
    asked = (mapping(mapping(each.get("resources")).get("limits")) for each in pods.containers)
    return [index for index, limits in enumerate(asked) if pods.resource in limits]


def _with(document: Json, values: Mapping[FieldPath, Any]) -> Json:
    """A copy with these values; None takes away what stands there."""
    made = copy.deepcopy(document)
    for (*path, last), value in values.items():
        holder: Any = value_at(made, tuple(path))
        if value is None:
            holder.pop(last, None)
        else:
            holder[last] = value
    return made


def _fixed(document: Json) -> Json:
    """The same without what says that its shape may be chosen."""
    meta = document["metadata"]
    ranges = {names.STATED[field] for field in ("gpus", "gpus_per_node", "elasticity")}
    left = {name: value for name, value in meta["annotations"].items() if name not in ranges}
    return {**document, "metadata": {**meta, "annotations": left}}


def _stands(document: Json, note: Note) -> bool:
    """Whether all that we have written stands there still."""
    return all(_same(value_at(document, place), now) for place, (_, now) in note.items())


def _same(one: Any, other: Any) -> bool:
    return one == other or (one is not None and other is not None and str(one) == str(other))


# --- the note: RFC 6901 pointers ----------------------------------------------------------------------------------
def _pointer(place: FieldPath) -> str:
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in place)


def _read(said: str) -> Note:
    """A note that nobody can read is none: whatever stands there is the user's then."""
    try:
        found = msgspec.json.decode(said, type=dict[str, tuple[str | int | None, str | int | None]]) if said else {}
    except msgspec.DecodeError:
        return {}
    return {_place(pointer): change for pointer, change in found.items()}


def _place(pointer: str) -> FieldPath:
    keys = (key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:])
    return tuple(int(key) if _INDEX.fullmatch(key) else key for key in keys)
