"""Pods of a training job of any kind, by its row in `kinds.yaml`: their templates, how many, which accelerators."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct, structs

from trimtab.foreign import budget, gpu_types
from trimtab.foreign.expansion import unknown
from trimtab.foreign.tables import Kind, Members, Role, kinds

Json = dict[str, Any]
Key = str | int
FieldPath = tuple[Key, ...]
"""Where a value stands in an object: keys of mappings, and positions in lists."""
MOST_PODS = 10_000_000
ENDS: Final = ("succeeded", "failed")
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_ENVIRONMENT = "the environment and arguments of its containers"
_NODE_CONTAINERS = ("node", "trainer", "pytorch")


class Pods(Struct, frozen=True):
    """Pods of one role."""

    role: str
    template: Json
    """As the job has it: metadata and spec."""
    count: int | None
    """None where the job does not say it as a number."""
    accelerators: int | None
    """Of one pod."""
    resource: str = ""
    """What they are called; empty where it asks for none."""
    keys: FieldPath = ()
    """What `*` stands for in the paths of its row."""
    path: str = ""
    """Of its template."""

    @property
    def spec(self) -> Json:
        return mapping(self.template.get("spec"))

    @property
    def containers(self) -> list[Json]:
        found = self.spec.get("containers")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def mapping(value: Any) -> Json:
    """The value where it is a mapping, an empty one else."""
    return value if isinstance(value, dict) else {}


def row_of(document: Json) -> tuple[str, Kind] | None:
    """The row of an object; None where it is no training job of a known kind."""
    group, _, version = str(document.get("apiVersion", "")).partition("/")
    for name, row in kinds().items():
        called = document.get("kind") == (row.kind or name)
        if called and group in row.groups and (not row.versions or version in row.versions):
            return name, row
    return None


def end_of(document: Json, row: Kind) -> tuple[Literal["", "succeeded", "failed"], str]:
    """How a job has ended for good, by its own status, and what that says of it; two empty texts while it has not."""
    for end in ENDS:
        called = row.conditions.get(end)
        if called and row.phase and at(document, row.phase) == called:
            return end, ""
        for told in map(mapping, _listed(at(document, "status.conditions")) if called and not row.phase else ()):
            if told.get("type") == called and told.get("status") == "True":
                return end, ": ".join(str(told[part]) for part in ("reason", "message") if told.get(part))
    return "", ""


def rests(document: Json, row: Kind) -> bool:
    """Whether a job is suspended by its own controller's word."""
    called = row.conditions.get("suspended")
    if row.phase:
        return bool(called) and at(document, row.phase) == called
    found = map(mapping, _listed(at(document, "status.conditions")))
    return any((each.get("type"), each.get("status")) == (called, "True") for each in found)


def has_ended(document: Json, row: Kind) -> bool:
    """Whether a job has succeeded, or failed for good, by its own status."""
    return bool(end_of(document, row)[0])


def described(document: Json, name: str, row: Kind, others: Sequence[Json]) -> tuple[Json, str, Kind]:
    """The object that describes the pods of a job, with the name of its row, and that: the job itself, or one among
    these others that it controls."""
    asked = row.place.describing if row.place else None
    uid = mapping(document.get("metadata")).get("uid")
    if asked is None or not uid:
        return document, name, row
    for other in others:
        found = row_of(other)
        owners = map(mapping, _listed(mapping(other.get("metadata")).get("ownerReferences")))
        if found and found[0] == asked.kind and any(each.get("uid") == uid for each in owners):
            return other, *found
    return document, name, row


