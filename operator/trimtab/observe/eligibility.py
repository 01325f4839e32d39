"""Which nodes a pod template admits: nodeSelector, required node affinity, taints, and unusual resources.

In direct binding nobody else checks these predicates: the API server binds a pod to any node it is told. The semantics
are those of kube-scheduler's NodeAffinity and TaintToleration plugins (terms are ORed, the expressions of one term
ANDed; PreferNoSchedule taints do not matter).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from trimtab import names
from trimtab.errors import QuantityError
from trimtab.kube.objects import Taint, Toleration
from trimtab.kube.quantity import to_int
from trimtab.observe import pods
from trimtab.observe.nodes import NodeFacts

Json = Mapping[str, Any]

_COUNTED = {"cpu", "memory", "pods", *names.GPU_RESOURCES}
"""Resources of which the snapshot says what is free; all others are only compared with what the node offers in all."""


class Eligibility:
    """The node predicates of one pod template."""

    def __init__(self, pod_spec: Json) -> None:
        self._selector: Mapping[str, str] = pod_spec.get("nodeSelector") or {}
        affinity = ((pod_spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
            "requiredDuringSchedulingIgnoredDuringExecution"
        )
        self._terms: Sequence[Json] | None = (affinity.get("nodeSelectorTerms") or []) if affinity else None
        own = [Toleration(**_toleration(entry)) for entry in pod_spec.get("tolerations") or []]
        self._tolerations = own + [Toleration(key=name, operator="Exists") for name in names.GPU_RESOURCES]
        self._extended = _extended_requests(pod_spec)
        self.same_for = msgspec.json.encode(
            (self._selector, self._terms, own, self._extended), order="deterministic", enc_hook=str
        )
        """Of templates of which this is the same, the predicates are."""

    def admits(self, node: NodeFacts) -> bool:
        """Whether a pod of the template may run on the node."""
        return (
            all(node.labels.get(key) == value for key, value in self._selector.items())
            and self._affine(node)
            and all(self._tolerated(taint) for taint in node.taints)
            and all(_offers(node, resource, amount) for resource, amount in self._extended.items())
        )

    def among(self, nodes: Collection[NodeFacts]) -> tuple[str, ...] | None:
        """Names of those of the nodes that it admits; None when it admits all of them."""
        admitted = tuple(node.name for node in nodes if self.admits(node))
        return None if len(admitted) == len(nodes) else admitted

    def _affine(self, node: NodeFacts) -> bool:
        if self._terms is None:
            return True
        return any(_term_matches(term, node) for term in self._terms)

    def _tolerated(self, taint: Taint) -> bool:
        if taint.effect == "PreferNoSchedule" or taint.key == "node.kubernetes.io/unschedulable":
            return True  # a cordoned node is unavailable to all, which says so more plainly
        return any(_tolerates(toleration, taint) for toleration in self._tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if not toleration.key:
        return toleration.operator == "Exists"
    if toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value


def _term_matches(term: Json, node: NodeFacts) -> bool:
    expressions = term.get("matchExpressions") or []
    fields = term.get("matchFields") or []
    if not expressions and not fields:
        return False  # an empty term matches nothing (v1.NodeSelectorTerm)
    return all(_holds(e, node.labels.get(e["key"])) for e in expressions) and all(
        _holds(e, node.name if e["key"] == "metadata.name" else None) for e in fields
    )


def _holds(expression: Json, value: str | None) -> bool:
    """One v1.NodeSelectorRequirement against the node's value of its key (None: the node lacks the key)."""
    operator, values = expression["operator"], expression.get("values") or []
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator not in ("Gt", "Lt") or value is None or len(values) != 1 or not all(map(_is_number, (value, *values))):
        return False
    return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])


def _is_number(text: str) -> bool:
    return len(text) <= 20 and text.removeprefix("-").isdecimal()  # Kubernetes takes 64 bits


def _toleration(entry: Json) -> dict[str, Any]:
    return {name: entry[name] for name in ("key", "operator", "value", "effect") if entry.get(name)}


def _extended_requests(pod_spec: Json) -> dict[str, int]:
    pod = pods.from_template(pod_spec)
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    named = {name for c in containers for table in (c.resources.requests, c.resources.limits) for name in table}
    return {resource: pods.request(pod, resource) for resource in named - _COUNTED}


def _offers(node: NodeFacts, resource: str, amount: int) -> bool:
    try:
        return to_int(node.allocatable.get(resource, "0")) >= amount
    except QuantityError:
        return False


def eligible(pod_spec: Json, nodes: Iterable[NodeFacts]) -> tuple[str, ...] | None:
    """Names of the nodes that the template admits; None when it admits all of them."""
    return Eligibility(pod_spec).among(list(nodes))
