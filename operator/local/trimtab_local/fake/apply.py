"""Send fake nodes to an API server, and take them away again.

A node is created whole, in one request, as a kubelet registers itself: labels and capacity appear together. One that
exists is brought up to date by server-side apply, metadata and status each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from trimtab.errors import AlreadyExists, NotFound
from trimtab.kube.client import APPLY_PATCH, KubeClient
from trimtab.kube.resources import DEVICE_CLASSES, NODES, RESOURCE_SLICES
from trimtab.ui.progress import StepCounter
from trimtab_local.fake.nodes import LABEL_PROFILE

MANAGER = "trimtab-fake-nodes"
DELETE_SECONDS = 120.0


async def apply_nodes(client: KubeClient, nodes: Sequence[dict[str, Any]], bar: StepCounter) -> None:
    """Make the cluster have these nodes, as many at once as the client has connections. Raises ApiError."""
    async with asyncio.TaskGroup() as group:
        for node in nodes:
            group.create_task(_apply_node(client, node, bar))


async def apply_devices(client: KubeClient, objects: Sequence[dict[str, Any]]) -> None:
    """Make the cluster have these ResourceSlices and DeviceClasses. Raises ApiError; NotFound where dynamic resource
    allocation is not served."""
    params = {"fieldManager": MANAGER, "force": "true"}
    async with asyncio.TaskGroup() as group:
        for each in objects:
            kind = RESOURCE_SLICES if each["kind"] == "ResourceSlice" else DEVICE_CLASSES
            path = kind.path(name=each["metadata"]["name"])
            group.create_task(client.request("PATCH", path, body=each, params=params, content_type=APPLY_PATCH))


async def delete_nodes(client: KubeClient, profile: str = "") -> int:
    """Delete the fake nodes of one profile, or of all, and their devices; returns how many nodes there were. Raises
    ApiError."""
    query = {"labelSelector": f"{LABEL_PROFILE}={profile}" if profile else LABEL_PROFILE}
    for kind in (RESOURCE_SLICES, DEVICE_CLASSES):
        with contextlib.suppress(NotFound):  # not served: then there are none
            await client.request("DELETE", kind.path(), params=query, deadline=DELETE_SECONDS)
    found = msgspec.json.decode(await client.get(NODES.path(), query))["items"]
    if found:
        await client.request("DELETE", NODES.path(), params=query, deadline=DELETE_SECONDS)
    return len(found)


async def _apply_node(client: KubeClient, node: dict[str, Any], bar: StepCounter) -> None:
    try:
        await client.request("POST", NODES.path(), body=node, params={"fieldManager": MANAGER})
    except AlreadyExists:
        await _update(client, node)
    bar.advance()


async def _update(client: KubeClient, node: dict[str, Any]) -> None:
    path = NODES.path(name=node["metadata"]["name"])
    params = {"fieldManager": MANAGER, "force": "true"}
    for target in (path, f"{path}/status"):
        await client.request("PATCH", target, body=node, params=params, content_type=APPLY_PATCH)
