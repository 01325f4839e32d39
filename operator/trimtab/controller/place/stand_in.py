"""The LLMTrainingJob that stands in for a job of another kind: what it says, and why there can be none. Pure functions.

It has a place in the queue and a plan as any job has; only its pods are made by somebody else. So its template is never
made into a pod: it has what planning looks at, and nothing that is nobody's business (commands, secrets, volumes).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from trimtab import names
from trimtab.controller.other_jobs import OtherJob
from trimtab.errors import UsageError
from trimtab.foreign import shape
from trimtab.foreign.budget import TooLong, reading
from trimtab.foreign.in_cluster import own_spec
from trimtab.foreign.job import bounds
from trimtab.foreign.kinds import Json, Pods, described, mapping, pods_of, valued, written
from trimtab.foreign.tables import Kind, Place
from trimtab.kube.objects import JobObject, Meta
from trimtab.observe import jobs

MAX_RESTARTS: Final = 1000
"""As many as there can be: whether a job is tried again its own controller says."""
MOST_NODES: Final = 4096
"""As the API has it."""
_OF_POD = ("nodeSelector", "affinity", "tolerations", "terminationGracePeriodSeconds", "overhead")
_OF_CONTAINER = ("name", "image", "resources", "restartPolicy")
_OPTIONAL = ("queue", "priorityClassName")
"""Fields of the spec that are taken away where the job does not say them any more."""


def name_of(job: Meta) -> str:
    """Of the stand-in: begins like the job, and is no other's: not that of a job of the same name, of another kind, or
    made anew."""
    digest = hashlib.sha256(job.uid.encode()).hexdigest()[:5]
    beginning = job.name.replace(".", "-")[: names.MAX_NAME_LENGTH - 6].strip("-")
    return f"{beginning if beginning[:1].isalpha() else 'job'}-{digest}"


def stand_in(kind: str, row: Kind, job: OtherJob, scheduler: str, made: Json | None = None) -> Json:
    """The whole object. `scheduler` is whom its pods have to name in schedulerName; `made` is the object that describes
    them, where the job itself does not: its own controller has made it.

    Raises UsageError naming the field that keeps the job from being placed.
    """
    meta = job.metadata
    try:
        with reading():
            spec = _spec(kind, row, job, scheduler, [made] if made else [])
    except TooLong as error:
        raise UsageError(f"{kind} {meta.name} cannot be read: {error}") from error
    owner = {key: value for key, value in job.reference(kind, row).items() if key != "namespace"} | {"controller": True}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.JOB_KIND,
        "metadata": {"name": name_of(meta), "namespace": meta.namespace, "ownerReferences": [owner]},
        "spec": spec,
    }


def changes(wanted: Json, there: Json) -> Json:
    """The JSON merge patch of a spec that makes it say what is wanted; empty where it does. What the API server has
    filled in besides stays."""
    gone = {field: None for field in _OPTIONAL if field in there and field not in wanted}
    return gone | {key: value for key, value in wanted.items() if not _says(there.get(key), value)}


def _says(there: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(there, Mapping) and all(_says(there.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(there, list) and len(there) == len(wanted) and all(map(_says, there, wanted))
    return there is not None and (there == wanted or str(there) == str(wanted))


def _spec(kind: str, row: Kind, job: OtherJob, scheduler: str, beside: list[Json]) -> Json:
    document = job.given(kind, row).document
    name = f"{document['kind']} {job.metadata.name}"
    if problem := next(_problems(job), ""):
        raise UsageError(f"{name}: {problem}")
    shown, its_kind, its_row = described(document, kind, row, beside)
    roles = pods_of(shown, its_kind, its_row, beside)
    if row.members and (problem := next(chain(_problems_of_shape(shown, row, roles), _problems_of_members(roles)), "")):
        raise UsageError(f"{name}: {problem}")
    gang = _gang(roles, its_row, name)
    found = chain(
        _problems_of_shape(shown, its_row, gang),
        _problems_of_pods(its_row, gang, scheduler),
        _problems_of_likeness(gang),
        _problems_of_others(roles, gang, scheduler),
    )
    if problem := next(found, ""):
        asked = row.place.describing if row.place else None
        where = f" in its {shown['kind']}: {asked.from_} can say so" if asked else ""
        raise UsageError(f"{name}: {problem}{where}")
    spec, _, read = own_spec([document, *beside])
    if bounds(read.fields["gpus"].value):
        if problem := next(shape.problems(document, kind, row, read), ""):
            raise UsageError(f"{name}: {problem}")
        spec["resources"] |= _range(spec["resources"], gang, name)
    else:
        spec["resources"] |= _as_many_as_there_are(spec["resources"], gang, name)
    resharding = spec["elasticity"].get("checkpoint", {}).get("resharding", False)
    spec |= {
        "elasticity": {**spec["elasticity"], "checkpoint": {"graceSeconds": 0, "resharding": resharding}},
        "managedBy": names.MANAGED_BY_STAND_IN,
        "suspend": job.suspended(row) and names.ANNOTATION_SUSPENDED not in job.metadata.annotations,
        "maxRestarts": MAX_RESTARTS,
        "template": _template(spec["template"]),
    }
    known = Meta(name=job.metadata.name, namespace=job.metadata.namespace, uid=job.metadata.uid)
    if error := jobs.facts(JobObject(known, msgspec.Raw(msgspec.json.encode(spec)))).error:
        raise UsageError(f"{name}: {error}")
    return spec


def _as_many_as_there_are(resources: Json, gang: Sequence[Pods], name: str) -> Json:
    """GPUs and nodes of a gang that has the shape of its pods."""
    nodes, each = sum(pods.count or 0 for pods in gang), gang[0].accelerators or 0
    if (said := resources["gpus"]["max"]) != nodes * each:
        raise UsageError(
            f"{name}: its arguments or annotations speak of {said} GPUs, and its pods ask for {nodes * each}"
        )
    return _resources(nodes * each, nodes * each, each, each)


def _range(resources: Json, gang: Sequence[Pods], name: str) -> Json:
    """The same of one whose shape is chosen; its pods keep their GPUs, unless these may vary, too."""
    low, high = resources["gpus"]["min"], resources["gpus"]["max"]
    own = gang[0].accelerators or 0
    each = resources.get("gpusPerNode", {"min": own, "max": own})
    if high < each["min"]:
        raise UsageError(f"{name}: {names.STATED['gpus']} ends at {high}, and each of its pods asks for {each['min']}")
    return _resources(low, high, each["min"], each["max"])


def _resources(low: int, high: int, least: int, most: int) -> Json:
    """All of it is said, also what follows from the rest: a stand-in may have said something else before."""
    return {
        "gpus": {"min": low, "max": high},
        "gpusPerNode": {"min": least, "max": most},
        "maxNodes": min(high // least, MOST_NODES),
    }


def _problems(job: OtherJob) -> Iterator[str]:
    """Why the job is none to be placed, whatever its pods are."""
    if job.follows:
        yield f"{job.follows} controls it: label that one"
    if names.LABEL_KUEUE_QUEUE in job.metadata.labels:
        yield f"metadata.labels: {names.LABEL_KUEUE_QUEUE}: Kueue starts it already: take one of both labels away"


def _gang(roles: Sequence[Pods], row: Kind, name: str) -> list[Pods]:
    """The roles whose pods are the gang, the first ranks first: one, or those that the kind counts through."""
    order = row.rank.roles if row.rank else ()
    gang = [pods for pods in roles if pods.accelerators != 0]
    if len(gang) != 1 and not (gang and order and all(pods.role in order for pods in gang)):
        called = f" ({', '.join(pods.role for pods in gang)})" if gang else ""
        raise UsageError(f"{name}: {len(gang)} of its roles ask for GPUs{called}: a gang is of one")
    counted = all(pods.count is not None for pods in gang) and any(pods.count for pods in gang)
    if not counted or any(not pods.accelerators or pods.resource not in names.GPU_RESOURCES for pods in gang):
        raise UsageError(f"{name}: its pods have to ask for GPUs by number, as limits of {names.GPU_RESOURCES[0]}")
    return sorted(gang, key=lambda pods: order.index(pods.role) if order else 0)


def _problems_of_shape(document: Json, row: Kind, gang: Sequence[Pods]) -> Iterator[str]:
    """Why the pods would have no ranks, or not be there together, or not end together."""
    asked = row.place or Place()
    for keys in (pods.keys for pods in gang):
        for path, required in asked.requires.items():
            if str(valued(document, path, keys)) not in required.values:
                yield f"{written(path, keys)} has to be {' or '.join(required.values)}: {required.why}"
        for path, other in asked.same.items():
            if str(valued(document, path, keys)) != str(valued(document, other, keys)):
                yield f"{written(path, keys)} has to be {written(other, keys)}: a gang runs as a whole"
        for path, why in asked.without.items():
            if (found := valued(document, path, keys)) or found == {}:
                yield f"{written(path, keys)} has to be left out: {why}"


def _problems_of_members(roles: Sequence[Pods]) -> Iterator[str]:
    """Why nobody would make other pods in place of those that have to go."""
    owners = [mapping(pods.template.get("metadata")).get("ownerReferences") or [] for pods in roles]
    if not all(any(mapping(owner).get("controller") is True for owner in each) for each in owners):
        yield "metadata.ownerReferences of its pods have to name a controller, which makes others when they have to go"


def _problems_of_pods(row: Kind, gang: Sequence[Pods], scheduler: str) -> Iterator[str]:
    """Why its pods would not come to Trimtab, or not be a gang."""
    overwritten = row.place is not None and row.place.restarts
    for pods in gang:
        its = f"its {pods.role} pods" if len(gang) > 1 else "its pods"
        if not _labelled(pods):
            yield f'the template of {its} lacks the label {names.LABEL_MANAGED}: "true"'
        if pods.spec.get("schedulingGates") != [{"name": names.SCHEDULING_GATE}]:
            yield f"schedulingGates of {its} have to be [{{name: {names.SCHEDULING_GATE}}}]"
        if pods.spec.get("schedulerName") != scheduler:
            yield f"schedulerName of {its} has to be {scheduler}"
        if mapping(pods.template.get("metadata")).get("finalizers"):
            yield f"metadata.finalizers of {its} have to be left out: pods that nobody may delete would keep their GPUs"
        if not overwritten and pods.spec.get("restartPolicy") != "Never":
            yield f"restartPolicy of {its} has to be Never: a gang starts anew as a whole"


def _problems_of_likeness(gang: Sequence[Pods]) -> Iterator[str]:
    """Why one plan cannot be for the pods of all these roles."""
    first, *others = gang
    for pods in others:
        for field in (*_OF_POD, "priorityClassName"):
            if pods.spec.get(field) != first.spec.get(field):
                yield f"{field} of its {pods.role} pods has to be that of its {first.role} pods: one plan is for both"
        if [each.get("resources") for each in pods.containers] != [each.get("resources") for each in first.containers]:
            yield f"resources of its {pods.role} pods have to be those of its {first.role} pods: one plan is for both"


def _problems_of_others(roles: Sequence[Pods], gang: Sequence[Pods], scheduler: str) -> Iterator[str]:
    """Why pods without GPUs would wait for ever, or be taken for ranks."""
    for pods in (each for each in roles if each not in gang):
        gates = pods.spec.get("schedulingGates")
        waits = gates and {"name": names.SCHEDULING_GATE} in gates
        if _labelled(pods) or waits or pods.spec.get("schedulerName") == scheduler:
            what = f"the label {names.LABEL_MANAGED}, the gate {names.SCHEDULING_GATE} or schedulerName: {scheduler}"
            yield f"the pods of {pods.role} ask for no GPUs: their template may not have {what}"


def _labelled(pods: Pods) -> bool:
    labels = mapping(mapping(pods.template.get("metadata")).get("labels"))
    return labels.get(names.LABEL_MANAGED) == "true"


def _template(template: Json) -> Json:
    """What planning looks at."""
    spec = template["spec"]
    kept = {field: spec[field] for field in _OF_POD if spec.get(field)}
    for table in ("containers", "initContainers"):
        if spec.get(table):
            kept[table] = [{field: each[field] for field in _OF_CONTAINER if each.get(field)} for each in spec[table]]
    return {"spec": kept}
