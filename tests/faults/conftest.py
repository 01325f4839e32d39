"""Fixtures of the fault matrix: the session's cluster with four GPU nodes, a forge, and the witness over everything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests import forkserver
from tests.faults.testbed import Stand
from tests.forkserver import Forge
from tests.live.conftest import live, live_cluster, proxy
from tests.live.harness import Live

__all__ = ["live", "live_cluster", "proxy"]


@pytest.fixture(scope="session")
def forge() -> Forge:
    """Where controllers come from."""
    return forkserver.shared()


@pytest.fixture
async def stand(live_cluster: Live, tmp_path: Path, forge: Forge) -> AsyncIterator[Stand]:
    """A cluster to break. A test fails if an invariant was ever violated while it ran."""
    async with Stand(live_cluster, tmp_path, forge) as stand:
        yield stand
        await stand.proxy.heal()
        await stand.clear(*(job["metadata"]["name"] for job in stand.watcher.jobs()))  # of a test that has failed
        assert not stand.watcher.violations, stand.watcher.violations
