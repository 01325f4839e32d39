"""The file of a question to `trimtab whatif`: read strictly, and applied to a snapshot.

    nodes:
      add: [{type: H100-SXM5-80GB, count: 4, gpus: 8}]    # H100 is enough where that means one type only
      remove: [a100-1, "old-*"]            # names; * stands for any part of one
      cordon: [h100-7]                     # jobs there go on, no others come
    policy: sjf
    jobs:
      team-a/llama3-8b: {priority: 10, queue: research, gpus: {min: 4, max: 16}, gpuTypes: [A100]}
      team-a/qwen3-8b: {maxNodes: 4, parallelism: {tensor: {fixed: 2}}, precision: BF16}
      team-a/gpt2: {parallelism: {}}       # nothing is given: all of it is left free
      team-b/probe: {suspend: true}
    queues:
      research: {weight: 2, quotas: [{gpuType: "*", gpus: 64, guaranteed: 32}]}    # the spec of a Queue
    submit: [next.yaml]                    # manifests of jobs, relative to this file

Every part may be left out. What is not understood, or is not in the snapshot, is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from pydantic import ValidationError

from trimtab.api.base import ApiModel
from trimtab.api.convert import divided_as, to_quotas
from trimtab.api.v1alpha1 import ElasticPolicy, Parallelism, QueueSpec, Width
from trimtab.commands import planning
from trimtab.errors import UsageError
from trimtab_policy import catalog
from trimtab_policy.catalog import UnknownGpu
from trimtab_policy.inputs import changes, documents
from trimtab_policy.inputs.nearest import did_you_mean
from trimtab_policy.placement.hints import is_pinned
from trimtab_policy.policy import UnknownPolicy, entry
from trimtab_policy.specs import OTHER, Precision
from trimtab_policy.types import Bounds, Job, Requirements, Snapshot

_Spec = TypeVar("_Spec", bound=ApiModel)
MOST_ADDED = 100_000
"""Nodes that are added: several times the largest clusters."""
LARGEST_NODE = 1024
"""GPUs of a node that is added."""
NOT_SIMULATED = frozenset({"maxPendingJobs", "namespaces"})
"""Fields of a Queue that say whose jobs it takes: a snapshot has those only that it took."""


class Added(Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that are bought."""

    type: str
    count: int = 1
    gpus: int = 8


class NodeChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What happens to nodes."""

    add: tuple[Added, ...] = ()
    remove: tuple[str, ...] = ()
    cordon: tuple[str, ...] = ()


class Gpus(Struct, frozen=True, forbid_unknown_fields=True):
    """How many GPUs a job may have."""

    max: int
    min: int = 1


class Edit(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What happens to a job."""

    priority: int | None = None
    queue: str | None = None
    gpus: Gpus | None = None
    gpu_types: tuple[str, ...] | None = None
    """As in the spec of a job; empty for all types."""
    max_nodes: int | None = None
    parallelism: dict[str, Any] | None = None
    """As in the spec of a job: what is left out of it is left free."""
    precision: Precision | None = None
    suspend: bool = False