def pods_of(document: Json, name: str, row: Kind, others: Sequence[Json]) -> list[Pods]:
    """All pods of a job. `others` are the objects beside it: the runtime of a TrainJob, or the JobSet that its own
    controller has made of that, or pods that name a group, are looked for there."""
    if row.members:
        named = members_of(document, row.members, others)
        return [_pods("", named[0], whole(at(document, row.members.count)))] if named else []
    document, name, row = described(document, name, row, others)
    if row.runtime:
        document = _with_runtime(document, others)
    found = []
    for role in row.roles:
        for bound, template in _at(document, role.template):
            called = _role_name(document, role, bound)
            if isinstance(template, dict) and called not in role.skip:
                pods = _pods(called, template, _count(document, role, bound, row))
                found.append(structs.replace(pods, keys=bound, path=role.template))
    return found


def members_of(group: Json, members: Members, others: Sequence[Json]) -> list[Json]:
    """Those pods among these objects that name the group."""
    name = mapping(group.get("metadata")).get("name")
    return [each for each in others if each.get("kind") == "Pod" and name and at(each, members.named) == name]


def _at(value: Any, path: str) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """What stands at a path, and the keys that `*` stood for."""
    head, _, rest = path.partition(".")
    if not head:
        yield (), value
        return
    if head == "*":
        items: list[tuple[Any, Any]] = (
            list(value.items())
            if isinstance(value, dict)
            else list(enumerate(value))
            if isinstance(value, list)
            else []
        )
        for key, inner in items[:256]:
            for bound, found in _at(inner, rest):
                yield (key, *bound), found
    elif isinstance(value, dict) and head in value:
        yield from _at(value[head], rest)


def field_path(path: str, keys: Sequence[Key] = ()) -> FieldPath:
    """The path with these keys for its `*`."""
    left = list(keys)
    return tuple(left.pop(0) if part == "*" else part for part in path.split("."))


def value_at(document: Any, where: FieldPath) -> Any:
    """What stands there; None for nothing."""
    for key in where:
        if isinstance(document, dict):
            document = document.get(key)
        elif isinstance(document, list) and isinstance(key, int) and key < len(document):
            document = document[key]
        else:
            return None
    return document


def at(document: Json, path: str) -> Any:
    """The value at a path without `*`; None where there is none."""
    return value_at(document, field_path(path)) if path else None


def valued(document: Json, path: str, keys: Sequence[Key] = ()) -> Any:
    """The value at a path in which `*` stands for these keys, or else what the path says behind `=`."""
    path, _, default = path.partition("=")
    found = value_at(document, field_path(path, keys))
    return (default or None) if found is None else found


def written(path: str, keys: Sequence[Key] = ()) -> str:
    """The path as a message names it: `spec.replicatedJobs[0].name`."""
    left = list(keys)
    parts = [f"[{left.pop(0)}]" if part == "*" else f".{part}" for part in path.partition("=")[0].split(".")]
    return "".join(parts).removeprefix(".")


def _role_name(document: Json, role: Role, bound: Sequence[Any]) -> str:
    if bound and isinstance(bound[0], str):
        return bound[0]
    holder = value_at(document, field_path(role.template.partition(".*")[0] + ".*", bound)) if bound else None
    named = mapping(holder)
    return str(named.get("name") or named.get("groupName") or role.lead or "")


def _count(document: Json, role: Role, bound: Sequence[Any], row: Kind) -> int | None:
    if row.runtime:
        holder = mapping(value_at(document, field_path("spec.template.spec.replicatedJobs.*", bound)))
        return whole(holder.get("trimtabCount", 1))
    total = 1
    for factor in role.count:
        value = valued(document, factor, bound)
        number = 1 if value is None else whole(value)
        if number is None:
            return None
        total = min(total * number, MOST_PODS)
    return total


