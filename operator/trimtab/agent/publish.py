"""Writes one node's GPUNode: the object once, owned by the Node, and its status with every report.

The Node owns it, so that it goes when the node is taken out of the cluster. One that was deleted meanwhile is made
again. Both writes are server-side apply: the status is ours but for the conditions, which the controller applies.
"""

from __future__ import annotations

import msgspec
import structlog
from msgspec import Struct

from trimtab import names
from trimtab.agent import wire
from trimtab.errors import ApiError, NotFound
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import AnyObject, Meta
from trimtab.kube.resources import GPUNODES, NODES

log = structlog.get_logger(__name__)


class Previous(Struct, frozen=True):
    """A GPUNode as it was found, or as a write left it."""

    metadata: Meta
    status: wire.WireStatus = wire.WireStatus()

    @property
    def repaired(self) -> str:
        """RFC 3339 time before which faults are mended; empty when nobody said so."""
        return self.metadata.annotations.get(names.ANNOTATION_REPAIRED, "")


class _Object(Struct, frozen=True, rename="camel"):
    metadata: dict[str, object]
    status: wire.WireStatus | msgspec.UnsetType = msgspec.UNSET
    api_version: str = names.API_VERSION
    kind: str = names.GPUNODE_KIND


class _NodePage(Struct):
    items: list[msgspec.Raw]


PAGE_SIZE = 500
_PAGE = msgspec.json.Decoder(_NodePage)
_PREVIOUS = msgspec.json.Decoder(Previous)
_META = msgspec.json.Decoder(AnyObject)


class Publisher:
    """Writes the GPUNode of one node. `node_uid`: of the Node, where it is known already."""

    def __init__(self, client: KubeClient, node: str, node_uid: str = "") -> None:
        self._client = client
        self._node = node
        self._node_uid = node_uid
        self._path = GPUNODES.path(name=node)
        self._exists = False

    async def previous(self) -> Previous | None:
        """What an earlier agent left, None when there is nothing. Raises ApiError."""
        try:
            return _read(await self._client.request("GET", self._path))
        except NotFound:
            return None

    async def write(self, status: wire.WireStatus) -> str:
        """Write a report; returns the annotation `trimtab.dev/repaired` as it is now. Raises ApiError."""
        if not self._exists:
            await self._create()
        try:
            answer = await self._apply(status)
        except NotFound:
            await self._create()
            answer = await self._apply(status)
        return _META.decode(answer).metadata.annotations.get(names.ANNOTATION_REPAIRED, "")

    def forget(self) -> None:
        """Something is odd: look at the Node, and make the object again, before the next report."""
        self._exists = False

    async def _apply(self, status: wire.WireStatus) -> bytes:
        body = msgspec.json.encode(_Object({"name": self._node}, status))
        return await self._client.apply(self._path, body, subresource="status", field_manager=names.AGENT_FIELD_MANAGER)

    async def _create(self) -> None:
        uid = self._node_uid or await self._uid()
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid}
        body = msgspec.json.encode(_Object({"name": self._node, "ownerReferences": [owner]}))
        try:
            await self._client.apply(self._path, body, field_manager=names.AGENT_FIELD_MANAGER)
        except NotFound as error:
            raise NotFound(
                f"the API server has no kind {names.GPUNODE_KIND}: kubectl apply -f manifests/crds ({error})",
                status=error.status,
            ) from error
        self._exists = True

    async def _uid(self) -> str:
        path = NODES.path(name=self._node)
        try:
            return _META.decode(await self._client.request("GET", path)).metadata.uid
        except NotFound as error:
            told = f"there is no Node {self._node!r}: set NODE_NAME to the name of the node that the agent runs on"
            raise NotFound(f"{told} ({error})", status=error.status) from error


async def all_previous(client: KubeClient) -> dict[str, Previous]:
    """What earlier agents of all nodes left, by node. Raises ApiError."""
    found: dict[str, Previous] = {}
    async for page in client.pages(GPUNODES.path(), PAGE_SIZE):
        for raw in _PAGE.decode(page).items:
            if previous := _read(raw):
                found[previous.metadata.name] = previous
    return found


def _read(content: bytes | msgspec.Raw) -> Previous | None:
    try:
        return _PREVIOUS.decode(content)
    except msgspec.DecodeError as error:
        log.warning("a GPUNode cannot be read, beginning anew", reason=str(error))
        return None


def reason(error: ApiError) -> str:
    """An error in one word, for metrics."""
    return type(error).__name__.lower()
