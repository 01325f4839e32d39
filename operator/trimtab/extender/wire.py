"""What kube-scheduler says to an extender, and what it wants to hear: k8s.io/kube-scheduler/extender/v1.

The envelope has Go's field names (`Pod`, `NodeNames`); Go reads them in any case, the last of equal ones counts, and
null is the same as absent: so do we. What is inside `Pod` is a v1.Pod as everywhere else.

Nothing is decoded that need not be. A filter request of 5,000 nodes is a few fields of a pod and 85 kB of names, which
a pod that is not ours gets back as the very bytes that came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from trimtab.kube.objects import PodObject

NULL = b"null"
_NODE_NAME = re.compile(r"[a-z0-9.-]+")


class WireError(Exception):
    """The request is not what its verb wants; the message says why."""


# --- what a pod says of itself ---------------------------------------------------------------------------------------
class Owner(Struct, frozen=True, rename="camel"):
    """metav1.OwnerReference; anything may be null."""

    api_version: str | None = None
    kind: str | None = None
    name: str | None = None
    uid: str | None = None
    controller: bool | None = None


class PodMeta(Struct, frozen=True, rename="camel"):
    """metav1.ObjectMeta, the part that tells whose pod it is."""

    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str | None] | None = None
    annotations: dict[str, str | None] | None = None
    owner_references: tuple[Owner, ...] | None = None


class _Named(Struct, frozen=True):
    metadata: PodMeta | None = None


# --- requests ---------------------------------------------------------------------------------------------------------
class Args(Struct, frozen=True):
    """ExtenderArgs: a pod, and the nodes that are left for it, by name or whole."""

    pod: bytes
    """JSON of the v1.Pod."""
    names: bytes | None
    """JSON list of node names; None where whole nodes were sent, or nothing."""
    nodes: bytes | None
    """JSON of a v1.NodeList; None where names were sent."""

    def meta(self) -> PodMeta:
        """Who the pod is. Raises WireError."""
        return _read(self.pod, _NAMED).metadata or PodMeta()

    def whole_pod(self) -> PodObject:
        """Everything about the pod that Trimtab looks at. Raises WireError."""
        try:
            return _POD.decode(self.pod)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _tolerant(self.pod)

    def offers(self, node: str) -> bool:
        """Whether this node is among those that are left."""
        # Names of nodes need no escapes in JSON: found as they stand, they need not be decoded one by one.
        plain = _NODE_NAME.fullmatch(node) and self.names is not None
        return bool(plain and f'"{node}"'.encode() in (self.names or b"")) or node in self.node_names()

    def node_names(self) -> list[str]:
        """Names of the nodes that are left, in the order in which they came. Raises WireError."""
        return list(self.node_items()) if self.names is None else _read(self.names, _NAMES) or []

    def node_items(self) -> dict[str, Raw]:
        """JSON of the nodes that were sent whole, by name; empty where names were sent. Raises WireError."""
        if self.nodes is None:
            return {}
        items = _read(self.nodes, _NODE_LIST).items or []
        found = ((_read(bytes(item), _NAMED).metadata or PodMeta(), item) for item in items)
        return {meta.name: item for meta, item in found if meta.name}


class BindingArgs(Struct, frozen=True):
    """ExtenderBindingArgs: which pod goes where."""

    namespace: str
    name: str
    uid: str
    node: str


class PreemptionArgs(Struct, frozen=True):
    """ExtenderPreemptionArgs: nodes on which others would have to make room for a pod."""

    pod: bytes
    meta_victims: bytes
    """JSON of a map from nodes to MetaVictims: `{"gpu-1": {"Pods": [{"UID": ".."}], "NumPDBViolations": 0}}`."""

    def meta(self) -> PodMeta:
        """Who wants room. Raises WireError."""
        return _read(self.pod, _NAMED).metadata or PodMeta()


def args(body: bytes) -> Args:
    """Read the request of filter and prioritize. Raises WireError."""
    said = members(body)
    names = said.get("nodenames")
    if names is not None and not names.startswith(b"["):
        raise WireError("NodeNames is not a list")
    nodes = said.get("nodes") if names is None else None
    if nodes is not None and not nodes.startswith(b"{"):
        raise WireError("Nodes is no NodeList")
    return Args(_pod(said), names, nodes)


def binding_args(body: bytes) -> BindingArgs:
    """Read the request of bind. Raises WireError, also where a part of it is missing."""
    said = members(body)
    wanted = ("PodNamespace", "PodName", "PodUID", "Node")
    values = [_read(said.get(name.lower(), b'""'), _TEXT) for name in wanted]
    if missing := [name for name, value in zip(wanted, values, strict=True) if not value]:
        raise WireError(f"{', '.join(missing)} must not be empty")
    return BindingArgs(*values)


def preemption_args(body: bytes) -> PreemptionArgs:
    """Read the request of preempt; victims sent as whole pods become UIDs, which is what the answer wants."""
    said = members(body)
    meta = said.get("nodenametometavictims")
    if meta is None:
        victims = members(said.get("nodenametovictims", b"{}"), fold=False)
        meta = msgspec.json.encode({node: _as_meta(members(those)) for node, those in victims.items()})
    if not meta.startswith(b"{"):
        raise WireError("NodeNameToMetaVictims is no map")
    return PreemptionArgs(_pod(said), meta)


def _as_meta(victims: Mapping[str, bytes]) -> dict[str, Any]:
    pods = _read(victims.get("pods", b"[]"), _PODS) or []
    uids = [{"UID": pod.metadata.uid or ""} for pod in pods if pod.metadata]
    return {"Pods": uids, "NumPDBViolations": _read(victims.get("numpdbviolations", b"0"), _COUNT)}


def _pod(said: Mapping[str, bytes]) -> bytes:
    if "pod" not in said:
        raise WireError("Pod is missing")
    return said["pod"]


# --- answers ----------------------------------------------------------------------------------------------------------
class FilterResult(Struct, rename="pascal"):
    """ExtenderFilterResult. `nodes` answers those who sent whole nodes."""

    nodes: Any = None
    node_names: Any = None
    failed_nodes: dict[str, str] = field(default_factory=dict)
    failed_and_unresolvable_nodes: dict[str, str] = field(default_factory=dict)
    error: str = ""


def untouched(asked: Args) -> bytes:
    """Every node passes: the bytes that came, in an answer."""
    return _filter_answer(names=asked.names, nodes=asked.nodes)


def only(asked: Args, node: str) -> bytes:
    """This node passes, and the others need no reason: kube-scheduler shows reasons of pods that found no place."""
    if asked.names is not None:
        return _filter_answer(names=msgspec.json.encode([node]), nodes=None)
    return msgspec.json.encode(FilterResult(nodes=_node_list([asked.node_items()[node]])))


def none(asked: Args, reasons: Mapping[str, str]) -> bytes:
    """No node passes, and evicting other pods would help none of them."""
    if asked.names is None:
        return msgspec.json.encode(FilterResult(_node_list([]), failed_and_unresolvable_nodes=dict(reasons)))
    return msgspec.json.encode(FilterResult(node_names=[], failed_and_unresolvable_nodes=dict(reasons)))


def _node_list(items: list[Raw]) -> dict[str, Any]:
    return {"metadata": {}, "items": items}


def _filter_answer(*, names: bytes | None, nodes: bytes | None) -> bytes:
    if names is None and nodes is None:
        names = b"[]"
    return b'{"Nodes":%b,"NodeNames":%b,"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}' % (
        nodes or NULL,
        names or NULL,
    )


def priorities(nodes: Iterable[str], best: str) -> bytes:
    """HostPriorityList: 10 for the node called `best`, 0 for all others."""
    return msgspec.json.encode([{"Host": node, "Score": 10 * (node == best)} for node in nodes])


def bound(error: str = "") -> bytes:
    """ExtenderBindingResult."""
    return msgspec.json.encode({"Error": error})


def victims(meta_victims: bytes = b"{}") -> bytes:
    """ExtenderPreemptionResult."""
    return b'{"NodeNameToMetaVictims":%b}' % meta_victims


# --- reading as Go does -----------------------------------------------------------------------------------------------
def members(body: bytes, *, fold: bool = True) -> dict[str, bytes]:
    """Members of a JSON object that are not null, by name (`fold`: in lower case), each as JSON. Raises WireError."""
    found = _read(body, _OBJECT)
    if fold and len({name.lower() for name in found}) < len(found):
        found = _last_wins(body)
    said = {name.lower() if fold else name: bytes(value) for name, value in found.items()}
    return {name: value for name, value in said.items() if value != NULL}


def _last_wins(body: bytes) -> dict[str, Raw]:
    """The same name in several cases: order counts, and only this reader tells it."""

    def fold(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, value in pairs:
            kept.pop(name, None)
            kept[name] = value
        return kept

    try:
        ordered: dict[str, Any] = json.loads(body, object_pairs_hook=fold)
        return {name.lower(): Raw(msgspec.json.encode(value)) for name, value in ordered.items()}
    except (ValueError, OverflowError, msgspec.MsgspecError, RecursionError) as error:
        raise WireError(f"not what was expected: {error}") from error


def _read(content: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not what was expected: {error}") from error


def _tolerant(pod: bytes) -> PodObject:
    """A pod in which something is null that Go would take as absent."""
    try:
        return msgspec.convert(_without_nulls(msgspec.json.decode(pod)), PodObject)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"the pod cannot be read: {error}") from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value if part is not None] if isinstance(value, list) else value


class _NodeList(Struct, frozen=True):
    items: list[Raw] | None = None


_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_NAMED = msgspec.json.Decoder(_Named)
_PODS = msgspec.json.Decoder(list[_Named] | None)
_NAMES = msgspec.json.Decoder(list[str] | None)
_NODE_LIST = msgspec.json.Decoder(_NodeList)
_TEXT = msgspec.json.Decoder(str | None)
_COUNT = msgspec.json.Decoder(int | None)
_POD = msgspec.json.Decoder(PodObject)
