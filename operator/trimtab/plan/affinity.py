"""Pin a pod to one node through its required node affinity, whatever the user's affinity says besides.

`matchFields` on `metadata.name` makes kube-scheduler look at this one node only, also in clusters of which it otherwise
samples a part. Terms are ORed, so the pin goes into every term of the user; a term without any requirement matches
nothing, and stays that way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

Json = dict[str, Any]


def pinned(affinity: Mapping[str, Any] | None, node: str) -> Json:
    """The affinity of a pod that may run on this node only, and there only if the given affinity admits it."""
    affinity = affinity or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get(_REQUIRED) or {}
    terms = required.get("nodeSelectorTerms") or []
    pin = {"key": "metadata.name", "operator": "In", "values": [node]}
    pinned_terms = (
        [_and(term, pin) if _asks(term) else term for term in terms] if required else [{"matchFields": [pin]}]
    )
    return {**affinity, "nodeAffinity": {**node_affinity, _REQUIRED: {**required, "nodeSelectorTerms": pinned_terms}}}


def _asks(term: Mapping[str, Any]) -> bool:
    return bool(term.get("matchExpressions") or term.get("matchFields"))


def _and(term: Mapping[str, Any], requirement: Json) -> Json:
    return {**term, "matchFields": [*(term.get("matchFields") or []), requirement]}
