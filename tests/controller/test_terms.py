"""One process, one term after the other: of a term that is over nothing acts, nothing is told, nothing is kept."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakeserver import FakeApiServer

from trimtab.controller import app
from trimtab.controller.app import Controller, candidate
from trimtab.controller.leadership import Leadership
from trimtab.errors import LeadershipLost
from trimtab.kube.client import KubeClient
from trimtab.settings import KubeSettings, LeadershipSettings, Settings
from trimtab.telemetry import metrics

KEY = "trimtab-system/trimtab-controller"
QUICK = LeadershipSettings(identity="one", lease_seconds=0.9, renew_seconds=0.6, retry_seconds=0.05)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


class Term:
    """A controller whose caches are listed at once, and whose rounds say only that there are GPUs."""

    def __init__(self, client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = client
        self.leadership = Leadership(client, QUICK)
        self.controller = Controller(Settings(leadership=QUICK), client, self.leadership)
        self.led = asyncio.Event()
        monkeypatch.setattr(self.controller._cluster, "synced", self._at_once)
        monkeypatch.setattr(self.controller._wakeups, "start", lambda: None)
        monkeypatch.setattr(self.controller._rounds, "run", self._rounds)

    async def _at_once(self) -> None:
        pass

    async def _rounds(self, _: Any) -> None:
        metrics.GPUS.labels("H100", "free").set(8)
        self.led.set()
        await asyncio.Event().wait()


def told(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(name, labels)


async def test_a_term_that_is_over_leaves_nobody_at_work_and_nothing_told(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube = KubeSettings(kubeconfig=server.kubeconfig(tmp_path))
    for epoch in (1, 2):
        before = asyncio.all_tasks()
        async with await KubeClient.connect(kube) as client:
            term = Term(client, monkeypatch)
            leading = asyncio.create_task(term.controller._lead())
            await term.led.wait()
            assert (told("trimtab_leader"), told("trimtab_leader_epoch")) == (1, epoch)
            assert told("trimtab_gpus", type="H100", state="free") == 8
            lease = server.store.get("leases", KEY)
            server.store.update("leases", KEY, lease | {"spec": lease["spec"] | {"holderIdentity": "another"}})
            with pytest.raises(LeadershipLost):
                await leading
            ours = {task.get_name() for task in asyncio.all_tasks() - before}
            assert not ours & {"lease", "rounds", "health", "queues"}
            assert (told("trimtab_leader"), told("trimtab_leader_epoch")) == (0, 0)
            assert told("trimtab_gpus", type="H100", state="free") is None
            with pytest.raises(LeadershipLost):
                term.leadership.check()
        lease = server.store.get("leases", KEY)
        server.store.update("leases", KEY, lease | {"spec": lease["spec"] | {"holderIdentity": ""}})


async def test_every_write_of_a_term_is_checked_against_its_own_lease(server: FakeApiServer, tmp_path: Path) -> None:
    kube = KubeSettings(kubeconfig=server.kubeconfig(tmp_path))
    settings = Settings(leadership=QUICK, kube=kube)
    async with candidate(settings) as old, candidate(settings) as new:
        async with await KubeClient.connect(kube) as lease_client:
            again = Leadership(lease_client, QUICK)
            await again.acquire()
        for term in (old, new):  # that the process leads again is nothing to an earlier term of it
            with pytest.raises(LeadershipLost):
                await term._gangs._client.create("/api/v1/namespaces/default/pods", {"metadata": {"name": "late"}})


def test_what_a_term_had_put_aside_goes_with_the_next_one() -> None:
    class Caches:
        """Something with a cycle in it, as a controller is."""

        def __init__(self) -> None:
            self.itself = self

    caches = Caches()
    seen = weakref.ref(caches)
    try:
        app._settle_memory()
        del caches
        assert seen()
        app._settle_memory()
        assert seen() is None
    finally:
        gc.unfreeze()