def whole(value: Any) -> int | None:
    """A whole number, also where it is written as a text; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    text = str(value).strip()
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _pods(role: str, template: Json, count: int | None) -> Pods:
    total, called = 0, ""
    for container in Pods(role, template, count, 0).containers:
        resources = mapping(container.get("resources"))
        asked = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
        for resource, amount in asked.items():
            if not gpu_types.is_accelerator(str(resource)):
                continue
            called = str(resource)
            number = whole(amount)
            if number is None:
                return Pods(role, template, count, None, called)
            total += number
    if not total and mapping(template.get("spec")).get("resourceClaims"):
        return Pods(role, template, count, None)  # devices by claims: which, their class says
    return Pods(role, template, count, total, called if total else "")


def _with_runtime(document: Json, others: Sequence[Json]) -> Json:
    """A TrainJob laid over its runtime, in the shape of a TrainingRuntime; what is not at hand is left out."""
    spec = mapping(document.get("spec"))
    trainer = mapping(spec.get("trainer"))
    wanted = mapping(spec.get("runtimeRef")).get("name")
    runtime = next(
        (
            each
            for each in others
            if "TrainingRuntime" in str(each.get("kind")) and mapping(each.get("metadata")).get("name") == wanted
        ),
        {},
    )
    base = mapping(runtime.get("spec"))
    jobs = at(base, "template.spec.replicatedJobs")
    jobs = [mapping(each) for each in jobs] if isinstance(jobs, list) else []
    if not jobs:
        jobs = [{"name": "node", "template": {"spec": {"template": {"spec": {"containers": [{"name": "node"}]}}}}}]
    nodes = trainer.get("numNodes", at(base, "mlPolicy.numNodes"))
    laid = [_laid(job, trainer, 1 if nodes is None else nodes) for job in jobs]
    return {**document, "spec": {**spec, "template": {"spec": {"replicatedJobs": laid}}}}


def _laid(job: Json, trainer: Json, nodes: Any) -> Json:
    step = at(job, "template.metadata.labels")
    ours = (
        mapping(step).get("trainer.kubeflow.org/trainjob-ancestor-step") == "trainer"
        or job.get("name") in _NODE_CONTAINERS
    )
    template = mapping(at(job, "template.spec.template"))
    pod = mapping(template.get("spec"))
    containers = pod.get("containers")
    containers = [mapping(each) for each in containers] if isinstance(containers, list) else []
    if ours and containers:
        index = next((i for i, each in enumerate(containers) if each.get("name") in _NODE_CONTAINERS), 0)
        given = {key: trainer[key] for key in ("command", "args", "image") if trainer.get(key)}
        environment = [*_listed(containers[index].get("env")), *_listed(trainer.get("env"))]
        resources = trainer.get("resourcesPerNode") or containers[index].get("resources")
        containers[index] = {**containers[index], **given, "env": environment, "resources": resources}
    return {
        "name": job.get("name"),
        "trimtabCount": nodes if ours else job.get("replicas", 1),
        "template": {"spec": {"template": {**template, "spec": {**pod, "containers": containers}}}},
    }


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def environment_of(container: Mapping[str, Any]) -> dict[str, str]:
    """Variables of a container; unknown ones where they come from elsewhere."""
    found: dict[str, str] = {}
    for each in _listed(container.get("env"))[:1000]:
        if isinstance(each, dict) and isinstance(name := each.get("name"), str):
            value = each.get("value")
            found[name] = (
                unknown(name)
                if value is None and "valueFrom" in each
                else references("" if value is None else str(value), found)
            )
    return found


def references(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` as Kubernetes expands it."""
    found: list[str] = []
    at = 0
    budget.charge(len(text), _ENVIRONMENT)
    for match in _REFERENCE.finditer(text := text[:200_000]):
        value = variables.get(match[1], unknown(match[1]))[:10_000]
        budget.charge(len(value), _ENVIRONMENT)  # before it is made: each may be many times as long as its name
        found += text[at : match.start()], value
        at = match.end()
    return "".join((*found, text[at:]))


def words_of(container: Mapping[str, Any]) -> list[str]:
    """Command and arguments of a container."""
    variables = environment_of(container)
    given = [*_listed(container.get("command")), *_listed(container.get("args"))]
    return [
        references(str(each).replace("\x00", ""), variables) for each in given if isinstance(each, str | int | float)
    ]