class ClusterChange(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole question."""

    nodes: NodeChange = NodeChange()
    policy: str | None = None
    jobs: dict[str, Edit] = {}
    queues: dict[str, dict[str, Any]] = {}
    submit: tuple[str, ...] = ()


def read_change(file: Path) -> ClusterChange:
    """Raises UsageError naming file and field."""
    try:
        found = msgspec.convert(documents.parse(file.read_bytes(), documents.LARGEST_OBJECT), ClusterChange)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from error
    if found == ClusterChange():
        raise UsageError(f"{file} changes nothing: say something of nodes, policy, jobs, queues or submit")
    _check(file, found)
    return found


def _check(file: Path, found: ClusterChange) -> None:
    added = 0
    for number, nodes in enumerate(found.nodes.add):
        where = f"{file}: nodes.add[{number}]"
        if nodes.count < 1 or nodes.gpus < 1:
            raise UsageError(f"{where}: count and gpus must be at least 1")
        if nodes.gpus > LARGEST_NODE:
            raise UsageError(f"{where}.gpus: must be at most {LARGEST_NODE}")
        if (added := added + nodes.count) > MOST_ADDED:
            raise UsageError(f"{where}.count: at most {MOST_ADDED:,} nodes are added in all")
    for name, edit in found.jobs.items():
        if edit.gpus and not 1 <= edit.gpus.min <= edit.gpus.max:
            raise UsageError(f"{file}: jobs.{name}.gpus: min must be at least 1, and at most max")
        if edit.max_nodes is not None and edit.max_nodes < 1:
            raise UsageError(f"{file}: jobs.{name}.maxNodes: must be at least 1")
    try:
        if found.policy is not None:
            entry(found.policy)
    except UnknownPolicy as error:
        raise UsageError(f"{file}: policy: {error}") from error


def apply(change: ClusterChange, now: Snapshot, file: Path) -> Snapshot:
    """The snapshot after the change. Raises UsageError for what is not in it."""
    after = _queues(_nodes(now, change.nodes, file), change.queues, file)
    for name, edit in change.jobs.items():
        after = _job(after, name, edit, file)
    for manifest in change.submit:
        facts = planning.manifest(file.parent / manifest)
        if any((job.namespace, job.name) == (facts.meta.namespace, facts.meta.name) for job in after.jobs):
            raise UsageError(f"{file}: submit: the snapshot has a job {facts.meta.key} already")
        elastic = facts.spec is not None and facts.spec.elasticity.policy is ElasticPolicy.ELASTIC
        job = facts.as_job(created=after.time, elastic=elastic)
        after = changes.with_job(after, replace(job, uid=f"submitted {facts.meta.key}"))
    return after


def _nodes(now: Snapshot, asked: NodeChange, file: Path) -> Snapshot:
    after = changes.without_nodes(now, _matching(now, asked.remove, f"{file}: nodes.remove"))
    after = changes.cordoned(after, _matching(after, asked.cordon, f"{file}: nodes.cordon"))
    for number, each in enumerate(asked.add):
        try:
            after = changes.with_nodes(after, each.type, each.count, each.gpus)
        except UnknownGpu as error:
            raise UsageError(f"{file}: nodes.add[{number}].type: {error}") from error
    return after


def _matching(now: Snapshot, patterns: Sequence[str], where: str) -> frozenset[str]:
    names: set[str] = set()
    for pattern in patterns:
        found = {node.name for node in now.nodes if fnmatchcase(node.name, pattern)}
        if not found:
            raise UsageError(f"{where}: no node that takes pods is called {pattern}")
        names |= found
    return frozenset(names)


def _queues(now: Snapshot, asked: Mapping[str, Mapping[str, Any]], file: Path) -> Snapshot:
    quotas, weights = {}, {}
    for name, spec in asked.items():
        _check_fields(QueueSpec, spec, f"{file}: queues.{name}")
        if others := sorted(spec.keys() & NOT_SIMULATED):
            raise UsageError(f"{file}: queues.{name}.{others[0]}: who may wait in a queue is not simulated")
        queue = _spec(QueueSpec, spec, f"{file}: queues.{name}")
        quotas[name] = to_quotas(name, queue)
        weights[name] = float(queue.weight)
    return changes.with_queues(now, quotas, weights)


def _check_fields(kind: type[ApiModel], asked: Mapping[str, Any], where: str) -> None:
    known = {field.alias or plain for plain, field in kind.model_fields.items()}
    if unknown := sorted(asked.keys() - known):
        raise UsageError(f"{where}.{unknown[0]}: there is no such field, but {', '.join(sorted(known))}")


def _spec(kind: type[_Spec], asked: Mapping[str, Any], where: str) -> _Spec:
    try:
        return kind.model_validate(dict(asked))
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join([where, *map(str, first['loc'])])}: {first['msg']}") from error


def _job(now: Snapshot, name: str, edit: Edit, file: Path) -> Snapshot:
    job = _named(now, name, file)
    if edit.suspend:
        return changes.without_job(now, job.uid)
    if edit.queue is not None and edit.queue not in {quota.queue for quota in now.quotas} | now.weights.keys():
        raise UsageError(f"{file}: jobs.{name}.queue: there is no queue {edit.queue}")
    edited = replace(
        job,
        priority=job.priority if edit.priority is None else edit.priority,
        queue=job.queue if edit.queue is None else edit.queue,
    )
    need = edited.requirements
    limits = replace(
        need if edit.parallelism is None else _divided(job, edit.parallelism, f"{file}: jobs.{name}.parallelism"),
        gpus=Bounds(edit.gpus.min, edit.gpus.max) if edit.gpus else need.gpus,
        max_nodes=edit.max_nodes or need.max_nodes,
    )
    if edit.gpu_types is not None:
        limits = replace(limits, gpu_types=_types(now, edit.gpu_types, f"{file}: jobs.{name}.gpuTypes"))
    training = replace(job.training, precision=edit.precision or job.training.precision)
    return changes.with_limits(changes.with_job(now, edited), edited, limits, training)


def _divided(job: Job, asked: Mapping[str, Any], where: str) -> Requirements:
    need = job.requirements
    if need.software == OTHER:
        raise UsageError(f"{where}: its launcher has limits of its own, which are not known here: edit the job")
    if is_pinned(job):
        raise UsageError(f"{where}: its checkpoint can be loaded only with the degrees that it was saved with")
    _check_fields(Parallelism, asked, where)
    for degree, width in asked.items():
        if isinstance(width, dict):
            _check_fields(Width, width, f"{where}.{degree}")
    return divided_as(need, _spec(Parallelism, asked, where))


def _types(now: Snapshot, asked: Iterable[str], where: str) -> tuple[str, ...]:
    known, found = [*(gpu.name for gpu in catalog.all_gpus()), *now.gpu_types], list[str]()
    for each in asked:
        meant = catalog.meant(each, known)
        if not meant:
            raise UsageError(f"{where}: {each!r} is no GPU type that Trimtab knows{did_you_mean(each, known)}")
        found += meant
    return tuple(dict.fromkeys(found))


def _named(now: Snapshot, name: str, file: Path) -> Job:
    space, _, short = name.rpartition("/")
    found = [job for job in now.jobs if job.name == short and space in ("", job.namespace)]
    if not found:
        raise UsageError(f"{file}: jobs.{name}: no such job waits or runs (suspended and finished ones do not count)")
    if len(found) > 1:
        spaces = ", ".join(sorted(job.namespace for job in found))
        raise UsageError(f"{file}: jobs.{name}: write NAMESPACE/{short}; it is in {spaces}")
    return found[0]
