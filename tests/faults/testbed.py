"""A cluster to break: the real API server, the fault proxy before it, a controller behind that, and the witness.

    async with Stand(live, directory, forge) as stand:
        await stand.running()                                  # a controller, forked in a few hundredths of a second
        await stand.hands.create("llmtrainingjobs", job)
        await stand.watcher.until(...)

The controller is one that lives on from fault to fault where it can: a start is the dearest part of a crash.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.faultproxy import FaultProxy
from tests.faults import witness_state
from tests.faults.invariants import Limits
from tests.faults.raw_client import Hands
from tests.faults.watcher import Watcher, state
from tests.forkserver import Forge
from tests.live.harness import ControllerProcess, Live

Settings = dict[str, dict[str, Any]]


class Stand:
    """All that a fault needs."""

    def __init__(
        self,
        live: Live,
        directory: Path,
        forge: Forge,
        *,
        settings: Settings | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.live = live
        self.watcher = Watcher(live.cluster.kubeconfig, limits or Limits())
        self.hands = Hands(live.cluster.kubeconfig)
        self.proxy = FaultProxy(live.cluster.kubeconfig, directory, token=live.token(directory))
        self.starts = 0
        """Controllers started so far."""
        self.settings: Settings = settings or {}
        self.directory = directory
        self._forge = forge
        self._controllers: list[ControllerProcess] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Stand:
        for part in (self.watcher, self.hands, self.proxy):
            await self._stack.enter_async_context(part)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        await self._stack.aclose()

    @property
    def controller(self) -> ControllerProcess:
        """The last one that was started."""
        return self._controllers[-1]

    @property
    def alive(self) -> bool:
        return bool(self._controllers) and self.controller.alive

    async def running(self, settings: Settings | None = None) -> ControllerProcess:
        """A controller behind the proxy, and its victim; a new one where there is none, or settings change."""
        wanted = self.settings if settings is None else settings
        if not self.alive or wanted != self.settings:
            self.stop()
            self.settings = wanted
            made = ControllerProcess(self.proxy.kubeconfig, self.directory, forge=self._forge, **wanted)
            self._controllers = [made.start()]
            self.starts += 1
            await self.proxy.victim(made.pid)
        return self.controller

    def stop(self) -> None:
        for process in self._controllers:
            process.stop()

    async def clear(self, *jobs: str) -> None:
        """Delete jobs and what belongs to them at once, without waiting for the garbage collector."""
        for job in jobs:
            await self.hands.delete("llmtrainingjobs", job)
        await self.watcher.until(lambda seen: not any(seen.job(job) for job in jobs), 30, f"{jobs} to be gone")
        for job in jobs:
            for pod in self.watcher.pods(job):
                await self.hands.delete("pods", pod["metadata"]["name"], grace=0)
            await self.hands.delete("services", job)
        await self.watcher.until(lambda seen: not any(seen.pods(job) for job in jobs), 30, f"pods of {jobs} to be gone")

    async def runs(self, job: str, seconds: float = 40, *, epoch: int = 0) -> None:
        """Wait until the job's whole gang runs, under this plan or a later one.

        Jobs and pods come by different watches: the job may say so before its pods are seen.
        """

        def so(seen: Watcher) -> bool:
            found = seen.job(job)
            plan = witness_state.plan_of(found)
            ready = witness_state.holds(found, "PodsReady") and int(plan.get("epoch", 0)) >= epoch
            return ready and len(seen.pods(job)) >= int(plan["nodeCount"])

        await self.watcher.until(so, seconds, lambda: f"{job} to run: {self.tell(job)}")

    async def ends(self, job: str, condition: str = "Complete", seconds: float = 40) -> None:
        """Wait until a condition of the job holds."""
        await self.watcher.until(
            lambda seen: witness_state.holds(seen.job(job), condition),
            seconds,
            lambda: f"{job} {condition}: {self.tell(job)}",
        )

    def tell(self, *jobs: str) -> str:
        """How the jobs are, and what the controller said last."""
        lines = [f"{job}: {state(self.watcher.job(job))} {pods_in_words(self.watcher.pods(job))}" for job in jobs]
        return "\n".join([*lines, *(process.tail(15) for process in self._controllers)])


def pods_in_words(pods: list[witness_state.Object]) -> list[str]:
    def words(pod: witness_state.Object) -> str:
        where = f"{pod['status'].get('phase')}@{witness_state.node_of(pod)}"
        return f"{pod['metadata']['name']}={where}{' leaving' if witness_state.leaving(pod) else ''}"

    return sorted(map(words, pods))
