"""Keeps `nvidia.com/gpu` in the status of nodes whose labels say how many they have: there is no device plugin.

Runs as a pod (fake-gpus.yaml) in the operator's image. A kubelet leaves alone what others have put into its node's
status, but a node that is made anew has lost it: so it is looked at again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from trimtab import names
from trimtab.errors import TrimtabError
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import NODES
from trimtab.settings import KubeSettings

COUNT = "nvidia.com/gpu.count"
"""GPU Feature Discovery's label."""
SECONDS = 3.0


def missing(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """A merge patch of the node's status; None where all is as it should be."""
    count = node["metadata"]["labels"][COUNT]
    status = node["status"]
    parts = [part for part in ("capacity", "allocatable") if status.get(part, {}).get(names.NVIDIA_GPU) != count]
    return {"status": {part: {names.NVIDIA_GPU: count} for part in parts}} if parts else None


async def keep() -> None:
    """Look, patch, sleep; without end."""
    async with await KubeClient.connect(KubeSettings()) as client:
        while True:
            try:
                for node in msgspec.json.decode(await client.get(NODES.path(), {"labelSelector": COUNT}))["items"]:
                    if patch := missing(node):
                        name = node["metadata"]["name"]
                        await client.merge_patch(NODES.path(name=name), patch, subresource="status")
                        print(f"{name}: {node['metadata']['labels'][COUNT]} fake GPUs", flush=True)
            except TrimtabError as error:
                print(error, flush=True)
            await asyncio.sleep(SECONDS)


if __name__ == "__main__":
    asyncio.run(keep())
