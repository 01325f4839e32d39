"""Fixtures of the live tests: nodes of their own, the witness watching all the time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.faultproxy import FaultProxy
from tests.faults.invariants import Limits
from tests.faults.watcher import Watcher
from tests.live.harness import Live, gpu_node

from trimtab_local.control_plane.cluster import LocalCluster

NODES = [f"live-{index}" for index in range(4)]


@pytest.fixture(scope="session")
def live_cluster(cluster: LocalCluster) -> Iterator[Live]:
    """The session's cluster, with four fake nodes of eight A100s each."""
    live = Live(cluster)
    live.apply(*(gpu_node(name) for name in NODES))
    cluster.kubectl("wait", "--for=condition=Ready", *(f"node/{name}" for name in NODES), "--timeout=30s")
    yield live
    cluster.kubectl("delete", "node", *NODES, "--ignore-not-found")


@pytest.fixture
async def live(live_cluster: Live, request: pytest.FixtureRequest) -> AsyncIterator[Live]:
    """The cluster with the witness watching: a test fails if an invariant was ever violated while it ran. Files whose
    pods somebody slow takes away say how long that may last, as `WITNESS_LIMITS`."""
    limits = getattr(request.module, "WITNESS_LIMITS", Limits())
    async with Watcher(live_cluster.cluster.kubeconfig, limits) as watcher:
        live_cluster.excuse = watcher.excuse
        yield live_cluster
    assert not watcher.violations, watcher.violations


@pytest.fixture
async def proxy(live: Live, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    """A fault proxy that speaks with the controller's own token."""
    async with FaultProxy(live.cluster.kubeconfig, tmp_path, token=live.token(tmp_path)) as proxy:
        yield proxy
