"""A cluster of one's own for `hack/faults`: four GPU nodes, or as many as are asked for, and a stand on it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.faults.invariants import Limits
from tests.faults.raw_client import Hands
from tests.faults.testbed import Settings, Stand
from tests.faults.watcher import Watcher
from tests.faults.workloads import FOUR_NODES, ready
from tests.forkserver import Forge
from tests.live.harness import Live, gpu_node

from trimtab_local.checkout import checkout
from trimtab_local.control_plane.build import build
from trimtab_local.control_plane.cluster import LocalCluster


@asynccontextmanager
async def laboratory(
    nodes: Sequence[str] = FOUR_NODES, *, settings: Settings | None = None, limits: Limits | None = None
) -> AsyncIterator[Stand]:
    """A stand on a new cluster with these nodes of eight A100s, taken down in the end."""
    build()
    with tempfile.TemporaryDirectory() as directory, LocalCluster(f"faults-{os.getpid()}") as cluster, Forge() as forge:
        manifests = checkout() / "manifests"
        cluster.kubectl("apply", "--server-side", "-f", str(manifests / "crds"), "-f", str(manifests / "rbac.yaml"))
        cluster.kubectl("wait", "--for=condition=Established", "-f", str(manifests / "crds"), "--timeout=30s")
        async with Hands(cluster.kubeconfig) as hands:
            for first in range(0, len(nodes), 50):
                await hands.create("nodes", *(gpu_node(name) for name in nodes[first : first + 50]))
        async with Stand(Live(cluster), Path(directory), forge, settings=settings, limits=limits) as stand:
            await stand.watcher.until(lambda seen: all_ready(seen, nodes), 120, "nodes to be Ready")
            yield stand


def all_ready(seen: Watcher, nodes: Sequence[str]) -> bool:
    return all(ready(seen.node(name)) for name in nodes)
