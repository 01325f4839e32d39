"""What Kueue's answer means for a job: how many GPUs it may have and where, or why it waits, in Kueue's own words."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from trimtab.interop.workload import (
    ADMITTED,
    EVICTED,
    FINISHED,
    PODSET,
    QUOTA_RESERVED,
    PodSetAssignment,
    Workload,
)
from trimtab.kube.objects import FlavorObject

Json = dict[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class Admission(Struct, frozen=True):
    """What a job may have."""

    cluster_queue: str
    gpus: int
    """At most."""
    resource: str
    node_selector: dict[str, str] = {}
    """Labels of the nodes that its quota is for: those of the flavors, and what admission checks ask for."""
    tolerations: tuple[Json, ...] = ()
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    levels: tuple[str, ...] = ()
    """Topology labels by which Kueue has chosen `domains`; none where it leaves that to us."""
    domains: frozenset[tuple[str, ...]] = frozenset()

    def covers(self, labels: Mapping[str, str]) -> bool:
        """Whether nodes with these labels are what the quota is for."""
        if any(labels.get(key) != value for key, value in self.node_selector.items()):
            return False
        return not self.levels or tuple(labels.get(key, "") for key in self.levels) in self.domains

    def on(self, template: Mapping[str, Any]) -> Json:
        """The pod template with what the quota adds to it, as Kueue does to jobs that it starts itself."""
        pod: Json = copy.deepcopy(dict(template))
        meta, spec = pod.get("metadata") or {}, pod["spec"]
        meta["labels"] = {**(meta.get("labels") or {}), **self.labels}
        meta["annotations"] = {**(meta.get("annotations") or {}), **self.annotations}
        pod["metadata"] = {field: value for field, value in meta.items() if value}
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **self.node_selector}
        own = spec.get("tolerations") or []
        spec["tolerations"] = own + [each for each in self.tolerations if each not in own]
        if self.levels:
            spec["affinity"] = _within(spec.get("affinity") or {}, self.levels, self.domains)
        return pod


def admission(workload: Workload, flavors: Mapping[str, FlavorObject]) -> Admission | str:
    """What an admitted Workload allows, or why that cannot be told. `flavors` by name."""
    assigned = workload.assignment
    if workload.granted is None or assigned is None:
        return f"Workload {workload.meta.name} is admitted, and says nothing about podset {PODSET}"
    named = sorted(set(assigned.flavors.values()))
    if missing := [name for name in named if name not in flavors]:
        return f"admitted to ResourceFlavor {missing[0]}, which does not exist"
    try:
        found = Admission(workload.granted.cluster_queue, workload.gpus, workload.resource, **_topology(assigned))
        for name in named:
            found = _with(found, msgspec.json.decode(flavors[name].spec, type=_Flavor))
    except ValueError as error:  # a msgspec.DecodeError is one, too
        return f"Workload {workload.meta.name} is admitted in a way that cannot be understood: {error}"
    for check in workload.checks:
        for update in check.pod_set_updates:
            if update.name == PODSET:
                found = _with(found, update)
    return found


def words(workload: Workload) -> str:
    """Why a Workload is not admitted."""
    quota, evicted = workload.condition(QUOTA_RESERVED), workload.condition(EVICTED)
    if workload.holds(FINISHED):
        return f"Workload {workload.meta.name} is finished for Kueue: {_message(workload, FINISHED)}"
    if workload.meta.deletion_timestamp:
        return f"Workload {workload.meta.name} is being deleted"
    if not workload.active:
        return f"Workload {workload.meta.name} is deactivated (spec.active is false)"
    if evicted and evicted.status == "True":
        return f"evicted by Kueue ({evicted.reason}): {evicted.message}"
    if workload.reserved:
        open_checks = [f"{c.name} is {c.state} {c.message}".strip() for c in workload.checks if c.state != "Ready"]
        waits = ", ".join(open_checks) or _message(workload, ADMITTED)
        cluster_queue = workload.granted.cluster_queue if workload.granted else ""
        return f"quota is reserved in ClusterQueue {cluster_queue}, admission checks are not through: {waits}"
    if quota is None:
        return f"Kueue has not looked at Workload {workload.meta.name} in LocalQueue {workload.queue} yet"
    return f"Kueue ({quota.reason}): {quota.message}"


def _message(workload: Workload, kind: str) -> str:
    condition = workload.condition(kind)
    return condition.message if condition else ""


class _Flavor(Struct, frozen=True, rename="camel"):
    """The parts of a ResourceFlavor that go into pods."""

    node_labels: dict[str, str] = {}
    tolerations: tuple[Json, ...] = ()

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def node_selector(self) -> dict[str, str]:
        return self.node_labels


def _with(found: Admission, more: Any) -> Admission:
    """With what a flavor, or an admission check, adds."""
    return msgspec.structs.replace(
        found,
        node_selector=found.node_selector | more.node_selector,
        tolerations=found.tolerations + tuple(each for each in more.tolerations if each not in found.tolerations),
        labels=found.labels | more.labels,
        annotations=found.annotations | more.annotations,
    )


def _topology(assigned: PodSetAssignment) -> dict[str, Any]:
    topology = assigned.topology_assignment
    return {"levels": topology.levels, "domains": frozenset(topology.domains())} if topology else {}


def _within(affinity: Json, levels: tuple[str, ...], domains: Iterable[tuple[str, ...]]) -> Json:
    """The affinity narrowed to these domains: terms are ORed, so each of ours goes with each of the user's."""
    if len(levels) == 1:  # host names, most often: one term for all of them
        ours = [[{"key": levels[0], "operator": "In", "values": sorted(name for (name,) in domains)}]]
    else:
        ours = [
            [{"key": key, "operator": "In", "values": [value]} for key, value in zip(levels, domain, strict=True)]
            for domain in sorted(domains)
        ]
    node = affinity.get("nodeAffinity") or {}
    required = node.get(_REQUIRED)
    users = required.get("nodeSelectorTerms") or [] if required else [{}]
    terms = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or []), *domain]}
        for term in users
        if not required or term.get("matchExpressions") or term.get("matchFields")
        for domain in ours
    ]
    return {**affinity, "nodeAffinity": {**node, _REQUIRED: {**(required or {}), "nodeSelectorTerms": terms}}}
